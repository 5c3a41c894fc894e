"""A table as people have it, checked: what is predicted, from which columns, and what is missing.

Every error names the columns it is about and the way out, in the words of the command line.
"""

import csv
import gzip
import re
import shlex
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from calibayes._backend.memory import host_memory, require_memory

SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
_NAMED = 12
"""Columns that an error lists, at most: the first, and the last, which are often the targets."""
_PASTED = 8
"""Columns that an error writes down to be pasted, at most."""
_TIGHTEST = 1032
"""Bytes that gzip packs into one, at most."""


@dataclass(frozen=True)
class Selection:
    """The part of a table that a model is about."""

    target: str
    y: Any
    """A pandas series, as it was read: numbers or labels."""
    names: list[str]
    columns: Float[np.ndarray, "N P"]
    intercept: bool
    groups: Any
    """A label of each row's cluster, or None."""
    notes: list[str]
    """What was left out, in words."""


def read_table(path: Path, missing: Sequence[str] = ()) -> Any:
    """A data frame from a file, by its suffix, without a first column that only names the rows.

    `missing` are texts that stand for a missing value, besides NA.
    """
    pandas = _pandas()
    suffix = _suffix(path)
    try:
        require_memory(path.name, _size(path, suffix), "the table", "Take fewer rows or columns of it.")
        if suffix == ".parquet":
            frame = pandas.read_parquet(path)
        else:
            separator = _separator(path, suffix)
            frame = pandas.read_csv(
                path, sep=separator, na_values=list(missing), encoding="utf-8-sig", skipinitialspace=True
            )
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is not UTF-8 text: save it as UTF-8.") from None
    except MemoryError:
        raise ValueError(f"{path.name} takes more memory than there is: take fewer rows or columns of it.") from None
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path.name} cannot be read as {suffix[1:]}: {error}") from None
    frame.columns = [str(name) for name in frame.columns]
    if frame.empty:
        raise ValueError(f"{path.name} has no rows.")
    first = frame.columns[0]
    return frame.drop(columns=first) if first == "Unnamed: 0" and _names_rows(frame[first]) else frame


def read_header(path: Path) -> list[str]:
    """The names of a file's columns, without reading the rest of it."""
    suffix = _suffix(path)
    if suffix == ".parquet":
        from pyarrow import parquet

        return list(parquet.read_schema(path).names)
    separator = _separator(path, suffix)
    return next(csv.reader([_first_line(path)], delimiter=separator, skipinitialspace=True), [])


def select_columns(
    frame: Any,
    target: str | None,
    *,
    columns: str | None = None,
    formula: str | None = None,
    intercept: bool = True,
    cluster: str | None = None,
    drop_missing: bool = False,
) -> Selection:
    """The target and the columns it is predicted from: those of the formula, those named, or all the others."""
    if formula is not None:
        if columns is not None:
            raise ValueError("--columns and --formula both say what to predict from: give one of them.")
        if not intercept:
            raise ValueError('--no-intercept is for tables without --formula; in a formula write "y ~ 0 + a".')
    for name in (target, cluster):
        if name is not None:
            require_columns(frame, [name])
    if formula is not None:
        from calibayes.cli.formulas import by_formula

        return by_formula(frame, target, formula, cluster, drop_missing)
    if target is None:
        raise ValueError(f"--target says which column to predict: one of {_list(frame.columns)}.")
    return _by_columns(frame, target, columns, intercept, cluster, drop_missing)


def _by_columns(
    frame: Any, target: str, columns: str | None, intercept: bool, cluster: str | None, drop_missing: bool
) -> Selection:
    if columns is not None:
        names = [name.strip() for name in next(csv.reader([columns], skipinitialspace=True), [])]
        require_columns(frame, names)
        if target in names:
            raise ValueError(f"--columns holds the target {target!r}: it cannot be predicted from itself.")
    else:
        names = [name for name in frame.columns if name not in (target, cluster)]
    _require_numbers(frame, target, names)
    frame, dropped = complete(frame, [target, *names, *([cluster] if cluster else [])], drop_missing)
    values = frame[names].to_numpy(float).reshape(len(frame), len(names))
    names, values, constant = varying(names, values, intercept)
    groups = None if cluster is None else frame[cluster]
    return Selection(target, frame[target], names, values, intercept, groups, dropped + constant)


def complete(frame: Any, names: Iterable[str], drop_missing: bool) -> tuple[Any, list[str]]:
    """Rows without missing values in the columns that are used; an error if they may not be dropped."""
    gaps = frame[list(dict.fromkeys(names))].isna()
    counts = {name: int(n) for name, n in gaps.sum().items() if n}
    if not counts:
        return frame, []
    rows = int(gaps.any(axis=1).sum())
    told = _list([f"{name} ({n})" for name, n in counts.items()])
    if not drop_missing:
        raise ValueError(
            f"{rows} of {len(frame)} rows have missing values, in {told}. Leave those rows out with --drop-missing, "
            "or impute them first."
        )
    if rows > len(frame) - 2:
        raise ValueError(
            f"--drop-missing leaves {len(frame) - rows} of {len(frame)} rows; values are missing in {told}."
        )
    return frame[~gaps.any(axis=1)], [f"left out: {rows} of {len(frame)} rows, with missing values in {told}"]


def varying(
    names: list[str], values: Float[np.ndarray, "N P"], intercept: bool
) -> tuple[list[str], Float[np.ndarray, "N Q"], list[str]]:
    """The columns that say something: finite, and not one value throughout, which is the intercept's."""
    bad = ~np.isfinite(values)
    if bad.any():
        told = _list([f"{name} ({n})" for name, n in zip(names, bad.sum(0), strict=True) if n])
        raise ValueError(f"values must be finite numbers; rows where they are not: {told}.")
    keep = np.ptp(values, axis=0) > 0 if intercept else np.abs(values).max(0, initial=0) > 0
    constant = [name for name, kept in zip(names, keep, strict=True) if not kept]
    if not (intercept or keep.any()):
        raise ValueError("nothing to predict from: no intercept and no column.")
    notes = [f"left out: {_list(constant)}, the same in every row"] if constant else []
    return [name for name, kept in zip(names, keep, strict=True) if kept], values[:, keep], notes


def numeric_target(y: Any, name: str) -> Float[np.ndarray, " N"]:
    """The target of a loss of `y - prediction`."""
    if not _is_number(y):
        raise ValueError(
            f"the target {name!r} is not numbers but such as {', '.join(map(repr, _texts(y)[0][:2]))}. For two classes "
            "use --loss logistic or --loss hinge."
        )
    values = y.to_numpy(float)
    if not np.isfinite(values).all():
        raise ValueError(f"the target {name!r} is infinite in {int((~np.isfinite(values)).sum())} rows.")
    if np.ptp(values) == 0:
        raise ValueError(f"the target {name!r} is {values[0]:g} in every row.")
    return values


def class_target(y: Any, name: str, positive: str | None) -> tuple[Float[np.ndarray, " N"], list[str]]:
    """The target of a loss of two classes, -1 or 1, and what those two are called.

    The larger label is 1 unless told: 1 of 0 and 1, True of False and True, the later in the alphabet.
    """
    values = list(y.unique())
    try:
        values = sorted(values)
    except TypeError:
        values = sorted(values, key=str)
    called = [_label(value) for value in values]
    if len(values) < 2:
        raise ValueError(f"the target {name!r} must have two classes; it is {called[0]} in every row.")
    if len(values) > 2:
        raise ValueError(
            f"the target {name!r} must have two classes for this loss; it has {len(values)}: {_list(called)}. One "
            f'against the others: --formula "I({_ticked(name)} == {_code(values[-1])}) ~ .".'
        )
    if positive is None:
        positive = called[1]
    if positive not in called:
        raise ValueError(f"--positive must be a class of {name!r}, {called[0]} or {called[1]}; got {positive}.")
    which = called.index(positive)
    return np.where((y == values[which]).to_numpy(bool), 1.0, -1.0), [called[1 - which], positive]


def require_columns(frame: Any, names: Iterable[str]) -> None:
    for name in names:
        if name in frame.columns:
            continue
        lower = {column.lower(): column for column in frame.columns}
        close = [lower[match] for match in get_close_matches(name.lower(), lower, n=3)]
        hint = f"Did you mean {' or '.join(map(repr, close))}?" if close else f"There are {_list(frame.columns)}."
        raise ValueError(f"there is no column {name!r}. {hint}")


def _require_numbers(frame: Any, target: str, names: Sequence[str]) -> None:
    text = {name: _texts(frame[name]) for name in names if not _is_number(frame[name])}
    for name, (signs, numbers) in text.items():
        if numbers and len(signs) == 1:
            raise ValueError(
                f"{name} would be numbers, but for {signs[0]!r}. If that is a missing value: "
                f"--na {shlex.quote(signs[0])}."
            )
    if not text:
        return
    rest = [name for name in names if name not in text]
    told = _list([f"{name} (such as {', '.join(map(repr, some[:2]))})" for name, (some, _) in text.items()])
    kept = f" {shlex.quote(','.join(rest))}" if 0 < len(rest) <= _PASTED else ""
    coded = " + ".join([*map(_ticked, rest[:1]), f"C({_ticked(next(iter(text)))})"])
    raise ValueError(
        f"these columns are not numbers: {told}. Leave them out with --columns{kept}, or encode them, as in "
        f"--formula {shlex.quote(f'{_ticked(target)} ~ {coded}')}."
    )


def _is_number(column: Any) -> bool:
    return column.dtype.kind in "biuf" if hasattr(column.dtype, "kind") else False


def _names_rows(column: Any) -> bool:
    """Whether a column without a name is what pandas and R write before the first: numbers or names of the rows."""
    if _is_number(column):
        return bool((np.diff(column.to_numpy(float)) == 1).all())
    return bool(column.is_unique)


def _texts(column: Any) -> tuple[list[str], bool]:
    """The texts of a column that are no numbers, and whether there are others that are."""
    values = [str(value) for value in column.dropna().unique()]
    texts = [value for value in values if not re.fullmatch(r"\s*[-+]?[\d.]+(e[-+]?\d+)?\s*", value, re.IGNORECASE)]
    return texts or values, 0 < len(texts) < len(values)


def _label(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _code(value: Any) -> str:
    return repr(value) if isinstance(value, str) else _label(value)


def _ticked(name: str) -> str:
    """As a formula writes a name that is no Python name."""
    return name if name.isidentifier() else f"`{name}`"


def _list(names: Iterable[str]) -> str:
    names = list(names)
    if len(names) > _NAMED:
        names = [*names[: _NAMED - 2], f"... ({len(names)} in all) ...", *names[-2:]]
    return ", ".join(names)


def _suffix(path: Path) -> str:
    for suffix in SUFFIXES:
        if path.name.lower().endswith(suffix):
            return suffix
    raise ValueError(f"{path.name} must end in one of {', '.join(SUFFIXES)}.")


def _size(path: Path, suffix: str) -> int:
    """Bytes that a table takes at least: a number its eight, a text those of the file."""
    if suffix == ".parquet":
        from pyarrow import parquet

        known = parquet.read_metadata(path)
        return 8 * known.num_rows * known.num_columns
    packed = path.stat().st_size
    available = host_memory()
    if not suffix.endswith(".gz") or available is None or _TIGHTEST * packed < available:
        return packed
    unpacked = 0
    with gzip.open(path) as file:
        while unpacked <= available and (part := file.read(2**24)):
            unpacked += len(part)
    return unpacked


def _separator(path: Path, suffix: str) -> str:
    """Of a text file: a tab if it says so; else whichever of a comma, a semicolon and a tab its header has most of."""
    return "\t" if suffix.startswith(".tsv") else max(",;\t", key=_first_line(path).count)


def _first_line(path: Path) -> str:
    opened: Any = gzip.open if path.name.lower().endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8-sig") as file:
        return file.readline()


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise ImportError("reading a table needs pandas: pip install 'calibayes[tables]'.") from error
    return pandas
