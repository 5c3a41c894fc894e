"""The commands `version` and `demo`, and the cache of compiled programs."""

import re

import pytest
from typer.testing import CliRunner

import calibayes as cb
from calibayes.cli import app


@pytest.mark.parametrize("argument", ["version", "--version"])
def test_version(argument):
    result = CliRunner().invoke(app, [argument])
    assert result.exit_code == 0
    assert result.output.strip() == cb.__version__


@pytest.mark.parametrize("command", [["--help"], ["demo", "--help"]])
def test_help(command):
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0
    assert "demo" in result.output


def test_help_lists_the_commands():
    output = CliRunner().invoke(app, ["--help"]).output
    assert re.findall(r"^│ (\w+) ", output, re.MULTILINE) == ["fit", "report", "demo", "version"]


def test_demo_compares_uncalibrated_and_calibrated(tmp_path):
    report = tmp_path / "report.html"
    result = CliRunner().invoke(app, ["demo", "--report", str(report)], env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    for word in ("learning rate", "standard error", "coverage", "uncalibrated", "calibrated", "intercept", "slope"):
        assert word in result.output
    assert "<html" in report.read_text()
    rates = [float(v) for v in re.findall(r"│ (?:uncalibrated|calibrated) *│ *([\d.]+) *│", result.output)]
    assert rates[0] == 1.0
    assert 0.5 < rates[1] < 10
    # Intervals before learning rates.
    assert result.output.index("slope") < result.output.index("learning rate ┃")
    # Two shares of 2,000 replicates, those of eta and the new ones, have an error of 0.005 each: this is four of both.
    coverage = float(re.search(r"new replicates: ([\d.]+)", result.output)[1])
    assert abs(coverage - 0.95) < 0.03


def test_demo_rejects_too_few_observations():
    assert CliRunner().invoke(app, ["demo", "--n", "1"]).exit_code == 2
