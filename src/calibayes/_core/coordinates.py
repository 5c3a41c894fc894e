r"""Coordinates without walls for parameters that have them.

Where the prior bounds a parameter, samplers move a coordinate that is free: $\log(\theta - a)$ above a bound $a$,
$\log(b - \theta)$ below a bound $b$, the logit of $(\theta - a) / (b - a)$ between two. The density of the coordinate
is the parameter's times $|d\theta / dz|$. Parameters without bounds are their own coordinates.

A prior says where its walls are by `bounds`, a pair `(low, high)` of numbers or of one number a parameter, infinite
where there is none. A wall that a prior has but does not tell of is a place where proposals are rejected, and which no
map of particles can see.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from calibayes._backend.functions import host_array


class Coordinates(eqx.Module):
    """The way from free coordinates to parameters and back; parameters lead in every array."""

    low: Float[Array, " K"]
    high: Float[Array, " K"]
    unbounded: bool = eqx.field(static=True)
    """No parameter is bounded: nothing to do."""

    @staticmethod
    def from_prior(prior: Any, dim: int) -> "Coordinates":
        bounds = getattr(prior, "bounds", None)
        low, high = (-np.inf, np.inf) if bounds is None else bounds
        low, high = (np.broadcast_to(np.asarray(side, float), (dim,)) for side in (low, high))
        if not (low < high).all():
            raise ValueError(f"prior.bounds must be a pair (low, high) with low below high; got ({low}, {high}).")
        free = not (np.isfinite(low) | np.isfinite(high)).any()
        low, high = jax.device_put((host_array(low), host_array(high)))
        return Coordinates(low, high, free)

    def constrain(self, z: Float[Array, "K ..."]) -> Float[Array, "K ..."]:
        if self.unbounded:
            return z
        low, high = self._sides(z)
        above, below = jnp.isfinite(low), jnp.isfinite(high)
        exp = jnp.exp(jnp.where(above ^ below, z, 0.0))
        between = _width(low, high) * jax.nn.sigmoid(z)
        one_sided = jnp.where(above, low + exp, jnp.where(below, high - exp, z))
        return jnp.where(above & below, jnp.clip(low + between, low, high), one_sided)

    def unconstrain(self, theta: Float[Array, "K ..."]) -> Float[Array, "K ..."]:
        """Coordinates of parameters inside their bounds; of those on a wall, as near to it as floats are."""
        if self.unbounded:
            return theta
        low, high = self._sides(theta)
        above, below = jnp.isfinite(low), jnp.isfinite(high)
        tiny = jnp.finfo(theta.dtype).tiny
        from_low = jnp.log(jnp.where(above, jnp.maximum(theta - low, tiny), 1.0))
        from_high = jnp.log(jnp.where(below, jnp.maximum(high - theta, tiny), 1.0))
        one_sided = jnp.where(above, from_low, jnp.where(below, from_high, theta))
        return jnp.where(above & below, from_low - from_high, one_sided)

    def log_jacobian(self, z: Float[Array, "K ..."]) -> Float[Array, "..."]:
        r"""$\log|d\theta/dz|$, summed over parameters."""
        if self.unbounded:
            return jnp.zeros(z.shape[1:], z.dtype)
        low, high = self._sides(z)
        above, below = jnp.isfinite(low), jnp.isfinite(high)
        between = jnp.log(_width(low, high)) + jax.nn.log_sigmoid(z) + jax.nn.log_sigmoid(-z)
        return jnp.where(above & below, between, jnp.where(above | below, z, 0.0)).sum(0)

    def _sides(self, like: Array) -> tuple[Array, Array]:
        shape = (-1, *(1,) * (like.ndim - 1))
        return jnp.broadcast_to(self.low.reshape(shape), like.shape), jnp.broadcast_to(
            self.high.reshape(shape), like.shape
        )


def _width(low: Array, high: Array) -> Array:
    return jnp.where(jnp.isfinite(low) & jnp.isfinite(high), high - low, 1.0)
