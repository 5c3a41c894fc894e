"""Draws on many observations by way of some of them: the same posterior, for a fraction of the passes over the data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes.samplers import pool as pools
from calibayes.samplers.onto import onto_all
from calibayes.samplers.pool import make_pool, rough_draws
from calibayes.samplers.start import CREW
from calibayes.target import evaluate, make_target

N, FEW, M = 4_003, 512, 200
SCALE = 1000.0
MODEL = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=SCALE))


def regression(rare=False):
    """A slope too, or a column that is one for three observations alone, none of them among the few."""
    rng = np.random.default_rng(0)
    column = rng.normal(size=N)
    if rare:
        column = np.zeros(N)
        column[[7, 100, 2000]] = 1
    x = np.column_stack([np.ones(N), column])
    return x, x @ [1.0, -2.0] + rng.normal(size=N)


def target_of(x, y):
    return make_target(MODEL, (x, y), np.ones((1, N)), x.shape[1])


@pytest.fixture
def few_will_do(monkeypatch):
    """The ladder takes few observations where there are more than twice as many; and which ladders there were."""
    ladders, climb = [], pools._to_the_matching_eta

    def counted(key, target, crew, n_particles):
        ladders.append(int(target.counts.n))
        return climb(key, target, crew, n_particles)

    monkeypatch.setattr(pools, "enough_observations", lambda dim: FEW)
    monkeypatch.setattr(pools, "_to_the_matching_eta", counted)
    return ladders


def test_some_observations_one_of_each_stretch(key):
    x, y = regression()
    target = target_of(np.column_stack([x[:, 0], np.arange(N)]), y)
    few = target.some(key, FEW)
    numbers = np.asarray(few.data[0][..., 1]).reshape(-1)[np.asarray(few.counts.every()[:, 0]) > 0]
    assert int(few.counts.n) == len(numbers) == FEW
    assert (np.diff(numbers) > 0).all()
    assert (np.diff(numbers) < 2 * (N // FEW)).all()
    # Another key, others; the same, the same.
    assert (np.asarray(target.some(jax.random.key(9), FEW).data[0]) != np.asarray(few.data[0])).any()
    np.testing.assert_array_equal(target.some(key, FEW).data[0], few.data[0])


def test_what_fills_up_the_last_block_is_not_among_them(key):
    """All observations are asked for, and more: the 5 that only fill up count nowhere."""
    target = target_of(*regression())
    few = target.some(key, target.base.size)
    assert int(few.counts.n) == N
    theta = jnp.asarray(np.random.default_rng(1).normal(size=(2, 1, 5)), float)
    np.testing.assert_allclose(few.risk(theta), target.row(0).risk(theta), rtol=1e-5)


def assert_posterior(pool, x, y):
    """Normal, in closed form: means and covariance within 4.5 errors of the effective size."""
    precision = pool.eta * x.T @ x + np.eye(2) / SCALE**2
    exact = np.linalg.inv(precision)
    mean = exact @ (pool.eta * x.T @ y)
    theta = np.asarray(pool.particles.theta, float).reshape(2, -1)
    white = np.linalg.inv(np.linalg.cholesky(exact)) @ (theta - mean[:, None])
    assert np.abs(white.mean(1)).max() < 4.5 / pool.ess**0.5
    assert np.abs(white @ white.T / white.shape[1] - np.eye(2)).max() < 4.5 * (2 / pool.ess) ** 0.5


@pytest.mark.parametrize("rare", [False, True])
def test_the_pool_is_that_of_all_observations(few_will_do, key, rare):
    """The ladder goes over few of them; where those do not tell all, over all after that."""
    x, y = regression(rare)
    rough = rough_draws(key, target_of(x, y), M, None)
    assert few_will_do == ([FEW, N] if rare else [FEW])
    pool = make_pool(jax.random.key(2), rough, M)
    assert pool.concerns == []
    assert_posterior(pool, x, y)


def test_draws_on_few_are_carried_to_all(key):
    """Three standard deviations away and eight times too wide, before any move; as weights say, most of them count.

    Resampled from weights of an effective size of 0.3 M at the least.
    """
    x, y = regression()
    target = target_of(x, y)
    few, crew, eta = target.some(key, 64), target.rows(jnp.zeros(CREW, int)), 1.0
    data = np.asarray(few.data[0], float).reshape(-1, 2), np.asarray(few.data[1], float).reshape(-1)
    exact = np.linalg.inv(data[0].T @ data[0])
    # What is taken off y, the reference, stays off.
    centre = exact @ data[0].T @ data[1] + np.asarray(target.reference, float)
    rng = np.random.default_rng(2)
    theta = centre[:, None, None] + np.tensordot(np.linalg.cholesky(exact), rng.normal(size=(2, CREW, M)), 1)
    particles = evaluate(few.rows(jnp.zeros(CREW, int)), jnp.asarray(theta, float))
    carried = onto_all(key, crew, few, particles, eta)
    assert carried is not None
    pool = pools.Pool(target, carried, eta, 1.0, 0.3 * CREW * M)
    assert_posterior(pool, x, y)
