r"""Influence of observations on the posterior mean, and the learning rate at which the posterior matches the sandwich.

The infinitesimal jackknife (Giordano and Broderick 2023): one additional count of observation i moves the posterior
mean by

$$ I_i = -\eta\,\mathrm{Cov}\{\theta, r_i(\theta)\}, $$

a covariance over draws of the posterior. No gradient is needed, so it also holds for check and hinge losses. The counts
$c$ of a bootstrap replicate move the mean by $\sum_i (c_i - 1) I_i$, and $V = \sum_i I_i I_i^\top$ is the covariance of
these shifts, the sandwich covariance. Where it equals the posterior covariance $\Sigma$, credible ellipsoids have their
nominal coverage. $\Sigma$ is proportional to $1/\eta$ and $V$ does not depend on $\eta$, so that the two match in trace
at the learning rate

$$ \eta\,K / \mathrm{tr}(\Sigma^{-1} V). $$

References
----------
Giordano and Broderick (2023), The Bayesian infinitesimal jackknife for variance, arXiv:2305.06466.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from calibayes._backend.devices import SHARDED, map_over_devices, sum_over_devices
from calibayes._backend.jit import jit
from calibayes._core import counts as counts_module
from calibayes._core.counts import divide_up, fold_chunks
from calibayes._core.particles import Particles, covariance, inverse_factor, mean
from calibayes._core.risk import block_length
from calibayes._core.target import Target


@jit
def influences(target: Target, particles: Particles, eta: Float[Array, " R"]) -> Float[Array, "K N"]:
    """Return the influence of every observation on the posterior mean of the data.

    Parameters
    ----------
    target : Target
        Target of the calibration.
    particles : Particles
        Draws of the posterior on the data, in R populations.
    eta : Array of shape (R,)
        Learning rate of each population.

    Returns
    -------
    Array of shape (K, N)
        Influences, averaged over populations. Zero for padding.
    """
    theta = particles.theta
    centred = theta - mean(theta, particles.weights)[:, :, None]
    scaled = (centred * (eta[:, None] * particles.weights)[None] / theta.shape[1]).reshape(len(theta), -1)
    losses_of = target.losses(theta.reshape(len(theta), 1, -1))

    def set_chunk(influence, chunk):
        indices, data = chunk
        losses = jax.vmap(lambda block: jnp.stack(losses_of(block))[:, 0])(data)
        losses = jnp.where(jnp.isfinite(losses), losses, 0.0)
        of_chunk = -jnp.tensordot(losses, scaled, ((2,), (1,)))
        return jax.lax.dynamic_update_slice_in_dim(influence, of_chunk, indices[0], 0)

    def on_device(reference_loss, data):
        n_stored, length = reference_loss.shape
        zeros, indices = jnp.zeros((n_stored, length, len(theta)), theta.dtype), jnp.arange(n_stored)
        n_blocks = jnp.minimum(divide_up(target.counts.n, length), n_stored)
        return fold_chunks(set_chunk, zeros, (indices, data), n_blocks, counts_module.CONFIG.blocks_per_step)

    padded = map_over_devices(target.mesh, on_device, target.reference_loss, target.data).reshape(-1, len(theta)).T
    is_observation = jnp.arange(padded.shape[1], dtype=target.counts.n.dtype) < target.counts.n
    return jnp.where(is_observation[None], padded, 0.0)


def matching_eta(influence: Float[Array, "K N"], particles: Particles, eta: Float[Array, " R"]) -> Float[Array, ""]:
    """Return the learning rate at which the posterior covariance matches the sandwich covariance.

    Parameters
    ----------
    influence : Array of shape (K, N)
        The value of `influences` for these particles.
    particles : Particles
        Draws of the posterior on the data, in R populations.
    eta : Array of shape (R,)
        Learning rate of each population.

    Returns
    -------
    Array
        Learning rate.
    """
    unit_covariance = covariance(particles.theta, particles.weights) * eta[:, None, None]
    whiten = inverse_factor(unit_covariance.mean(0, keepdims=True))[0]
    blocks = influence.T.reshape(-1, block_length(len(influence)), len(influence))
    # Block by block, so that the sum does not depend on the padding.
    add = lambda total, chunk: total + jnp.square(jnp.tensordot(chunk, whiten, ((2,), (1,)))).sum()
    zero, n_blocks = jnp.zeros((), influence.dtype), jnp.asarray(len(blocks))
    return len(influence) / fold_chunks(add, zero, blocks, n_blocks, counts_module.CONFIG.blocks_per_step)


def mean_shifts(target: Target, influence: Float[Array, "K N"]) -> Float[Array, "K B"]:
    """Return the first-order shift of the posterior mean of each replicate.

    Parameters
    ----------
    target : Target
        Target of the calibration.
    influence : Array of shape (K, N)
        The value of `influences`.

    Returns
    -------
    Array of shape (K, B)
        Shifts, for counts scaled to a sum of N: the total of the counts affects the width of a posterior but not its
        location.
    """
    # A column of ones gives the totals of the counts in the same pass.
    values = jnp.concatenate([influence, jnp.ones_like(influence[:1])]).T.reshape(*target.reference_loss.shape, -1)
    weighted_sums = lambda values, counts: counts.weighted_sums(values)
    counts = target.counts
    specs = (SHARDED, counts.partition_specs())
    *sums, totals = sum_over_devices(target.mesh, weighted_sums, specs, values, counts)
    weighted = jnp.stack(sums)
    # Replicate 0, the data, has the sum of the influences.
    return weighted * (counts.n.astype(float) / totals)[None] - weighted[:, :1]
