"""Posterior densities and contours, and the panels that show them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from calibayes._core.coordinates import Coordinates
from calibayes.plots.drawing import CALIBRATED, COMPARED, CONFIG, Axes
from calibayes.result import Result


class Sample(NamedTuple):
    """Posterior draws at one learning rate, and how they are drawn."""

    draws: Float[np.ndarray, "M K"]
    label: str
    style: dict[str, Any]


def samples_to_compare(result: Result, before: float | None) -> list[Sample]:
    """Return draws at the learning rate `before`, if the result has particles, followed by the calibrated draws."""
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


def draw_pairs(axes: Any, result: Result, samples: Sequence[Sample], indices: list[int]) -> None:
    """Draw densities on the diagonal of a square array of axes, and contours below it."""
    from matplotlib.ticker import MaxNLocator

    size = len(indices)
    for row, column in np.ndindex(size, size):
        ax, i, j = axes[row, column], indices[column], indices[row]
        if column > row:
            ax.set_axis_off()
            continue
        if column == row:
            draw_densities(ax, result, samples, i)
        else:
            draw_contours(ax, result, samples, i, j)
            ax.yaxis.set_major_locator(MaxNLocator(3))
            if column:
                ax.sharey(axes[row, 0])
                ax.tick_params(labelleft=False)
            else:
                ax.set_ylabel(result.names[j])
        ax.xaxis.set_major_locator(MaxNLocator(3))
        if row == size - 1:
            ax.set_xlabel(result.names[i])


def axis_limits(samples: Sequence[Sample], k: int) -> tuple[float, float]:
    """Return limits around the draws of parameter `k`, at most four times as wide as the calibrated draws."""
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
