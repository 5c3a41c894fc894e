"""Data in parts: the calibration is that of the same arrays, and invalid parts are rejected."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._core import parts as parts_module
from calibayes._core.parts import CheckedParts, columns_of, largest_values
from calibayes._validate.parts import check_parts
from calibayes._validate.sample import redundant_columns
from calibayes.tables.parts import _Values

N, K = 61, 2
MODEL = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
OPTIONS = {"sampler": cb.Transport(n_particles=150), "progress": False, "seed": 1}


def data():
    x, y = cb.datasets.median_regression(N, 0)
    return x, y


def whole(parts, n=N):
    """Return all observations of data in parts."""
    chunks = [chunk for _, chunk in parts.chunks(0, n)]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *chunks)


@pytest.fixture(params=[7, 1000], ids=["small chunks", "one chunk"], autouse=True)
def _chunk(request, monkeypatch):
    monkeypatch.setattr(parts_module, "CONFIG", parts_module.PartsConfig(chunk=request.param, sample=16))


def test_memory_mapped_arrays_are_read_in_parts(tmp_path):
    for name, array in zip("xy", data(), strict=True):
        np.save(tmp_path / f"{name}.npy", array)
    mapped = tuple(np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "xy")
    for read, array in zip(whole(cb.Parts.from_arrays(mapped)), data(), strict=True):
        np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize("rows", [(0, N), (0, 1), (19, 41), (20, 40), (N - 1, N), (5, 5)])
def test_parquet_is_read_by_row_groups(rows, tmp_path):
    """Rows of some row groups, which do not begin or end with them."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    x, y = data()
    frame = pandas.DataFrame({"y": y, "a": x[:, 0], "b": x[:, 1], "k": np.arange(N)})
    frame.to_parquet(tmp_path / "table.parquet", row_group_size=20)
    parts = cb.Parts.from_parquet(tmp_path / "table.parquet", "y", ["b", "k"])
    assert (parts.n, parts.names) == (N, ["b", "k"])
    first = rows[0]
    for row, (read_x, read_y) in parts.chunks(*rows):
        assert row == first
        first += len(read_y)
        np.testing.assert_array_equal(read_x, np.column_stack([x[row:first, 1], np.arange(row, first)]))
        np.testing.assert_array_equal(read_y, y[row:first])
    assert first == rows[1]
    assert cb.Parts.from_parquet(tmp_path / "table.parquet", "y").names == ["a", "b", "k"]
    with pytest.raises(ValueError, match=r"there is no column 'c'\. The columns are y, a, b, k"):
        cb.Parts.from_parquet(tmp_path / "table.parquet", "y", ["c"])


def test_index_of_a_pandas_data_frame_is_not_a_predictor(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"a": [1.0, 2.0], "y": [0.0, 1.0]}, index=pandas.Index([10, 20], name="id"))
    frame.to_parquet(tmp_path / "table.parquet")
    assert cb.Parts.from_parquet(tmp_path / "table.parquet", "y").names == ["a"]
    assert cb.Parts.from_parquet(tmp_path / "table.parquet", "y", ["id"]).names == ["id"]


@pytest.mark.parametrize("kind", ["digits", "times"])
def test_column_of_a_parquet_file_that_is_not_of_numbers_is_an_error(tmp_path, kind):
    """It would be converted to numbers, such as nanoseconds since 1970."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    values = ["01", "02"] if kind == "digits" else pandas.date_range("2020", periods=2)
    frame = pandas.DataFrame({"a": [True, False], "b": values, "y": [0.0, 1.0]})
    frame.to_parquet(tmp_path / "table.parquet")
    with pytest.raises(TypeError, match=r"column 'b' must hold numbers; its type is.*Leave it out"):
        cb.Parts.from_parquet(tmp_path / "table.parquet", "y")
    assert cb.Parts.from_parquet(tmp_path / "table.parquet", "y", ["a"]).names == ["a"]


@pytest.mark.parametrize("kind", ["linear", "function"])
def test_result_is_that_of_the_arrays(kind):
    """Poisson counts are the same whether they are stored or drawn, so that only rounding differs."""
    model = MODEL
    if kind == "function":
        loss = lambda theta, datum: jnp.abs(datum[1] - datum[0] @ theta)
        model = cb.GibbsModel(loss, cb.priors.Normal(scale=100.0), dim=K)
    expected = cb.calibrate(model, data(), bootstrap=cb.bootstrap.Poisson(42), **OPTIONS)
    result = cb.calibrate(model, cb.Parts.from_arrays(data(), names=["a", "b"]), bootstrap=42, **OPTIONS)
    assert result.eta == pytest.approx(expected.eta, rel=1e-4)
    assert result.names == ["a", "b"]
    assert float(result.validate()) == pytest.approx(float(expected.validate()), abs=1.5 / 42)


def test_what_is_known_of_all_observations():
    x, y = data()
    observations = check_parts(MODEL, cb.Parts.from_arrays((x, y)), None)
    checked = observations.data
    assert isinstance(checked, CheckedParts)
    assert (observations.n, observations.dim) == (N, K)
    # Every third: the largest number that leaves at least 16.
    np.testing.assert_array_equal(checked.sample[0], x[::3])
    np.testing.assert_array_equal(largest_values(checked)[0], np.abs(x).max(0))
    assert largest_values(checked)[1] == np.abs(y).max()
    np.testing.assert_array_equal(columns_of(checked)[1], [x.min(0), x.max(0)])


def test_checksum_depends_on_every_number_and_on_the_order():
    x, y = data()
    checksum = lambda x, y: check_parts(MODEL, cb.Parts.from_arrays((x, y)), None).data.checksum
    changed = y.copy()
    changed[-1] = np.nextafter(changed[-1], 10.0)
    order = np.arange(N)[::-1]
    checksums = [checksum(x, y), checksum(x, changed), checksum(x[order], y[order])]
    assert len(set(checksums)) == 3
    assert checksum(x, y) == checksums[0]


@pytest.mark.parametrize(
    ("read", "n", "message"),
    [
        (lambda x, y, rows: (x[rows], np.where(np.arange(N)[rows] == 50, np.nan, y[rows])), N, "y must be finite"),
        (lambda x, y, rows: (x[rows], y[rows]), N + 5, f"returned .*; n is {N + 5}"),
        (lambda x, y, rows: (x[rows], y[rows][:-1]), N, "X and y must have the same length"),
        (lambda x, y, rows: (x[rows], y[rows].astype(str)), N, "y must hold numbers"),
        (lambda x, y, rows: (x[rows], y[rows]), 1, "at least two observations; got 1"),
        (lambda x, y, rows: (x[rows], x[rows] @ [1.0, 2.0]), N, "all 21 observations are fitted exactly"),
    ],
)
def test_invalid_parts_are_rejected(read, n, message):
    x, y = data()
    parts = cb.Parts(lambda start, stop: read(x, y, slice(start, stop)), n)
    with pytest.raises((ValueError, TypeError), match=message):
        check_parts(MODEL, parts, None)


def test_labels_of_all_parts_are_checked():
    x, y = data()
    model = cb.GibbsModel(cb.losses.Logistic(), cb.priors.Normal(scale=10.0))
    labels = np.where(np.arange(N) == N - 1, 0.0, np.sign(y - np.median(y) + 1e-9))
    with pytest.raises(ValueError, match="-1"):
        check_parts(model, cb.Parts.from_arrays((x, labels)), None)


def test_redundant_columns_are_a_finding():
    x, y = data()
    for column, message in ((np.full(N, 5.0), "column 2: constant"), (-2 * x[:, 1], "columns are collinear")):
        checked = check_parts(MODEL, cb.Parts.from_arrays((np.column_stack([x, column]), y)), None)
        columns, extremes = columns_of(checked.data)
        (finding,) = redundant_columns(columns, checked.names, extremes)
        assert message in finding.message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bootstrap": cb.bootstrap.Multinomial(42)}, "data in parts need a number of replicates"),
        ({"bootstrap": np.ones((42, N))}, "data in parts need a number of replicates"),
        ({"bootstrap": 42, "weights": np.full(N, 0.5)}, "and no weights"),
        ({"bootstrap": 5}, "at least 20 replicates"),
    ],
)
def test_other_bootstraps_are_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        cb.calibrate(MODEL, cb.Parts.from_arrays(data()), **OPTIONS | options)


def test_arguments_of_parts_are_checked():
    with pytest.raises(ValueError, match="n must be at least 1; got 0"):
        cb.Parts(lambda start, stop: None, 0)
    with pytest.raises(ValueError, match="same length; got 2, 3"):
        cb.Parts.from_arrays((np.zeros(2), np.zeros(3)))


@pytest.mark.parametrize("n", [1, 2, 7, 40])
def test_median_by_counting(n):
    """Of numbers of both signs and of many magnitudes, some of them equal."""
    rng = np.random.default_rng(n)
    values = rng.normal(size=n) * 10.0 ** rng.integers(-20, 20, n)
    assert _Values(values).median() == np.median(values)
    assert _Values(np.round(rng.normal(size=n))).median() == pytest.approx(0.0, abs=2)
    rounded = np.round(rng.normal(size=n))
    assert _Values(rounded).median() == np.median(rounded)
