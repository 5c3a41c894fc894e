"""The page about trust: what stands between two marks is rebuilt from what is stored, what is around them stays."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from studies.store import Store
from studies.tables import NAMES, Table, cells

from benchmarks.validate import stored
from benchmarks.validate.exact import STEPS as EXACT_STEPS
from benchmarks.validate.geweke import STEPS as GEWEKE_STEPS
from benchmarks.validate.sbc import DRAWS

BEGIN, END = "<!-- validation: begin -->", "<!-- validation: end -->"
Lines = Sequence[dict[str, Any]]
P_VALUES = {"sbc": "sampler", "geweke": "kernel", "exact": "kernel", "invariance": "sampler"}
"""Parts that are p-values, and what they are of."""
_TITLES = {
    "sbc": "ranks of the true parameter",
    "geweke": "parameters and data in turn",
    "exact": "exact draws, moved",
    "invariance": "the same problem in other words",
}


def write(results: Path, studies: Path, page: Path) -> Path:
    """The page, with the tables of what is stored."""
    before, begun, rest = page.read_text().partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not begun or not ended:
        raise ValueError(f"{page} has no place for the tables: a line {BEGIN} and a line {END}.")
    page.write_text(f"{before}{BEGIN}\n\n{tables(results, studies)}\n\n{END}{after}")
    return page


def tables(results: Path, studies: Path) -> str:
    """All that is rebuilt."""
    parts = stored.load(results)
    if not parts:
        raise ValueError(f"there is nothing in {results}: run python -m benchmarks.validate.")
    sections = [_p_values({name: parts[name]["lines"] for name in P_VALUES if name in parts})]
    for name, section in (("invariance", _invariances), ("known", _known), ("mutations", _mutations)):
        if name in parts:
            sections.append(section(parts[name]["lines"]))
    sections += [_studies(studies), _where(parts)]
    return "\n\n".join(section for section in sections if section)


def _p_values(parts: dict[str, Lines]) -> str:
    rows = []
    for name, lines in parts.items():
        for of in dict.fromkeys(line[P_VALUES[name]] for line in lines):
            own = [line for line in lines if line[P_VALUES[name]] == of]
            rows.append([_TITLES[name], of, _problems(own), *_judged(own)])
    everything = [line for lines in parts.values() for line in lines]
    rows.append(["**all of them**", "", "", *_judged(everything)])
    table = Table(["what", "of", "problems", "tests", "smallest p", "chance of one so small"], rows).markdown()
    small = sum(line["p"] < 0.05 for line in everything)
    return (
        f"## Samplers and kernels\n\n{table}\n\n"
        f"{small} of the {len(everything)} p-values are below 0.05, where {0.05 * len(everything):.0f} are expected. "
        f"A rank is among {DRAWS} draws. Parameters and data are drawn in turn {GEWEKE_STEPS} times before they are "
        f"compared with fresh ones; exact draws are moved {EXACT_STEPS} times."
    )


def _problems(lines: Lines) -> str:
    kind = next(kind for kind in ("model", "loss", "change") if kind in lines[0])
    sizes = sorted({line["n"] for line in lines})
    number = len({line[kind] for line in lines})
    many = {"model": "datasets", "loss": "draws", "change": "seeds"}[kind]
    kinds = {"model": "models", "loss": "losses", "change": "changes"}[kind]
    return f"{number} {kinds if number > 1 else kind}, {' to '.join(f'{size:,}' for size in sizes)} {many} each"


def _judged(lines: Lines) -> list[str]:
    least = stored.smallest(lines)
    return [str(least.number), f"{least.p:.2g}", f"{least.chance:.2g}" + ("" if least.passed else " **failed**")]


def _invariances(lines: Lines) -> str:
    samplers = list(dict.fromkeys(line["sampler"] for line in lines))
    by_key = {(line["change"], line["sampler"]): line for line in lines}

    def cell(line: dict[str, Any]) -> str:
        return "not a bit" if line["same"] else f"{100 * line['difference']:+.2f}% ({100 * line['error']:.2f})"

    changes = dict.fromkeys(line["change"] for line in lines)
    rows = [[change, *(cell(by_key[change, sampler]) for sampler in samplers)] for change in changes]
    return (
        "## The same problem in other words\n\nHow much eta differs, in its new unit, with the Monte Carlo error of "
        f"the difference in brackets.\n\n{Table(['change', *samplers], rows).markdown()}"
    )


def _known(lines: Lines) -> str:
    rows = [
        [
            line["region"],
            f"{line['level']:g}",
            f"{line['eta']:.3f}",
            f"{line['coverage']:.3f}",
            f"{line['allowed']:.3f}" + ("" if line["passed"] else " **failed**"),
        ]
        for line in lines
    ]
    columns = ["set", "level", "eta found", "exact coverage there", "may differ by"]
    return (
        "## Known answers\n\nThe mean of a bivariate normal: on every bootstrap row the posterior is known, and so is "
        "the coverage of each set at any learning rate. At the one that was found it should be the level, but for the "
        f"particles' error.\n\n{Table(columns, rows).markdown()}"
    )


def _mutations(lines: Lines) -> str:
    survivors = [line for line in lines if not line["caught"]]
    files = dict.fromkeys(line["file"] for line in lines)
    rows = []
    for file in files:
        own = [line for line in lines if line["file"] == file]
        words = "; ".join(line["name"] for line in own)
        rows.append([f"`{file}`", f"{sum(bool(line['caught']) for line in own)} of {len(own)}", words])
    left = "".join(f"\n- not noticed: {line['name']}" for line in survivors)
    return (
        f"## Deliberate errors\n\n{len(lines) - len(survivors)} of {len(lines)} were noticed by a test that passes "
        f"without them.{left}\n\n{Table(['file', 'noticed', 'errors'], rows).markdown()}"
    )


def _studies(folder: Path) -> str:
    """Of the studies that have run: how often the true parameter was in the calibrated 95% set."""
    found = []
    for name in ("median_regression", "misspecified"):
        path = folder / f"{name}.csv"
        found += cells(Store(path).lines) if path.exists() else []
    calibrated = [cell for cell in found if cell.sampler in NAMES and cell.number >= 100]
    rows = []
    for key in dict.fromkeys((cell.problem, cell.n, cell.sampler) for cell in calibrated):
        own = [cell for cell in calibrated if (cell.problem, cell.n, cell.sampler) == key]
        shares = ", ".join(f"{cell.region} {100 * cell.coverage:.1f}" for cell in own)
        error = 100 * np.max([cell.coverage_se for cell in own])
        rows.append(
            [key[0], f"{key[1]:,}", NAMES[key[2]], str(min(cell.number for cell in own)), shares, f"{error:.1f}"]
        )
    if not rows:
        return ""
    columns = ["data", "N", "method", "datasets", "sets that hold the truth, %", "error"]
    return (
        "## Coverage of the calibrated 95% sets\n\nOn data from a known law, over datasets; "
        "[the results page](results.md) says why they cover less on few observations, where the bootstrap is too "
        f"hopeful.\n\n{Table(columns, rows).markdown()}"
    )


def _where(parts: dict[str, Any]) -> str:
    places = dict.fromkeys(part["machine"] for part in parts.values())
    times = ", ".join(f"{name} {part['seconds'] / 60:.1f}" for name, part in parts.items())
    return f"Found on {' and on '.join(places)}. Minutes, with what was compiled: {times}."
