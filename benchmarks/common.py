"""Helpers shared by the benchmarks and the studies: machine description, tables, stored files, generated pages."""

import json
import os
import platform
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from rich import box
from rich.table import Table as RichTable

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"

_MAX_MIN_WIDTH = 20
"""Width in characters up to which a column of a terminal table is not wrapped."""


@cache
def machine() -> str:
    """Return the processor or accelerator and the versions of jax and calibayes, separated by semicolons."""
    import jax

    import calibayes as cb

    name = jax.devices()[0].device_kind
    if jax.default_backend() == "cpu":
        cpuinfo = Path("/proc/cpuinfo")
        text = cpuinfo.read_text() if cpuinfo.exists() else ""
        models = [line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")]
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        name = f"{cores} x {models[0] if models else platform.processor() or platform.machine()}"
    return f"{name}; jax {jax.__version__}; calibayes {cb.__version__}"


class Table(NamedTuple):
    """A table of text cells, for a page or a terminal."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """Return the table as Markdown."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)

    def rich(self) -> RichTable:
        """Return the table for a terminal: numbers right-aligned and never wrapped."""
        table = RichTable(box=box.SIMPLE_HEAD, padding=(0, 0), show_edge=False)
        for i, name in enumerate(self.columns):
            cells = [row[i] for row in self.rows]
            numeric = any(cell[:1].isdigit() for cell in cells) and not any(cell[:1].isalpha() for cell in cells)
            min_width = min(max((len(cell) for cell in cells), default=0), _MAX_MIN_WIDTH)
            table.add_column(name, justify="right" if numeric else "left", min_width=min_width, overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        return table


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replace a JSON file in one step, so that an interrupted command leaves the previous file intact."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content, indent=2) + "\n")
    os.replace(part, path)


class Marks(NamedTuple):
    """The two lines of a page between which its generated part stands."""

    begin: str
    end: str

    @classmethod
    def named(cls, name: str) -> "Marks":
        """Return the marks `<!-- name: begin -->` and `<!-- name: end -->`."""
        return cls(f"<!-- {name}: begin -->", f"<!-- {name}: end -->")

    def replace(self, page: Path, content: str) -> str:
        """Return the text of a page with other content between its marks.

        Raises
        ------
        ValueError
            If the page does not contain both marks.
        """
        before, begin, rest = page.read_text().partition(self.begin)
        _, end, after = rest.partition(self.end)
        if not begin or not end:
            raise ValueError(f"{page} needs a line {self.begin} and a line {self.end} around its generated part.")
        return f"{before}{self.begin}{content}{self.end}{after}"
