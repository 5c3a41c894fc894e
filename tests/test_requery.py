"""Further questions to a result, on heteroscedastic least squares, where coverage has a closed form for every set."""

import pickle
from dataclasses import replace
from functools import partial

import equinox as eqx
import numpy as np
import pytest
from scipy import stats

import calibayes as cb
from calibayes import requery
from calibayes.design import Design
from calibayes.samplers.transport import config
from targets import CoarseFloats

N, K, B, M = 96, 4, 400, 500
MODEL = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=100.0))
BOOTSTRAP = cb.bootstrap.Multinomial(B)


def make_data():
    """The noise grows with the second column, whose coefficient needs a smaller eta than the others."""
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(N), rng.normal(size=(N, K - 1))])
    return x, x @ [1.0, 2.0, 0.0, -1.0] + rng.normal(size=N) * (0.3 + 1.5 * np.abs(x[:, 1]))


DATA = make_data()


def calibrate(**options):
    settings = {"sampler": cb.Transport(n_particles=M), "bootstrap": BOOTSTRAP, "seed": 0, "progress": False}
    return cb.calibrate(MODEL, DATA, names=["a", "b", "c", "d"], **settings | options)


def exact_coverage(counts, eta, region, level=0.95):
    """Return the share of replicates whose normal posterior covers the fit on the data.

    The posterior of a replicate has its least-squares fit as mean and eta X'CX as precision. Highest-density sets are
    ellipsoids, and intervals extend z standard deviations to both sides. The prior is flat over this range.
    """
    x, y = DATA
    precision = np.einsum("bn,nk,nj->bkj", counts, x, x)
    fits = np.linalg.solve(precision, np.einsum("bn,nk->bk", counts * y, x)[..., None])[..., 0]
    gaps = fits - np.linalg.lstsq(x, y)[0]
    if region == "hpd":
        distance = eta * np.einsum("bk,bkj,bj->b", gaps, precision, gaps)
        return (distance <= stats.chi2(K).ppf(level)).mean()
    sd = np.sqrt(np.linalg.inv(precision)[:, region, region] / eta)
    return (np.abs(gaps[:, region]) <= stats.norm.ppf(0.5 + level / 2) * sd).mean()


COVERAGE_ERROR = 0.02
"""Tolerance on coverage. A critical level near 0.95 from a population of 500 has a standard error of
2 sqrt(0.025 * 0.975 / 500) = 0.014, which replicates of the same population share. Levels are about uniform, so that
this is also the error of coverage: over 20 populations 0.014 / sqrt(20) = 0.003. Independent errors of the replicates
increase it to 0.004. The tolerance is four standard errors, and one replicate for the order statistics."""


@pytest.fixture(scope="module")
def result():
    return calibrate()


@pytest.fixture(scope="module")
def intervals(result):
    return result.intervals()


def test_joint_sets_cover_at_the_level(result):
    assert result.converged
    assert abs(exact_coverage(result.counts, result.eta, "hpd") - 0.95) < COVERAGE_ERROR


@pytest.mark.parametrize(("level", "region"), [(0.9, "hpd"), (0.8, cb.regions.Interval(1))], ids=str)
def test_another_level_or_region_agrees_with_a_separate_calibration(result, level, region):
    """The separate calibration has the same counts and another seed, so that only the particles differ.

    Their error is 2 to 3.3% of eta for each, over seeds and against the closed form, while `eta_se` is 12%: three
    standard errors of the difference.
    """
    requeried = result.at(level, region)
    assert requeried.converged
    assert requeried.level == level
    separate = calibrate(level=level, region=region, bootstrap=result.counts, seed=1)
    assert abs(requeried.eta - separate.eta) < separate.eta_se
    name = region if isinstance(region, str) else region.index
    assert abs(exact_coverage(result.counts, requeried.eta, name, level) - level) < 2 * COVERAGE_ERROR
    # The first result has not changed, and the second one answers questions too.
    assert result.level == 0.95
    assert requeried.at(0.95, "hpd").eta == pytest.approx(result.eta, abs=0.5 * result.eta_se)


def test_same_level_and_region_give_the_same_answer(result):
    requeried = result.at()
    assert requeried.eta == pytest.approx(result.eta, abs=0.1 * result.eta_se)
    assert type(requeried.region) is type(result.region)


def test_each_interval_covers_at_its_own_learning_rate(result, intervals):
    """At the joint learning rate some do not."""
    own = [exact_coverage(result.counts, intervals.eta[k], k) for k in range(K)]
    np.testing.assert_allclose(own, 0.95, atol=COVERAGE_ERROR)
    joint = [exact_coverage(result.counts, result.eta, k) for k in range(K)]
    assert np.abs(np.array(joint) - 0.95).max() > 0.03
    assert intervals.eta[1] < 0.75 * min(intervals.eta[[0, 2, 3]])
    assert (intervals.eta_se > 0).all()
    assert (intervals.eta_se < 0.4 * intervals.eta).all()


def test_intervals_are_posterior_quantiles_at_their_learning_rates(result, intervals):
    """Normal quantiles about the fit. The standard error of a 2.5% quantile of n draws is 2.67 sd / sqrt(n)."""
    x, y = DATA
    fit, sd = np.linalg.lstsq(x, y)[0], np.sqrt(np.diag(np.linalg.inv(x.T @ x)) / intervals.eta)
    expected = fit[:, None] + sd[:, None] * stats.norm.ppf([0.025, 0.975])
    error = 4 * 2.67 * sd[:, None] / np.sqrt(len(result.draws))
    bounds = np.asarray(intervals)
    assert bounds.shape == (K, 2)
    assert (np.abs(bounds - expected) < error).all()
    assert np.asarray(intervals, np.float32).dtype == np.float32
    # Those of the joint posterior are too narrow for the coefficient of the column that the noise grows with.
    joint = result.marginal_intervals()
    assert np.diff(bounds[1]) > 1.1 * np.diff(joint[1])


def test_intervals_at_a_lower_level_are_narrower(result, intervals):
    narrower = result.intervals(0.5)
    assert narrower.level == 0.5
    assert (np.diff(np.asarray(narrower)) < 0.6 * np.diff(np.asarray(intervals))).all()


def test_intervals_at_another_level_are_computed_once(result):
    assert result.intervals(0.8) is result.intervals(0.8)


def test_intervals_print_as_a_table(intervals):
    lines = repr(intervals).splitlines()
    assert lines[0].split() == ["mean", "se", "95%", "low", "95%", "high", "eta", "eta_se"]
    assert [line.split()[0] for line in lines[1:]] == ["a", "b", "c", "d"]
    assert float(lines[2].split()[5]) == pytest.approx(intervals.eta[1], rel=5e-3)


def make_other_counts():
    return np.random.default_rng(9).multinomial(N, np.full(N, 1 / N), size=B)


def test_validated_coverage_matches_the_closed_form(result):
    """On given counts, and on those of the calibration."""
    counts = make_other_counts()
    assert abs(result.validate(counts) - exact_coverage(counts, result.eta, "hpd")) < COVERAGE_ERROR
    own = result.validate(result.counts)
    assert abs(own - 0.95) < COVERAGE_ERROR


def test_further_questions_are_not_refused_as_out_of_reach(result, monkeypatch):
    """The calibration has shown that they are not, whatever a first look at the importance weights says."""
    fit = replace(config.CONFIG.fit, fair_share=2.0)
    repair = replace(config.CONFIG.repair, out_of_reach=-1.0, max_losses=-1, max_losses_on_accelerator=-1)
    monkeypatch.setattr(config, "CONFIG", replace(config.CONFIG, fit=fit, repair=repair))
    with pytest.raises(RuntimeError, match="differ too much"):
        calibrate()
    assert result.validate().n_replicates == B
    assert result.at(level=0.5).converged


def test_validated_coverage_is_near_the_level(result):
    """Two binomial errors of sqrt(0.95 * 0.05 / 400) = 0.011: of fresh replicates, and of the calibration's."""
    fresh = result.validate()
    assert fresh.n_replicates == B
    assert abs(fresh - 0.95) < 3.5 * 2**0.5 * np.sqrt(0.95 * 0.05 / B)
    assert result.validate() == fresh
    assert fresh.interval[0] < 0.95 < fresh.interval[1] or abs(fresh - 0.95) < 0.04


def test_validation_detects_a_wrong_learning_rate(result):
    """At three times eta the sets are 1 / sqrt(3) as wide: coverage is far below the level, as in the closed form."""
    iterate = replace(result.calibration.iterate, eta=3 * result.eta)
    wrong = replace(result, eta=3 * result.eta, calibration=replace(result.calibration, iterate=iterate))
    counts = make_other_counts()
    coverage = wrong.validate(counts)
    assert coverage < 0.8
    assert abs(coverage - exact_coverage(counts, 3 * result.eta, "hpd")) < 2 * COVERAGE_ERROR


def test_validation_after_given_counts_needs_a_bootstrap():
    result = calibrate(bootstrap=make_other_counts())
    with pytest.raises(ValueError, match=r"validate cannot draw fresh replicates.*Pass bootstrap="):
        result.validate()
    assert abs(result.validate(B, seed=3) - 0.95) < 0.06


def test_pickled_result_has_no_particles(result):
    intervals = result.intervals()
    loaded = pickle.loads(pickle.dumps(result))
    assert loaded.eta == result.eta
    # Intervals that were computed before are kept.
    np.testing.assert_array_equal(loaded.intervals().bounds, intervals.bounds)
    for question in (loaded.at, partial(loaded.intervals, 0.8), loaded.validate):
        with pytest.raises(RuntimeError, match=r"copied or loaded.*Run `calibrate` again"):
            question()


def test_invalid_questions_are_rejected(result):
    with pytest.raises(ValueError, match="level must be between 0 and 1"):
        result.at(95.0)
    with pytest.raises(ValueError, match="replicates are too few for level"):
        result.intervals(0.9999)
    with pytest.raises(ValueError, match="region must be one of"):
        result.at(region="cube")
    with pytest.raises(ValueError, match="is out of range"):
        result.at(region=cb.regions.Interval(K))
    with pytest.raises(ValueError, match="bootstrap counts must be"):
        result.validate(np.ones((B, N + 1)))


def exact_level(eta, theta, region):
    """Return the smallest level at which the set of the normal posterior on the data contains theta."""
    x, y = DATA
    precision = eta * x.T @ x
    gap = theta - np.linalg.lstsq(x, y)[0]
    if region == "hpd":
        return stats.chi2(K).cdf(gap @ precision @ gap)
    return 2 * stats.norm.cdf(np.abs(gap[region]) / np.sqrt(np.linalg.inv(precision)[region, region])) - 1


@pytest.mark.parametrize("factor", [None, pytest.param(0.2, marks=pytest.mark.slow), 4.0])
def test_level_of_a_point_matches_the_closed_form(result, factor):
    """A level from 10,000 weighted particles has a standard error of 0.005, and as much again through their mean."""
    eta = None if factor is None else factor * result.eta
    theta = np.linalg.lstsq(*DATA)[0] + [0.02, 0.1, -0.05, 0.02]
    for queried, region in ((result, "hpd"), (result.at(region=cb.regions.Interval(1)), 1)):
        used_eta = queried.eta if eta is None else eta
        assert queried.level_of(theta, eta) == pytest.approx(exact_level(used_eta, theta, region), abs=0.03)


def test_posterior_at_another_learning_rate_is_exact(result):
    """From 2,500 draws means have an error of sd / 50 and standard deviations of sd / 71: five of each."""
    x, y = DATA
    eta = 5 * result.eta
    draws = result.posterior(eta)
    sd = np.sqrt(np.diag(np.linalg.inv(x.T @ x)) / eta)
    assert (np.abs(draws.mean(0) - np.linalg.lstsq(x, y)[0]) < 0.1 * sd).all()
    np.testing.assert_allclose(draws.std(0), sd, rtol=5 / 71)


def test_invalid_parameters_and_learning_rates_are_rejected(result):
    for theta in ([1.0], [1.0, 2.0, np.nan, 0.0], np.zeros((4, 1))):
        with pytest.raises(ValueError, match="theta must be 4 finite numbers"):
            result.level_of(theta)
    for eta in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match="eta must be positive and finite"):
            result.posterior(eta)


def test_posterior_from_particles_that_have_not_mixed_warns(result, monkeypatch):
    def not_mixed(key, target, particles, *_):
        return particles, np.zeros(1, bool)

    monkeypatch.setattr("calibayes.requery.temper_and_mix", not_mixed)
    with pytest.warns(cb.CalibrationWarning, match=r"have not mixed at eta = 1\.234"):
        result.posterior(1.234)


def test_diagnostics_of_fresh_replicates_are_warned_of(result, monkeypatch):
    fresh = cb.Coverage(94, 100)
    finding = cb.Diagnostic(cb.Code.ESS_COLLAPSED, cb.Severity.WARNING, 9, "The effective sample size is low.")
    note = cb.Diagnostic(cb.Code.REPAIRED, cb.Severity.INFO, 1, "One replicate was resampled.")
    monkeypatch.setattr("calibayes.requery.Calibration._coverage_on", lambda *_: (fresh, (note, finding)))
    with pytest.warns(cb.CalibrationWarning, match="on the fresh replicates: The effective sample size is low.$"):
        assert result.validate() == fresh
    monkeypatch.setattr("calibayes.requery.Calibration._coverage_on", lambda *_: (fresh, (note,)))
    assert result.validate() == fresh


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::calibayes.CalibrationWarning")
def test_validation_after_smc_is_near_the_calibrated_coverage():
    """Fresh replicates start from the data's posterior again. Within four standard errors of both coverages."""
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    data = cb.datasets.median_regression(60, 0)
    sampler = cb.SMC(n_particles=200)
    result = cb.calibrate(model, data, seed=0, bootstrap=100, sampler=sampler, tolerance=0.03, progress=False)
    fresh = result.validate(100, seed=5)
    assert fresh.n_replicates == 100
    assert abs(fresh - result.coverage) < 4 * (2 * 0.95 * 0.05 / 100) ** 0.5


def test_region_in_other_coordinates_is_checked():
    x, _ = cb.datasets.median_regression(60, 0)
    mapping = Design.from_columns(x[:, 1:]).reparametrization(0.0)
    with pytest.raises(ValueError, match="is out of range: there are 2"):
        mapping.transform_region(cb.regions.Interval(7)).check(2)


# Findings of the calibration


@pytest.mark.parametrize("name", ["check_risk", "check_parameters"])
def test_rounding_errors_at_another_level_are_reported(result, name):
    inputs = replace(result.calibration.inputs, precision=CoarseFloats(name))
    calibration = replace(result.calibration, inputs=inputs)
    with pytest.warns(cb.NotConvergedWarning, match=r"Parameter 0 is near 1\."):
        requeried = calibration.at(0.9, None)
    assert requeried.status is cb.Status.UNRELIABLE
    assert [finding.code for finding in requeried.diagnostics] == [cb.Code.FEW_OBSERVATIONS, cb.Code.ROUNDING]


@pytest.mark.parametrize("code", [cb.Code.ROUNDING, cb.Code.DATA_UNRELIABLE])
def test_unreliable_draws_make_the_answer_at_another_level_unreliable(result, code):
    """Once, although the check of the rounding errors fails again."""
    finding = cb.Diagnostic(code, cb.Severity.ERROR, 0, "The draws are unreliable.")
    iterate = replace(result.calibration.iterate, status=cb.Status.UNRELIABLE, diagnostics=(finding,))
    calibration = replace(result.calibration, iterate=iterate)
    if code is cb.Code.ROUNDING:
        calibration = replace(calibration, inputs=replace(calibration.inputs, precision=CoarseFloats("check_risk")))
    with pytest.warns(cb.NotConvergedWarning):
        requeried = calibration.at(0.9, None)
    assert requeried.status is cb.Status.UNRELIABLE
    assert requeried.diagnostics[1:] == [finding]


def test_intervals_beyond_the_time_limit_are_those_at_the_joint_learning_rate(result):
    """The limit passes before any interval is calibrated."""
    calibration = result.calibration
    inputs = replace(calibration.inputs, settings=calibration.inputs.settings | {"max_seconds": 1e-6})
    with pytest.warns(cb.NotConvergedWarning, match="was not calibrated within 0 s"):
        late = replace(calibration, inputs=inputs).intervals(None, None)
    assert late.status == [cb.Status.TIME_LIMIT] * K
    np.testing.assert_array_equal(late.eta, result.eta)
    # The reported draws are a sample of the particles: quantiles of 4,000 draws are within 0.1 standard deviations.
    np.testing.assert_allclose(late.bounds, result.marginal_intervals(), atol=0.1 * result.draws.std())


def test_combination_of_zeros_is_zero(result, intervals):
    both = result.intervals(of=[np.zeros(K), np.eye(K)[1]])
    np.testing.assert_array_equal(both.bounds[0], 0)
    assert both.eta[0] == result.eta
    np.testing.assert_array_equal(both.bounds[1], intervals.bounds[1])


@pytest.mark.parametrize(
    "scheme",
    [
        cb.bootstrap.Cluster(40, np.arange(N) // 4),
        cb.bootstrap.Stratified(40, np.arange(N) % 2),
        cb.bootstrap.Block(40, length=4),
        cb.bootstrap.Multinomial(40, size=N // 2, rate=0.5),
    ],
    ids=lambda scheme: type(scheme).__name__,
)
def test_validation_with_a_number_keeps_the_bootstrap(result, monkeypatch, scheme):
    calibration = replace(result.calibration, inputs=replace(result.calibration.inputs, bootstrap=scheme))
    drawn = []
    monkeypatch.setattr(requery, "draw_counts", lambda replicates, *_, **__: drawn.append(replicates) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        calibration.validate(60, 1)
    assert drawn[0].n_replicates == 60
    assert eqx.tree_equal(drawn[0].with_replicates(40), scheme)


def test_further_questions_after_a_change_of_the_model_are_an_error(result):
    """The particles are of the posterior before the change. Intervals that are known already are returned."""
    calibration = result.calibration
    changed = replace(calibration, inputs=replace(calibration.inputs, state_of_model="another"))
    for question in (
        lambda: changed.at(0.9, None),
        lambda: changed.intervals(0.9, None),
        lambda: changed.posterior(1.0),
        lambda: changed.level_of(np.zeros(K), None),
        lambda: changed.validate(None, None),
        lambda: changed.with_method(cb.methods.Fixed(1.0)),
    ):
        with pytest.raises(ValueError, match=r"has changed since the calibration.*Calibrate again"):
            question()
