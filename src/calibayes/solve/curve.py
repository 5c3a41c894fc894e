r"""Coverage against the learning rate, around the learning rate of the particles.

The risk of every particle is known, so particles sampled at eta-hat answer for a nearby learning rate by reweighting,
$\exp\{-(\eta - \hat\eta) R\}$, without another evaluation of the loss. The curve extends as far as half of the
effective sample size remains, and never below 0.55 of that eta: the weights from less than half of it have infinite
variance.

On each replicate the critical level rises with eta. Where it passes the requested level is the critical eta of the
replicate. Eta-hat is the alpha-quantile of the critical etas, and the spread of that quantile over bootstrap samples,
from its order statistics, is the standard error of eta-hat (`calibayes._core.curve.Curve`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from calibayes._backend.functions import host_array
from calibayes._backend.jit import jit
from calibayes._core.curve import Curve
from calibayes._core.particles import Particles, weights_after
from calibayes._core.target import Target
from calibayes.regions import Point, Region, log_densities_at, weighted_critical_levels


@dataclass(frozen=True)
class CurveConfig:
    """Grid of a coverage curve."""

    n_points: int = 15
    """Learning rates on the grid. Critical etas are interpolated between them; twice as many change eta by less than
    a tenth of its standard error (`python -m benchmarks.sensitivity`)."""
    n_rough_points: int = 7
    """Learning rates on the grid of a curve that only leads the search."""
    max_half_width: float = 0.6
    """Largest half-width in log eta: exp(-0.6) = 0.55, above the 0.5 below which weights have infinite variance."""
    batch_numbers: int = 2**25
    """Numbers (parameters x replicates x particles x learning rates) that a GPU holds at the same time."""


CONFIG = CurveConfig()

PointsOf = Callable[[Particles, np.ndarray], Float[np.ndarray, "G K"]]
"""Function of the particles on the data and of G learning rates that returns the point estimate at each."""


def local_curve(
    target: Target,
    snapshots: Iterable[tuple[Particles, Particles]],
    eta: float,
    etas: Float[np.ndarray, " G"],
    region: Region,
    points_of: PointsOf,
    level: float,
    n_populations: int = 1,
) -> Curve:
    """Return the coverage curve on a grid around `eta`, averaged over snapshots of the particles.

    Parameters
    ----------
    target : Target
        The data and the replicates.
    snapshots : iterable of (Particles, Particles)
        Particles at `eta`, on the data and on all replicates.
    eta : float
        Learning rate of the particles.
    etas : ndarray of shape (G,)
        Learning rates of the grid.
    region, level
        Credible set and its level.
    points_of : callable
        Point estimates along the grid.
    n_populations : int
        Number of independent populations of draws. Replicates b, b + n_populations, ... are computed from the same
        population.
    """
    by_snapshot, previous_data = [], None
    for data, replicates in snapshots:
        if data is not previous_data:
            points, previous_data = points_of(data, etas), data
        by_snapshot.append(levels_on_grid(target, replicates, host_array([etas - eta, etas]), region, points))
    levels, sizes = zip(*jax.device_get(by_snapshot), strict=True)
    mean, ess = np.mean(levels, axis=0)[:, 1:], np.mean(np.median(sizes, axis=-1), axis=0)
    return Curve(etas, mean, ess, level, n_populations, levels[0][len(etas) // 2, 1:])


@jit
def levels_on_grid(
    target: Target,
    particles: Particles,
    grid: Float[Array | np.ndarray, "2 G"],
    region: Region,
    points: Float[Array | np.ndarray, "G K"],
) -> tuple[Float[Array, "G B"], Float[Array, "G B"]]:
    """Return the critical levels and the effective sample sizes at each learning rate of a grid.

    `grid` holds the differences to the learning rate of the particles, and the learning rates themselves.
    """
    (steps, etas), points = jnp.asarray(grid), jnp.asarray(points)
    constrained = target.constrained(particles)

    def levels_at_one(inputs):
        step, eta, point, density = inputs
        weights, sizes = weights_after(constrained.log_weights, constrained.risk, jnp.full(target.n_replicates, step))
        levels = weighted_critical_levels(constrained, weights, eta, region, Point(point, density))
        return levels, sizes

    # On a CPU one learning rate at a time is as fast and takes less memory; on a GPU each would be a kernel launch.
    batch = None if jax.default_backend() == "cpu" else max(1, CONFIG.batch_numbers // particles.theta.size)
    return jax.lax.map(levels_at_one, (steps, etas, points, log_densities_at(target, etas, points)), batch_size=batch)


def grid_around(eta: float, half_width: float, n_points: int) -> Float[np.ndarray, " G"]:
    """Return learning rates around `eta`, equally spaced in their logarithm."""
    return eta * np.exp(np.linspace(-half_width, half_width, n_points))


def half_width(eta: float, variance: float) -> float:
    """Return the distance in log eta at which half of the effective sample size remains, given the risk's variance.

    The effective sample size falls by about exp(-v), with v the variance of the log-weights.
    """
    return float(min(CONFIG.max_half_width, np.sqrt(np.log(2) / max(eta**2 * variance, 1e-12))))


def risk_variances(particles: Particles) -> Float[Array, " B"]:
    """Return the variance of the risk over the particles of each replicate."""
    risk, weights = jnp.where(jnp.isfinite(particles.risk), particles.risk, 0.0), particles.weights
    centred = risk - (risk * weights).sum(-1)[:, None]
    return (jnp.square(centred) * weights).sum(-1)
