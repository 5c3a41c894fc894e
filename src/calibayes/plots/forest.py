"""Forest plot: the calibrated interval of each parameter in one figure."""

from collections.abc import Iterable

import numpy as np

from calibayes.losses import LinearLoss
from calibayes.plots import drawing
from calibayes.plots.drawing import CALIBRATED, COMPARED, NEUTRAL, Axes, Parameter
from calibayes.result import Result
from calibayes.result.intervals import format_number, percent

_ROW_HEIGHT, _MARGIN_HEIGHT = 0.3, 0.75
"""Height of a parameter, and of the axis and the legend, in inches."""


def forest(
    result: Result, names: Iterable[Parameter] | None = None, joint: bool = False, ax: Axes | None = None
) -> Axes:
    """Plot the interval of each parameter, calibrated at its own learning rate, with its posterior mean.

    Parameters
    ----------
    result : Result
        The result of a calibration.
    names : iterable of str or int, optional
        Names or indices of the parameters, from top to bottom. All share one axis: choose those with similar units.
        Default: all parameters except one called "intercept", whose scale is another one.
    joint : bool
        Whether to add the intervals at the joint learning rate, dashed. Default: False.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on. Default: new axes, as high as the number of parameters requires.

    Returns
    -------
    matplotlib.axes.Axes
        The axes with the plot.

    Raises
    ------
    ValueError
        If `names` is empty, or names a parameter that does not exist.
    RuntimeError
        If the result was loaded without intervals.

    Examples
    --------
    >>> [text.get_text() for text in cb.plots.forest(result).get_yticklabels()]
    ['theta[0]', 'theta[1]']
    """
    indices = [drawing.parameter_index(result, one) for one in (_default_names(result) if names is None else names)]
    if not indices:
        raise ValueError("names must name at least one parameter.")
    intervals = result.intervals()
    has_space = ax is None
    ax, font_size = drawing.open_axes(ax, _MARGIN_HEIGHT + _ROW_HEIGHT * len(indices))
    positions = np.arange(len(indices))
    level = percent(result.level)
    shift = 0.14 if joint else 0.0
    own = intervals.bounds[indices]
    ax.axvline(0, color=NEUTRAL, lw=0.8, ls=":")
    ax.hlines(positions - shift, *own.T, color=CALIBRATED, lw=2.0, label=f"{level} interval")
    ax.plot(result.means[indices], positions - shift, ls="", marker="o", ms=4, color=CALIBRATED)
    if joint:
        at_joint = result.marginal_intervals()[indices]
        ax.hlines(positions + shift, *at_joint.T, color=COMPARED, lw=1.2, ls="--", label="at the joint η")
    failed = ~intervals.converged[indices]
    if failed.any():
        ax.plot(own[failed].mean(1), positions[failed] - shift, "x", color=COMPARED, ms=7, label="not converged")
    ax.set_yticks(positions, [result.names[k] for k in indices])
    ax.set_ylim(len(indices) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel(_label(result, indices))
    if has_space:
        numbers = zip(result.means[indices], *own.T, own[:, 1] - own[:, 0], strict=True)
        for position, (*estimates, width) in zip(positions.tolist(), numbers, strict=True):
            mean, low, high = (format_number(value, width) for value in estimates)
            text = f"{mean} ({low} to {high})"
            ax.annotate(text, (1, position), (6, 0), ("axes fraction", "data"), "offset points", va="center")
    drawing.tidy(ax, font_size)
    ax.spines["left"].set_visible(False)
    if joint or failed.any():
        drawing.add_legend(ax, font_size)
    return ax


def _default_names(result: Result) -> list[str]:
    is_linear = bool(result.settings.get("target")) and result.names[0] == "intercept" and len(result.names) > 1
    return result.names[1:] if is_linear else result.names


def _label(result: Result, indices: list[int]) -> str:
    """Return the unit of the axis, as far as it is known."""
    target, loss = result.settings.get("target"), getattr(result.model, "loss", None)
    if target and isinstance(loss, LinearLoss) and loss.location and 0 not in indices:
        column = "the column" if len(indices) > 1 else result.names[indices[0]]
        return f"change of {target} per unit of {column}"
    return "coefficient" if len(indices) > 1 else result.names[indices[0]]
