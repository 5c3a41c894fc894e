r"""ASMC*: the adaptive sequential Monte Carlo sampler for generalized posteriors (paper, figure 2).

Weighted particles travel from their learning rate to another, up or down, by rungs. On every row, each rung

1. takes the longest step of eta that leaves an effective size of $\xi\,ESS_{t-1}$, by bisection,
2. reweights, $W_t = w_{t-1}\,q(\theta_{t-1})^{\eta_t - \eta_{t-1}}$,
3. resamples if the effective size fell below $\psi M$, and carries the weights on otherwise,
4. moves the particles by a kernel that leaves the posterior at $\eta_t$ invariant.

Rows climb side by side, each with its own ladder; one that has arrived waits. A row's random numbers come
from its own key and its own count of moves, so its path does not depend on the other rows.
"""

from dataclasses import fields, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from calibayes._backend.jit import jit
from calibayes._core.particles import Particles, choose, covariance, ess, ess_after, resample, reweight
from calibayes._core.target import Target
from calibayes.kernels.base import Kernel

_HALVINGS = 14
_SHORTEST_STEP = 1e-12


class TemperingSchedule(eqx.Module):
    """How the rungs are set."""

    kernel: Kernel
    ess_target: float = eqx.field(static=True)
    resample_below: float = eqx.field(static=True)
    n_moves: int = eqx.field(static=True)
    resampling: str = eqx.field(static=True)


class TemperingState(eqx.Module):
    """Particles on their way: where each row is and what happened to it so far."""

    particles: Particles
    eta: Float[Array, " B"]
    adaptation: Any
    moves: Int[Array, " B"]
    steps: Int[Array, " B"]
    resampled: Int[Array, " B"]
    invalid: Int[Array, " B"]
    acceptance: Float[Array, " B"]


@jit
def init_tempering(kernel: Kernel, particles: Particles, eta: Float[Array, ""]) -> TemperingState:
    """Particles at `eta`, about to leave."""
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


@jit
def temper_steps(
    keys: Key[Array, " B"],
    target: Target,
    walkers: TemperingState,
    eta: Float[Array, ""],
    ladder: TemperingSchedule,
    max_steps: Int[Array, ""] | int,
) -> TemperingState:
    """At most `max_rungs` rungs of every row towards `eta`."""

    def on_the_way(carry):
        rung, walkers = carry
        return (rung < max_steps) & (walkers.eta != eta).any()

    def body(carry):
        rung, walkers = carry
        return rung + 1, _temperature_step(keys, target, walkers, eta, ladder)

    return jax.lax.while_loop(on_the_way, body, (0, walkers))[1]


def _temperature_step(keys, target, walkers, eta, ladder) -> TemperingState:
    active = walkers.eta != eta
    particles = walkers.particles
    step = next_step(particles, eta - walkers.eta, ladder.ess_target)
    eta_next = jnp.where(step == eta - walkers.eta, eta, walkers.eta + step)
    weighted = particles.with_log_weights(reweight(particles.log_weights, particles.risk, step))
    low = active & (ess(weighted.log_weights) < ladder.resample_below * weighted.risk.shape[-1])
    resample_keys = step_keys(keys, 0, walkers.moves)
    weighted = resample(resample_keys, weighted, low, ladder.resampling)
    ready = replace(
        walkers,
        particles=weighted,
        eta=eta_next,
        steps=walkers.steps + 1,
        resampled=walkers.resampled + low.astype(int),
    )
    moved = jax.lax.fori_loop(0, ladder.n_moves, lambda _, w: move(keys, target, w, ladder.kernel), ready)
    return freeze_replicates(~active, walkers, moved)


def next_step(particles: Particles, distance: Float[Array, " B"], ess_target: float) -> Float[Array, " B"]:
    r"""The step of eta, at most `distance`, that brings the effective size down to `ess_target` times its value.

    $ESS(\eta)$ is solved by bisection on the logarithm of the step, which has no scale of its own.
    """
    log_weights, risk = particles.log_weights, particles.risk
    wanted = ess_target * ess(log_weights)
    log_low, log_high = jnp.full_like(distance, jnp.log(_SHORTEST_STEP)), jnp.zeros_like(distance)

    def halve(_, bracket):
        low, high = bracket
        middle = 0.5 * (low + high)
        enough = ess_after(log_weights, risk, jnp.exp(middle) * distance) >= wanted
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    low, _ = jax.lax.fori_loop(0, _HALVINGS, halve, (log_low, log_high))
    arrives = ess_after(log_weights, risk, distance) >= wanted
    return jnp.where(arrives, distance, jnp.exp(low) * distance)


def move(keys: Key[Array, " B"], target: Target, walkers: TemperingState, kernel: Kernel) -> TemperingState:
    """One move of the kernel at every row's own learning rate."""
    move_keys = step_keys(keys, 1, walkers.moves)
    particles, adaptation, info = kernel.step(
        move_keys, target, walkers.eta, walkers.particles, walkers.adaptation, adapt=True
    )
    return replace(
        walkers,
        particles=particles,
        adaptation=adaptation,
        moves=walkers.moves + 1,
        invalid=walkers.invalid + info.invalid,
        acceptance=info.acceptance,
    )


@jit
def rejuvenate(
    keys: Key[Array, " B"],
    target: Target,
    walkers: TemperingState,
    kernel: Kernel,
    n_moves: Int[Array, ""] | int,
    still: Bool[Array, " B"],
) -> TemperingState:
    """Some moves of every row where it is, but for rows that keep still."""
    moved = jax.lax.fori_loop(0, n_moves, lambda _, w: move(keys, target, w, kernel), walkers)
    return freeze_replicates(still, walkers, moved)


def freeze_replicates(still: Bool[Array, " B"], before: TemperingState, after: TemperingState) -> TemperingState:
    """`after`, but rows of `still` as they were."""

    def rows(old, new):
        return jnp.where(still.reshape(-1, *(1,) * (new.ndim - 1)), old, new)

    others = [f.name for f in fields(TemperingState) if f.name != "particles"]
    kept = {name: jax.tree.map(rows, getattr(before, name), getattr(after, name)) for name in others}
    return TemperingState(choose(still, before.particles, after.particles), **kept)


def step_keys(keys: Key[Array, " B"], stream: int, count: Int[Array, " B"]) -> Key[Array, " B"]:
    """A key for every row that differs with the row's count of moves and between streams."""
    return jax.vmap(lambda key, moves: jax.random.fold_in(jax.random.fold_in(key, stream), moves))(keys, count)
