"""`Coverage` and `Curve`: critical etas, eta-hat, its standard error and the band of coverage, against closed forms."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest, norm

from calibayes._core.curve import Coverage, Curve

B, N_GROUPS = 500, 20


def gaussian_curve(n_replicates=B, seed=0):
    """Return a Gaussian location curve and its critical etas.

    The critical level at eta of a replicate at distance d is P(|Z| < d sqrt(eta)).
    """
    distance = np.abs(np.random.default_rng(seed).normal(size=n_replicates))
    etas = np.exp(np.linspace(-0.4, 0.4, 17))
    levels = 2 * norm.cdf(distance[None] * np.sqrt(etas)[:, None]) - 1
    return Curve(etas, levels, np.full(17, 1000.0), 0.95), (norm.ppf(0.975) / distance) ** 2


def grouped_curve(seed, shared):
    """Return a Gaussian location curve in which each group of replicates has an error in common.

    `shared` is the standard deviation over groups of the error in the logarithm of the distance.
    """
    rng = np.random.default_rng(seed)
    group = np.arange(1, B + 1) % N_GROUPS
    distance = np.abs(rng.normal(size=B)) * np.exp(shared * rng.normal(size=N_GROUPS))[group]
    etas = np.exp(np.linspace(-0.5, 0.5, 15))
    levels = 2 * norm.cdf(distance[None] * np.sqrt(etas)[:, None]) - 1
    return Curve(etas, levels, np.full(15, 1000.0), 0.95, N_GROUPS, levels[7])


@pytest.fixture(scope="module")
def curves():
    return {shared: [grouped_curve(seed, shared) for seed in range(300)] for shared in (0.0, 0.25)}


def test_coverage_has_a_wilson_interval():
    """Against SciPy, for an asymmetric share."""
    exact = binomtest(470, 500).proportion_ci(method="wilson")
    np.testing.assert_allclose(Coverage(470, 500).interval, (exact.low, exact.high), rtol=1e-6)
    assert Coverage(500, 500).interval[1] == 1


def test_coverage_survives_copying_and_pickling():
    coverage = Coverage(470, 500)
    for copied in (copy.deepcopy(coverage), pickle.loads(pickle.dumps(coverage))):
        assert copied == coverage
        assert copied.n_replicates == 500
        assert copied.interval == coverage.interval


def test_critical_etas_match_the_closed_form():
    curve, exact = gaussian_curve()
    critical = curve.critical_etas()
    inside = (exact > curve.etas[0]) & (exact < curve.etas[-1])
    np.testing.assert_allclose(critical[inside], exact[inside], rtol=2e-3)
    assert (critical[exact <= curve.etas[0]] == 0).all()
    assert np.isinf(critical[exact >= curve.etas[-1]]).all()


@pytest.mark.parametrize("level", [0.95, 0.93])
def test_eta_hat_lies_between_order_statistics(level):
    curve, exact = gaussian_curve()
    exact = np.sort(exact * (norm.ppf(0.5 + level / 2) / norm.ppf(0.975)) ** 2)
    n_outside = round((1 - level) * 500)
    assert exact[n_outside - 1] * 0.998 < curve.eta_hat(level) < exact[n_outside] * 1.002
    coverage = np.interp(np.log(curve.eta_hat(level)), np.log(curve.etas), curve.coverage(level))
    assert abs(coverage - level) < 0.01


def test_eta_se_is_the_standard_deviation_over_bootstrap_samples():
    """The median standard error of 400 sets of replicates is within 15% of the standard deviation of eta-hat over them.

    That standard deviation is known to 1 / sqrt(800) = 3.5%. A standard error from 2 x 5 order statistics scatters, but
    the median of 400 does not.
    """
    curves = [gaussian_curve(seed=seed)[0] for seed in range(400)]
    etas = np.array([curve.eta_hat() for curve in curves])
    errors = np.array([curve.eta_se() for curve in curves])
    assert abs(np.median(errors) / etas.std() - 1) < 0.15


def test_crossing_off_the_curve_is_zero_or_infinite():
    """Sets that cover nowhere on the grid, and sets that cover everywhere."""
    curve, _ = gaussian_curve()
    for levels, eta in ((curve.critical_levels * 0 + 0.99, 0.0), (curve.critical_levels * 0 + 0.5, np.inf)):
        flat = Curve(curve.etas, levels, curve.ess, 0.95)
        assert flat.eta_hat() == eta
        assert np.isinf(flat.eta_se())


def test_empty_curve_has_no_answer():
    empty = Curve.empty(50, 0.95)
    assert empty.eta_hat() == 0
    assert np.isinf(empty.eta_se())
    assert empty.coverage().shape == (0,)
    assert "0 etas, 50 replicates" in repr(empty)


def test_band_contains_the_coverage_and_narrows_with_replicates():
    curve = replace(grouped_curve(0, 0.0), n_populations=1)
    for level in (None, 0.9, 0.5):
        band, coverage = curve.band(level), curve.coverage(level)
        assert band.shape == (15, 2)
        assert (band[:, 0] < coverage).all()
        assert (coverage < band[:, 1]).all()
        expected = [Coverage(round(share * B), B).interval for share in coverage]
        np.testing.assert_allclose(band, expected)
    assert (curve.band(0.5)[:, 0] < curve.band(0.9)[:, 0]).all()
    fewer = Curve(curve.etas, curve.critical_levels[:, :50], curve.ess, 0.95)
    assert (np.diff(fewer.band(0.5)) > 2 * np.diff(curve.band(0.5))).all()
    assert Curve.empty(50, 0.95).band().shape == (0, 2)


def test_band_is_wider_if_replicates_share_particles():
    curve = grouped_curve(0, 1.0)
    assert curve._design_effect(0.95) > 1.5
    independent = replace(curve, n_populations=1)
    assert (np.diff(curve.band())[5:10] > 1.15 * np.diff(independent.band())[5:10]).all()


def test_band_covers_the_true_probability(curves):
    """The bands of 300 curves at eta = 1 contain P(d < 1.96) = 0.95 in 95% of cases, to four errors of 1.3%."""
    bands = [curve.band()[7] for curve in curves[0.0]]
    share = np.mean([low <= 0.95 <= high for low, high in bands])
    assert abs(share - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 300)


def test_design_effect_of_independent_replicates_is_about_one(curves):
    """A ratio of variances with 19 degrees of freedom, averaged over correlated levels, and never below one.

    Its standard deviation is at most sqrt(2 / 19) = 0.32: the part above one adds at most 0.4 * 0.32 = 0.13 to the mean
    of 300.
    """
    effects = np.array([curve._design_effect(0.95) for curve in curves[0.0]])
    assert (effects >= 1).all()
    assert np.median(effects) < 1.05
    assert effects.mean() < 1.15


def test_design_effect_is_the_increase_of_the_variance_of_coverage(curves):
    """Against the variance of coverage over 300 sets of replicates, which is known to sqrt(2 / 300) = 8%.

    The estimate averages over levels from 0.90 to 0.975, where the increase differs somewhat: 25%.
    """
    coverage = np.array([(curve.first_critical_levels <= 0.95).mean() for curve in curves[0.25]])
    p = coverage.mean()
    increase = coverage.var() * B / (p * (1 - p))
    assert increase > 1.5
    estimate = np.mean([curve._design_effect(0.95) for curve in curves[0.25]])
    assert abs(estimate / increase - 1) < 0.25


def test_eta_se_includes_errors_that_replicates_share(curves):
    """The median standard error is the standard deviation of eta-hat over 300 sets of replicates, to 20%.

    The standard deviation is known to 1 / sqrt(600) = 4%, and the square root of the design effect to 12% by the 25%
    above. Under the assumption of independent replicates the standard error is too small.
    """
    etas = np.array([curve.eta_hat() for curve in curves[0.25]])
    errors = np.array([curve.eta_se() for curve in curves[0.25]])
    assert abs(np.median(errors) / etas.std() - 1) < 0.2
    independent = [Curve(c.etas, c.critical_levels, c.ess, 0.95).eta_se() for c in curves[0.25]]
    assert np.median(independent) < 0.85 * np.median(errors)


def test_curve_without_groups_has_no_design_effect():
    curve = grouped_curve(0, 0.25)
    assert Curve(curve.etas, curve.critical_levels, curve.ess, 0.95)._design_effect(0.95) == 1
    # If all replicates are covered, or none, there is no variance to compare.
    for level in (0.0, 0.9999):
        flat = Curve(curve.etas, curve.critical_levels, curve.ess, 0.95, N_GROUPS, np.full(B, level))
        assert flat._design_effect(0.95) == 1


def stepped_curve(outside, level=0.95):
    """Return a curve on which the replicates of each group are outside the sets at given learning rates.

    `outside` has for each group its number of replicates, and a slice of the 17 learning rates.
    """
    levels = np.full((17, 1000), 0.5)
    first = 0
    for number, where in outside:
        levels[where, first : first + number] = 0.99
        first += number
    return Curve(np.exp(np.linspace(-0.4, 0.4, 17)), levels, np.full(17, 1000.0), level)


def test_lowest_crossing_is_eta_hat_if_coverage_falls():
    curve, _ = gaussian_curve()
    assert curve.lowest_crossing() == curve.eta_hat()
    assert curve.attainable_eta().eta == curve.eta_hat()


def test_lowest_crossing_precedes_a_coverage_that_rises_again():
    """Coverage is 0.98 up to the fourth learning rate, 0.90 up to the eighth, 0.98, and 0.90 from the thirteenth on."""
    curve = stepped_curve([(20, slice(None)), (80, slice(4, 8)), (80, slice(12, None))])
    assert curve.etas[11] <= curve.eta_hat() <= curve.etas[12]
    # Linear in log eta between the two: 0.03 of 0.08 below 0.98.
    expected = np.log(curve.etas[3]) + 0.03 / 0.08 * 0.05
    np.testing.assert_allclose(np.log(curve.lowest_crossing()), expected)
    assert curve.attainable_eta() == (curve.lowest_crossing(), 0.95, None)


def test_lowest_crossing_left_of_the_curve_is_zero():
    curve = stepped_curve([(100, slice(0, 8)), (80, slice(12, None))])
    assert curve.eta_hat() > 0
    assert curve.lowest_crossing() == 0


def test_small_dips_of_coverage_are_noise():
    """A dip of two standard errors: 0.7% each."""
    curve = stepped_curve([(20, slice(None)), (44, slice(4, 8)), (80, slice(12, None))])
    assert curve.coverage().min() < 0.95
    assert curve.lowest_crossing() == curve.eta_hat()


def jumping_curve(n_distinct):
    """Return a curve of 0/1 data: critical etas of 0.7 (4.2% of replicates), 1.0 (10%) and 1.3 (85.8%), level 0.9."""
    critical = np.repeat([0.7, 1.0, 1.3], [42, 100, 858])
    etas = np.exp(np.linspace(-0.6, 0.6, 15))
    levels = 0.9 * (etas[:, None] / critical) ** 0.3
    return Curve(etas, levels, np.full(15, 1000.0), 0.9, n_distinct=n_distinct)


def test_conservative_side_of_a_jump_is_reported():
    eta, coverage, jump = jumping_curve(n_distinct=3).attainable_eta()
    assert 0.7 < eta < 1.0
    np.testing.assert_allclose(eta, np.exp(-0.1), rtol=1e-3)
    assert coverage == 0.958
    np.testing.assert_allclose(jump, (1.0, 0.958, 0.858), rtol=1e-3)


def test_standard_error_at_a_jump_is_not_zero():
    """Order statistics are all the same there; the position of the jump has a Monte Carlo error."""
    assert 0.01 < jumping_curve(n_distinct=3).eta_se() < 0.1


def test_equal_critical_etas_of_distinct_replicates_are_no_jump():
    assert jumping_curve(n_distinct=None).attainable_eta().jump is None
