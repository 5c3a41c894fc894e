r"""Search for modes of replicates that their particles have not visited.

Where the posterior has a minor mode on the data, that mode is the major one on some replicates. Particles that come
from draws on the data, of which none is in the minor mode, miss it there, and their importance weights do not tell. At
a smaller learning rate the modes are less unequal: draws of the posterior on the data at fractions of eta, tempered
from the prior, visit both. Here their densities on each replicate at eta are compared with those of the replicate's
particles. A draw that is farther away than every particle, but has a density near the largest one, shows a mode.

The comparison only ranks replicates. It finds modes in a few dimensions, where broad draws come close to them.
"""

from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from calibayes._backend.functions import host_array
from calibayes._backend.linalg import host_inverse_factor
from calibayes._backend.rng import replicate_keys
from calibayes._core.particles import Particles, host_moments
from calibayes._core.target import Target, evaluate
from calibayes.samplers.initial import init_at_prior
from calibayes.samplers.mixing import temper_to
from calibayes.samplers.populations import N_POPULATIONS, population_target, replicate_batches


@dataclass(frozen=True)
class UnvisitedConfig:
    """Constants of the broad draws."""

    fractions: tuple[float, ...] = (1 / 64, 1 / 16, 1 / 4)
    """Fractions of eta at which broad draws are taken. A mode with a mass of exp(-40) at eta has 7% at eta / 16."""
    notable: float = -4.0
    """Log-density of a broad draw relative to the largest of a replicate's particles from which on it shows a mode. The
    farthest of 1,000 draws of a normal distribution has -5 in one dimension, and less in more."""


CONFIG = UnvisitedConfig()


def unvisited_log_densities(
    key: PRNGKeyArray, target: Target, particles: Particles, eta: float
) -> Float[np.ndarray, " B"]:
    """Return the largest log-density of broad draws that are farther away than all particles, for each replicate.

    Parameters
    ----------
    key : PRNGKeyArray
        Random key.
    target : Target
        The posteriors; replicate 0 is the data.
    particles : Particles
        Particles on all replicates.
    eta : float
        Their learning rate.

    Returns
    -------
    ndarray of shape (B,)
        Log-densities relative to the largest one of the replicate's particles; minus infinity without such draws.
    """
    draws = _broad_draws(key, target, eta, particles.risk.shape[-1])
    # Batches have as many replicates as there are populations, the shape for which the programs are compiled.
    shape = (len(draws), N_POPULATIONS, draws.shape[-1])
    largest = np.full(target.n_replicates, -np.inf)
    for batch in replicate_batches(np.arange(target.n_replicates)):
        own = particles.select(batch)
        broad = evaluate(target.select(batch), host_array(np.broadcast_to(draws[:, None], shape)))
        means, covariances = host_moments(own)
        inverses = host_inverse_factor(covariances)
        unvisited = _distances(broad, means, inverses) > _distances(own, means, inverses).max(-1, keepdims=True)
        log_density = np.where(unvisited, _log_densities(broad, eta), -np.inf)
        largest[batch] = log_density.max(-1) - _log_densities(own, eta).max(-1)
    return largest


def _broad_draws(key: PRNGKeyArray, target: Target, eta: float, n_draws: int) -> Float[np.ndarray, "K M"]:
    """Return draws of the posterior on the data, in equal parts from each fraction of eta."""
    populations = population_target(target)
    temper_key, state = init_at_prior(key, populations, n_draws)
    keys, parts = replicate_keys(temper_key, N_POPULATIONS), []
    for fraction in CONFIG.fractions:
        state = temper_to(keys, populations, state, fraction * eta)
        parts.append(np.asarray(state.particles.theta).reshape(target.dim, -1))
    drawn = np.concatenate(parts, -1)
    return drawn[:, np.arange(n_draws) * (drawn.shape[-1] // n_draws)]


def _distances(
    particles: Particles, means: Float[np.ndarray, "K R"], inverses: Float[np.ndarray, "R K K"]
) -> Float[np.ndarray, "R M"]:
    """Return squared Mahalanobis distances; `inverses` are inverse factors of the covariances."""
    deviations = np.asarray(particles.theta, np.float64) - means[:, :, None]
    return np.square(inverses @ np.moveaxis(deviations, 1, 0)).sum(1)


def _log_densities(particles: Particles, eta: float) -> Float[np.ndarray, "R M"]:
    risk, log_prior = jax.device_get((particles.risk, particles.log_prior))
    value = -eta * risk.astype(np.float64) + log_prior
    return np.where(np.isfinite(risk) & ~np.isnan(value), value, -np.inf)
