"""Exact critical levels of models with one or two parameters, by integration on a grid that follows the posteriors.

Nothing here uses the library: losses and log-priors are NumPy functions. The grid starts as a box that contains all
posteriors, and is narrowed, several times, to the cells with a noticeable density on any replicate.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

_CELLS = {1: 6001, 2: 181}
"""Cells of the grid along each axis, by the number of parameters."""
_LOG_RANGE = 40.0
"""Cells are kept if their log-density is within this distance of the largest one of a replicate."""
_MAX_ZOOMS = 30
_REPLICATES_AT_A_TIME = 100


class Exact(NamedTuple):
    """A model in NumPy.

    Attributes
    ----------
    losses : callable
        Function of parameters of shape (G, K) that returns the losses of all observations, of shape (N, G).
    log_prior : callable
        Function of parameters of shape (G, K) that returns the logarithm of the prior density, of shape (G,).
    counts : ndarray of shape (B, N)
        Counts of the bootstrap replicates.
    centre, root : ndarray of shape (K,) and (K, K)
        The box is `centre + root @ u` with u between -1 and 1.
    bounds : ndarray of shape (2, K)
        Bounds of the parameters. Default: none.
    stretch : float
        For heavy tails, which need a wide box: cells grow from the centre to the ends of the box, by a factor of
        cosh(stretch), as u is replaced by sinh(stretch u) / sinh(stretch). Default: 0, cells of equal size.
    """

    losses: Callable[[np.ndarray], np.ndarray]
    log_prior: Callable[[np.ndarray], np.ndarray]
    counts: np.ndarray
    centre: np.ndarray
    root: np.ndarray
    bounds: np.ndarray | None = None
    stretch: float = 0.0

    def coverage(self, eta: float, region: str, level: float, estimate: str = "mean") -> float:
        """Return the share of replicates whose set at `level` contains the estimate on the data."""
        return float((self.critical_levels(eta, region, estimate) <= level).mean())

    def critical_levels(self, eta: float, region: str, estimate: str = "mean") -> np.ndarray:
        """Return the smallest level at which the set of each replicate contains the estimate on the data."""
        point = self._point(*self._grid(eta, np.ones((1, self.counts.shape[1]))), eta, estimate)
        parts = np.array_split(self.counts, -(-len(self.counts) // _REPLICATES_AT_A_TIME))
        return np.concatenate([self._levels(eta, region, point, part) for part in parts])

    def _point(
        self, theta: np.ndarray, risk: np.ndarray, log_sizes: np.ndarray, eta: float, estimate: str
    ) -> np.ndarray:
        log_density = -eta * risk[0] + self.log_prior(theta)
        if estimate == "mode":
            return theta[np.argmax(log_density)]
        if estimate == "minimizer":
            return theta[np.argmin(risk[0])]
        weights = np.exp(log_density - log_density.max() + log_sizes)
        return weights @ theta / weights.sum()

    def _grid(self, eta: float, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return a grid that follows the posteriors of some replicates: points, risks, and log-sizes of the cells."""
        dim = len(self.centre)
        low, high = np.full(dim, -1.0), np.ones(dim)
        for zoom in range(_MAX_ZOOMS):
            axes = [np.linspace(a, b, _CELLS[dim] + 2)[1:-1] for a, b in zip(low, high, strict=True)]
            u = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, dim)
            stretched = np.sinh(self.stretch * u) / np.sinh(self.stretch) if self.stretch else u
            theta = self.centre + stretched @ self.root.T
            if self.bounds is not None:
                inside = ((theta > self.bounds[0]) & (theta < self.bounds[1])).all(1)
                u, theta = u[inside], theta[inside]
            risk = counts @ self.losses(theta)
            log_density = -eta * risk + self.log_prior(theta)
            kept = u[(log_density > log_density.max(1, keepdims=True) - _LOG_RANGE).any(0)]
            margin = 2 * (high - low) / _CELLS[dim]
            new_low = np.maximum(low, kept.min(0) - margin)
            new_high = np.minimum(high, kept.max(0) + margin)
            narrowed = (new_high - new_low) < 0.7 * (high - low)
            if not narrowed.any() or zoom == _MAX_ZOOMS - 1:
                return theta, risk, np.log(np.cosh(self.stretch * u)).sum(-1)
            low, high = new_low, new_high
        raise AssertionError

    def _levels(self, eta: float, region: str, point: np.ndarray, counts: np.ndarray) -> np.ndarray:
        theta, risk, log_sizes = self._grid(eta, counts)
        log_density = -eta * risk + self.log_prior(theta)
        weights = np.exp(log_density - log_density.max(1, keepdims=True) + log_sizes)
        weights /= weights.sum(1, keepdims=True)
        kind, _, index = region.partition(" ")
        if kind == "hpd":
            at_point = -eta * (counts @ self.losses(point[None]))[:, 0] + self.log_prior(point[None])[0]
            return np.where(log_density > at_point[:, None], weights, 0).sum(1)
        if kind == "ellipsoid":
            return _ellipsoid_levels(theta, weights, point)
        if kind == "interval":
            return _interval_levels(theta[:, int(index)], weights, point[int(index)])
        if kind == "linear":
            vector = np.array([float(number) for number in index.split(",")])
            return _interval_levels(theta @ vector, weights, float(point @ vector))
        marginal = np.stack([_interval_levels(theta[:, k], weights, point[k]) for k in range(len(point))]).max(0)
        return marginal if kind == "box" else _simultaneous_levels(theta, weights, marginal)


def _interval_levels(values: np.ndarray, weights: np.ndarray, point: float) -> np.ndarray:
    """Return the levels of equal-tailed intervals, by linear interpolation of the distribution functions."""
    unique, line = np.unique(np.round(values, 12), return_inverse=True)
    order = np.argsort(line, kind="stable")
    mass = np.add.reduceat(weights[:, order], np.searchsorted(line[order], np.arange(len(unique))), axis=1)
    cdf = np.cumsum(mass, 1) - 0.5 * mass
    return np.abs(2 * np.array([np.interp(point, unique, row, 0.0, 1.0) for row in cdf]) - 1)


def _ellipsoid_levels(theta: np.ndarray, weights: np.ndarray, point: np.ndarray) -> np.ndarray:
    levels = []
    for w in weights:
        mean = w @ theta
        centred = theta - mean
        inverse = np.linalg.inv((centred * w[:, None]).T @ centred)
        distance = ((centred @ inverse) * centred).sum(-1)
        levels.append(w[distance < (point - mean) @ inverse @ (point - mean)].sum())
    return np.array(levels)


def _simultaneous_levels(theta: np.ndarray, weights: np.ndarray, marginal: np.ndarray) -> np.ndarray:
    levels = []
    for w, level in zip(weights, marginal, strict=True):
        inside = np.ones(len(w), bool)
        for k in range(theta.shape[1]):
            order = np.argsort(theta[:, k])
            cdf = np.empty(len(w))
            cdf[order] = np.cumsum(w[order]) - 0.5 * w[order]
            inside &= np.abs(2 * cdf - 1) < level
        levels.append(w[inside].sum())
    return np.array(levels)
