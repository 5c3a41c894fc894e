"""The code of the README runs and gives the printed results."""

import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import calibayes as cb
from calibayes.cli import app
from calibayes.cli.demo import calibrate_example

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def results():
    """The variable `result` after each block of Python code."""
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    scope = {}
    after_blocks = []
    for block in blocks:
        exec(block, scope)
        after_blocks.append(scope["result"])
    return after_blocks


def printed_numbers(text):
    """Learning rate, its standard error, and the row of each parameter, in printed text."""
    eta, error = map(float, re.search(r"learning rate +([\d.]+) \(standard error ([\d.]+)\)", text).groups())
    rows = re.findall(r"^(intercept|slope) +(\S+) +(\S+) +(\S+) +(\S+) +(\S+)$", text, re.MULTILINE)
    return eta, error, {name: list(map(float, numbers)) for name, *numbers in rows}


def test_first_example_gives_the_printed_result(results):
    """Eta to a tenth of its standard error and intervals to a twentieth of theirs, with every supported version of JAX.

    Random numbers are the same in all versions; only the order of sums differs. The error of the printed digits is
    below this tolerance, too.
    """
    result = results[0]
    eta, error, rows = printed_numbers(README)
    assert result.converged
    assert abs(result.eta - eta) < 0.1 * error
    assert result.eta_se == pytest.approx(error, rel=0.1)
    assert list(rows) == result.names
    for k, (mean, se, low, high, own_eta) in enumerate(rows.values()):
        np.testing.assert_allclose(result.intervals().bounds[k], [low, high], atol=0.05 * se)
        assert abs(result.means[k] - mean) < 0.05 * se
        assert result.bse[result.names[k]] == pytest.approx(se, rel=0.05)
        assert abs(result.intervals().eta[k] - own_eta) < 0.1 * result.intervals().eta_se[k] + 0.005


def test_demo_shows_the_numbers_of_the_first_example(results):
    """It makes the same call."""
    assert calibrate_example().eta == results[0].eta


def test_printed_summary_has_the_layout_of_the_current_one(results):
    """Line by line, with all numbers masked; the number of diagnostics may differ."""
    printed = re.search(r"```text\n(.*?)```", README, re.DOTALL)[1]

    def masked(text):
        lines = [re.sub(r"[\d.]+", "#", " ".join(line.split())) for line in text.strip().splitlines()]
        return [line for line in lines if not line.startswith(("info", "warning"))]

    assert masked(printed) == masked(results[0].summary())


def test_commands_run(tmp_path, monkeypatch):
    """On a table of the README's own data, without the column of ones."""
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


def test_user_defined_loss_gives_the_stated_draws(results):
    own = results[-1]
    assert own.converged
    assert f"result.draws  # {own.draws.shape} equally weighted draws" in README
    assert np.abs(own.draws.mean(0) - [1, 2]).max() < 0.6
    assert own.curve.coverage(0.9).shape == own.curve.etas.shape
