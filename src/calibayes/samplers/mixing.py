"""Rejuvenation at a fixed learning rate until the particles have mixed.

Every particle is a Markov chain of its own at a fixed eta. The chains of a replicate have mixed when they have
forgotten their start and no longer drift:

1. After n moves, the correlation over particles between the start and the current position is below 0.1 in every
   parameter. It decays about geometrically, so after 3 n moves it is near 0.001.
2. Between n and 3 n moves, the means of the parameters and of the risk have not changed by more than their Monte Carlo
   error.

If the second condition fails, the chains had not converged, and the test starts again from the current positions.
Replicates that have not mixed after `max_moves` moves are reported. The moves end earlier if the correlations of many
replicates, or of all that remain, decay so slowly that these would not mix in time, as between separate modes.
"""

from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from calibayes._backend.functions import host_array
from calibayes._backend.jit import jit, prefetch
from calibayes._backend.rng import replicate_keys, split_key
from calibayes._core.particles import Particles, host_means, mean
from calibayes._core.target import Target, evaluate
from calibayes.samplers.populations import N_POPULATIONS
from calibayes.samplers.tempering import (
    COARSE_SCHEDULE,
    TemperingState,
    change_eta,
    freeze_replicates,
    init_coarse,
    move_repeatedly,
)


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
    moves_before_extrapolation: int = 128
    """After this many moves, and after each doubling, the correlation with the start is extrapolated geometrically."""
    hopeless_factor: float = 2.0
    """A replicate is hopeless if it is not expected to forget its start within this multiple of the largest number of
    moves. The moves end if all that remain are, or more than a batch of `N_POPULATIONS`. A correlation that decays to
    `max_correlation` in 4,000 moves falls from 0.93 to 0.86 between the first two extrapolations, and one that does in
    2,000 moves to 0.75. The error of a correlation of 0.75 of 1,000 particles is 0.014."""
    moves_before_batching: int = 200
    """After this many moves, the last replicates that have not mixed (at most one batch) continue without the others:
    a few slow replicates must not keep all of them moving. Does not change results except for rounding."""
    moves_per_call: int = 64
    """Moves in one call of a compiled program; between calls a run can be interrupted. Does not change results."""
    max_temper_moves: int = 8_000
    """Largest number of moves of `temper_to`. A tempering run from a diffuse prior takes a few hundred."""
    moves_before_bound_check: int = 1_024
    """Moves of `temper_to` after which the loss is checked for a lower bound, at the next call that reaches it. Most
    runs end before; without a lower bound the particles would follow the loss up to `max_temper_moves`."""
    bound_scales: tuple[float, ...] = (1e4, 1e8, 1e12, 1e16)
    """Factors of the coordinates at which a loss without a lower bound keeps falling. Data within the range of single
    precision (`calibayes._core.precision`) are passed on the way."""
    fall_ratio: float = 100.0
    """A loss has no lower bound if it falls from one factor to the next by this multiple of its fall to the former. A
    linear function falls by 1e4 times as much; one that approaches a bound by less and less."""


CONFIG = MixingConfig()

_NEVER = 2**30
"""A number of moves that no run makes."""


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
    state, monitor = init_coarse(particles, eta), MixingMonitor.begin(particles, min_moves)
    keys = replicate_keys(key, target.n_replicates)
    state, monitor = _rejuvenate(keys, target, state, monitor, host_array(eta), max_moves)
    return state, monitor.mixed


def temper_to(keys: Key[Array, " B"], target: Target, state: TemperingState, eta: float) -> TemperingState:
    """Move all replicates to `eta` by `COARSE_SCHEDULE`.

    Raises
    ------
    RuntimeError
        If a replicate does not reach `eta` within `CONFIG.max_temper_moves` moves, or earlier if the loss has no lower
        bound.
    """
    monitor = MixingMonitor.begin(state.particles, 0, mixed=True)
    for n_calls in range(1, CONFIG.max_temper_moves // CONFIG.moves_per_call + 1):
        _, state, _ = _advance(keys, target, state, monitor, host_array(eta), CONFIG.moves_per_call, _NEVER)
        if (np.asarray(state.eta) == host_array(eta)).all():
            return state
        if n_calls == CONFIG.moves_before_bound_check // CONFIG.moves_per_call:
            _require_lower_bound(target, state.particles, eta)
    raise RuntimeError(
        f"tempering did not reach eta = {eta:g} in {CONFIG.max_temper_moves} moves. The prior may be very far from the "
        "data: choose one that agrees with them, or pass draws of the posterior (draws=)."
    )


def _require_lower_bound(target: Target, particles: Particles, eta: float) -> None:
    """Raise an error if the loss keeps falling in the direction of some particle, ever further from zero."""
    theta = np.asarray(particles.theta)
    risks = [particles.risk, *(evaluate(target, host_array(scale * theta)).risk for scale in CONFIG.bound_scales)]
    with np.errstate(invalid="ignore"):
        falls = -np.diff(np.array([np.asarray(risk, np.float64) for risk in risks]), axis=0)
    unbounded = (falls[:-1] > 0) & (falls[1:] > CONFIG.fall_ratio * falls[:-1])
    # At the largest factor at which the loss is finite.
    last = np.isfinite(falls).sum(0) - 2
    if (np.take_along_axis(unbounded, np.maximum(last, 0)[None], 0)[0] & (last > 0)).any():
        raise RuntimeError(
            f"tempering did not reach eta = {eta:g}, because the loss has no lower bound: it keeps falling as the "
            "parameters grow. Bound it below, or bound the parameters by the prior."
        )


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
    temper_key, mix_key = split_key(key)
    keys = replicate_keys(temper_key, target.n_replicates)
    state = temper_to(keys, target, init_coarse(particles, eta), new_eta)
    state, mixed = rejuvenate_until_mixed(mix_key, target, state.particles, new_eta, min_moves=0)
    return state.particles, mixed


def prefetch_rejuvenation(keys: Key[Array, " B"], target: Target, particles: Particles) -> None:
    """Start to compile the tempering and rejuvenation of particles of given shapes."""
    state = jax.eval_shape(lambda theta: init_coarse(theta, 0.0), particles)
    monitor = jax.eval_shape(lambda theta: MixingMonitor.from_start(theta, 0, False), particles.theta)
    limits = np.zeros(2, np.int32)
    prefetch(_temper_or_rejuvenate, keys, target, state, monitor, host_array(0.0), limits)


class MixingMonitor(eqx.Module):
    """Test whether the chains of each replicate have forgotten their start and no longer drift."""

    start: Float[Array, "K B M"]
    """Particles at the start of the test, standardised in each replicate."""
    start_moves: Int[Array, " B"]
    """Number of moves at the start of the test."""
    test_at: Int[Array, " B"]
    """Number of moves at which the drift is tested; `_NEVER` until the start is forgotten."""
    means: Float[Array, "P B"]
    """Means of the parameters and of the risk when the start was forgotten; zero until then."""
    mixed: Bool[Array, " B"]
    """Replicates that have passed the test."""
    min_moves: Int[Array, ""]
    """Smallest number of moves before the drift is tested."""

    @staticmethod
    def begin(particles: Particles, min_moves: int, *, mixed: bool = False) -> "MixingMonitor":
        """Return a monitor of particles that have not moved; with `mixed`, one that counts all replicates as mixed."""
        deviations = np.asarray(particles.theta) - host_means(particles)[:, :, None]
        sd = deviations.std(-1, keepdims=True)
        start = jax.device_put(host_array(deviations / np.where(sd > 0, sd, 1.0)))
        return MixingMonitor.from_start(start, min_moves, mixed)

    @staticmethod
    def from_start(start: Float[Array, "K B M"], min_moves: int, mixed: bool) -> "MixingMonitor":
        """Return a monitor of standardised particles that have not moved."""
        dim, n_replicates, _ = start.shape
        history = (
            np.zeros(n_replicates, int),
            np.full(n_replicates, _NEVER),
            np.zeros((dim + 1, n_replicates), start.dtype),
            np.full(n_replicates, mixed),
            np.array(min_moves),
        )
        return MixingMonitor(start, *jax.device_put(history))

    def correlations(self, particles: Particles) -> Float[np.ndarray, " B"]:
        """Return the largest absolute correlation over parameters of the particles with their start."""
        theta, weights = np.asarray(particles.theta), np.exp(np.asarray(particles.log_weights))
        deviations = theta - host_means(particles)[:, :, None]
        sd = np.sqrt(np.einsum("kbm,bm->kb", np.square(deviations), weights))
        products = np.einsum("kbm,kbm,bm->kb", np.asarray(self.start), deviations, weights)
        return np.abs(products / np.where(sd > 0, sd, 1.0)).max(0)

    def update(self, state: TemperingState) -> "MixingMonitor":
        """Return the monitor after further moves."""
        particles, moves = state.particles, state.moves
        risk = jnp.where(jnp.isfinite(particles.risk), particles.risk, 0.0)
        values = jnp.concatenate([particles.theta, risk[None]])
        means = mean(values, particles.weights)
        deviations = values - means[:, :, None]
        variances = mean(jnp.square(deviations), particles.weights)
        sd = jnp.sqrt(jnp.where(variances > 0, variances, 1.0))[:-1]
        correlation = jnp.abs(mean(self.start * deviations[:-1], particles.weights) / sd).max(0)
        # The error of the difference of two means.
        errors = jnp.sqrt(2 * variances / values.shape[-1])
        forgotten = (correlation < CONFIG.max_correlation) & (self.test_at == _NEVER)
        window = jnp.maximum(CONFIG.window_factor * (moves - self.start_moves), self.min_moves)
        test_at = jnp.where(forgotten, self.start_moves + window, self.test_at)
        tested = (moves >= test_at) & ~self.mixed
        drifted = (jnp.abs(means - self.means) > CONFIG.max_drift * errors).any(0)
        restart = tested & drifted
        return MixingMonitor(
            jnp.where(restart[None, :, None], deviations[:-1] / sd[:, :, None], self.start),
            jnp.where(restart, moves, self.start_moves),
            jnp.where(restart, _NEVER, test_at),
            jnp.where(forgotten[None], means, self.means),
            self.mixed | (tested & ~drifted),
            self.min_moves,
        )


def _rejuvenate(
    keys: Key[Array, " B"],
    target: Target,
    state: TemperingState,
    monitor: MixingMonitor,
    eta: Float[np.ndarray, ""],
    max_moves: int,
) -> tuple[TemperingState, MixingMonitor]:
    done, next_check, previous = 0, CONFIG.moves_before_extrapolation, None
    while done + COARSE_SCHEDULE.n_moves <= max_moves:
        moves_before_batching = CONFIG.moves_before_batching - done
        n_moves, state, monitor = _advance(keys, target, state, monitor, eta, max_moves - done, moves_before_batching)
        done += n_moves
        not_mixed = np.flatnonzero(~np.asarray(monitor.mixed))
        if not len(not_mixed):
            break
        if done >= CONFIG.moves_before_batching and len(not_mixed) <= N_POPULATIONS < target.n_replicates:
            batch = np.resize(not_mixed, N_POPULATIONS)
            indices = jnp.asarray(batch)
            part = _select_replicates(state, monitor, indices)
            part = _rejuvenate(keys[indices], target.select(indices), *part, eta, max_moves - done)
            # Write every replicate back once: an index past the end discards the copies that complete the batch.
            destination = np.where(np.arange(N_POPULATIONS) < len(not_mixed), batch, target.n_replicates)
            return _insert_replicates(state, monitor, jnp.asarray(destination), *part)
        if done >= next_check:
            record = _MixingRecord.of(state, monitor)
            if previous is not None:
                expected = _expected_moves(previous, record)[not_mixed]
                n_hopeless = (expected > CONFIG.hopeless_factor * max_moves).sum()
                if n_hopeless == len(not_mixed) or n_hopeless > N_POPULATIONS:
                    break
            next_check, previous = 2 * done, record
    return state, monitor


class _MixingRecord(NamedTuple):
    """Correlations with the start after some moves."""

    correlations: Float[np.ndarray, " B"]
    moves: Int[np.ndarray, " B"]
    start_moves: Int[np.ndarray, " B"]
    forgotten: Bool[np.ndarray, " B"]

    @staticmethod
    def of(state: TemperingState, monitor: MixingMonitor) -> "_MixingRecord":
        forgotten = np.asarray(monitor.test_at) != _NEVER
        correlations = monitor.correlations(state.particles)
        return _MixingRecord(correlations, np.asarray(state.moves), np.asarray(monitor.start_moves), forgotten)


def _expected_moves(previous: _MixingRecord, record: _MixingRecord) -> Float[np.ndarray, " B"]:
    """Return the number of moves after which each replicate is expected to forget its start.

    Zero if it has forgotten it already, or if its test started again after the previous record.
    """
    waiting = record.forgotten | (record.start_moves > previous.start_moves)
    before, after = (np.log(np.maximum(one.correlations, CONFIG.max_correlation)) for one in (previous, record))
    rate = (before - after) / np.maximum(record.moves - previous.moves, 1)
    remaining = after - np.log(CONFIG.max_correlation)
    expected = record.moves - record.start_moves + np.where(rate > 0, remaining / np.where(rate > 0, rate, 1.0), np.inf)
    return np.where(waiting, 0.0, expected)


def _advance(
    keys: Key[Array, " B"],
    target: Target,
    state: TemperingState,
    monitor: MixingMonitor,
    eta: Float[np.ndarray, ""],
    max_moves: int,
    moves_before_batching: int,
) -> tuple[int, TemperingState, MixingMonitor]:
    """Call `_temper_or_rejuvenate`, and return the number of moves, the state and the monitor."""
    limits = np.array([min(max_moves, CONFIG.moves_per_call), moves_before_batching], np.int32)
    n_moves, state, monitor = _temper_or_rejuvenate(keys, target, state, monitor, eta, limits)
    return int(n_moves), state, monitor


@jit
def _temper_or_rejuvenate(
    keys: Key[Array, " B"],
    target: Target,
    state: TemperingState,
    monitor: MixingMonitor,
    eta: Float[Array | np.ndarray, ""],
    limits: Int[Array | np.ndarray, " 2"],
) -> tuple[Int[Array, ""], TemperingState, MixingMonitor]:
    """Temper the replicates that are not at `eta`, and rejuvenate those that have not mixed.

    Both are in one compiled function, because the Markov kernel, which both need, takes most of the compilation time.
    Each round moves the learning rate of every replicate that is not at `eta` one temperature step towards it, and
    makes `COARSE_SCHEDULE.n_moves` moves of the kernel. The first of `limits` is the largest number of moves. After
    as many moves as the second, the function returns as soon as the unfinished replicates fit into one batch of
    `N_POPULATIONS`, in which the caller continues them.
    """
    schedule, (max_moves, moves_before_batching) = COARSE_SCHEDULE, limits

    def not_done(carry):
        done, state, monitor = carry
        n_active = ((state.eta != eta) | ~monitor.mixed).sum()
        fits_batch = (n_active <= N_POPULATIONS) & (target.n_replicates > N_POPULATIONS)
        may_move = done + schedule.n_moves <= max_moves
        return (n_active > 0) & ~((done >= moves_before_batching) & fits_batch) & may_move

    def advance(carry):
        done, state, monitor = carry
        tempering = state.eta != eta
        step = lambda: change_eta(keys, state, jnp.asarray(eta), schedule)
        changed = jax.lax.cond(tempering.any(), step, lambda: state)
        moved = move_repeatedly(keys, target, changed, schedule.kernel, schedule.n_moves)
        state = freeze_replicates(~tempering & monitor.mixed, state, moved)
        return done + schedule.n_moves, state, monitor.update(state)

    return jax.lax.while_loop(not_done, advance, (jnp.zeros((), np.int32), state, monitor))


@jit
def _select_replicates(
    state: TemperingState, monitor: MixingMonitor, indices: Int[Array, " R"]
) -> tuple[TemperingState, MixingMonitor]:
    selected = jax.tree.map(lambda leaf: leaf[indices], _without_particles(state))
    selected_monitor = MixingMonitor(
        monitor.start[:, indices],
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
