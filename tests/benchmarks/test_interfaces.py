"""The comparison of the three interfaces finds equal intervals, and notices unequal ones."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import calibayes as cb
from benchmarks import interfaces
from calibayes import estimators
from calibayes.cli import app


def table():
    """Simulate a table with a category, missing values and weights."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=90), "g": rng.choice(["u", "v"], 90), "w": rng.uniform(0.5, 2, 90)})
    frame["y"] = 1 + 2 * frame["x"] + (frame["g"] == "v") + rng.normal(size=90)
    frame.loc[:2, "x"] = np.nan
    return frame


CASE = interfaces.Case(
    "simulated",
    table,
    "y",
    ["x", "g"],
    "quantile",
    estimators.QuantileRegressor,
    categories=["g"],
    weights="w",
)


def run_in_this_process(line, **_):
    """Run the command line without a new process, which would compile everything again."""
    ended = CliRunner().invoke(app, line[3:])
    return SimpleNamespace(returncode=ended.exit_code, stdout=ended.stdout, stderr=ended.stderr)


@pytest.mark.parametrize("in_process", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore::calibayes.CalibrationWarning")
def test_all_interfaces_give_the_same_intervals(tmp_path, monkeypatch, in_process):
    if in_process:
        monkeypatch.setattr(interfaces.subprocess, "run", run_in_this_process)
    intervals, difference, reports_agree, result = interfaces.compare(CASE, tmp_path, bootstrap=100)
    assert difference < interfaces.TOLERANCE
    assert reports_agree
    assert result.settings["n"] == 87
    assert intervals.names == ["intercept", "x", "C(g)[T.v]"]
    assert len(list(tmp_path.glob("*.html"))) == 3


@pytest.mark.filterwarnings("ignore::calibayes.CalibrationWarning")
def test_differences_are_noticed(tmp_path, monkeypatch):
    """An estimator with another seed, and a report without one of the intervals."""
    seeded = replace(CASE, estimator=lambda **options: estimators.QuantileRegressor(random_state=1, **options))

    def command(case, path, bootstrap, report):
        result = interfaces.by_python(case, path, bootstrap)
        result.report(report)
        bounds = [{"low": low, "high": high} for low, high in result.intervals().bounds]
        return {"coefficients": bounds}

    monkeypatch.setattr(interfaces, "by_command", command)
    _, difference, reports_agree, _ = interfaces.compare(seeded, tmp_path, bootstrap=100)
    assert difference > 0.01
    assert not reports_agree


def test_six_tables_are_compared():
    assert len(interfaces.CASES) == 6
    (affairs,) = [case for case in interfaces.CASES if case.weights]
    assert affairs.formula == "rate_marriage ~ age + children + C(job)"
    assert isinstance(cb.losses.from_name(affairs.loss), cb.losses.LinearLoss)
