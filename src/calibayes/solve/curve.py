r"""Coverage against the learning rate, near eta-hat, from the particles already there.

The risk of every particle is known, so particles sampled at eta-hat answer for a learning rate nearby by
reweighting, $\exp\{-(\eta - \hat\eta) R\}$, at no further evaluation of the loss. The curve reaches as far as half of
the effective size lasts, and never below 0.55 of that eta: from less than half of it weights have infinite variance.

On each row the critical level rises with eta; where it passes the level asked for is the row's critical eta, at which
its set just lets the point go. Eta-hat is the alpha-quantile of these, and the spread of that quantile over bootstrap
samples, from its order statistics, is the standard error of eta-hat.
"""

from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from calibayes._backend.functions import host_array
from calibayes._backend.jit import jit
from calibayes._core.curve import Curve
from calibayes._core.particles import Particles, weights_after
from calibayes._core.target import Target
from calibayes.regions import Point, Region, densities_at, levels_at
from calibayes.solve.estimate import means_along

POINTS = 15
FEW_POINTS = 7
"""On the grid of a curve that is only searched by."""
_WIDEST = 0.6
_AT_ONCE = 2**25
"""Numbers of a parameter and particle each, over learning rates, that may be there at the same time."""

PointsOf = Callable[[Particles, np.ndarray], Float[Array, "G K"] | None]
"""The points to be covered at some learning rates, given particles on the data; None for the means of these."""


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
        found.append(_levels_on_grid(target, data, rows, host_array([etas - eta, etas]), region, points))
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
        weights, sizes = weights_after(drawn.log_weights, drawn.risk, jnp.full(target.n_replicates, step))
        return levels_at(drawn, weights, eta, region, Point(point, density)), jnp.median(sizes)

    # One at a time is as fast on a processor, and takes less memory; elsewhere it is so many launches.
    at_once = None if jax.default_backend() == "cpu" else max(1, _AT_ONCE // particles.theta.size)
    return jax.lax.map(one, (steps, etas, points, densities_at(target, etas, points)), batch_size=at_once)


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
