"""A kernel, a region, a bootstrap or a prior of the user's own is one class; float64 and other keys are welcome."""

import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes.bootstrap import Bootstrap
from calibayes.kernels import Kernel
from calibayes.kernels.base import metropolis, random_walk_noise
from calibayes.regions import Region

SMALL = {"bootstrap": 100, "progress": False, "tolerance": 0.03, "seed": 0, "max_iterations": 50}
SAMPLER = cb.SMC(n_particles=300, ess_target=0.99)


def problem():
    return cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0)), cb.datasets.median_regression(60)


class FixedWalk(Kernel):
    """A random walk of one length in every direction."""

    length: float = eqx.field(static=True)

    def init(self, covariance):
        return ()

    def step(self, keys, target, eta, particles, adaptation, adapt):
        normal, log_uniforms = random_walk_noise(keys, particles.theta)
        move = metropolis(log_uniforms, target, eta, particles, particles.theta + self.length * normal)
        return move.particles, adaptation, move.info


@pytest.fixture(scope="module")
def usual():
    model, data = problem()
    return cb.calibrate(model, data, **SMALL)


@pytest.mark.parametrize(
    "sampler",
    [
        cb.SMC(n_particles=300, ess_target=0.99, n_moves=4, kernel=FixedWalk(0.1)),
        pytest.param(cb.MCMC(n_draws=4000, n_warmup=500, kernel=FixedWalk(0.1)), marks=pytest.mark.slow),
    ],
    ids=["smc", "mcmc"],
)
def test_own_kernel(sampler, usual):
    model, data = problem()
    own = cb.calibrate(model, data, sampler=sampler, **SMALL)
    # The same counts (the same seed), so only the samplers' errors are between them: some 5% each with 300 particles.
    np.testing.assert_array_equal(own.counts, usual.counts)
    assert abs(np.log(own.eta / usual.eta)) < 0.3


@pytest.mark.filterwarnings("ignore:.*the error of eta is unknown")
@pytest.mark.parametrize("sampler", [SAMPLER, "auto"], ids=["smc", "auto"])
def test_own_region_bootstrap_and_estimate(sampler):
    class Above(Region):
        """One-sided: everything below an upper quantile of the slope."""

        def critical_level(self, cloud, point):
            return jnp.where(cloud.theta[1] < point.theta[1], cloud.weights, 0.0).sum(-1)

    class Halves(Bootstrap):
        """Random halves of the data, counted twice."""

        def replicate(self, key, n):
            return jnp.where(jax.random.permutation(key, n) < n // 2, 2.0, 0.0)

    model, data = problem()
    own_mean = lambda draws, weights: weights @ draws
    options = SMALL | {"bootstrap": Halves(100)}
    found = cb.calibrate(model, data, region=Above(), estimate=own_mean, sampler=sampler, **options)
    assert found.converged
    assert set(np.unique(found.counts)) == {0.0, 2.0}
    np.testing.assert_allclose(found.estimate, found.draws.mean(0), atol=4 * found.draws.std(0).max() / 300**0.5)


def test_key_of_another_generator():
    model, data = problem()
    found = cb.calibrate(model, data, **SMALL | {"seed": jax.random.key(0, impl="rbg")})
    assert found.converged


def test_few_draws_are_said():
    model, data = problem()
    with pytest.warns(cb.CalibrationWarning, match="effective size of a row is only"):
        cb.calibrate(model, data, sampler=cb.MCMC(n_draws=200, n_warmup=200), **SMALL)


@pytest.mark.slow
def test_float64():
    """Where the user enabled x64 everything runs in it."""
    program = """
import jax; jax.config.update("jax_numpy_dtype_promotion", "strict")
import calibayes as cb
model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
found = cb.calibrate(model, cb.datasets.median_regression(60), seed=0, bootstrap=100, estimate="mode")
assert found.converged and found.draws.dtype == "float64", found
"""
    env = {
        "JAX_ENABLE_X64": "1",
        "PATH": "/usr/bin:/bin",
        "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir,
    }
    subprocess.run([sys.executable, "-c", program], check=True, env=env)
