"""Helpers of the plots: axes, styles, density estimates and contours."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from calibayes._core.coordinates import Coordinates
from calibayes.losses import Absolute, LinearLoss, Quantile, Squared
from calibayes.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
else:
    # matplotlib is an optional dependency, so that its types are not available at run time.
    Axes = Any

CALIBRATED, COMPARED, NEUTRAL = "#20639b", "#dd8047", "#333333"
"""Colours of the calibrated posterior, of the posterior that it is compared with, and of everything else."""


@dataclass(frozen=True)
class PlotConfig:
    """Layout of the plots; display choices."""

    column_width: float = 3.3
    """Width of a new figure in inches: one column of a journal page."""
    font_size: int = 8
    """Font size of a new figure in points."""
    max_pairs: int = 8
    """Number of parameters that `pairs` draws at most, so that its panels stay readable."""
    n_density: int = 200
    """Bins of a density estimate in one dimension."""
    n_contour: int = 120
    """Bins per axis of a density estimate in two dimensions."""
    n_fit: int = 100
    """Points at which `fit` evaluates the prediction."""


CONFIG = PlotConfig()

_LEGEND: dict[str, Any] = {"frameon": False, "handlelength": 1.4, "handletextpad": 0.5, "borderaxespad": 0.2}


class Sample(NamedTuple):
    """Posterior draws at one learning rate, and how they are drawn."""

    draws: Float[np.ndarray, "M K"]
    label: str
    style: dict[str, str]


def samples_to_compare(result: Result, before: float | None) -> list[Sample]:
    """Return draws at the learning rate `before`, if there are particles to compute them from, and the calibrated ones."""
    samples = [Sample(result.draws, f"calibrated, η = {result.eta:.3g}", {"color": CALIBRATED, "ls": "-"})]
    if before is not None and result.calibration is not None:
        draws = result.posterior(before)
        samples.insert(0, Sample(draws, f"η = {before:.3g}", {"color": COMPARED, "ls": "--"}))
    return samples


def draw_densities(ax: Axes, result: Result, samples: Sequence[Sample], k: int) -> None:
    """Draw the marginal density of parameter `k`, with equal-tailed intervals below it."""
    tail = (1 - result.level) / 2
    bounds = Coordinates.from_prior(getattr(result.model, "prior", None), len(result.names))
    low, high = float(bounds.low[k]), float(bounds.high[k])
    if k == 0 and result.settings.get("centred"):
        # The prior bounds the prediction at the means of the columns, not the reported intercept.
        low, high = -np.inf, np.inf
    curves = [density_estimate(sample.draws[:, k], low, high) for sample in samples]
    spacing = 0.08 * max(density.max() for _, density in curves)
    for i, (sample, (grid, density)) in enumerate(zip(samples, curves, strict=True)):
        ax.plot(grid, density, lw=1.3, label=sample.label, **sample.style)
        y = -spacing * (len(samples) - i)
        interval = np.quantile(sample.draws[:, k], [tail, 1 - tail])
        ax.plot(interval, [y, y], color=sample.style["color"], lw=2.5, solid_capstyle="butt")
    grid, density = curves[-1]
    ax.fill_between(grid, density, color=CALIBRATED, alpha=0.15, lw=0)
    ax.plot(result.estimate[k], -spacing, "o", color="white", mec=CALIBRATED, ms=4, mew=1.2)
    ax.set(yticks=[], ylim=(-spacing * (len(samples) + 1), 13 * spacing), xlim=axis_limits(samples, k))
    ax.spines["left"].set_visible(False)


def draw_contours(ax: Axes, result: Result, samples: Sequence[Sample], i: int, j: int) -> None:
    """Draw for parameters `i` and `j` the contours that contain a share of the draws equal to the level."""
    for sample in samples:
        x, y, density, threshold = highest_density_region(sample.draws[:, [i, j]], result.level)
        style = sample.style
        ax.contour(x, y, density, [threshold], colors=style["color"], linestyles=style["ls"], linewidths=1.3)
        ax.plot([], [], lw=1.3, label=sample.label, **style)
    ax.contourf(x, y, density, [threshold, np.inf], colors=[CALIBRATED], alpha=0.15)
    ax.plot(result.estimate[i], result.estimate[j], "o", color="white", mec=CALIBRATED, ms=4, mew=1.2)
    ax.set(xlim=axis_limits(samples, i), ylim=axis_limits(samples, j))


def draw_replicates(
    ax: Axes, x: np.ndarray, y: np.ndarray, flagged: Bool[np.ndarray, " B"], labels: tuple[str, str]
) -> None:
    """Draw one point per replicate, and a cross for each flagged one."""
    styles: tuple[dict[str, Any], dict[str, Any]] = (
        {"marker": "o", "ms": 2.5, "mew": 0, "alpha": 0.5, "color": CALIBRATED},
        {"marker": "x", "ms": 4, "color": COMPARED},
    )
    for label, chosen, style in zip(labels, (~flagged, flagged), styles, strict=True):
        if chosen.any():
            ax.plot(x[chosen], y[chosen], ls="", clip_on=False, label=f"{label} ({chosen.sum():,})", **style)


def axis_limits(samples: Sequence[Sample], k: int) -> tuple[float, float]:
    """Return limits that contain all draws of parameter `k`, but at most four times the width of the calibrated ones."""
    ranges = [np.quantile(sample.draws[:, k], [0.0005, 0.9995]) for sample in samples]
    low, high = ranges[-1]
    width = high - low
    lowest, highest = min(start for start, _ in ranges), max(end for _, end in ranges)
    margin = 0.1 * width
    return max(lowest, low - 1.5 * width) - margin, min(highest, high + 1.5 * width) + margin


def density_estimate(draws: Float[np.ndarray, " M"], low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Return a grid and a kernel density estimate on it, reflected at the bounds `low` and `high`.

    The bandwidth is Silverman's rule for a normal density, 1.06 times the standard deviation times M^(-1/5).
    """
    bandwidth = 1.06 * draws.std() * len(draws) ** -0.2
    ends = max(draws.min() - 3 * bandwidth, low), min(draws.max() + 3 * bandwidth, high)
    counts, edges = np.histogram(draws, CONFIG.n_density, ends)
    grid = (edges[1:] + edges[:-1]) / 2
    images = np.stack([grid, 2 * low - grid, 2 * high - grid])
    density = np.exp(-0.5 * np.square((grid[:, None] - images[:, None]) / bandwidth)).sum(0) @ counts
    return grid, density / (density.sum() * (edges[1] - edges[0]))


def highest_density_region(
    draws: Float[np.ndarray, "M 2"], level: float
) -> tuple[Float[np.ndarray, "G H"], Float[np.ndarray, "G H"], Float[np.ndarray, "G H"], float]:
    """Return a density estimate on a grid, and the density that a share `level` of the draws exceeds.

    The grid is regular in the coordinates in which the draws have unit covariance, so that correlated draws need no
    finer grid.
    """
    centre, root = draws.mean(0), np.linalg.cholesky(np.cov(draws, rowvar=False))
    white = np.linalg.solve(root, (draws - centre).T)
    bandwidth = 1.4 * len(draws) ** (-1 / 6)
    radius = np.quantile(np.hypot(*white), 1 - 0.2 * (1 - level)) + 3 * bandwidth
    edges = np.linspace(-radius, radius, CONFIG.n_contour + 1)
    grid = (edges[1:] + edges[:-1]) / 2
    kernel = np.exp(-0.5 * np.square((grid[:, None] - grid) / bandwidth))
    density = kernel @ np.histogram2d(white[0], white[1], [edges, edges])[0] @ kernel
    cells = np.searchsorted(edges, white) - 1
    inside = ((cells >= 0) & (cells < len(grid))).all(0)
    density_at_draws = np.where(inside, density[tuple(np.clip(cells, 0, len(grid) - 1))], 0)
    threshold = float(np.quantile(density_at_draws, 1 - level))
    # Crop the grid to the region, because the limits of the axes would include all of it.
    occupied = [np.flatnonzero((density >= threshold).any(axis)) for axis in (1, 0)]
    crop = tuple(slice(max(cells[0] - 3, 0), cells[-1] + 4) for cells in occupied)
    x, y = np.tensordot(root, np.meshgrid(grid, grid, indexing="ij"), 1) + centre[:, None, None]
    return x[crop], y[crop], density[crop], threshold


def fitted_label(loss: LinearLoss) -> str:
    """Return the name of the quantity that a linear model with this loss predicts."""
    if isinstance(loss, Quantile) and float(loss.tau) != 0.5:
        return f"fitted {percent(float(loss.tau))} quantile"
    names = {Quantile: "fitted median", Absolute: "fitted median", Squared: "fitted mean"}
    return names.get(type(loss), "fit")


def parameter_index(result: Result, parameter: str | int | np.integer) -> int:
    """Return the index of a parameter from its name or index."""
    if isinstance(parameter, str) and parameter in result.names:
        return result.names.index(parameter)
    if isinstance(parameter, int | np.integer) and 0 <= parameter < len(result.names):
        return int(parameter)
    raise ValueError(
        f"there is no parameter {parameter!r}. Use one of {', '.join(result.names)}, or an index from 0 to "
        f"{len(result.names) - 1}."
    )


def percent(level: float) -> str:
    """Format a level, such as 0.95, as a percentage."""
    return f"{100 * level:.4g}%"


def mark_eta(
    line: Callable[..., Any], span: Callable[..., Any], eta: float, error: float, limits: tuple[float, float]
) -> None:
    """Draw a line at eta and a band of one standard error on either side, clipped to the limits of the axis."""
    line(eta, color=CALIBRATED, lw=0.9, ls="--")
    span(*np.clip([eta - error, eta + error], *limits), color=CALIBRATED, alpha=0.1, lw=0)


def pyplot() -> Any:
    """Import `matplotlib.pyplot`, or raise an error that names the extra to install."""
    try:
        import matplotlib.pyplot
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'calibayes[plots]'.") from error
    return matplotlib.pyplot


def open_axes(ax: Axes | None, height: float = 2.3) -> tuple[Axes, int | None]:
    """Return the axes to draw on, and the font size of new ones; None if they are the caller's."""
    if ax is None:
        return pyplot().subplots(figsize=(CONFIG.column_width, height), layout="constrained")[1], CONFIG.font_size
    if not hasattr(ax, "get_subplotspec"):
        raise TypeError(f"ax must be one matplotlib Axes; got {type(ax).__name__}.")
    return ax, None


def split_axes(ax: Axes) -> Axes:
    """Shrink axes to the upper half of their place, and return new ones in the lower half."""
    spec, figure = ax.get_subplotspec(), ax.figure
    if spec is None:
        box = ax.get_position()
        half = 0.46 * box.height
        ax.set_position((box.x0, box.y1 - half, box.width, half))
        lower_ax = figure.add_axes((box.x0, box.y0, box.width, half), sharex=ax)
    else:
        upper, lower = spec.subgridspec(2, 1, hspace=0.1)
        ax.set_subplotspec(upper)
        lower_ax = figure.add_subplot(lower, sharex=ax)
    figure.sca(ax)
    return lower_ax


def tidy(ax: Axes, font_size: int | None) -> None:
    """Remove the upper and right spine, and set all fonts to `font_size` unless it is None."""
    from matplotlib.text import Text

    ax.spines[["top", "right"]].set_visible(False)
    if font_size is not None:
        ax.tick_params(labelsize=font_size)
        for text in ax.findobj(Text):
            text.set_fontsize(font_size)


def set_log_scale(ax: Axes, axis_name: str, values: Float[np.ndarray, " G"]) -> None:
    """Make the x or y axis logarithmic around the values, with plain tick labels also within one decade."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    low, high = values.min(), values.max()
    margin = max(1.04, float(high / low) ** 0.05)
    ax.set(**{f"{axis_name}scale": "log", f"{axis_name}lim": (low / margin, high * margin)})
    axis = getattr(ax, f"{axis_name}axis")
    if high > 10 * low:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    else:
        n_ticks = 6 if axis_name == "x" else 4
        axis.set_major_locator(MaxNLocator(n_ticks, steps=[1, 2, 2.5, 5, 10], min_n_ticks=3))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def add_legend(ax: Axes, font_size: int | None) -> None:
    """Add a legend above the axes, where it covers no data."""
    size: int | str = "small" if font_size is None else font_size
    ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, columnspacing=1.0, fontsize=size, **_LEGEND)


def add_figure_legend(ax: Axes, font_size: int) -> None:
    """Add the legend of `ax` at the upper right of its figure."""
    ax.figure.legend(*ax.get_legend_handles_labels(), loc="upper right", fontsize=font_size, **_LEGEND)
