"""Integration on a grid, and the verdict on a calibration of a difficult model."""

import numpy as np
import pytest
from scipy import stats

import calibayes as cb
from benchmarks.validate.adversarial import families, run
from benchmarks.validate.adversarial.grid import Exact

N, N_REPLICATES, ETA = 30, 50, 1.7
LEVEL, ALLOWED = 0.9, 0.03


def location(dim: int, stretch: float = 0.0, offset: float = 0.0) -> tuple[Exact, np.ndarray, np.ndarray]:
    """Return a normal location model, its sample means on the data, and those on the replicates."""
    rng = np.random.default_rng(0)
    y = offset + rng.normal(size=(N, dim)) @ np.diag([1.0, 2.0])[:dim, :dim]
    counts = rng.multinomial(N, np.full(N, 1 / N), size=N_REPLICATES).astype(float)
    exact = Exact(
        losses=lambda theta: 0.5 * np.square(y[:, None] - theta[None]).sum(-1),
        log_prior=lambda theta: np.zeros(len(theta)),
        counts=counts,
        centre=y.mean(0) + 0.3,
        root=20 * np.eye(dim),
        stretch=stretch,
    )
    return exact, y.mean(0), counts @ y / N


def z_values(dim: int, **options: float) -> tuple[Exact, np.ndarray]:
    exact, mean, means = location(dim, **options)
    return exact, (ETA * N) ** 0.5 * (means - mean)


@pytest.mark.parametrize("region", ["hpd", "ellipsoid", "interval 0", "linear 1"])
@pytest.mark.parametrize("stretch", [0.0, 6.0])
def test_levels_of_a_normal_location_are_exact(region, stretch):
    exact, z = z_values(1, stretch=stretch)
    expected = 2 * stats.norm.cdf(np.abs(z[:, 0])) - 1
    np.testing.assert_allclose(exact.critical_levels(ETA, region), expected, atol=0.003)


@pytest.mark.parametrize("region", ["hpd", "ellipsoid", "box", "simultaneous", "interval 1", "linear 1,-1"])
def test_levels_of_a_bivariate_location_are_exact(region):
    exact, z = z_values(2)
    two_sided = 2 * stats.norm.cdf(np.abs(z)) - 1
    expected = {
        "hpd": stats.chi2(2).cdf((z**2).sum(1)),
        "ellipsoid": stats.chi2(2).cdf((z**2).sum(1)),
        "box": two_sided.max(1),
        "simultaneous": two_sided.max(1) ** 2,
        "interval 1": two_sided[:, 1],
        "linear 1,-1": 2 * stats.norm.cdf(np.abs(z[:, 0] - z[:, 1]) / 2**0.5) - 1,
    }[region]
    levels = exact.critical_levels(ETA, region)
    # A cell is about 0.15 standard deviations wide, which matters less in the tails, where the level is.
    np.testing.assert_allclose(levels, expected, atol=0.015)
    np.testing.assert_allclose(levels[expected > 0.9], expected[expected > 0.9], atol=0.004)


def test_coverage_counts_levels():
    exact, z = z_values(1)
    expected = (2 * stats.norm.cdf(np.abs(z[:, 0])) - 1 <= 0.8).mean()
    assert exact.coverage(ETA, "hpd", 0.8) == pytest.approx(expected)


def test_prior_and_bounds_enter():
    """A normal prior in conflict with the data; and a bound, beyond which the posterior is a truncated normal."""
    exact, mean, means = location(1)
    conflict = exact._replace(log_prior=lambda theta: -0.5 * np.square((theta[:, 0] - 3) / 0.2))
    precision = ETA * N + 25
    z = ETA * N * (means - mean)[:, 0] / precision**0.5
    np.testing.assert_allclose(conflict.critical_levels(ETA, "hpd"), 2 * stats.norm.cdf(np.abs(z)) - 1, atol=0.003)

    low, sd = mean[0] + 0.1, (ETA * N) ** -0.5
    bounded = exact._replace(bounds=np.array([[low], [np.inf]]), centre=mean + 20.1)
    point = stats.truncnorm((low - mean[0]) / sd, np.inf, mean[0], sd).mean()
    cdf = np.array([stats.truncnorm((low - m) / sd, np.inf, m, sd).cdf(point) for m in means[:, 0]])
    np.testing.assert_allclose(bounded.critical_levels(ETA, "interval 0"), np.abs(2 * cdf - 1), atol=0.005)


def test_estimates_of_the_point():
    exact, mean, means = location(1)
    conflict = exact._replace(log_prior=lambda theta: -0.5 * np.square((theta[:, 0] - 3) / 0.2))
    # The minimizer of the risk is the sample mean, whatever the prior; the mode of a normal posterior is its mean.
    z = (ETA * N * means[:, 0] + 25 * 3 - (ETA * N + 25) * mean[0]) / (ETA * N + 25) ** 0.5
    expected = 2 * stats.norm.cdf(np.abs(z)) - 1
    np.testing.assert_allclose(conflict.critical_levels(ETA, "hpd", "minimizer"), expected, atol=0.005)
    np.testing.assert_allclose(
        conflict.critical_levels(ETA, "hpd", "mode"), conflict.critical_levels(ETA, "hpd"), atol=0.02
    )


def judge(exact, *codes, eta=1.0, coverage=LEVEL, converged=True):
    """Return the verdict on a report; `exact` is the coverage as a function of eta."""
    return run.verdict(run.Report(converged, eta, coverage, codes), exact, LEVEL, ALLOWED)


def test_coverage_near_the_level_is_right():
    assert judge(lambda eta: LEVEL) == "right"
    assert judge(lambda eta: LEVEL + 0.99 * ALLOWED) == "right"
    assert judge(lambda eta: LEVEL - 0.99 * ALLOWED) == "right"


def test_coverage_far_from_the_level_is_wrong_unless_declined():
    for error in (-0.05, 0.05, 0.1):
        assert judge(lambda eta, error=error: LEVEL + error) == "wrong"
        assert judge(lambda eta, error=error: LEVEL + error, converged=False) == "declined"
    assert judge(lambda eta: LEVEL, eta=float("nan")) == "wrong"
    assert judge(lambda eta: LEVEL, eta=0.0) == "wrong"


def test_conservative_side_of_a_jump_is_right():
    jump = cb.Code.LEVEL_NOT_ATTAINED
    step = lambda eta: 0.97 if eta < 1.1 else 0.8
    assert judge(step, jump, coverage=0.97) == "right"
    assert judge(step, coverage=0.97) == "wrong", "the library must say that coverage jumps"
    assert judge(step, jump, coverage=0.9) == "wrong", "the reported coverage must be the exact one"
    assert judge(step, jump, eta=1.2, coverage=0.8) == "wrong", "the other side of the jump is not conservative"
    assert judge(lambda eta: 0.97, jump, coverage=0.97) == "wrong", "there must be a jump"


def test_monte_carlo_error_decreases_with_replicates_and_is_small():
    assert 0.002 < run.monte_carlo_error(400, 0.95) < 0.006
    assert run.monte_carlo_error(2000, 0.95) < run.monte_carlo_error(400, 0.95) < run.monte_carlo_error(400, 0.5)


def test_cases_without_a_crossing_have_no_answer():
    few = lambda case: case._replace(exact=case.exact._replace(counts=case.exact.counts[:20]))
    assert run.has_answer(few(families.conflict()))
    assert not run.has_answer(few(families.bound(mean=-1.0)))


LINE = {"verdict": "right", "has_answer": True, "seconds": 1.0, "cpu_seconds": 100.0}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([], True),
        ([{"verdict": "declined", "has_answer": False}], True),
        ([{"verdict": "declined"}], True),
        ([{"verdict": "declined"}] * 2, False),
        ([{"verdict": "wrong"}], False),
        ([{"verdict": "wrong", "has_answer": False}], False),
        ([{"seconds": 61.0}], False),
        ([{"seconds": 61.0, "cpu_seconds": 30.0}], True),
    ],
    ids=str,
)
def test_suite_passes_without_wrong_and_slow_cases_and_with_few_declined_ones(changes, expected):
    lines = [LINE | change for change in changes] + [LINE] * (10 - len(changes))
    assert run.passed(lines) == expected


def test_there_are_enough_distinct_cases():
    assert len(families.FIXED) >= 60
    cases = families.fixed_cases()
    assert len({(case.name, case.level) for case in cases}) == len(cases)
    assert all(len(case.exact.counts) == families.N_REPLICATES for case in cases)


def test_drawn_cases_depend_on_the_seed_only():
    names = [[case.name for case in families.drawn_cases(seed)] for seed in (3, 3, 4)]
    assert names[0] == names[1]
    assert sum(a != b for a, b in zip(names[0], names[2], strict=True)) > 20
