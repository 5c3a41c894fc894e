"""Rejuvenation at a fixed learning rate until the particles have mixed.

Every particle is a Markov chain of its own at a fixed eta. The chains of a replicate have mixed when they have
forgotten their start and no longer drift:

1. After n moves, the correlation over particles between the start and the current position is below 0.1 in every
   parameter. It decays about geometrically, so after 3 n moves it is near 0.001.
2. Between n and 3 n moves, the means of the parameters and of the risk have not changed by more than their Monte Carlo
   error.

If the second condition fails, the chains had not converged, and the test starts again from the current positions.
Replicates that have not mixed after `max_moves` moves are reported.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from calibayes._backend.functions import host_array
from calibayes._backend.jit import jit
from calibayes._backend.rng import replicate_keys
from calibayes._core.particles import Particles, mean
from calibayes._core.target import Target
from calibayes.samplers.populations import N_POPULATIONS
from calibayes.samplers.tempering import COARSE_SCHEDULE, TemperingState, init_tempering, rejuvenate, temper_to


@dataclass(frozen=True)
class MixingConfig:
    """Tuning constants of the mixing test and of the rejuvenation."""

    max_correlation: float = 0.1
    """A chain has forgotten its start when its correlation with the start is below this value: three standard errors of
    a correlation of 1,000 independent particles."""
    window_factor: int = 3
    """The drift is tested after this multiple of the number of moves that the correlation took to fall below
    `max_correlation`; by then it is about `max_correlation ** window_factor`."""
    max_drift: float = 4.5
    """Largest change of a mean, in Monte Carlo standard errors. With ten quantities and 2,000 replicates, about
    0.1 false alarms are expected per run; their only effect is more moves."""
    min_moves: int = 64
    """Default smallest number of moves of particles that come from another distribution. Crank-Nicolson moves mix
    the bulk in a few moves, but only the random-walk moves among them (one in four) empty the tails of the start.
    Order-of-magnitude choice; see `benchmarks/sensitivity.py`."""
    max_moves: int = 2_000
    """Default largest number of moves. A replicate that needs more is reported as not mixed."""
    check_every: int = 4
    """Number of moves between two tests."""
    moves_before_batching: int = 200
    """After this many moves, the last replicates that have not mixed (at most one batch) continue without the others:
    a few slow replicates must not keep all of them moving. Does not change results except for rounding."""
    moves_per_call: int = 64
    """Moves in one call of a compiled program; between calls a run can be interrupted. Does not change results."""


CONFIG = MixingConfig()

_NOT_SCHEDULED = 2**30
"""Value of `MixingMonitor.test_at` while the start is not forgotten: later than any move."""


def rejuvenate_until_mixed(
    key: PRNGKeyArray,
    target: Target,
    particles: Particles,
    eta: float,
    max_moves: int | None = None,
    min_moves: int | None = None,
) -> tuple[TemperingState, Bool[Array, " B"]]:
    """Move the particles at `eta` until every replicate has mixed.

    Parameters
    ----------
    key : PRNGKeyArray
        Random key.
    target : Target
        The posteriors.
    particles : Particles
        The particles to start from, in any distribution.
    eta : float
        The learning rate.
    max_moves : int, optional
        Largest number of moves. Default: `CONFIG.max_moves`.
    min_moves : int, optional
        Smallest number of moves. Pass 0 for particles that already represent the posteriors at `eta`. Default:
        `CONFIG.min_moves`.

    Returns
    -------
    state : TemperingState
        The moved particles.
    mixed : array of bool, shape (B,)
        Replicates that have mixed.
    """
    max_moves = CONFIG.max_moves if max_moves is None else max_moves
    min_moves = CONFIG.min_moves if min_moves is None else min_moves
    state = init_tempering(COARSE_SCHEDULE.kernel, particles, host_array(eta))
    monitor = MixingMonitor.start(state, min_moves)
    keys = replicate_keys(key, target.n_replicates)
    state, monitor = _rejuvenate(keys, target, state, monitor, max_moves)
    return state, monitor.mixed


def temper_and_mix(
    key: PRNGKeyArray, target: Target, particles: Particles, eta: float, new_eta: float
) -> tuple[Particles, Bool[Array, " B"]]:
    """Temper weighted particles from `eta` to `new_eta`, and rejuvenate them there until they have mixed.

    Returns
    -------
    particles : Particles
        Particles at `new_eta`.
    mixed : array of bool, shape (B,)
        Replicates that have mixed.
    """
    temper_key, mix_key = jax.random.split(key)
    state = init_tempering(COARSE_SCHEDULE.kernel, particles, host_array(eta))
    state = temper_to(replicate_keys(temper_key, target.n_replicates), target, state, new_eta)
    state, mixed = rejuvenate_until_mixed(mix_key, target, state.particles, new_eta, min_moves=0)
    return state.particles, mixed


class MixingMonitor(eqx.Module):
    """Test whether the chains of each replicate have forgotten their start and no longer drift."""

    start_theta: Float[Array, "K B M"]
    """Particles at the start of the test."""
    start_moves: Int[Array, " B"]
    """Number of moves at the start of the test."""
    test_at: Int[Array, " B"]
    """Number of moves at which the drift is tested; `_NOT_SCHEDULED` until the start is forgotten."""
    means: Float[Array, "P B"]
    """Means of the parameters and of the risk when the start was forgotten."""
    mixed: Bool[Array, " B"]
    """Replicates that have passed the test."""
    min_moves: int = eqx.field(static=True)

    @staticmethod
    @eqx.filter_jit
    def start(state: TemperingState, min_moves: int) -> "MixingMonitor":
        """Return a monitor that starts at the current particles."""
        n_replicates = state.moves.shape[0]
        not_scheduled = jnp.full(n_replicates, _NOT_SCHEDULED, int)
        means, _ = _means_and_errors(state.particles)
        none_mixed = jnp.zeros(n_replicates, bool)
        return MixingMonitor(state.particles.theta, state.moves, not_scheduled, means, none_mixed, min_moves)

    @jit
    def update(self, state: TemperingState) -> "MixingMonitor":
        """Return the monitor after further moves."""
        particles, moves = state.particles, state.moves
        means, errors = _means_and_errors(particles)
        correlation = jnp.abs(_correlation(self.start_theta, particles.theta, particles.weights)).max(0)
        forgotten = (correlation < CONFIG.max_correlation) & (self.test_at == _NOT_SCHEDULED)
        window = jnp.maximum(CONFIG.window_factor * (moves - self.start_moves), self.min_moves)
        test_at = jnp.where(forgotten, self.start_moves + window, self.test_at)
        tested = (moves >= test_at) & ~self.mixed
        drifted = (jnp.abs(means - self.means) > CONFIG.max_drift * errors).any(0)
        restart = tested & drifted
        return MixingMonitor(
            jnp.where(restart[None, :, None], particles.theta, self.start_theta),
            jnp.where(restart, moves, self.start_moves),
            jnp.where(restart, _NOT_SCHEDULED, test_at),
            jnp.where(forgotten[None], means, self.means),
            self.mixed | (tested & ~drifted),
            self.min_moves,
        )


def _rejuvenate(
    keys: Key[Array, " B"], target: Target, state: TemperingState, monitor: MixingMonitor, max_moves: int
) -> tuple[TemperingState, MixingMonitor]:
    done = 0
    while done + CONFIG.check_every <= max_moves:
        remaining = jnp.asarray(max_moves - done)
        until_batching = jnp.asarray(CONFIG.moves_before_batching - done)
        n_moves, state, monitor = _rejuvenate_call(keys, target, state, monitor, remaining, until_batching)
        done += int(n_moves)
        not_mixed = np.flatnonzero(~np.asarray(monitor.mixed))
        if not len(not_mixed):
            break
        if done >= CONFIG.moves_before_batching and len(not_mixed) <= N_POPULATIONS < target.n_replicates:
            batch = np.resize(not_mixed, N_POPULATIONS)
            indices = jnp.asarray(batch)
            part = _select_replicates(state, monitor, indices)
            part = _rejuvenate(keys[indices], target.select(indices), *part, max_moves - done)
            # Write every replicate back once: an index past the end discards the copies that complete the batch.
            destination = np.where(np.arange(N_POPULATIONS) < len(not_mixed), batch, target.n_replicates)
            return _insert_replicates(state, monitor, jnp.asarray(destination), *part)
    return state, monitor


@jit
def _rejuvenate_call(
    keys: Key[Array, " B"],
    target: Target,
    state: TemperingState,
    monitor: MixingMonitor,
    remaining: Int[Array, ""],
    until_batching: Int[Array, ""],
) -> tuple[Int[Array, ""], TemperingState, MixingMonitor]:
    """Make up to `CONFIG.moves_per_call` moves; return their number, the state and the monitor.

    Stops when all replicates have mixed, or when the rest fits into a batch after `until_batching` moves.
    """

    def not_done(carry):
        done, _, monitor = carry
        not_mixed = (~monitor.mixed).sum()
        fits_batch = (not_mixed <= N_POPULATIONS) & (target.n_replicates > N_POPULATIONS)
        batchable = (done >= until_batching) & fits_batch
        may_move = (done + CONFIG.check_every <= remaining) & (done < CONFIG.moves_per_call)
        return (not_mixed > 0) & ~batchable & may_move

    def body(carry):
        done, state, monitor = carry
        state = rejuvenate(keys, target, state, COARSE_SCHEDULE.kernel, CONFIG.check_every, monitor.mixed)
        return done + CONFIG.check_every, state, monitor.update(state)

    return jax.lax.while_loop(not_done, body, (jnp.zeros_like(remaining), state, monitor))


@jit
def _select_replicates(
    state: TemperingState, monitor: MixingMonitor, indices: Int[Array, " R"]
) -> tuple[TemperingState, MixingMonitor]:
    selected = jax.tree.map(lambda leaf: leaf[indices], _without_particles(state))
    selected_monitor = MixingMonitor(
        monitor.start_theta[:, indices],
        monitor.start_moves[indices],
        monitor.test_at[indices],
        monitor.means[:, indices],
        monitor.mixed[indices],
        monitor.min_moves,
    )
    return _with_particles(selected, state.particles.select(indices)), selected_monitor


@jit
def _insert_replicates(
    state: TemperingState,
    monitor: MixingMonitor,
    indices: Int[Array, " R"],
    part: TemperingState,
    part_monitor: MixingMonitor,
) -> tuple[TemperingState, MixingMonitor]:
    insert = lambda leaf, new: leaf.at[indices].set(new, mode="drop")
    whole = jax.tree.map(insert, _without_particles(state), _without_particles(part))
    monitor = eqx.tree_at(lambda m: m.mixed, monitor, insert(monitor.mixed, part_monitor.mixed))
    return _with_particles(whole, state.particles.with_replicates(indices, part.particles)), monitor


def _without_particles(state: TemperingState) -> TemperingState:
    """Return the part of the state whose arrays all have the replicates as leading axis."""
    return eqx.tree_at(lambda s: s.particles, state, None)


def _with_particles(state: TemperingState, particles: Particles) -> TemperingState:
    return eqx.tree_at(lambda s: s.particles, state, particles, is_leaf=lambda leaf: leaf is None)


def _means_and_errors(particles: Particles) -> tuple[Float[Array, "P B"], Float[Array, "P B"]]:
    """Return the means of the parameters and of the risk, and the error of the difference of two such means."""
    risk = jnp.where(jnp.isfinite(particles.risk), particles.risk, 0.0)
    values = jnp.concatenate([particles.theta, risk[None]])
    means = mean(values, particles.weights)
    variance = mean(jnp.square(values - means[:, :, None]), particles.weights)
    return means, jnp.sqrt(2 * variance / values.shape[-1])


def _correlation(
    a: Float[Array, "K B M"], b: Float[Array, "K B M"], weights: Float[Array, "B M"]
) -> Float[Array, "K B"]:
    def centred(values):
        return values - mean(values, weights)[:, :, None]

    a, b = centred(a), centred(b)
    variances = mean(a * a, weights) * mean(b * b, weights)
    return mean(a * b, weights) / jnp.sqrt(jnp.where(variances > 0, variances, 1.0))
