"""Figures 4 and 5 of the paper, drawn from stored results."""

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from studies.tables import NAMES, ORDER, PAPER_SVM_ETA, Cell

COLOURS = {"mcmc": "#8c8c8c", "smc": "#4c78a8", "transport": "#d6604d"}


def figure4(cells: Sequence[Cell], path: Path) -> None:
    """Draw computation times by method, one panel per N, on a common logarithmic axis."""
    sizes = sorted({cell.n for cell in cells})
    figure, axes = plt.subplots(1, len(sizes), figsize=(7.0, 2.8), sharey=True, squeeze=False)
    for axis, n in zip(axes[0], sizes, strict=True):
        _draw_strips(axis, [cell for cell in cells if cell.n == n], lambda cell: cell.seconds)
        axis.set_title(f"N = {n:,}", fontsize=9)
        use_log_scale(axis)
    axes[0, 0].set_ylabel("seconds")
    save(figure, path)


def figure5(timed: Sequence[Cell], cells: Sequence[Cell], path: Path) -> None:
    """Draw computation times by method, from the cells of one machine, and learning rates, from all cells."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.0, 2.8))
    _draw_strips(left, timed, lambda cell: cell.seconds)
    use_log_scale(left)
    left.set_ylabel("seconds")
    _draw_strips(right, cells, lambda cell: cell.etas)
    right.axhline(PAPER_SVM_ETA, color="black", linewidth=0.8, linestyle=":")
    right.annotate("paper", (0.02, PAPER_SVM_ETA), xycoords=("axes fraction", "data"), fontsize=8, va="bottom")
    right.set_ylabel("learning rate")
    save(figure, path)


def _draw_strips(axis: Axes, cells: Sequence[Cell], values_of: Callable[[Cell], np.ndarray]) -> None:
    """Draw every run as a point with horizontal jitter, the median as a line and the quartiles as a bar."""
    rng = np.random.default_rng(0)
    ordered = sorted(cells, key=lambda cell: ORDER.index(cell.sampler))
    for i, cell in enumerate(ordered):
        values, colour = values_of(cell), COLOURS[cell.sampler]
        axis.scatter(i + rng.uniform(-0.18, 0.18, len(values)), values, s=7, color=colour, alpha=0.45, linewidths=0)
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
        axis.plot([i, i], [low, high], color=colour, linewidth=4, alpha=0.7, solid_capstyle="butt")
        axis.plot([i - 0.28, i + 0.28], [middle, middle], color="black", linewidth=1.2)
    axis.set_xticks(range(len(ordered)), [NAMES[cell.sampler] for cell in ordered], fontsize=8)
    axis.set_xlim(-0.6, len(ordered) - 0.4)
    axis.grid(axis="y", linewidth=0.4, alpha=0.5)
    axis.spines[["top", "right"]].set_visible(False)


def use_log_scale(axis: Axes) -> None:
    """Make the vertical axis logarithmic, with ticks at 1, 2, 5, 10, ... in plain numbers."""
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_locator(NullLocator())


def save(figure: Figure, path: Path) -> None:
    """Write a figure to a file and close it."""
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)
