"""Transport of the pool to every replicate, with refits of the maps until they meet a goal."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from calibayes._backend.functions import host_array
from calibayes._backend.jit import jit, light_jit
from calibayes._core.particles import Particles, choose
from calibayes._core.target import Target
from calibayes.samplers.populations import population_target
from calibayes.samplers.transport import config
from calibayes.samplers.transport.maps import AffineMaps, WhitenedPool, pool_maps, transport_and_weight
from calibayes.samplers.transport.refit import refit_maps


class TransportedParticles(NamedTuple):
    """The pool on every replicate: the maps, the weighted particles, and their effective sample sizes."""

    maps: AffineMaps
    particles: Particles
    ess: Float[Array, " B"]

    @property
    def n_particles(self) -> int:
        """Number of particles per replicate."""
        return self.particles.risk.shape[-1]


class FitGoal(NamedTuple):
    """When to stop refitting: enough replicates have a sufficient effective sample size, or evaluations are used up."""

    min_ess: float
    """Sufficient effective sample size, as a share of the particles."""
    share: float
    """Share of replicates that must reach it."""
    max_evaluations: int
    """Largest number of evaluations of the risk."""

    def is_met(self, transported: TransportedParticles) -> bool:
        """Return whether enough replicates have a sufficient effective sample size."""
        sufficient = np.asarray(transported.ess) >= self.min_ess * transported.n_particles
        return bool(sufficient.mean() >= self.share)


def n_losses(target: Target, pool: WhitenedPool) -> int:
    """Return the number of loss terms (observations x replicates x particles) in an evaluation of the risk."""
    return int(target.counts.n) * target.n_replicates * pool.n_particles


@jit
def transport_on_data(
    target: Target, pool: WhitenedPool, eta_ratio: Float[Array, ""], eta: Float[Array, ""]
) -> Particles:
    """Transport the pool to another learning rate on the data.

    Parameters
    ----------
    target : Target
        The posteriors.
    pool : WhitenedPool
        The pool.
    eta_ratio : array of shape ()
        Learning rate of the pool over the new one.
    eta : array of shape ()
        The new learning rate.

    Returns
    -------
    Particles
        The pool on the data, as one replicate.
    """
    populations = population_target(target)
    return transport_and_weight(populations, pool, pool_maps(populations, pool, eta_ratio), eta)[0].merge_replicates()


def transport_and_fit(
    target: Target, pool: WhitenedPool, maps: AffineMaps, eta: float, goal: FitGoal
) -> tuple[TransportedParticles, int]:
    """Transport the pool to every replicate, and refit the maps until the goal is met.

    On a CPU, programs for the evaluation and for the refit alternate: together they take half the time to compile, and
    the refit is only compiled if it is needed. An accelerator runs one program, and need not wait for the host.

    Returns
    -------
    transported : TransportedParticles
        The pool on every replicate.
    evaluations : int
        Number of evaluations of the risk.
    """
    if jax.default_backend() == "cpu":
        transported = TransportedParticles(maps, *transport_and_weight(target, pool, maps, host_array(eta)))
        return refit_until(target, pool, transported, eta, goal, 1)
    # If an evaluation of the risk takes long, each call makes only one, so that Ctrl-C takes effect between calls.
    is_long = n_losses(target, pool) >= config.CONFIG.fit.long_evaluation
    packed = host_array([eta, goal.min_ess, goal.share, 1 if is_long else goal.max_evaluations])
    transported, n_evaluations = fit_in_one_program(target, pool, maps, packed)
    # Fetch the effective sample sizes, which are read next, in the same transfer.
    evaluations = int(jax.device_get((n_evaluations, transported.ess))[0])
    return refit_until(target, pool, transported, eta, goal, evaluations)


def refit_until(
    target: Target, pool: WhitenedPool, transported: TransportedParticles, eta: float, goal: FitGoal, evaluations: int
) -> tuple[TransportedParticles, int]:
    """Refit all maps until the goal is met or `goal.max_evaluations` are used, including those already made."""
    while evaluations < goal.max_evaluations and not goal.is_met(transported):
        transported = refit_all(target, pool, transported, eta)
        evaluations += 1
    return transported, evaluations


@jit
def fit_in_one_program(
    target: Target, pool: WhitenedPool, maps: AffineMaps, goal: Float[Array | np.ndarray, " 4"]
) -> tuple[TransportedParticles, Int[Array, ""]]:
    """Transport the pool to every replicate, and refit the maps until the goal is met.

    `goal` is the learning rate, followed by the numbers of a `FitGoal`: one array, which takes one transfer.
    """
    eta, min_ess, share, max_evaluations = goal

    def not_done(carry):
        transported, evaluations = carry
        is_met = (transported.ess >= min_ess * transported.n_particles).astype(float).mean() >= share
        return (evaluations < max_evaluations.astype(np.int32)) & ~is_met

    def refit(carry):
        transported, evaluations = carry
        return _refit_in_one_program(target, pool, transported, eta), evaluations + 1

    first = TransportedParticles(maps, *transport_and_weight(target, pool, maps, eta))
    return jax.lax.while_loop(not_done, refit, (first, jnp.ones((), np.int32)))


def refit_all(
    target: Target, pool: WhitenedPool, transported: TransportedParticles, eta: float
) -> TransportedParticles:
    """Refit the maps of all replicates once."""
    if jax.default_backend() != "cpu":
        return _refit_in_one_program(target, pool, transported, host_array(eta))
    maps = refit_maps(pool, transported.maps, transported.particles.log_weights)
    new = TransportedParticles(maps, *transport_and_weight(target, pool, maps, host_array(eta)))
    all_accepted = np.all(np.asarray(new.ess) > config.CONFIG.fit.min_ess_ratio * np.asarray(transported.ess))
    return new if all_accepted else _accept_refits(new, transported)


@jit
def _refit_in_one_program(
    target: Target, pool: WhitenedPool, transported: TransportedParticles, eta: Float[Array, ""]
) -> TransportedParticles:
    maps = refit_maps(pool, transported.maps, transported.particles.log_weights)
    return _accept_refits(TransportedParticles(maps, *transport_and_weight(target, pool, maps, eta)), transported)


@jit
def refit_replicates(
    target: Target,
    pool: WhitenedPool,
    transported: TransportedParticles,
    indices: Int[Array, " R"],
    eta: Float[Array, ""],
) -> tuple[TransportedParticles, TransportedParticles]:
    """Refit the maps of some replicates once.

    Returns
    -------
    transported : TransportedParticles
        All replicates.
    refitted : TransportedParticles
        The replicates of `indices`.
    """
    maps, particles = transported.maps, transported.particles
    old = TransportedParticles(maps.select(indices), particles.select(indices), transported.ess[indices])
    new = _refit_in_one_program(target.select(indices), pool.for_replicates(indices), old, eta)
    all_maps = AffineMaps(
        maps.centre.at[:, indices].set(new.maps.centre),
        maps.root.at[indices].set(new.maps.root),
    )
    all_particles = particles.with_replicates(indices, new.particles)
    return TransportedParticles(all_maps, all_particles, transported.ess.at[indices].set(new.ess)), new


@light_jit
def _accept_refits(new: TransportedParticles, old: TransportedParticles) -> TransportedParticles:
    """Return the new particles, except on replicates where the effective sample size fell too much."""
    accepted = new.ess > config.CONFIG.fit.min_ess_ratio * old.ess
    return TransportedParticles(
        new.maps.where(accepted, old.maps),
        choose(accepted, new.particles, old.particles),
        jnp.where(accepted, new.ess, old.ess),
    )
