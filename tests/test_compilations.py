"""Data are arguments of compiled functions: another dataset, loss parameter or fresh lambda compiles nothing."""

import logging
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.soak import record_compilations

import calibayes as cb

SMALL = {"bootstrap": 100, "progress": False, "tolerance": 0.03, "eta_init": 0.5, "region": "box"}


@contextmanager
def compilations():
    """The functions that XLA compiles meanwhile."""
    jit = []

    class Handler(logging.Handler):
        def emit(self, record):
            message = record.getMessage()
            if message.startswith("Finished XLA compilation"):
                jit.append(message)

    handler = Handler()
    logger = logging.getLogger("jax._src.dispatch")
    logger.addHandler(handler)
    with jax.log_compiles():
        yield jit
    logger.removeHandler(handler)


def median(seed, tau=0.5, sampler=None, **options):
    model = cb.GibbsModel(cb.losses.Quantile(tau), cb.priors.Normal(scale=50.0 + seed))
    x, y = cb.datasets.median_regression(60, seed)
    cb.calibrate(model, (x, y), seed=seed, sampler=sampler or cb.SMC(n_particles=200), **SMALL | options)


def by_default(seed, tau=0.5):
    """Nothing told: transport, with its audit."""
    model = cb.GibbsModel(cb.losses.Quantile(tau), cb.priors.Normal(scale=50.0 + seed))
    return cb.calibrate(model, cb.datasets.median_regression(60, seed), seed=seed, bootstrap=100, progress=False)


def lambda_model(seed, **options):
    model = cb.GibbsModel(lambda theta, datum: jnp.abs(datum - theta[0]), cb.priors.Normal(scale=10.0), dim=1)
    y = np.random.default_rng(seed).normal(size=40)
    cb.calibrate(model, y, seed=seed, **SMALL | options)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::calibayes.CalibrationWarning")
def test_big_programs_are_compiled_once():
    """GPC-SMC: the ladder once for the data's row and once for all rows; the start, for all rows only.

    By default: what samples a few rows (the pool, the audit, the repair of rows) has one shape, so there is one ladder
    and one start for them all; draws on the data travel by one program; and particles are carried to all rows by one.
    """
    jax.clear_caches()
    with compilations() as jit:
        median(1, tolerance=0.005, max_iterations=4)
    for name, times in (("jit(climb)", 2), ("jit(_settle)", 1), ("jit(assess)", 1)):
        assert sum(name in message for message in jit) == times, jit
    with compilations() as jit:
        assert by_default(1).converged
    for name, times in (("jit(climb)", 1), ("jit(_settle)", 1), ("jit(_travel)", 1), ("jit(carry)", 1)):
        assert sum(name in message for message in jit) == times, jit


@pytest.mark.filterwarnings("ignore::calibayes.CalibrationWarning")
@pytest.mark.parametrize(
    "calibration",
    [
        median,
        lambda seed: median(seed, tau=0.2 + 0.1 * seed),
        lambda seed: median(seed, sampler=cb.MCMC(n_draws=200, n_warmup=100)),
        pytest.param(lambda seed: lambda_model(seed, sampler=cb.SMC(n_particles=200)), marks=pytest.mark.slow),
        by_default,
        lambda seed: by_default(seed, tau=0.2 + 0.1 * seed),
        lambda_model,
    ],
    ids=["smc", "another tau", "mcmc", "fresh lambda", "auto", "auto, another tau", "auto, fresh lambda"],
)
def test_second_dataset_compiles_nothing(calibration):
    for seed in (1, 2, 4, 5):  # Not every calibration comes by every program: some need no second look, say.
        calibration(seed)
    with compilations() as jit:
        calibration(3)
    assert not jit, jit


def test_a_function_that_is_made_anew_is_seen_to_be_compiled_again():
    """By the soak: the same name and shapes each time; nothing where nothing is compiled."""
    x, seen = jnp.ones(3), []
    for _ in range(3):
        with record_compilations() as programs:
            jax.jit(lambda v: v + 1)(x)
        seen.append(programs)
    assert seen[0] == seen[1] == seen[2] != []
    assert "<lambda>" in seen[0][0]
    assert "float32[3]" in seen[0][0]
    with record_compilations() as programs:
        x.block_until_ready()
    assert not programs
