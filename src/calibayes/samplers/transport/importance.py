r"""Importance sampling of log-concave posteriors on the data.

A convex loss and a log-concave prior make a log-concave posterior. It has one mode, and its tails are no heavier than
exponential, so that draws $\theta$ of a Student t distribution with location $\mu$ and scale matrix $\Sigma$ have
bounded weights

$$ w = \exp\{-\eta R(\theta)\}\,p(\theta) / t(\theta; \mu, \Sigma). $$

If $\mu$ and $\Sigma$ are the mean and covariance of the posterior, which the tempered populations estimate, and it is
not far from normal, most draws are effective for up to about 50 parameters. The draws are independent and their
distribution is exact up to the resampling. Populations that were only tempered and rejuvenated were less skewed, and
eta from them was 2% smaller (hinge loss, 8 parameters, 1,000 particles, mean of six seeds).

Weights also reveal a failure, by a `DegenerateWeightsError`. Callers then use Markov chains
(`calibayes.samplers.mixing`), which work for any posterior.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PRNGKeyArray

from calibayes._backend.functions import host_array
from calibayes._backend.jit import jit
from calibayes._backend.rng import normals, replicate_keys, uniforms
from calibayes._core.particles import (
    Particles,
    ess,
    factor,
    mean_and_covariance,
    normalise,
    stratified,
    transform,
)
from calibayes._core.target import Target, log_density
from calibayes.samplers.populations import N_POPULATIONS, population_agreement, population_target
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
    drawn, succeeded = _draw_populations(key, target, particles, host_array(eta), n_particles)
    if not succeeded:
        raise DegenerateWeightsError
    return drawn, population_agreement(drawn)


class Proposal(NamedTuple):
    """Location and factor of the scale matrix of a Student t distribution."""

    centre: Float[Array, " K"]
    root: Float[Array, "K K"]


def _fit_proposal(merged: Particles) -> Proposal:
    centre, covariance = mean_and_covariance(merged.theta, merged.weights)
    return Proposal(centre[:, 0], factor(covariance)[0])


def _draw_and_weight(
    keys: Key[Array, " B"], populations: Target, proposal: Proposal, eta: Float[Array, ""], size: int
) -> Particles:
    """Draw and weight `size` particles of the Student t proposal in each population."""
    dim, df = len(proposal.centre), config.CONFIG.importance.df
    uniform = uniforms(keys, dim + df // 2, size)
    chi_squared = -2 * sum(jnp.log(uniform[dim + i]) for i in range(df // 2))
    # Without the barrier XLA generates the normal numbers again in every computation that reads them.
    z = jax.lax.optimization_barrier(normals(uniform[:dim]) * jnp.sqrt(df / chi_squared)[None])
    root = jnp.broadcast_to(proposal.root[None], (len(keys), dim, dim))
    particles = populations.evaluate(proposal.centre[:, None, None] + transform(root, z))
    log_t = -0.5 * (df + dim) * jnp.log1p(jnp.square(z).sum(0) / df)
    log_ratio = log_density(particles, jnp.full(len(keys), eta)) - log_t
    return particles.with_log_weights(normalise(log_ratio))


@jit
def _draw_populations(
    key: PRNGKeyArray, target: Target, particles: Particles, eta: Float[Array, ""], n_particles: int
) -> tuple[Particles, Bool[Array, ""]]:
    """Return draws, and whether the weighted proposals had a sufficient effective sample size in every population."""
    constants = config.CONFIG.importance
    keys, proposal = replicate_keys(key, N_POPULATIONS), _fit_proposal(particles.merge_replicates())
    zeros, size = jnp.zeros(N_POPULATIONS, int), constants.oversampling * n_particles
    weighted = _draw_and_weight(step_keys(keys, 0, zeros), population_target(target), proposal, eta, size)
    succeeded = ess(weighted.log_weights).min() >= constants.min_pool_ess * constants.oversampling * n_particles
    drawn = _resample_each(step_keys(keys, 1, zeros), weighted, n_particles)
    return drawn, succeeded


def _resample_each(keys: Key[Array, " B"], particles: Particles, n_particles: int) -> Particles:
    """Resample each population to `n_particles` equally weighted draws."""
    return particles.take(jax.vmap(stratified, (0, 0, None))(keys, particles.weights, n_particles))
