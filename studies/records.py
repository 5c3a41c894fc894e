"""Compressed results of the head-to-head: one line of JSON per data set, from which an interrupted study continues.

Every line is a gzip member of its own, so that a line that was cut short does not damage the others. `compact` rewrites
a file as one member, which is several times smaller.
"""

import gzip
import json
import math
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

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
        self.path = path
        self.records: dict[Key, Record] = {}
        self._size = 0
        if path.exists():
            text, self._size = _read_members(path.read_bytes())
            for line in text.splitlines():
                record = _parse(path, line)
                self.records.setdefault(record.key, record)

    def add(self, record: Record) -> None:
        """Append a record if its key is not in the file yet."""
        if record.key in self.records:
            return
        member = gzip.compress(_format(record).encode(), mtime=0)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            # After the last complete member.
            file.truncate(self._size)
            file.seek(self._size)
            file.write(member)
        self._size += len(member)
        self.records[record.key] = record

    def compact(self) -> None:
        """Replace the file by one of a single member, sorted by problem, size and data set."""
        ordered = sorted(self.records.values(), key=lambda record: record.key)
        member = gzip.compress("".join(map(_format, ordered)).encode(), mtime=0)
        part = self.path.with_suffix(".part")
        part.write_bytes(member)
        os.replace(part, self.path)
        self._size = len(member)


def _read_members(content: bytes) -> tuple[str, int]:
    """Return the text of all complete gzip members, and their size in bytes."""
    text, end = [], 0
    for member, size in _members(content):
        text.append(member)
        end += size
    return b"".join(text).decode(), end


def _members(content: bytes) -> Iterator[tuple[bytes, int]]:
    while content:
        decompressor = zlib.decompressobj(wbits=31)
        try:
            text = decompressor.decompress(content)
        except zlib.error:
            return
        if not decompressor.eof:
            return
        yield text, len(content) - len(decompressor.unused_data)
        content = decompressor.unused_data


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
        return Record(*(content[name] for name in ("problem", "n", "dataset", "source")), methods, content["machine"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is not a results file of the head-to-head ({error!r}). Move it away, or pass another folder as --out."
        ) from None
