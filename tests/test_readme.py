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

README = (Path(__file__).parents[1] / "README.md").read_text()


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


def test_first_example_gives_the_printed_result(results):
    """Eta to within 3 of its standard errors: another version of JAX may draw or round differently."""
    eta, error = map(float, re.search(r"learning rate +([\d.]+) \(standard error ([\d.]+)\)", README).groups())
    assert abs(results[0].eta - eta) < 3 * error
    assert results[0].converged
    printed = re.findall(r"^(intercept|slope) +(\S+) +(\S+)", README, re.MULTILINE)
    for (name, mean, sd), column in zip(printed, results[0].draws.T, strict=True):
        assert name in results[0].names
        assert abs(column.mean() - float(mean)) < 0.3 * float(sd)


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
