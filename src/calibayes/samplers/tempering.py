r"""ASMC*: the adaptive sequential Monte Carlo sampler for generalized posteriors (Tanaka 2024, section 2.2, figure 2).

Weighted particles move from one learning rate to another, up or down, in temperature steps. On every replicate, each
step

1. takes the longest step of eta that leaves an effective sample size of $\xi\,ESS_{t-1}$, by bisection,
2. reweights, $W_t = w_{t-1}\,q(\theta_{t-1})^{\eta_t - \eta_{t-1}}$,
3. resamples if the effective sample size is below $\psi M$, and keeps the weights otherwise,
4. moves the particles by a Markov kernel that leaves the posterior at $\eta_t$ invariant.

All replicates advance together, each with its own temperature steps; a replicate that has reached its learning rate
waits. The random numbers of a replicate depend only on its own key and its own number of moves, so its path does not
depend on the other replicates.
"""

from dataclasses import dataclass, fields, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from calibayes._backend.functions import host_array
from calibayes._backend.jit import jit
from calibayes._backend.rng import fold_in
from calibayes._core.particles import Particles, choose, covariance, ess, ess_after, resample, reweight_with_ess
from calibayes._core.target import Target
from calibayes.kernels.base import Kernel
from calibayes.kernels.crank_nicolson import CrankNicolson, initial_adaptation


@dataclass(frozen=True)
class TemperingConfig:
    """Tuning constants of the tempering algorithm."""

    bisection_steps: int = 14
    """Bisections of the logarithm of a step of eta. With `min_relative_step` they determine the step to a factor of
    1.002, which changes the effective sample size far less than its Monte Carlo error."""
    min_relative_step: float = 1e-12
    """Smallest step of eta, relative to the remaining distance. Small enough for the first step from a diffuse prior,
    where the risk varies over many orders of magnitude."""
    steps_per_call: int = 16
    """Temperature steps in one call of a compiled program; between calls a run reports progress and can be interrupted.
    Does not change results."""


CONFIG = TemperingConfig()


class TemperingSchedule(eqx.Module):
    """Settings of the temperature steps; see `calibayes.samplers.SMC` for their meaning."""

    kernel: Kernel
    ess_target: float = eqx.field(static=True)
    resample_below: float = eqx.field(static=True)
    n_moves: int = eqx.field(static=True)
    resampling: str = eqx.field(static=True)


COARSE_SCHEDULE = TemperingSchedule(
    CrankNicolson(), ess_target=0.5, resample_below=1.0, n_moves=4, resampling="stratified"
)
"""Schedule from the prior, and between distant learning rates. Each step halves the effective sample size and
resamples, so that the weights are always equal; four Crank-Nicolson moves separate the copies again."""


class TemperingState(eqx.Module):
    """Particles on every replicate, and the history of each replicate."""

    particles: Particles
    eta: Float[Array, " B"]
    """Current learning rate."""
    adaptation: PyTree[Array]
    """Adaptation of the kernel."""
    moves: Int[Array, " B"]
    """Number of moves of the kernel so far."""
    steps: Int[Array, " B"]
    """Number of temperature steps so far."""
    resampled: Int[Array, " B"]
    """Number of resampling steps so far."""
    invalid: Int[Array, " B"]
    """Number of proposals so far at which the loss was NaN."""
    acceptance: Float[Array, " B"]
    """Acceptance rate of the last move."""


@jit
def init_tempering(kernel: Kernel, particles: Particles, eta: Float[Array, ""]) -> TemperingState:
    """Return the state of particles that represent the posteriors at `eta`."""
    n_replicates = particles.risk.shape[0]
    zero = jnp.zeros(n_replicates, int)
    return TemperingState(
        particles,
        jnp.full(n_replicates, eta),
        kernel.init(covariance(particles.theta, particles.weights)),
        moves=zero,
        steps=zero,
        resampled=zero,
        invalid=zero,
        acceptance=jnp.zeros(n_replicates),
    )


def init_coarse(particles: Particles, eta: float) -> TemperingState:
    """Return the state of particles at `eta` for the kernel of `COARSE_SCHEDULE`, without compiling anything."""
    dim, n_replicates, _ = particles.theta.shape
    zero = np.zeros(n_replicates, int)
    history = {
        "eta": np.full(n_replicates, host_array(eta)),
        "adaptation": initial_adaptation(n_replicates, dim),
        "acceptance": np.zeros(n_replicates, particles.theta.dtype),
    }
    counts = dict.fromkeys(("moves", "steps", "resampled", "invalid"), zero)
    return TemperingState(particles, **jax.device_put(history | counts))


@jit
def temper_steps(
    keys: Key[Array, " B"],
    target: Target,
    state: TemperingState,
    eta: Float[Array, ""],
    schedule: TemperingSchedule,
    max_steps: Int[Array, ""] | int,
) -> TemperingState:
    """Take at most `max_steps` temperature steps towards `eta` on every replicate."""

    def not_done(carry):
        step, state = carry
        return (step < max_steps) & (state.eta != eta).any()

    def body(carry):
        step, state = carry
        return step + 1, _temperature_step(keys, target, state, eta, schedule)

    return jax.lax.while_loop(not_done, body, (0, state))[1]


def _temperature_step(
    keys: Key[Array, " B"], target: Target, state: TemperingState, eta: Float[Array, ""], schedule: TemperingSchedule
) -> TemperingState:
    moved = move_repeatedly(keys, target, change_eta(keys, state, eta, schedule), schedule.kernel, schedule.n_moves)
    return freeze_replicates(state.eta == eta, state, moved)


def change_eta(
    keys: Key[Array, " B"], state: TemperingState, eta: Float[Array, ""], schedule: TemperingSchedule
) -> TemperingState:
    """Reweight the particles by one step towards `eta`, and resample them if necessary.

    Replicates at `eta` keep their particles.
    """
    active = state.eta != eta
    particles = state.particles
    step = next_step(particles, eta - state.eta, schedule.ess_target)
    eta_next = jnp.where(step == eta - state.eta, eta, state.eta + step)
    log_weights, sizes = reweight_with_ess(particles.log_weights, particles.risk, step)
    weighted = particles.with_log_weights(log_weights)
    degenerate = active & (sizes < schedule.resample_below * weighted.risk.shape[-1])
    resample_keys = step_keys(keys, 0, state.moves)
    return replace(
        state,
        particles=resample(resample_keys, weighted, degenerate, schedule.resampling),
        eta=eta_next,
        steps=state.steps + active.astype(int),
        resampled=state.resampled + degenerate.astype(int),
    )


def next_step(particles: Particles, distance: Float[Array, " B"], ess_target: float) -> Float[Array, " B"]:
    r"""Return the step of eta, at most `distance`, that multiplies the effective sample size by `ess_target`.

    Solves $ESS(\eta_t) = \xi\,ESS_{t-1}$ by bisection on the logarithm of the step, because the order of magnitude of
    the step is unknown.
    """
    log_weights, risk = particles.log_weights, particles.risk
    min_ess = ess_target * ess(log_weights)
    log_low, log_high = jnp.full_like(distance, jnp.log(CONFIG.min_relative_step)), jnp.zeros_like(distance)

    def bisect(i, bracket):
        low, high = bracket
        # The first step tries the whole distance.
        middle = jnp.where(i == 0, high, 0.5 * (low + high))
        enough = ess_after(log_weights, risk, jnp.exp(middle) * distance) >= min_ess
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    low, _ = jax.lax.fori_loop(0, 1 + CONFIG.bisection_steps, bisect, (log_low, log_high))
    return jnp.where(low == 0, distance, jnp.exp(low) * distance)


@jit
def rejuvenate(
    keys: Key[Array, " B"],
    target: Target,
    state: TemperingState,
    kernel: Kernel,
    n_moves: Int[Array, ""] | int,
    frozen: Bool[Array, " B"],
) -> TemperingState:
    """Make `n_moves` moves on every replicate at its current learning rate, except on the `frozen` ones."""
    return freeze_replicates(frozen, state, move_repeatedly(keys, target, state, kernel, n_moves))


def move_repeatedly(
    keys: Key[Array, " B"], target: Target, state: TemperingState, kernel: Kernel, n_moves: Int[Array, ""] | int
) -> TemperingState:
    """Make `n_moves` moves on every replicate at its current learning rate."""
    return jax.lax.fori_loop(0, n_moves, lambda _, state: _move_once(keys, target, state, kernel), state)


def _move_once(keys: Key[Array, " B"], target: Target, state: TemperingState, kernel: Kernel) -> TemperingState:
    move_keys = step_keys(keys, 1, state.moves)
    particles, adaptation, info = kernel.step(
        move_keys, target, state.eta, state.particles, state.adaptation, adapt=True
    )
    return replace(
        state,
        particles=particles,
        adaptation=adaptation,
        moves=state.moves + 1,
        invalid=state.invalid + info.invalid,
        acceptance=info.acceptance,
    )


def freeze_replicates(frozen: Bool[Array, " B"], before: TemperingState, after: TemperingState) -> TemperingState:
    """Return `after`, with the `frozen` replicates as they are in `before`."""

    def select(old, new):
        return jnp.where(frozen.reshape(-1, *(1,) * (new.ndim - 1)), old, new)

    names = [f.name for f in fields(TemperingState) if f.name != "particles"]
    others = {name: jax.tree.map(select, getattr(before, name), getattr(after, name)) for name in names}
    return TemperingState(choose(frozen, before.particles, after.particles), **others)


def step_keys(keys: Key[Array, " B"], stream: int, count: Int[Array, " B"]) -> Key[Array, " B"]:
    """Return a key for every replicate that is unique to the stream and to the replicate's count."""
    return fold_in(fold_in(keys, np.array(stream, np.uint32)), count)
