"""Draws on many observations from a subsample: the same posterior, for a fraction of the passes over the data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._core.target import evaluate, make_target
from calibayes.samplers.populations import N_POPULATIONS
from calibayes.samplers.transport import matching
from calibayes.samplers.transport.matching import initial_populations
from calibayes.samplers.transport.pool import Pool, make_pool
from calibayes.samplers.transport.subsample import extend_to_all_observations

N, N_SUBSAMPLE, M = 4_003, 512, 200
SCALE = 1000.0
MODEL = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=SCALE))


def regression(rare=False):
    """Return data with a slope; with `rare`, its column is nonzero for one observation, not in the subsample."""
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
def sampled_sizes(monkeypatch):
    """Use a small subsample, and record the number of observations of every sampling from the prior."""
    sizes, sample_to_match = [], matching._sample_to_match

    def recorded(key, target, n_particles):
        sizes.append(int(target.counts.n))
        return sample_to_match(key, target, n_particles)

    monkeypatch.setattr(matching, "subsample_size", lambda dim: N_SUBSAMPLE)
    monkeypatch.setattr(matching, "_sample_to_match", recorded)
    return sizes


@pytest.mark.parametrize("devices", [{}, {"observations": 4}, {"replicates": 2, "observations": 2}])
def test_subsample_has_one_observation_of_each_stratum(key, devices):
    """Strata of consecutive observations, up to the last one; the subsample is the same on any devices."""
    x, y = regression()
    with cb.mesh(**devices):
        target = target_of(np.column_stack([x[:, 0], np.arange(N)]), y)
    subsample = target.subsample(key, N_SUBSAMPLE)
    numbers = np.asarray(subsample.data[0][..., 1]).reshape(-1)
    assert int(subsample.counts.n) == len(numbers) == N_SUBSAMPLE
    edges = np.arange(N_SUBSAMPLE + 1) * N // N_SUBSAMPLE
    assert (edges[:-1] <= numbers).all()
    assert (numbers < edges[1:]).all()
    with cb.mesh():
        one_device = target_of(np.column_stack([x[:, 0], np.arange(N)]), y)
    np.testing.assert_array_equal(one_device.subsample(key, N_SUBSAMPLE).data[0], subsample.data[0])
    other = one_device.subsample(jax.random.key(9), N_SUBSAMPLE)
    assert (np.asarray(other.data[0]) != np.asarray(subsample.data[0])).any()
    theta = jnp.asarray(np.random.default_rng(1).normal(size=(2, 1, 5)), float)
    same = one_device.subsample(key, N_SUBSAMPLE)
    np.testing.assert_allclose(same.risk(theta), subsample.risk(theta), rtol=1e-6)


def test_subsample_of_all_observations_has_each_once(key):
    """And none of those that only pad the last block."""
    x, y = regression()
    target = make_target(MODEL, (x[:4000], y[:4000]), np.ones((1, 4000)), 2)
    subsample = target.subsample(key, 4000)
    theta = jnp.asarray(np.random.default_rng(1).normal(size=(2, 1, 5)), float)
    np.testing.assert_allclose(subsample.risk(theta), target.replicate(0).risk(theta), rtol=1e-5)


def assert_normal_posterior(pool, x, y):
    """Check mean and covariance of the normal posterior in closed form, within 4.5 errors of the effective size."""
    precision = pool.eta * x.T @ x + np.eye(2) / SCALE**2
    exact = np.linalg.inv(precision)
    mean = exact @ (pool.eta * x.T @ y)
    theta = np.asarray(pool.particles.theta, float).reshape(2, -1)
    whitened = np.linalg.inv(np.linalg.cholesky(exact)) @ (theta - mean[:, None])
    assert np.abs(whitened.mean(1)).max() < 4.5 / pool.ess**0.5
    assert np.abs(whitened @ whitened.T / whitened.shape[1] - np.eye(2)).max() < 4.5 * (2 / pool.ess) ** 0.5


@pytest.mark.parametrize("rare", [False, True])
def test_pool_represents_all_observations(sampled_sizes, key, rare):
    """Sampling uses the subsample; if that does not identify all parameters, then all observations."""
    x, y = regression(rare)
    initial = initial_populations(key, target_of(x, y), M)
    assert sampled_sizes == ([N_SUBSAMPLE, N] if rare else [N_SUBSAMPLE])
    pool = make_pool(jax.random.key(2), initial, M)
    assert pool.diagnostics == ()
    assert_normal_posterior(pool, x, y)


def test_uninformative_subsample_is_not_an_error(sampled_sizes, key):
    """Eight events among all observations, at most one of them in the subsample."""
    rng = np.random.default_rng(0)
    event = np.zeros(N)
    event[rng.choice(N, 8, replace=False)] = 1
    loss = lambda t, d: jnp.where(d[0] > 0, 0.5 * jnp.square(d[1] - t[0]), 0.0)
    model = cb.GibbsModel(loss, cb.priors.Normal(scale=10.0), dim=1)
    target = make_target(model, (event, rng.normal(size=N)), np.ones((1, N)), 1)
    initial = initial_populations(key, target, M)
    assert sampled_sizes == [N_SUBSAMPLE, N]
    assert 0.2 < initial.eta < 5


def test_runtime_error_of_jax_is_raised(sampled_sizes, key, monkeypatch):
    """Sampling is not tried again with all observations."""
    sizes = []

    def fail(key, target, n_particles):
        sizes.append(int(target.counts.n))
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")

    monkeypatch.setattr(matching, "_sample_to_match", fail)
    with pytest.raises(jax.errors.JaxRuntimeError, match="out of memory"):
        initial_populations(key, target_of(*regression()), M)
    assert sizes == [N_SUBSAMPLE]


def test_population_in_another_mode_stays_there(key):
    """Two of twenty populations at the mirrored mode: their disagreement is not lost."""
    rng = np.random.default_rng(3)
    y = rng.normal(2.0, 1.0, size=N)
    loss = lambda t, d: 0.5 * jnp.square(jnp.abs(t[0]) - d)
    target = make_target(cb.GibbsModel(loss, cb.priors.Normal(scale=10.0), dim=1), y, np.ones((1, N)), 1)
    subsample, populations = target.subsample(key, N_SUBSAMPLE), target.select(jnp.zeros(N_POPULATIONS, int))
    theta = np.asarray(subsample.data).mean() + rng.normal(0, N_SUBSAMPLE**-0.5, (1, N_POPULATIONS, M))
    theta[:, :2] *= -1
    particles = evaluate(subsample.select(jnp.zeros(N_POPULATIONS, int)), jnp.asarray(theta, float))
    extended = extend_to_all_observations(key, populations, subsample, particles, 1.0)
    assert extended is not None
    means = np.asarray(extended.theta).mean((0, 2))
    np.testing.assert_allclose(means, np.where(np.arange(N_POPULATIONS) < 2, -1, 1) * y.mean(), atol=6 * N**-0.5)


def test_calibration_by_a_subsample(sampled_sizes, tmp_path):
    """With a bounded parameter: eta is one over the variance, up to the error of 100 replicates.

    For one interval at 0.95 that error is sqrt(0.05 * 0.95 / 100) / (2 * 1.96 * 0.058 / 2) = 19% of eta; 4 errors.
    A second run reads the checkpoint and does not sample again.
    """
    rng = np.random.default_rng(4)
    y = rng.normal(3.0, 2.0, size=N)
    model = cb.GibbsModel(lambda t, d: 0.5 * jnp.square(d - t[0]), cb.priors.Uniform(0.0, 50.0), dim=1)
    options = {"bootstrap": 100, "sampler": cb.Transport(n_particles=M), "seed": 0, "progress": False}
    result = cb.calibrate(model, y, checkpoint=str(tmp_path / "run.ckpt"), **options)
    assert sampled_sizes == [N_SUBSAMPLE]
    assert result.eta == pytest.approx(0.25, rel=0.76)
    assert abs(result.draws.mean() - y.mean()) < 4.5 * result.draws.std() / len(result.draws) ** 0.5
    resumed = cb.calibrate(model, y, checkpoint=str(tmp_path / "run.ckpt"), **options)
    assert resumed.eta == result.eta
    assert sampled_sizes == [N_SUBSAMPLE]


def test_draws_are_extended_to_all_observations(key):
    """From a posterior three standard deviations away and eight times as wide, without a move of a kernel.

    The result is resampled from weights with an effective sample size of at least 0.3 M.
    """
    x, y = regression()
    target = target_of(x, y)
    subsample, populations, eta = target.subsample(key, 64), target.select(jnp.zeros(N_POPULATIONS, int)), 1.0
    data = np.asarray(subsample.data[0], float).reshape(-1, 2), np.asarray(subsample.data[1], float).reshape(-1)
    exact = np.linalg.inv(data[0].T @ data[0])
    # The target stores y relative to the prediction of the reference.
    centre = exact @ data[0].T @ data[1] + np.asarray(target.reference, float)
    rng = np.random.default_rng(2)
    theta = centre[:, None, None] + np.tensordot(np.linalg.cholesky(exact), rng.normal(size=(2, N_POPULATIONS, M)), 1)
    particles = evaluate(subsample.select(jnp.zeros(N_POPULATIONS, int)), jnp.asarray(theta, float))
    extended = extend_to_all_observations(key, populations, subsample, particles, eta)
    assert extended is not None
    assert_normal_posterior(Pool(target, extended, eta, 1.0, 0.3 * N_POPULATIONS * M), x, y)
