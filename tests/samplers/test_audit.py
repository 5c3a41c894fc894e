"""The audit accepts correct particles and rejects wrong ones, for normal posteriors in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import calibayes as cb
from calibayes._backend.functions import as_float
from calibayes._core.target import evaluate, make_target
from calibayes.regions import critical_levels
from calibayes.samplers.audit import Audit, _chi_squared_quantile, _levels_differ, audit
from calibayes.samplers.populations import N_POPULATIONS

N, N_REPLICATES, M, ETA = 40, 100, 500, 1.3
NO_INFLATION = np.ones(N_POPULATIONS)


@pytest.fixture(scope="module")
def problem():
    """A location problem, its exact posterior means and standard deviation, and the point to be covered."""
    rng = np.random.default_rng(0)
    y = rng.normal(1.0, 1.0, size=N)
    counts = rng.multinomial(N, np.full(N, 1 / N), size=N_REPLICATES)
    model = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=1000.0))
    target = make_target(model, (np.ones((N, 1)), y), counts, 1)
    means = np.concatenate([[y.mean()], counts @ y / N])
    return target, means, (ETA * N) ** -0.5, jnp.asarray([y.mean()], float)


def draw_particles(problem, seed=1, shift=0.0, stretch=1.0):
    """Return exact draws on every replicate, shifted by `shift` standard deviations and stretched about the mean."""
    target, means, sd, _ = problem
    noise = np.random.default_rng(seed).normal(size=(1, N_REPLICATES + 1, M))
    theta = means[:, None] + sd * (np.asarray(shift).reshape(-1, 1) + stretch * noise)
    return evaluate(target, jnp.asarray(theta, float))


def run_audit(problem, particles, seed):
    target, _, _, point = problem
    return audit(jax.random.key(seed), target, particles, ETA, cb.regions.Interval(0), point)


def test_correct_particles_pass_with_any_key(problem):
    """Twenty keys; the probability of a false alarm is 1e-4."""
    particles = draw_particles(problem)
    assert not any(run_audit(problem, particles, seed).failed for seed in range(20))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("error", [{"shift": 1.0}, {"stretch": 2.0}, {"stretch": 0.5}], ids=str)
def test_wrong_particles_fail(problem, error, seed):
    """Wrong by one standard deviation, or half or twice as wide: levels differ by about 0.2, ten times their error."""
    outcome = run_audit(problem, draw_particles(problem, **error), seed)
    assert outcome.failed
    difference = np.abs(outcome.levels - outcome.independent_levels.mean(0)).max()
    assert difference > 0.2
    assert outcome.finding.endswith(f"by up to {difference:.2f} on {N_POPULATIONS} replicates.")


def test_outlying_replicates_are_audited(problem):
    """Ten replicates of a hundred, whose particles are wrong by four standard deviations."""
    shift = np.zeros(N_REPLICATES + 1)
    wrong = np.arange(5, 101, 10)
    shift[wrong] = 4.0
    outcome = run_audit(problem, draw_particles(problem, shift=shift), 0)
    assert np.isin(wrong, outcome.replicates + 1).sum() >= 8
    assert outcome.failed


def test_audited_replicates_are_distinct_bootstrap_replicates(problem):
    target, means, _, point = problem
    particles = draw_particles(problem)
    levels = np.asarray(critical_levels(target, particles, as_float(ETA), cb.regions.Interval(0), point))
    outcomes = [run_audit(problem, particles, seed) for seed in range(2)]
    for outcome in outcomes:
        assert len(np.unique(outcome.replicates)) == N_POPULATIONS
        assert outcome.replicates.min() >= 0
        assert outcome.replicates.max() < N_REPLICATES
        # Counted from 0 among the bootstrap replicates: replicate 0 of the target is the data.
        np.testing.assert_allclose(outcome.levels, levels[1 + outcome.replicates], atol=1e-5)
    farthest = np.argsort(np.abs(means[1:] - means[0]))[-8:]
    assert all(np.isin(farthest, outcome.replicates).all() for outcome in outcomes)
    assert (np.sort(outcomes[0].replicates) != np.sort(outcomes[1].replicates)).any()


def test_replicates_that_have_not_mixed_are_audited_first(problem):
    target, _, _, point = problem
    not_mixed = np.zeros(N_REPLICATES + 1, bool)
    not_mixed[[0, 7, 50]] = True
    arguments = (draw_particles(problem), ETA, cb.regions.Interval(0), point)
    outcome = audit(jax.random.key(0), target, *arguments, not_mixed)
    # Counted from 0; -1 stands for the data.
    assert {-1, 6, 49} <= set(outcome.replicates)
    assert not outcome.failed
    assert outcome.reproducible
    assert not outcome._replace(independent_levels=np.stack([outcome.levels, outcome.levels + 0.2])).reproducible


def test_independent_levels_are_exact(problem):
    """Two runs from the prior: levels of normal posteriors, with the errors of M draws times at most two."""
    _, means, sd, _ = problem
    outcome = run_audit(problem, draw_particles(problem), 0)
    exact = 2 * stats.norm.cdf(np.abs(means[1 + outcome.replicates] - means[0]) / sd) - 1
    z = (outcome.independent_levels - exact) / np.sqrt((1 - exact**2 + 1 / M) / M)
    assert np.abs(z).max() < 2 * 4
    assert z.std() < 2
    assert (outcome.independent_levels[0] != outcome.independent_levels[1]).any()


def test_chi_squared_quantile():
    for df in (5, N_POPULATIONS, 100):
        assert _chi_squared_quantile(df) == pytest.approx(stats.chi2(df).isf(1e-4), rel=0.03)


def test_nan_levels_fail():
    independent = np.full((2, N_POPULATIONS), 0.5)
    assert _levels_differ(np.full(N_POPULATIONS, np.nan), independent, M, NO_INFLATION)
    assert _levels_differ(np.full(N_POPULATIONS, 0.5), independent * np.nan, M, NO_INFLATION)
    assert not _levels_differ(np.full(N_POPULATIONS, 0.5), independent, M, NO_INFLATION)


def test_levels_near_one_raise_no_false_alarm():
    """Audits of correct levels, half of them near one. Of 5,000 audits 0.5 fail on average; three, hardly ever.

    With 200 particles random differences are large enough to matter.
    """
    rng = np.random.default_rng(0)
    size, exact = 200, np.concatenate([rng.uniform(0.93, 1.0, 10), rng.uniform(0.1, 0.9, 10)])
    levels = np.abs(2 * rng.binomial(size, (1 + exact) / 2, (5_000, 3, 20)) / size - 1)
    assert sum(_levels_differ(runs[0], runs[1:], size, np.ones(20)) for runs in levels) <= 2


def test_immaterial_differences_pass():
    """With a million particles a difference of 0.01 is significant, but changes eta by less than its error."""
    independent = np.full((2, N_POPULATIONS), 0.5)
    assert not _levels_differ(np.full(N_POPULATIONS, 0.51), independent, 10**6, NO_INFLATION)
    assert _levels_differ(np.full(N_POPULATIONS, 0.55), independent, 10**6, NO_INFLATION)


def test_noise_of_the_independent_runs_is_allowed_for():
    """The audited levels are correct, and the two runs have errors of about 0.15 each."""
    rng = np.random.default_rng(0)
    noisy = 0.5 + 0.15 * rng.normal(size=(2, N_POPULATIONS))
    levels = 0.5 + 0.03 * rng.normal(size=N_POPULATIONS)
    assert not _levels_differ(levels, noisy, M, NO_INFLATION)
    # The same differences from two runs that agree are significant.
    assert _levels_differ(levels, np.stack([noisy.mean(0)] * 2), M, NO_INFLATION)


def test_unequal_weights_are_allowed_for():
    """Differences of 0.12 are three errors of 500 draws, and one error if a tenth of the draws are effective."""
    independent = np.full((2, N_POPULATIONS), 0.5)
    levels = 0.5 + np.where(np.arange(N_POPULATIONS) % 2, 0.12, -0.12)
    assert _levels_differ(levels, independent, M, NO_INFLATION)
    assert not _levels_differ(levels, independent, M, 10 * NO_INFLATION)


def test_finding_is_a_sentence():
    outcome = Audit(np.arange(2), np.array([0.5, 0.9]), np.array([[0.5, 0.6], [0.4, 0.7]]), True)
    assert (
        outcome.finding
        == "The critical levels differ from those of an independent sampler by up to 0.25 on 2 replicates."
    )
