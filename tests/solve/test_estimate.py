"""Point estimates: mean, mode, minimizer and a user's function, at one learning rate and along a grid."""

import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._core.target import evaluate, make_target
from calibayes.solve.estimate import point_estimate, points_along
from targets import gamma_draws, gamma_target

ETAS = np.array([1.5, 2.0, 2.6])


def gamma_particles(eta):
    """Return the data's replicate of the gamma target, exact draws of it, and the sums of counts and observations."""
    target, total, weighted = gamma_target(n_replicates=2, n=12)
    particles = evaluate(target, gamma_draws(np.random.default_rng(0), eta * total, eta * weighted, 4000)).replicate(0)
    return target.replicate(0), particles, total[0], weighted[0]


def test_mode_and_minimizer_of_an_asymmetric_target(key):
    """With a flat prior on the log-rate both are the log of total / weighted at any eta; the mean differs."""
    target, particles, total, weighted = gamma_particles(0.5)
    exact = np.log(total / weighted)
    for name in ("mode", "minimizer"):
        assert abs(float(point_estimate(name, key, target, particles, 0.5)[0]) - exact) < 2e-3
    assert abs(float(point_estimate("mean", key, target, particles, 0.5)[0]) - exact) > 0.03


def test_mode_moves_with_eta_under_an_informative_prior(key):
    y = np.full(10, 2.0)
    model = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=1.0))
    target = make_target(model, (np.ones((10, 1)), y), np.ones((1, 10)), 1).replicate(0)
    particles = evaluate(target, jnp.linspace(0, 3, 500)[None, None])
    for eta in (0.1, 1.0):
        exact = 10 * eta * 2.0 / (10 * eta + 1)
        assert abs(float(point_estimate("mode", key, target, particles, eta)[0]) - exact) < 2e-3
    assert abs(float(point_estimate("minimizer", key, target, particles, 0.1)[0]) - 2.0) < 2e-3


def test_estimate_may_be_a_function_of_draws_and_weights(key):
    target, particles, *_ = gamma_particles(1.0)
    median = point_estimate(lambda draws, weights: jnp.median(draws, axis=0), key, target, particles, 1.0)
    np.testing.assert_allclose(median, np.median(particles.theta[:, 0], axis=1), rtol=1e-5)


def test_mean_uses_the_weights(key):
    """With all weight on one particle the mean is there; at other learning rates it follows the weights."""
    target, *_ = gamma_target(n_replicates=1)
    particles = evaluate(target, jnp.asarray([[[-0.5, 0.7, 1.5]]]))
    degenerate = particles.with_log_weights(jnp.log(jnp.asarray([[0.0, 1.0, 0.0]])))
    np.testing.assert_allclose(point_estimate("mean", key, target, degenerate, 1.0), [0.7], rtol=1e-6)
    etas = np.array([0.5, 1.0, 1.5])
    (low,), (same,), (high,) = np.asarray(points_along("mean", key, target, particles, 1.0, etas))
    weights = np.exp(-(etas - 1.0)[:, None] * np.asarray(particles.risk, float))
    expected = (weights * np.array([-0.5, 0.7, 1.5])).sum(1) / weights.sum(1)
    np.testing.assert_allclose([low, same, high], expected, rtol=1e-4)


@pytest.fixture(scope="module")
def location_particles():
    """Particles of a location problem on the data, at eta = 2."""
    y = np.random.default_rng(0).exponential(size=20)
    model = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=0.5))
    target = make_target(model, (np.ones((20, 1)), y), np.ones((1, 20)), 1).replicate(0)
    theta = np.random.default_rng(1).normal(0.8, 0.15, (1, 1, 500))
    return target, evaluate(target, jnp.asarray(theta, float))


def reweighted(particles, function):
    values = []
    for eta in ETAS:
        weights = np.exp(-(eta - 2.0) * (np.asarray(particles.risk[0], float) - float(particles.risk[0, 0])))
        values.append(function(np.asarray(particles.theta[:, 0], float).T, weights / weights.sum()))
    return np.array(values)


@pytest.mark.parametrize(
    ("estimate", "function"),
    [
        ("mean", lambda draws, weights: weights @ draws),
        (lambda draws, weights: weights @ jnp.exp(draws), lambda draws, weights: weights @ np.exp(draws)),
    ],
    ids=["mean", "function"],
)
def test_points_along_a_grid_are_those_of_reweighted_particles(location_particles, estimate, function, key):
    target, particles = location_particles
    points = points_along(estimate, key, target, particles, 2.0, ETAS)
    expected = reweighted(particles, function)
    np.testing.assert_allclose(points, expected, rtol=1e-4)
    assert np.ptp(expected) > 1e-3


def test_optimum_is_constant_along_a_grid(location_particles, key):
    """The mode is computed once, at the learning rate of the particles. The prior pulls it below the mean of y."""
    target, particles = location_particles
    modes = np.asarray(points_along("mode", key, target, particles, 2.0, ETAS))
    np.testing.assert_array_equal(modes, np.repeat(modes[:1], len(ETAS), 0))
    exact = 2.0 * 20 * float(target.reference[0]) / (2.0 * 20 + 4)
    np.testing.assert_allclose(modes, exact, atol=1e-3)
