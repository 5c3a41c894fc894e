"""Check that floats resolve the posterior: differences of its parameters, and differences of their risks."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from calibayes._backend.jit import light_jit
from calibayes._core.particles import Particles
from calibayes._core.target import Target


@dataclass(frozen=True)
class PrecisionConfig:
    """Largest rounding errors that are accepted."""

    max_risk_rounding: float = 0.1
    """Largest rounding error of eta times the risk. A posterior resolves differences of order one; an error of 0.1
    changes a density by 10%. Order-of-magnitude choice; it only decides which calls are rejected."""
    max_spacing: float = 0.05
    """Largest distance between neighbouring floats, in posterior standard deviations. Order-of-magnitude choice; it
    only decides which calls are rejected."""


CONFIG = PrecisionConfig()


def require_precision(target: Target, particles: Particles, eta: float) -> None:
    """Raise an error if the float type is too coarse for the posterior.

    Parameters
    ----------
    target : Target
        Target with its reference inside the posterior.
    particles : Particles
        Draws of the posterior on the data.
    eta : float
        Their learning rate.

    Raises
    ------
    ValueError
        If the parameters or the risks cannot be resolved.
    """
    largest, mean, sd, rounding = jax.device_get(_summarize(target, particles))
    _require_resolved_parameters(largest, mean, sd)
    _require_resolved_risk(target, eta * float(rounding))


@light_jit
def _summarize(
    target: Target, particles: Particles
) -> tuple[Float[Array, " K"], Float[Array, " K"], Float[Array, " K"], Float[Array, ""]]:
    """Return the largest magnitude, mean and standard deviation of each parameter, and the rounding error of risks."""
    theta = target.constrained(particles).theta.reshape(target.dim, -1)
    return jnp.abs(theta).max(1), theta.mean(1), theta.std(1), _rounding_error(target)


def _rounding_error(target: Target) -> Float[Array, ""]:
    """Bound the rounding error of a sum over blocks, each rounded by at most half the distance to the next float."""
    losses, n = target.reference_loss, target.counts.n
    is_observation = jnp.arange(losses.size, dtype=n.dtype).reshape(losses.shape) < n
    block_sums = jnp.abs(jnp.where(is_observation, losses, 0.0).sum(1))
    return jnp.sqrt(jnp.square(jnp.nextafter(block_sums, jnp.inf) - block_sums).sum())


def _require_resolved_risk(target: Target, rounding: float) -> None:
    if rounding > CONFIG.max_risk_rounding:
        raise ValueError(
            f"the risk is so large, even at the posterior mean, that {target.reference_loss.dtype} rounds eta * risk "
            f"to {rounding:.1g}: subtract from the loss the part that does not depend on theta, or enable JAX's x64."
        )


def _require_resolved_parameters(
    largest: Float[np.ndarray, " K"], mean: Float[np.ndarray, " K"], sd: Float[np.ndarray, " K"]
) -> None:
    coarse = np.spacing(largest) > CONFIG.max_spacing * sd
    if coarse.any():
        k = int(np.argmax(coarse))
        raise ValueError(
            f"parameter {k} is near {mean[k]:.3g} and its posterior, with standard deviation {sd[k]:.2g}, is too "
            f"narrow for {largest.dtype}. Centre y and the columns of X, or enable JAX's x64."
        )
