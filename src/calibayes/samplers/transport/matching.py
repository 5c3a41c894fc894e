"""Initial populations at the learning rate where the posterior covariance matches the sandwich covariance.

That learning rate (`calibayes._core.sandwich.influences`) is near the calibrated one, so the user need not supply a
starting value. Draws of log-concave posteriors come from adaptive importance sampling around the least-squares fit
(`calibayes.samplers.importance`), those of others from tempering from the prior. Both approach the matching learning
rate in stages: at each stage it is estimated from the current draws. With many observations, a subsample is used first
(`subsample.py`).

Initial populations have the size of those of the pool, so that the audit (`calibayes.samplers.audit`) uses the same
compiled programs.
"""

from contextlib import suppress

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from calibayes._backend.jit import jit
from calibayes._backend.rng import replicate_keys, split_key, with_unrolled_threefry
from calibayes._core.particles import Particles
from calibayes._core.precision import PrecisionError
from calibayes._core.sandwich import influences
from calibayes._core.target import Target, evaluate
from calibayes.samplers import importance
from calibayes.samplers.importance import (
    DegenerateWeightsError,
    Proposal,
    adapt,
    can_importance_sample,
    draw_and_weight,
    first_proposal,
    random_generator,
    sample,
)
from calibayes.samplers.initial import InitialDraws, first_learning_rate, posterior_mean, start_at_prior
from calibayes.samplers.mixing import temper_to
from calibayes.samplers.normal import NotNormalError, can_fit_normal, fit_to_data
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
    n_initial, independent = n_initial_draws(n_particles, target.dim), False
    if draws is None:
        particles, eta, independent = _sample(key, target, n_initial)
    else:
        particles = _choose_draws(split_key(key)[1], population_target(target), draws, n_initial)
    target = target.recentre(posterior_mean(target, particles))
    return InitialDraws(target, evaluate(population_target(target), particles.theta), eta, independent)


def n_initial_draws(n_particles: int, dim: int) -> int:
    """Return the number of draws in each initial population."""
    constants = config.CONFIG.matching
    return max(n_particles, constants.min_initial_draws, constants.initial_draws_per_parameter * dim)


def move_populations(key: PRNGKeyArray, initial: InitialDraws, eta: float) -> InitialDraws:
    """Move initial populations to another learning rate."""
    target, particles, previous_eta, _ = initial
    populations = population_target(target)
    if can_importance_sample(target):
        with suppress(DegenerateWeightsError):
            centre, scale = Proposal.from_particles(particles.merge_replicates())
            proposal, rng = Proposal(centre, scale * previous_eta / eta), random_generator(key)
            drawn = _adapt_and_sample(rng, populations, eta, proposal, particles.risk.shape[-1])
            return InitialDraws(target, drawn, eta, independent=True)
    state = temper_to(replicate_keys(key, N_POPULATIONS), populations, init_coarse(particles, previous_eta), eta)
    return InitialDraws(target, state.particles, eta)


def _sample(key: PRNGKeyArray, target: Target, n_particles: int) -> tuple[Particles, float, bool]:
    """Sample populations at the matching eta, on a subsample first if there are many observations.

    Returns the particles, their learning rate, and whether they are independent draws.
    """
    match_key, subsample_key, resample_key = split_key(split_key(key)[0], 3)
    n_subsample = subsample_size(target.dim)
    if target.reference_loss.size > 2 * n_subsample and int(target.counts.n) > 2 * n_subsample:
        subsample = target.subsample(subsample_key, n_subsample)
        try:
            particles, eta, _ = _sample_to_match(match_key, subsample, n_particles)
        except jax.errors.JaxRuntimeError:
            # Such as exhausted memory, which sampling with all observations would not avoid.
            raise
        except (RuntimeError, ValueError):
            # Sampling on the subsample failed, perhaps because informative observations are rare: use all of them.
            return _sample_to_match(match_key, target, n_particles)
        populations = population_target(target.recentre(posterior_mean(subsample, particles)))
        extended = extend_to_all_observations(resample_key, populations, subsample, particles, eta)
        if extended is not None:
            return extended, eta, False
    return _sample_to_match(match_key, target, n_particles)


def _sample_to_match(key: PRNGKeyArray, target: Target, n_particles: int) -> tuple[Particles, float, bool]:
    """Sample populations at the matching eta: by importance sampling where that is possible, else by tempering."""
    if can_importance_sample(target):
        with suppress(DegenerateWeightsError):
            return *_match_by_importance(random_generator(key), target, n_particles), True
    return *_temper_to_match(key, target, n_particles), False


def _match_by_importance(rng: np.random.Generator, target: Target, n_particles: int) -> tuple[Particles, float]:
    """Fit a proposal at one learning rate after another until eta is within a factor of two of the matching one.

    The first learning rate is that at which the posterior would be as wide as the sandwich of least squares, which the
    first proposal broadens.
    """
    constants = config.CONFIG.matching
    populations, proposal = population_target(target), first_proposal(target)
    if can_fit_normal(target):
        with suppress(NotNormalError):
            fit = fit_to_data(target, proposal.centre[:, 0], proposal.scale[0], None)
            proposal, eta = Proposal(fit.centre[:, None], fit.covariance[None]), fit.eta
            return _adapt_and_sample(rng, populations, eta, proposal, n_particles), eta
    first = draw_and_weight(rng, populations, proposal.repeated(N_POPULATIONS), 0.0, n_particles)
    risk = first.risk[np.isfinite(first.risk)]
    if not risk.size:
        raise DegenerateWeightsError
    eta = importance.CONFIG.broadening * target.dim / (2 * max(float(np.mean(risk - risk.min())), 1e-30))
    for _ in range(constants.max_stages):
        proposal = adapt(rng, populations, eta, proposal, n_particles)
        drawn = sample(rng, populations, proposal.repeated(N_POPULATIONS), eta, n_particles)
        matching = influences(target, drawn, eta).matching_eta
        if not np.isfinite(matching):
            break
        ratio = matching / eta
        proposal = Proposal(proposal.centre, proposal.scale / ratio)
        if constants.match_factor < ratio < 1 / constants.match_factor:
            return _adapt_and_sample(rng, populations, matching, proposal, n_particles), matching
        eta = min(matching, constants.max_growth * eta)
    raise DegenerateWeightsError


def _adapt_and_sample(
    rng: np.random.Generator, populations: Target, eta: float, proposal: Proposal, n_particles: int
) -> Particles:
    proposal = adapt(rng, populations, eta, proposal, n_particles)
    return sample(rng, populations, proposal.repeated(N_POPULATIONS), eta, n_particles)


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
        matching = influences(target, state.particles, eta).matching_eta
        matching = matching if np.isfinite(matching) else np.inf
        if matching <= 0:
            raise PrecisionError("the influences of the observations on the parameters are too large. Use other units.")
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
            "on the parameters, and that the prior is not far from the data. To start from a learning rate of your "
            "own, pass eta_init= with draws=."
        )
    return temper_to(keys, populations, state, best_eta).particles, best_eta


@jit
def _choose_draws(key: PRNGKeyArray, populations: Target, draws: Float[Array, "M K"], n_particles: int) -> Particles:
    chosen = jax.random.choice(with_unrolled_threefry(key), draws, (N_POPULATIONS, n_particles))
    return populations.evaluate(populations.coordinates.unconstrain(jnp.moveaxis(chosen, -1, 0)))
