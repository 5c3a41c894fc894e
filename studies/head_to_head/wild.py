"""Wild cluster bootstrap of a slope by least squares, with the null hypothesis imposed.

Cameron, Gelbach and Miller (2008), Bootstrap-based improvements for inference with clustered errors, Review of
Economics and Statistics 90: WCR with Rademacher weights. The interval inverts the test. The Python package wildboottest
has the test, but no interval.
"""

import numpy as np

_STEPS = 11
"""Bisections of an end of the interval."""
_REACH = 12.0
"""Distance from the estimate, in standard errors, up to which an end is searched."""


class WildClusterTest:
    """Tests of a slope in a line with an intercept.

    Parameters
    ----------
    x : ndarray of shape (N, 2)
        Intercept and regressor.
    y : ndarray of shape (N,)
        Response.
    groups : ndarray of shape (N,)
        Cluster of each observation, numbered from 0.
    replicates : int
        Number of bootstrap replicates.
    seed : int
        Seed of the weights, which are the same for all hypotheses.
    """

    def __init__(self, x: np.ndarray, y: np.ndarray, groups: np.ndarray, replicates: int, seed: int):
        self.x, self.y = x, y
        self.membership = np.eye(groups.max() + 1)[groups]
        rng = np.random.default_rng([seed, 26])
        self.signs = rng.choice([-1.0, 1.0], size=(replicates, groups.max() + 1)) @ self.membership.T
        self.solver = np.linalg.inv(x.T @ x) @ x.T

    def t_statistics(self, values: np.ndarray) -> np.ndarray:
        """Return the slope of every row of responses relative to its cluster-robust standard error."""
        fits = values @ self.solver.T
        scores = ((values - fits @ self.x.T) * self.solver[1]) @ self.membership
        return fits[:, 1] / np.sqrt(np.square(scores).sum(1))

    def p_value(self, slope: float) -> float:
        """Return the p-value of a slope: the share of replicates whose absolute t statistic is larger."""
        shifted = self.y - slope * self.x[:, 1]
        observed = self.t_statistics(shifted[None])[0]
        return float(np.mean(np.abs(self.t_statistics(self.signs * (shifted - shifted.mean()))) > abs(observed)))

    def interval(self, level: float) -> tuple[float, float]:
        """Return the slopes that are not rejected, between the two nearest that are."""
        fit = float((self.solver @ self.y)[1])
        error = abs(fit / self.t_statistics(self.y[None])[0])
        ends = []
        for side in (-1.0, 1.0):
            inside, outside = 0.0, _REACH
            for _ in range(_STEPS):
                middle = (inside + outside) / 2
                accepted = self.p_value(fit + side * middle * error) > 1 - level
                inside, outside = (middle, outside) if accepted else (inside, middle)
            ends.append(fit + side * (inside + outside) / 2 * error)
        return ends[0], ends[1]
