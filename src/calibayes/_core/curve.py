"""Coverage against the learning rate, as data: critical levels of every replicate on a grid of learning rates."""

import math
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
from jaxtyping import Float


class Coverage(float):
    """A share of bootstrap rows, with a 95% interval for the probability behind it."""

    n_replicates: int

    def __new__(cls, covered: int, n_replicates: int) -> "Coverage":
        share = super().__new__(cls, covered / n_replicates)
        share.n_replicates = n_replicates
        return share

    def __getnewargs__(self) -> tuple[int, int]:  # type: ignore[override]
        return round(self * self.n_replicates), self.n_replicates

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's score interval."""
        n, z = self.n_replicates, NormalDist().inv_cdf(0.975)
        centre = (self + z * z / (2 * n)) / (1 + z * z / n)
        half = z * math.sqrt(self * (1 - self) / n + z * z / (4 * n * n)) / (1 + z * z / n)
        return max(0.0, centre - half), min(1.0, centre + half)

    def __repr__(self) -> str:
        low, high = self.interval
        return f"{float(self):.3f} ({low:.3f} to {high:.3f})"


@dataclass(frozen=True, eq=False, repr=False)
class Curve:
    """Critical levels of every bootstrap row on a grid of learning rates around eta-hat."""

    etas: Float[np.ndarray, " G"]
    critical_levels: Float[np.ndarray, "G B"]
    ess: Float[np.ndarray, " G"]
    """Median effective size over rows after reweighting."""
    level: float
    groups: int = 1
    """Rows b, b + groups, ... share the Monte Carlo error of one population of particles."""
    in_groups: Float[np.ndarray, " B"] | None = None
    """Critical levels in the middle of the grid, from those populations alone."""

    def __repr__(self) -> str:
        ends = f" from {self.etas[0]:.3g} to {self.etas[-1]:.3g}" if len(self.etas) else ""
        return f"Curve({len(self.etas)} etas{ends}, {self.critical_levels.shape[1]} rows, level {self.level:g})"

    @staticmethod
    def empty(n_replicates: int, level: float) -> "Curve":
        """A curve that could not be drawn."""
        return Curve(np.empty(0), np.empty((0, n_replicates)), np.empty(0), level)

    def coverage(self, level: float | None = None) -> Float[np.ndarray, " G"]:
        """Coverage at each eta of the grid, at any level."""
        return (self.critical_levels <= (self.level if level is None else level)).mean(1)

    def critical_etas(self, level: float | None = None) -> Float[np.ndarray, " B"]:
        """Where each row's set lets the point go; 0 or infinite for rows that do so off the grid."""
        return self._own if level is None or level == self.level else self._crossings(level)

    @cached_property
    def _own(self) -> Float[np.ndarray, " B"]:
        """Critical etas at the curve's own level, which are asked for again and again."""
        found = self._crossings(self.level)
        found.setflags(write=False)
        return found

    def _crossings(self, wanted: float) -> Float[np.ndarray, " B"]:
        if not len(self.etas):
            return np.zeros(self.critical_levels.shape[1])
        inside = self.critical_levels <= wanted
        # The last eta at which the point is inside: levels are noisy, and the set must have it up to there.
        last = np.where(inside.any(0), inside.shape[0] - 1 - inside[::-1].argmax(0), -1)
        rows = np.arange(inside.shape[1])
        lower, upper = np.clip(last, 0, None), np.clip(last + 1, None, inside.shape[0] - 1)
        a, b = self.critical_levels[lower, rows], self.critical_levels[upper, rows]
        share = np.where(b > a, (wanted - a) / np.where(b > a, b - a, 1), 0)
        log_eta = np.log(self.etas)
        crossing = np.exp(log_eta[lower] + share * (log_eta[upper] - log_eta[lower]))
        return np.where(last < 0, 0.0, np.where(last == inside.shape[0] - 1, np.inf, crossing))

    def eta_hat(self, level: float | None = None) -> float:
        """The eta at which the sets cover at `level`: between two order statistics of the rows' critical etas."""
        wanted = self.level if level is None else level
        ordered = np.sort(self.critical_etas(wanted))
        n = len(ordered)
        outside = min(max(round((1 - wanted) * n), 1), n - 1)
        low, high = ordered[outside - 1], ordered[outside]
        return float(np.sqrt(low * high)) if low > 0 and high < np.inf else float(low if low == 0 else high)

    def band(self, level: float | None = None) -> Float[np.ndarray, "G 2"]:
        """Pointwise 95% intervals of the coverage, from the number of bootstrap rows (Wilson's).

        Rows that share particles count for fewer.
        """
        n = round(self.critical_levels.shape[1] / self._design_effect(self.level if level is None else level))
        counts = np.round(self.coverage(level) * n).astype(int)
        return np.array([Coverage(int(count), n).interval for count in counts]).reshape(-1, 2)

    def eta_se(self, level: float | None = None) -> float:
        """Half the distance between the order statistics one standard error on either side of eta-hat."""
        wanted = self.level if level is None else level
        ordered = np.sort(self.critical_etas(wanted))
        n = len(ordered)
        spread = np.sqrt(n * wanted * (1 - wanted) * self._design_effect(wanted))
        ranks = np.clip(np.array([-spread, spread]) + (1 - wanted) * n - 0.5, 0, n - 1)
        low, high = (_between(ordered, rank) for rank in ranks)
        return float((high - low) / 2) if low > 0 and np.isfinite(high) else float("inf")

    def _design_effect(self, level: float) -> float:
        """How much the variance of coverage grows because rows of a group share particles.

        The variance between groups over what independent rows would give, on average over levels around the one asked
        for: one level's alone would be as noisy as a variance of `groups` numbers.
        """
        if self.groups == 1 or self.in_groups is None:
            return 1.0
        levels = level + (1 - level) * np.linspace(-1, 0.5, 7)
        covered = self.in_groups[:, None] <= levels
        member = np.arange(1, len(covered) + 1) % self.groups == np.arange(self.groups)[:, None]
        p, shares = covered.mean(0), member @ covered.astype(float) / member.sum(1)[:, None]
        known = (p > 0) & (p < 1)
        if not known.any():
            return 1.0
        p = p[known]
        ratios = shares[:, known].var(0, ddof=1) * len(covered) / self.groups / (p * (1 - p))
        return max(1.0, float(ratios.mean()))


def _between(ordered: np.ndarray, rank: float) -> float:
    low, high = ordered[int(np.floor(rank))], ordered[int(np.ceil(rank))]
    return float(low if low == high else low + (rank % 1) * (high - low))
