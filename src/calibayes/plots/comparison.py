"""Plot of a comparison of methods: their learning rates on the coverage curve, and their intervals side by side."""

from typing import TYPE_CHECKING

import numpy as np

from calibayes.plots import drawing
from calibayes.plots.drawing import CALIBRATED, CONFIG, NEUTRAL
from calibayes.result.intervals import percent

if TYPE_CHECKING:
    from calibayes.compare import ComparedMethod, Comparison

_ROW_HEIGHT = 0.22
"""Height of a method in inches."""
_MAX_PARAMETERS = 6
"""Number of parameters whose intervals are drawn at most, so that the panels stay readable."""


_MARGIN = 0.8
"""Space above and below the coverages, in units of 1 - level."""


def compare(comparison: "Comparison") -> np.ndarray:
    """Plot the learning rates of several methods on the coverage curve, and their intervals side by side.

    The upper panel shows coverage on the bootstrap replicates against the learning rate, with a point for each method
    and its coverage. If the learning rate of a method is outside the range of the curve, its point
    is drawn beyond the end of the curve. The lower panels show
    the interval of each parameter by each method, and the estimate of the method as a point.

    Parameters
    ----------
    comparison : Comparison
        Table of methods, as returned by `calibayes.compare`. At most six parameters are drawn.

    Returns
    -------
    numpy.ndarray of matplotlib.axes.Axes
        The upper panel, followed by one panel per parameter.

    Raises
    ------
    ValueError
        If every method of the comparison failed.

    Examples
    --------
    >>> comparison = cb.compare(
    ...     model, data, methods=["gpc", "matching"], bootstrap=100, sampler="transport", progress=False
    ... )
    >>> len(cb.plots.compare(comparison))
    3
    """
    rows = [row for row in comparison.rows if row.result is not None]
    if not rows:
        raise ValueError("no method of the comparison has a result to draw.")
    pyplot = drawing.pyplot()
    names = comparison.names[:_MAX_PARAMETERS]
    height = _ROW_HEIGHT * len(rows) + 0.5
    figure = pyplot.figure(figsize=(CONFIG.wide, 2.4 + height), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=[2.4, height])
    axes = [upper.subplots(), *np.ravel(lower.subplots(1, len(names), sharey=True))]
    colours = {row.label: f"C{k}" for k, row in enumerate(rows)}
    _draw_curve(axes[0], comparison, rows, colours)
    for k, name in enumerate(names):
        _draw_intervals(axes[k + 1], rows, k, colours)
        axes[k + 1].set_xlabel(name)
    for ax in axes:
        drawing.tidy(ax, CONFIG.font_size)
    axes[0].legend(frameon=False, fontsize=CONFIG.font_size, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return np.array(axes, dtype=object)


def _draw_curve(
    ax: drawing.Axes, comparison: "Comparison", rows: "list[ComparedMethod]", colours: dict[str, str]
) -> None:
    """Draw the coverage curves of all methods, the band of the first, and a point for each method."""
    results = {row.label: row.result for row in rows if row.result is not None}
    etas = np.array([result.eta for result in results.values()])
    drawing.set_log_scale(ax, "x", etas)
    ax.axhline(comparison.level, color=NEUTRAL, lw=0.8, ls=":")
    has_band = False
    for result in results.values():
        curve = result.curve
        if len(curve.etas):
            ax.plot(curve.etas, curve.coverage(comparison.level), color=CALIBRATED, lw=1.0, alpha=0.5)
            if not has_band:
                ax.fill_between(curve.etas, *curve.band(comparison.level).T, color=CALIBRATED, alpha=0.15, lw=0)
            has_band = True
    shares = [comparison.level, *(float(result.coverage) for result in results.values())]
    margin = _MARGIN * (1 - comparison.level)
    ax.set_ylim(min(shares) - margin, min(1 + margin, max(shares) + margin))
    for label, result in results.items():
        error = result.eta_se if np.isfinite(result.eta_se) else 0.0
        share = float(result.coverage)
        ax.hlines(share, max(result.eta - error, 0.2 * result.eta), result.eta + error, color=colours[label], lw=1.0)
        ax.plot(result.eta, share, ls="", marker="o", ms=4, color=colours[label], label=label)
    ax.set(xlabel="learning rate η", ylabel=f"coverage of {percent(comparison.level)} sets")


def _draw_intervals(ax: drawing.Axes, rows: "list[ComparedMethod]", k: int, colours: dict[str, str]) -> None:
    """Draw the intervals of one parameter, the first method at the top."""
    for position, row in enumerate(reversed(rows)):
        assert row.intervals is not None
        assert row.result is not None
        ax.plot(row.intervals.bounds[k], [position, position], color=colours[row.label], lw=1.5)
        ax.plot(row.result.means[k], position, ls="", marker="o", ms=3, color=colours[row.label])
    ax.set_yticks(range(len(rows)), [row.label for row in reversed(rows)])
    ax.set_ylim(-0.6, len(rows) - 0.4)
