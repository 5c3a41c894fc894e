"""Exact answers to test against: posteriors integrated on a grid, and closed forms."""

import numpy as np


class GridPosterior:
    """Median regression with two parameters on one grid of (intercept, slope), for many rows of counts.

    The grid spans the least-squares fit +- `width` standard errors in rotated coordinates; the flat prior stands in
    for the paper's N(0, 100^2), which is constant over it to 1e-3.
    """

    def __init__(self, x, y, counts, points=161, width=9.0):
        fit = np.linalg.lstsq(x, y)[0]
        residual = y - x @ fit
        root = np.linalg.cholesky(np.linalg.inv(x.T @ x) * residual.var())
        axis = np.linspace(-width, width, points)
        grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
        self.theta = fit + grid @ root.T
        losses = 0.5 * np.abs(y[:, None] - x @ self.theta.T)
        self.risk = np.concatenate([np.ones((1, len(y))), counts]) @ losses
        self.risk -= self.risk.min(1, keepdims=True)
        self.x, self.y, self.counts = x, y, counts

    def weights(self, eta):
        w = np.exp(-eta * self.risk)
        return w / w.sum(1, keepdims=True)

    def critical_levels(self, eta, region):
        w = self.weights(eta)
        point = w[0] @ self.theta
        w = w[1:]
        if region == "hpd":
            at_point = self.counts @ (0.5 * np.abs(self.y - self.x @ point))
            shift = (self.counts @ (0.5 * np.abs(self.y[:, None] - self.x @ self.theta.T))).min(1)
            return np.where(self.risk[1:] < (at_point - shift)[:, None], w, 0).sum(1)
        if region == "ellipsoid":
            mean = w @ self.theta
            centred = self.theta[None] - mean[:, None]
            cov = np.einsum("bg,bgk,bgj->bkj", w, centred, centred)
            inverse = np.linalg.inv(cov)
            distance = np.einsum("bgk,bkj,bgj->bg", centred, inverse, centred)
            at = np.einsum("bk,bkj,bj->b", point - mean, inverse, point - mean)
            return np.where(distance < at[:, None], w, 0).sum(1)
        marginal = np.stack([self._level(w, k, point) for k in (0, 1)])
        if region == "box":
            return marginal.max(0)
        if region == "simultaneous":
            return np.array([self._joint(w[b], level) for b, level in enumerate(marginal.max(0))])
        return marginal[region]

    def _level(self, w, k, point):
        # Linear interpolation of the marginal distribution function at the point, cell by cell.
        values = self.theta[:, k]
        order = np.argsort(values)
        cdf = np.cumsum(w[:, order], 1) - 0.5 * w[:, order]
        below = np.array([np.interp(point[k], values[order], row) for row in cdf])
        return np.abs(2 * below - 1)

    def _joint(self, w, level):
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
    """The learning rates at which Gaussian location intervals reach the level exactly on these counts.

    On row b the posterior is normal about the weighted mean with variance `1 / (eta n)`, so the row covers while
    `|mean_b - mean| <= z / sqrt(eta n)`: any eta between those of the two order statistics will do.
    """
    from scipy.stats import norm

    n = len(y)
    distance = np.sort(np.abs(counts @ y / counts.sum(1) - y.mean()))
    rank = int(np.ceil(level * len(counts)))
    z = norm.ppf(0.5 + level / 2)
    return (z / distance[rank]) ** 2 / n, (z / distance[rank - 1]) ** 2 / n


def gaussian_location_coverage(y, counts, eta, level=0.95):
    """Coverage of those intervals at a learning rate."""
    from scipy.stats import norm

    distance = np.abs(counts @ y / counts.sum(1) - y.mean())
    return (distance <= norm.ppf(0.5 + level / 2) / np.sqrt(eta * len(y))).mean()
