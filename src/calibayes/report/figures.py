"""What the page draws: a few numbers for every learning rate of the coverage curve, and no draws.

Between these learning rates the page interpolates. The intervals come from the draws at eta-hat, reweighted.
"""

import math
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from calibayes.result import Intervals, Result

_BINS = 20
_MANY = 100
"""Parameters from which on fewer learning rates are kept, so that the page stays small."""


def figures(result: Result, own: Intervals | None) -> dict[str, Any]:
    """Everything that is drawn, ready for JSON: what is not finite is None."""
    etas = _etas(result)
    low, middle, high = _intervals(result, etas)
    edges, counts = _histogram(result, etas)
    coverage, band = _coverage(result, etas)
    decimals = [_decimals(deviation) for deviation in result.draws.std(0).tolist()]
    return {
        "eta": float(result.eta),
        "error": _finite(result.eta_se),
        "level": result.level,
        "etas": [float(f"{eta:.6g}") if eta != result.eta else float(eta) for eta in etas],
        "coverage": np.round(coverage, 5).tolist(),
        "band": np.round(band, 5).tolist(),
        "parameters": [
            {
                "name": name,
                "decimals": decimals[k],
                "low": _rounded(low[:, k], decimals[k]),
                "mean": _rounded(middle[:, k], decimals[k]),
                "high": _rounded(high[:, k], decimals[k]),
                "own": None if own is None else _rounded(own.bounds[k], decimals[k]),
            }
            for k, name in enumerate(result.names)
        ],
        "levels": {"edges": edges.tolist(), "counts": counts.tolist(), "rows": result.coverage.n_replicates},
        "trace": [[record.iteration, _finite(record.eta), _finite(record.coverage)] for record in result.trace],
    }


def _etas(result: Result) -> Float[np.ndarray, " G"]:
    """The curve's grid with eta-hat in it, where what is shown must be the result's own numbers."""
    grid = result.curve.etas
    if len(result.names) > _MANY and len(grid):
        grid = grid[:: len(grid) // 2]
    return np.union1d(grid, [result.eta]).astype(float)


def _intervals(result: Result, etas: Float[np.ndarray, " G"]) -> Float[np.ndarray, "3 G K"]:
    """Lower ends, means and upper ends of the marginal intervals at each learning rate."""
    risk = result.risk - result.risk.mean(dtype=float)
    tails = [(1 - result.level) / 2, (1 + result.level) / 2]
    order = np.argsort(result.draws, axis=0)
    ordered = np.take_along_axis(result.draws.astype(float), order, axis=0)
    out = np.empty((3, len(etas), ordered.shape[1]))
    for g, eta in enumerate(etas):
        log_weights = -(eta - result.eta) * risk if eta != result.eta else np.zeros(len(risk))
        weights = np.exp(log_weights - log_weights.max())
        out[1, g] = weights @ result.draws / weights.sum()
        for k in range(ordered.shape[1]):
            out[::2, g, k] = _quantiles(ordered[:, k], weights[order[:, k]], tails)
    return out


def _quantiles(
    ordered: Float[np.ndarray, " M"], weights: Float[np.ndarray, " M"], tails: list[float]
) -> Float[np.ndarray, " Q"]:
    """Quantiles of weighted draws; numpy's own where the weights are equal."""
    ranks = np.cumsum(weights) - 0.5 * (weights + weights[0])
    return np.interp(tails, ranks / ranks[-1], ordered) if ranks[-1] > 0 else np.full(len(tails), ordered[0])


def _coverage(
    result: Result, etas: Float[np.ndarray, " G"]
) -> tuple[Float[np.ndarray, " G"], Float[np.ndarray, "G 2"]]:
    """The curve and its band; at eta-hat the coverage that is reported."""
    curve = result.curve
    if not len(curve.etas):
        return np.array([float(result.coverage)]), np.array([result.coverage.interval])
    coverage = np.interp(etas, curve.etas, curve.coverage())
    coverage[etas == result.eta] = float(result.coverage)
    return coverage, np.stack([np.interp(etas, curve.etas, end) for end in curve.band().T], 1)


def _histogram(
    result: Result, etas: Float[np.ndarray, " G"]
) -> tuple[Float[np.ndarray, " E"], Float[np.ndarray, "_ bins"]]:
    """How the rows' critical levels are spread at each learning rate, in bins of which one edge is the level."""
    below = min(max(round(_BINS * result.level), 1), _BINS - 1)
    edges = np.concatenate(
        [np.linspace(0, result.level, below + 1), np.linspace(result.level, 1, _BINS - below + 1)[1:]]
    )
    grid = result.curve.etas
    if not len(grid):
        return edges, np.empty((0, _BINS))
    counts = np.array([_tally(levels, edges) for levels in result.curve.critical_levels], float)
    return edges, np.round(np.stack([np.interp(etas, grid, column) for column in counts.T], 1), 1)


def _tally(levels: Float[np.ndarray, " B"], edges: Float[np.ndarray, " E"]) -> Int[np.ndarray, " bins"]:
    """Counts in bins that are closed above, since a level that is just met is covered."""
    bins = np.searchsorted(edges[1:-1], levels[~np.isnan(levels)], side="left")
    return np.bincount(bins, minlength=len(edges) - 1)


def _decimals(deviation: float) -> int:
    """Enough that rounding is not seen next to a posterior as wide as this."""
    return min(max(3 - math.floor(math.log10(deviation)), 0), 12) if 0 < deviation < math.inf else 6


def _rounded(values: Float[np.ndarray, " N"], decimals: int) -> list[float | None]:
    return [_finite(round(value, decimals)) for value in values.tolist()]


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
