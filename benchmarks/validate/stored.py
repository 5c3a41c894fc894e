"""What was found, part by part, in one file; and how p-values are judged by their number."""

import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from studies.runner import machine

PACKAGES = ("calibayes", "jax", "numpy", "equinox", "scipy")
LIMIT = 0.01
"""A part has failed if so small a p-value comes up less often than this among so many."""


class Smallest(NamedTuple):
    """The smallest of some p-values."""

    p: float
    number: int

    @property
    def chance(self) -> float:
        """Of one as small or smaller if nothing is wrong, for independent tests; at most that for others."""
        return 1 - (1 - self.p) ** self.number

    @property
    def passed(self) -> bool:
        return self.chance >= LIMIT


def smallest(lines: Sequence[dict[str, Any]]) -> Smallest:
    return Smallest(min(line["p"] for line in lines), len(lines))


def passed(part: str, lines: Sequence[dict[str, Any]]) -> bool:
    if part == "mutations":
        return all(line["caught"] for line in lines)
    if part == "known":
        return all(line["passed"] for line in lines)
    return smallest(lines).passed


def load(path: Path) -> dict[str, Any]:
    """Parts by name: `lines`, `seconds`, and the machine and versions they were found with."""
    return json.loads(path.read_text()) if path.exists() else {}


def add(path: Path, part: str, lines: Sequence[dict[str, Any]], seconds: float) -> None:
    """Keep a part, in the place of what was found before."""
    parts = load(path)
    versions = {package: version(package) for package in PACKAGES}
    parts[part] = {"machine": machine(), "versions": versions, "seconds": round(seconds), "lines": list(lines)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(parts, indent=1) + "\n")
