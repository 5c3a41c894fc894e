"""Compressed results of the study of methods: one line of JSON per data set, from which an interrupted study continues.

Every line is a gzip member of its own, so that a line that was cut short does not damage the others. `compact` rewrites
the file as one member, which is several times smaller.
"""

import gzip
import json
import math
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ALL = "all"
"""In place of a sampler and of regions: one record holds all of them."""
_DIGITS = 6
"""Significant digits of stored numbers."""


@dataclass(frozen=True)
class Outcome:
    """One method on one data set.

    Attributes
    ----------
    eta : float
        Learning rate of the joint set; NaN for Wald sets, and if the method failed.
    level : float
        Smallest level at which the joint set contains the true parameter; infinite if the method failed.
    intervals : list of (float, float)
        Interval of every parameter; empty if the method failed.
    status : str
        Status, or the error message.
    seconds : float
        Seconds in addition to the methods before it.
    """

    eta: float
    level: float
    intervals: list[tuple[float, float]]
    status: str
    seconds: float


@dataclass(frozen=True)
class Record:
    """All methods on one data set.

    Attributes
    ----------
    problem : str
        Name of the problem.
    n : int
        Number of observations.
    dataset : int
        Number of the data set: the seed of the data, of the bootstrap counts and of the sampler.
    methods : dict
        Outcomes by the name of the method.
    machine : str
        Processor and versions.
    """

    problem: str
    n: int
    dataset: int
    methods: dict[str, Outcome]
    machine: str

    @property
    def key(self) -> tuple[str, int, int, str, str]:
        """What identifies a data set in a file."""
        return (self.problem, self.n, self.dataset, ALL, ALL)


class RecordStore:
    """The records of one file. Added records are on disk when `add` returns."""

    def __init__(self, path: Path):
        self.path = path
        self._records: dict[tuple[str, int, int, str, str], Record] = {}
        self._size = 0
        if path.exists():
            text, self._size = _read_members(path.read_bytes())
            for line in text.splitlines():
                record = _parse(path, line)
                self._records.setdefault(record.key, record)

    @property
    def lines(self) -> list[Record]:
        """All records, in the order of the file."""
        return list(self._records.values())

    def __contains__(self, key: tuple[str, int, int, str, str]) -> bool:
        return key in self._records

    def add(self, records: Iterable[Record]) -> None:
        """Append the records whose keys are not in the file yet."""
        new = {record.key: record for record in records if record.key not in self._records}
        member = gzip.compress("".join(map(_format, new.values())).encode(), mtime=0)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            # After the last complete member.
            file.truncate(self._size)
            file.seek(self._size)
            file.write(member)
        self._size += len(member)
        self._records |= new

    def compact(self) -> None:
        """Replace the file by one of a single member, sorted by problem, size and data set."""
        ordered = sorted(self._records.values(), key=lambda record: record.key)
        member = gzip.compress("".join(map(_format, ordered)).encode(), mtime=0)
        part = self.path.with_suffix(".part")
        part.write_bytes(member)
        os.replace(part, self.path)
        self._size = len(member)


def _read_members(content: bytes) -> tuple[str, int]:
    """Return the text of all complete gzip members, and their size in bytes."""
    text, end = b"", 0
    for member, size in _members(content):
        text, end = text + member, end + size
    return text.decode(), end


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
    return json.dumps(_rounded(asdict(record)), separators=(",", ":")) + "\n"


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
                float(outcome["eta"]),
                float(outcome["level"]),
                [(float(low), float(high)) for low, high in outcome["intervals"]],
                outcome["status"],
                float(outcome["seconds"]),
            )
            for name, outcome in content["methods"].items()
        }
        return Record(content["problem"], content["n"], content["dataset"], methods, content["machine"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is not a results file of this study ({error!r}). Move it away, or pass another file as --out."
        ) from None
