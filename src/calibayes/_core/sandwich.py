r"""What one observation does to the posterior, from its draws alone; and the learning rate that follows from it.

The infinitesimal jackknife: counting observation i once more moves the posterior mean by

$$ I_i = -\eta\,\mathrm{Cov}\{\theta, r_i(\theta)\}, $$

a covariance over the draws (Giordano and Broderick 2023). No gradient is asked for, so it holds for check and hinge
losses too. A bootstrap row moves the mean by $\sum_i (c_i - 1) I_i$, and $V = \sum_i I_i I_i^\top$ is the covariance
of such moves: the sandwich. Where it is the posterior's own covariance $\Sigma$, its ellipsoids cover as often as they
say. $\Sigma$ goes with $1/\eta$ and $V$ does not change, so that is at

$$ \eta\,K / \mathrm{tr}(\Sigma^{-1} V). $$
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from calibayes._backend.devices import SHARDED, map_over_devices, sum_over_devices
from calibayes._backend.jit import jit
from calibayes._backend.linalg import lower_inverse
from calibayes._core.counts import WIDE, scan_chunks
from calibayes._core.particles import Particles, covariance, factor, mean
from calibayes._core.target import Target


@jit
def influences(target: Target, particles: Particles, eta: Float[Array, " R"]) -> Float[Array, "K N"]:
    """Of every observation on the data's posterior, given particles of it in R populations, each at its eta.

    Zero for those that only fill up the last block.
    """
    theta = particles.theta
    centred = theta - mean(theta, particles.weights)[:, :, None]
    scaled = (centred * (eta[:, None] * particles.weights)[None] / theta.shape[1]).reshape(len(theta), -1)
    losses_of = target.losses(theta.reshape(len(theta), 1, -1))

    def chunk(_, data):
        losses = jax.vmap(lambda block: jnp.stack(losses_of(block))[:, 0])(data)
        losses = jnp.where(jnp.isfinite(losses), losses, 0.0)
        return None, -jnp.tensordot(losses, scaled, ((2,), (1,)))

    # On a processor, as many losses at a time as its cache holds.
    width = 1 if jax.default_backend() == "cpu" else WIDE
    by_block = map_over_devices(target.mesh, lambda data: scan_chunks(chunk, None, data, width)[1], target.data)
    of_all = by_block.reshape(-1, len(theta)).T
    there = jnp.arange(of_all.shape[1], dtype=target.counts.n.dtype) < target.counts.n
    return jnp.where(there[None], of_all, 0.0)


@jit
def matching_eta(target: Target, particles: Particles, eta: Float[Array, " R"]) -> Float[Array, ""]:
    """The learning rate at which the posterior's covariance meets the sandwich, from particles at `eta`."""
    moves = influences(target, particles, eta)
    within = covariance(particles.theta, particles.weights) * eta[:, None, None]
    whiten = lower_inverse(factor(within.mean(0, keepdims=True)))[0]
    return len(moves) / jnp.square(whiten @ moves).sum()


def mean_shifts(target: Target, influence: Float[Array, "K N"]) -> Float[Array, "K B"]:
    """How far each row's counts move the mean. A row's total matters for its spread and not for its place."""
    # Each observation's own count goes along, as one more number that it has.
    by_block = jnp.concatenate([influence, jnp.ones_like(influence[:1])]).T.reshape(*target.reference_loss.shape, -1)
    sums = lambda by_block, counts: counts.sums(by_block)
    counts = target.counts
    *moved, totals = sum_over_devices(target.mesh, sums, (SHARDED, counts.shared()), by_block, counts)
    return jnp.stack(moved) * (counts.n.astype(float) / totals)[None] - influence.sum(1)[:, None]
