"""Results of a study: a CSV file with one line per calibration, from which an interrupted study continues."""

import csv
import io
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from studies.textfile import TextFile

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
    """The lines of one file, compressed if its name ends with `.gz`. Added lines are on disk when `add` returns."""

    def __init__(self, path: Path):
        self.path = path
        self._file = TextFile(path)
        self._lines: dict[Key, Line] = {}
        for row in csv.DictReader(self._file.read().splitlines()):
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
        has_header = bool(self._lines) or bool(self._file.read())
        self._file.append(_text(new.values()) if has_header else _HEADER + _text(new.values()))
        self._lines |= new

    def compact(self) -> None:
        """Rewrite the file sorted by key, which makes a compressed file several times smaller."""
        self._file.replace(_HEADER + _text(sorted(self._lines.values(), key=lambda line: line.key)))


_HEADER = ",".join(_FIELDS) + "\n"


def _text(lines: Iterable[Line]) -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(_FIELDS), lineterminator="\n")
    writer.writerows({name: _format(value) for name, value in asdict(line).items()} for line in lines)
    return buffer.getvalue()


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
