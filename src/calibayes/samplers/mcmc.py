"""The sampler of GPC-MCMC: one Markov chain per replicate at every learning rate (Tanaka 2024, section 2.1, figure 1).

Each run starts where the previous one ended, with the adapted kernel, and begins with a new warm-up.
"""

from dataclasses import dataclass
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray, PyTree

from calibayes._backend.arguments import integer
from calibayes._backend.functions import as_float
from calibayes._backend.jit import jit
from calibayes._backend.rng import fold_in, replicate_keys, split_key, with_unrolled_threefry
from calibayes._core.convergence import batch_means_ess
from calibayes._core.particles import Particles, covariance, pool, uniform_log_weights
from calibayes._core.target import Target
from calibayes.kernels import RAM, Kernel
from calibayes.kernels.base import KernelInfo
from calibayes.samplers.base import OnStep, Sampler, SamplerInfo
from calibayes.samplers.initial import InitialDraws


@dataclass(frozen=True)
class MCMCConfig:
    """Constants of the chains."""

    draws_per_call: int = 500
    """Draws in one call of a compiled program; between calls a run reports progress and can be interrupted. Does not
    change results."""


CONFIG = MCMCConfig()


class MCMCState(eqx.Module):
    """State of `MCMC`."""

    particles: Particles
    """Kept draws of the chain of every replicate."""
    eta: Float[Array, ""]
    adaptation: PyTree[Array]
    """Adaptation of the kernel."""
    key: PRNGKeyArray
    steps: Int[Array, ""]
    """Number of steps of the chains so far, at all learning rates."""
    invalid: Int[Array, ""]
    """Number of proposals so far at which the loss was NaN."""
    acceptance: Float[Array, ""]
    """Mean acceptance rate of the draws kept at the latest learning rate."""


class MCMC(Sampler[MCMCState]):
    """One Markov chain on every replicate, the sampler of GPC-MCMC.

    The kernel adapts during the warm-up only, so that the kept draws are those of a Markov chain.

    Parameters
    ----------
    n_draws : int
        Number of kept draws per replicate and learning rate. Default: 20,000, as in Tanaka (2024).
    n_warmup : int
        Number of discarded draws, during which the kernel adapts. Default: 2,000.
    kernel : Kernel
        Markov kernel that can move a single chain. Default: `kernels.RAM()`.

    Raises
    ------
    TypeError
        If `kernel` is not a kernel, or needs a population of particles.
    ValueError
        If `n_draws` or `n_warmup` is out of range.

    Examples
    --------
    >>> import calibayes as cb
    >>> sampler = cb.MCMC(n_draws=5_000, n_warmup=500)
    >>> sampler.size(dim=3)
    5000
    """

    n_draws: int = eqx.field(static=True, default=20_000)
    n_warmup: int = eqx.field(static=True, default=2_000)
    kernel: Kernel = eqx.field(default_factory=RAM)

    def __check_init__(self):
        if not isinstance(self.kernel, Kernel):
            raise TypeError(f"kernel must be an instance of a calibayes.kernels.Kernel; got {self.kernel!r}.")
        integer("n_draws", self.n_draws, 1)
        integer("n_warmup", self.n_warmup, 0)
        if self.kernel.needs_particles:
            name = type(self.kernel).__name__
            raise TypeError(f"kernel {name} learns from a population of particles; for a chain use kernels.RAM().")

    @property
    def reads_data(self) -> bool:
        return self.kernel.reads_data

    def size(self, dim: int) -> int:
        return self.n_draws

    def check(self, target: Target) -> None:
        self.kernel.check(target)
        if self.n_draws <= 2 * target.dim**2:
            raise ValueError(
                f"n_draws must be above {2 * target.dim**2} for {target.dim} parameters, so that the effective sample "
                f"size can be estimated; got {self.n_draws}."
            )

    def init(self, key: PRNGKeyArray, target: Target, initial: InitialDraws, eta: float) -> MCMCState:
        choice_key, chain_key = split_key(key)
        particles, adaptation = _initial_chains(
            replicate_keys(choice_key, target.n_replicates), target, initial.particles, self.kernel
        )
        state = MCMCState(
            particles,
            eta=as_float(eta),
            adaptation=adaptation,
            key=chain_key,
            steps=jnp.zeros((), int),
            invalid=jnp.zeros((), int),
            acceptance=jnp.zeros(()),
        )
        return self.move(target, state, eta, lambda _: None)

    def move(self, target: Target, state: MCMCState, eta: float, on_step: OnStep) -> MCMCState:
        keys = replicate_keys(state.key, target.n_replicates)
        last = jax.tree.map(lambda leaf: leaf[..., -1:], state.particles)
        etas = jnp.full(target.n_replicates, eta)
        adaptation, steps, invalid = state.adaptation, state.steps, state.invalid
        kept: list[Particles] = []
        acceptance = state.acceptance
        total = self.n_warmup + self.n_draws
        for begin, end in _segments(self.n_warmup, self.n_draws):
            adapt = begin < self.n_warmup
            last, adaptation, draws, info = _run_chains(
                keys, target, etas, last, adaptation, steps, self.kernel, end - begin, adapt
            )
            steps, invalid = steps + (end - begin), invalid + info.invalid.sum()
            if not adapt:
                kept.append(draws)
                acceptance = info.acceptance.mean()
            acceptance.block_until_ready()
            on_step(end / total)
        return MCMCState(pool(kept), as_float(eta), adaptation, state.key, steps, invalid, acceptance)

    def info(self, state: MCMCState, eta: float) -> SamplerInfo:
        sizes, stuck = _ess_and_stuck(state.particles)
        none = np.zeros(len(stuck), bool)
        return SamplerInfo(none, np.asarray(stuck), int(state.invalid), 1, float(state.acceptance), np.asarray(sizes))


def _segments(n_warmup: int, n_draws: int) -> list[tuple[int, int]]:
    """Split the run into segments of `CONFIG.draws_per_call` draws, none across the end of the warm-up."""
    end, length = n_warmup + n_draws, CONFIG.draws_per_call
    return list(pairwise([*range(0, n_warmup, length), *range(n_warmup, end, length), end]))


@jit
def _initial_chains(
    keys: Key[Array, " B"], target: Target, initial: Particles, kernel: Kernel
) -> tuple[Particles, PyTree[Array]]:
    """Choose a random initial draw for every replicate; kernels start from the covariance of all initial draws."""
    theta = jax.vmap(
        lambda key: jax.random.choice(with_unrolled_threefry(key), initial.theta[:, 0], axis=-1), out_axes=1
    )(keys)
    guess = covariance(initial.theta, initial.weights)
    adaptation = kernel.init(jnp.broadcast_to(guess, (target.n_replicates, *guess.shape[1:])))
    return target.evaluate(theta[:, :, None]), adaptation


@jit
def _run_chains(
    keys: Key[Array, " B"],
    target: Target,
    eta: Float[Array, " B"],
    last: Particles,
    adaptation: PyTree[Array],
    steps: Int[Array, ""],
    kernel: Kernel,
    n_draws: int,
    adapt: bool,
) -> tuple[Particles, PyTree[Array], Particles, KernelInfo]:
    """Continue every chain by `n_draws` steps.

    Returns the last draw, the adaptation, all draws, and their diagnostics.
    """

    def step(carry, i):
        particles, adaptation = carry
        step_keys = fold_in(keys, steps + i)
        particles, adaptation, info = kernel.step(step_keys, target, eta, particles, adaptation, adapt)
        draw = (particles.theta[..., 0], particles.risk[..., 0], particles.log_prior[..., 0])
        return (particles, adaptation), (draw, info)

    (last, adaptation), (draws, info) = jax.lax.scan(step, (last, adaptation), jnp.arange(n_draws))
    theta, risk, log_prior = (jnp.moveaxis(leaf, 0, -1) for leaf in draws)
    return last, adaptation, Particles(theta, risk, log_prior, uniform_log_weights(risk.shape)), info


@jit
def _ess_and_stuck(chains: Particles) -> tuple[Float[Array, " B"], Bool[Array, " B"]]:
    """Return the multivariate effective sample size of every chain, and whether the chain never moved."""
    sizes = jax.lax.map(lambda theta: batch_means_ess(theta.T), jnp.moveaxis(chains.theta, 1, 0))
    return sizes, (chains.risk == chains.risk[:, :1]).all(-1)
