"""Findings about the sample: too few observations for a bootstrap, and redundant columns."""

from dataclasses import replace

import numpy as np
import pytest

import calibayes as cb
from calibayes._validate import sample
from calibayes._validate.sample import few_observations, many_repetitions, redundant_columns
from calibayes._validate.settings import check_weights

N = 32
X = np.column_stack([np.ones(N), np.random.default_rng(0).normal(size=N)])
NAMES = ["theta[0]", "theta[1]", "theta[2]", "theta[3]"]


@pytest.mark.parametrize(
    ("column", "count", "message"),
    [
        (
            np.full(N, 3.0),
            1,
            "X: column 2: constant, like the intercept. Only the prior separates the coefficients; drop it.",
        ),
        (np.zeros(N), 1, "X: column 2: all values are zero, so the data say nothing about the coefficient; drop it."),
        (np.full((N, 2), 3.0), 2, "X: column 2, column 3: constant, like the intercept. Only the prior separates"),
        (
            np.zeros((N, 2)),
            2,
            "X: column 2, column 3: all values are zero, so the data say nothing about the coefficients",
        ),
        (2 * X[:, 1] - 1, 1, "X: its columns are collinear. Only the prior can tell their coefficients apart"),
    ],
)
def test_redundant_columns_are_a_warning(column, count, message):
    (finding,) = redundant_columns(np.column_stack([X, column]), NAMES)
    assert (finding.code, finding.severity, finding.count) == (cb.Code.REDUNDANT_COLUMNS, cb.Severity.WARNING, count)
    assert finding.message.startswith(message)


def test_columns_have_their_names():
    (finding,) = redundant_columns(np.column_stack([X, np.zeros(N)]), ["intercept", "age", "sex"])
    assert finding.message.startswith("X: sex: all values are zero")


def test_independent_columns_have_no_finding():
    assert redundant_columns(X, NAMES) == []


def test_rank_is_checked_on_a_subset_of_the_rows_first(monkeypatch):
    """On all rows only if the subset is collinear."""
    monkeypatch.setattr(sample, "CONFIG", replace(sample.CONFIG, rank_check_rows=N // 4))
    collinear = 2 * X[:, 1] - 1
    for column in (collinear, np.zeros(N)):
        assert redundant_columns(np.column_stack([X, column]), NAMES)
    n_checked, has_full_rank = [], sample._has_full_rank
    monkeypatch.setattr(sample, "_has_full_rank", lambda x: n_checked.append(len(x)) or has_full_rank(x))
    # Collinear except for one row that is not in the subset.
    assert not redundant_columns(np.column_stack([X, collinear + (np.arange(N) == 1)]), NAMES)
    assert not redundant_columns(X, NAMES)
    assert n_checked == [8, N, 8]


@pytest.mark.parametrize(
    ("n", "bootstrap", "severity", "words"),
    [
        (500, cb.bootstrap.Multinomial(50), None, ""),
        (120, np.ones((50, 120)), cb.Severity.INFO, "120 observations are few for 5 parameters"),
        (99, cb.bootstrap.Multinomial(50), cb.Severity.WARNING, "99 observations are few for 5 parameters"),
        (500, cb.bootstrap.Cluster(50, np.arange(500) // 25), cb.Severity.WARNING, "20 clusters are few"),
        (2000, cb.bootstrap.Block(50, length=10), cb.Severity.INFO, "200 blocks of 10 observations are few"),
    ],
)
def test_few_independent_units_are_a_finding(n, bootstrap, severity, words):
    findings = few_observations(n, 5, bootstrap)
    assert [(one.code, one.severity) for one in findings] == (
        [] if severity is None else [(cb.Code.FEW_OBSERVATIONS, severity)]
    )
    assert all(words in one.message for one in findings)


@pytest.mark.parametrize(
    ("values", "n_findings"),
    [([4, 5, 3, 0], 1), ([2, 2, 2, 2], 0), ([3, 3, 0, 0], 1), ([40.5, 41, 39, 40], 0), ([1, 0, 1, 1], 0)],
    ids=["large", "mean of 2", "zeros", "not integers", "subset"],
)
def test_integer_weights_with_a_large_mean_are_a_finding(values, n_findings):
    """They may be survey weights, whose intervals would be wider by the square root of the mean."""
    findings = many_repetitions(check_weights(values, 4))
    assert [(one.code, one.severity) for one in findings] == [(cb.Code.WEIGHTS_REPEAT, cb.Severity.INFO)] * n_findings
    assert not many_repetitions(None)


@pytest.mark.parametrize(("weight", "severity"), [(3, cb.Severity.INFO), (21, cb.Severity.WARNING)])
def test_integer_weights_that_repeat_every_row_often_are_a_warning(weight, severity):
    (finding,) = many_repetitions(check_weights([weight] * 4, 4))
    assert finding.severity is severity


def test_finding_about_weights_is_part_of_the_result():
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    data, settings = cb.datasets.median_regression(60, 0), {"bootstrap": 100, "sampler": "transport", "progress": False}
    with pytest.warns(cb.CalibrationWarning, match="taken as numbers of repetitions"):
        result = cb.calibrate(model, data, weights=np.full(60, 40), **settings)
    assert "2,400 observations from 60 rows. If they are survey weights, divide them by their mean" in result.summary()


@pytest.mark.parametrize("region", [None, "box"])
def test_findings_about_the_sample_stay_with_the_result(region):
    """Also at another region, and not among those of single intervals."""
    data = cb.datasets.median_regression(60, 0)
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    result = cb.calibrate(model, data, bootstrap=100, sampler="transport", progress=False)
    result = result if region is None else result.at(region=region)
    assert cb.Code.FEW_OBSERVATIONS in [finding.code for finding in result.diagnostics]
    assert "60 observations are few for 2 parameters" in result.summary()
    own = [finding.code for findings in result.intervals().diagnostics for finding in findings]
    assert cb.Code.FEW_OBSERVATIONS not in own
