"""What particles at a learning rate say there: each row's critical level, and what else is asked of them at once."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from calibayes._backend.jit import jit
from calibayes._core.particles import Particles, quantile
from calibayes._core.target import Target
from calibayes.regions import Region, critical_levels
from calibayes.solve.curve import risk_variance
from calibayes.solve.estimate import posterior_mean


class Assessment(NamedTuple):
    levels: Float[Array, " B"]
    """The critical level of the point on every row."""
    point: Float[Array, " K"]
    invalid: Int[Array, ""]
    """Particles whose risk is no number."""
    variance: Float[Array, ""]
    """Of the risk over particles, median over rows."""
    intervals: Float[Array, "K 2"]
    """Of each parameter on the data, at the level asked for."""


@jit
def assess(
    target: Target,
    particles: Particles,
    data: Particles,
    eta: Float[Array, ""],
    region: Region,
    point: Float[Array, " K"] | None,
    level: Float[Array, ""],
) -> Assessment:
    """In one program, as each would take less time than it takes to be called. The point is the mean, unless given."""
    on_data = target.constrained(data)
    point = posterior_mean(on_data) if point is None else point
    levels = critical_levels(target, particles, eta, region, point)
    invalid = jnp.isnan(particles.risk).sum()
    intervals = _marginal_intervals(on_data, level)
    return Assessment(levels, point, invalid, risk_variance(particles), intervals)


def _marginal_intervals(particles: Particles, level: Float[Array, ""]) -> Float[Array, "K 2"]:
    theta = jnp.broadcast_to(particles.theta, (len(particles.theta), 2, particles.theta.shape[-1]))
    tails = jnp.stack([0.5 * (1 - level), 0.5 * (1 + level)])
    return quantile(
        theta, jnp.broadcast_to(particles.weights[None], theta.shape), jnp.broadcast_to(tails, theta.shape[:2])
    )
