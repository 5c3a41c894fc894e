"""A thin slice of `make validate`: that it finds what is wrong and passes what is right, and that its page is stored.

Every p-value here is of a fixed seed. Of two dozen or so one below 1e-4 comes up once in 400 sets of seeds.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.validate import exact, geweke, invariance, known, mutations, page, sbc, stored
from benchmarks.validate.models import MODELS
from benchmarks.validate.mutants import MUTANTS

import calibayes as cb
from calibayes.kernels import RAM, RWMH, PolsonScott
from calibayes.particles import Particles

ROOT = Path(__file__).parents[1]
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
    ("run", "model"), [("MCMC, RAM", "bounded rates"), ("SMC, random walk", "quantile regression")]
)
def test_true_parameters_rank_anywhere(run, model):
    assert all(test["p"] > UNLIKELY for test in sbc.RUNS[run](MODELS[model], 150).tests())


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


def test_known_answer_of_the_box_of_a_level():
    (first, second) = known.run(500, ("simultaneous",))
    assert first["passed"], first
    assert second["passed"], second


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


def test_the_smallest_p_value_is_judged_by_their_number():
    lines = [{"p": p} for p in (0.5, 0.002, 0.9)]
    assert stored.smallest(lines).chance == pytest.approx(1 - 0.998**3)
    assert not stored.passed("sbc", lines)
    assert stored.passed("sbc", [{"p": 0.002}, *({"p": 0.5} for _ in range(20))])


def test_the_page_is_what_is_stored():
    text = (ROOT / "docs" / "trust.md").read_text()
    assert page.tables(ROOT / "results" / "validation.json", ROOT / "results") in text


def test_all_that_is_stored_passed():
    parts = stored.load(ROOT / "results" / "validation.json")
    assert {*page.P_VALUES, "known", "mutations"} == set(parts)
    assert [name for name, part in parts.items() if not stored.passed(name, part["lines"])] == []
    assert {line["name"] for line in parts["mutations"]["lines"]} == {mutant.name for mutant in MUTANTS}


def test_survivors_and_failures_are_on_the_page(tmp_path):
    path, where = tmp_path / "validation.json", tmp_path / "trust.md"
    where.write_text(f"Before.\n\n{page.BEGIN}\n{page.END}\nAfter.\n")
    with pytest.raises(ValueError, match="there is nothing in"):
        page.write(path, tmp_path, where)
    stored.add(path, "geweke", [{"kernel": "RAM", "model": "a", "what": "risk", "p": 1e-9, "n": 7}], 60.0)
    stored.add(path, "mutations", [{"name": "a: b", "file": "x.py", "caught": None, "digest": ""}], 1.0)
    page.write(path, tmp_path, where)
    text = where.read_text()
    assert text.startswith("Before.")
    assert text.endswith("After.\n")
    assert "1e-09 **failed**" in text
    assert "- not noticed: a: b" in text
    assert json.loads(path.read_text())["geweke"]["seconds"] == 60
    where.write_text("No marks.")
    with pytest.raises(ValueError, match=page.BEGIN):
        page.write(path, tmp_path, where)
