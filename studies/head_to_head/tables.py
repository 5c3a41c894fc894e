"""Tables of the head-to-head."""

import math
from collections.abc import Sequence
from itertools import groupby

import numpy as np

from benchmarks.common import Table
from studies.head_to_head.cells import Cell, Column, difference, having, relative_width
from studies.head_to_head.names import DESIGNS, LEVEL, SANDWICH, WIDE, is_joint


def by_design(cells: Sequence[Cell]) -> Table:
    """Return coverage and relative width of every method (rows) in every design, for the cells of one loss and size.

    Coverages that differ from 95% by more than three standard errors are bold.
    """
    chosen = {cell.design: cell for cell in cells}
    names = list(dict.fromkeys(name for cell in cells for name in cell.columns))
    columns = [design for design in DESIGNS if design in chosen]
    rows = [[name, *(_coverage_and_width(chosen[design], name) for design in columns)] for name in names]
    head = [f"{design}, {chosen[design].number:,}" + " *" * chosen[design].is_preliminary for design in columns]
    return Table(["method", *head], rows)


def _coverage_and_width(cell: Cell, name: str) -> str:
    if name not in cell.columns:
        return ""
    column = cell.columns[name]
    text = emphasised(float(column.coverage[0]), column.null_se)
    return f"{text} x{relative_width(column, cell.columns['gpc']):.2f}"


def emphasised(coverage: float, se: float) -> str:
    """Return a coverage in percent, bold if it differs from 95% by more than three standard errors."""
    text = f"{100 * coverage:.1f}"
    return f"**{text}**" if abs(coverage - LEVEL) > 3 * se else text


def scoreboard(cells: Sequence[Cell], names: Sequence[str]) -> Table:
    """Return the number of cells in which each method covers too little or too much, and its scores.

    Parameters
    ----------
    cells : sequence of Cell
        Cells to count.
    names : sequence of str
        Methods, in the order of the rows.

    Returns
    -------
    Table
    """
    rows = []
    for name in names:
        pairs = having(cells, name)
        if not pairs:
            continue
        gaps = np.array([float(column.coverage[0]) - LEVEL for _, column in pairs])
        errors = np.array([column.null_se for _, column in pairs])
        better, worse = score_counts(cells, name, "gpc-studentized")
        seconds = np.median([column.seconds for _, column in pairs])
        rows.append(
            [
                name,
                str(len(pairs)),
                str(int((gaps < -3 * errors).sum())),
                str(int((gaps > 3 * errors).sum())),
                f"{100 * (LEVEL + gaps.min()):.1f} to {100 * (LEVEL + gaps.max()):.1f}",
                "" if name == "gpc-studentized" else f"{better}, {worse}",
                f"{1000 * seconds:.2g}" if seconds < 0.1 else f"{1000 * seconds:.0f}",
                str(sum(column.failures for _, column in pairs)),
            ]
        )
    columns = ["method", "cells", "below 95%", "above 95%", "range of coverage, %"]
    return Table(
        [*columns, "score better, worse than gpc-studentized", "processor time, ms", "without an interval"], rows
    )


def pooled(cells: Sequence[Cell], names: Sequence[str]) -> Table:
    """Return the coverage of each method averaged over designs, by loss and number of observations.

    Data sets of different designs are independent, so that the standard error is that of all data sets together.

    Parameters
    ----------
    cells : sequence of Cell
        Cells to average, of independent observations.
    names : sequence of str
        Methods, in the order of the rows.

    Returns
    -------
    Table
    """
    groups: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.loss, cell.n), []).append(cell)
    rows = []
    for name in names:
        texts = [_pooled(members, name) for members in groups.values()]
        if any(texts):
            rows.append([name, *texts])
    return Table(["method", *(f"{loss}, N {n}" for loss, n in groups)], rows)


def _pooled(members: Sequence[Cell], name: str) -> str:
    """Return mean coverage, its standard error and mean relative width, if the method was applied in all designs."""
    average = average_coverage(members, name)
    if average is None:
        return ""
    coverage, se, null_se = average
    widths = [relative_width(cell.columns[name], cell.columns["gpc"]) for cell in members]
    return f"{emphasised(coverage, null_se)} ({100 * se:.1f}) x{np.mean(widths):.2f}"


def average_coverage(members: Sequence[Cell], name: str) -> tuple[float, float, float] | None:
    """Return the mean coverage of a method, its standard error, and the error that it has if all coverages are 95%.

    None if some cell does not have the method.
    """
    if not members or any(name not in cell.columns for cell in members):
        return None
    columns = [cell.columns[name] for cell in members]
    coverage = float(np.mean([column.coverage[0] for column in columns]))
    se, null_se = (
        math.sqrt(sum(error**2 for error in errors)) / len(columns)
        for errors in (
            [column.coverage_se for column in columns],
            [column.null_se for column in columns],
        )
    )
    return coverage, se, null_se


def score_counts(cells: Sequence[Cell], name: str, reference: str) -> tuple[int, int]:
    """Return in how many cells a method has a clearly better, and a clearly worse, interval score than another."""
    better = worse = 0
    for cell in cells:
        if name in cell.columns and reference in cell.columns:
            gap = difference(cell.columns[name], cell.columns[reference], "scores")
            better += gap.is_clear and gap.mean < 0
            worse += gap.is_clear and gap.mean > 0
    return better, worse


def joint(cells: Sequence[Cell]) -> Table:
    """Return the coverage of the joint sets and of the slope, where joint sets are stored."""
    rows = []
    for cell in (cell for cell in cells if is_joint(cell.loss, cell.design, cell.n)):
        for name, column in cell.columns.items():
            if math.isnan(column.joint_coverage):
                continue
            width = relative_width(column, cell.columns["gpc"])
            rows.append(
                [
                    f"{cell.loss}, {cell.design}, N {cell.n}",
                    name,
                    f"{column.number:,}",
                    emphasised(column.joint_coverage, column.null_se),
                    emphasised(float(column.coverage[0]), column.null_se),
                    f"{100 * column.coverage_se:.1f}",
                    f"{width:.2f}",
                ]
            )
    columns = ["cell", "method", "data sets", "joint, %", "slope, %", "SE", "width of the slope relative to gpc"]
    return Table(columns, rows)


def shapes(cells: Sequence[Cell]) -> Table:
    """Return the coverage of ellipsoid and marginal intervals, with and without the shape of the sandwich."""
    rows = []
    for cell in (cell for cell in cells if cell.loss == WIDE):
        for name, column in cell.columns.items():
            shape = "sandwich" if name.startswith(SANDWICH) else "posterior"
            texts = [emphasised(value, column.null_se) for value in (column.joint_coverage, *column.coverage)]
            rows.append([shape, f"{column.number:,}", *texts, f"{100 * column.null_se:.1f}"])
    parameters = [f"theta[{k}], %" for k in range(4)]
    return Table(["shape", "data sets", "ellipsoid, %", *parameters, "SE at 95%"], rows)


def details(cells: Sequence[Cell]) -> list[tuple[str, Table]]:
    """Return one table of all columns for every loss and number of observations, with its title."""
    columns = ["design", "method", "data sets", "coverage, % (SE)", "too high, %", "too low, %", "mean width"]
    columns += ["median width", "interval score", "ms", "without an interval"]
    titled = []
    ordinary = [cell for cell in cells if cell.loss != WIDE]
    for (loss, n), group in groupby(ordinary, key=lambda cell: (cell.loss, cell.n)):
        rows = [_detail(cell, column) for cell in group for column in cell.columns.values()]
        titled.append((f"{loss}, N {n}", Table(columns, rows)))
    return titled


def _detail(cell: Cell, column: Column) -> list[str]:
    return [
        cell.design + " *" * cell.is_preliminary,
        column.name,
        f"{column.number:,}",
        f"{100 * float(column.coverage[0]):.1f} ({100 * column.coverage_se:.1f})",
        f"{100 * column.too_high.mean():.1f}",
        f"{100 * column.too_low.mean():.1f}",
        f"{column.widths.mean():.3g}",
        f"{np.median(column.widths):.3g}",
        f"{column.scores.mean():.3g}",
        f"{1000 * column.seconds:.3g}",
        str(column.failures),
    ]
