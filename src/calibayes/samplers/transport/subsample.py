"""From the posterior on a subsample of the observations to that on all of them.

With many observations, tempering from the prior uses a subsample. The posteriors on the subsample and on all
observations are about as far apart as those on a bootstrap replicate and on the data, so the same affine maps
(`maps.py`) connect them. With the share of the subsample among all observations, they are first fitted to the posterior
on all observations at the share times eta, which is about as wide as that on the subsample at eta, so that the weights
are not far from equal; then, with these maps, to that at eta itself, which is narrower. Degenerate weights reveal a map
that fails.
"""

import jax.numpy as jnp
from jaxtyping import Array, Key, PRNGKeyArray

from calibayes._backend.functions import host_array
from calibayes._backend.jit import jit
from calibayes._backend.linalg import host_factor
from calibayes._backend.rng import replicate_keys
from calibayes._core.particles import Particles, host_moments, resample
from calibayes._core.target import Target
from calibayes.samplers.transport import config
from calibayes.samplers.transport.fitting import TransportedParticles, transport
from calibayes.samplers.transport.maps import AffineMaps, WhitenedPool
from calibayes.samplers.transport.refit import refit_maps


def subsample_size(dim: int) -> int:
    """Return the number of observations in a subsample for `dim` parameters."""
    constants = config.CONFIG.subsample
    return max(constants.min_observations, constants.observations_per_parameter * dim)


def extend_to_all_observations(
    key: PRNGKeyArray, populations: Target, subsample: Target, particles: Particles, eta: float
) -> Particles | None:
    """Transport populations of draws from a subsample to all observations.

    Parameters
    ----------
    key : PRNGKeyArray
        Random key.
    populations : Target
        The posterior on all observations, once for each population.
    subsample : Target
        The posterior on the subsample.
    particles : Particles
        Populations of draws on the subsample at `eta`.
    eta : float
        Learning rate of the draws, the same on the subsample and on all observations.

    Returns
    -------
    Particles or None
        Equally weighted draws on all observations; None if the weights of a population are degenerate.
    """
    share = int(subsample.counts.n) / int(populations.counts.n)
    pool = WhitenedPool.from_particles(particles, eta)
    wide = _fit_maps(populations, pool, _maps_to_populations(particles), share * eta)
    if wide is None:
        return None
    narrow_maps = refit_maps(pool, wide.maps, wide.particles.log_weights, wide.ess).scaled(share)
    fitted = _fit_maps(populations, pool, narrow_maps, eta)
    if fitted is None:
        return None
    return _resample_all(replicate_keys(key, populations.n_replicates), fitted.particles)


def _fit_maps(populations: Target, pool: WhitenedPool, maps: AffineMaps, eta: float) -> TransportedParticles | None:
    """Refit the maps until all populations have a sufficient effective sample size; return None if they do not."""
    constants = config.CONFIG.subsample
    for _ in range(constants.max_map_fits):
        fitted = transport(populations, pool, maps, eta)
        if fitted.ess.min() >= constants.min_population_ess * fitted.n_particles:
            return fitted
        maps = refit_maps(pool, maps, fitted.particles.log_weights, fitted.ess)
    return None


def _maps_to_populations(particles: Particles) -> AffineMaps:
    """Return the map to each population's own mean and covariance, so that a mode found by one is not lost."""
    means, covariances = host_moments(particles)
    return AffineMaps(host_array(means), host_array(host_factor(covariances)))


@jit
def _resample_all(keys: Key[Array, " R"], particles: Particles) -> Particles:
    return resample(keys, particles, jnp.ones(len(keys), bool))
