"""A small part of `make validate`: it detects wrong samplers and accepts correct ones.

All seeds are fixed. Among two dozen p-values, one below 1e-4 occurs by chance for one in 400 sets of seeds.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from benchmarks.validate import exact, geweke, invariance, known, sbc
from benchmarks.validate.models import MODELS
from calibayes._core.particles import Particles
from calibayes.kernels import RAM, RWMH, PolsonScott

ALPHA = 1e-4


class WrongTemperature(RWMH):
    """A random walk that leaves the posterior at another learning rate invariant."""

    def step(self, keys, target, eta, particles, adaptation, adapt):
        return super().step(keys, target, 0.7 * eta, particles, adaptation, adapt)


@pytest.fixture(autouse=True)
def _default_promotion():
    """Use the promotion rules that users have by default."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def test_p_value_detects_ranks_that_are_not_uniform():
    rng = np.random.default_rng(0)
    assert sbc.p_value(rng.integers(0, 100, 500)) > ALPHA
    assert sbc.p_value(np.minimum(rng.integers(0, 110, 500), 99)) < ALPHA


def test_ranks_use_weights_and_break_ties_at_random():
    """Two particles carry all weight; one is below the truth, and one has the same risk."""
    theta = jnp.asarray(np.tile([0.0, 5.0, 7.0], (1, 400, 1)))
    risk = jnp.asarray(np.tile([1.0, 1.0, 3.0], (400, 1)))
    weights = jnp.log(jnp.asarray(np.tile([0.5, 0.5, 0.0], (400, 1))))
    truth = Particles(jnp.full((1, 400, 1), 2.0), jnp.ones((400, 1)), jnp.zeros((400, 1)), jnp.zeros((400, 1)))
    ranks = sbc.compute_ranks(0, Particles(theta, risk, jnp.zeros((400, 3)), weights), truth, thin=False)
    # Half of 99 draws are below, with a standard deviation of 5 on each replicate; ties give a uniform rank.
    assert abs(ranks[:, 0].mean() - 49.5) < 4 * 5 / 20
    assert sbc.p_value(ranks[:, 1]) > ALPHA


@pytest.mark.parametrize(
    ("sampler", "model"),
    [
        pytest.param("MCMC, RAM", "quantile regression", marks=pytest.mark.slow),
        pytest.param("SMC, random walk", "bounded rates", marks=pytest.mark.slow),
        ("transport", "normal mean"),
    ],
)
def test_ranks_of_true_parameters_are_uniform(sampler, model):
    assert all(test["p"] > ALPHA for test in sbc.ranks(sampler, MODELS[model], 100).tests())


def test_geweke_accepts_polson_scott():
    """With counts other than one and a prior that is not centred at zero."""
    tests = geweke.compare("Polson-Scott", PolsonScott(), MODELS["support vector machine"], 8)
    assert all(test["p"] > ALPHA for test in tests)


def test_exact_draws_stay_exact_and_a_wrong_kernel_is_detected():
    hinge, huber, _ = exact.PROBLEMS
    tests = exact.compare("Polson-Scott", PolsonScott(), hinge, 3000)
    tests += exact.compare("RAM", RAM(), huber, 3000)
    assert all(test["p"] > ALPHA for test in tests)
    assert min(test["p"] for test in exact.compare("wrong", WrongTemperature(), huber, 3000)) < ALPHA


def test_known_answer_is_found_from_a_distant_curve():
    """The answer is read off a curve sampled at another eta, and the draws are reweighted to the answer.

    A variance of 2 x 4,000 draws has a standard error of sqrt(2 / 8000); at the sampled eta it would be off by 0.2.
    """
    y, counts = known.make_problem(300)
    options = {"sampler": "transport", "search": cb.Bracket(closeness=0.3), "eta_init": 0.95}
    result = cb.calibrate(known.MODEL, y, bootstrap=counts, seed=1, progress=False, **options)
    assert abs(np.log(result.trace[-1].eta / result.eta)) > 0.15
    assert abs(known.exact_coverage(y, counts, result.eta, "hpd", 0.95) - 0.95) < known.tolerance(300, 0.95)
    assert result.draws.var(0).mean() * result.eta * known.OBSERVATIONS == pytest.approx(1, abs=4 * 8000**-0.5 * 2**0.5)


@pytest.mark.filterwarnings("ignore:calibration. 50 observations are few")
def test_eta_is_invariant():
    """Only rounding differs: three standard errors of a difference, as measured over seeds with these settings."""
    sampler = cb.Transport(n_particles=500)
    base = invariance.make_problem(400)
    log_eta = invariance.log_eta(base, sampler, 0)
    for change in ("observations permuted", "columns of X scaled"):
        difference = invariance.log_eta(invariance.CHANGES[change](base), sampler, 0) - log_eta
        assert abs(difference) < 3 * 2**0.5 * 0.03, change
