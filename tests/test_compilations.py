"""Data are arguments of compiled functions: new data, loss parameters or equal lambdas compile nothing."""

import logging
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from benchmarks.soak import record_compilations
from calibayes._backend.jit import clear_programs

SMALL = {"bootstrap": 100, "progress": False, "tolerance": 0.03, "eta_init": 0.5, "region": "box"}


@contextmanager
def compilations():
    """Record the log messages of the programs that XLA compiles in the `with` block."""
    messages = []

    class Handler(logging.Handler):
        def emit(self, record):
            message = record.getMessage()
            if message.startswith("Finished XLA compilation"):
                messages.append(message)

    handler = Handler()
    logger = logging.getLogger("jax._src.dispatch")
    logger.addHandler(handler)
    with jax.log_compiles():
        yield messages
    logger.removeHandler(handler)


def calibrate_median(seed, tau=0.5, sampler=None, **options):
    model = cb.GibbsModel(cb.losses.Quantile(tau), cb.priors.Normal(scale=50.0 + seed))
    x, y = cb.datasets.median_regression(60, seed)
    cb.calibrate(model, (x, y), seed=seed, sampler=sampler or cb.SMC(n_particles=200), **SMALL | options)


def calibrate_by_default(seed, tau=0.5):
    """Calibrate with the default settings: transport with an audit."""
    model = cb.GibbsModel(cb.losses.Quantile(tau), cb.priors.Normal(scale=50.0 + seed))
    return cb.calibrate(model, cb.datasets.median_regression(60, seed), seed=seed, bootstrap=100, progress=False)


def calibrate_lambda(seed, **options):
    model = cb.GibbsModel(lambda theta, datum: jnp.abs(datum - theta[0]), cb.priors.Normal(scale=10.0), dim=1)
    y = np.random.default_rng(seed).normal(size=40)
    cb.calibrate(model, y, seed=seed, **SMALL | options)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::calibayes.CalibrationWarning")
def test_large_programs_are_compiled_once():
    """GPC-SMC compiles the sampling from the prior for the data, and the rejuvenation and tempering for all replicates.

    By default, log-concave posteriors need no tempering; there are programs for the transport to the data, and of some
    and of all particles to the replicates.
    """
    clear_programs()
    with compilations() as messages:
        calibrate_median(1, tolerance=0.005, max_iterations=4)
    for name, number in (("jit(temper_steps)", 1), ("jit(_temper_or_rejuvenate)", 2), ("jit(summarize)", 1)):
        assert sum(name in message for message in messages) == number, messages
    with compilations() as messages:
        assert calibrate_by_default(1).converged
    programs = (("jit(_temper_or_rejuvenate)", 0), ("jit(prior_particles)", 0), ("jit(transport_and_weight)", 3))
    for name, number in programs:
        assert sum(name in message for message in messages) == number, messages


@pytest.mark.filterwarnings("ignore::calibayes.CalibrationWarning")
@pytest.mark.parametrize(
    "calibration",
    [
        calibrate_median,
        lambda seed: calibrate_median(seed, tau=0.2 + 0.1 * seed),
        lambda seed: calibrate_median(seed, sampler=cb.MCMC(n_draws=200, n_warmup=100)),
        pytest.param(lambda seed: calibrate_lambda(seed, sampler=cb.SMC(n_particles=200)), marks=pytest.mark.slow),
        calibrate_by_default,
        lambda seed: calibrate_by_default(seed, tau=0.2 + 0.1 * seed),
        calibrate_lambda,
    ],
    ids=["smc", "another tau", "mcmc", "equal lambda", "auto", "auto, another tau", "auto, equal lambda"],
)
def test_another_dataset_compiles_nothing(calibration):
    """After several calibrations, because not every one of them uses every program."""
    for seed in (1, 2, 4, 5):
        calibration(seed)
    with compilations() as messages:
        calibration(3)
    assert not messages, messages


@pytest.mark.filterwarnings("ignore::calibayes.CalibrationWarning")
@pytest.mark.parametrize(
    "sampler",
    [cb.Transport(n_particles=200), pytest.param(cb.SMC(n_particles=100), marks=pytest.mark.slow)],
    ids=["transport", "smc"],
)
def test_another_number_of_observations_compiles_nothing(sampler):
    """Nor another tau, prior scale or seed, a fold of a cross-validation, or fresh replicates to validate on."""
    x, y = cb.datasets.median_regression(700, 0)
    options = {"sampler": sampler, "bootstrap": 60, "progress": False, "eta_init": 0.8, "tolerance": 0.03}

    def calibrate(rows, seed=0, tau=0.5, scale=100.0):
        model = cb.GibbsModel(cb.losses.Quantile(tau), cb.priors.Normal(scale=scale))
        return cb.calibrate(model, (x[rows], y[rows]), seed=seed, **options)

    # Several calibrations, because not every one of them uses every program.
    for seed in range(3):
        calibrate(slice(400), seed, tau=0.5 + 0.2 * seed).validate()
    with compilations() as messages:
        calibrate(slice(410))
        calibrate(slice(700))
        calibrate(slice(400), tau=0.9)
        calibrate(slice(400), scale=50.0)
        calibrate(slice(400), seed=7)
        calibrate(np.arange(700) % 5 != 0).validate()
    assert not messages, messages


def test_soak_records_repeated_compilations():
    """A new function with the same name and shapes is compiled again; other calls compile nothing."""
    x, recorded = jnp.ones(3), []
    for _ in range(3):
        with record_compilations() as programs:
            jax.jit(lambda v: v + 1)(x)
        recorded.append(programs)
    assert recorded[0] == recorded[1] == recorded[2] != []
    assert "<lambda>" in recorded[0][0]
    assert "float32[3]" in recorded[0][0]
    with record_compilations() as programs:
        x.block_until_ready()
    assert not programs
