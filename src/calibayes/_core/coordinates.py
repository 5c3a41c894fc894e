r"""Unbounded coordinates of bounded parameters.

Where the prior bounds a parameter, samplers move an unbounded coordinate $z$: $\log(\theta - a)$ above a lower bound
$a$, $\log(b - \theta)$ below an upper bound $b$, and the logit of $(\theta - a) / (b - a)$ between two bounds. The
density of the coordinate is that of the parameter times $|d\theta / dz|$. A parameter without bounds is its own
coordinate.

A prior states its bounds in an attribute `bounds`, a pair `(low, high)` of numbers or of arrays with one number per
parameter, infinite where there is no bound. If a prior has a bound that it does not state, proposals beyond it are
rejected, and transport maps cannot take it into account.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from calibayes._backend.arguments import display
from calibayes._backend.functions import host_array


class Coordinates(eqx.Module):
    """Map between parameters and unbounded coordinates. In all arrays the parameters are along the first axis.

    Attributes
    ----------
    low, high : Array of shape (K,)
        Bounds of each parameter, infinite where there is none.
    unbounded : bool
        Whether no parameter is bounded, so that the map is the identity.
    """

    low: Float[Array, " K"]
    high: Float[Array, " K"]
    unbounded: bool = eqx.field(static=True)

    @staticmethod
    def from_prior(prior: object, dim: int) -> "Coordinates":
        """Return the coordinates of `dim` parameters with the bounds of a prior.

        Raises
        ------
        ValueError
            If the bounds are not a pair of numbers or of arrays with one number per parameter, or if a lower bound is
            not below the upper bound.
        """
        bounds = getattr(prior, "bounds", None)
        try:
            low, high = (-np.inf, np.inf) if bounds is None else bounds
            low, high = (np.broadcast_to(np.asarray(side, float), (dim,)) for side in (low, high))
            ordered = bool((low < high).all())
        except (TypeError, ValueError):
            ordered = False
        if not ordered:
            raise ValueError(
                "prior.bounds must be a pair (low, high) of numbers, or of arrays with one number for each of "
                f"{dim} parameters, with low below high; got {display(bounds)}."
            )
        unbounded = not (np.isfinite(low) | np.isfinite(high)).any()
        low, high = jax.device_put((host_array(low), host_array(high)))
        return Coordinates(low, high, unbounded)

    def constrain(self, z: Float[Array, "K ..."]) -> Float[Array, "K ..."]:
        """Map unconstrained coordinates to parameters within their bounds."""
        if self.unbounded:
            return z
        low, high = self._broadcast_bounds(z.shape)
        above, below = jnp.isfinite(low), jnp.isfinite(high)
        exp = jnp.exp(jnp.where(above ^ below, z, 0.0))
        between = _width(low, high) * jax.nn.sigmoid(z)
        one_sided = jnp.where(above, low + exp, jnp.where(below, high - exp, z))
        return jnp.where(above & below, jnp.clip(low + between, low, high), one_sided)

    def unconstrain(self, theta: Float[Array, "K ..."]) -> Float[Array, "K ..."]:
        """Return the coordinates of parameters; on a bound and beyond, those of the nearest float inside."""
        if self.unbounded:
            return theta
        low, high = self._broadcast_bounds(theta.shape)
        above, below = jnp.isfinite(low), jnp.isfinite(high)
        tiny = jnp.finfo(theta.dtype).tiny
        from_low = jnp.log(jnp.where(above, jnp.maximum(theta - low, tiny), 1.0))
        from_high = jnp.log(jnp.where(below, jnp.maximum(high - theta, tiny), 1.0))
        one_sided = jnp.where(above, from_low, jnp.where(below, from_high, theta))
        return jnp.where(above & below, from_low - from_high, one_sided)

    def contain(self, theta: Float[Array, "K ..."]) -> Bool[Array, "..."]:
        """Return whether all parameters are between their bounds, and none is NaN."""
        low, high = self._broadcast_bounds(theta.shape)
        return ((low < theta) & (theta < high)).all(0)

    def log_jacobian(self, z: Float[Array, "K ..."]) -> Float[Array, "..."]:
        r"""Return $\log|d\theta/dz|$, summed over parameters."""
        if self.unbounded:
            return jnp.zeros(z.shape[1:], z.dtype)
        low, high = self._broadcast_bounds(z.shape)
        above, below = jnp.isfinite(low), jnp.isfinite(high)
        between = jnp.log(_width(low, high)) + jax.nn.log_sigmoid(z) + jax.nn.log_sigmoid(-z)
        return jnp.where(above & below, between, jnp.where(above | below, z, 0.0)).sum(0)

    def _broadcast_bounds(self, shape: tuple[int, ...]) -> tuple[Array, Array]:
        column = (-1, *(1,) * (len(shape) - 1))
        low, high = (jnp.broadcast_to(side.reshape(column), shape) for side in (self.low, self.high))
        return low, high


def _width(low: Array, high: Array) -> Array:
    return jnp.where(jnp.isfinite(low) & jnp.isfinite(high), high - low, 1.0)
