"""Files passed to `calibayes fit`: unusual or broken tables, and files that are not tables."""

import gzip
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from typer.testing import CliRunner

from benchmarks.inputs.outcome import AcceptedError, Outcome
from calibayes.cli import app

_COLUMNS = ["a", "b", "y", "", " y", "A", '"a,b"', "<script>", "a;b", "Unnamed: 0", "y.1", "7", "ü", "\x00", "NA"]
_CELLS = ["", "NA", "nan", "inf", "-inf", "1e400", "1e-400", "1e39", "0", "1", "-1", "True", "x", "1,5", "?", '"']
_OPTIONS = ["loss", "level", "bootstrap", "seed", "tau", "delta", "columns", "cluster", "formula", "positive"]
_VALUES = ["", "y ~ a", "y ~ .", "nan", "inf", "-1", "0", "1", "0.95", "1e12", "a", "y", "a,b", "huber", "hinge", "💥"]

_number = st.floats(-1e6, 1e6).map(repr) | st.integers(-5, 5).map(str)
_cell = st.one_of(_number, _number, _number, st.sampled_from(_CELLS))


@st.composite
def _text(draw: Callable) -> bytes:
    clean = draw(st.booleans())
    columns = draw(st.lists(st.sampled_from(_COLUMNS[:2] if clean else _COLUMNS), min_size=1, max_size=3, unique=clean))
    columns = columns if draw(st.integers(0, 5)) == 0 else [*columns, "y"]
    rows = draw(st.integers(10 if clean else 0, 15))
    cells = draw(st.lists(_number if clean else _cell, min_size=rows * len(columns), max_size=rows * len(columns)))
    separator = draw(st.sampled_from([",", ",", ",", ";", "\t", "|"]))
    lines = [separator.join(cells[i * len(columns) : (i + 1) * len(columns)]) for i in range(rows)]
    encoding = "utf-8" if clean else draw(st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "latin-1"]))
    return "\n".join([separator.join(columns), *lines]).encode(encoding, "replace")


_contents = st.one_of(_text(), _text(), _text(), st.binary(max_size=200))
_encoders = {
    ".csv": lambda raw: raw,
    ".tsv": lambda raw: raw,
    ".csv.gz": gzip.compress,
    ".tsv.gz": lambda raw: gzip.compress(raw)[:-5],
    ".parquet": lambda raw: b"PAR1" + raw + b"PAR1",
    ".xlsx": lambda raw: raw,
}
_option = st.tuples(st.sampled_from(_OPTIONS).map("--{}".format), st.sampled_from(_VALUES))
_options: SearchStrategy[list[tuple[str, str]]] = st.just([]) | st.lists(_option, max_size=2)


def unusual_files() -> SearchStrategy[tuple[str, bytes, list[tuple[str, str]]]]:
    """Return a strategy that draws the suffix of a file, its content, and options of the command."""
    suffixes = st.sampled_from([".csv"] * 6 + list(_encoders))
    return st.tuples(suffixes, _contents, _options)


def fit(suffix: str, raw: bytes, options: list[tuple[str, str]]) -> Outcome:
    """Run the command on a file, up to the point where a sampler would start."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"table{suffix}"
        path.write_bytes(_encoders[suffix](raw))
        formula = any(name == "--formula" for name, _ in options)
        arguments = [part for option in options for part in option]
        done = CliRunner().invoke(app, ["fit", str(path), *([] if formula else ["--target", "y"]), *arguments])
    if isinstance(done.exception, AcceptedError):
        return Outcome("accepted", "", 0)
    if done.exit_code in (1, 2) and isinstance(done.exception, SystemExit) and "Traceback" not in done.output:
        return Outcome("rejected", done.output, 0)
    return Outcome("wrong", repr(done.exception), 0)
