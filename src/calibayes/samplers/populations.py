"""Independent populations of draws, and batches of replicates of the same size.

Draws of the posterior on the data come in `N_POPULATIONS` populations, each treated as one replicate of a target that
repeats the data. Algorithms that work on a few replicates at a time (the audit, the repair of degenerate weights, the
rejuvenation of the last replicates) take batches of the same number of replicates, so that all of them run the same
compiled programs.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from calibayes._backend.jit import light_jit
from calibayes._core import convergence
from calibayes._core.convergence import within_between_variances
from calibayes._core.particles import Particles
from calibayes._core.target import Target

N_POPULATIONS = 20
"""Number of populations, and number of replicates in a batch. Twenty independent means give a standard error with a
relative accuracy of 1 / sqrt(2 * 19), or 16%."""


@light_jit
def population_target(target: Target) -> Target:
    """Return `N_POPULATIONS` copies of the target given the observed data."""
    return target.select(jnp.zeros(N_POPULATIONS, int))


def population_agreement(particles: Particles) -> tuple[float, float]:
    """Return the largest R-hat and the smallest effective sample size over the parameters and the risk."""
    theta, risk = jax.device_get((particles.theta, particles.risk))
    variances = within_between_variances(np.concatenate([theta, risk[None]]))
    return convergence.population_agreement(*variances, *risk.shape)


def replicate_batches(indices: Int[np.ndarray, " R"]) -> list[Int[np.ndarray, " P"]]:
    """Split indices of replicates into batches of `N_POPULATIONS`; the last one repeats its own to be complete."""
    return [
        np.resize(indices[first : first + N_POPULATIONS], N_POPULATIONS)
        for first in range(0, len(indices), N_POPULATIONS)
    ]
