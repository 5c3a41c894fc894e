"""Table 1 by exact integration: whether calibrated HPD sets of median regression contain the true parameter.

`python -m studies exact` calibrates the data sets of table 1 again, on the same bootstrap counts, with all posteriors
integrated on a grid. Only data sets whose true parameter lies near the boundary of the set, by the stored level, can
change; the others are taken as stored.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import calibayes as cb
from benchmarks.common import write_json
from studies.names import REPLICATES
from studies.store import Line

NEAR = (0.92, 0.975)
"""Stored levels of the data sets that are computed again."""
_POINTS, _WIDTH = 121, 7.0
"""Points of the grid along each axis, and half its width in standard errors of least squares."""
_REPLICATES_AT_A_TIME = 100
_ETA_RANGE, _BISECTIONS = 1.5, 9
"""Largest ratio of the exact eta to the stored one, and bisections of that range."""


class ExactLine(NamedTuple):
    """A data set whose calibration was computed exactly."""

    dataset: int
    stored_eta: float
    eta: float
    stored_level: float
    level: float


class Grid:
    """Posteriors of a median regression on a grid, for all bootstrap replicates. The prior is flat."""

    def __init__(self, x: np.ndarray, y: np.ndarray, counts: np.ndarray):
        fit = np.linalg.lstsq(x, y)[0]
        root = np.linalg.cholesky(np.linalg.inv(x.T @ x) * (y - x @ fit).var())
        axis = np.linspace(-_WIDTH, _WIDTH, _POINTS)
        self.theta = fit + np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2) @ root.T
        self.x, self.y, self.counts = x, y, counts
        self.losses = self._losses(self.theta)

    def _losses(self, theta: np.ndarray) -> np.ndarray:
        return 0.5 * np.abs(self.y[:, None] - self.x @ theta.T)

    def levels(self, eta: float, counts: np.ndarray, point: np.ndarray) -> np.ndarray:
        """Return the posterior mass at which the risk is lower than at a point, for every replicate."""
        risk, at_point = counts @ self.losses, counts @ self._losses(point[None])
        weights = np.exp(-eta * (risk - risk.min(1, keepdims=True)))
        return np.asarray((weights * (risk < at_point)).sum(1) / weights.sum(1))

    def coverage(self, eta: float, level: float = 0.95) -> float:
        """Return the share of replicates whose HPD set contains the posterior mean of the data."""
        risk = self.losses.sum(0)
        weights = np.exp(-eta * (risk - risk.min()))
        mean = weights @ self.theta / weights.sum()
        parts = np.split(self.counts, range(_REPLICATES_AT_A_TIME, len(self.counts), _REPLICATES_AT_A_TIME))
        return float(np.mean(np.concatenate([self.levels(eta, part, mean) for part in parts]) <= level))


def check(line: Line) -> ExactLine:
    """Calibrate a data set of table 1 by integration."""
    x, y = cb.datasets.median_regression(line.n, line.dataset)
    counts = np.random.default_rng([line.dataset, 1]).multinomial(line.n, np.full(line.n, 1 / line.n), size=REPLICATES)
    grid = Grid(x, y, counts.astype(float))
    low, high = (math.log(line.eta) + side * math.log(_ETA_RANGE) for side in (-1, 1))
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if grid.coverage(math.exp(middle)) >= 0.95 else (low, middle)
    eta = math.exp((low + high) / 2)
    level = grid.levels(eta, np.ones((1, line.n)), np.array(cb.datasets.TRUE_THETA))[0]
    return ExactLine(line.dataset, line.eta, eta, line.truth_level, float(level))


def near_the_boundary(lines: Sequence[Line], n: int) -> tuple[list[Line], list[Line]]:
    """Return the HPD sets of transport at one N, all of them and those with the true parameter near the boundary."""
    cell = [line for line in lines if (line.n, line.sampler, line.region) == (n, "transport", "hpd")]
    return cell, [line for line in cell if NEAR[0] <= line.truth_level <= NEAR[1]]


def run(lines: Sequence[Line], n: int, out: Path) -> str:
    """Check the data sets near the boundary, store the comparison, and return it as a sentence."""
    cell, near = near_the_boundary(lines, n)
    checks = [check(line) for line in near]
    covered = sum(line.covered for line in cell)
    changed = [one for one in checks if (one.level <= 0.95) != (one.stored_level <= 0.95)]
    gain = sum(1 if one.level <= 0.95 else -1 for one in changed)
    content = {
        "n": n,
        "data sets": len(cell),
        "near the boundary": len(near),
        "changed": len(changed),
        "coverage": covered / len(cell),
        "exact coverage": (covered + gain) / len(cell),
        "largest difference of levels": max(abs(one.level - one.stored_level) for one in checks),
        "standard deviation of log(eta / exact eta)": float(
            np.std([math.log(one.stored_eta / one.eta) for one in checks])
        ),
    }
    write_json(out, content)
    return sentence(content)


def sentence(content: dict[str, Any]) -> str:
    """Describe a stored comparison."""
    margin = min(0.95 - NEAR[0], NEAR[1] - 0.95)
    assert content["largest difference of levels"] < margin, "more data sets could change: widen NEAR"
    exactly, stored = (f"{100 * content[name]:.1f}%" for name in ("exact coverage", "coverage"))
    return (
        "By exact integration on the same data sets and bootstrap counts (`python -m studies exact`), the HPD sets at "
        f"N {content['n']:,} cover {exactly} of the {content['data sets']:,} data sets, those of transport {stored}; "
        f"{content['changed']} of the {content['near the boundary']} data sets near the boundary change sides."
    )
