"""Draws on many observations by way of some of them: the same posterior, for a fraction of the passes over the data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._backend.functions import as_float
from calibayes._core.target import evaluate, make_target
from calibayes.samplers import pool as pools
from calibayes.samplers.initial import N_POPULATIONS
from calibayes.samplers.transport.maps import Maps
from calibayes.samplers.transport.pool import make_pool, rough_draws
from calibayes.samplers.transport.subsample import _narrowed, onto_all

N, FEW, M = 4_003, 512, 200
SCALE = 1000.0
MODEL = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=SCALE))


def regression(rare=False):
    """A slope too, or a column that is one for a single observation, which is not among the few."""
    rng = np.random.default_rng(0)
    column = rng.normal(size=N)
    if rare:
        column = np.zeros(N)
        column[3107] = 1
    x = np.column_stack([np.ones(N), column])
    return x, x @ [1.0, -2.0] + rng.normal(size=N)


def target_of(x, y):
    return make_target(MODEL, (x, y), np.ones((1, N)), x.shape[1])


@pytest.fixture
def few_will_do(monkeypatch):
    """The ladder takes few observations where there are more than twice as many; and which ladders there were."""
    ladders, temper_steps = [], pools._to_the_matching_eta

    def counted(key, target, n_particles):
        ladders.append(int(target.counts.n))
        return temper_steps(key, target, n_particles)

    monkeypatch.setattr(pools, "enough_observations", lambda dim: FEW)
    monkeypatch.setattr(pools, "_to_the_matching_eta", counted)
    return ladders


@pytest.mark.parametrize("devices", [{}, {"observations": 4}, {"replicates": 2, "observations": 2}])
def test_some_observations_one_of_each_stretch(key, devices):
    """To the last of them; the same on any devices."""
    x, y = regression()
    with cb.mesh(**devices):
        target = target_of(np.column_stack([x[:, 0], np.arange(N)]), y)
    few = target.subsample(key, FEW)
    numbers = np.asarray(few.data[0][..., 1]).reshape(-1)
    assert int(few.counts.n) == len(numbers) == FEW
    edges = np.arange(FEW + 1) * N // FEW
    assert (edges[:-1] <= numbers).all()
    assert (numbers < edges[1:]).all()
    with cb.mesh():
        alone = target_of(np.column_stack([x[:, 0], np.arange(N)]), y)
    np.testing.assert_array_equal(alone.subsample(key, FEW).data[0], few.data[0])
    assert (np.asarray(alone.subsample(jax.random.key(9), FEW).data[0]) != np.asarray(few.data[0])).any()
    theta = jnp.asarray(np.random.default_rng(1).normal(size=(2, 1, 5)), float)
    np.testing.assert_allclose(alone.subsample(key, FEW).risk(theta), few.risk(theta), rtol=1e-6)


def test_all_observations_are_some(key):
    """None twice, and none of those that only fill up the last block."""
    x, y = regression()
    target = make_target(MODEL, (x[:4000], y[:4000]), np.ones((1, 4000)), 2)
    few = target.subsample(key, 4000)
    theta = jnp.asarray(np.random.default_rng(1).normal(size=(2, 1, 5)), float)
    np.testing.assert_allclose(few.risk(theta), target.replicate(0).risk(theta), rtol=1e-5)


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


def test_a_share_of_the_variance():
    maps = Maps(jnp.ones((2, 3)), jnp.asarray(np.tril(np.arange(1.0, 13).reshape(3, 2, 2)), float))
    narrow = _narrowed(maps, as_float(0.25))
    np.testing.assert_array_equal(narrow.centre, maps.centre)
    np.testing.assert_allclose(narrow.root @ narrow.root.mT, 0.25 * maps.root @ maps.root.mT, rtol=1e-6)


def test_few_that_tell_nothing_are_no_error(few_will_do, key):
    """Eight events among all observations, none or one of them among the few."""
    rng = np.random.default_rng(0)
    event = np.zeros(N)
    event[rng.choice(N, 8, replace=False)] = 1
    loss = lambda t, d: jnp.where(d[0] > 0, 0.5 * jnp.square(d[1] - t[0]), 0.0)
    model = cb.GibbsModel(loss, cb.priors.Normal(scale=10.0), dim=1)
    target = make_target(model, (event, rng.normal(size=N)), np.ones((1, N)), 1)
    rough = rough_draws(key, target, M, None)
    assert few_will_do == [FEW, N]
    assert 0.2 < rough.eta < 5


def test_an_error_of_the_machine_is_not_taken_for_one_of_the_few(few_will_do, key, monkeypatch):
    """Nothing is tried again on all of them."""
    tried = []

    def fail(key, target, n_particles):
        tried.append(int(target.counts.n))
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")

    monkeypatch.setattr(pools, "_to_the_matching_eta", fail)
    with pytest.raises(jax.errors.JaxRuntimeError, match="out of memory"):
        rough_draws(key, target_of(*regression()), M, None)
    assert tried == [FEW]


def test_a_population_that_found_another_mode_stays_there(key):
    """Two of twenty at minus what the others found: that they do not agree must not be lost on the way."""
    rng = np.random.default_rng(3)
    y = rng.normal(2.0, 1.0, size=N)
    loss = lambda t, d: 0.5 * jnp.square(jnp.abs(t[0]) - d)
    target = make_target(cb.GibbsModel(loss, cb.priors.Normal(scale=10.0), dim=1), y, np.ones((1, N)), 1)
    few, populations = target.subsample(key, FEW), target.select(jnp.zeros(N_POPULATIONS, int))
    theta = np.asarray(few.data).mean() + rng.normal(0, FEW**-0.5, (1, N_POPULATIONS, M))
    theta[:, :2] *= -1
    particles = evaluate(few.select(jnp.zeros(N_POPULATIONS, int)), jnp.asarray(theta, float))
    carried = onto_all(key, populations, few, particles, 1.0)
    assert carried is not None
    means = np.asarray(carried.theta).mean((0, 2))
    np.testing.assert_allclose(means, np.where(np.arange(N_POPULATIONS) < 2, -1, 1) * y.mean(), atol=6 * N**-0.5)


def test_a_calibration_by_way_of_some(few_will_do, tmp_path):
    """Of a bounded parameter: the closed form's eta, one over the variance, to the error of 100 rows.

    For one interval at 0.95 that is some sqrt(0.05 * 0.95 / 100) / (2 * 1.96 * 0.058 / 2) = 19% of eta: 4 errors.
    """
    rng = np.random.default_rng(4)
    y = rng.normal(3.0, 2.0, size=N)
    model = cb.GibbsModel(lambda t, d: 0.5 * jnp.square(d - t[0]), cb.priors.Uniform(0.0, 50.0), dim=1)
    options = {"bootstrap": 100, "sampler": cb.Transport(n_particles=M), "seed": 0, "progress": False}
    result = cb.calibrate(model, y, checkpoint=str(tmp_path / "run.ckpt"), **options)
    assert few_will_do == [FEW]
    assert result.eta == pytest.approx(0.25, rel=0.76)
    assert abs(result.draws.mean() - y.mean()) < 4.5 * result.draws.std() / len(result.draws) ** 0.5
    again = cb.calibrate(model, y, checkpoint=str(tmp_path / "run.ckpt"), **options)
    assert again.eta == result.eta
    assert few_will_do == [FEW]


def test_draws_on_few_are_carried_to_all(key):
    """Three standard deviations away and eight times too wide, before any move; as weights say, most of them count.

    Resampled from weights of an effective size of 0.3 M at the least.
    """
    x, y = regression()
    target = target_of(x, y)
    few, populations, eta = target.subsample(key, 64), target.select(jnp.zeros(N_POPULATIONS, int)), 1.0
    data = np.asarray(few.data[0], float).reshape(-1, 2), np.asarray(few.data[1], float).reshape(-1)
    exact = np.linalg.inv(data[0].T @ data[0])
    # What is taken off y, the reference, stays off.
    centre = exact @ data[0].T @ data[1] + np.asarray(target.reference, float)
    rng = np.random.default_rng(2)
    theta = centre[:, None, None] + np.tensordot(np.linalg.cholesky(exact), rng.normal(size=(2, N_POPULATIONS, M)), 1)
    particles = evaluate(few.select(jnp.zeros(N_POPULATIONS, int)), jnp.asarray(theta, float))
    carried = onto_all(key, populations, few, particles, eta)
    assert carried is not None
    pool = pools.Pool(target, carried, eta, 1.0, 0.3 * N_POPULATIONS * M)
    assert_posterior(pool, x, y)
