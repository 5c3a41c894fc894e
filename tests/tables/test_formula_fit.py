"""`calibayes.fit` gives the numbers of the command line, and its errors name its own arguments."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import calibayes as cb
from calibayes import design
from calibayes.cli import app
from calibayes.design import Design
from calibayes.tables import files


def make_table(n=60):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "x": rng.normal(size=n),
            "group": rng.choice(["a", "b", "c"], n),
            "weight": rng.uniform(0.5, 2.0, n).round(3),
            "stratum": np.arange(n) % 2,
            "site": np.arange(n) % 10,
        }
    )
    frame["y"] = (1 + 2 * frame["x"] + (frame["group"] == "b") + rng.normal(size=n)).round(4)
    frame.loc[[3, 7], "x"] = np.nan
    return frame


@pytest.fixture(scope="module")
def frame():
    return make_table()


@pytest.fixture
def calls(monkeypatch):
    """Record the calls of `calibrate` instead of calibrating."""
    recorded = []

    def calibrate(model, data, **options):
        recorded.append((model, data, options))
        raise RuntimeError("not calibrated")

    monkeypatch.setattr(design, "calibrate", calibrate)
    return recorded


def fit_recorded(calls, *args, **options):
    with pytest.raises(RuntimeError, match="not calibrated"):
        cb.fit(*args, **options)
    return calls[-1]


@pytest.mark.filterwarnings("ignore::calibayes.CalibrationWarning")
def test_numbers_are_those_of_the_command_line(frame, tmp_path, monkeypatch):
    """For a table with categories, missing values, weights, strata and clusters, whose text has all digits."""
    frame = frame.assign(site=frame["site"] // 2 * 2 + frame["stratum"])
    monkeypatch.chdir(tmp_path)
    frame.to_csv("table.csv", index=False)
    frame = files.read_table(tmp_path / "table.csv")
    formula, n_replicates = "y ~ x + C(group)", 100
    arguments = "--loss huber --drop-missing --weights weight --strata stratum --cluster site --seed 3 --json"
    line = ["fit", "table.csv", "--formula", formula, *arguments.split(), "--bootstrap", str(n_replicates)]
    outcome = CliRunner().invoke(app, line)
    assert outcome.exit_code == 0, outcome.output
    printed = json.loads(outcome.stdout)
    columns = {"weights": "weight", "strata": "stratum", "cluster": "site"}
    result = cb.fit(
        formula, frame, loss="huber", missing="drop", bootstrap=n_replicates, seed=3, progress=False, **columns
    )
    assert result.eta == printed["eta"]
    assert result.settings["notes"] == ["dropped 2 of 60 rows, with missing values in x (2)"]
    bounds = [[row["low"], row["high"]] for row in printed["coefficients"]]
    np.testing.assert_array_equal(result.conf_int(), bounds)
    assert list(result.params.index) == ["intercept", "x", "C(group)[T.b]", "C(group)[T.c]"]
    assert 'cb.fit("y ~ x + C(group)", frame, loss="huber", missing="drop", weights="weight"' in result.settings["call"]
    sampling = "observations    weighted by weight and resampled in 10 clusters of site within 2 strata of stratum"
    assert sampling in result.summary().splitlines()
    assert printed["notes"][1:] == [f"observations are{sampling[15:]}", "categories are compared with: group = a"]
    assert "weighted sum" in (result.report(tmp_path / "report.html")).read_text()


def test_weights_are_a_column_or_an_array(frame, calls):
    """Rows that are dropped lose their weights."""
    options = {"missing": "drop", "tau": 0.25}
    _, _, by_name = fit_recorded(calls, "y ~ x", frame, weights="weight", **options)
    model, (x, _), by_array = fit_recorded(calls, "y ~ x", frame, weights=frame["weight"].to_numpy(), **options)
    kept = frame["weight"][frame["x"].notna()]
    np.testing.assert_array_equal(by_name["weights"], kept)
    np.testing.assert_array_equal(by_array["weights"], kept)
    assert len(x) == 58
    assert float(model.loss.tau) == 0.25


def test_columns_that_describe_the_sampling_are_no_predictors(frame, calls):
    columns = {"weights": "weight", "strata": "stratum", "cluster": "site"}
    data = frame.drop(columns=["group"])
    data["site"] = data["site"] // 2 * 2 + data["stratum"]
    _, _, options = fit_recorded(calls, "y ~ .", data, missing="drop", **columns)
    assert options["names"] == ["intercept", "x"]
    bootstrap = options["bootstrap"]
    assert isinstance(bootstrap, cb.bootstrap.Cluster)
    assert bootstrap.sizes == (5, 5)
    assert bootstrap.n_replicates == 2000
    _, _, options = fit_recorded(calls, "y ~ x", data, missing="drop", strata="stratum", bootstrap=50)
    assert isinstance(options["bootstrap"], cb.bootstrap.Stratified)


def test_loss_is_a_name_or_an_object(frame, calls):
    model, _, _ = fit_recorded(calls, "y ~ x", frame, loss=cb.losses.Expectile(0.3), missing="drop")
    assert float(model.loss.tau) == pytest.approx(0.3)
    model, (_, y), _ = fit_recorded(calls, "I(group == 'a') ~ x", frame, loss="logistic", missing="drop")
    assert isinstance(model.loss, cb.losses.Logistic)
    assert set(y) == {-1, 1}


def test_prior_replaces_the_default(frame, calls):
    prior = cb.priors.Laplace(scale=3.0)
    model, _, _ = fit_recorded(calls, "y ~ x", frame, missing="drop", prior=prior)
    assert model.prior.scale == 3.0


def test_polars_frames_are_accepted(frame, calls):
    polars = pytest.importorskip("polars")
    pytest.importorskip("pyarrow")
    _, (x, _), _ = fit_recorded(calls, "y ~ x", polars.from_pandas(frame), missing="drop")
    assert x.shape == (58, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"formula": "y ~ x"}, r"2 of 60 rows have missing values, in x \(2\)\. Drop these rows with missing=\"drop\""),
        ({"missing": "ignore"}, r"missing must be \"drop\" or \"raise\"; got 'ignore'"),
        ({"formula": "y ~ z"}, "there is no column 'z'"),
        ({"formula": "y ~ eval('1')"}, "formula: eval.* is not allowed.*allow_python=True"),
        ({"loss": "cubic"}, "loss must be one of quantile"),
        ({"loss": abs}, r"calibayes\.losses\.Linear\(fn\) makes a loss of a function"),
        ({"cluster": pd.Series([1, 2])}, "cluster must be the name of a column of frame; got "),
        ({"loss": "squared", "tau": 0.3}, "tau is for the losses quantile and expectile; the loss is squared"),
        ({"loss": cb.losses.Absolute(), "tau": 0.3}, "tau and delta are for losses by name"),
        ({"formula": "group ~ weight"}, r"the target 'group' must be numeric.*loss=\"logistic\""),
        (
            {"formula": "group ~ weight", "loss": "logistic"},
            "two classes for this loss; it has 3: .*use formula",
        ),
        ({"formula": "stratum ~ weight", "loss": "hinge", "positive": "7"}, "^positive must be a class of 'stratum'"),
        ({"formula": "y ~ stratum", "weights": "group"}, "weights: column 'group' is not numeric"),
        ({"formula": "y ~ stratum", "weights": [1.0, 2.0]}, "weights must hold one number for each of 60 rows; got 2"),
        (
            {"formula": "y ~ weight", "cluster": "site", "bootstrap": cb.bootstrap.Bayesian(50)},
            "a number of",
        ),
        ({"frame": [[1.0]]}, "frame must be a pandas or polars data frame, or a file; got list"),
    ],
    ids=str,
)
def test_invalid_arguments_are_named_as_in_python(frame, arguments, message):
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        cb.fit(**{"formula": "y ~ weight", "frame": frame} | arguments)
    assert "--" not in str(caught.value)


def test_unknown_arguments_are_named(frame):
    with pytest.raises(TypeError, match=r"fit has no argument 'weigths'\. Did you mean weights\?"):
        cb.fit("y ~ weight", frame, weigths="w")
    with pytest.raises(TypeError, match="fit has no argument 'names'"):
        cb.fit("y ~ weight", frame, names=["a"])


def test_file_and_data_frame_give_the_same_model(frame, tmp_path, monkeypatch):
    calls = []

    def record(self, loss, columns, y, **options):
        calls.append((columns, y, options))
        raise RuntimeError

    monkeypatch.setattr(Design, "calibrate", record)
    path = tmp_path / "table.csv"
    frame.to_csv(path, index=False)
    for table in (frame, path, str(path)):
        with pytest.raises(RuntimeError):
            cb.fit("y ~ weight", table, block=5, bootstrap=50)
    for columns, y, options in calls[1:]:
        np.testing.assert_allclose(columns, calls[0][0])
        np.testing.assert_allclose(y, calls[0][1])
        assert options["about"]["file"] == "table.csv"
        assert options["bootstrap"] == cb.bootstrap.Block(50, 5)
    assert calls[0][2]["about"]["file"] is None
    assert f'cb.fit("y ~ weight", "{path}", block=5, bootstrap=50)' in calls[2][2]["call"]
