"""The grid of a coverage curve, and point estimates that move with the learning rate along it."""

import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._core.target import evaluate, make_target
from calibayes.solve.curve import grid_around, half_width, local_curve
from calibayes.solve.estimate import points_along

ETAS = np.array([1.2, 2.0, 3.2])


def test_grid_extends_to_half_of_the_effective_sample_size():
    """For normal risks with standard deviation s, a step d of eta leaves exp(-(s d)^2): of 2^17 draws, to about 2%."""
    eta, deviation = 2.0, 3.5
    width = half_width(eta, deviation**2)
    assert width < 0.2
    risk = deviation * np.random.default_rng(0).normal(size=2**17)
    weights = np.exp(-eta * width * risk)
    assert weights.sum() ** 2 / (weights**2).sum() / len(weights) == pytest.approx(0.5, abs=0.03)
    assert half_width(eta, 1e-9) == 0.6


def test_grid_is_equally_spaced_in_log_eta():
    etas = grid_around(2.0, 0.3, 5)
    np.testing.assert_allclose(np.log(etas / 2), [-0.3, -0.15, 0, 0.15, 0.3], atol=1e-12)


@pytest.mark.parametrize("region", [cb.regions.Interval(0), cb.regions.HPD()], ids=["interval", "hpd"])
def test_points_are_the_posterior_means_at_each_eta(region, key):
    """Of a skewed posterior, whose mean moves as the particles are reweighted."""
    y = np.random.default_rng(0).exponential(size=20)
    model = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=0.5))
    counts = np.random.default_rng(2).multinomial(20, np.full(20, 0.05), size=30)
    target = make_target(model, (np.ones((20, 1)), y), counts, 1)
    theta = np.random.default_rng(1).gamma(2.0, 0.5, (1, target.n_replicates, 500))
    particles = evaluate(target, jnp.asarray(theta, float))
    data = particles.replicate(0)

    def levels(points_of):
        return local_curve(target, [(data, particles)], 2.0, ETAS, region, points_of, 0.95).critical_levels

    means = points_along("mean", key, target, data, 2.0, ETAS)
    weights = np.exp(-(ETAS[:, None] - 2.0) * np.asarray(data.risk, np.float64))
    expected = (weights * theta[0, 0]).sum(1) / weights.sum(1)
    np.testing.assert_allclose(means[:, 0], expected, rtol=1e-5)
    constant = points_along("mean", key, target, data, 2.0, np.full(3, 2.0))
    assert np.abs(levels(lambda *_: constant) - levels(lambda *_: means))[[0, 2]].mean() > 0.02
