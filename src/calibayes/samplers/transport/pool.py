"""Draws of the posterior on the data to transport from: populations that check each other.

They come in two steps. *Rough* draws climb from the prior to the learning rate where the posterior's spread matches the
sandwich's (see `calibayes._core.sandwich`), so that it needs no hint; they are few, and of many observations they take some
(`onto.py`). A *pool* is `CREW` populations of all particles asked for, where it will be used.

Where there may be several modes, populations climb a ladder each by itself, and are moved until they have forgotten
where they came from. That they came without a word between them is what their convergence is judged by: R-hat and the
effective size compare their means. Where there is one mode (`one_mode.py`) all are drawn from one fit, and weights are
the judge.
"""

from contextlib import suppress
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from calibayes._backend.functions import host_array
from calibayes._backend.jit import jit
from calibayes._backend.rng import replicate_keys, split_key
from calibayes._core.convergence import population_agreement
from calibayes._core.particles import Particles, uniform_log_weights
from calibayes._core.sandwich import matching_eta
from calibayes._core.status import Code, Diagnostic, Severity
from calibayes._core.target import Target
from calibayes.samplers.initial import (
    COARSE_SCHEDULE,
    N_POPULATIONS,
    STAGE,
    InitialDraws,
    centre,
    first_stage,
    population_target,
    rejuvenate_until_mixed,
    spreads_of,
    start_at_prior,
    temper_to,
)
from calibayes.samplers.tempering import TemperingState, init_tempering
from calibayes.samplers.transport.importance import (
    NoFitError,
    drawn_by_weights,
    has_one_mode,
    matched_by_weights,
    moved_by_weights,
)
from calibayes.samplers.transport.subsample import enough_observations, onto_all

_MOST_STAGES = 20
_SOME_MATCH = 0.01
_NO_MATCH = 1e-6
_ROUNDS = 3
R_HAT_LIMIT = 1.02
_ROUGHLY = 4
_FEWEST, _A_PARAMETER = 200, 40
"""Rough draws a population: one of so many that will be wanted, but not fewer than these. From fewer in many dimensions
a ladder comes out too narrow."""


class Pool(NamedTuple):
    """Populations of draws of the posterior on the data at `eta`; the target with its reference among them."""

    target: Target
    particles: Particles
    """Of equal weight."""
    eta: float
    r_hat: float
    """The largest over parameters and the risk."""
    ess: float
    """The smallest, of all populations together."""

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        if self.r_hat <= R_HAT_LIMIT:
            return ()
        message = (
            f"{N_POPULATIONS} populations of initial draws, each sampled independently from the prior, disagree "
            f"(R-hat {self.r_hat:.2f}, effective sample size {self.ess:.0f}). The posterior may have several modes."
        )
        return (Diagnostic(Code.POPULATIONS_DISAGREE, Severity.WARNING, 0, message),)


def rough_draws(
    key: PRNGKeyArray, target: Target, n_particles: int, start: tuple[Float[Array, "M K"], float] | None
) -> InitialDraws:
    """For pools of so many, at the matching learning rate, from the prior; or at the user's, from draws there."""
    n_rough = max(n_particles // _ROUGHLY, _FEWEST, _A_PARAMETER * target.dim)
    if start is None:
        particles, eta = _from_the_prior(key, target, n_rough)
    else:
        draws, eta = start
        particles = _pick(split_key(key)[1], population_target(target), draws, n_rough)
    target = target.recentre(centre(target, particles))
    return InitialDraws(target, _on_crew(target, particles.theta), eta)


def moved_draws(key: PRNGKeyArray, rough: InitialDraws, eta: float) -> InitialDraws:
    """Rough draws at another learning rate: by weights, where these will do, or by a ladder."""
    target, particles, before = rough
    if has_one_mode(target):
        with suppress(NoFitError):
            return InitialDraws(target, moved_by_weights(key, target, particles, before, eta), eta)
    walkers = init_tempering(COARSE_SCHEDULE.kernel, particles, host_array(before))
    return InitialDraws(
        target, temper_to(replicate_keys(key, N_POPULATIONS), population_target(target), walkers, eta).particles, eta
    )


def make_pool(key: PRNGKeyArray, rough: InitialDraws, n_particles: int) -> Pool:
    """By weights, where these will do; or rough draws, each several times, moved until every population has forgotten
    them and all agree, or for some rounds.
    """
    weights_key, *round_keys = split_key(key, 1 + _ROUNDS)
    if has_one_mode(rough.target):
        with suppress(NoFitError):
            particles, agreeing = drawn_by_weights(weights_key, *rough, n_particles)
            pool = Pool(rough.target, particles, rough.eta, *agreeing)
            if not pool.diagnostics:
                return pool
    populations = population_target(rough.target)
    particles = _repeated(rough.particles, n_particles)
    for round_key in round_keys:
        walkers, _ = rejuvenate_until_mixed(round_key, populations, particles, rough.eta, at_least=0)
        particles = walkers.particles
        within, between = jax.device_get(spreads_of(particles))
        pool = Pool(rough.target, particles, rough.eta, *population_agreement(within, between, N_POPULATIONS, n_particles))
        if not pool.diagnostics:
            break
    return pool


def _from_the_prior(key: PRNGKeyArray, target: Target, n_particles: int) -> tuple[Particles, float]:
    """At the matching learning rate. Of many observations over some first, if these will do."""
    temper_key, pick_key, resample_key = _keys(key)
    n_few = enough_observations(target.dim)
    if target.reference_loss.size > 2 * n_few and int(target.counts.n) > 2 * n_few:
        few = target.subsample(pick_key, n_few)
        try:
            particles, eta = _to_the_matching_eta(temper_key, few, n_particles)
        except jax.errors.JaxRuntimeError:
            # The machine's, such as no memory left, which is no matter of the few.
            raise
        except RuntimeError:
            # Nothing to be seen of the few: what there is to see may be rare.
            return _to_the_matching_eta(temper_key, target, n_particles)
        populations = population_target(target.recentre(centre(few, particles)))
        on_all = onto_all(resample_key, populations, few, particles, eta)
        if on_all is not None:
            return on_all, eta
    return _to_the_matching_eta(temper_key, target, n_particles)


@jax.jit
def _keys(key: PRNGKeyArray) -> tuple[PRNGKeyArray, PRNGKeyArray, PRNGKeyArray]:
    return split_key(split_key(key)[0], 3)


def _to_the_matching_eta(key: PRNGKeyArray, target: Target, n_particles: int) -> tuple[Particles, float]:
    """Up from the prior: by weights, where these will do, or by a ladder."""
    if has_one_mode(target):
        with suppress(NoFitError):
            return matched_by_weights(key, target, n_particles)
    return _up_a_ladder(key, target, n_particles)


def _up_a_ladder(key: PRNGKeyArray, target: Target, n_particles: int) -> tuple[Particles, float]:
    """Until eta is within a factor of two of the matching value; then to that value.

    All populations count as one there: within one, draws that were so recently the same have too little spread.

    Where the loss is a step function the posterior ends up on one step and no observation moves it any more, and where
    a plane separates two classes the hinge loss soon is zero: then to where the match was best.
    """
    populations = population_target(target)
    walk_key, walkers = start_at_prior(key, populations, n_particles)
    keys = replicate_keys(walk_key, N_POPULATIONS)
    eta = float(first_stage(walkers.particles))
    best, closest = eta, 0.0
    for _ in range(_MOST_STAGES):
        walkers = temper_to(keys, populations, walkers, eta)
        matching = float(_matching(target, walkers))
        matching = matching if np.isfinite(matching) else np.inf
        match = min(eta / matching, matching / eta)
        if match > closest:
            best, closest = eta, match
        if match > 0.5:
            return temper_to(keys, populations, walkers, matching).particles, matching
        if closest > _SOME_MATCH and eta > STAGE * best:
            break
        eta = min(matching, STAGE * eta)
    if closest <= _NO_MATCH:
        raise RuntimeError(
            f"the posterior does not follow the data, at no learning rate up to {eta:.3g}: does the loss depend on the "
            "parameters? To start from a learning rate of your own, pass eta_init= with draws=."
        )
    return temper_to(keys, populations, walkers, best).particles, best


@jit
def _on_crew(target: Target, theta: Float[Array, "K R M"]) -> Particles:
    return population_target(target).evaluate(theta)


@jit
def _matching(target: Target, walkers: TemperingState) -> Float[Array, ""]:
    return matching_eta(target, walkers.particles.merge_replicates(), walkers.eta[:1])


@eqx.filter_jit
def _pick(key: PRNGKeyArray, populations: Target, draws: Float[Array, "M K"], n_particles: int) -> Particles:
    picked = jax.random.choice(key, draws, (N_POPULATIONS, n_particles))
    return populations.evaluate(populations.coordinates.unconstrain(jnp.moveaxis(picked, -1, 0)))


@eqx.filter_jit
def _repeated(particles: Particles, n_particles: int) -> Particles:
    """Of equal weight, as many as asked for: each several times, or one of several, neighbours being relatives."""
    there = particles.risk.shape[-1]
    again = jnp.arange(n_particles) % there if n_particles >= there else jnp.arange(n_particles) * there // n_particles
    theta, risk, log_prior = particles.theta[:, :, again], particles.risk[:, again], particles.log_prior[:, again]
    return Particles(theta, risk, log_prior, uniform_log_weights(risk.shape))
