"""The README's code runs, and shows what it says."""

import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import calibayes as cb
from calibayes.cli import app

README = (Path(__file__).parents[1] / "README.md").read_text()


@pytest.fixture(scope="module")
def ran():
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    scope = {}
    results = []
    for block in blocks:
        exec(block, scope)
        results.append(scope["result"])
    return results


def test_first_example_gives_the_printed_result(ran):
    """Eta to within 3 of its standard errors: another JAX may draw or round otherwise."""
    eta, error = map(float, re.search(r"learning rate +([\d.]+) \(standard error ([\d.]+)\)", README).groups())
    assert abs(ran[0].eta - eta) < 3 * error
    assert ran[0].converged
    printed = re.findall(r"^(intercept|slope) +(\S+) +(\S+)", README, re.MULTILINE)
    for (name, mean, sd), column in zip(printed, ran[0].draws.T, strict=True):
        assert name in ran[0].names
        assert abs(column.mean() - float(mean)) < 0.3 * float(sd)


def test_commands_run(tmp_path, monkeypatch):
    """On a table of the README's own data, from which the first column, the intercept, is left out."""
    monkeypatch.chdir(tmp_path)
    x, y = cb.datasets.median_regression(n=100, seed=0)
    pd.DataFrame({"x": x[:, 1], "y": y}).to_csv("data.csv", index=False)
    commands = [line for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]
    assert commands
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "calibayes"
        outcome = CliRunner().invoke(app, arguments)
        assert outcome.exit_code == 0, outcome.output
        assert re.search(r"^ *x +0\.9", outcome.output, re.MULTILINE)
    assert "<html" in (tmp_path / "report.html").read_text()


def test_own_loss(ran):
    own = ran[-1]
    assert own.converged
    assert f"result.draws  # {own.draws.shape} equally weighted draws" in README
    assert np.abs(own.draws.mean(0) - [1, 2]).max() < 0.6
    assert own.curve.coverage(0.9).shape == own.curve.etas.shape
