"""Exact reference results: posteriors integrated on a grid, and closed forms."""

import copy

import numpy as np


class GridPosterior:
    """Posteriors of a median regression with intercept and slope on a grid, for many replicates.

    The grid spans the least-squares fit +- `width` standard errors in rotated coordinates. The prior is flat, which
    approximates the paper's N(0, 100^2) on the grid to 1e-3.
    """

    def __init__(self, x, y, counts, points=121, width=9.0):
        fit = np.linalg.lstsq(x, y)[0]
        residual = y - x @ fit
        root = np.linalg.cholesky(np.linalg.inv(x.T @ x) * residual.var())
        axis = np.linspace(-width, width, points)
        grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
        self.theta = fit + grid @ root.T
        self.losses = 0.5 * np.abs(y[:, None] - x @ self.theta.T)
        self.x, self.y, self.counts = x, y, counts

    def weights(self, eta, risk):
        w = np.exp(-eta * (risk - risk.min(1, keepdims=True)))
        return w / w.sum(1, keepdims=True)

    def first_replicates(self, n_replicates):
        """Return the same for the first replicates only."""
        part = copy.copy(self)
        part.counts = self.counts[:n_replicates]
        return part

    def critical_levels(self, eta, region):
        point = self.weights(eta, self.losses.sum(0, keepdims=True))[0] @ self.theta
        # A hundred replicates at a time, to limit the memory.
        parts = np.array_split(self.counts, -(-len(self.counts) // 100))
        return np.concatenate([self._critical_levels(eta, region, point, part) for part in parts])

    def _critical_levels(self, eta, region, point, counts):
        risk = counts @ self.losses
        w = self.weights(eta, risk)
        if region == "hpd":
            point_risk = counts @ (0.5 * np.abs(self.y - self.x @ point))
            return np.where(risk < point_risk[:, None], w, 0).sum(1)
        if region == "ellipsoid":
            mean = w @ self.theta
            centred = self.theta[None] - mean[:, None]
            cov = np.swapaxes(centred * w[:, :, None], 1, 2) @ centred
            inverse = np.linalg.inv(cov)
            distance = ((centred @ inverse) * centred).sum(-1)
            point_distance = np.einsum("bk,bkj,bj->b", point - mean, inverse, point - mean)
            return np.where(distance < point_distance[:, None], w, 0).sum(1)
        marginal = np.stack([self._marginal_level(w, k, point) for k in (0, 1)])
        if region == "box":
            return marginal.max(0)
        if region == "simultaneous":
            return np.array([self._simultaneous_level(w[b], level) for b, level in enumerate(marginal.max(0))])
        return marginal[region]

    def _marginal_level(self, w, k, point):
        # Interpolates the marginal distribution function linearly at the point. The intercept has one value for each
        # line of the grid; without adding up a line the result would be wrong by up to half a cell.
        values, line = np.unique(self.theta[:, k], return_inverse=True)
        order = np.argsort(line, kind="stable")
        mass = np.add.reduceat(w[:, order], np.searchsorted(line[order], np.arange(len(values))), axis=1)
        cdf = np.cumsum(mass, 1) - 0.5 * mass
        below = np.array([np.interp(point[k], values, cdf_b) for cdf_b in cdf])
        return np.abs(2 * below - 1)

    def _simultaneous_level(self, w, level):
        inside = np.ones(len(w), bool)
        for k in (0, 1):
            order = np.argsort(self.theta[:, k])
            cdf = np.empty(len(w))
            cdf[order] = np.cumsum(w[order]) - 0.5 * w[order]
            inside &= np.abs(2 * cdf - 1) < level
        return w[inside].sum()

    def coverage(self, eta, region, level=0.95):
        return (self.critical_levels(eta, region) <= level).mean()


def gaussian_location_etas(y, counts, level=0.95):
    """Return the interval of learning rates at which Gaussian location intervals cover at exactly the level.

    In replicate b the posterior is normal about the weighted mean with variance `1 / (eta n)`, so it covers while
    `|mean_b - mean| <= z / sqrt(eta n)`. The interval is between the etas of two adjacent order statistics.
    """
    from scipy.stats import norm

    n = len(y)
    distance = np.sort(np.abs(counts @ y / counts.sum(1) - y.mean()))
    rank = int(np.ceil(level * len(counts)))
    z = norm.ppf(0.5 + level / 2)
    return (z / distance[rank]) ** 2 / n, (z / distance[rank - 1]) ** 2 / n


def gaussian_location_coverage(y, counts, eta, level=0.95):
    """Return the coverage of Gaussian location intervals at a learning rate."""
    from scipy.stats import norm

    distance = np.abs(counts @ y / counts.sum(1) - y.mean())
    return (distance <= norm.ppf(0.5 + level / 2) / np.sqrt(eta * len(y))).mean()
