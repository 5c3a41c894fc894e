"""Whether floats can tell apart what the posterior does: parameters near to each other, and their risks."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from calibayes._backend.jit import jit
from calibayes._core.particles import Particles
from calibayes._core.target import Target

_ROUNDED = 0.1


def require_precision(target: Target, particles: Particles, eta: float) -> None:
    """At draws of the posterior: of the parameters, and of the risk."""
    most, mean, width, rounding = jax.device_get(_size(target, particles))
    _require_resolution(most, mean, width)
    _require_digits(target, eta * float(rounding))


@jit
def _size(
    target: Target, particles: Particles
) -> tuple[Float[Array, " K"], Float[Array, " K"], Float[Array, " K"], Float[Array, ""]]:
    """Of each parameter the largest, mean and standard deviation; and what risks are rounded by."""
    theta = target.constrained(particles).theta.reshape(target.dim, -1)
    return jnp.abs(theta).max(1), theta.mean(1), theta.std(1), _rounding(target.reference_loss)


def _require_digits(target: Target, rounding: float) -> None:
    """Risks must be rounded to much less than what the posterior tells apart."""
    if rounding > _ROUNDED:
        raise ValueError(
            f"the risk is so large, even at the posterior's mean, that {target.reference_loss.dtype} rounds eta * risk to "
            f"{rounding:.1g}: take off the loss what does not depend on theta, or enable JAX's x64."
        )


def _rounding(base: Float[Array, "G L"]) -> Float[Array, ""]:
    """Of a sum over blocks: each block's sum is rounded by half the distance to the next float, at most."""
    by_block = jnp.abs(base.sum(1))
    return jnp.sqrt(jnp.square(jnp.nextafter(by_block, jnp.inf) - by_block).sum())


def _require_resolution(
    most: Float[np.ndarray, " K"], mean: Float[np.ndarray, " K"], width: Float[np.ndarray, " K"]
) -> None:
    """Floats near the posterior must be much closer together than the posterior is wide."""
    coarse = np.spacing(most) > 0.05 * width
    if coarse.any():
        k = int(np.argmax(coarse))
        raise ValueError(
            f"parameter {k} is near {mean[k]:.3g}, with a posterior only {width[k]:.2g} wide: too narrow "
            f"for {most.dtype}. Centre y and the columns of X, or enable JAX's x64."
        )
