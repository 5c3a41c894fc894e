"""The point to be covered."""

import jax.numpy as jnp
import numpy as np

from calibayes._core.target import evaluate
from calibayes.solve.estimate import point_estimate, points_along
from targets import gamma_draws, gamma_target


def setup(eta):
    target, total, weighted = gamma_target(n_replicates=2, n=12)
    particles = evaluate(target, gamma_draws(np.random.default_rng(0), eta * total, eta * weighted, 4000)).replicate(0)
    return target.replicate(0), particles, total[0], weighted[0]


def test_mode_and_minimizer_of_an_asymmetric_target(key):
    """With a flat prior on the log-rate both are the log of total / weighted, whatever eta; the mean is not."""
    target, particles, total, weighted = setup(0.5)
    exact = np.log(total / weighted)
    for name in ("mode", "minimizer"):
        assert abs(float(point_estimate(name, key, target, particles, 0.5)[0]) - exact) < 2e-3
    assert abs(float(point_estimate("mean", key, target, particles, 0.5)[0]) - exact) > 0.03


def test_mode_moves_with_eta_where_the_prior_pulls(key):
    import calibayes as cb
    from calibayes._core.target import make_target

    y = np.full(10, 2.0)
    model = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=1.0))
    target = make_target(model, (np.ones((10, 1)), y), np.ones((1, 10)), 1).replicate(0)
    particles = evaluate(target, jnp.linspace(0, 3, 500)[None, None])
    for eta in (0.1, 1.0):
        exact = 10 * eta * 2.0 / (10 * eta + 1)
        assert abs(float(point_estimate("mode", key, target, particles, eta)[0]) - exact) < 2e-3
    assert abs(float(point_estimate("minimizer", key, target, particles, 0.1)[0]) - 2.0) < 2e-3


def test_function_of_draws_and_weights(key):
    target, particles, *_ = setup(1.0)
    got = point_estimate(lambda draws, weights: jnp.median(draws, axis=0), key, target, particles, 1.0)
    np.testing.assert_allclose(got, np.median(particles.theta[:, 0], axis=1), rtol=1e-5)


def test_mean_is_by_weight(key):
    """All weight on one particle: the mean is there; and at other learning rates it goes with the weights."""
    target, *_ = gamma_target(n_replicates=1)
    particles = evaluate(target, jnp.asarray([[[-0.5, 0.7, 1.5]]]))
    alone = particles.with_log_weights(jnp.log(jnp.asarray([[0.0, 1.0, 0.0]])))
    np.testing.assert_allclose(point_estimate("mean", key, target, alone, 1.0), [0.7], rtol=1e-6)
    (low,), (same,), (high,) = np.asarray(points_along("mean", key, target, particles, 1.0, np.array([0.5, 1.0, 1.5])))
    weights = np.exp(-np.array([-0.5, 0.0, 0.5])[:, None] * np.asarray(particles.risk, float))
    expected = (weights * np.array([-0.5, 0.7, 1.5])).sum(1) / weights.sum(1)
    np.testing.assert_allclose([low, same, high], expected, rtol=1e-4)
