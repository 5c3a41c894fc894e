"""Read a table from a CSV, TSV or Parquet file."""

import csv
import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibayes._backend.memory import host_memory, require_memory

if TYPE_CHECKING:
    from pandas import DataFrame as DataFrame
    from pandas import Series as Series
else:
    # pandas is an optional dependency, so that its types are not available at run time.
    DataFrame = Series = Any

SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
"""Suffixes of the files that can be read."""
NOTES = "calibayes_notes"
"""Entry of the `attrs` of a data frame with sentences about how its file was read."""


def read_table(path: Path, missing: Sequence[str] = ()) -> DataFrame:
    """Read a data frame; an unnamed first column that only numbers or names the rows is dropped.

    Parameters
    ----------
    path : Path
        File with one of the `SUFFIXES`. Text files must be UTF-8 and have a header.
    missing : sequence of str
        Texts that mean a missing value, in addition to those that pandas recognizes, such as NA.

    Returns
    -------
    pandas.DataFrame
        The table; column names are strings. `attrs[NOTES]` are sentences about how the file was read, if there are any.

    Raises
    ------
    ValueError
        If the file cannot be read, has no rows, or does not fit into memory.
    """
    pandas = _import_pandas()
    suffix = _suffix(path)
    try:
        require_memory(path.name, _min_bytes(path, suffix), "the table", "Use fewer rows or columns of it.")
        if suffix == ".parquet":
            frame = pandas.read_parquet(path)
        else:
            separator = _separator(path, suffix)
            options = {"sep": separator, "na_values": list(missing), "encoding": "utf-8-sig"}
            frame = pandas.read_csv(path, skipinitialspace=True, **options)
            if separator != "," and (with_commas := _with_decimal_commas(frame)):
                frame = pandas.read_csv(path, skipinitialspace=True, decimal=",", **options)
                frame.attrs[NOTES] = [f"read the commas in {with_commas} as decimal points"]
            if frame.shape[1] and frame.iloc[:, -1].isna().all():
                _require_no_trailing_separator(path, separator)
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is not UTF-8 text: save it as UTF-8.") from None
    except MemoryError:
        raise ValueError(f"{path.name} does not fit into memory: use fewer rows or columns of it.") from None
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path.name} cannot be read as {suffix[1:]}: {error}") from None
    frame.columns = [str(name) for name in frame.columns]
    if frame.empty:
        raise ValueError(f"{path.name} has no rows.")
    first = frame.columns[0]
    return frame.drop(columns=first) if first == "Unnamed: 0" and _is_row_index(frame[first]) else frame


def read_header(path: Path) -> list[str]:
    """Read the names of the columns of a file, without the rows."""
    suffix = _suffix(path)
    if suffix == ".parquet":
        from pyarrow import parquet

        return list(parquet.read_schema(path).names)
    separator = _separator(path, suffix)
    return next(csv.reader([_first_line(path)], delimiter=separator, skipinitialspace=True), [])


def is_numeric(column: Series) -> bool:
    """Return whether a pandas column has a numeric or boolean type."""
    return column.dtype.kind in "biuf" if hasattr(column.dtype, "kind") else False


def _with_decimal_commas(frame: DataFrame) -> str:
    """Return the names of the columns all of whose values are numbers such as 1,5.

    Raises
    ------
    ValueError
        If all of these values could be thousands, such as 1,500.
    """
    names = [name for name in frame.columns if _all_match(frame[name], r"[-+]?\d+,\d+")]
    if names and all(_all_match(frame[name], r"[-+]?[1-9]\d{0,2},\d{3}") for name in names):
        example = frame[names[0]].dropna().iloc[0]
        raise ValueError(
            f"column {names[0]!r} has values such as {example!r}, whose comma can be a decimal point or separate "
            "thousands. Write them without a comma."
        )
    return ", ".join(map(str, names))


def _all_match(column: Series, pattern: str) -> bool:
    """Return whether a column is text, and all of its values have a form."""
    values = column.dropna()
    return len(values) > 0 and not is_numeric(column) and bool(values.astype(str).str.fullmatch(pattern).all())


def _require_no_trailing_separator(path: Path, separator: str) -> None:
    """Raise an error if rows end in a separator and the header does not: pandas shifts their values by one column."""
    with _open_text(path) as file:
        rows = filter(None, csv.reader(file, delimiter=separator, skipinitialspace=True))
        header, first = next(rows, []), next(rows, [])
    if len(first) > len(header):
        raise ValueError(
            f"the rows end in the delimiter {separator!r}, and the header does not. Remove it from the ends of "
            "the rows."
        )


def _is_row_index(column: Series) -> bool:
    """Return whether an unnamed column is the row index that pandas and R write first."""
    if is_numeric(column):
        return bool((np.diff(column.to_numpy(float)) == 1).all())
    return bool(column.is_unique)


def _suffix(path: Path) -> str:
    for suffix in SUFFIXES:
        if path.name.lower().endswith(suffix):
            return suffix
    raise ValueError(f"{path.name} must end in one of {', '.join(SUFFIXES)}.")


def _min_bytes(path: Path, suffix: str) -> int:
    """Return a lower bound of the memory for a table: 8 bytes per number, or the size of the text."""
    if suffix == ".parquet":
        from pyarrow import parquet

        metadata = parquet.read_metadata(path)
        return 8 * metadata.num_rows * metadata.num_columns
    packed = path.stat().st_size
    available = host_memory()
    # The deflate format of gzip compresses by a factor of at most 1032.
    if not suffix.endswith(".gz") or available is None or 1032 * packed < available:
        return packed
    unpacked = 0
    with gzip.open(path) as file:
        while unpacked <= available and (part := file.read(2**24)):
            unpacked += len(part)
    return unpacked


def _separator(path: Path, suffix: str) -> str:
    """Return a tab for a TSV file, and otherwise the most frequent of comma, semicolon and tab in the header."""
    return "\t" if suffix.startswith(".tsv") else max(",;\t", key=_first_line(path).count)


def _first_line(path: Path) -> str:
    with _open_text(path) as file:
        return file.readline()


def _open_text(path: Path) -> Any:
    opener: Any = gzip.open if path.name.lower().endswith(".gz") else open
    return opener(path, "rt", encoding="utf-8-sig")


def _import_pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise ImportError("reading a table needs pandas: pip install 'calibayes[tables]'.") from error
    return pandas
