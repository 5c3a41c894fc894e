"""Start to compile the programs of `Transport` before the values that they act on exist.

All shapes follow from the target and the number of particles. The programs are listed in the order in which a
calibration needs them, so that the first ones run while later ones are compiled. Programs that only failures need, such
as the repair of degenerate weights, are left out.
"""

import jax
import jax.numpy as jnp

from calibayes._backend.jit import prefetch
from calibayes._backend.rng import key_from_seed, replicate_keys
from calibayes._core.particles import Particles
from calibayes._core.target import Target, recentre
from calibayes.samplers.initial import posterior_mean, prior_particles
from calibayes.samplers.mixing import prefetch_rejuvenation
from calibayes.samplers.populations import N_POPULATIONS, population_target
from calibayes.samplers.transport.fitting import fit_in_one_program, transport_on_data
from calibayes.samplers.transport.initial_eta import shifts_of_replicates
from calibayes.samplers.transport.maps import shifted_maps, transport_and_weight
from calibayes.samplers.transport.matching import evaluate_populations, influence_and_match
from calibayes.samplers.transport.refit import refit_maps, whiten


def prefetch_transport(target: Target, n_initial: int) -> tuple[Particles, Particles]:
    """Start to compile the programs of a calibration by transport.

    Parameters
    ----------
    target : Target
        The posteriors; only shapes and static values are used.
    n_initial : int
        Number of draws in each initial population, which is also that of the pool.

    Returns
    -------
    data, particles : Particles
        Shapes of the particles on the data and on every replicate.
    """
    number, key = jax.ShapeDtypeStruct((), target.reference.dtype), key_from_seed(0)
    populations = prefetch(population_target, target)
    initial = prefetch(prior_particles, key, populations, n_initial)
    prefetch_rejuvenation(replicate_keys(key, N_POPULATIONS), populations, initial)
    influence, _ = prefetch(influence_and_match, target, initial, number)
    prefetch(recentre, target, prefetch(posterior_mean, target, initial))
    drawn = prefetch(evaluate_populations, target, initial.theta)
    shifts = prefetch(shifts_of_replicates, target, influence)
    pool, search_pool = prefetch(whiten, drawn, number)
    data = prefetch(transport_on_data, target, pool, number, number)
    maps = prefetch(shifted_maps, target, pool, shifts, number)
    if jax.default_backend() == "cpu":
        searched, _ = prefetch(transport_and_weight, target, search_pool, maps, number)
        prefetch(refit_maps, search_pool, maps, searched.log_weights)
        return data, prefetch(transport_and_weight, target, pool, maps, number)[0]
    goal = jax.ShapeDtypeStruct((4,), jnp.result_type(float))
    prefetch(fit_in_one_program, target, search_pool, maps, goal)
    return data, prefetch(fit_in_one_program, target, pool, maps, goal)[0].particles
