"""Checks of the observations."""

import jaxtyping
import numpy as np
import pandas as pd
import pytest

import calibayes as cb
from calibayes._validate.data import check_data

pl = pytest.importorskip("polars")

N = 30
RNG = np.random.default_rng(8)
X = np.column_stack([np.ones(N), RNG.exponential(size=N)])
Y = X @ [1.0, 2.0] + RNG.normal(size=N)
MODEL = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=10.0))
SQUARED = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal())


def with_value(array, index, value):
    copy = np.array(array, float)
    copy[index] = value
    return copy


@pytest.mark.parametrize("scale", [1e-16, 1e16])
def test_columns_in_different_units_are_not_collinear(scale):
    """Warnings are errors here."""
    assert check_data(MODEL, (X * np.array([1.0, scale]), Y), None).dim == 2


@pytest.mark.parametrize(("frame", "series"), [(pd.DataFrame, pd.Series), (pl.DataFrame, pl.Series)])
def test_parameters_have_the_names_of_columns(frame, series):
    table = frame({"intercept": np.ones(N, int), "dose": X[:, 1]})
    observations = check_data(MODEL, (table, series(Y)), None)
    assert (observations.n, observations.dim, observations.names) == (N, 2, ["intercept", "dose"])
    np.testing.assert_array_equal(observations.data[0], X)
    np.testing.assert_array_equal(observations.data[1], Y)
    assert check_data(MODEL, (table, Y), ["a", "b"]).names == ["a", "b"]
    assert check_data(MODEL, (X, frame({"y": Y})), None).names == ["theta[0]", "theta[1]"]


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_missing_values_are_reported_with_their_column(frame):
    table = frame({"intercept": np.ones(N), "dose": with_value(X[:, 1], 5, np.nan)})
    with pytest.raises(ValueError, match=r"X must be finite.*row 5, column dose"):
        check_data(MODEL, (table, Y), None)


def test_missing_values_of_pandas_integers_are_reported_with_their_column():
    frame = pd.DataFrame({"one": [1.0, 1.0, 1.0], "age": pd.array([3, None, 4], dtype="Int64")})
    with pytest.raises(ValueError, match="row 1, column age"):
        check_data(SQUARED, (frame, [1.0, 2.0, 3.0]), None)


def test_generic_losses_accept_pytrees():
    model = cb.GibbsModel(lambda t, d: t[0] * d["x"][1] + d["y"], cb.priors.Normal(), dim=2)
    observations = check_data(model, {"x": pd.DataFrame(X), "y": pl.Series(Y)}, None)
    assert (observations.n, observations.dim, observations.names) == (N, 2, ["theta[0]", "theta[1]"])
    for data, message in [
        ({"x": X, "y": Y[1:]}, "data must be arrays of the same length; got 29, 30"),
        ({"x": X, "y": with_value(Y, 0, np.nan)}, "array 1 of data must be finite"),
        ({}, "data is empty"),
        ({"x": X, "y": 3.0}, r"array 1 of data must have observations along its first axis; got shape \(\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            check_data(model, data, None)


def test_generic_losses_keep_integer_data():
    model = cb.GibbsModel(lambda theta, datum: theta[0] * datum.astype(float), cb.priors.Normal(), dim=1)
    assert check_data(model, np.arange(10), None).data.dtype.kind == "i"


@pytest.mark.parametrize(
    "values",
    [["1.0", "2.0"], [1j, 2.0], pd.to_datetime(["2020-01-01", "2021-01-01"])],
    ids=["text", "complex", "dates"],
)
def test_data_that_are_not_real_numbers_are_rejected(values):
    with pytest.raises(TypeError, match="must hold numbers"):
        check_data(SQUARED, (np.ones((2, 1)), values), None)
    with pytest.raises(TypeError, match="these columns do not: when"):
        check_data(SQUARED, (pd.DataFrame({"one": [1.0, 1.0], "when": values}), [1.0, 2.0]), None)


def test_numbers_out_of_range_are_rejected():
    generic = cb.GibbsModel(lambda theta, datum: theta[0] * datum.astype(float), cb.priors.Normal(), dim=1)
    with pytest.raises(ValueError, match="integers too large"):
        check_data(generic, np.array([1, 2**33 + 5]), None)
    with pytest.raises(ValueError, match="beyond float32"):
        check_data(SQUARED, (np.ones((2, 1)), [1.0, 1e300]), None)


def test_tables_that_cannot_be_converted_are_rejected(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    x, y = np.ones((4, 2)) * [[1.0, 2.0]] * [[1], [2], [3], [5]], np.arange(4.0)
    with pytest.raises(ValueError, match="X has more than one column 'a'"):
        check_data(SQUARED, (pd.DataFrame(x, columns=["a", "a"]), y), None)
    with pytest.raises(TypeError, match=r"X is a lazy data frame that has not been read yet: pass X.collect\(\)"):
        check_data(SQUARED, (pl.LazyFrame({"a": y}), y), None)
    with pytest.raises(ValueError, match="X has masked values"):
        check_data(SQUARED, (np.ma.masked_array(x, x > 5), y), None)
    with pytest.raises(ValueError, match="y must be an array of numbers"):
        check_data(SQUARED, (x, [[1.0], [1.0, 2.0]]), None)


def test_sparse_matrices_are_rejected():
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(TypeError, match=r"X is a sparse matrix: pass X.toarray\(\)"):
        check_data(MODEL, (sparse.csr_array(np.eye(3)), np.ones(3)), None)
