"""Scores of causal effects against DoubleML, and against the known effects of simulated data."""

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression

import calibayes as cb
from calibayes.causal import average_treatment_effect, partially_linear

# DoubleML 0.11.4 with scikit-learn 1.9.1: estimate and standard error of DoubleMLPLR and of DoubleMLIRM on the data
# below, with linear and logistic regressions and the folds of `np.random.default_rng(0).permutation(500) % 5`.
DOUBLEML_PARTIALLY_LINEAR = (0.5129516515441922, 0.04027744338053893)
DOUBLEML_INTERACTIVE = (0.6078546595769745, 0.11662868742535568)
N, P, EFFECT = 500, 20, 0.5


def correlated(rng, correlation):
    covariance = correlation ** np.abs(np.subtract.outer(np.arange(P), np.arange(P)))
    return rng.normal(size=(N, P)) @ np.linalg.cholesky(covariance).T


def partially_linear_data():
    """Return data as in the example of DoubleML, by Chernozhukov et al. (2018, section 5.1)."""
    rng, logistic = np.random.default_rng(0), lambda v: 1 / (1 + np.exp(-v))
    x = correlated(rng, 0.7)
    d = x[:, 0] + 0.25 * logistic(x[:, 2]) + rng.normal(size=N)
    return x, d, EFFECT * d + logistic(x[:, 0]) + 0.25 * x[:, 2] + rng.normal(size=N)


def interactive_data():
    """Return data with a binary treatment that depends on the covariates of the outcome."""
    rng = np.random.default_rng(0)
    x = correlated(rng, 0.5)
    index = x @ (0.5 / np.arange(1, P + 1) ** 2)
    d = (rng.uniform(size=N) < 1 / (1 + np.exp(-index))) * 1.0
    return x, d, EFFECT * d + index + rng.normal(size=N)


def least_squares(data):
    """Return the estimate and its sandwich standard error."""
    x, y = data
    slope = x[:, 0] @ y / np.sum(x**2)
    return slope, np.sqrt(np.sum((x[:, 0] * (y - x[:, 0] * slope)) ** 2)) / np.sum(x**2)


def test_partially_linear_model_is_that_of_doubleml():
    data = partially_linear(*partially_linear_data(), outcome=LinearRegression(), exposure=LinearRegression())
    np.testing.assert_allclose(least_squares(data), DOUBLEML_PARTIALLY_LINEAR, rtol=1e-6)


def test_average_effect_is_that_of_doubleml():
    learners = {"outcome": LinearRegression(), "propensity": LogisticRegression()}
    data = average_treatment_effect(*interactive_data(), **learners)
    # scikit-learn's logistic regression is iterative.
    np.testing.assert_allclose(least_squares(data), DOUBLEML_INTERACTIVE, rtol=1e-4)


def test_calibrated_interval_is_that_of_doubleml():
    """Its width has the error of eta, 5% with 500 replicates."""
    data = partially_linear(*partially_linear_data(), outcome=LinearRegression(), exposure=LinearRegression())
    model = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=10.0))
    result = cb.calibrate(model, data, bootstrap=500, seed=0, progress=False)
    estimate, error = DOUBLEML_PARTIALLY_LINEAR
    assert abs(result.estimate[0] - estimate) < 0.1 * error
    assert abs(np.ptp(result.intervals().bounds) / (3.92 * error) - 1) < 0.15


class GroupMean:
    """Estimator that records on which rows it was fitted."""

    seen: list[set[int]] = []

    def get_params(self, deep=False):
        return {}

    def fit(self, x, y):
        GroupMean.seen.append(set(x[:, 0].astype(int)))
        return self

    def predict(self, x):
        assert not GroupMean.seen[-1] & set(x[:, 0].astype(int))
        return np.zeros(len(x))


def test_groups_are_not_divided_between_folds():
    groups = np.arange(40) // 4
    GroupMean.seen.clear()
    partially_linear(
        groups[:, None], np.ones(40), np.ones(40), outcome=GroupMean(), exposure=GroupMean(), groups=groups
    )
    assert len(GroupMean.seen) == 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"treatment": np.arange(20)}, "treatment must be 0 or 1"),
        ({"treatment": np.zeros(20)}, "treatment is 0 for all observations outside of a fold"),
        ({"y": np.full(20, np.nan)}, "y must be finite; 20 values"),
        ({"y": np.ones(3)}, "one number per row of X"),
        ({"n_folds": 30}, "n_folds must be at most the number of observations or groups, 20; got 30"),
        ({"clip": 0.7}, "clip must be between 0 and 0.5; got 0.7"),
    ],
)
def test_invalid_arguments_are_an_error(change, message):
    arguments = {"X": np.ones((20, 1)), "treatment": np.arange(20) % 2, "y": np.arange(20.0)} | change
    with pytest.raises(ValueError, match=message):
        average_treatment_effect(outcome=LinearRegression(), propensity=LogisticRegression(), **arguments)
