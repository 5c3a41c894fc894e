"""Tables of docs/trust.md, generated from the stored results. The text around them is written by hand."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Marks, Table
from benchmarks.validate import store
from benchmarks.validate.adversarial import run as adversarial
from benchmarks.validate.adversarial.families import N_REPLICATES
from benchmarks.validate.exact import STEPS as EXACT_STEPS
from benchmarks.validate.geweke import STEPS as GEWEKE_STEPS
from benchmarks.validate.mutants import MUTANTS
from benchmarks.validate.sbc import DRAWS
from studies.store import Store
from studies.tables import NAMES, cells

MARKS = Marks.named("validation")
Lines = Sequence[dict[str, Any]]
P_VALUES = {"sbc": "sampler", "geweke": "kernel", "exact": "kernel", "invariance": "sampler"}
"""Parts that consist of p-values, with the key of the method that was tested."""
_TITLES = {
    "sbc": "simulation-based calibration",
    "geweke": "Geweke's joint-distribution test",
    "exact": "exact draws after several moves",
    "invariance": "invariance",
}
_MIN_DATASETS = 100
"""Number of data sets from which on a coverage is reported."""


def write(results: Path, studies: Path, page: Path) -> Path:
    """Write the tables into the page and return its path."""
    page.write_text(MARKS.replace(page, f"\n\n{tables(results, studies)}\n\n"))
    return page


def tables(results: Path, studies: Path) -> str:
    """Return all generated sections."""
    parts = store.load(results)
    if not parts:
        raise ValueError(f"{results} contains no results. Run python -m benchmarks.validate first.")
    sections = [_p_values({name: parts[name]["lines"] for name in P_VALUES if name in parts})]
    for name, section in (
        ("invariance", _invariances),
        ("known", _known),
        ("adversarial", _difficult),
        ("mutants", _mutants),
    ):
        if name in parts:
            sections.append(section(parts[name]["lines"]))
    sections += [_studies(studies), _machines(parts)]
    return "\n\n".join(section for section in sections if section)


def _p_values(parts: dict[str, Lines]) -> str:
    rows = []
    for name, lines in parts.items():
        for method in dict.fromkeys(line[P_VALUES[name]] for line in lines):
            selected = [line for line in lines if line[P_VALUES[name]] == method]
            rows.append([_TITLES[name], method, _problems(selected), *_smallest(selected)])
    all_lines = [line for lines in parts.values() for line in lines]
    rows.append(["**all tests**", "", "", *_smallest(all_lines)])
    columns = ["test", "method", "problems", "p-values", "smallest p", "probability of a smaller minimum"]
    small = sum(line["p"] < 0.05 for line in all_lines)
    return (
        f"## Samplers and kernels\n\n{Table(columns, rows).markdown()}\n\n"
        f"{small} of the {len(all_lines)} p-values are below 0.05; {0.05 * len(all_lines):.0f} are expected. "
        f"Ranks are computed among {DRAWS} draws. Geweke's test compares chains with fresh draws after {GEWEKE_STEPS} "
        f"steps; exact draws are moved {EXACT_STEPS} times."
    )


def _problems(lines: Lines) -> str:
    key = next(key for key in ("model", "loss", "change") if key in lines[0])
    sizes = sorted({line["n"] for line in lines})
    number = len({line[key] for line in lines})
    plural = {"model": "models", "loss": "losses", "change": "changes"}[key]
    unit = {"model": "data sets", "loss": "draws", "change": "seeds"}[key]
    return f"{number} {plural if number > 1 else key}, {' to '.join(f'{size:,}' for size in sizes)} {unit} each"


def _smallest(lines: Lines) -> list[str]:
    smallest = store.smallest_p(lines)
    verdict = "" if smallest.passed else " **failed**"
    return [str(smallest.number), f"{smallest.p:.2g}", f"{smallest.probability:.2g}{verdict}"]


def _invariances(lines: Lines) -> str:
    samplers = list(dict.fromkeys(line["sampler"] for line in lines))
    by_key = {(line["change"], line["sampler"]): line for line in lines}

    def cell(line: dict[str, Any]) -> str:
        return "identical" if line["identical"] else f"{100 * line['difference']:+.2f}% ({100 * line['se']:.2f})"

    changes = dict.fromkeys(line["change"] for line in lines)
    rows = [[change, *(cell(by_key[change, sampler]) for sampler in samplers)] for change in changes]
    return (
        "## Invariance\n\nDifference of eta after an equivalent change of the problem, converted to the original "
        f"units, with its Monte Carlo standard error in parentheses.\n\n{Table(['change', *samplers], rows).markdown()}"
    )


def _known(lines: Lines) -> str:
    rows = [
        [
            line["region"],
            f"{line['level']:g}",
            f"{line['eta']:.3f}",
            f"{line['coverage']:.3f}",
            f"{line['tolerance']:.3f}" + ("" if line["passed"] else " **failed**"),
        ]
        for line in lines
    ]
    columns = ["region", "level", "calibrated eta", "exact coverage at that eta", "tolerance"]
    return (
        "## Known answers\n\nThe mean of a bivariate normal: the posterior of every bootstrap replicate is known, and "
        "so is the coverage of each region at any learning rate. At the calibrated learning rate it should equal the "
        f"level up to the Monte Carlo error of the particles.\n\n{Table(columns, rows).markdown()}"
    )


def _difficult(lines: Lines) -> str:
    sections = []
    for kind in dict.fromkeys(line["set"] for line in lines):
        selected = [line for line in lines if line["set"] == kind]
        seed = f" (seed {selected[0]['seed']})" if kind == "drawn" else ""
        title = {"fixed": "constants chosen by hand", "drawn": f"constants drawn at random{seed}"}[kind]
        rows = [
            [
                line["name"],
                f"{line['level']:g}",
                f"{line['eta']:.4g}",
                f"{line['coverage']:.3f}",
                f"{line['exact']:.3f}",
                _outcome(line),
                f"{min(line['seconds'], line['cpu_seconds']):.0f}",
            ]
            for line in selected
        ]
        columns = ["model", "level", "eta", "reported coverage", "exact coverage", "status", "seconds"]
        heading = f"### {len(selected)} models, {title}"
        sections.append(f"{heading}\n\n{adversarial.summary(selected)}\n\n{Table(columns, rows).markdown()}")
    slowest = max(min(line["seconds"], line["cpu_seconds"]) for line in lines)
    return (
        "## Difficult models\n\nModels with one or two parameters, whose posteriors are integrated on a grid. The "
        "coverage that `calibrate` reports is compared with the exact coverage at the reported learning rate, on the "
        f"same {N_REPLICATES} bootstrap replicates. The tolerance is {adversarial.MARGIN:g} plus three Monte Carlo "
        "errors of the particles, 0.03 in total at the level 0.95. Seconds are those of the first call, with "
        f"compilation, or of the processor if these are fewer; the slowest took {slowest:.0f}, an easy model in a "
        f"fresh process {lines[0]['easy_seconds']:.0f}.\n\n" + "\n\n".join(sections)
    )


def _outcome(line: dict[str, Any]) -> str:
    """Return the status of a difficult model, and whether that is right."""
    status = line["status"].lower().replace("_", " ")
    if "level-not-attained" in line["codes"]:
        status += ", coverage jumps"
    if line["verdict"] == "wrong":
        status += " **wrong**"
    if line["verdict"] == "declined":
        status += ", an answer exists" if line["has_answer"] else ", no answer exists"
    return status


def _mutants(lines: Lines) -> str:
    survivors = [line for line in lines if not line["noticed_by"]]
    modules = {line["target"]: line["target"].partition(":")[0] for line in lines}
    rows = []
    for module in dict.fromkeys(modules.values()):
        selected = [line for line in lines if modules[line["target"]] == module]
        descriptions = " ".join(line["description"] for line in selected)
        noticed = sum(bool(line["noticed_by"]) for line in selected)
        rows.append([f"`{module}`", f"{noticed} of {len(selected)}", descriptions])
    missed = "".join(f"\n- not noticed: {line['description']} (`{line['target']}`)" for line in survivors)
    return (
        f"## Deliberate errors\n\nOf {len(MUTANTS)} deliberate errors, {len(lines)} have been run on this version; "
        f"{len(lines) - len(survivors)} of these were noticed by a test that passes without them.{missed}"
        f"\n\n{Table(['module', 'noticed', 'errors'], rows).markdown()}"
    )


def _studies(folder: Path) -> str:
    """Return the coverage of the true parameter in the studies that have enough data sets."""
    all_cells = []
    for name in ("median_regression", "misspecified"):
        path = folder / f"{name}.csv.gz"
        all_cells += cells(Store(path).lines) if path.exists() else []
    calibrated = [cell for cell in all_cells if cell.sampler in NAMES and cell.number >= _MIN_DATASETS]
    rows = []
    for key in dict.fromkeys((cell.problem, cell.n, cell.sampler) for cell in calibrated):
        selected = [cell for cell in calibrated if (cell.problem, cell.n, cell.sampler) == key]
        coverages = ", ".join(f"{cell.region} {100 * cell.coverage:.1f}" for cell in selected)
        se = 100 * np.max([cell.coverage_se for cell in selected])
        number = min(cell.number for cell in selected)
        rows.append([key[0], f"{key[1]:,}", NAMES[key[2]], f"{number:,}", coverages, f"{se:.1f}"])
    if not rows:
        return ""
    columns = ["data", "N", "method", "data sets", "coverage of the true parameter, %", "standard error"]
    return (
        "## Coverage of the calibrated 95% sets\n\nOn simulated data, over data sets. The rows of one problem and N "
        "use the same sequence of data sets; [the results page](results.md) has the details."
        f"\n\n{Table(columns, rows).markdown()}"
    )


def _machines(parts: dict[str, Any]) -> str:
    machines = dict.fromkeys(part["machine"] for part in parts.values())
    times = ", ".join(f"{name} {part['seconds'] / 60:.1f}" for name, part in parts.items())
    return f"Measured on {' and '.join(machines)}. Minutes, compilation included: {times}."
