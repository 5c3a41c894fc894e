"""Where a study keeps its results: a CSV file, one line per calibration, from which it goes on if it was stopped."""

import csv
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

Key = tuple[str, int, int, str, str]


@dataclass(frozen=True)
class Line:
    """One calibration."""

    problem: str
    n: int
    dataset: int
    """Its number, which is the seed of the data, of the bootstrap rows and of the sampler."""
    sampler: str
    region: str
    eta: float
    eta_se: float
    truth: float
    """The smallest credible level at which the calibrated set holds the true parameter: infinite if there was no set,
    NaN if nobody knows the truth."""
    iterations: int
    converged: bool
    seconds: float
    how: str
    """`cold` if anything was compiled within these seconds, `warm` if not, `together` if others ran at the same time,
    `busy` if the machine is known to have done other work, `at` if it went on from another region,
    `failed` if it raised, empty if nothing was calibrated."""
    note: str
    """What the calibration warned of."""
    machine: str

    @property
    def key(self) -> Key:
        return (self.problem, self.n, self.dataset, self.sampler, self.region)

    @property
    def covered(self) -> float:
        """Whether the 95% set holds the truth; NaN if that is not known."""
        return math.nan if math.isnan(self.truth) else float(self.truth <= 0.95)


_PARSE: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str, "bool": lambda text: text == "True"}
_FIELDS = {field.name: _PARSE[getattr(field.type, "__name__", str(field.type))] for field in fields(Line)}


class Store:
    """The lines of one file. What is added is on disk before the next calibration begins."""

    def __init__(self, path: Path):
        self.path = path
        self._lines: dict[Key, Line] = {}
        if path.exists():
            for row in csv.DictReader(_whole_lines(path).splitlines()):
                line = _parsed(path, row)
                self._lines.setdefault(line.key, line)

    @property
    def lines(self) -> list[Line]:
        return list(self._lines.values())

    def __contains__(self, key: Key) -> bool:
        return key in self._lines

    def add(self, lines: Iterable[Line]) -> None:
        """Append those that are not there."""
        new = {line.key: line for line in lines if line.key not in self._lines}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists() and (whole := _whole_lines(self.path)) != self.path.read_text():
            self.path.write_text(whole)
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, list(_FIELDS), lineterminator="\n")
            if not file.tell():
                writer.writeheader()
            writer.writerows({name: _shown(value) for name, value in asdict(line).items()} for line in new.values())
        self._lines |= new


def _whole_lines(path: Path) -> str:
    """What is in the file: a line that was cut short is one that was never written."""
    text = path.read_text()
    return text[: text.rfind("\n") + 1]


def _parsed(path: Path, row: dict[str, str]) -> Line:
    try:
        return Line(**{name: parse(row[name]) for name, parse in _FIELDS.items()})
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is not the results file of a study ({error!r}): move it away, or pass --out."
        ) from None


def _shown(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.6g}"
    return value.replace("\n", " ") if isinstance(value, str) else value
