"""The paper's two figures of results, from cells."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import LogLocator, NullLocator

from studies.tables import NAMES, ORDER, PAPER_SVM_ETA, Cell

COLOURS = {"mcmc": "#8c8c8c", "smc": "#4c78a8", "transport": "#d6604d"}


def figure4(cells: Sequence[Cell], path: Path) -> None:
    """Seconds by method, one panel for each N, on one logarithmic axis."""
    sizes = sorted({cell.n for cell in cells})
    figure, axes = plt.subplots(1, len(sizes), figsize=(7.0, 2.8), sharey=True, squeeze=False)
    for axis, n in zip(axes[0], sizes, strict=True):
        _strips(axis, [cell for cell in cells if cell.n == n], lambda cell: cell.seconds)
        axis.set_title(f"N = {n:,}", fontsize=9)
        logarithmic(axis)
    axes[0, 0].set_ylabel("seconds")
    save(figure, path)


def figure5(timed: Sequence[Cell], cells: Sequence[Cell], path: Path) -> None:
    """Seconds by method, where they were timed, and eta."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.0, 2.8))
    _strips(left, timed, lambda cell: cell.seconds)
    logarithmic(left)
    left.set_ylabel("seconds")
    _strips(right, cells, lambda cell: cell.etas)
    right.axhline(PAPER_SVM_ETA, color="black", linewidth=0.8, linestyle=":")
    right.annotate("paper", (0.02, PAPER_SVM_ETA), xycoords=("axes fraction", "data"), fontsize=8, va="bottom")
    right.set_ylabel("learning rate")
    save(figure, path)


def _strips(axis: Any, cells: Sequence[Cell], values_of: Any) -> None:
    """Every run a point, spread sideways; a line at the median and a bar over the quartiles."""
    rng = np.random.default_rng(0)
    ranked = sorted(cells, key=lambda cell: ORDER.index(cell.sampler))
    for at, cell in enumerate(ranked):
        values, colour = values_of(cell), COLOURS[cell.sampler]
        axis.scatter(at + rng.uniform(-0.18, 0.18, len(values)), values, s=7, color=colour, alpha=0.45, linewidths=0)
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
        axis.plot([at, at], [low, high], color=colour, linewidth=4, alpha=0.7, solid_capstyle="butt")
        axis.plot([at - 0.28, at + 0.28], [middle, middle], color="black", linewidth=1.2)
    axis.set_xticks(range(len(ranked)), [NAMES[cell.sampler] for cell in ranked], fontsize=8)
    axis.set_xlim(-0.6, len(ranked) - 0.4)
    axis.grid(axis="y", linewidth=0.4, alpha=0.5)
    axis.spines[["top", "right"]].set_visible(False)


def logarithmic(axis: Any) -> None:
    """In plain numbers: 1, 2, 5, 10, ..."""
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_locator(NullLocator())


def save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)
