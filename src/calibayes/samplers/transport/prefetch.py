"""Start to compile the programs of `Transport` before the values that they act on exist.

All shapes follow from the target and the number of particles. The programs are listed in the order in which a
calibration needs them, so that the first ones run while later ones are compiled. Programs that only failures need, such
as the repair of degenerate weights, are left out.
"""

import jax

from calibayes._backend.jit import prefetch
from calibayes._backend.rng import key_from_seed, replicate_keys
from calibayes._core.particles import Particles
from calibayes._core.sandwich import mean_shifts, prefetch_influences
from calibayes._core.target import Target, evaluate, recentre
from calibayes.samplers.importance import can_importance_sample, prefetch_first_proposal
from calibayes.samplers.initial import sample_prior
from calibayes.samplers.mixing import prefetch_rejuvenation
from calibayes.samplers.normal import can_fit_normal, prefetch_normal_fits
from calibayes.samplers.populations import N_POPULATIONS, population_target
from calibayes.samplers.transport.maps import AffineMaps, WhitenedPool, transport_and_weight
from calibayes.samplers.transport.refit import n_search_particles


def prefetch_transport(target: Target, n_initial: int, n_particles: int) -> Particles:
    """Start to compile the programs of a calibration by transport.

    Parameters
    ----------
    target : Target
        The posteriors; only shapes and static values are used.
    n_initial : int
        Number of draws in each initial population.
    n_particles : int
        Number of draws in each population of the pool.

    Returns
    -------
    Particles
        Shapes of the particles on every replicate.
    """
    keys, dim = replicate_keys(key_from_seed(0), N_POPULATIONS), target.dim

    def shaped(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, target.reference.dtype)

    def prefetch_transport_to(target: Target, n_particles: int) -> Particles:
        n_replicates = target.n_replicates
        pool_shapes = ((dim, N_POPULATIONS, n_particles), (N_POPULATIONS, n_particles), (dim,), (dim, dim))
        map_shapes = ((dim, n_replicates), (n_replicates, dim, dim))
        pool = jax.eval_shape(WhitenedPool, *(shaped(*shape) for shape in pool_shapes))
        maps = jax.eval_shape(AffineMaps, *(shaped(*shape) for shape in map_shapes))
        return prefetch(transport_and_weight, target, pool, maps, shaped())[0]

    populations, normal = prefetch(population_target, target), can_fit_normal(target)
    if can_importance_sample(target):
        prefetch_first_proposal(target)
        if normal:
            prefetch_normal_fits(target)
        prefetch(evaluate, populations, shaped(dim, N_POPULATIONS, n_initial))
    else:
        theta = prefetch(sample_prior, keys, target.prior, target.coordinates, target.reference, n_initial)
        prefetch_rejuvenation(keys, populations, prefetch(evaluate, populations, theta))
    prefetch(recentre, target, shaped(dim))
    if not normal:
        prefetch(mean_shifts, target, prefetch_influences(target, N_POPULATIONS * n_initial))
    prefetch_transport_to(populations, n_particles)
    prefetch_transport_to(target, n_search_particles(dim, n_particles, not normal))
    return prefetch_transport_to(target, n_particles)
