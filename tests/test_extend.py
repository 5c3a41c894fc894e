"""User-defined losses, regions, bootstraps, kernels, search rules and samplers, and the examples in docs/extend.md."""

import importlib.util
import subprocess
import sys
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._backend import treefile
from calibayes.bootstrap import Bootstrap
from calibayes.kernels import Kernel
from calibayes.kernels.base import metropolis, random_walk_noise
from calibayes.regions import Region

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
NAMES = ("own_loss", "own_region", "own_bootstrap", "own_kernel", "own_search", "own_sampler")
WITH_STATE = ("own_kernel", "own_search", "own_sampler")
MAX_LINES = 40

SMALL = {"bootstrap": 200, "progress": False, "tolerance": 0.03, "seed": 0, "max_iterations": 50}
SAMPLER = cb.SMC(n_particles=300, ess_target=0.95)


@pytest.fixture(scope="module")
def examples():
    """The modules of the examples, imported under their own names, as checkpoints require."""
    modules = {}
    for name in NAMES:
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        modules[name] = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(modules[name])
    yield modules
    for name in NAMES:
        del sys.modules[name]


@pytest.fixture(scope="module")
def results(examples):
    return {name: module.main() for name, module in examples.items()}


def problem():
    return cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0)), cb.datasets.median_regression(60)


@pytest.fixture(scope="module")
def default_result():
    model, data = problem()
    return cb.calibrate(model, data, **SMALL)


def test_page_includes_every_example_and_each_is_short():
    page = (EXAMPLES.parent / "extend.md").read_text()
    assert set(NAMES) == {path.stem for path in EXAMPLES.glob("own_*.py")}
    for name in NAMES:
        assert f"```{{literalinclude}} examples/{name}.py" in page
        assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= MAX_LINES


@pytest.mark.parametrize("name", NAMES)
def test_example_converges(results, name):
    result = results[name]
    assert result.status is cb.Status.CONVERGED
    assert abs(float(result.coverage) - 0.95) <= 0.03


def test_loss_of_the_example_is_between_squared_and_absolute_error(results, default_result):
    """Below its width it is quadratic, above it linear: at most log(2) widths below the absolute error.

    The check loss is half of the absolute error, so its eta is about twice that of the example.
    """
    np.testing.assert_array_equal(results["own_loss"].counts, default_result.counts)
    assert abs(np.log(2 * results["own_loss"].eta / default_result.eta)) < 0.5


def test_one_sided_region_of_the_example_gives_an_upper_bound(results):
    """The coverage of the upper bound on the replicates is the share of bounds above the estimate."""
    result = results["own_region"]
    share_below = (result.draws[:, 1] < result.estimate[1]).mean()
    assert 0.3 < share_below < 0.7
    assert result.region.name == "UpperBound"


def test_bootstrap_of_the_example_draws_halves(results):
    counts = results["own_bootstrap"].counts
    assert set(np.unique(counts)) == {0.0, 2.0}
    np.testing.assert_array_equal(counts.sum(1), 60)


def test_kernel_of_the_example_agrees_with_the_default_sampler(results, default_result):
    """The same seed draws the same counts, so only the errors of the samplers differ: about 5% each."""
    np.testing.assert_array_equal(results["own_kernel"].counts, default_result.counts)
    assert abs(np.log(results["own_kernel"].eta / default_result.eta)) < 0.3


def test_search_of_the_example_bisects(results):
    etas = [record.eta for record in results["own_search"].trace]
    assert etas[:2] == [6.0, 3.0]
    assert len(etas) >= 4
    low, high = 0.0, np.inf
    for record, eta in zip(results["own_search"].trace, etas[1:], strict=False):
        low, high = (record.eta, high) if record.coverage > 0.95 else (low, record.eta)
        assert low < eta < high


def test_sampler_of_the_example_is_exact(results):
    """The posterior of a mean is normal with known moments; tolerances are 5 standard errors of 2,000 draws."""
    result = results["own_sampler"]
    _, y = result.data
    precision = result.eta * len(y) + 1 / 10**2
    mean, sd = result.eta * y.sum() / precision, precision**-0.5
    assert abs(result.estimate[0] - mean) < 5 * sd / 2000**0.5
    assert abs(result.draws.std() / sd - 1) < 5 / (2 * len(result.draws)) ** 0.5


def test_sampler_of_the_example_gives_the_exact_eta(results):
    """The critical eta of a replicate of the mean is known, up to the prior, whose weight is below 0.1%."""
    result = results["own_sampler"]
    _, y = result.data
    totals, z = result.counts.sum(1), 1.959964
    distance = result.counts @ y / totals - y.mean()
    exact = np.quantile(z**2 / (totals * distance**2), 0.05)
    assert abs(np.log(result.eta / exact)) < 0.1


class Killed(BaseException):
    """Raised in place of the end of the process."""


@pytest.mark.parametrize("name", WITH_STATE)
def test_killed_example_continues_to_the_same_result(examples, results, name, monkeypatch, tmp_path):
    """The run is killed after each of its saves to the checkpoint."""
    write, path, kills = treefile.write, tmp_path / "run.ckpt", 0

    def write_and_die(*args):
        write(*args)
        raise Killed

    monkeypatch.setattr(treefile, "write", write_and_die)
    while True:
        try:
            result = examples[name].main(path)
            break
        except Killed:
            kills += 1
    assert kills >= len(result.trace) >= 3
    assert_same(result, results[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_STATE)
def test_example_in_a_killed_process_continues_in_another(results, name, tmp_path):
    path = tmp_path / "run.ckpt"
    program = f"import {name}; result = {name}.main({str(path)!r}); print(result.eta.hex(), result.eta_se.hex())"
    cache = {"JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir)}
    options = {"env": {"PATH": "/usr/bin:/bin"} | cache, "cwd": EXAMPLES, "text": True}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, **options) as process:
        while not path.exists() and process.poll() is None:
            time.sleep(0.01)
        process.kill()
    assert path.exists()
    continued = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, **options)
    eta, eta_se = map(float.fromhex, continued.stdout.split())
    # The tests use strict type promotion and four CPU devices, and XLA may round differently.
    np.testing.assert_allclose([eta, eta_se], [results[name].eta, results[name].eta_se], rtol=1e-3)


def assert_same(a, b):
    assert (a.eta, a.eta_se, a.coverage, a.status, a.diagnostics) == (
        b.eta,
        b.eta_se,
        b.coverage,
        b.status,
        b.diagnostics,
    )
    assert a.draws.tobytes() == b.draws.tobytes()
    assert a.curve.critical_levels.tobytes() == b.curve.critical_levels.tobytes()
    assert [(record.eta, record.coverage) for record in a.trace] == [
        (record.eta, record.coverage) for record in b.trace
    ]


class FixedWalk(Kernel):
    """A random walk with the same step size in every direction."""

    step_size: float = eqx.field(static=True)

    def init(self, covariance):
        return ()

    def step(self, keys, target, eta, particles, adaptation, adapt):
        normal, log_uniforms = random_walk_noise(keys, particles.theta)
        move = metropolis(log_uniforms, target, eta, particles, particles.theta + self.step_size * normal)
        return move.particles, adaptation, move.info


@pytest.mark.slow
def test_user_defined_kernel_in_mcmc_agrees_with_the_default_sampler(default_result):
    sampler = cb.MCMC(n_draws=4000, n_warmup=500, kernel=FixedWalk(0.1))
    model, data = problem()
    own = cb.calibrate(model, data, sampler=sampler, **SMALL)
    # The same seed draws the same counts, so only the errors of the samplers differ: about 5% each.
    np.testing.assert_array_equal(own.counts, default_result.counts)
    assert abs(np.log(own.eta / default_result.eta)) < 0.3


@pytest.mark.filterwarnings("ignore:.*The standard error of eta could not be computed")
@pytest.mark.parametrize("sampler", [SAMPLER, "auto"], ids=["smc", "auto"])
def test_user_defined_region_bootstrap_and_estimate(sampler):
    class Above(Region):
        """All values below an upper quantile of the slope."""

        def critical_level(self, particles, point):
            return jnp.where(particles.theta[1] < point.theta[1], particles.weights, 0.0).sum(-1)

    class Halves(Bootstrap):
        """Random halves of the data, counted twice."""

        def replicate(self, key, n):
            return jnp.where(jax.random.permutation(key, n) < n // 2, 2.0, 0.0)

    model, data = problem()
    own_mean = lambda draws, weights: weights @ draws
    options = SMALL | {"bootstrap": Halves(200)}
    result = cb.calibrate(model, data, region=Above(), estimate=own_mean, sampler=sampler, **options)
    assert result.converged
    assert set(np.unique(result.counts)) == {0.0, 2.0}
    np.testing.assert_allclose(result.estimate, result.draws.mean(0), atol=4 * result.draws.std(0).max() / 300**0.5)


def test_key_of_another_generator_is_accepted():
    model, data = problem()
    result = cb.calibrate(model, data, **SMALL | {"seed": jax.random.key(0, impl="rbg")})
    assert result.converged


def test_low_effective_sample_size_is_reported():
    model, data = problem()
    with pytest.warns(cb.CalibrationWarning, match="median effective sample size of a replicate is only"):
        result = cb.calibrate(model, data, sampler=cb.MCMC(n_draws=200, n_warmup=200), **SMALL)
    assert cb.Code.ESS_LOW in {finding.code for finding in result.diagnostics}


@pytest.mark.slow
def test_float64_is_used_if_enabled():
    program = """
import jax; jax.config.update("jax_numpy_dtype_promotion", "strict")
import calibayes as cb
model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
result = cb.calibrate(model, cb.datasets.median_regression(60), seed=0, bootstrap=100, estimate="mode")
assert result.converged and result.draws.dtype == "float64", result
"""
    env = {
        "JAX_ENABLE_X64": "1",
        "PATH": "/usr/bin:/bin",
        "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir,
    }
    subprocess.run([sys.executable, "-c", program], check=True, env=env)
