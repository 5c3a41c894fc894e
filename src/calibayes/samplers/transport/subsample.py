"""From the posterior on some of the observations to that on all of them.

The two are as far apart as a bootstrap row is from the data, so what carries draws there is what carries them to rows:
affine maps fitted to weights (`maps.py`). First at a learning rate so small that all observations tell no more than
the few did, where the weights of draws from the few are not far from even; then, with those maps, at the learning rate
itself, where the posterior is narrower. A map that fails tells by its weights.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PRNGKeyArray

from calibayes._backend.functions import host_array
from calibayes._backend.jit import jit
from calibayes._backend.rng import replicate_keys
from calibayes._core.particles import Particles, covariance, factor, mean, resample
from calibayes._core.target import Target
from calibayes.samplers.transport.maps import Base, Maps, refit, weigh

_FEW = 2**14
_A_PARAMETER = 200
_FITS = 5
_FAIR = 0.3
"""Share of particles that must count on every population."""


def enough_observations(dim: int) -> int:
    """So many that what is rare among all is not missing."""
    return max(_FEW, _A_PARAMETER * dim)


def onto_all(key: PRNGKeyArray, populations: Target, few: Target, particles: Particles, eta: float) -> Particles | None:
    """Draws on all observations of `crew` from draws on `few` of them, both at `eta`; None if no map will do."""
    share = int(few.counts.n) / int(populations.counts.n)
    base = Base.of(particles, host_array(eta))
    as_wide = _fitted(populations, base, _own_maps(particles), share * eta)
    if as_wide is None:
        return None
    maps, wide = as_wide
    narrow = _fitted(populations, base, _narrowed(refit(base, maps, wide.log_weights), host_array(share)), eta)
    return None if narrow is None else _resampled(replicate_keys(key, populations.n_replicates), narrow[1])


def _fitted(populations: Target, base: Base, maps: Maps, eta: float) -> tuple[Maps, Particles] | None:
    """Maps to every population's posterior, fitted on until most particles count, and the particles."""
    for _ in range(_FITS):
        particles, sizes = weigh(populations, base, maps, host_array(eta))
        if float(sizes.min()) >= _FAIR * particles.risk.shape[-1]:
            return maps, particles
        maps = refit(base, maps, particles.log_weights)
    return None


@jit
def _own_maps(particles: Particles) -> Maps:
    """Each population as it is: what one found and others did not must not be lost on the way."""
    theta, weights = particles.theta, particles.weights
    return Maps(mean(theta, weights), factor(covariance(theta, weights)))


@jit
def _narrowed(maps: Maps, share: Float[Array, ""]) -> Maps:
    """For a variance of that share."""
    return Maps(maps.centre, maps.root * jnp.sqrt(share))


@jit
def _resampled(keys: Key[Array, " R"], particles: Particles) -> Particles:
    return resample(keys, particles, jnp.ones(len(keys), bool))
