"""GPC-SMC's sampler: particles carried from one learning rate to the next (paper, section 2.3, figure 3)."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from calibayes.functions import as_float
from calibayes.given import fraction, integer, positive
from calibayes.kernels import RWMH, Kernel
from calibayes.noise import row_keys
from calibayes.particles import Particles, ess, normalise
from calibayes.samplers.asmc import Ladder, Walkers, climb, keep_still, start_walking, stay
from calibayes.samplers.base import Reach, Sampler, Snapshot
from calibayes.samplers.start import Pilot, by_mcmc, from_prior
from calibayes.target import Target, log_density
from calibayes.together import jit

_CHUNK = 16
_SNAPSHOTS = 8
_SNAPSHOT_MOVES = 8

_ess = jax.jit(ess)


class SMCState(eqx.Module):
    """Walkers at a learning rate, the keys of their random numbers, and which rows started well."""

    walkers: Walkers
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
    max_rungs: int = eqx.field(static=True, default=5000)
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
        for name in ("n_particles", "n_moves", "max_rungs"):
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

    def init(self, key: PRNGKeyArray, target: Target, start: Pilot, eta: float) -> SMCState:
        start_key, prior_key, walk_key, snapshot_key = jax.random.split(key, 4)
        if self.start == "prior":
            begun = from_prior(prior_key, target, eta, self.n_particles)
            begun, settled = by_mcmc(start_key, target, begun.particles, eta, at_least=0)
        else:
            particles = _on_every_row(target, start.particles.theta[:, 0, : self.n_particles])
            begun, settled = by_mcmc(start_key, target, particles, eta)
            if not np.all(settled) and hasattr(target.model.prior, "sample"):
                # Too far from the data's posterior to walk there: come from the prior instead.
                begun = keep_still(settled, begun, from_prior(prior_key, target, eta, self.n_particles))
                settled = jnp.ones(target.n_rows, bool)
        walkers = _leave(begun, self.kernel, as_float(eta), self.initial_weights == "density")
        return SMCState(walkers, walk_key, snapshot_key, settled)

    def move(self, target: Target, state: SMCState, eta: float, on_step: Callable[[float], None]) -> SMCState:
        keys = row_keys(state.key, target.n_rows)
        ladder = Ladder(self.kernel, self.ess_target, self.resample_below, self.n_moves, self.resampling)
        walkers = replace(state.walkers, rungs=jnp.zeros_like(state.walkers.rungs))
        for done in range(0, self.max_rungs, _CHUNK):
            rungs = jnp.asarray(min(_CHUNK, self.max_rungs - done))
            walkers = climb(keys, target, walkers, as_float(eta), ladder, rungs)
            arrived = float((np.asarray(walkers.eta) == np.asarray(as_float(eta))).mean())
            on_step(arrived)
            if arrived == 1:
                break
        return replace(state, walkers=walkers)

    def snapshots(self, target: Target, state: SMCState) -> Iterator[Snapshot]:
        walkers = state.walkers
        keys = row_keys(jax.random.fold_in(state.snapshot_key, int(np.max(walkers.moves))), target.n_rows)
        n_moves, none = jnp.asarray(_SNAPSHOT_MOVES), jnp.zeros(target.n_rows, bool)
        yield Snapshot(walkers.particles.row(0), walkers.particles)
        for _ in range(_SNAPSHOTS - 1):
            walkers = stay(keys, target, walkers, self.kernel, n_moves, none)
            yield Snapshot(walkers.particles.row(0), walkers.particles)

    def reach(self, state: SMCState, eta: float) -> Reach:
        walkers = state.walkers
        return Reach(
            short=np.asarray(walkers.eta) != np.asarray(as_float(eta)),
            unmixed=~np.asarray(state.settled),
            invalid=int(np.sum(walkers.invalid)),
            rungs=int(np.max(walkers.rungs)),
            acceptance=float(np.mean(walkers.acceptance)),
            ess=np.asarray(_ess(walkers.particles.log_weights)),
        )


@jit
def _on_every_row(target: Target, theta: Float[Array, "K M"]) -> Particles:
    return target.evaluate(jnp.broadcast_to(theta[:, None], (target.dim, target.n_rows, theta.shape[-1])))


@eqx.filter_jit
def _leave(begun: Walkers, kernel: Kernel, eta: Float[Array, ""], by_density: bool) -> Walkers:
    """Walkers of `kernel` from the particles a start ended with."""
    particles = begun.particles
    log_weights = log_density(particles, begun.eta) if by_density else particles.log_weights
    particles = particles.with_log_weights(normalise(jnp.where(jnp.isfinite(particles.risk), log_weights, -jnp.inf)))
    invalid = begun.invalid + jnp.isnan(particles.risk).sum(-1)
    return replace(start_walking(kernel, particles, eta), invalid=invalid)
