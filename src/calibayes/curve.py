r"""Coverage against the learning rate, near eta-hat, from the particles already there.

The risk of every particle is known, so particles sampled at eta-hat answer for a learning rate nearby by
reweighting, $\exp\{-(\eta - \hat\eta) R\}$, at no further evaluation of the loss. The curve reaches as far as half of
the effective size lasts, and never below 0.55 of that eta: from less than half of it weights have infinite variance.

On each row the critical level rises with eta; where it passes the level asked for is the row's critical eta, at which
its set just lets the point go. Eta-hat is the alpha-quantile of these, and the spread of that quantile over bootstrap
samples, from its order statistics, is the standard error of eta-hat.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from calibayes.estimate import means_along
from calibayes.functions import handed
from calibayes.particles import Particles, weights_after
from calibayes.regions import Cloud, Point, Region
from calibayes.target import Target, log_density
from calibayes.together import jit

POINTS = 15
FEW_POINTS = 7
"""On the grid of a curve that is only searched by."""
_WIDEST = 0.6
_AT_ONCE = 2**25
"""Numbers of a parameter and particle each, over learning rates, that may be there at the same time."""

PointsOf = Callable[[Particles, np.ndarray], Float[Array, "G K"] | None]
"""The points to be covered at some learning rates, given particles on the data; None for the means of these."""


class Coverage(float):
    """A share of bootstrap rows, with a 95% interval for the probability behind it."""

    n_rows: int

    def __new__(cls, covered: int, n_rows: int) -> "Coverage":
        share = super().__new__(cls, covered / n_rows)
        share.n_rows = n_rows
        return share

    def __getnewargs__(self) -> tuple[int, int]:  # type: ignore[override]
        return round(self * self.n_rows), self.n_rows

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's score interval."""
        n, z = self.n_rows, NormalDist().inv_cdf(0.975)
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
    def empty(n_rows: int, level: float) -> "Curve":
        """A curve that could not be drawn."""
        return Curve(np.empty(0), np.empty((0, n_rows)), np.empty(0), level)

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


def local_curve(
    target: Target,
    snapshots: Iterable[tuple[Particles, Particles]],
    eta: float,
    etas: Float[np.ndarray, " G"],
    region: Region,
    points_of: PointsOf,
    level: float,
    groups: int = 1,
) -> Curve:
    """The curve on a grid around `eta` from particles there, on the data and on every row; averaged over snapshots."""
    found, last = [], None
    for data, rows in snapshots:
        if data is not last:
            points, last = points_of(data, etas), data
        found.append(_levels_on_grid(target, data, rows, handed([etas - eta, etas]), region, points))
    levels, sizes = zip(*jax.device_get(found), strict=True)
    mean = np.mean(levels, axis=0)[:, 1:]
    return Curve(etas, mean, np.mean(sizes, axis=0), level, groups, levels[0][len(etas) // 2, 1:])


@jit
def _levels_on_grid(
    target: Target,
    data: Particles,
    particles: Particles,
    grid: Float[Array, "2 G"],
    region: Region,
    points: Float[Array, "G K"] | None,
) -> tuple[Float[Array, "G B"], Float[Array, " G"]]:
    """Every row's critical level, and the median effective size, at each learning rate of a grid: how far they are from
    where the particles are, and the learning rates themselves.
    """
    steps, etas = grid
    drawn = target.constrained(particles)
    points = means_along(target.constrained(data), steps) if points is None else points

    def one(at):
        step, eta, point, density = at
        weights, sizes = weights_after(drawn.log_weights, drawn.risk, jnp.full(target.n_rows, step))
        return _levels(drawn, weights, eta, region, Point(point, density)), jnp.median(sizes)

    # One at a time is as fast on a processor, and takes less memory; elsewhere it is so many launches.
    at_once = None if jax.default_backend() == "cpu" else max(1, _AT_ONCE // particles.theta.size)
    return jax.lax.map(one, (steps, etas, points, _densities(target, etas, points)), batch_size=at_once)


@jit
def critical_levels(
    target: Target, particles: Particles, eta: Float[Array, ""], region: Region, point: Float[Array, " K"]
) -> Float[Array, " B"]:
    """The critical level of the point on every row; NaN where no particle has any weight."""
    density = _densities(target, eta[None], point[None])[0]
    drawn = target.constrained(particles)
    return _levels(drawn, drawn.weights, eta, region, Point(point, density))


def _levels(
    drawn: Particles, weights: Float[Array, "B M"], eta: Float[Array, ""], region: Region, point: Point
) -> Float[Array, " B"]:
    cloud = Cloud(drawn.theta, weights, log_density(drawn, jnp.full(len(weights), eta)))
    levels = region.critical_level(cloud, point)
    return jnp.where((weights > 0).any(-1), levels, jnp.nan)


def _densities(target: Target, etas: Float[Array, " G"], points: Float[Array, "G K"]) -> Float[Array, "G B"]:
    """Of points on every row, each at its learning rate; all in one pass over the observations."""
    at = jnp.broadcast_to(points.T[:, None], (target.dim, target.n_rows, len(points)))
    density = -etas[None] * target.risk(at) + target.log_prior(at)
    return jnp.where(jnp.isnan(density), -jnp.inf, density).T


def grid_around(eta: float, half_width: float, n_points: int) -> Float[np.ndarray, " G"]:
    """Learning rates at equal distances in their logarithm."""
    return eta * np.exp(np.linspace(-half_width, half_width, n_points))


def half_width(eta: float, variance: float) -> float:
    """As far as log eta can go: the effective size falls by about exp(-variance of the log-weights), of the risk's."""
    return float(min(_WIDEST, np.sqrt(np.log(2) / max(eta**2 * variance, 1e-12))))


def risk_variance(particles: Particles) -> Float[Array, ""]:
    """Variance of the risk over particles, median over rows."""
    risk, weights = jnp.where(jnp.isfinite(particles.risk), particles.risk, 0.0), particles.weights
    centred = risk - (risk * weights).sum(-1)[:, None]
    return jnp.median((jnp.square(centred) * weights).sum(-1))


def _between(ordered: np.ndarray, rank: float) -> float:
    low, high = ordered[int(np.floor(rank))], ordered[int(np.ceil(rank))]
    return float(low if low == high else low + (rank % 1) * (high - low))
