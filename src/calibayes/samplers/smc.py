"""The sampler of GPC-SMC: particles move from one learning rate to the next (Tanaka 2024, section 2.3, figure 3)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from calibayes._backend.arguments import fraction, integer, positive
from calibayes._backend.functions import as_float
from calibayes._backend.jit import jit, light_jit
from calibayes._backend.rng import fold_key, replicate_keys, split_key
from calibayes._core.particles import Particles, ess, normalise
from calibayes._core.target import Target, log_density
from calibayes.kernels import RWMH, Kernel
from calibayes.samplers import tempering
from calibayes.samplers.base import OnStep, Sampler, SamplerInfo, Snapshot
from calibayes.samplers.initial import InitialDraws, temper_from_prior
from calibayes.samplers.mixing import rejuvenate_until_mixed
from calibayes.samplers.tempering import (
    TemperingSchedule,
    TemperingState,
    freeze_replicates,
    init_tempering,
    rejuvenate,
    temper_steps,
)


@dataclass(frozen=True)
class SMCConfig:
    """Constants of the snapshots, which average the coverage curve over further particles at one learning rate."""

    n_snapshots: int = 8
    """Number of snapshots, the current particles included. Order-of-magnitude choice: with 1,000 particles, the
    Monte Carlo error of a critical level is then small compared with the standard error of the coverage on 500
    replicates."""
    moves_per_snapshot: int = 8
    """Moves of the kernel between two snapshots, so that they are not too strongly correlated."""


CONFIG = SMCConfig()

_OPTIONS = {
    "start": ("mcmc", "prior"),
    "resampling": ("stratified", "systematic"),
    "initial_weights": ("uniform", "density"),
}

_ess = light_jit(ess)


class SMCState(eqx.Module):
    """State of `SMC`."""

    tempering: TemperingState
    """Particles at the current learning rate."""
    key: PRNGKeyArray
    """Key of the temperature steps."""
    snapshot_key: PRNGKeyArray
    """Key of the moves that yield further particles at the same learning rate (`SMC.snapshots`)."""
    mixed: Bool[Array, " B"]
    """Whether the initial particles of a replicate passed the test of mixing, or were tempered from the prior."""

    @property
    def particles(self) -> Particles:
        return self.tempering.particles


class SMC(Sampler[SMCState]):
    """Adaptive sequential Monte Carlo (called ASMC* by Tanaka 2024) on every replicate, the sampler of GPC-SMC.

    The particles of one learning rate are moved to the next by temperature steps: reweighting, resampling, and moves of
    a Markov kernel (Tanaka 2024, sections 2.2 and 2.3).

    Parameters
    ----------
    n_particles : int
        Number of particles per replicate. Default: 1000.
    ess_target : float
        Effective sample size after a temperature step, relative to the one before it, between 0 and 1; xi in
        Tanaka (2024). Default: 0.999.
    resample_below : float
        Resample when the effective sample size is below this share of `n_particles`; psi in Tanaka (2024).
        Default: 0.5.
    n_moves : int
        Moves of the kernel per temperature step. Default: 1.
    max_steps : int
        Largest number of temperature steps from one learning rate to the next. Default: 5000.
    kernel : Kernel
        Markov kernel that moves the particles. Default: `kernels.RWMH()`.
    start : {"mcmc", "prior"}
        How the particles get to the first learning rate. `"mcmc"` starts every replicate from draws of the
        posterior on the data, and moves them by a Markov kernel until they have mixed, as in Tanaka (2024); `"prior"`
        tempers every replicate from the prior. Default: `"mcmc"`.
    resampling : {"stratified", "systematic"}
        Resampling scheme. Default: `"stratified"`, as in Tanaka (2024).
    initial_weights : {"uniform", "density"}
        `"density"` weights the initial draws by their posterior density, as printed in Tanaka (2024); this samples
        the square of the posterior and is available only for comparison. Default: `"uniform"`, which is correct.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.

    Examples
    --------
    >>> import calibayes as cb
    >>> sampler = cb.SMC(n_particles=500, ess_target=0.99)
    >>> sampler.size(dim=3)
    500
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
        for name, options in _OPTIONS.items():
            if getattr(self, name) not in options:
                raise ValueError(f"{name} must be one of {', '.join(options)}; got {getattr(self, name)!r}.")

    @property
    def reads_data(self) -> bool:
        return self.kernel.reads_data

    def size(self, dim: int) -> int:
        return self.n_particles

    def check(self, target: Target) -> None:
        self.kernel.check(target)

    def init(self, key: PRNGKeyArray, target: Target, initial: InitialDraws, eta: float) -> SMCState:
        mix_key, prior_key, temper_key, snapshot_key = split_key(key, 4)
        if self.start == "prior":
            state = temper_from_prior(prior_key, target, eta, self.n_particles)
            state, mixed = rejuvenate_until_mixed(mix_key, target, state.particles, eta, min_moves=0)
        else:
            particles = _on_all_replicates(target, initial.particles.theta[:, 0, : self.n_particles])
            state, mixed = rejuvenate_until_mixed(mix_key, target, particles, eta)
            if not np.all(mixed) and hasattr(target.prior, "sample"):
                # These posteriors are too far from that on the data: temper from the prior instead.
                state = freeze_replicates(mixed, state, temper_from_prior(prior_key, target, eta, self.n_particles))
                mixed = jnp.ones(target.n_replicates, bool)
        state = _with_kernel(state, self.kernel, as_float(eta), self.initial_weights == "density")
        return SMCState(state, temper_key, snapshot_key, mixed)

    def move(self, target: Target, state: SMCState, eta: float, on_step: OnStep) -> SMCState:
        keys = replicate_keys(state.key, target.n_replicates)
        schedule = TemperingSchedule(self.kernel, self.ess_target, self.resample_below, self.n_moves, self.resampling)
        tempered = replace(state.tempering, steps=jnp.zeros_like(state.tempering.steps))
        for done in range(0, self.max_steps, tempering.CONFIG.steps_per_call):
            n_steps = jnp.asarray(min(tempering.CONFIG.steps_per_call, self.max_steps - done))
            tempered = temper_steps(keys, target, tempered, as_float(eta), schedule, n_steps)
            share_reached = float((np.asarray(tempered.eta) == np.asarray(as_float(eta))).mean())
            on_step(share_reached)
            if share_reached == 1:
                break
        return replace(state, tempering=tempered)

    def snapshots(self, target: Target, state: SMCState) -> Iterator[Snapshot]:
        current = state.tempering
        keys = replicate_keys(fold_key(state.snapshot_key, int(np.max(current.moves))), target.n_replicates)
        n_moves, none = jnp.asarray(CONFIG.moves_per_snapshot), jnp.zeros(target.n_replicates, bool)
        yield Snapshot(current.particles.replicate(0), current.particles)
        for _ in range(CONFIG.n_snapshots - 1):
            current = rejuvenate(keys, target, current, self.kernel, n_moves, none)
            yield Snapshot(current.particles.replicate(0), current.particles)

    def info(self, state: SMCState, eta: float) -> SamplerInfo:
        current = state.tempering
        return SamplerInfo(
            not_reached=np.asarray(current.eta) != np.asarray(as_float(eta)),
            not_mixed=~np.asarray(state.mixed),
            invalid=int(np.sum(current.invalid)),
            steps=int(np.max(current.steps)),
            acceptance=float(np.mean(current.acceptance)),
            ess=np.asarray(_ess(current.particles.log_weights)),
        )


@jit
def _on_all_replicates(target: Target, theta: Float[Array, "K M"]) -> Particles:
    return target.evaluate(jnp.broadcast_to(theta[:, None], (target.dim, target.n_replicates, theta.shape[-1])))


@jit
def _with_kernel(state: TemperingState, kernel: Kernel, eta: Float[Array, ""], by_density: bool) -> TemperingState:
    """Return the particles of `state` as a new state for another kernel."""
    particles = state.particles
    log_weights = log_density(particles, state.eta) if by_density else particles.log_weights
    particles = particles.with_log_weights(normalise(jnp.where(jnp.isfinite(particles.risk), log_weights, -jnp.inf)))
    invalid = state.invalid + jnp.isnan(particles.risk).sum(-1)
    return replace(init_tempering(kernel, particles, eta), invalid=invalid)
