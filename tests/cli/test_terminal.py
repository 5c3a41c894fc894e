"""Names from tables cannot control the terminal: nothing that a command prints contains control characters."""

import json
import shutil
import sys
import unicodedata
import warnings

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import calibayes as cb
import example_results
from calibayes._core.status import Code, Status
from calibayes.cli import app, fit
from calibayes.cli.options import complete_column
from calibayes.design import Design
from calibayes.methods import GPC
from calibayes.result import Intervals

# A change of colour, of the window title and of the cursor in 7 and 8 bits, deleted text, and reordered text.
HOSTILE = "\x1b[31m\x1b]0;title\x07\x9b2J\x08\x7f\u202eb\u2066"
ESCAPED = r"\x1b[31m\x1b]0;title\x07\x9b2J\x08\x7f\u202eb\u2066"
N = 60


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            f"a{HOSTILE}": rng.normal(size=N),
            "c": np.tile(["u", f"v{HOSTILE}", "w"], N // 3),
            f"y{HOSTILE}": rng.normal(size=N),
        }
    )
    path = tmp_path / f"t{HOSTILE}.csv"
    frame.to_csv(path, index=False)
    return path


def make_result(names, **changes):
    n = len(names)
    draws = np.random.default_rng(0).normal(size=(100, n))
    finding = example_results.make_diagnostic(Code.ESS_LOW, message=f"Few particles {HOSTILE}.")
    status = [Status.NO_CROSSING, *[Status.CONVERGED] * (n - 1)]
    bounds = np.tile([0.0, 1.0], (n, 1))
    intervals = Intervals(names, 0.95, bounds, np.ones(n), np.full(n, 0.1), status, [[finding], *[[]] * (n - 1)])
    record = example_results.TraceRecord(1, 0.8, 0.95, 200.0, 150.0, 4, 0.3, 1.5, np.zeros((n, 2)))
    changes = {"names": names, "diagnostics": [finding], "trace": [record], "saved_intervals": intervals} | changes
    return example_results.make_stored_result(draws=draws, estimate=draws.mean(0), **changes)


@pytest.fixture
def calibrated(monkeypatch):
    """Let the command report a result without a calibration."""

    def calibrate(design, loss, columns, y, *, names, call, level, seed, about, **options):
        warnings.warn(f"column {HOSTILE} is odd", cb.CalibrationWarning, stacklevel=1)
        warnings.warn(f"{HOSTILE} takes long", cb.LongRunWarning, stacklevel=1)
        settings = {"call": call, "seed": seed, "level": level, "region": "HPD", "method": GPC(), "shape": None}
        settings |= about | {"n": len(columns)}
        return make_result(design.names(names), settings=settings)

    monkeypatch.setattr(Design, "calibrate", calibrate)


def invoke(*args):
    outcome = CliRunner().invoke(app, [str(arg) for arg in args], env={"COLUMNS": "400"})
    assert isinstance(outcome.exception, SystemExit | None)
    assert_printable(outcome.stdout)
    assert_printable(outcome.stderr)
    return outcome


def assert_printable(text):
    controls = [char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs") and char != "\n"]
    assert not controls


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--target", HOSTILE], f"there is no column '{ESCAPED}'"),
        (["--target", f"y{HOSTILE}"], f"v{ESCAPED}"),
        ([], f"one of a{ESCAPED}"),
        (["--target", "c", "--columns", f"a{HOSTILE}"], f"v{ESCAPED}"),
        (["--target", "c", "--columns", f"a{HOSTILE}", "--loss", "hinge"], f"v{ESCAPED}"),
        (["--formula", f"`y{HOSTILE}` ~ {HOSTILE}"], "there is no column"),
        (["--formula", f"`y{HOSTILE}` ~ `{HOSTILE}`"], f"there is no column '{ESCAPED}'"),
        (["--formula", f"c ~ I('{HOSTILE}'.x)"], "is not allowed"),
        (["--loss", HOSTILE], ESCAPED),
        (["--save", f"{HOSTILE}/r.nc"], f"{ESCAPED}"),
        ([f"--{HOSTILE}"], ""),
        (["--level", HOSTILE], ""),
        (["--checkpoint", f"{HOSTILE}/r", "--target", f"y{HOSTILE}", "--columns", f"a{HOSTILE}"], "does not exist"),
    ],
)
def test_errors_are_printable(options, message, table):
    outcome = invoke("fit", table, *options)
    assert outcome.exit_code == 2
    assert message.replace("\\\\", "\\") in outcome.stderr.replace("\\\\", "\\")


@pytest.mark.parametrize("args", [["fit", HOSTILE], ["report", HOSTILE], [HOSTILE], [f"--{HOSTILE}"]])
def test_errors_of_the_arguments_are_printable(args):
    assert invoke(*args).exit_code == 2


def test_error_about_a_damaged_file_is_printable(tmp_path):
    path = tmp_path / f"{HOSTILE}.nc"
    path.write_bytes(b"")
    assert f"{ESCAPED}.nc cannot be loaded" in invoke("report", path).stderr


@pytest.mark.usefixtures("calibrated")
def test_output_is_printable(table, tmp_path, monkeypatch):
    formula = f"`y{HOSTILE}` ~ `a{HOSTILE}` + C(c)"
    line = ["fit", table, "--formula", formula]
    monkeypatch.setattr(sys, "argv", ["calibayes", *map(str, line)])
    files = ["--report", tmp_path / f"p{HOSTILE}.html", "--save", tmp_path / f"r{HOSTILE}.nc"]
    outcome = invoke(*line, *files)
    assert outcome.exit_code == 1, outcome.output
    for text in (
        f"of y{ESCAPED} on 3 columns",
        f"rows of t{ESCAPED}.csv",
        f"a{ESCAPED} ",
        f"[T.v{ESCAPED}]",
        f"r{ESCAPED}.nc",
    ):
        assert text in outcome.stdout
    assert f"Note: {ESCAPED} takes long" in outcome.stderr
    page = (tmp_path / f"p{HOSTILE}.html").read_text("utf-8")
    assert_printable(page)
    assert f">a{ESCAPED}</th>" in page
    content = invoke(*line, "--json").stdout
    assert json.loads(content)["coefficients"][1]["name"] == f"a{HOSTILE}"
    # The file has the names of the table, and its page does not contain them either.
    shutil.copy(tmp_path / f"r{HOSTILE}.nc", tmp_path / "r.nc")
    assert invoke("report", tmp_path / "r.nc").exit_code == 0
    assert_printable((tmp_path / "r.html").read_text("utf-8"))
    loaded = cb.load(tmp_path / "r.nc")
    assert loaded.names[1] == f"a{HOSTILE}"


def test_summaries_are_printable():
    result = make_result([f"a{HOSTILE}", "b\nc"], status=Status.NO_CROSSING)
    for text in (result.summary(), repr(result), repr(result.saved_intervals)):
        assert_printable(text)
        assert ESCAPED in text
    lines = result.summary().splitlines()
    assert any(line.startswith(r"b\nc ") for line in lines)


def test_null_character_in_a_name_is_stored_as_text(tmp_path):
    loaded = cb.load(make_result(["a\x00b"]).save(tmp_path / "r.nc"))
    assert loaded.names == [r"a\x00b"]


def test_warnings_of_other_libraries_are_printable(monkeypatch, table):
    printed = []

    def read_table(*_):
        printed.append(warnings.formatwarning(f"mixed types in {HOSTILE}", UserWarning, f"{HOSTILE}.py", 1))
        raise ValueError("enough.")

    before = warnings.formatwarning
    monkeypatch.setattr(fit, "read_table", read_table)
    assert "enough." in invoke("fit", table).stderr
    assert_printable(printed[0])
    assert f"mixed types in {ESCAPED}" in printed[0]
    assert warnings.formatwarning is before


def test_completion_leaves_out_names_with_control_characters(tmp_path):
    (tmp_path / "t.csv").write_text(f"{HOSTILE},age,a{HOSTILE}\n1,2,3\n")

    class Context:
        params = {"data": str(tmp_path / "t.csv")}
        args = ()

    assert complete_column(Context(), "") == ["age"]
