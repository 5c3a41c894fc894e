"""The curve's critical etas, eta-hat and its error, against closed forms."""

import numpy as np
import pytest

from calibayes._core.curve import Curve
from calibayes.solve.curve import grid_around, half_width


def gaussian_curve(n_replicates=500, seed=0):
    """Gaussian location with known critical etas: the level at eta of a row at distance d is P(|Z| < d sqrt(eta))."""
    from scipy.stats import norm

    distance = np.abs(np.random.default_rng(seed).normal(size=n_replicates))
    etas = np.exp(np.linspace(-0.4, 0.4, 17))
    levels = 2 * norm.cdf(distance[None] * np.sqrt(etas)[:, None]) - 1
    return Curve(etas, levels, np.full(17, 1000.0), 0.95), (norm.ppf(0.975) / distance) ** 2


def test_critical_etas():
    curve, exact = gaussian_curve()
    got = curve.critical_etas()
    inside = (exact > curve.etas[0]) & (exact < curve.etas[-1])
    np.testing.assert_allclose(got[inside], exact[inside], rtol=2e-3)
    assert (got[exact <= curve.etas[0]] == 0).all()
    assert np.isinf(got[exact >= curve.etas[-1]]).all()


@pytest.mark.parametrize("level", [0.95, 0.93])
def test_eta_hat_lies_between_the_order_statistics(level):
    from scipy.stats import norm

    curve, exact = gaussian_curve()
    exact = np.sort(exact * (norm.ppf(0.5 + level / 2) / norm.ppf(0.975)) ** 2)
    outside = round((1 - level) * 500)
    assert exact[outside - 1] * 0.998 < curve.eta_hat(level) < exact[outside] * 1.002
    at = np.interp(np.log(curve.eta_hat(level)), np.log(curve.etas), curve.coverage(level))
    assert abs(at - level) < 0.01


def test_eta_se_is_the_spread_over_bootstrap_samples():
    """The median standard error over 400 fresh sets of rows is within 15% of the spread of eta-hat over them.

    The spread itself is known to 1 / sqrt(800) = 3.5%; an order-statistic estimate from 2 x 5 ranks scatters, but its
    median over 400 does not.
    """
    found = [gaussian_curve(seed=s)[0] for s in range(400)]
    etas = np.array([curve.eta_hat() for curve in found])
    errors = np.array([curve.eta_se() for curve in found])
    assert abs(np.median(errors) / etas.std() - 1) < 0.15


def test_eta_off_the_curve_is_not_made_up():
    """Sets that never reach the level on the grid, and sets that never lose it."""
    curve, _ = gaussian_curve()
    for levels, eta in ((curve.critical_levels * 0 + 0.99, 0.0), (curve.critical_levels * 0 + 0.5, np.inf)):
        flat = Curve(curve.etas, levels, curve.ess, 0.95)
        assert flat.eta_hat() == eta
        assert np.isinf(flat.eta_se())


def test_the_grid_reaches_as_far_as_half_of_the_effective_size():
    """Of normal risks of standard deviation s a step d of eta leaves exp(-(s d)^2): of 2^17 draws, to some 2%."""
    eta, deviation = 2.0, 3.5
    width = half_width(eta, deviation**2)
    assert width < 0.2
    risk = deviation * np.random.default_rng(0).normal(size=2**17)
    weights = np.exp(-eta * width * risk)
    assert weights.sum() ** 2 / (weights**2).sum() / len(weights) == pytest.approx(0.5, abs=0.03)
    assert half_width(eta, 1e-9) == 0.6


def test_learning_rates_of_a_grid():
    etas = grid_around(2.0, 0.3, 5)
    np.testing.assert_allclose(np.log(etas / 2), [-0.3, -0.15, 0, 0.15, 0.3], atol=1e-12)
