"""Whether floats can tell apart what the posterior does: parameters near to each other, and their risks."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from calibayes.particles import Particles
from calibayes.target import Target

_ROUNDED = 0.1


def require_digits(target: Target, eta: float) -> None:
    """Risks must be rounded to much less than what the posterior tells apart."""
    rounding = eta * float(_rounding(target.base))
    if rounding > _ROUNDED:
        raise ValueError(
            f"the risk is so large, even at the posterior's mean, that {target.base.dtype} rounds eta * risk to "
            f"{rounding:.1g}: take off the loss what does not depend on theta, or enable JAX's x64."
        )


@jax.jit
def _rounding(base: Float[Array, "G L"]) -> Float[Array, ""]:
    """Of a sum over blocks: each block's sum is rounded by half the distance to the next float, at most."""
    by_block = jnp.abs(base.sum(1))
    return jnp.sqrt(jnp.square(jnp.nextafter(by_block, jnp.inf) - by_block).sum())


def require_resolution(particles: Particles) -> None:
    """Floats near the posterior must be much closer together than the posterior is wide."""
    theta = np.asarray(particles.theta).reshape(len(particles.theta), -1)
    coarse = np.spacing(np.abs(theta).max(1)) > 0.05 * theta.std(1)
    if coarse.any():
        k = int(np.argmax(coarse))
        raise ValueError(
            f"parameter {k} is near {theta[k].mean():.3g}, with a posterior only {theta[k].std():.2g} wide: too narrow "
            f"for {theta.dtype}. Centre y and the columns of X, or enable JAX's x64."
        )
