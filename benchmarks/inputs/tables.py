"""Files that `calibayes fit` may be given: tables that are odd, broken, or no tables."""

import gzip
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from typer.testing import CliRunner

from benchmarks.inputs.endings import Ending, ReachedError
from calibayes.cli import app

_HEADS = ["a", "b", "y", "", " y", "A", '"a,b"', "<script>", "a;b", "Unnamed: 0", "y.1", "7", "ü", "\x00", "NA"]
_CELLS = ["", "NA", "nan", "inf", "-inf", "1e400", "1e-400", "1e39", "0", "1", "-1", "True", "x", "1,5", "?", '"']
_OPTIONS = ["loss", "level", "bootstrap", "seed", "tau", "delta", "columns", "cluster", "formula", "positive"]
_VALUES = ["", "y ~ a", "y ~ .", "nan", "inf", "-1", "0", "1", "0.95", "1e12", "a", "y", "a,b", "huber", "hinge", "💥"]

_number = st.floats(-1e6, 1e6).map(repr) | st.integers(-5, 5).map(str)
_cell = st.one_of(_number, _number, _number, st.sampled_from(_CELLS))


@st.composite
def _text(draw: Callable) -> bytes:
    clean = draw(st.booleans())
    heads = draw(st.lists(st.sampled_from(_HEADS[:2] if clean else _HEADS), min_size=1, max_size=3, unique=clean))
    heads = heads if draw(st.integers(0, 5)) == 0 else [*heads, "y"]
    rows = draw(st.integers(10 if clean else 0, 15))
    cells = draw(st.lists(_number if clean else _cell, min_size=rows * len(heads), max_size=rows * len(heads)))
    separator = draw(st.sampled_from([",", ",", ",", ";", "\t", "|"]))
    lines = [separator.join(cells[i * len(heads) : (i + 1) * len(heads)]) for i in range(rows)]
    code = "utf-8" if clean else draw(st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "latin-1"]))
    return "\n".join([separator.join(heads), *lines]).encode(code, "replace")


_contents = st.one_of(_text(), _text(), _text(), st.binary(max_size=200))
_packed = {
    ".csv": lambda raw: raw,
    ".tsv": lambda raw: raw,
    ".csv.gz": gzip.compress,
    ".tsv.gz": lambda raw: gzip.compress(raw)[:-5],
    ".parquet": lambda raw: b"PAR1" + raw + b"PAR1",
    ".xlsx": lambda raw: raw,
}
_option = st.tuples(st.sampled_from(_OPTIONS).map("--{}".format), st.sampled_from(_VALUES))
_options = st.just([]) | st.lists(_option, max_size=2)


def odd_tables() -> SearchStrategy:
    """The suffix of a file, its bytes, and the options it is given with."""
    suffixes = st.sampled_from([".csv"] * 6 + list(_packed))
    return st.tuples(suffixes, _contents, _options)


def fit(suffix: str, raw: bytes, options: list[tuple[str, str]]) -> Ending:
    """What the command does with it, up to where it would sample."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"table{suffix}"
        path.write_bytes(_packed[suffix](raw))
        formula = any(name == "--formula" for name, _ in options)
        told = [part for option in options for part in option]
        ended = CliRunner().invoke(app, ["fit", str(path), *([] if formula else ["--target", "y"]), *told])
    if isinstance(ended.exception, ReachedError):
        return Ending("reached", "", 0)
    if ended.exit_code in (1, 2) and isinstance(ended.exception, SystemExit) and "Traceback" not in ended.output:
        return Ending("refused", ended.output, 0)
    return Ending("wrong", repr(ended.exception), 0)
