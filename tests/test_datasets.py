"""Data sets of the paper: the published data, and the distribution of the simulated data."""

import numpy as np
import pytest
from scipy import stats

from calibayes.datasets import (
    HEART_DISEASE_ALL_PREDICTORS,
    HEART_DISEASE_PAPER_PREDICTORS,
    heart_disease,
    median_regression,
    remission,
)

# z scores of The Elements of Statistical Learning, table 4.2 (logistic regression on the paper's seven predictors).
Z_SCORES = {
    "sbp": 1.023, "tobacco": 3.034, "ldl": 3.219, "famhist": 4.178, "obesity": -1.187, "alcohol": 0.136, "age": 4.184,
}  # fmt: skip


@pytest.mark.parametrize(("predictors", "k"), [("paper", 7), ("all", 9), (("age", "ldl"), 2)])
def test_predictors_are_standardised(predictors, k):
    x, y = heart_disease(predictors)
    assert x.shape == (462, k + 1)
    assert y.shape == (462,)
    assert (x[:, 0] == 1).all()
    np.testing.assert_allclose(x[:, 1:].mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(x[:, 1:].std(0, ddof=1), 1, rtol=1e-12)


def test_numbers_of_cases_and_family_histories_are_the_published_ones():
    x, y = heart_disease()
    assert set(y) == {-1.0, 1.0}
    assert (y == 1).sum() == 160
    famhist = x[:, 1 + HEART_DISEASE_PAPER_PREDICTORS.index("famhist")]
    assert len(np.unique(famhist)) == 2
    assert (famhist > 0).sum() == 192


def test_logistic_regression_reproduces_the_published_z_scores():
    """Standardising does not change the z scores of slopes; four Newton steps give the three published decimals."""
    x, y = heart_disease()
    theta = np.zeros(x.shape[1])
    for _ in range(4):
        p = 1 / (1 + np.exp(-x @ theta))
        information = x.T @ (x * (p * (1 - p))[:, None])
        theta += np.linalg.solve(information, x.T @ ((y + 1) / 2 - p))
    z = theta / np.sqrt(np.diag(np.linalg.inv(information)))
    np.testing.assert_allclose(z[1:], [Z_SCORES[name] for name in HEART_DISEASE_PAPER_PREDICTORS], atol=6e-4)


def test_predictors_are_in_the_requested_order():
    complete, _ = heart_disease("all")
    selected, _ = heart_disease(("age", "typea"))
    expected = complete[:, [1 + HEART_DISEASE_ALL_PREDICTORS.index(name) for name in ("age", "typea")]]
    np.testing.assert_array_equal(selected[:, 1:], expected)


@pytest.mark.parametrize("predictors", ["seven", ("age", "height")])
def test_unknown_predictors_are_rejected(predictors):
    with pytest.raises(ValueError, match="predictors must be 'paper', 'all' or names among sbp, tobacco"):
        heart_disease(predictors)


def test_median_regression_has_the_distribution_of_the_paper():
    """Kolmogorov-Smirnov tests at 1e-4; the correlation of independent variables has standard error 1 / sqrt(n)."""
    n = 20_000
    x, y = median_regression(n, seed=4)
    assert x.shape == (n, 2)
    assert (x[:, 0] == 1).all()
    assert stats.kstest(x[:, 1] + 2, stats.chi2(4).cdf).pvalue > 1e-4
    noise = y - 2 - x[:, 1]
    assert stats.kstest(noise, stats.norm.cdf).pvalue > 1e-4
    assert abs(np.corrcoef(noise, x[:, 1])[0, 1]) < 4 / np.sqrt(n)


def test_median_regression_depends_on_the_seed_only():
    x, y = median_regression(50, seed=1)
    same_x, same_y = median_regression(50, seed=1)
    np.testing.assert_array_equal(x, same_x)
    np.testing.assert_array_equal(y, same_y)
    assert (median_regression(50, seed=2)[1] != y).all()


@pytest.mark.parametrize("n", [0, -3])
def test_median_regression_requires_at_least_one_observation(n):
    with pytest.raises(ValueError, match=f"n must be at least 1; got {n}"):
        median_regression(n)


def test_remission_times_are_the_published_ones():
    """Relapses and weeks by treatment: 9 in 359 weeks with 6-mercaptopurine, 21 in 182 weeks with placebo."""
    x, time, event = remission()
    for placebo, relapses, weeks in ((0, 9, 359), (1, 21, 182)):
        chosen = x[:, 0] == placebo
        assert (chosen.sum(), event[chosen].sum(), time[chosen].sum()) == (21, relapses, weeks)
