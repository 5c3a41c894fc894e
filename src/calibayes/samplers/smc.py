"""GPC-SMC's sampler: particles carried from one learning rate to the next (paper, section 2.3, figure 3)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray

from calibayes.bootstrap import row_keys
from calibayes.kernels import RWMH, Kernel
from calibayes.particles import Particles, covariance, ess, normalise
from calibayes.samplers.asmc import Ladder, Walkers, climb, start_walking
from calibayes.samplers.base import Reach, Sampler
from calibayes.samplers.start import Pilot, by_mcmc, from_prior
from calibayes.target import Target, evaluate, log_density

_CHUNK = 16


class SMCState(eqx.Module):
    """Walkers at a learning rate, the key of their random numbers, and which rows started well."""

    walkers: Walkers
    key: PRNGKeyArray
    forgot: Bool[Array, " B"]

    @property
    def particles(self) -> Particles:
        return self.walkers.particles


class SMC(Sampler):
    """Adaptive sequential Monte Carlo, ASMC*, on every row.

    `start` is `"mcmc"`, as in the paper, or `"prior"`. `initial_weights="density"` weights the first draws by their
    posterior density as the paper prints it, which squares the posterior; equal weights are right.
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
        for name in ("ess_target", "resample_below"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} must be between 0 and 1, both excluded; got {getattr(self, name)}.")
        for name in ("n_moves", "max_rungs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}.")
        for name, known in (
            ("start", ("mcmc", "prior")),
            ("resampling", ("stratified", "systematic")),
            ("initial_weights", ("uniform", "density")),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}; got {getattr(self, name)!r}.")

    @property
    def n_draws(self) -> int:
        return self.n_particles

    @property
    def n_pilot(self) -> int:
        return max(self.n_particles, super().n_pilot)

    def init(self, key: PRNGKeyArray, target: Target, pilot: Pilot) -> SMCState:
        start_key, walk_key = jax.random.split(key)
        if self.start == "prior":
            begun = from_prior(start_key, target, pilot.eta, self.n_particles)
            forgot = jnp.ones(target.n_rows, bool)
        else:
            shape = (target.dim, target.n_rows, self.n_particles)
            theta = jnp.broadcast_to(pilot.particles.theta[:, :, : self.n_particles], shape)
            begun, forgot = by_mcmc(start_key, target, evaluate(target, theta), pilot.eta)
        particles = begun.particles
        if self.initial_weights == "density":
            particles = particles.with_log_weights(normalise(log_density(particles, begun.eta)))
        guess = covariance(particles.theta, particles.weights)
        walkers = start_walking(self.kernel, particles, pilot.eta, guess)
        invalid = begun.invalid + jnp.isnan(particles.risk).sum(-1)
        return SMCState(replace(walkers, invalid=invalid), walk_key, forgot)

    def move(
        self, target: Target, state: SMCState, eta: float, on_step: Callable[[float], None]
    ) -> SMCState:
        keys = row_keys(state.key, target.n_rows)
        ladder = Ladder(self.kernel, self.ess_target, self.resample_below, self.n_moves, self.resampling)
        walkers = replace(state.walkers, rungs=jnp.zeros_like(state.walkers.rungs))
        for _ in range(-(-self.max_rungs // _CHUNK)):
            walkers = climb(keys, target, walkers, jnp.asarray(eta), ladder, _CHUNK)
            arrived = float((walkers.eta == eta).mean())
            on_step(arrived)
            if arrived == 1:
                break
        return replace(state, walkers=walkers)

    def reach(self, state: SMCState, eta: float) -> Reach:
        walkers = state.walkers
        return Reach(
            short=walkers.eta != eta,
            unmixed=~state.forgot,
            invalid=int(walkers.invalid.sum()),
            rungs=int(walkers.rungs.max()),
            acceptance=float(walkers.acceptance.mean()),
            ess=ess(walkers.particles.log_weights),
        )
