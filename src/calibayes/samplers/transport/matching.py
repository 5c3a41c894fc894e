"""Initial populations at the learning rate where the posterior covariance matches the sandwich covariance.

That learning rate (`calibayes._core.sandwich.matching_eta`) is near the calibrated one, so the user need not supply a
starting value. It is approached from the prior in stages: at each stage the matching learning rate is estimated from
the current draws. With many observations, a subsample is used first (`subsample.py`).

Initial populations have the size of those of the pool, so that the audit (`calibayes.samplers.audit`) uses the same
compiled programs.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from calibayes._backend.functions import host_array
from calibayes._backend.jit import jit
from calibayes._backend.rng import replicate_keys, split_key, unrolled
from calibayes._core.particles import Particles
from calibayes._core.sandwich import influences, matching_eta
from calibayes._core.target import Target
from calibayes.samplers.initial import InitialDraws, first_learning_rate, posterior_mean, start_at_prior
from calibayes.samplers.mixing import temper_to
from calibayes.samplers.populations import N_POPULATIONS, population_target
from calibayes.samplers.tempering import init_coarse
from calibayes.samplers.transport import config
from calibayes.samplers.transport.subsample import extend_to_all_observations, subsample_size


def initial_populations(
    key: PRNGKeyArray,
    target: Target,
    n_particles: int,
    draws: Float[Array, "M K"] | None = None,
    eta: float = 1.0,
) -> InitialDraws:
    """Draw initial populations on the data.

    Parameters
    ----------
    key : PRNGKeyArray
        Random key.
    target : Target
        The posteriors; replicate 0 is the data.
    n_particles : int
        Number of draws in a population of the pools that will be made from the initial populations.
    draws : array of shape (M, K), optional
        The user's draws of the posterior at `eta`. Default: sample from the prior to the matching learning rate.
    eta : float
        Learning rate of `draws`; ignored without them.
    """
    n_initial = n_initial_draws(n_particles, target.dim)
    if draws is None:
        particles, eta = _sample_from_prior(key, target, n_initial)
    else:
        particles = _choose_draws(split_key(key)[1], population_target(target), draws, n_initial)
    target = target.recentre(posterior_mean(target, particles))
    return InitialDraws(target, evaluate_populations(target, particles.theta), eta)


def n_initial_draws(n_particles: int, dim: int) -> int:
    """Return the number of draws in each initial population."""
    constants = config.CONFIG.matching
    return max(n_particles, constants.min_initial_draws, constants.initial_draws_per_parameter * dim)


def move_populations(key: PRNGKeyArray, initial: InitialDraws, eta: float) -> InitialDraws:
    """Temper initial populations to another learning rate."""
    target, particles, previous_eta = initial
    keys, state = replicate_keys(key, N_POPULATIONS), init_coarse(particles, previous_eta)
    state = temper_to(keys, population_target(target), state, eta)
    return InitialDraws(target, state.particles, eta)


def _sample_from_prior(key: PRNGKeyArray, target: Target, n_particles: int) -> tuple[Particles, float]:
    """Sample populations from the prior to the matching eta, on a subsample first if there are many observations."""
    match_key, subsample_key, resample_key = split_key(split_key(key)[0], 3)
    n_subsample = subsample_size(target.dim)
    if target.reference_loss.size > 2 * n_subsample and int(target.counts.n) > 2 * n_subsample:
        subsample = target.subsample(subsample_key, n_subsample)
        try:
            particles, eta = _temper_to_match(match_key, subsample, n_particles)
        except jax.errors.JaxRuntimeError:
            # Such as exhausted memory, which sampling with all observations would not avoid.
            raise
        except RuntimeError:
            # Sampling on the subsample failed, perhaps because informative observations are rare: use all of them.
            return _temper_to_match(match_key, target, n_particles)
        populations = population_target(target.recentre(posterior_mean(subsample, particles)))
        extended = extend_to_all_observations(resample_key, populations, subsample, particles, eta)
        if extended is not None:
            return extended, eta
    return _temper_to_match(match_key, target, n_particles)


def _temper_to_match(key: PRNGKeyArray, target: Target, n_particles: int) -> tuple[Particles, float]:
    """Temper from the prior until eta is within a factor of two of the matching one, and then to that.

    If the loss is a step function, the posterior ends on one step, which no observation moves any more; and if a plane
    separates two classes, the hinge loss becomes zero. No eta matches then, and the closest one is used.
    """
    constants = config.CONFIG.matching
    temper_key, populations, state = start_at_prior(key, population_target(target), n_particles)
    keys = replicate_keys(temper_key, N_POPULATIONS)
    eta = first_learning_rate(np.asarray(state.particles.risk))
    best_eta, best_match = eta, 0.0
    for _ in range(constants.max_stages):
        state = temper_to(keys, populations, state, eta)
        matching = float(influence_and_match(target, state.particles, host_array(eta))[1])
        matching = matching if np.isfinite(matching) else np.inf
        match = min(eta / matching, matching / eta)
        if match > best_match:
            best_eta, best_match = eta, match
        if match > constants.match_factor:
            return temper_to(keys, populations, state, matching).particles, matching
        if best_match > constants.close_match and eta > constants.max_growth * best_eta:
            break
        eta = min(matching, constants.max_growth * eta)
    if best_match <= constants.no_match:
        raise RuntimeError(
            f"the posterior does not follow the data at any learning rate up to {eta:.3g}: check that the loss depends "
            "on the parameters. To start from a learning rate of your own, pass eta_init= with draws=."
        )
    return temper_to(keys, populations, state, best_eta).particles, best_eta


@jit
def influence_and_match(
    target: Target, particles: Particles, eta: Float[Array, ""]
) -> tuple[Float[Array, "K N"], Float[Array, ""]]:
    """Return the influence of every observation, and the matching learning rate, from populations of draws at `eta`."""
    # All populations together: within one, recently resampled draws have too little spread.
    merged = particles.merge_replicates()
    influence = influences(target, merged, eta[None])
    return influence, matching_eta(influence, merged, eta[None])


@jit
def evaluate_populations(target: Target, theta: Float[Array, "K R M"]) -> Particles:
    return population_target(target).evaluate(theta)


@jit
def _choose_draws(key: PRNGKeyArray, populations: Target, draws: Float[Array, "M K"], n_particles: int) -> Particles:
    chosen = jax.random.choice(unrolled(key), draws, (N_POPULATIONS, n_particles))
    return populations.evaluate(populations.coordinates.unconstrain(jnp.moveaxis(chosen, -1, 0)))
