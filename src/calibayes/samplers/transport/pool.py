"""The pool: populations of draws of the posterior on the data, from which particles are transported.

A pool has `N_POPULATIONS` populations of all particles of a replicate. If the posterior is known to be log-concave, all
populations are drawn by importance sampling (`importance.py`). Otherwise the initial populations, which were tempered
from the prior independently of each other, are rejuvenated until they have mixed. Because they are independent, R-hat
and the effective sample size of the population means reveal several modes.
"""

from contextlib import suppress
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from calibayes._backend.jit import jit
from calibayes._backend.rng import split_key
from calibayes._core.particles import Particles, uniform_log_weights
from calibayes._core.status import Code, Diagnostic, Severity
from calibayes._core.target import Target
from calibayes.samplers.initial import InitialDraws
from calibayes.samplers.mixing import rejuvenate_until_mixed
from calibayes.samplers.populations import N_POPULATIONS, population_agreement, population_target
from calibayes.samplers.transport import config, importance


class Pool(NamedTuple):
    """Populations of draws of the posterior on the data.

    Attributes
    ----------
    target : Target
        The target, with risks relative to the mean of the draws.
    particles : Particles
        The draws, equally weighted; each population is one replicate.
    eta : float
        Their learning rate.
    r_hat : float
        Largest R-hat over the parameters and the risk.
    ess : float
        Smallest effective sample size over the parameters and the risk, of all populations together.
    """

    target: Target
    particles: Particles
    eta: float
    r_hat: float
    ess: float

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """A warning if the populations disagree."""
        if self.r_hat <= config.CONFIG.pool.max_r_hat:
            return ()
        message = (
            f"{N_POPULATIONS} populations of initial draws, each sampled independently from the prior, disagree "
            f"(R-hat {self.r_hat:.2f}, effective sample size {self.ess:.0f}). The posterior may have several modes."
        )
        return (Diagnostic(Code.POPULATIONS_DISAGREE, Severity.WARNING, 0, message),)


def make_pool(key: PRNGKeyArray, initial: InitialDraws, n_particles: int) -> Pool:
    """Make a pool of `n_particles` draws per population from initial populations at the same learning rate."""
    max_rounds = config.CONFIG.pool.max_rounds
    importance_key, *round_keys = split_key(key, 1 + max_rounds)
    target, particles, eta = initial
    if importance.supports(target):
        with suppress(importance.DegenerateWeightsError):
            drawn, agreement = importance.draw_populations(importance_key, *initial, n_particles)
            pool = Pool(target, drawn, eta, *agreement)
            if not pool.diagnostics:
                return pool
    populations = population_target(target)
    if n_particles != particles.risk.shape[-1]:
        particles = _repeat_draws(particles, n_particles)
    for round_key in round_keys:
        state, _ = rejuvenate_until_mixed(round_key, populations, particles, eta, min_moves=0)
        particles = state.particles
        pool = Pool(target, particles, eta, *population_agreement(particles))
        if not pool.diagnostics:
            break
    return pool


@jit
def _repeat_draws(particles: Particles, n_particles: int) -> Particles:
    """Return `n_particles` equally weighted draws per population, by repeating or thinning."""
    n_draws = particles.risk.shape[-1]
    if n_particles >= n_draws:
        indices = jnp.arange(n_particles) % n_draws
    else:
        # Neighbouring draws may be copies of one ancestor, so the smaller number is chosen from all over.
        indices = jnp.arange(n_particles) * n_draws // n_particles
    theta, risk = particles.theta[:, :, indices], particles.risk[:, indices]
    return Particles(theta, risk, particles.log_prior[:, indices], uniform_log_weights(risk.shape))
