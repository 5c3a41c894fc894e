import re

import pytest
from typer.testing import CliRunner

import calibayes as cb
from calibayes.cli import app


def test_version():
    result = CliRunner().invoke(app, ["version"])
    assert result.exit_code == 0
    assert result.output.strip() == cb.__version__


@pytest.mark.parametrize("command", [["--help"], ["demo", "--help"]])
def test_help(command):
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0
    assert "demo" in result.output


def test_demo_prints_before_and_after():
    result = CliRunner().invoke(app, ["demo", "--n", "40"], env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    for word in ("learning rate", "standard error", "coverage", "before", "calibrated", "intercept", "slope"):
        assert word in result.output
    rates = [float(v) for v in re.findall(r"(?:before|calibrated) *│ *([\d.]+)", result.output)]
    assert rates[0] == 1.0
    assert 0.5 < rates[1] < 10
    # Two shares of 2,000 rows, eta's own and the fresh ones', each with an error of 0.005: this is four of both.
    fresh = float(re.search(r"fresh bootstrap samples the calibrated sets cover ([\d.]+)", result.output)[1])
    assert abs(fresh - 0.95) < 0.03


def test_demo_refuses_too_few_observations():
    assert CliRunner().invoke(app, ["demo", "--n", "1"]).exit_code == 2
