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

For a risk that is not a sum of losses, the derivative in the count of observation i takes the place of $r_i$
(`calibayes._core.counts_risk`).

References
----------
Giordano and Broderick (2023), The Bayesian infinitesimal jackknife for variance, arXiv:2305.06466.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from calibayes._backend.devices import SHARDED, map_over_devices, sum_over_devices
from calibayes._backend.functions import host_array
from calibayes._backend.jit import jit, light_jit, prefetch
from calibayes._backend.linalg import host_inverse_factor
from calibayes._core import counts as counts_module
from calibayes._core.counts import divide_up, fold_chunks
from calibayes._core.counts_risk import weighted_count_derivatives
from calibayes._core.loss import CountsRisk
from calibayes._core.particles import Particles
from calibayes._core.risk import block_length
from calibayes._core.target import Target


class Influences(NamedTuple):
    """Influences of the observations on the posterior mean of the parameters given the data.

    Attributes
    ----------
    values : Array of shape (K, N)
        First-order change of the posterior mean when the count of an observation increases by one. Zero for padding.
    matching_eta : float
        Learning rate K / tr(H^-1 J) of `calibayes.methods.Matching`; infinite if no observation has an influence.
    """

    values: Float[Array, "K N"]
    matching_eta: float


def influences(target: Target, particles: Particles, eta: float) -> Influences:
    """Return the influences of all observations.

    Parameters
    ----------
    target : Target
        Posteriors of all replicates: model, data and counts.
    particles : Particles
        Draws of the posterior on the data, in one or more populations.
    eta : float
        Learning rate of the draws.

    Returns
    -------
    Influences
    """
    theta, log_weights = jax.device_get((particles.theta, particles.log_weights))
    dim = len(theta)
    # All populations together: within one, recently resampled draws have too little spread.
    theta = theta.reshape(dim, -1).astype(np.float64)
    weights = np.exp(log_weights.astype(np.float64)).reshape(-1)
    return influences_on(target, theta, theta, weights / weights.sum(), eta)[0]


def influences_on(
    target: Target,
    coordinates: Float[np.ndarray, "K M"],
    statistic: Float[np.ndarray, "K M"],
    weights: Float[np.ndarray, " M"],
    eta: float,
) -> tuple[Influences, Float[np.ndarray, "K K"]]:
    """Return the influences on the posterior mean of a statistic, and eta times the covariance of the statistic.

    Parameters
    ----------
    target : Target
        Posteriors of all replicates: model, data and counts.
    coordinates : ndarray of shape (K, M)
        Unbounded coordinates of the draws.
    statistic : ndarray of shape (K, M)
        Values at the draws whose mean is influenced: the coordinates, or the parameters.
    weights : ndarray of shape (M,)
        Weights of the draws, which sum to one.
    eta : float
        Learning rate of the draws.
    """
    centred = statistic - (statistic @ weights)[:, None]
    # Again, because an error of the mean is multiplied by eta and by the loss, not by how much the loss varies.
    centred -= (centred @ weights)[:, None]
    inverse_hessian = eta * ((centred * weights) @ centred.T)
    whiten = host_inverse_factor(inverse_hessian[None])[0]
    arrays = (coordinates[:, None], eta * weights * centred, whiten)
    values, trace = _influences(target, *(host_array(array) for array in arrays))
    with np.errstate(divide="ignore"):
        return Influences(values, float(np.divide(len(statistic), np.float64(trace)))), inverse_hessian


def prefetch_influences(target: Target, n_draws: int) -> Float[Array, "K N"]:
    """Start to compile `influences` of `n_draws` draws in total, and return the shape of its values."""
    dim, dtype = target.dim, target.reference.dtype
    shapes = ((dim, 1, n_draws), (dim, n_draws), (dim, dim))
    return prefetch(_influences, target, *(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes))[0]


@jit
def _influences(
    target: Target,
    theta: Float[Array | np.ndarray, "K 1 M"],
    scaled: Float[Array | np.ndarray, "K M"],
    whiten: Float[Array | np.ndarray, "K K"],
) -> tuple[Float[Array, "K N"], Float[Array, ""]]:
    """Return the influences, and the trace of their whitened covariance.

    `scaled` are the centred particles times their weights and the learning rate.
    """
    padded = _loss_covariances(target, jnp.asarray(theta), jnp.asarray(scaled))
    is_observation = jnp.arange(padded.shape[1], dtype=target.counts.n.dtype) < target.counts.n
    influence = jnp.where(is_observation[None], padded, 0.0)
    per_unit = influence
    if target.weights is not None:
        per_unit = influence * jnp.sqrt(target.weights.values * target.weights.per_draw).reshape(1, -1)
    blocks = per_unit.T.reshape(-1, block_length(len(influence)), len(influence))
    # In blocks, so that the sum does not depend on the padding.
    add = lambda total, chunk: total + jnp.square(jnp.tensordot(chunk, whiten, ((2,), (1,)))).sum()
    zero, n_blocks = jnp.zeros((), influence.dtype), jnp.asarray(len(blocks))
    return influence, fold_chunks(add, zero, blocks, n_blocks, counts_module.CONFIG.blocks_per_step)


def _loss_covariances(target: Target, theta: Float[Array, "K 1 M"], scaled: Float[Array, "J M"]) -> Float[Array, "J N"]:
    """Return minus the sums over draws of the scaled draws times the loss of every observation, padding included."""
    if isinstance(target.loss, CountsRisk):
        points = target.coordinates.constrain(theta)[:, 0]
        return -jnp.nan_to_num(weighted_count_derivatives(target.loss, points, scaled, target.counts_data))
    losses_of = target.losses(theta)

    def set_chunk(influence, chunk):
        indices, data = chunk
        losses = jax.vmap(lambda block: jnp.stack(losses_of(block))[:, 0])(data)
        losses = jnp.where(jnp.isfinite(losses), losses, 0.0)
        of_chunk = -jnp.tensordot(losses, scaled, ((2,), (1,)))
        return jax.lax.dynamic_update_slice_in_dim(influence, of_chunk, indices[0], 0)

    def on_device(reference_loss, data):
        n_stored, length = reference_loss.shape
        zeros, indices = jnp.zeros((n_stored, length, len(scaled)), scaled.dtype), jnp.arange(n_stored)
        n_blocks = jnp.minimum(divide_up(target.counts.n, length), n_stored)
        return fold_chunks(set_chunk, zeros, (indices, data), n_blocks, counts_module.CONFIG.blocks_per_step)

    return map_over_devices(target.mesh, on_device, target.reference_loss, target.data).reshape(-1, len(scaled)).T


@light_jit
def mean_shifts(target: Target, influence: Float[Array, "K N"]) -> tuple[Float[Array, "K B"], Float[Array, " B"]]:
    """Return the first-order shift of the posterior mean of each replicate, and the totals of the counts.

    Parameters
    ----------
    target : Target
        Posteriors of all replicates: model, data and counts.
    influence : Array of shape (K, N)
        The values of `influences`.

    Returns
    -------
    shifts : Array of shape (K, B)
        Shifts, for counts scaled to the total of the data: the total of the counts affects the width of a posterior but
        not its location.
    relative_totals : Array of shape (B,)
        Totals of the counts relative to that of the data.
    """
    # A column of ones gives the totals of the counts in the same pass.
    values = jnp.concatenate([influence, jnp.ones_like(influence[:1])]).T.reshape(*target.reference_loss.shape, -1)
    weighted_sums = lambda values, counts: counts.weighted_sums(values)
    counts = target.counts
    specs = (SHARDED, counts.partition_specs())
    *sums, totals = sum_over_devices(target.mesh, weighted_sums, specs, values, counts)
    weighted = jnp.stack(sums)
    relative_totals = totals / totals[:1]
    # Replicate 0, the data, has the sum of the influences.
    return weighted / relative_totals[None] - weighted[:, :1], relative_totals
