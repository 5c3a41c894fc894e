"""Results of a study: a CSV file with one line per calibration, from which an interrupted study continues."""

import csv
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

Key = tuple[str, int, int, str, str]


@dataclass(frozen=True)
class Line:
    """One calibration.

    Attributes
    ----------
    problem : str
        Name of the problem.
    n : int
        Number of observations.
    dataset : int
        Number of the data set: the seed of the data, of the bootstrap counts and of the sampler.
    sampler : str
        Sampler, or the method it is compared with.
    region : str
        Credible region.
    eta, eta_se : float
        Calibrated learning rate and its standard error.
    truth_level : float
        Smallest credible level at which the calibrated set contains the true parameter; infinite if the calibration
        gave no set, NaN if the true parameter is not known.
    iterations : int
        Number of iterations of the search.
    converged : bool
        Whether the calibration converged.
    seconds : float
        Wall-clock time.
    timing : str
        How `seconds` was measured: `cold` if anything was compiled meanwhile, `warm` if not, `shared` if the machine
        did other work at the same time, `requery` if the calibration continued from that of another region, `failed` if
        it raised an error, empty if nothing was calibrated.
    note : str
        Message of a calibration that did not converge or issued diagnostics.
    machine : str
        Processor and versions.
    """

    problem: str
    n: int
    dataset: int
    sampler: str
    region: str
    eta: float
    eta_se: float
    truth_level: float
    iterations: int
    converged: bool
    seconds: float
    timing: str
    note: str
    machine: str

    @property
    def key(self) -> Key:
        """What identifies a calibration in a file."""
        return (self.problem, self.n, self.dataset, self.sampler, self.region)

    @property
    def covered(self) -> float:
        """1.0 if the 95% set contains the true parameter, 0.0 if not, NaN if that is not known."""
        return math.nan if math.isnan(self.truth_level) else float(self.truth_level <= 0.95)


_PARSERS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": lambda text: text == "True",
}
_FIELDS = {field.name: _PARSERS[getattr(field.type, "__name__", str(field.type))] for field in fields(Line)}


class Store:
    """The lines of one file. Added lines are on disk when `add` returns."""

    def __init__(self, path: Path):
        self.path = path
        self._lines: dict[Key, Line] = {}
        if path.exists():
            for row in csv.DictReader(_complete_lines(path).splitlines()):
                line = _parse(path, row)
                self._lines.setdefault(line.key, line)

    @property
    def lines(self) -> list[Line]:
        """All lines, in the order of the file."""
        return list(self._lines.values())

    def __contains__(self, key: Key) -> bool:
        return key in self._lines

    def add(self, lines: Iterable[Line]) -> None:
        """Append the lines whose keys are not in the file yet."""
        new = {line.key: line for line in lines if line.key not in self._lines}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists() and (complete := _complete_lines(self.path)) != self.path.read_text():
            self.path.write_text(complete)
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, list(_FIELDS), lineterminator="\n")
            if not file.tell():
                writer.writeheader()
            writer.writerows({name: _format(value) for name, value in asdict(line).items()} for line in new.values())
        self._lines |= new


def _complete_lines(path: Path) -> str:
    """Return the content of a file without a last line that was cut short."""
    text = path.read_text()
    return text[: text.rfind("\n") + 1]


def _parse(path: Path, row: dict[str, str]) -> Line:
    try:
        return Line(**{name: parse(row[name]) for name, parse in _FIELDS.items()})
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is not a results file of a study ({error!r}). Move it away, or pass another file as --out."
        ) from None


def _format(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.6g}"
    return value.replace("\n", " ") if isinstance(value, str) else value
