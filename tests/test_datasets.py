"""The paper's two problems: the data are the published ones, the generator has the moments it says."""

import numpy as np
import pytest
from scipy import stats

from calibayes.datasets import ALL_PREDICTORS, PAPER_PREDICTORS, heart_disease, median_regression

# z scores of The Elements of Statistical Learning, table 4.2 (logistic regression on the paper's seven predictors).
Z_SCORES = {
    "sbp": 1.023, "tobacco": 3.034, "ldl": 3.219, "famhist": 4.178, "obesity": -1.187, "alcohol": 0.136, "age": 4.184,
}  # fmt: skip


@pytest.mark.parametrize(("predictors", "k"), [("paper", 7), ("all", 9), (("age", "ldl"), 2)])
def test_shape_and_scale(predictors, k):
    x, y = heart_disease(predictors)
    assert x.shape == (462, k + 1)
    assert y.shape == (462,)
    assert (x[:, 0] == 1).all()
    np.testing.assert_allclose(x[:, 1:].mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(x[:, 1:].std(0, ddof=1), 1, rtol=1e-12)


def test_cases_and_family_history():
    x, y = heart_disease()
    assert set(y) == {-1.0, 1.0}
    assert (y == 1).sum() == 160
    famhist = x[:, 1 + PAPER_PREDICTORS.index("famhist")]
    assert len(np.unique(famhist)) == 2
    assert (famhist > 0).sum() == 192


def test_published_logistic_regression():
    """Standardising changes no slope's z score: after four steps of Newton's they are the book's three decimals."""
    x, y = heart_disease()
    theta = np.zeros(x.shape[1])
    for _ in range(4):
        p = 1 / (1 + np.exp(-x @ theta))
        information = x.T @ (x * (p * (1 - p))[:, None])
        theta += np.linalg.solve(information, x.T @ ((y + 1) / 2 - p))
    z = theta / np.sqrt(np.diag(np.linalg.inv(information)))
    np.testing.assert_allclose(z[1:], [Z_SCORES[name] for name in PAPER_PREDICTORS], atol=6e-4)


def test_predictors_come_in_the_order_asked_for():
    everything, _ = heart_disease("all")
    some, _ = heart_disease(("age", "typea"))
    expected = everything[:, [1 + ALL_PREDICTORS.index(name) for name in ("age", "typea")]]
    np.testing.assert_array_equal(some[:, 1:], expected)


@pytest.mark.parametrize("predictors", ["seven", ("age", "height")])
def test_unknown_predictors(predictors):
    with pytest.raises(ValueError, match="predictors must be 'paper', 'all' or names among sbp, tobacco"):
        heart_disease(predictors)


def test_median_regression_moments():
    """Kolmogorov and Smirnov's test at 1e-4; a correlation of independent variables has error 1 / sqrt(n)."""
    n = 20_000
    x, y = median_regression(n, seed=4)
    assert x.shape == (n, 2)
    assert (x[:, 0] == 1).all()
    assert stats.kstest(x[:, 1] + 2, stats.chi2(4).cdf).pvalue > 1e-4
    noise = y - 2 - x[:, 1]
    assert stats.kstest(noise, stats.norm.cdf).pvalue > 1e-4
    assert abs(np.corrcoef(noise, x[:, 1])[0, 1]) < 4 / np.sqrt(n)


def test_median_regression_seeds():
    x, y = median_regression(50, seed=1)
    again_x, again_y = median_regression(50, seed=1)
    np.testing.assert_array_equal(x, again_x)
    np.testing.assert_array_equal(y, again_y)
    assert (median_regression(50, seed=2)[1] != y).all()


@pytest.mark.parametrize("n", [0, -3])
def test_median_regression_needs_observations(n):
    with pytest.raises(ValueError, match=f"n must be at least 1; got {n}"):
        median_regression(n)
