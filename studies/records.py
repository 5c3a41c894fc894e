"""Compressed results of studies that compare methods: one line of JSON per data set.

An interrupted study continues from the lines that are stored.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from studies.textfile import TextFile

ALL = "all"
"""In place of regions: one record holds all of them."""
_DIGITS = 5
"""Significant digits of stored numbers."""
Key = tuple[str, int, int, str, str]


class Outcome(NamedTuple):
    """One method on one data set.

    Attributes
    ----------
    eta : float
        Learning rate; NaN for a method without one, and if the method failed.
    level : float
        Smallest level at which the set contains the true parameter; NaN if it is not known, infinite if the method
        failed.
    intervals : list of (float, float)
        Interval of every parameter of interest; empty if the method failed.
    status : str
        Status, or the error message.
    seconds : float
        Processor seconds in addition to the methods before it; NaN if they were not measured.
    """

    eta: float
    level: float
    intervals: list[tuple[float, float]]
    status: str
    seconds: float


def failure(reason: str, seconds: float) -> Outcome:
    """Return the outcome of a method without a set."""
    return Outcome(math.nan, math.inf, [], reason, seconds)


def proportion_se(share: float, number: int) -> float:
    """Return the standard error of a share of `number` trials, with two successes and two failures added.

    Without these (Agresti and Coull 1998) a share of one would have no error.
    """
    total = number + 4
    adjusted = (share * number + 2) / total
    return math.sqrt(adjusted * (1 - adjusted) / total)


@dataclass(frozen=True)
class Record:
    """The methods of one program on one data set.

    Attributes
    ----------
    problem : str
        Name of the problem: loss and design, separated by a comma.
    n : int
        Number of observations.
    dataset : int
        Number of the data set: the seed of the data, of the bootstrap counts and of the sampler.
    source : str
        Program that computed the record.
    methods : dict
        Outcomes by the name of the method.
    machine : str
        Processor and versions.
    """

    problem: str
    n: int
    dataset: int
    source: str
    methods: dict[str, Outcome]
    machine: str

    @property
    def key(self) -> Key:
        """What identifies a record."""
        return (self.problem, self.n, self.dataset, self.source, ALL)

    @property
    def file_name(self) -> str:
        """Name of the file of the record within the folder: one file per loss, size and program."""
        return f"{self.problem.split(',')[0].replace(' ', '-')}_{self.n}_{self.source}.jsonl.gz"


class RecordFolder:
    """The records of a folder, one file per loss, size and program. Added records are on disk when `add` returns."""

    def __init__(self, path: Path):
        self.path = path
        self._files = {file.name: RecordFile(file) for file in sorted(path.glob("*.jsonl.gz"))}

    @property
    def lines(self) -> list[Record]:
        """All records, in the order of the files."""
        return [record for file in self._files.values() for record in file.records.values()]

    def __contains__(self, key: Key) -> bool:
        return any(key in file.records for file in self._files.values())

    def add(self, records: Iterable[Record]) -> None:
        """Append the records whose keys are not in the folder yet."""
        for record in records:
            name = record.file_name
            if name not in self._files:
                self._files[name] = RecordFile(self.path / name)
            self._files[name].add(record)

    def compact(self) -> None:
        """Rewrite all files as one member each."""
        for file in self._files.values():
            file.compact()


class RecordFile:
    """The records of one file."""

    def __init__(self, path: Path):
        self._file = TextFile(path)
        self.records: dict[Key, Record] = {}
        for line in self._file.read().splitlines():
            record = _parse(path, line)
            self.records.setdefault(record.key, record)

    def add(self, record: Record) -> None:
        """Append a record if its key is not in the file yet."""
        if record.key not in self.records:
            self._file.append(_format(record))
            self.records[record.key] = record

    def compact(self) -> None:
        """Replace the file by one of a single member, sorted by problem, size and data set."""
        ordered = sorted(self.records.values(), key=lambda record: record.key)
        self._file.replace("".join(map(_format, ordered)))


def _format(record: Record) -> str:
    return json.dumps(_rounded(vars(record)), separators=(",", ":")) + "\n"


def _rounded(value: Any) -> Any:
    """Return a value with rounded numbers; those that are not finite become text, because JSON does not have them."""
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(part) for part in value]
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else str(value)
    return value


def _parse(path: Path, line: str) -> Record:
    try:
        content = json.loads(line)
        methods = {
            name: Outcome(
                float(eta), float(level), [(float(low), float(high)) for low, high in intervals], status, float(seconds)
            )
            for name, (eta, level, intervals, status, seconds) in content["methods"].items()
        }
        return Record(**content | {"methods": methods})
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is not a results file of this study ({error!r}). Move it away, or pass another folder as --out."
        ) from None
