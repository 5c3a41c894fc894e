"""Coverage against the learning rate, as data: critical levels of every replicate on a grid of learning rates."""

import math
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class Coverage(float):
    """A share of bootstrap replicates, with a 95% interval for the probability that it estimates.

    Parameters
    ----------
    covered : int
        Number of replicates whose credible set contains the point.
    n_replicates : int
        Number of replicates.

    Examples
    --------
    >>> import calibayes as cb
    >>> coverage = cb.Coverage(475, 500)
    >>> coverage
    0.950 (0.927 to 0.966)
    >>> float(coverage)
    0.95
    """

    n_replicates: int

    def __new__(cls, covered: int, n_replicates: int) -> "Coverage":
        share = super().__new__(cls, covered / n_replicates)
        share.n_replicates = n_replicates
        return share

    def __getnewargs__(self) -> tuple[int, int]:  # type: ignore[override]
        return round(self * self.n_replicates), self.n_replicates

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's score interval at 95%."""
        n, z = self.n_replicates, NormalDist().inv_cdf(0.975)
        centre = (self + z * z / (2 * n)) / (1 + z * z / n)
        half = z * math.sqrt(self * (1 - self) / n + z * z / (4 * n * n)) / (1 + z * z / n)
        return max(0.0, centre - half), min(1.0, centre + half)

    def __repr__(self) -> str:
        low, high = self.interval
        return f"{float(self):.3f} ({low:.3f} to {high:.3f})"


@dataclass(frozen=True)
class CrossingConfig:
    """Constants of the crossing of a coverage curve with the level."""

    min_jump: float = 0.005
    """Share of replicates with the same critical eta from which on coverage jumps there. Below it, the level is met
    to half a percent."""
    step_back: float = 0.1
    """Distance in log eta to the left of a jump at which eta is reported, and between critical etas that are different
    jumps. The Monte Carlo error of a critical level near 0.95, averaged over equal replicates, is about 0.004, which is
    0.035 in log eta: three such errors."""
    max_jump_width: float = 0.3
    """Largest width of a jump in log eta. Many small steps next to each other are a curve, which can meet the level."""
    n_errors: float = 3.0
    """Distance of a coverage from the level, in standard errors, from which on it shows on which side of the level
    coverage is."""


CONFIG = CrossingConfig()


class Jump(NamedTuple):
    """A jump of the coverage past the level.

    Attributes
    ----------
    eta : float
        Learning rate of the jump.
    below, above : float
        Coverage at slightly smaller and slightly larger learning rates.
    """

    eta: float
    below: float
    above: float


class AttainableEta(NamedTuple):
    """The learning rate to report.

    Attributes
    ----------
    eta : float
        Learning rate; 0 or infinity if it lies off the grid.
    coverage : float
        Coverage there.
    jump : Jump or None
        The jump that keeps coverage from equalling the level; None if it does.
    """

    eta: float
    coverage: float
    jump: Jump | None


@dataclass(frozen=True, eq=False, repr=False)
class Curve:
    """Critical levels of every replicate on a grid of learning rates around eta-hat.

    Attributes
    ----------
    etas : ndarray of shape (G,)
        Learning rates.
    critical_levels : ndarray of shape (G, B)
        Smallest level at which each replicate's set contains the point estimate. A sampler may compute it
        several times, from snapshots of the particles at different times; this is then the average over snapshots.
    ess : ndarray of shape (G,)
        Median effective sample size over replicates after reweighting to each learning rate.
    level : float
        Requested level.
    n_populations : int
        Number of independent populations of draws, for samplers whose replicates share draws: replicates b,
        b + n_populations, ... are computed from the same population, so their Monte Carlo errors are correlated. Not
        used otherwise.
    first_critical_levels : ndarray of shape (B,) or None
        Critical levels at the middle learning rate from the first snapshot alone. Their differences from the average
        are Monte Carlo errors, whose correlation over the replicates of a population enters the standard errors. None
        if replicates do not share draws.
    n_distinct : int or None
        Number of replicates that are different data sets; equal ones have the same critical levels. None if all are
        different.

    Examples
    --------
    >>> curve = result.curve
    >>> curve.coverage().shape == curve.etas.shape
    True
    """

    etas: Float[np.ndarray, " G"]
    critical_levels: Float[np.ndarray, "G B"]
    ess: Float[np.ndarray, " G"]
    level: float
    n_populations: int = 1
    first_critical_levels: Float[np.ndarray, " B"] | None = None
    n_distinct: int | None = None

    def __repr__(self) -> str:
        ends = f" from {self.etas[0]:.3g} to {self.etas[-1]:.3g}" if len(self.etas) else ""
        return f"Curve({len(self.etas)} etas{ends}, {self.critical_levels.shape[1]} replicates, level {self.level:g})"

    @staticmethod
    def empty(n_replicates: int, level: float) -> "Curve":
        """Return a curve without learning rates, for a calibration that ended before it could be computed.

        Parameters
        ----------
        n_replicates : int
            Number of replicates.
        level : float
            Requested level.

        Returns
        -------
        Curve
        """
        return Curve(np.empty(0), np.empty((0, n_replicates)), np.empty(0), level)

    def coverage(self, level: float | None = None) -> Float[np.ndarray, " G"]:
        """Return the coverage at each learning rate of the grid.

        Parameters
        ----------
        level : float or None
            Level of the credible sets. Default: the requested level.

        Returns
        -------
        ndarray of shape (G,)
        """
        return (self.critical_levels <= (self.level if level is None else level)).mean(1)

    def critical_etas(self, level: float | None = None) -> Float[np.ndarray, " B"]:
        """Return, for each replicate, the learning rate above which its set no longer contains the point.

        It is 0 if this lies below the grid, infinity if above.

        Parameters
        ----------
        level : float or None
            Level of the credible sets. Default: the requested level.

        Returns
        -------
        ndarray of shape (B,)
        """
        return self._critical_etas if level is None or level == self.level else self._crossings(level)

    @cached_property
    def _critical_etas(self) -> Float[np.ndarray, " B"]:
        crossings = self._crossings(self.level)
        crossings.setflags(write=False)
        return crossings

    def _crossings(self, level: float) -> Float[np.ndarray, " B"]:
        if not len(self.etas):
            return np.zeros(self.critical_levels.shape[1])
        inside = self.critical_levels <= level
        # The last eta at which the point is inside: levels are noisy and may cross more than once.
        last = np.where(inside.any(0), inside.shape[0] - 1 - inside[::-1].argmax(0), -1)
        replicates = np.arange(inside.shape[1])
        lower, upper = np.clip(last, 0, None), np.clip(last + 1, None, inside.shape[0] - 1)
        a, b = self.critical_levels[lower, replicates], self.critical_levels[upper, replicates]
        share = np.where(b > a, (level - a) / np.where(b > a, b - a, 1), 0)
        log_eta = np.log(self.etas)
        crossing = np.exp(log_eta[lower] + share * (log_eta[upper] - log_eta[lower]))
        return np.where(last < 0, 0.0, np.where(last == inside.shape[0] - 1, np.inf, crossing))

    def eta_hat(self, level: float | None = None) -> float:
        """Return the learning rate at which the sets cover at `level`: a quantile of the critical etas.

        Parameters
        ----------
        level : float or None
            Level of the credible sets. Default: the requested level.

        Returns
        -------
        float
            0 or infinity if it lies off the grid.
        """
        level = self.level if level is None else level
        return eta_covering(np.sort(self.critical_etas(level)), level)

    def lowest_crossing(self, level: float | None = None) -> float:
        """Return the learning rate up to which the sets cover at `level`.

        It is eta-hat, unless coverage is below the level at a smaller learning rate of the grid and rises again, which
        critical etas do not show.

        Parameters
        ----------
        level : float or None
            Level of the credible sets. Default: the requested level.

        Returns
        -------
        float
            0 or infinity if it lies off the grid.
        """
        level = self.level if level is None else level
        eta, coverage = self.eta_hat(level), self.coverage(level)
        too_low = (self.etas < eta) & (coverage < level - CONFIG.n_errors * self.coverage_se(level))
        if not too_low.any():
            return eta
        first = int(np.argmax(too_low))
        covers = np.flatnonzero(coverage[:first] >= level)
        if not len(covers):
            return 0.0
        last = covers[-1]
        share = (coverage[last] - level) / (coverage[last] - coverage[last + 1])
        return float(self.etas[last] * (self.etas[last + 1] / self.etas[last]) ** share)

    def attainable_eta(self, level: float | None = None) -> "AttainableEta":
        """Return the learning rate to report, the lowest crossing, or less if coverage jumps past the level there.

        Parameters
        ----------
        level : float or None
            Level of the credible sets. Default: the requested level.

        Returns
        -------
        AttainableEta
            A named tuple: the learning rate `eta`, the `coverage` there, and `jump`, a named tuple of the learning rate
            at which coverage jumps past the level, and the coverages at learning rates just `below` it (at least the
            level) and just `above` it (less than the level); None without a jump.
        """
        level = self.level if level is None else level
        critical, eta = self.critical_etas(level), self.lowest_crossing(level)
        if eta < self.eta_hat(level):
            return AttainableEta(eta, level, None)
        at_eta = AttainableEta(eta, float((critical >= eta).mean()), None)
        if self.n_distinct is None:
            return at_eta
        values, numbers = np.unique(critical, return_counts=True)
        near = np.abs(np.log(np.where(values > 0, values, 1e-300) / eta)) < CONFIG.step_back if eta > 0 else values < 0
        if not (near & (numbers > max(1, CONFIG.min_jump * len(critical)))).any():
            return at_eta
        # Critical etas that are closer than their Monte Carlo error are one jump.
        inside = values[(values > 0) & (values < np.inf)]
        jumps = np.split(inside, np.flatnonzero(np.diff(np.log(inside)) > CONFIG.step_back) + 1)
        attained = [jump for jump in jumps if (critical >= jump[0]).mean() >= level]
        if not attained:
            return at_eta
        if np.log(attained[-1][-1] / attained[-1][0]) > CONFIG.max_jump_width:
            # The middle of the step that ends at eta-hat.
            previous = max(inside[inside < eta].max(initial=0.0), self.etas[0])
            return at_eta._replace(eta=float(np.sqrt(previous * eta)))
        first, last = attained[-1][0], attained[-1][-1]
        below, above = float((critical >= first).mean()), float((critical > last).mean())
        gap = np.log(first / max(inside[inside < first].max(initial=0.0), self.etas[0]))
        return AttainableEta(float(first * np.exp(-min(CONFIG.step_back, gap / 2))), below, Jump(first, below, above))

    def band(self, level: float | None = None) -> Float[np.ndarray, "G 2"]:
        """Return pointwise 95% intervals of the coverage.

        These are Wilson's intervals, with the number of replicates reduced for the Monte Carlo error that replicates
        share.

        Parameters
        ----------
        level : float or None
            Level of the credible sets. Default: the requested level.

        Returns
        -------
        ndarray of shape (G, 2)
        """
        n = round(self.critical_levels.shape[1] / self._design_effect(self.level if level is None else level))
        counts = np.round(self.coverage(level) * n).astype(int)
        return np.array([Coverage(int(count), n).interval for count in counts]).reshape(-1, 2)

    def eta_se(self, level: float | None = None) -> float:
        """Return the standard error of eta-hat.

        Eta-hat is the (1 - level) quantile of the critical etas; this is half the distance between the order statistics
        whose ranks are one standard error of the coverage below and above it.

        Parameters
        ----------
        level : float or None
            Level of the credible sets. Default: the requested level.

        Returns
        -------
        float
            Infinity if either order statistic lies off the grid.
        """
        level = self.level if level is None else level
        error = quantile_error(np.sort(self.critical_etas(level)), level, self.coverage_se(level))
        if not np.isfinite(error):
            return error
        jump = self.attainable_eta(level).jump
        # The position of a jump has a Monte Carlo error only.
        return max(error, 0.0 if jump is None else jump.eta * CONFIG.step_back / 3)

    def coverage_se(self, level: float | None = None) -> float:
        """Return the standard error of a coverage that equals `level`.

        Parameters
        ----------
        level : float or None
            Level of the credible sets. Default: the requested level.

        Returns
        -------
        float
            The binomial standard error, increased for the Monte Carlo error that replicates share.
        """
        level = self.level if level is None else level
        return float(np.sqrt(level * (1 - level) * self._design_effect(level) / self.critical_levels.shape[1]))

    def _design_effect(self, level: float) -> float:
        """Return the factor by which draws shared between replicates increase the variance of coverage.

        The variance between populations relative to that of independent replicates, averaged over levels around the
        requested one: a single level gives as noisy an estimate as any variance of `n_populations` numbers.
        """
        if self.n_populations == 1 or self.first_critical_levels is None:
            return 1.0
        levels = level + (1 - level) * np.linspace(-1, 0.5, 7)
        covered = self.first_critical_levels[:, None] <= levels
        member = np.arange(1, len(covered) + 1) % self.n_populations == np.arange(self.n_populations)[:, None]
        p, shares = covered.mean(0), member @ covered.astype(float) / member.sum(1)[:, None]
        varies = (p > 0) & (p < 1)
        if not varies.any():
            return 1.0
        p = p[varies]
        ratios = shares[:, varies].var(0, ddof=1) * len(covered) / self.n_populations / (p * (1 - p))
        return max(1.0, float(ratios.mean()))


def eta_covering(ordered: Float[np.ndarray, " B"], level: float) -> float:
    """Return the (1 - level) quantile of ordered critical etas: 0 or infinity if it lies off the grid."""
    n = len(ordered)
    n_outside = min(max(round((1 - level) * n), 1), n - 1)
    low, high = ordered[n_outside - 1], ordered[n_outside]
    return float(np.sqrt(low * high)) if low > 0 and high < np.inf else float(low if low == 0 else high)


def quantile_error(ordered: Float[np.ndarray, " B"], level: float, coverage_se: float) -> float:
    """Return the standard error of `eta_covering`: infinity if either order statistic lies off the grid.

    It is half the distance between the order statistics whose ranks are one standard error of the coverage below and
    above.
    """
    n = len(ordered)
    spread = n * coverage_se
    ranks = np.clip(np.array([-spread, spread]) + (1 - level) * n - 0.5, 0, n - 1)
    low, high = (_order_statistic(ordered, rank) for rank in ranks)
    return float((high - low) / 2) if low > 0 and np.isfinite(high) else float("inf")


def _order_statistic(ordered: np.ndarray, rank: float) -> float:
    """Return the value at a fractional rank of ordered values, by linear interpolation; 0 next to a 0."""
    low, high = ordered[int(np.floor(rank))], ordered[int(np.ceil(rank))]
    return float(low if low == high or low == 0 else low + (rank % 1) * (high - low))
