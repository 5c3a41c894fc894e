"""Compute the numbers that the figures of the HTML report draw.

The page gets a few numbers per learning rate of the coverage curve, and interpolates between them when the reader moves
the slider. It gets no draws, so that it stays small. Intervals at other learning rates come from the reported draws,
reweighted by `exp(-(eta - eta_hat) * risk)`.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from calibayes._backend.text import printable
from calibayes.result import Intervals, Result


@dataclass(frozen=True)
class FiguresConfig:
    """Resolution of the figures; display choices."""

    n_bins: int = 20
    """Bins of the histogram of critical levels."""
    many_parameters: int = 100
    """Number of parameters above which only three learning rates are stored, so that the page stays below 300 kB."""
    extra_digits: int = 3
    """Decimal digits that numbers keep beyond the order of magnitude of the posterior's standard deviation."""


CONFIG = FiguresConfig()


def figures(result: Result, intervals: Intervals | None) -> dict[str, Any]:
    """Return the numbers of all figures as JSON data; numbers that are not finite are None."""
    etas = _learning_rates(result)
    low, mean, high = _marginal_summaries(result, etas)
    edges, counts = _histogram(result, etas)
    coverage, band = _coverage(result, etas)
    decimals = [_decimals(deviation) for deviation in result.draws.std(0).tolist()]
    return {
        "eta": float(result.eta),
        "eta_se": _finite(result.eta_se),
        "level": result.level,
        "etas": [float(f"{eta:.6g}") if eta != result.eta else float(eta) for eta in etas],
        "coverage": np.round(coverage, 5).tolist(),
        "band": np.round(band, 5).tolist(),
        "parameters": [
            {
                "name": printable(name),
                "decimals": decimals[k],
                "low": _rounded(low[:, k], decimals[k]),
                "mean": _rounded(mean[:, k], decimals[k]),
                "high": _rounded(high[:, k], decimals[k]),
                "calibrated": None if intervals is None else _rounded(intervals.bounds[k], decimals[k]),
            }
            for k, name in enumerate(result.names)
        ],
        "levels": {
            "edges": edges.tolist(),
            "counts": counts.tolist(),
            "n_replicates": result.coverage.n_replicates,
        },
        "trace": [[record.iteration, _finite(record.eta), _finite(record.coverage)] for record in result.trace],
    }


def _learning_rates(result: Result) -> Float[np.ndarray, " G"]:
    """Return the learning rates of the coverage curve and `result.eta`, at which draws are not reweighted."""
    grid = result.curve.etas
    if len(result.names) > CONFIG.many_parameters and len(grid):
        grid = grid[:: len(grid) // 2]
    return np.union1d(grid, [result.eta]).astype(float)


def _marginal_summaries(result: Result, etas: Float[np.ndarray, " G"]) -> Float[np.ndarray, "3 G K"]:
    """Return the lower ends, means and upper ends of the marginal intervals at each learning rate."""
    risk = result.risk - result.risk.mean(dtype=float)
    tails = [(1 - result.level) / 2, (1 + result.level) / 2]
    order = np.argsort(result.draws, axis=0)
    ordered = np.take_along_axis(result.draws.astype(float), order, axis=0)
    summaries = np.empty((3, len(etas), ordered.shape[1]))
    for g, eta in enumerate(etas):
        log_weights = -(eta - result.eta) * risk if eta != result.eta else np.zeros(len(risk))
        weights = np.exp(log_weights - log_weights.max())
        summaries[1, g] = weights @ result.draws / weights.sum()
        for k in range(ordered.shape[1]):
            summaries[::2, g, k] = _quantiles(ordered[:, k], weights[order[:, k]], tails)
    return summaries


def _quantiles(
    ordered: Float[np.ndarray, " M"], weights: Float[np.ndarray, " M"], tails: list[float]
) -> Float[np.ndarray, " Q"]:
    """Return quantiles of weighted draws; with equal weights they are those of `numpy.quantile`."""
    ranks = np.cumsum(weights) - 0.5 * (weights + weights[0])
    return np.interp(tails, ranks / ranks[-1], ordered) if ranks[-1] > 0 else np.full(len(tails), ordered[0])


def _coverage(
    result: Result, etas: Float[np.ndarray, " G"]
) -> tuple[Float[np.ndarray, " G"], Float[np.ndarray, "G 2"]]:
    """Return the coverage curve, with the reported coverage at eta-hat, and its band."""
    curve = result.curve
    if not len(curve.etas):
        return np.array([float(result.coverage)]), np.array([result.coverage.interval])
    coverage = np.interp(etas, curve.etas, curve.coverage())
    coverage[etas == result.eta] = float(result.coverage)
    return coverage, np.stack([np.interp(etas, curve.etas, bound) for bound in curve.band().T], 1)


def _histogram(
    result: Result, etas: Float[np.ndarray, " G"]
) -> tuple[Float[np.ndarray, " E"], Float[np.ndarray, "_ bins"]]:
    """Return bin edges, one of which is the level, and the counts of critical levels at each learning rate."""
    below = min(max(round(CONFIG.n_bins * result.level), 1), CONFIG.n_bins - 1)
    lower = np.linspace(0, result.level, below + 1)
    upper = np.linspace(result.level, 1, CONFIG.n_bins - below + 1)
    edges = np.concatenate([lower, upper[1:]])
    grid = result.curve.etas
    if not len(grid):
        return edges, np.empty((0, CONFIG.n_bins))
    counts = np.array([_bin_counts(levels, edges) for levels in result.curve.critical_levels], float)
    return edges, np.round(np.stack([np.interp(etas, grid, column) for column in counts.T], 1), 1)


def _bin_counts(levels: Float[np.ndarray, " B"], edges: Float[np.ndarray, " E"]) -> Int[np.ndarray, " bins"]:
    """Count levels in bins with their upper edge: a replicate whose critical level equals the level is covered."""
    bins = np.searchsorted(edges[1:-1], levels[~np.isnan(levels)], side="left")
    return np.bincount(bins, minlength=len(edges) - 1)


def _decimals(deviation: float) -> int:
    """Return the number of decimals at which rounding is invisible relative to a standard deviation."""
    if not 0 < deviation < math.inf:
        return 6
    return min(max(CONFIG.extra_digits - math.floor(math.log10(deviation)), 0), 12)


def _rounded(values: Float[np.ndarray, " N"], decimals: int) -> list[float | None]:
    return [_finite(round(value, decimals)) for value in values.tolist()]


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
