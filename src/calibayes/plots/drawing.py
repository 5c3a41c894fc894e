"""What the plots are drawn with: axes, colours, densities and level sets."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from calibayes._core.coordinates import Coordinates
from calibayes.losses import Absolute, LinearLoss, Quantile, Squared
from calibayes.result import Result

BEFORE, AFTER, INK = "#dd8047", "#20639b", "#333333"
WIDTH = 3.3
"""Inches: a column of a paper."""
LEGEND: dict[str, Any] = {"frameon": False, "handlelength": 1.4, "handletextpad": 0.5, "borderaxespad": 0.2}


def rows(ax: Any, x: np.ndarray, y: np.ndarray, amiss: Bool[np.ndarray, " B"], labels: tuple[str, str]) -> None:
    looks = (
        {"marker": "o", "ms": 2.5, "mew": 0, "alpha": 0.5, "color": AFTER},
        {"marker": "x", "ms": 4, "color": BEFORE},
    )
    for label, which, look in zip(labels, (~amiss, amiss), looks, strict=True):
        if which.any():
            ax.plot(x[which], y[which], ls="", clip_on=False, label=f"{label} ({which.sum():,})", **look)


def before_and_after(result: Result, before: float | None) -> list[tuple[Float[np.ndarray, "M K"], str, dict]]:
    """Draws, what they are called, and how their lines look; the calibrated ones last."""
    both = [(result.draws, f"calibrated, {result.eta:.3g}", {"color": AFTER, "ls": "-"})]
    if before is not None and result.calibration is not None:
        both.insert(0, (result.posterior(before), f"learning rate {before:.3g}", {"color": BEFORE, "ls": "--"}))
    return both


def densities(ax: Any, result: Result, both: list, k: int) -> None:
    tail = (1 - result.level) / 2
    walls = Coordinates.of(getattr(result.model, "prior", None), len(result.names))
    low, high = float(walls.low[k]), float(walls.high[k])
    if k == 0 and result.settings.get("centred"):
        low, high = -np.inf, np.inf  # The prior's are for the prediction at the columns' means.
    curves = [smoothed(draws[:, k], low, high) for draws, _, _ in both]
    step = 0.08 * max(density.max() for _, density in curves)
    for place, ((draws, label, look), (at, density)) in enumerate(zip(both, curves, strict=True)):
        ax.plot(at, density, lw=1.3, label=label, **look)
        under = -step * (len(both) - place)
        interval = np.quantile(draws[:, k], [tail, 1 - tail])
        ax.plot(interval, [under, under], color=look["color"], lw=2.5, solid_capstyle="butt")
    ax.fill_between(at, density, color=AFTER, alpha=0.15, lw=0)
    ax.plot(result.estimate[k], under, "o", color="white", mec=AFTER, ms=4, mew=1.2)
    ax.set(yticks=[], ylim=(-step * (len(both) + 1), 13 * step), xlim=frame(both, k))
    ax.spines["left"].set_visible(False)


def contours(ax: Any, result: Result, both: list, i: int, j: int) -> None:
    for draws, label, look in both:
        x, y, density, threshold = level_set(draws[:, [i, j]], result.level)
        ax.contour(x, y, density, [threshold], colors=look["color"], linestyles=look["ls"], linewidths=1.3)
        ax.plot([], [], lw=1.3, label=label, **look)
    ax.contourf(x, y, density, [threshold, np.inf], colors=[AFTER], alpha=0.15)
    ax.plot(result.estimate[i], result.estimate[j], "o", color="white", mec=AFTER, ms=4, mew=1.2)
    ax.set(xlim=frame(both, i), ylim=frame(both, j))


def frame(both: list, k: int) -> tuple[float, float]:
    """Where all draws are, but not much farther than the calibrated ones: the others may be of another order."""
    ranges = [np.quantile(draws[:, k], [0.0005, 0.9995]) for draws, _, _ in both]
    low, high = ranges[-1]
    width = high - low
    lowest, highest = min(own[0] for own in ranges), max(own[1] for own in ranges)
    margin = 0.1 * width
    return max(lowest, low - 1.5 * width) - margin, min(highest, high + 1.5 * width) + margin


def smoothed(draws: Float[np.ndarray, " M"], low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """A smoothed histogram, reflected at the prior's bounds so that it keeps within them."""
    width = 1.06 * draws.std() * len(draws) ** -0.2
    ends = max(draws.min() - 3 * width, low), min(draws.max() + 3 * width, high)
    counts, edges = np.histogram(draws, 200, ends)
    at = (edges[1:] + edges[:-1]) / 2
    images = np.stack([at, 2 * low - at, 2 * high - at])
    smooth = np.exp(-0.5 * np.square((at[:, None] - images[:, None]) / width)).sum(0) @ counts
    return at, smooth / (smooth.sum() * (edges[1] - edges[0]))


def level_set(draws: Float[np.ndarray, "M 2"], level: float) -> tuple[Any, Any, Float[np.ndarray, "G H"], float]:
    """A smoothed histogram on a grid stretched along with the draws, and the density that `level` of them exceed."""
    centre, root = draws.mean(0), np.linalg.cholesky(np.cov(draws, rowvar=False))
    white = np.linalg.solve(root, (draws - centre).T)
    width = 1.4 * len(draws) ** (-1 / 6)
    reach = np.quantile(np.hypot(*white), 1 - 0.2 * (1 - level)) + 3 * width
    edges = np.linspace(-reach, reach, 121)
    at = (edges[1:] + edges[:-1]) / 2
    kernel = np.exp(-0.5 * np.square((at[:, None] - at) / width))
    density = kernel @ np.histogram2d(white[0], white[1], [edges, edges])[0] @ kernel
    cells = np.searchsorted(edges, white) - 1
    inside = ((cells >= 0) & (cells < len(at))).all(0)
    at_draws = np.where(inside, density[tuple(np.clip(cells, 0, len(at) - 1))], 0)
    threshold = float(np.quantile(at_draws, 1 - level))
    # No more of the grid than the set needs, as the axes take in all of it.
    over = [np.flatnonzero((density >= threshold).any(axis)) for axis in (1, 0)]
    part = tuple(slice(max(i[0] - 3, 0), i[-1] + 4) for i in over)
    x, y = np.tensordot(root, np.meshgrid(at, at, indexing="ij"), 1) + centre[:, None, None]
    return x[part], y[part], density[part], threshold


def predicted(loss: LinearLoss) -> str:
    if isinstance(loss, Quantile) and float(loss.tau) != 0.5:
        return f"fitted {percent(float(loss.tau))} quantile"
    names = {Quantile: "fitted median", Absolute: "fitted median", Squared: "fitted mean"}
    return names.get(type(loss), "fit")


def index(result: Result, k: Any) -> int:
    if isinstance(k, str) and k in result.names:
        return result.names.index(k)
    if isinstance(k, int | np.integer) and 0 <= k < len(result.names):
        return int(k)
    raise ValueError(f"there is no parameter {k!r}: there are {', '.join(result.names)}, or their indices from 0.")


def percent(level: float) -> str:
    return f"{100 * level:.4g}%"


def mark(line: Callable, span: Callable, eta: float, error: float, limits: tuple[float, float]) -> None:
    line(eta, color=AFTER, lw=0.9, ls="--")
    span(*np.clip([eta - error, eta + error], *limits), color=AFTER, alpha=0.1, lw=0)


def pyplot() -> Any:
    try:
        import matplotlib.pyplot
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'calibayes[plots]'.") from error
    return matplotlib.pyplot


def axes(ax: Any, height: float = 2.3) -> tuple[Any, Callable[..., Any]]:
    """Axes to draw on; and what tidies them, and others that came along, and returns them."""
    size = 8 if ax is None else None
    if ax is None:
        ax = pyplot().subplots(figsize=(WIDTH, height), layout="constrained")[1]
    if not hasattr(ax, "get_subplotspec"):
        raise TypeError(f"ax must be one matplotlib Axes; got {type(ax).__name__}.")

    def done(*others: Any, legend: bool = False) -> Any:
        for one in (ax, *others):
            tidy(one, size)
        if legend:
            put_legend(ax, size or "small")
        return ax

    return ax, done


def lower_half(ax: Any) -> Any:
    """New axes in the lower half of these, which keep the upper one."""
    spec, figure = ax.get_subplotspec(), ax.figure
    if spec is None:
        box = ax.get_position()
        half = 0.46 * box.height
        ax.set_position((box.x0, box.y1 - half, box.width, half))
        below = figure.add_axes((box.x0, box.y0, box.width, half), sharex=ax)
    else:
        upper, lower = spec.subgridspec(2, 1, hspace=0.1)
        ax.set_subplotspec(upper)
        below = figure.add_subplot(lower, sharex=ax)
    figure.sca(ax)
    return below


def tidy(ax: Any, size: int | None) -> None:
    from matplotlib.text import Text

    ax.spines[["top", "right"]].set_visible(False)
    if size is not None:
        ax.tick_params(labelsize=size)
        for text in ax.findobj(Text):
            text.set_fontsize(size)


def plain_log(ax: Any, which: str, values: Float[np.ndarray, " G"]) -> None:
    """A logarithmic axis around some values, with plain numbers however little of a decade there is."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    low, high = values.min(), values.max()
    room = max(1.04, float(high / low) ** 0.05)
    ax.set(**{f"{which}scale": "log", f"{which}lim": (low / room, high * room)})
    axis = getattr(ax, f"{which}axis")
    few = MaxNLocator(6 if which == "x" else 4, steps=[1, 2, 2.5, 5, 10], min_n_ticks=3)
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)) if high > 10 * low else few)
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def put_legend(ax: Any, size: int | str) -> None:
    """Above the axes, where no data are; what is too long goes over the ticks' labels."""
    ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, columnspacing=1.0, fontsize=size, **LEGEND)
