"""Figures of the head-to-head: coverage against width, one panel per design."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from studies.figures import save
from studies.head_to_head.cells import Cell, relative_width
from studies.head_to_head.names import DESIGNS, LEVEL

STYLES = {
    "gpc": ("#20639b", "o"),
    "gpc-studentized": ("#12355b", "D"),
    "matching": ("#3caea3", "s"),
    "eta 1": ("#b0563a", "X"),
    "OLS": ("#8c8c8c", "v"),
    "OLS HC3": ("#5f5f5f", "^"),
    "OLS HC3, t": ("#2e2e2e", "^"),
    "OLS cluster, t": ("#b08900", "<"),
    "OLS HAC": ("#b08900", ">"),
    "wild cluster bootstrap": ("#7d5ba6", "P"),
    "arch bootstrap, studentized": ("#7d5ba6", "*"),
    "arch bootstrap, bca": ("#b39bc8", "*"),
    "arch block bootstrap, percentile": ("#b39bc8", "P"),
    "statsmodels QuantReg": ("#8c8c8c", "v"),
    "statsmodels RLM": ("#8c8c8c", "v"),
    "quantreg rank inversion": ("#2e2e2e", "^"),
    "quantreg rank inversion, iid=FALSE": ("#5f5f5f", "^"),
    "quantreg nid": ("#b08900", "<"),
    "quantreg wild bootstrap": ("#7d5ba6", "*"),
    "quantreg cluster bootstrap": ("#7d5ba6", "P"),
    "quantreg, block bootstrap, percentile": ("#b39bc8", "P"),
}
"""Colour and marker of the methods that are drawn; all others are in the tables only."""
_WIDTHS = (0.45, 1.8)
"""Range of the relative widths; methods beyond are drawn at the edge."""
_LOWEST = 0.70
"""Lowest coverage; methods below are drawn at the edge, with their coverage as a number."""


def coverage_against_width(cells: Sequence[Cell], path: Path) -> None:
    """Draw coverage of the slope against mean width relative to plain GPC, for the cells of one loss and size.

    Parameters
    ----------
    cells : sequence of Cell
        Cells that differ by their design only.
    path : Path
        File to write.
    """
    by_design = {cell.design: cell for cell in cells}
    figure, axes = plt.subplots(2, 4, figsize=(9.6, 4.9), sharex=True, sharey=True)
    for axis, design in zip(axes.flat, DESIGNS, strict=False):
        axis.set_title(design, fontsize=9)
        if design in by_design:
            _draw(axis, by_design[design])
    used = {name for cell in cells for name in cell.columns}
    handles = [
        Line2D([], [], color=color, marker=marker, linestyle="", label=name, markersize=5.5)
        for name, (color, marker) in STYLES.items()
        if name in used
    ]
    for axis in axes[:, 0]:
        axis.set_ylabel("coverage of the slope, %", fontsize=8)
    for axis in axes[1]:
        axis.set_xlabel("mean width relative to gpc", fontsize=8)
    axes.flat[-1].axis("off")
    axes.flat[-1].legend(handles=handles, loc="center", fontsize=7, frameon=False)
    axes.flat[3].tick_params(labelbottom=True)
    save(figure, path)


def _draw(axis: Axes, cell: Cell) -> None:
    se = cell.columns["gpc"].null_se
    axis.axhspan(100 * (LEVEL - 3 * se), 100 * (LEVEL + 3 * se), color="#e9e9e9", lw=0)
    axis.axhline(100 * LEVEL, color="#333333", lw=0.8, ls=":")
    for name, (color, marker) in STYLES.items():
        if name not in cell.columns:
            continue
        column = cell.columns[name]
        coverage = float(column.coverage[0])
        x = float(np.clip(relative_width(column, cell.columns["gpc"]), *_WIDTHS))
        axis.plot(x, 100 * max(coverage, _LOWEST), marker, color=color, ms=5.5, alpha=0.9, mew=0.4, mec="white")
        if coverage < _LOWEST:
            axis.annotate(f"{100 * coverage:.0f}", (x, 100 * _LOWEST), (4, 3), textcoords="offset points", fontsize=7)
    axis.set_xlim(_WIDTHS[0] - 0.03, _WIDTHS[1] + 0.03)
    axis.set_ylim(100 * _LOWEST - 1.5, 100.5)
    axis.tick_params(labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(linewidth=0.3, alpha=0.5)
