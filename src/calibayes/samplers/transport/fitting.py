"""Transport of the pool to every replicate, with refits of the maps until they meet a goal."""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from calibayes._backend.functions import host_array
from calibayes._backend.jit import jit
from calibayes._core.particles import Particles, choose
from calibayes._core.target import Target
from calibayes.samplers.transport import config
from calibayes.samplers.transport.maps import AffineMaps, WhitenedPool, transport_and_weight
from calibayes.samplers.transport.refit import refit_maps

_choose_on_device = jit(choose)


def choose_replicates(where: Bool[np.ndarray, " B"], new: Particles, old: Particles) -> Particles:
    """Return the particles of `new` in the replicates where `where` is true, and of `old` in the others.

    It is rarely needed, so that on a CPU NumPy takes less time than the compilation of a program.
    """
    if jax.default_backend() != "cpu":
        return _choose_on_device(where, new, old)
    mask = where[:, None]
    chosen = jax.tree.map(lambda a, b: np.where(mask, a, b), jax.device_get(new), jax.device_get(old))
    return jax.device_put(chosen)


class TransportedParticles(NamedTuple):
    """The pool on every replicate: the maps, the weighted particles, and their effective sample sizes."""

    maps: AffineMaps
    particles: Particles
    ess: Float[np.ndarray, " B"]

    @property
    def n_particles(self) -> int:
        """Number of particles per replicate."""
        return self.particles.risk.shape[-1]

    def select(self, indices: Int[np.ndarray, " R"]) -> "TransportedParticles":
        """Return some replicates."""
        return TransportedParticles(self.maps.select(indices), self.particles.select(indices), self.ess[indices])

    def with_replicates(self, indices: Int[np.ndarray, " R"], new: "TransportedParticles") -> "TransportedParticles":
        """Return all replicates, with those at `indices` replaced."""
        ess = self.ess.copy()
        ess[indices] = new.ess
        particles = self.particles.with_replicates(indices, new.particles)
        return TransportedParticles(self.maps.with_replicates(indices, new.maps), particles, ess)

    def where(self, mask: Bool[np.ndarray, " B"], other: "TransportedParticles") -> "TransportedParticles":
        """Return these particles on the replicates of `mask`, and `other` elsewhere."""
        return TransportedParticles(
            self.maps.where(mask, other.maps),
            choose_replicates(mask, self.particles, other.particles),
            np.where(mask, self.ess, other.ess),
        )


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
        return bool((transported.ess >= self.min_ess * transported.n_particles).mean() >= self.share)


def n_losses(target: Target, pool: WhitenedPool) -> int:
    """Return the number of loss terms (observations x replicates x particles) in an evaluation of the risk."""
    return int(target.counts.n) * target.n_replicates * pool.n_particles


def transport(target: Target, pool: WhitenedPool, maps: AffineMaps, eta: float) -> TransportedParticles:
    """Transport the pool to every replicate at a learning rate, by one evaluation of the risk."""
    particles, sizes = transport_and_weight(target, pool, maps, host_array(eta))
    return TransportedParticles(maps, particles, np.asarray(sizes))


def transport_and_fit(
    target: Target, pool: WhitenedPool, maps: AffineMaps, eta: float, goal: FitGoal
) -> tuple[TransportedParticles, int]:
    """Transport the pool to every replicate, and refit the maps until the goal is met.

    Returns
    -------
    transported : TransportedParticles
        The pool on every replicate.
    evaluations : int
        Number of evaluations of the risk.
    """
    return refit_until(target, pool, transport(target, pool, maps, eta), eta, goal, 1)


def refit_until(
    target: Target, pool: WhitenedPool, transported: TransportedParticles, eta: float, goal: FitGoal, evaluations: int
) -> tuple[TransportedParticles, int]:
    """Refit all maps until the goal is met or `goal.max_evaluations` are used, including those already made."""
    while evaluations < goal.max_evaluations and not goal.is_met(transported):
        transported = refit(target, pool, transported, eta)
        evaluations += 1
    return transported, evaluations


def refit(target: Target, pool: WhitenedPool, transported: TransportedParticles, eta: float) -> TransportedParticles:
    """Refit the maps of all replicates once; maps whose effective sample size falls too much are kept."""
    maps = refit_maps(pool, transported.maps, transported.particles.log_weights, transported.ess)
    new = transport(target, pool, maps, eta)
    constants = config.CONFIG
    few_parameters = len(maps.centre) < constants.size.common_moments_from
    accepted = new.ess > (constants.fit.min_ess_ratio if few_parameters else 1.0) * transported.ess
    return new if accepted.all() else new.where(accepted, transported)


def refit_replicates(
    target: Target, pool: WhitenedPool, transported: TransportedParticles, indices: Int[np.ndarray, " R"], eta: float
) -> TransportedParticles:
    """Refit the maps of the replicates at `indices` once, and return these replicates."""
    return refit(target.select(indices), pool.for_replicates(indices), transported.select(indices), eta)
