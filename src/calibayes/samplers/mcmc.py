"""GPC-MCMC's sampler: one chain a row at every learning rate (paper, section 2.1, figure 1).

Each run begins where the last one ended, with what its kernel had learned, and warms up anew.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from calibayes._backend.arguments import integer
from calibayes._backend.functions import as_float
from calibayes._backend.jit import jit
from calibayes._backend.rng import replicate_keys
from calibayes._core.convergence import batch_means_ess
from calibayes._core.particles import Particles, covariance, pool, uniform_log_weights
from calibayes._core.target import Target
from calibayes.kernels import RAM, RWMH, CrankNicolson, Kernel
from calibayes.samplers.base import Sampler, SamplerInfo
from calibayes.samplers.initial import InitialDraws

_CHUNK = 500


class MCMCState(eqx.Module):
    """The kept draws of every row's chain at `eta`, and what the next run starts from."""

    particles: Particles
    eta: Float[Array, ""]
    adaptation: Any
    key: PRNGKeyArray
    steps: Int[Array, ""]
    invalid: Int[Array, ""]
    acceptance: Float[Array, ""]


class MCMC(Sampler):
    """`n_draws` kept draws of one chain on every row, after `n_warmup` that adapt the kernel and are dropped.

    The kernel stops adapting with the warm-up, so that the kept chain is Markov.
    """

    n_draws: int = eqx.field(static=True, default=20_000)
    n_warmup: int = eqx.field(static=True, default=2_000)
    kernel: Kernel = eqx.field(default_factory=RAM)

    def __check_init__(self):
        if not isinstance(self.kernel, Kernel):
            raise TypeError(f"kernel must be an instance of a calibayes.kernels.Kernel; got {self.kernel!r}.")
        integer("n_draws", self.n_draws, 1)
        integer("n_warmup", self.n_warmup, 0)
        if isinstance(self.kernel, RWMH | CrankNicolson):
            name = type(self.kernel).__name__
            raise TypeError(f"kernel {name} learns from a population of particles; for a chain use kernels.RAM().")

    def size(self, dim: int) -> int:
        return self.n_draws

    def check(self, target: Target) -> None:
        self.kernel.check(target)
        if self.n_draws <= 2 * target.dim**2:
            raise ValueError(
                f"n_draws must be above {2 * target.dim**2} for {target.dim} parameters, for their effective size to "
                f"be told; got {self.n_draws}."
            )

    def init(self, key: PRNGKeyArray, target: Target, start: InitialDraws, eta: float) -> MCMCState:
        pick_key, walk_key = jax.random.split(key)
        particles, adaptation = _begin(
            replicate_keys(pick_key, target.n_replicates), target, start.particles, self.kernel
        )
        state = MCMCState(
            particles,
            eta=as_float(eta),
            adaptation=adaptation,
            key=walk_key,
            steps=jnp.zeros((), int),
            invalid=jnp.zeros((), int),
            acceptance=jnp.zeros(()),
        )
        return self.move(target, state, eta, lambda _: None)

    def move(self, target: Target, state: MCMCState, eta: float, on_step: Callable[[float], None]) -> MCMCState:
        keys = replicate_keys(state.key, target.n_replicates)
        last = jax.tree.map(lambda leaf: leaf[..., -1:], state.particles)
        at = jnp.full(target.n_replicates, eta)
        adaptation, steps, invalid = state.adaptation, state.steps, state.invalid
        kept: list[Particles] = []
        acceptance = state.acceptance
        total = self.n_warmup + self.n_draws
        for begin, end in _chunks(self.n_warmup, self.n_draws):
            adapt = begin < self.n_warmup
            last, adaptation, chain, info = _run(
                keys, target, at, last, adaptation, steps, self.kernel, end - begin, adapt
            )
            steps, invalid = steps + (end - begin), invalid + info.invalid.sum()
            if not adapt:
                kept.append(chain)
                acceptance = info.acceptance.mean()
            acceptance.block_until_ready()
            on_step(end / total)
        return MCMCState(pool(kept), as_float(eta), adaptation, state.key, steps, invalid, acceptance)

    def info(self, state: MCMCState, eta: float) -> SamplerInfo:
        sizes, stuck = _judge(state.particles)
        none = np.zeros(len(stuck), bool)
        return SamplerInfo(none, np.asarray(stuck), int(state.invalid), 1, float(state.acceptance), np.asarray(sizes))


def _chunks(n_warmup: int, n_draws: int) -> list[tuple[int, int]]:
    """Pieces of the run, short enough to be interrupted, none across the end of the warm-up."""
    edges = [*range(0, n_warmup, _CHUNK), *range(n_warmup, n_warmup + n_draws, _CHUNK), n_warmup + n_draws]
    return list(pairwise(edges))


@jit
def _begin(keys: Key[Array, " B"], target: Target, pilot: Particles, kernel: Kernel) -> tuple[Particles, Any]:
    """Every row at some draw of the pilot's, with the pilot's covariance as a guess at its own."""
    theta = jax.vmap(lambda key: jax.random.choice(key, pilot.theta[:, 0], axis=-1), out_axes=1)(keys)
    guess = covariance(pilot.theta, pilot.weights)
    adaptation = kernel.init(jnp.broadcast_to(guess, (target.n_replicates, *guess.shape[1:])))
    return target.evaluate(theta[:, :, None]), adaptation


@jit
def _run(keys, target, eta, last, adaptation, steps, kernel, length, adapt):
    """`length` steps of every row's chain."""

    def step(carry, i):
        particles, adaptation = carry
        step_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, steps + i)
        particles, adaptation, info = kernel.step(step_keys, target, eta, particles, adaptation, adapt)
        kept = (particles.theta[..., 0], particles.risk[..., 0], particles.log_prior[..., 0])
        return (particles, adaptation), (kept, info)

    (last, adaptation), (kept, info) = jax.lax.scan(step, (last, adaptation), jnp.arange(length))
    theta, risk, log_prior = (jnp.moveaxis(leaf, 0, -1) for leaf in kept)
    chain = Particles(theta, risk, log_prior, uniform_log_weights(risk.shape))
    return last, adaptation, chain, info


@jit
def _judge(chains: Particles) -> tuple[Float[Array, " B"], Bool[Array, " B"]]:
    """The effective size of every row's chain, and whether it never moved."""
    sizes = jax.lax.map(lambda row: batch_means_ess(row.T), jnp.moveaxis(chains.theta, 1, 0))
    return sizes, (chains.risk == chains.risk[:, :1]).all(-1)
