"""Plots of a calibration with matplotlib.

Each function returns the axes that it drew on: those of its argument `ax` or, by default, new ones; `pairs` and
`compare`, with several panels, always make new ones. Blue is the calibrated posterior;
dashed orange is the posterior that it is compared with. On axes of the caller, such as those of a figure as wide as the
column of a journal, the fonts follow the caller's settings.
"""

from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np

from calibayes._core.curve import Coverage
from calibayes._core.parts import Parts
from calibayes._validate.settings import check_level
from calibayes.losses import LinearLoss
from calibayes.plots import density, drawing
from calibayes.plots.comparison import compare as compare
from calibayes.plots.drawing import CALIBRATED, CONFIG, NEUTRAL, Axes, Parameter
from calibayes.plots.forest import forest as forest
from calibayes.result import Result
from calibayes.result.intervals import percent
from calibayes.samplers.transport.sampler import TransportState

__all__ = ["compare", "coverage", "diagnostics", "fit", "forest", "pairs", "posterior", "trace"]


def coverage(result: Result, ax: Axes | None = None, level: float | None = None) -> Axes:
    """Plot coverage against the learning rate, with a pointwise 95% band.

    The vertical line is the calibrated learning rate, in a band of one standard error on either side.

    Parameters
    ----------
    result : Result
        The result of a calibration.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on. Default: new axes.
    level : float, optional
        Level of the credible sets. Default: the level of the result. For another level the learning rate is read off
        the coverage curve, and its line is omitted if the curve does not cross the level.

    Returns
    -------
    matplotlib.axes.Axes
        The axes with the plot.

    Raises
    ------
    ValueError
        If the result has no coverage curve, or `level` is not between 0 and 1.

    Examples
    --------
    >>> cb.plots.coverage(result).get_ylabel()
    'coverage of 95% sets'
    """
    curve = result.curve
    level = result.level if level is None else level
    check_level(level, curve.critical_levels.shape[1])
    if not len(curve.etas):
        raise ValueError(f"the result has no coverage curve to draw. {result.message}")
    if level == result.level:
        eta, error = result.eta, result.eta_se
    else:
        eta, error = curve.eta_hat(level), curve.eta_se(level)
    ax, font_size = drawing.open_axes(ax)
    drawing.set_log_scale(ax, "x", curve.etas)
    ax.axhline(level, color=NEUTRAL, lw=0.8, ls=":")
    ax.fill_between(curve.etas, *curve.band(level).T, color=CALIBRATED, alpha=0.18, lw=0)
    ax.plot(curve.etas, curve.coverage(level), color=CALIBRATED, lw=1.5)
    if curve.etas[0] <= eta <= curve.etas[-1]:
        drawing.mark_eta(ax.axvline, ax.axvspan, eta, error, ax.get_xlim())
        drawing.annotate_eta(ax, result, eta, error)
    ax.set(xlabel="learning rate η", ylabel=f"coverage of {percent(level)} sets")
    drawing.tidy(ax, font_size)
    return ax


def trace(result: Result, ax: Axes | None = None) -> Axes:
    """Plot the learning rate and the coverage at each iteration of the search, and those that are reported.

    The upper half shows the learning rates. The ring and the dashed line are the reported learning rate, which is
    usually interpolated on the coverage curve around the last iteration, in a band of one standard error. The lower
    half shows coverage with 95% intervals, on axes of its own.

    Parameters
    ----------
    result : Result
        The result of a calibration.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; they are shrunk to their upper half. Default: new axes.

    Returns
    -------
    matplotlib.axes.Axes
        The upper axes.

    Raises
    ------
    ValueError
        If the trace of the result is empty.

    Examples
    --------
    >>> cb.plots.trace(result).get_ylabel()
    'learning rate η'
    """
    if not result.trace:
        raise ValueError("the result has no trace to draw: the search made no iterations.")
    from matplotlib.ticker import MaxNLocator

    iterations, etas, shares = (
        np.array([getattr(record, field) for record in result.trace]) for field in ("iteration", "eta", "coverage")
    )
    n_replicates = result.coverage.n_replicates
    low, high = np.array([Coverage(round(share * n_replicates), n_replicates).interval for share in shares]).T
    size = 5 if len(iterations) < 20 else 3
    style: dict[str, Any] = {"color": CALIBRATED, "lw": 1.0, "marker": "o", "ms": size}
    ring: dict[str, Any] = {"color": CALIBRATED, "lw": 1.0, "ls": ":", "marker": "o", "ms": size + 2, "mfc": "white"}
    steps = [int(iterations[-1]), int(iterations[-1]) + 1]
    ax, font_size = drawing.open_axes(ax, 3.6)
    lower_ax = drawing.split_axes(ax)
    drawing.set_log_scale(ax, "y", np.append(etas, result.eta))
    drawing.mark_eta(ax.axhline, ax.axhspan, result.eta, result.eta_se, ax.get_ylim())
    ax.plot(steps, [etas[-1], result.eta], markevery=[1], **ring)
    ax.plot(iterations, etas, **style)
    ax.set(ylabel="learning rate η")
    ax.tick_params(labelbottom=False)
    lower_ax.axhline(result.level, color=NEUTRAL, lw=0.8, ls=":")
    lower_ax.vlines(iterations, low, high, color=CALIBRATED, alpha=0.35, lw=1.0)
    lower_ax.plot(steps, [shares[-1], float(result.coverage)], markevery=[1], **ring)
    lower_ax.plot(iterations, shares, **style)
    lower_ax.set(xlabel="iteration", ylabel=f"coverage of\n{percent(result.level)} sets")
    lower_ax.set_xlim(iterations[0] - 0.5, steps[1] + 0.5)
    whole = MaxNLocator(6, integer=True, min_n_ticks=1).tick_values(iterations[0], iterations[-1])
    # Ticks near the last one would overlap with its label.
    ticks = [int(tick) for tick in whole if iterations[0] <= tick <= steps[1] - 0.12 * (steps[1] - iterations[0])]
    lower_ax.set_xticks([*ticks, steps[1]], [*map(str, ticks), "reported"])
    drawing.tidy(ax, font_size)
    drawing.tidy(lower_ax, font_size)
    return ax


def posterior(
    result: Result, k: Parameter | Sequence[Parameter] | None = None, before: float | None = 1.0, ax: Axes | None = None
) -> Axes:
    """Plot the calibrated posterior of one or two parameters, and the posterior at another learning rate.

    For one parameter the plot shows densities and, below them, equal-tailed intervals at the level of the result. For
    two parameters it shows contours that contain this share of the draws. The ring is the estimate. Intervals and
    contours are those of the posterior at the joint learning rate; `result.intervals()` calibrates each interval
    individually.

    Parameters
    ----------
    result : Result
        The result of a calibration. A loaded result has no particles, so that only its calibrated posterior is drawn.
    k : str, int or sequence of two, optional
        Name or index of a parameter, or a sequence of two. Default: all parameters, if there are one or two.
    before : float or None
        Learning rate of the posterior to compare with; None to omit it. Default: 1, which is the ordinary posterior if
        the loss is a negative log-likelihood.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on. Default: new axes.

    Returns
    -------
    matplotlib.axes.Axes
        The axes with the plot.

    Raises
    ------
    ValueError
        If `k` does not name one parameter or two different ones.

    Examples
    --------
    >>> cb.plots.posterior(result, "theta[1]", before=None).get_xlabel()
    'theta[1]'
    """
    if k is None:
        if len(result.names) > 2:
            raise ValueError(
                f"k must name one parameter or two of {', '.join(result.names)}. To draw more, use plots.pairs."
            )
        k = range(len(result.names))
    parameters = [k] if isinstance(k, str | int | np.integer) else list(k)
    indices = [drawing.parameter_index(result, parameter) for parameter in parameters]
    if len(indices) not in (1, 2) or len(set(indices)) < len(indices):
        raise ValueError(f"k must be one parameter or two different ones; got {k!r}.")
    samples = density.samples_to_compare(result, before)
    ax, font_size = drawing.open_axes(ax)
    if len(indices) == 1:
        density.draw_densities(ax, result, samples, indices[0])
    else:
        density.draw_contours(ax, result, samples, *indices)
        ax.set_ylabel(result.names[indices[1]])
    ax.set_xlabel(result.names[indices[0]])
    drawing.tidy(ax, font_size)
    drawing.add_legend(ax, font_size)
    return ax


def pairs(result: Result, before: float | None = 1.0, names: Iterable[Parameter] | None = None) -> np.ndarray:
    """Plot `posterior` for every parameter, on the diagonal, and for every pair of parameters, below it.

    Parameters
    ----------
    result : Result
        The result of a calibration.
    before : float or None
        Learning rate of the posterior to compare with; None to omit it. Default: 1, which is the ordinary posterior if
        the loss is a negative log-likelihood.
    names : iterable of str or int, optional
        Names or indices of the parameters, at most eight. Default: all parameters.

    Returns
    -------
    numpy.ndarray of matplotlib.axes.Axes
        A square array of axes; those above the diagonal are empty.

    Raises
    ------
    ValueError
        If there are more than eight parameters, or one appears twice.

    Examples
    --------
    >>> cb.plots.pairs(result, before=None).shape
    (2, 2)
    """
    parameters = range(len(result.names)) if names is None else names
    indices = [drawing.parameter_index(result, parameter) for parameter in parameters]
    size = len(indices)
    if not 1 <= size <= CONFIG.max_pairs or len(set(indices)) < size:
        raise ValueError(
            f"pairs draws 1 to {CONFIG.max_pairs} different parameters; got {size}. Choose them with names=[...] from "
            f"{', '.join(result.names)}."
        )
    samples = density.samples_to_compare(result, before)
    side = float(np.clip(1.5 * size, CONFIG.width, CONFIG.wide))
    figure, axes = drawing.pyplot().subplots(
        size, size, figsize=(side, side), sharex="col", squeeze=False, layout="constrained"
    )
    density.draw_pairs(axes, result, samples, indices)
    for ax in axes.flat:
        drawing.tidy(ax, CONFIG.font_size)
    if size == 1:
        drawing.add_legend(axes[0, 0], CONFIG.font_size)
    else:
        drawing.add_figure_legend(axes[0, 0], CONFIG.font_size)
    figure.align_labels()
    return axes


def fit(result: Result, x: Parameter | None = None, ax: Axes | None = None) -> Axes:
    """Plot the data and the prediction of a linear model along one column of X, with other columns at their means.

    The line is the prediction at the estimate. The band is the pointwise equal-tailed interval of the calibrated
    posterior at the level of the result; it uses the joint learning rate and is not calibrated at each point. Columns
    that are functions of others, such as squares, are held at their means as well.

    Parameters
    ----------
    result : Result
        The result of a calibration of a model with a loss of a linear prediction, with its data.
    x : str or int, optional
        Name or index of the column of X. Default: the only column that varies.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on. Default: new axes.

    Returns
    -------
    matplotlib.axes.Axes
        The axes with the plot.

    Raises
    ------
    RuntimeError
        If the result was loaded from a file, without its model and data.
    TypeError
        If the loss of the model is not a loss of a linear prediction.
    ValueError
        If `x` is omitted and several columns vary, or column `x` is constant.

    Examples
    --------
    >>> [text.get_text() for text in cb.plots.fit(result).get_legend().get_texts()]
    ['data', '95% band', 'fitted median']
    """
    loss = getattr(result.model, "loss", None)
    if loss is None or result.data is None:
        raise RuntimeError("this result was loaded without its model and data. Calibrate again to draw its fit.")
    if not isinstance(loss, LinearLoss):
        raise TypeError(
            "fit draws models with a loss of a linear prediction; the loss of this model is a general function."
        )
    if isinstance(result.data, Parts):
        raise TypeError("fit draws data in memory; the data of this result are in parts.")
    matrix, y = (np.asarray(part, float) for part in cast(Sequence[Any], result.data))
    k = drawing.varying_column(result, matrix, x)
    grid = np.linspace(matrix[:, k].min(), matrix[:, k].max(), CONFIG.n_fit)
    rows = np.tile(matrix.mean(0), (len(grid), 1))
    rows[:, k] = grid
    tail = (1 - result.level) / 2
    link = np.exp if loss.log_link else np.asarray
    low, high = link(np.quantile(rows @ result.draws.T, [tail, 1 - tail], axis=1))

    ax, font_size = drawing.open_axes(ax)
    classes = loss.margin and bool(np.isin(y, (-1, 1)).all())
    style: dict[str, Any] = {"marker": "|", "ms": 6, "mew": 0.7} if classes else {"marker": "o", "ms": 3, "mew": 0}
    ax.plot(matrix[:, k], y.ravel(), ls="", color=NEUTRAL, alpha=0.35, label="data", **style)
    band_label = f"{percent(result.level)} band"
    ax.fill_between(grid, low, high, color=CALIBRATED, alpha=0.25, lw=0, label=band_label)
    ax.plot(grid, link(rows @ result.estimate), color=CALIBRATED, lw=1.5, label=drawing.fitted_label(loss))
    if classes:
        ax.axhline(0, color=NEUTRAL, lw=0.8, ls=":")
    ax.set(xlabel=result.names[k], ylabel=drawing.response_label(result, classes))
    drawing.tidy(ax, font_size)
    drawing.add_legend(ax, font_size)
    return ax


def diagnostics(result: Result, ax: Axes | None = None) -> Axes:
    r"""Plot how well the particles represent the posterior of each replicate.

    The particles are those at the learning rate at which they were sampled, which can differ slightly from the reported
    one. For transport, each point is a replicate: the Pareto shape $\hat k$ of its importance weights against their
    effective sample size. Weights in the grey area are degenerate, and replicates there were repaired; a cross marks
    the weights that they had before the repair. An infinite $\hat k$ is drawn at the edge.

    For the other samplers there is no $\hat k$; the plot shows the sorted effective sample sizes of the replicates.

    Parameters
    ----------
    result : Result
        The result of a calibration, with its particles.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on. Default: new axes.

    Returns
    -------
    matplotlib.axes.Axes
        The axes with the plot.

    Raises
    ------
    RuntimeError
        If the result has no particles, because it was loaded, unpickled or copied.

    References
    ----------
    Vehtari, Simpson, Gelman, Yao and Gabry (2024). Pareto smoothed importance sampling. Journal of Machine Learning
    Research 25(72).

    Examples
    --------
    >>> cb.plots.diagnostics(result).get_xlabel()
    'effective sample size of ... particles'
    """
    calibration = result._require_calibration()
    iterate = calibration.iterate
    ax, font_size = drawing.open_axes(ax)
    if isinstance(iterate.state, TransportState):
        drawing.draw_importance_weights(ax, calibration.problem.target, iterate.state)
    else:
        ess, not_mixed = iterate.info.ess[1:], iterate.info.not_mixed[1:]
        order, ranks = np.argsort(ess), np.arange(1, len(ess) + 1)
        drawing.draw_replicates(ax, ranks, ess[order], not_mixed[order], ("mixed", "not mixed"))
        xlabel = "replicate, sorted by effective sample size"
        ax.set(xlabel=xlabel, ylabel="effective sample size", ylim=(0, None))
    drawing.tidy(ax, font_size)
    drawing.add_legend(ax, font_size)
    return ax
