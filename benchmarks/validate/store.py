"""Results of the validation, one part after another in a JSON file, and the decision whether a part passed."""

from collections.abc import Sequence
from importlib.metadata import version
from json import loads
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import machine, write_json
from benchmarks.validate.adversarial import run as adversarial

PACKAGES = ("calibayes", "jax", "numpy", "equinox", "scipy")
ALPHA = 0.01
"""A part fails if the probability of so small a minimum of its p-values is below this."""


class SmallestP(NamedTuple):
    """The smallest of several p-values."""

    p: float
    number: int
    """Number of p-values."""

    @property
    def probability(self) -> float:
        """Probability of a minimum this small under the null hypothesis; an upper bound for dependent tests."""
        return 1 - (1 - self.p) ** self.number

    @property
    def passed(self) -> bool:
        return self.probability >= ALPHA


def smallest_p(lines: Sequence[dict[str, Any]]) -> SmallestP:
    return SmallestP(min(line["p"] for line in lines), len(lines))


def passed(part: str, lines: Sequence[dict[str, Any]]) -> bool:
    """Return whether the results of a part are as they should be."""
    if part == "mutants":
        return all(line["noticed_by"] for line in lines)
    if part == adversarial.PART:
        return adversarial.passed(lines)
    if part == "known":
        return all(line["passed"] for line in lines)
    return smallest_p(lines).passed


def load(path: Path) -> dict[str, Any]:
    """Return the stored parts by name, each with `lines`, `seconds`, `machine` and `versions`."""
    return loads(path.read_text()) if path.exists() else {}


def add(path: Path, part: str, lines: Sequence[dict[str, Any]], seconds: float) -> None:
    """Store the results of a part in place of its earlier ones."""
    parts = load(path)
    versions = {package: version(package) for package in PACKAGES}
    parts[part] = {"machine": machine(), "versions": versions, "seconds": round(seconds), "lines": list(lines)}
    write_json(path, parts)
