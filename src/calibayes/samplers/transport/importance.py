r"""Adaptive importance sampling of log-concave posteriors.

A convex loss and a log-concave prior make a log-concave posterior. It has one mode, and its tails are no heavier than
exponential, so that draws $\theta$ of a Student t distribution with location $\mu$ and scale matrix $\Sigma$ have
bounded weights

$$ w = \exp\{-\eta R(\theta)\}\,p(\theta) / t(\theta; \mu, \Sigma). $$

If $\mu$ and $\Sigma$ are the mean and covariance of the posterior, and it is not far from normal, most draws are
effective for up to about 50 parameters. The proposal is adapted along a sequence of learning rates, as in population
Monte Carlo (Cappé, Guillin, Marin and Robert 2004): the current draws, reweighted to the next learning rate at which
enough of them are effective, give the mean and covariance of the next proposal. No Markov chain is needed.

Weights also reveal a failure, by a `DegenerateWeightsError`. Callers then temper (`calibayes.samplers.tempering`),
which works for any posterior.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from calibayes._backend.functions import host_array
from calibayes._backend.jit import jit
from calibayes._backend.rng import normals, replicate_keys, split_key, uniforms
from calibayes._core.convergence import population_agreement
from calibayes._core.particles import (
    Particles,
    covariance,
    ess,
    ess_after,
    factor,
    mean,
    normalise,
    reweight,
    stratified,
    transform,
)
from calibayes._core.sandwich import matching_eta
from calibayes._core.target import Target, log_density
from calibayes.samplers.initial import first_learning_rate, prior_particles
from calibayes.samplers.populations import N_POPULATIONS, population_target, population_variances
from calibayes.samplers.tempering import step_keys
from calibayes.samplers.transport import config


class DegenerateWeightsError(Exception):
    """Too few draws of the proposal are effective."""


def supports(target: Target) -> bool:
    """Return whether the posteriors are known to be log-concave, and have few enough parameters.

    With a bounded prior the posterior need not be log-concave in the unconstrained coordinates of the particles.
    """
    convex_loss = _declares(target.loss, "convex", ("rho", "decompose"))
    log_concave_prior = _declares(target.prior, "log_concave", ("log_prob",))
    log_concave = convex_loss and log_concave_prior and target.coordinates.unbounded
    return log_concave and target.dim <= config.CONFIG.importance.max_parameters


def _declares(instance: object, attribute: str, methods: tuple[str, ...]) -> bool:
    """Return the attribute of the class that defines the methods.

    A subclass that overrides a method does not inherit the attribute.
    """
    classes = type(instance).__mro__
    defining = next((cls for cls in classes if any(name in vars(cls) for name in methods)), object)
    return bool(vars(defining).get(attribute, False))


def draw_at_matching_eta(key: PRNGKeyArray, target: Target, n_particles: int) -> tuple[Particles, float]:
    """Sample populations from the prior to the matching learning rate (`calibayes._core.sandwich.matching_eta`).

    Returns
    -------
    particles : Particles
        `n_particles` equally weighted draws in each population.
    eta : float
        The matching learning rate.

    Raises
    ------
    DegenerateWeightsError
        If the adaptation failed.
    """
    adapt_key, particles, first_eta = _draw_from_prior(key, target, n_particles)
    is_final: Any = np.asarray(False)
    particles, eta, succeeded = _adapt(adapt_key, target, particles, host_array(0.0), first_eta, is_final)
    eta, succeeded = jax.device_get((eta, succeeded))
    if not succeeded:
        raise DegenerateWeightsError
    return particles, float(eta)


def move_draws(key: PRNGKeyArray, target: Target, particles: Particles, eta: float, new_eta: float) -> Particles:
    """Move populations of equally weighted draws from `eta` to `new_eta`.

    Raises
    ------
    DegenerateWeightsError
        If the adaptation failed.
    """
    is_final: Any = np.asarray(True)
    particles, _, succeeded = _adapt(key, target, particles, host_array(eta), host_array(new_eta), is_final)
    if not succeeded:
        raise DegenerateWeightsError
    return particles


def draw_populations(
    key: PRNGKeyArray, target: Target, particles: Particles, eta: float, n_particles: int
) -> tuple[Particles, tuple[float, float]]:
    """Draw new populations from a proposal that is fitted to others at the same learning rate.

    Returns
    -------
    particles : Particles
        `n_particles` equally weighted draws in each population.
    agreement : tuple of float
        Largest R-hat and smallest effective sample size of the populations.

    Raises
    ------
    DegenerateWeightsError
        If too few draws of a population are effective.
    """
    drawn, variances, succeeded = _draw_populations(key, target, particles, host_array(eta), n_particles)
    (within, between), succeeded = jax.device_get((variances, succeeded))
    if not succeeded:
        raise DegenerateWeightsError
    return drawn, population_agreement(within, between, N_POPULATIONS, n_particles)


class Proposal(NamedTuple):
    """Location and factor of the scale matrix of a Student t distribution."""

    centre: Float[Array, " K"]
    root: Float[Array, "K K"]


class AdaptiveState(NamedTuple):
    """State of the adaptation."""

    step: Int[Array, ""]
    """Number of proposals so far."""
    goal_fits: Int[Array, ""]
    """Number of proposals so far at the present goal."""
    particles: Particles
    """Draws of the last proposal, with weights that sum to one over all populations."""
    eta: Float[Array, ""]
    """Learning rate of the weights."""
    goal: Float[Array, ""]
    """Learning rate to reach."""
    is_final: Bool[Array, ""]
    """Whether the goal is the last one."""
    ess: Float[Array, ""]
    """Effective sample size of all populations together."""
    done: Bool[Array, ""]


@jit
def _draw_from_prior(
    key: PRNGKeyArray, target: Target, n_particles: int
) -> tuple[PRNGKeyArray, Particles, Float[Array, ""]]:
    """Return a key for the adaptation, populations of prior draws, and the first goal."""
    prior_key, adapt_key = split_key(key)
    particles = prior_particles(prior_key, population_target(target), n_particles)
    return adapt_key, particles, first_learning_rate(particles)


@jit
def _adapt(
    key: PRNGKeyArray,
    target: Target,
    particles: Particles,
    eta: Float[Array, ""],
    goal: Float[Array, ""],
    is_final: Bool[Array, ""],
) -> tuple[Particles, Float[Array, ""], Bool[Array, ""]]:
    """Adapt the proposal from `eta` to the goal and, unless it is final, further to the matching learning rate.

    Returns equally weighted particles, their learning rate, and whether the adaptation succeeded.
    """
    constants = config.CONFIG.importance
    populations, keys = population_target(target), replicate_keys(key, N_POPULATIONS)
    n_populations, size = particles.risk.shape
    n_draws = n_populations * size

    def not_done(state: AdaptiveState):
        degenerate = ~(state.ess >= constants.degenerate_stage_ess * n_draws)
        failed = degenerate | (state.step >= constants.max_proposal_fits) | (state.goal_fits >= constants.max_goal_fits)
        return ~state.done & ~failed

    def adapt_once(state: AdaptiveState) -> AdaptiveState:
        proposal, eta = _next_proposal(state.particles, state.eta, state.goal)
        draw_keys = step_keys(keys, 2, jnp.full(n_populations, state.step))
        particles = _draw_and_weight(draw_keys, populations, proposal, eta, size)
        total_ess = ess(particles.log_weights.reshape(-1))
        reached = (eta == state.goal) & (total_ess >= constants.min_stage_ess * n_draws)
        goal_fits = jnp.where(reached, 0, state.goal_fits + (eta == state.goal).astype(int))
        next_goal, same_goal = lambda: _next_goal(populations, particles, eta), lambda: (state.goal, state.is_final)
        goal, is_final = jax.lax.cond(reached & ~state.is_final, next_goal, same_goal)
        done = reached & state.is_final
        return AdaptiveState(state.step + 1, goal_fits, particles, eta, goal, is_final, total_ess, done)

    zero, false = jnp.zeros((), int), jnp.zeros((), bool)
    first = AdaptiveState(zero, zero, particles, eta, goal, is_final, jnp.asarray(n_draws, float), false)
    last = jax.lax.while_loop(not_done, adapt_once, first)
    resample_keys = step_keys(keys, 3, jnp.full(n_populations, last.step))
    return _resample_each(resample_keys, _normalise_each(last.particles), size), last.eta, last.done


def _next_goal(
    populations: Target, particles: Particles, eta: Float[Array, ""]
) -> tuple[Float[Array, ""], Bool[Array, ""]]:
    """Return the next goal, and whether it is final: the matching learning rate, if `eta` is near it."""
    constants = config.CONFIG.matching
    matching = matching_eta(populations, particles.merge_replicates(), eta[None])
    matching = jnp.where(jnp.isfinite(matching), matching, jnp.inf)
    near = jnp.minimum(eta / matching, matching / eta) > constants.match_factor
    return jnp.where(near, matching, jnp.minimum(matching, constants.max_growth * eta)), near


def _next_proposal(
    particles: Particles, eta: Float[Array, ""], goal: Float[Array, ""]
) -> tuple[Proposal, Float[Array, ""]]:
    """Return the next learning rate, by the longest step towards the goal that keeps enough draws effective.

    The proposal has the mean and covariance of the draws, reweighted to that learning rate.
    """
    constants = config.CONFIG.importance
    merged = particles.merge_replicates()
    shares = jnp.exp(-jnp.arange(constants.n_candidate_steps, dtype=goal.dtype) * constants.log_step_ratio)
    shape = (constants.n_candidate_steps, merged.risk.shape[-1])
    log_weights, risk = jnp.broadcast_to(merged.log_weights, shape), jnp.broadcast_to(merged.risk, shape)
    sizes = ess_after(log_weights, risk, shares * (goal - eta))
    enough = sizes >= constants.min_step_ess * ess(merged.log_weights)
    longest = jnp.argmax(enough)
    step = jnp.where(enough.any(), shares[longest], 0.0) * (goal - eta)
    proposal = _fit_proposal(merged, reweight(merged.log_weights, merged.risk, step[None]))
    return proposal, jnp.where(enough[0], goal, eta + step)


def _fit_proposal(merged: Particles, log_weights: Float[Array, "1 M"]) -> Proposal:
    weights = jnp.exp(log_weights)
    return Proposal(mean(merged.theta, weights)[:, 0], factor(covariance(merged.theta, weights))[0])


def _draw_and_weight(
    keys: Key[Array, " B"], populations: Target, proposal: Proposal, eta: Float[Array, ""], size: int
) -> Particles:
    """Draw `size` particles of the Student t proposal in each population; weights sum to one over all populations."""
    dim, df = len(proposal.centre), config.CONFIG.importance.df
    uniform = uniforms(keys, dim + df // 2, size)
    chi_squared = -2 * sum(jnp.log(uniform[dim + i]) for i in range(df // 2))
    # Without the barrier XLA generates the normal numbers again in every computation that reads them.
    z = jax.lax.optimization_barrier(normals(uniform[:dim]) * jnp.sqrt(df / chi_squared)[None])
    root = jnp.broadcast_to(proposal.root[None], (len(keys), dim, dim))
    particles = populations.evaluate(proposal.centre[:, None, None] + transform(root, z))
    log_t = -0.5 * (df + dim) * jnp.log1p(jnp.square(z).sum(0) / df)
    log_ratio = log_density(particles, jnp.full(len(keys), eta)) - log_t
    return particles.with_log_weights(normalise(log_ratio.reshape(-1)).reshape(log_ratio.shape))


@jit
def _draw_populations(
    key: PRNGKeyArray, target: Target, particles: Particles, eta: Float[Array, ""], n_particles: int
) -> tuple[Particles, tuple[Float[Array, " P"], Float[Array, " P"]], Bool[Array, ""]]:
    """Return draws, their variances within and between populations, and whether the draws can be used.

    They can if the effective sample size of the weighted proposals was large enough in every population.
    """
    constants = config.CONFIG.importance
    keys, merged = replicate_keys(key, N_POPULATIONS), particles.merge_replicates()
    proposal = _fit_proposal(merged, merged.log_weights)
    zeros, size = jnp.zeros(N_POPULATIONS, int), constants.oversampling * n_particles
    weighted = _draw_and_weight(step_keys(keys, 0, zeros), population_target(target), proposal, eta, size)
    weighted = _normalise_each(weighted)
    succeeded = ess(weighted.log_weights).min() >= constants.min_pool_ess * constants.oversampling * n_particles
    drawn = _resample_each(step_keys(keys, 1, zeros), weighted, n_particles)
    return drawn, population_variances(drawn), succeeded


def _normalise_each(particles: Particles) -> Particles:
    """Normalise the weights of each population."""
    return particles.with_log_weights(normalise(particles.log_weights))


def _resample_each(keys: Key[Array, " B"], particles: Particles, n_particles: int) -> Particles:
    """Resample each population to `n_particles` equally weighted draws."""
    return particles.take(jax.vmap(stratified, (0, 0, None))(keys, particles.weights, n_particles))
