r"""Coverage against the learning rate, near eta-hat, from the particles already there.

The risk of every particle is known, so particles sampled at eta-hat answer for a learning rate nearby by
reweighting, $\exp\{-(\eta - \hat\eta) R\}$, at no further evaluation of the loss. The curve reaches as far as half of
the effective size lasts, and never below 0.55 of that eta: from less than half of it weights have infinite variance.

On each row the critical level rises with eta; where it passes the level asked for is the row's critical eta, at which
its set just lets the point go. Eta-hat is the alpha-quantile of these, and the spread of that quantile over bootstrap
samples, from its order statistics, is the standard error of eta-hat.
"""

from collections.abc import Callable, Iterable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from calibayes.functions import as_float
from calibayes.particles import Particles, ess_after, mean, reweight
from calibayes.regions import Cloud, Point, Region
from calibayes.target import Target, log_density

_POINTS = 21
_WIDEST = 0.6

Estimate = Callable[[Particles, float], Float[Array, " K"]]


class Curve(eqx.Module):
    """Critical levels of every bootstrap row on a grid of learning rates around eta-hat."""

    etas: Float[np.ndarray, " G"]
    critical_levels: Float[np.ndarray, "G B"]
    ess: Float[np.ndarray, " G"]
    """Median effective size over rows after reweighting."""
    level: float

    @staticmethod
    def empty(n_rows: int, level: float) -> "Curve":
        """A curve that could not be drawn."""
        return Curve(np.empty(0), np.empty((0, n_rows)), np.empty(0), level)

    def coverage(self, level: float | None = None) -> Float[np.ndarray, " G"]:
        """Coverage at each eta of the grid, at any level."""
        return (self.critical_levels <= (self.level if level is None else level)).mean(1)

    def critical_etas(self, level: float | None = None) -> Float[np.ndarray, " B"]:
        """Where each row's set lets the point go; 0 or infinite for rows that do so off the grid."""
        wanted = self.level if level is None else level
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
        return float(np.sqrt(ordered[outside - 1] * ordered[outside]))

    def eta_se(self, level: float | None = None) -> float:
        """Half the distance between the order statistics one standard error on either side of eta-hat."""
        wanted = self.level if level is None else level
        ordered = np.sort(self.critical_etas(wanted))
        n = len(ordered)
        spread = np.sqrt(n * wanted * (1 - wanted))
        ranks = np.clip(np.array([-spread, spread]) + (1 - wanted) * n - 0.5, 0, n - 1)
        low, high = (_between(ordered, rank) for rank in ranks)
        return float((high - low) / 2) if low > 0 and np.isfinite(high) else float("inf")


def local_curve(
    target: Target,
    snapshots: Iterable[Particles],
    eta: float,
    region: Region,
    estimate: Estimate,
    level: float,
) -> Curve:
    """The curve around `eta` from particles there, averaged over snapshots of them."""
    curves: list[list[tuple[np.ndarray, float]]] = []
    etas = np.empty(0)
    for particles in snapshots:
        if not curves:
            half_width = _half_width(particles, eta)
            etas = eta * np.exp(np.linspace(-half_width, half_width, _POINTS))
        curves.append([_reweighted_levels(target, particles, value, eta, region, estimate) for value in etas])
    levels = np.mean([[levels for levels, _ in curve] for curve in curves], axis=0)
    sizes = np.mean([[size for _, size in curve] for curve in curves], axis=0)
    return Curve(etas, levels, sizes, level)


def _reweighted_levels(
    target: Target, particles: Particles, eta: float, sampled: float, region: Region, estimate: Estimate
) -> tuple[np.ndarray, float]:
    shifted, size = shift(particles, as_float(eta - sampled))
    point = estimate(shifted.row(0), eta)
    return np.asarray(critical_levels(target, shifted, as_float(eta), region, point)), float(size)


@eqx.filter_jit
def critical_levels(
    target: Target, particles: Particles, eta: Float[Array, ""], region: Region, point: Float[Array, " K"]
) -> Float[Array, " B"]:
    """The critical level of the point on every bootstrap row, the data's row left out."""
    at = jnp.broadcast_to(point[:, None, None], (target.dim, target.n_rows, 1))
    density_at = -eta * target.risk(at)[:, 0] + target.log_prior(at)[:, 0]
    drawn = target.constrained(particles)
    cloud = Cloud(drawn.theta, drawn.weights, log_density(drawn, jnp.full(target.n_rows, eta)))
    levels = region.critical_level(cloud, Point(point, jnp.where(jnp.isnan(density_at), -jnp.inf, density_at)))
    return levels[1:]


@jax.jit
def shift(particles: Particles, step: Float[Array, ""]) -> tuple[Particles, Float[Array, ""]]:
    """Particles reweighted by a step of eta, and the median over rows of the effective size that leaves."""
    steps = jnp.full(particles.risk.shape[0], step)
    size = jnp.median(ess_after(particles.log_weights, particles.risk, steps))
    return particles.with_log_weights(reweight(particles.log_weights, particles.risk, steps)), size


def _half_width(particles: Particles, eta: float) -> float:
    """How far log eta can go: the effective size falls by about exp(-variance of the log-weights)."""
    variance = eta**2 * float(_risk_variance(particles))
    return float(min(_WIDEST, np.sqrt(np.log(2) / max(variance, 1e-12))))


@jax.jit
def _risk_variance(particles: Particles) -> Float[Array, ""]:
    """Variance of the risk over particles, median over rows."""
    risk = jnp.where(jnp.isfinite(particles.risk), particles.risk, 0.0)[None]
    centred = risk - mean(risk, particles.weights)[:, :, None]
    return jnp.median(mean(jnp.square(centred), particles.weights))


def _between(ordered: np.ndarray, rank: float) -> float:
    low, high = ordered[int(np.floor(rank))], ordered[int(np.ceil(rank))]
    return float(low if low == high else low + (rank % 1) * (high - low))
