"""Transport of the pool to every replicate, with refits of the maps until they meet a goal.

Each function is one compiled program with a few evaluations of the risk, because a program takes longer to call than
to run when there are few observations.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from calibayes._backend.functions import host_array
from calibayes._backend.jit import jit
from calibayes._core.particles import Particles, choose
from calibayes._core.target import Target
from calibayes.samplers.populations import population_target
from calibayes.samplers.transport import config
from calibayes.samplers.transport.maps import AffineMaps, WhitenedPool, pool_maps, shifted_maps, transport_and_weight
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

    def packed(self, eta: float, target: Target, pool: WhitenedPool) -> Float[np.ndarray, " 4"]:
        """Return the learning rate and the goal as one array, which a compiled program receives by one transfer.

        If an evaluation of the risk takes long, each call makes only one, so that Ctrl-C takes effect between calls.
        """
        is_long = n_losses(target, pool) >= config.CONFIG.fit.long_evaluation
        return host_array([eta, self.min_ess, self.share, 1 if is_long else self.max_evaluations])


def n_losses(target: Target, pool: WhitenedPool) -> int:
    """Return the number of loss terms (observations x replicates x particles) in an evaluation of the risk."""
    return target.reference_loss.size * target.n_replicates * pool.n_particles


@jit
def first_transport(
    target: Target,
    pool: WhitenedPool,
    search_pool: WhitenedPool,
    shifts: Float[Array, "K B"],
    eta_ratio: Float[Array, ""],
    goal: Float[Array | np.ndarray, " 4"],
) -> tuple[Particles, TransportedParticles, Int[Array, ""]]:
    """Transport the pool to another learning rate on the data, and a part of it to every replicate.

    Parameters
    ----------
    target : Target
        The posteriors.
    pool, search_pool : WhitenedPool
        The pool, and the part of it that is used during the search.
    shifts : array of shape (K, B)
        Shifts of the posterior mean, from `jackknife_shifts`.
    eta_ratio : array of shape ()
        Learning rate of the pool over the new one.
    goal : array of shape (4,)
        A `FitGoal.packed`.

    Returns
    -------
    data : Particles
        The pool on the data, as one replicate.
    transported : TransportedParticles
        The part of the pool on every replicate.
    evaluations : array of shape ()
        Number of evaluations of the risk of `search_pool`.
    """
    populations = population_target(target)
    data, _ = transport_and_weight(populations, pool, pool_maps(populations, pool, eta_ratio), goal[0])
    maps = shifted_maps(target, pool, shifts, eta_ratio)
    return data.merge_replicates(), *transport_and_fit(target, search_pool, maps, goal)


@jit
def transport_and_fit(
    target: Target, pool: WhitenedPool, maps: AffineMaps, goal: Float[Array | np.ndarray, " 4"]
) -> tuple[TransportedParticles, Int[Array, ""]]:
    """Transport the pool to every replicate, and refit the maps until the packed `goal` is met.

    Returns
    -------
    transported : TransportedParticles
        The pool on every replicate.
    evaluations : array of shape ()
        Number of evaluations of the risk.
    """
    eta, min_ess, share, max_evaluations = goal
    on_cpu = jax.default_backend() == "cpu"

    def not_done(carry):
        transported, evaluations = carry
        is_met = (transported.ess >= min_ess * transported.n_particles).astype(float).mean() >= share
        return (evaluations == 0) | (evaluations < max_evaluations.astype(np.int32)) & ~is_met

    def evaluate(carry):
        old, evaluations = carry
        refitted = lambda: refit_maps(pool, old.maps, old.particles.log_weights)
        maps = jax.lax.cond(evaluations == 0, lambda: old.maps, refitted) if on_cpu else refitted()
        new = TransportedParticles(maps, *transport_and_weight(target, pool, maps, eta))
        return _accept_refits(new, old), evaluations + 1

    if on_cpu:
        # Evaluate the risk in one place only, inside the loop, to halve the compilation time. The loop starts from a
        # placeholder with negative effective sample sizes, which any evaluation replaces.
        shapes = jax.eval_shape(lambda: transport_and_weight(target, pool, maps, eta))
        placeholder = jax.tree.map(lambda leaf: jnp.full(leaf.shape, -1, leaf.dtype), shapes)
        first, evaluations = TransportedParticles(maps, *placeholder), 0
    else:
        # An accelerator waits for the outcome of a condition inside the loop, so the first evaluation comes before it.
        first, evaluations = TransportedParticles(maps, *transport_and_weight(target, pool, maps, eta)), 1
    return jax.lax.while_loop(not_done, evaluate, (first, jnp.asarray(evaluations, np.int32)))


@jit
def refit_all(
    target: Target, pool: WhitenedPool, transported: TransportedParticles, eta: Float[Array, ""]
) -> TransportedParticles:
    """Refit the maps of all replicates once."""
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
    new = refit_all(target.select(indices), pool.for_replicates(indices), old, eta)
    all_maps = AffineMaps(
        maps.centre.at[:, indices].set(new.maps.centre),
        maps.root.at[indices].set(new.maps.root),
    )
    all_particles = particles.with_replicates(indices, new.particles)
    return TransportedParticles(all_maps, all_particles, transported.ess.at[indices].set(new.ess)), new


@jit
def _accept_refits(new: TransportedParticles, old: TransportedParticles) -> TransportedParticles:
    """Return the new particles, except on replicates where the effective sample size fell too much."""
    accepted = new.ess > config.CONFIG.fit.min_ess_ratio * old.ess
    return TransportedParticles(
        new.maps.where(accepted, old.maps),
        choose(accepted, new.particles, old.particles),
        jnp.where(accepted, new.ess, old.ess),
    )
