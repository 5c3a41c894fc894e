"""The audit lets right particles pass, and wrong ones not: against normal posteriors in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import calibayes as cb
from calibayes._backend.functions import as_float
from calibayes._core.target import evaluate, make_target
from calibayes.regions import critical_levels
from calibayes.samplers.audit import Audit, _chi_squared_limit, _differ, audit
from calibayes.samplers.initial import N_POPULATIONS

N, ROWS, M, ETA = 40, 100, 500, 1.3
EVEN = np.ones(N_POPULATIONS)


@pytest.fixture(scope="module")
def problem():
    """A location problem, its exact means and standard deviations on every row, and the point to be covered."""
    rng = np.random.default_rng(0)
    y = rng.normal(1.0, 1.0, size=N)
    counts = rng.multinomial(N, np.full(N, 1 / N), size=ROWS)
    model = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=1000.0))
    target = make_target(model, (np.ones((N, 1)), y), counts, 1)
    means = np.concatenate([[y.mean()], counts @ y / N])
    return target, means, (ETA * N) ** -0.5, jnp.asarray([y.mean()], float)


def particles(problem, seed=1, shift=0.0, stretch=1.0):
    """Exact draws on every row; moved by so many standard deviations, or stretched."""
    target, means, sd, _ = problem
    noise = np.random.default_rng(seed).normal(size=(1, ROWS + 1, M))
    theta = means[:, None] + sd * (np.asarray(shift).reshape(-1, 1) + stretch * noise)
    return evaluate(target, jnp.asarray(theta, float))


def ask(problem, given, seed):
    target, _, _, point = problem
    return audit(jax.random.key(seed), target, given, ETA, cb.regions.Interval(0), point)


def test_right_particles_pass_whatever_the_key(problem):
    """Twenty keys: a false alarm is meant to come once in 10,000."""
    given = particles(problem)
    assert not any(ask(problem, given, seed).failed for seed in range(20))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("wrong", [{"shift": 1.0}, {"stretch": 2.0}, {"stretch": 0.5}], ids=str)
def test_wrong_particles_fail(problem, wrong, seed):
    """By one standard deviation, or half or twice as wide: levels differ by some 0.2, ten times their error."""
    verdict = ask(problem, particles(problem, **wrong), seed)
    assert verdict.failed
    gap = np.abs(verdict.levels - verdict.audited.mean(0)).max()
    assert gap > 0.2
    assert verdict.finding.endswith(f"by {gap:.2f} at most on {N_POPULATIONS} rows")


def test_rows_that_went_astray_are_looked_at(problem):
    """Ten rows of a hundred, whose particles are four standard deviations from where they should be."""
    shift = np.zeros(ROWS + 1)
    astray = np.arange(5, 101, 10)
    shift[astray] = 4.0
    verdict = ask(problem, particles(problem, shift=shift), 0)
    assert np.isin(astray, verdict.rows + 1).sum() >= 8
    assert verdict.failed


def test_rows_are_some_of_the_bootstrap_and_none_twice(problem):
    target, means, _, point = problem
    given = particles(problem)
    levels = np.asarray(critical_levels(target, given, as_float(ETA), cb.regions.Interval(0), point))
    drawn = [ask(problem, given, seed) for seed in range(2)]
    for verdict in drawn:
        assert len(np.unique(verdict.rows)) == N_POPULATIONS
        assert verdict.rows.min() >= 0
        assert verdict.rows.max() < ROWS
        # Counted from 0 among the bootstrap rows: row 0 of the target is the data.
        np.testing.assert_allclose(verdict.levels, levels[1 + verdict.rows], atol=1e-5)
    farthest = np.argsort(np.abs(means[1:] - means[0]))[-8:]
    assert all(np.isin(farthest, verdict.rows).all() for verdict in drawn)
    assert (np.sort(drawn[0].rows) != np.sort(drawn[1].rows)).any()


def test_what_the_audit_compares_with_is_exact(problem):
    """Two runs from the prior: levels of normal posteriors, with the errors of M draws, inflated twice at most."""
    _, means, sd, _ = problem
    verdict = ask(problem, particles(problem), 0)
    exact = 2 * stats.norm.cdf(np.abs(means[1 + verdict.rows] - means[0]) / sd) - 1
    z = (verdict.audited - exact) / np.sqrt((1 - exact**2 + 1 / M) / M)
    assert np.abs(z).max() < 2 * 4
    assert z.std() < 2
    assert (verdict.audited[0] != verdict.audited[1]).any()


def test_limit_is_chi_squareds():
    for df in (5, N_POPULATIONS, 100):
        assert _chi_squared_limit(df) == pytest.approx(stats.chi2(df).isf(1e-4), rel=0.03)


def test_levels_that_are_no_numbers_fail():
    theirs = np.full((2, N_POPULATIONS), 0.5)
    assert _differ(np.full(N_POPULATIONS, np.nan), theirs, M, EVEN)
    assert _differ(np.full(N_POPULATIONS, 0.5), theirs * np.nan, M, EVEN)
    assert not _differ(np.full(N_POPULATIONS, 0.5), theirs, M, EVEN)


def test_levels_near_one_raise_no_false_alarm():
    """Audits of right levels, half of them in the tail. Of 5,000 half a one should fail by chance; three, hardly ever.

    With 200 particles chance makes differences that matter.
    """
    rng = np.random.default_rng(0)
    size, exact = 200, np.concatenate([rng.uniform(0.93, 1.0, 10), rng.uniform(0.1, 0.9, 10)])
    levels = np.abs(2 * rng.binomial(size, (1 + exact) / 2, (5_000, 3, 20)) / size - 1)
    assert sum(_differ(ours[0], ours[1:], size, np.ones(20)) for ours in levels) <= 2


def test_differences_that_do_not_matter_are_let_pass():
    """With a million particles a difference of 0.01 is significant, and would not move eta by its own error."""
    theirs = np.full((2, N_POPULATIONS), 0.5)
    assert not _differ(np.full(N_POPULATIONS, 0.51), theirs, 10**6, EVEN)
    assert _differ(np.full(N_POPULATIONS, 0.55), theirs, 10**6, EVEN)


def test_runs_that_disagree_with_each_other_prove_nothing():
    """Ours is right, and the two runs are off by some 0.15 each: that is their noise, and no finding."""
    rng = np.random.default_rng(0)
    noisy = 0.5 + 0.15 * rng.normal(size=(2, N_POPULATIONS))
    ours = 0.5 + 0.03 * rng.normal(size=N_POPULATIONS)
    assert not _differ(ours, noisy, M, EVEN)
    # The same differences from runs that agree are one.
    assert _differ(ours, np.stack([noisy.mean(0)] * 2), M, EVEN)


def test_uneven_weights_are_allowed_for():
    """Gaps of 0.12 are three errors of 500 draws, and one where a tenth of them counts."""
    theirs = np.full((2, N_POPULATIONS), 0.5)
    ours = 0.5 + np.where(np.arange(N_POPULATIONS) % 2, 0.12, -0.12)
    assert _differ(ours, theirs, M, EVEN)
    assert not _differ(ours, theirs, M, 10 * EVEN)


def test_finding_is_in_words():
    verdict = Audit(np.arange(2), np.array([0.5, 0.9]), np.array([[0.5, 0.6], [0.4, 0.7]]), True)
    assert (
        verdict.finding
        == f"its critical levels differ from an independent sampler's by 0.25 at most on {N_POPULATIONS} rows"
    )
