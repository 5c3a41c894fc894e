"""A thin slice of `make validate`: that it finds what is wrong and passes what is right.

Every p-value here is of a fixed seed. Of two dozen or so one below 1e-4 comes up once in 400 sets of seeds.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.validate import exact, geweke, invariance, known, mutations, sbc
from benchmarks.validate.models import MODELS
from benchmarks.validate.mutants import MUTANTS

import calibayes as cb
from calibayes._core.particles import Particles
from calibayes.kernels import RAM, RWMH, PolsonScott

UNLIKELY = 1e-4


class TooHot(RWMH):
    """A random walk that leaves another posterior invariant."""

    def step(self, keys, target, eta, particles, adaptation, adapt):
        return super().step(keys, target, 0.7 * eta, particles, adaptation, adapt)


@pytest.fixture(autouse=True)
def _as_users_have_it():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def test_ranks_of_exact_draws_are_even_and_of_others_are_not():
    rng = np.random.default_rng(0)
    assert sbc.p_value(rng.integers(0, 100, 500)) > UNLIKELY
    assert sbc.p_value(np.minimum(rng.integers(0, 110, 500), 99)) < UNLIKELY


def test_a_rank_counts_draws_by_their_weights_and_ties_by_chance():
    """All weight on two particles, one below the truth and one equal to it in risk."""
    theta = jnp.asarray(np.tile([0.0, 5.0, 7.0], (1, 400, 1)))
    risk = jnp.asarray(np.tile([1.0, 1.0, 3.0], (400, 1)))
    weights = jnp.log(jnp.asarray(np.tile([0.5, 0.5, 0.0], (400, 1))))
    truth = Particles(jnp.full((1, 400, 1), 2.0), jnp.ones((400, 1)), jnp.zeros((400, 1)), jnp.zeros((400, 1)))
    ranks = sbc.ranks_of(0, Particles(theta, risk, jnp.zeros((400, 3)), weights), truth, thin=False)
    # Half of 99 draws are below, with a standard deviation of 5 on each row; ties give any rank.
    assert abs(ranks[:, 0].mean() - 49.5) < 4 * 5 / 20
    assert sbc.p_value(ranks[:, 1]) > UNLIKELY


@pytest.mark.parametrize(
    ("run", "model"),
    [
        ("MCMC, RAM", "quantile regression"),
        pytest.param("SMC, random walk", "bounded rates", marks=pytest.mark.slow),
        pytest.param("transport", "normal mean", marks=pytest.mark.slow),
    ],
)
def test_true_parameters_rank_anywhere(run, model):
    assert all(test["p"] > UNLIKELY for test in sbc.ranks(run, MODELS[model], 100).tests())


def test_parameters_and_data_in_turn_keep_their_law():
    """Weights other than one and a prior that is not about zero are in the law of this one."""
    tests = geweke.compare("Polson-Scott", PolsonScott(), MODELS["support vector machine"], 8)
    assert all(test["p"] > UNLIKELY for test in tests)


def test_exact_draws_stay_exact_and_a_wrong_kernel_is_noticed():
    hinge, huber, _ = exact.LOSSES
    tests = exact.compare("Polson-Scott", PolsonScott(), hinge, 3000)
    tests += exact.compare("RAM", RAM(), huber, 3000)
    assert all(test["p"] > UNLIKELY for test in tests)
    assert min(test["p"] for test in exact.compare("too hot", TooHot(), huber, 3000)) < UNLIKELY


def test_known_answer_from_a_curve_that_reaches_far():
    """The answer is read off a curve 1.3 learning rates away, and the draws are at the answer, not there.

    A variance of 2 x 4,000 draws has an error of sqrt(2 / 8000); at the other learning rate it would be off by 0.2.
    """
    y, counts = known.problem(300)
    options = {"sampler": "transport", "search": cb.Bracket(closeness=0.3), "eta_init": 0.95}
    result = cb.calibrate(known.MODEL, y, bootstrap=counts, seed=1, progress=False, **options)
    assert abs(np.log(result.trace[-1].eta / result.eta)) > 0.15
    assert abs(known.coverage(y, counts, result.eta, "hpd", 0.95) - 0.95) < known.allowed(300, 0.95)
    assert result.draws.var(0).mean() * result.eta * known.OBSERVATIONS == pytest.approx(1, abs=4 * 8000**-0.5 * 2**0.5)


def test_the_same_in_other_words():
    """Rounding apart, nothing changes: three errors of two runs, as measured over seeds with these settings."""
    sampler = cb.Transport(n_particles=500)
    base = invariance.problem(400)
    eta = invariance.calibrated(base, sampler, 0)
    for change in ("observations permuted", "columns of X scaled"):
        away = invariance.calibrated(invariance.CHANGES[change](base), sampler, 0) - eta
        assert abs(away) < 3 * 2**0.5 * 0.03, change


def test_every_deliberate_error_can_be_made():
    assert len(MUTANTS) >= 25
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        mutations.check(mutant)


def test_an_error_that_can_no_longer_be_made_is_said():
    mutant = MUTANTS[0]._replace(old="not in the file")
    with pytest.raises(ValueError, match=r"has 0 times, not once: not in the file"):
        mutations.check(mutant)
    with pytest.raises(ValueError, match=r"there is no tests/test_nothing\.py"):
        mutations.check(MUTANTS[0]._replace(tests=("test_nothing.py",)))
