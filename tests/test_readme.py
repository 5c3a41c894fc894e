"""The README's code runs, and shows what it says."""

import re
from pathlib import Path

import numpy as np
import pytest

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


def test_own_loss(ran):
    own = ran[-1]
    assert own.converged
    assert f"result.draws  # {own.draws.shape} equally weighted draws" in README
    assert np.abs(own.draws.mean(0) - [1, 2]).max() < 0.6
    assert own.curve.coverage(0.9).shape == own.curve.etas.shape
