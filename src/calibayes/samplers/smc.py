"""GPC-SMC's sampler: particles carried from one learning rate to the next (paper, section 2.3, figure 3)."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from calibayes._backend.arguments import fraction, integer, positive
from calibayes._backend.functions import as_float
from calibayes._backend.jit import jit
from calibayes._backend.rng import replicate_keys
from calibayes._core.particles import Particles, ess, normalise
from calibayes._core.target import Target, log_density
from calibayes.kernels import RWMH, Kernel
from calibayes.samplers.base import Sampler, SamplerInfo, Snapshot
from calibayes.samplers.initial import InitialDraws, rejuvenate_until_mixed, temper_from_prior
from calibayes.samplers.tempering import (
    TemperingSchedule,
    TemperingState,
    freeze_replicates,
    init_tempering,
    rejuvenate,
    temper_steps,
)

_CHUNK = 16
_SNAPSHOTS = 8
_SNAPSHOT_MOVES = 8

_ess = jax.jit(ess)


class SMCState(eqx.Module):
    """Walkers at a learning rate, the keys of their random numbers, and which rows started well."""

    walkers: TemperingState
    key: PRNGKeyArray
    snapshot_key: PRNGKeyArray
    settled: Bool[Array, " B"]

    @property
    def particles(self) -> Particles:
        return self.walkers.particles


class SMC(Sampler):
    """Adaptive sequential Monte Carlo, ASMC*, on every row.

    `start` is `"mcmc"`, as in the paper, or `"prior"`, by a coarse ladder of its own. `initial_weights="density"`
    weights the first draws by their posterior density as the paper prints it, which squares the posterior; equal
    weights are right.
    """

    n_particles: int = eqx.field(static=True, default=1000)
    ess_target: float = eqx.field(static=True, default=0.999)
    resample_below: float = eqx.field(static=True, default=0.5)
    n_moves: int = eqx.field(static=True, default=1)
    max_steps: int = eqx.field(static=True, default=5000)
    kernel: Kernel = eqx.field(default_factory=RWMH)
    start: Literal["mcmc", "prior"] = eqx.field(static=True, default="mcmc")
    resampling: Literal["stratified", "systematic"] = eqx.field(static=True, default="stratified")
    initial_weights: Literal["uniform", "density"] = eqx.field(static=True, default="uniform")

    def __check_init__(self):
        if not isinstance(self.kernel, Kernel):
            raise TypeError(f"kernel must be an instance of a calibayes.kernels.Kernel; got {self.kernel!r}.")
        fraction("ess_target", self.ess_target)
        if not positive("resample_below", self.resample_below) <= 1:
            raise ValueError(f"resample_below must be above 0 and at most 1; got {self.resample_below}.")
        for name in ("n_particles", "n_moves", "max_steps"):
            integer(name, getattr(self, name), 1)
        for name, known in (
            ("start", ("mcmc", "prior")),
            ("resampling", ("stratified", "systematic")),
            ("initial_weights", ("uniform", "density")),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}; got {getattr(self, name)!r}.")

    def size(self, dim: int) -> int:
        return self.n_particles

    def check(self, target: Target) -> None:
        self.kernel.check(target)

    def init(self, key: PRNGKeyArray, target: Target, start: InitialDraws, eta: float) -> SMCState:
        start_key, prior_key, walk_key, snapshot_key = jax.random.split(key, 4)
        if self.start == "prior":
            begun = temper_from_prior(prior_key, target, eta, self.n_particles)
            begun, settled = rejuvenate_until_mixed(start_key, target, begun.particles, eta, at_least=0)
        else:
            particles = _on_every_row(target, start.particles.theta[:, 0, : self.n_particles])
            begun, settled = rejuvenate_until_mixed(start_key, target, particles, eta)
            if not np.all(settled) and hasattr(target.prior, "sample"):
                # Too far from the data's posterior to walk there: come from the prior instead.
                begun = freeze_replicates(settled, begun, temper_from_prior(prior_key, target, eta, self.n_particles))
                settled = jnp.ones(target.n_replicates, bool)
        walkers = _leave(begun, self.kernel, as_float(eta), self.initial_weights == "density")
        return SMCState(walkers, walk_key, snapshot_key, settled)

    def move(self, target: Target, state: SMCState, eta: float, on_step: Callable[[float], None]) -> SMCState:
        keys = replicate_keys(state.key, target.n_replicates)
        ladder = TemperingSchedule(self.kernel, self.ess_target, self.resample_below, self.n_moves, self.resampling)
        walkers = replace(state.walkers, steps=jnp.zeros_like(state.walkers.steps))
        for done in range(0, self.max_steps, _CHUNK):
            steps = jnp.asarray(min(_CHUNK, self.max_steps - done))
            walkers = temper_steps(keys, target, walkers, as_float(eta), ladder, steps)
            arrived = float((np.asarray(walkers.eta) == np.asarray(as_float(eta))).mean())
            on_step(arrived)
            if arrived == 1:
                break
        return replace(state, walkers=walkers)

    def snapshots(self, target: Target, state: SMCState) -> Iterator[Snapshot]:
        walkers = state.walkers
        keys = replicate_keys(jax.random.fold_in(state.snapshot_key, int(np.max(walkers.moves))), target.n_replicates)
        n_moves, none = jnp.asarray(_SNAPSHOT_MOVES), jnp.zeros(target.n_replicates, bool)
        yield Snapshot(walkers.particles.replicate(0), walkers.particles)
        for _ in range(_SNAPSHOTS - 1):
            walkers = rejuvenate(keys, target, walkers, self.kernel, n_moves, none)
            yield Snapshot(walkers.particles.replicate(0), walkers.particles)

    def info(self, state: SMCState, eta: float) -> SamplerInfo:
        walkers = state.walkers
        return SamplerInfo(
            not_reached=np.asarray(walkers.eta) != np.asarray(as_float(eta)),
            not_mixed=~np.asarray(state.settled),
            invalid=int(np.sum(walkers.invalid)),
            steps=int(np.max(walkers.steps)),
            acceptance=float(np.mean(walkers.acceptance)),
            ess=np.asarray(_ess(walkers.particles.log_weights)),
        )


@jit
def _on_every_row(target: Target, theta: Float[Array, "K M"]) -> Particles:
    return target.evaluate(jnp.broadcast_to(theta[:, None], (target.dim, target.n_replicates, theta.shape[-1])))


@eqx.filter_jit
def _leave(begun: TemperingState, kernel: Kernel, eta: Float[Array, ""], by_density: bool) -> TemperingState:
    """Walkers of `kernel` from the particles a start ended with."""
    particles = begun.particles
    log_weights = log_density(particles, begun.eta) if by_density else particles.log_weights
    particles = particles.with_log_weights(normalise(jnp.where(jnp.isfinite(particles.risk), log_weights, -jnp.inf)))
    invalid = begun.invalid + jnp.isnan(particles.risk).sum(-1)
    return replace(init_tempering(kernel, particles, eta), invalid=invalid)
