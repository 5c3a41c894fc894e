"""Plots of a calibration. Each draws on the Axes it is given, or on new ones as wide as a paper's column; returns them.

Blue is the calibrated posterior, dashed orange the one it is compared with. On new axes letters are of 8 points; on the
caller's they follow the caller's settings.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from calibayes._backend.functions import as_float
from calibayes._core.convergence import pareto_k, pareto_k_limit
from calibayes._core.curve import Coverage
from calibayes._validate.checks import check_level
from calibayes.losses import LinearLoss
from calibayes.plots import drawing
from calibayes.result import Result
from calibayes.samplers.transport.maps import weigh
from calibayes.samplers.transport.sampler import GOOD, LOW_ESS, TransportState

_MOST = 8
"""Parameters in one picture of pairs."""


def coverage(result: Result, ax: Any = None, level: float | None = None) -> Any:
    """Coverage against the learning rate, with a pointwise 95% band, and where it meets the level.

    The vertical line is eta-hat, in a band of one standard error on either side. At another `level` than the result's
    it is read off the curve, and left out where the curve does not reach it.
    """
    curve = result.curve
    wanted = result.level if level is None else level
    check_level(wanted, curve.critical_levels.shape[1])
    if not len(curve.etas):
        raise ValueError(f"there is no coverage curve to draw: {result.message}.")
    if wanted == result.level:
        eta, error = result.eta, result.eta_se
    else:
        eta, error = curve.eta_hat(wanted), curve.eta_se(wanted)
    ax, done = drawing.axes(ax)
    drawing.plain_log(ax, "x", curve.etas)
    ax.axhline(wanted, color=drawing.INK, lw=0.8, ls=":")
    ax.fill_between(curve.etas, *curve.band(wanted).T, color=drawing.AFTER, alpha=0.18, lw=0)
    ax.plot(curve.etas, curve.coverage(wanted), color=drawing.AFTER, lw=1.5)
    if curve.etas[0] <= eta <= curve.etas[-1]:
        drawing.mark(ax.axvline, ax.axvspan, eta, error, ax.get_xlim())
        # The curve falls, and leaves room at the lower left of the line and at its upper right.
        left = eta > 0.95 * np.sqrt(curve.etas[0] * curve.etas[-1])
        ax.annotate(
            f"{eta:.4g} ± {error:.2g}" + ("" if result.converged else "\nnot converged"),
            (eta, 0.04 if left else 0.96),
            (-6 if left else 6, 0),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="right" if left else "left",
            va="bottom" if left else "top",
            color=drawing.AFTER,
            fontsize="small",
        )
    ax.set(xlabel="learning rate", ylabel=f"coverage of {drawing.percent(wanted)} sets")
    return done()


def trace(result: Result, ax: Any = None) -> Any:
    """The search: the learning rate of each iteration, and below it what its sets covered, with a 95% interval.

    The horizontal line is eta-hat, which is read off the curve around the last iteration, in a band of one standard
    error. Coverage has axes of its own in the lower half of `ax`; the upper half is returned.
    """
    if not result.trace:
        raise ValueError("there is no trace to draw: it has no iterations.")
    from matplotlib.ticker import MaxNLocator

    at, etas, covered = (
        np.array([getattr(record, field) for record in result.trace]) for field in ("iteration", "eta", "coverage")
    )
    n_replicates = result.coverage.n_replicates
    low, high = np.array([Coverage(round(share * n_replicates), n_replicates).interval for share in covered]).T
    look = {"color": drawing.AFTER, "lw": 1.0, "marker": "o", "ms": 4 if len(at) < 20 else 2}
    ax, done = drawing.axes(ax, 2.6)
    below = drawing.lower_half(ax)
    drawing.plain_log(ax, "y", np.append(etas, result.eta))
    drawing.mark(ax.axhline, ax.axhspan, result.eta, result.eta_se, ax.get_ylim())
    ax.plot(at, etas, **look)
    ax.set(ylabel="learning rate")
    ax.tick_params(labelbottom=False)
    below.axhline(result.level, color=drawing.INK, lw=0.8, ls=":")
    below.vlines(at, low, high, color=drawing.AFTER, alpha=0.35, lw=1.0)
    below.plot(at, covered, **look)
    below.set(xlabel="iteration", ylabel=f"coverage of\n{drawing.percent(result.level)} sets")
    below.set_xlim(at[0] - 0.5, at[-1] + 0.5)
    below.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    return done(below)


def posterior(result: Result, k: Any = None, before: float | None = 1.0, ax: Any = None) -> Any:
    """The calibrated posterior of one parameter, or of two, and the one at the learning rate `before`.

    `k` is a name or an index, or two of them. Of one parameter, densities and, under them, equal-tailed intervals at
    the result's level; of two, contours that hold this share of the draws. All are of the one joint posterior, not
    calibrated each by itself (`result.intervals()` is). The ring is the estimate. Of a result that was loaded only the
    calibrated posterior is left to draw.
    """
    if k is None:
        if len(result.names) > 2:
            raise ValueError(f"say which parameter, or which two: {', '.join(result.names)}. Or draw plots.pairs.")
        k = range(len(result.names))
    chosen = [drawing.index(result, one) for one in ([k] if isinstance(k, str | int | np.integer) else k)]
    if len(chosen) not in (1, 2) or len(set(chosen)) < len(chosen):
        raise ValueError(f"k must be one parameter, or two different ones; got {k!r}.")
    both = drawing.before_and_after(result, before)
    ax, done = drawing.axes(ax)
    if len(chosen) == 1:
        drawing.densities(ax, result, both, chosen[0])
    else:
        drawing.contours(ax, result, both, *chosen)
        ax.set_ylabel(result.names[chosen[1]])
    ax.set_xlabel(result.names[chosen[0]])
    return done(legend=True)


def pairs(result: Result, before: float | None = 1.0, names: Iterable[Any] | None = None) -> Any:
    """`posterior` of every parameter, on the diagonal, and of every two, below it: a square array of Axes.

    `names` chooses parameters, by name or index; there is room for eight.
    """
    from matplotlib.ticker import MaxNLocator

    chosen = [drawing.index(result, name) for name in (range(len(result.names)) if names is None else names)]
    size = len(chosen)
    if not 1 <= size <= _MOST or len(set(chosen)) < size:
        raise ValueError(
            f"pairs draws 1 to {_MOST} different parameters, not {size}: choose with names=[...] among "
            f"{', '.join(result.names)}."
        )
    both = drawing.before_and_after(result, before)
    side = float(np.clip(1.2 * size, drawing.WIDTH, 7.0))
    figure, axes = drawing.pyplot().subplots(
        size, size, figsize=(side, side), sharex="col", squeeze=False, layout="constrained"
    )
    for row, column in np.ndindex(size, size):
        ax, i, j = axes[row, column], chosen[column], chosen[row]
        if column > row:
            ax.set_axis_off()
            continue
        if column == row:
            drawing.densities(ax, result, both, i)
        else:
            drawing.contours(ax, result, both, i, j)
            ax.yaxis.set_major_locator(MaxNLocator(3))
            if column:
                ax.sharey(axes[row, 0])
                ax.tick_params(labelleft=False)
            else:
                ax.set_ylabel(result.names[j])
        ax.xaxis.set_major_locator(MaxNLocator(3))
        if row == size - 1:
            ax.set_xlabel(result.names[i])
    for ax in axes.flat:
        drawing.tidy(ax, 8)
    if size == 1:
        drawing.put_legend(axes[0, 0], 8)
    else:
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="upper right", fontsize=8, **drawing.LEGEND)
    figure.align_labels()
    return axes


def fit(result: Result, x: Any = None, ax: Any = None) -> Any:
    """The data and what a linear model predicts along one column of X, with the other columns at their means.

    The line is the prediction at the estimate. The band is pointwise, at the result's level, of the calibrated
    posterior: at its one joint eta, not calibrated at each point by itself. `x` is a name or an index, and may be left
    out where only one column varies. A column made from others, as a square is, does not move along with them.
    """
    loss = getattr(result.model, "loss", None)
    if loss is None or result.data is None:
        raise RuntimeError("this result was loaded, without its model and data: calibrate again to draw its fit.")
    if not isinstance(loss, LinearLoss):
        raise TypeError("fit draws linear models, whose loss is of x @ theta and y; this model's is a function.")
    matrix, y = (np.asarray(part, float) for part in result.data)
    varies = np.ptp(matrix, axis=0) > 0
    if x is None:
        if varies.sum() != 1:
            names = ", ".join(result.names[k] for k in np.flatnonzero(varies))
            raise ValueError(f"say along which column x of X to draw: {names or 'but none varies'}.")
        x = int(np.argmax(varies))
    k = drawing.index(result, x)
    if not varies[k]:
        raise ValueError(f"{result.names[k]} is constant: there is nothing to draw along it.")
    along = np.linspace(matrix[:, k].min(), matrix[:, k].max(), 100)
    rows = np.tile(matrix.mean(0), (len(along), 1))
    rows[:, k] = along
    tail = (1 - result.level) / 2
    low, high = np.quantile(rows @ result.draws.T, [tail, 1 - tail], axis=1)

    ax, done = drawing.axes(ax)
    classes = not loss.location and np.isin(y, (-1, 1)).all()
    look = {"marker": "|", "ms": 6, "mew": 0.7} if classes else {"marker": "o", "ms": 3, "mew": 0}
    ax.plot(matrix[:, k], y.ravel(), ls="", color=drawing.INK, alpha=0.35, label="data", **look)
    ax.fill_between(
        along, low, high, color=drawing.AFTER, alpha=0.25, lw=0, label=f"{drawing.percent(result.level)} band"
    )
    ax.plot(along, rows @ result.estimate, color=drawing.AFTER, lw=1.5, label=drawing.predicted(loss))
    if classes:
        ax.axhline(0, color=drawing.INK, lw=0.8, ls=":")
    ax.set(xlabel=result.names[k], ylabel="score (class is −1 or 1)" if classes else "y")
    return done(legend=True)


def diagnostics(result: Result, ax: Any = None) -> Any:
    """How far to trust the particles of each bootstrap row, at the learning rate at which they were sampled.

    For transport: the effective size of a row's importance weights against their Pareto k-hat. In the grey area they
    have failed, and rows there are sampled instead: a cross is where their weights were. A k-hat that is infinite is
    drawn at the edge. Other samplers have no such weights: their effective sizes are drawn from the smallest up.
    """
    found = result._calibration().found
    amiss, sizes, state = found.reach.not_mixed[1:], found.reach.ess[1:], found.state
    if not isinstance(state, TransportState):
        order = np.argsort(sizes)
        ax, done = drawing.axes(ax)
        drawing.select(ax, np.arange(1, len(order) + 1), sizes[order], amiss[order], ("settled", "had not settled"))
        ax.set(xlabel="bootstrap rows, by effective size", ylabel="effective size", ylim=(0, None))
        return done(legend=True)
    # The maps are as they were before rows were sampled: they give back the weights that failed.
    particles, _ = weigh(result.calibration.loop.target, state.base, state.carried.maps, as_float(state.eta))
    shapes, most = pareto_k(particles.log_weights)[1:], particles.risk.shape[-1]
    limit, finite = pareto_k_limit(most), shapes[np.isfinite(shapes)]
    low, high = min([0.0, *finite]) - 0.1, max([1.0, *finite]) + 0.1
    ax, done = drawing.axes(ax)
    ax.fill_between([0, LOW_ESS * most], low, high, color=drawing.INK, alpha=0.1, lw=0)
    ax.fill_between([LOW_ESS * most, GOOD * most], limit, high, color=drawing.INK, alpha=0.1, lw=0)
    before = np.asarray(state.carried.ess)[1:]
    drawing.select(ax, before, np.clip(shapes, low, high), state.repaired[1:], ("weighted", "sampled instead"))
    ax.set(xlabel=f"effective size, of {most:,} particles", ylabel="Pareto k-hat", xlim=(0, most), ylim=(low, high))
    return done(legend=True)
