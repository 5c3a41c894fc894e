r"""Summed outer products of the gradients of the losses on every replicate, by automatic differentiation.

$$ J_b = \sum_i c_{bi} u_i\,g_{bi} g_{bi}^\top, \qquad g_{bi} = \nabla r_i(\theta_b), $$

at one point $\theta_b$ per replicate, with the weight $u_i$ per draw (`calibayes._core.weights`). A replicate
that counts an observation twice contains it twice. With clusters, the weighted gradients of a cluster are summed before
the outer product, and a cluster that was drawn twice counts twice. For
check and hinge losses the derivative exists almost everywhere, which is enough for a sum. For a risk that is not a sum,
the derivatives in the counts take the place of the losses (`calibayes._core.counts_risk`).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from calibayes._backend.devices import SHARDED, UNSHARDED, map_over_devices, sum_over_devices
from calibayes._backend.jit import jit
from calibayes._core.counts import fold_blocks
from calibayes._core.counts_risk import map_replicates, scores_of
from calibayes._core.loss import CountsRisk, Generic, LinearLoss
from calibayes._core.target import Target

Gradients = Callable[[Any, Float[Array, " K"]], Float[Array, "L K"]]
"""Function of a block of L observations and of parameters that returns the gradient of each loss."""


def _gradients(target: Target) -> Gradients:
    loss, reference = target.loss, target.reference
    if isinstance(loss, LinearLoss):
        slope = jax.vmap(jax.grad(loss.rho))

        def of_linear(block, theta):
            x, y, offset = block
            prediction = offset + jnp.matmul(x, theta - reference, precision=jax.lax.Precision.HIGHEST)
            return _finite(slope(prediction, y))[:, None] * x

        return of_linear
    assert isinstance(loss, Generic)
    gradient = jax.vmap(jax.grad(lambda theta, datum: loss(theta, datum).astype(theta.dtype)), (None, 0))
    return lambda block, theta: _finite(gradient(theta, block))


def _scores(one: Target, point: Float[Array, " K"]) -> Float[Array, "N K"]:
    """Return the gradient of every loss of a target with a single replicate. Padding is included."""
    if isinstance(one.loss, CountsRisk):
        row, nuisance = jax.tree.map(lambda leaf: leaf[0], one.counts_data.rows())
        return scores_of(one.loss, one.data)(point, row, nuisance)
    return jax.vmap(_gradients(one), (0, None))(one.data, point).reshape(-1, len(point))


def _finite(values: Float[Array, "..."]) -> Float[Array, "..."]:
    return jnp.where(jnp.isfinite(values), values, 0.0)


@jit
def score_products(target: Target, theta: Float[Array | np.ndarray, "K B"]) -> Float[Array, "B K K"]:
    """Return the sums of outer products for independent observations.

    Parameters
    ----------
    target : Target
        Posteriors of all replicates: model, data and counts.
    theta : Array of shape (K, B)
        Parameters at which the gradients of each replicate are taken.
    """
    if isinstance(target.loss, CountsRisk):
        return _score_products_of_counts(target, target.loss, jnp.asarray(theta))
    gradients_of = jax.vmap(_gradients(target), (None, 1))

    def on_device(theta, data, counts, weights):
        def add_block(total, scanned):
            data_block, counts_block, weights_block = scanned
            gradients, factors = gradients_of(data_block, theta), counts.block(counts_block).T
            if weights_block is not None:
                factors = factors * weights_block.per_draw[None]
            weighted = gradients * factors[:, :, None]
            return total + jnp.einsum("blk,blj->bkj", weighted, gradients, precision=jax.lax.Precision.HIGHEST)

        dim, n_replicates = theta.shape
        zeros = jnp.zeros((n_replicates, dim, dim), theta.dtype)
        return fold_blocks(add_block, zeros, (data, counts.blocks, weights), counts.n_blocks)

    specs = (UNSHARDED, SHARDED, target.counts.partition_specs(), SHARDED)
    args = (jnp.asarray(theta), target.data, target.counts, target.weights)
    return sum_over_devices(target.mesh, on_device, specs, *args)


def _score_products_of_counts(target: Target, loss: CountsRisk, theta: Float[Array, "K B"]) -> Float[Array, "B K K"]:
    scores_at = scores_of(loss, target.data)
    per_draw = 1.0 if target.weights is None else target.weights.per_draw.reshape(-1)

    def of_replicate(point, counts, nuisance):
        scores = scores_at(point, counts, nuisance)
        return jnp.matmul((scores * (counts * per_draw)[:, None]).T, scores, precision=jax.lax.Precision.HIGHEST)

    return map_replicates(of_replicate, theta, target.counts_data)


@jit
def cluster_score_products(
    target: Target, theta: Float[Array | np.ndarray, "K B"], groups: Int[Array, " N"], n_groups: int
) -> Float[Array, "B K K"]:
    """Return the sums of outer products of the clusters' gradients, on a single device.

    Parameters
    ----------
    target : Target
        Posteriors of all replicates: model, data and counts. Within a cluster counts are equal, apart from weights.
    theta : Array of shape (K, B)
        Parameters at which the gradients of each replicate are taken.
    groups : Array of shape (N,)
        Index of each observation's cluster.
    n_groups : int
        Number of clusters.
    """
    n = len(groups)
    weights = jnp.ones(n) if target.weights is None else target.weights.values.reshape(-1)[:n]

    def of_replicate(inputs):
        index, point = inputs
        one = target.select(index[None])
        counts = one.counts.to_array()[:n, 0]
        gradients = _scores(one, point)[:n]
        sums = jax.ops.segment_sum(gradients * weights[:, None], groups, n_groups)
        drawn = jnp.where(weights > 0, counts / jnp.where(weights > 0, weights, 1.0), 0.0)
        times = jnp.maximum(jax.ops.segment_max(drawn, groups, n_groups), 0.0)
        return jnp.matmul((sums * times[:, None]).T, sums, precision=jax.lax.Precision.HIGHEST)

    return jax.lax.map(of_replicate, (jnp.arange(target.n_replicates), jnp.asarray(theta).T))


@jit
def score_sums(target: Target, theta: Float[Array | np.ndarray, "K B"]) -> Float[Array, "K B"]:
    """Return the gradients of the risk of every replicate. That of a risk that is not a sum may be NaN.

    Parameters
    ----------
    target : Target
        Posteriors of all replicates: model, data and counts.
    theta : Array of shape (K, B)
        Parameters at which the gradient of each replicate is taken.
    """
    loss = target.loss
    if isinstance(loss, CountsRisk):
        risk = lambda point, *args: loss.differentiable_risk(point, target.data, *args).astype(point.dtype)
        return map_replicates(jax.grad(risk), jnp.asarray(theta), target.counts_data).T
    gradients_of = jax.vmap(_gradients(target), (None, 1))

    def on_device(theta, data, counts):
        def add_block(total, scanned):
            data_block, counts_block = scanned
            gradients, factors = gradients_of(data_block, theta), counts.block(counts_block).T
            return total + jnp.einsum("blk,bl->kb", gradients, factors, precision=jax.lax.Precision.HIGHEST)

        return fold_blocks(add_block, jnp.zeros_like(theta), (data, counts.blocks), counts.n_blocks)

    specs = (UNSHARDED, SHARDED, target.counts.partition_specs())
    return sum_over_devices(target.mesh, on_device, specs, jnp.asarray(theta), target.data, target.counts)


@jit
def data_gradients(target: Target, theta: Float[Array | np.ndarray, "K S"]) -> Float[Array, "S K"]:
    """Return the gradient of a risk that is not a sum, on the data, at several parameters. It may be NaN.

    It is the sum of the scores times the counts only if the risk is proportional to the counts.

    Parameters
    ----------
    target : Target
        Posteriors of all replicates: model, data and counts.
    theta : Array of shape (K, S)
        Parameters.
    """
    loss = target.loss
    assert isinstance(loss, CountsRisk)
    row, nuisance = jax.tree.map(lambda leaf: leaf[0], target.select(jnp.zeros(1, int)).counts_data.rows())
    risk = lambda point: loss.differentiable_risk(point, target.data, row, nuisance).astype(point.dtype)
    return jax.lax.map(jax.grad(risk), jnp.asarray(theta).T)


@jit
def observation_scores(target: Target, theta: Float[Array | np.ndarray, "K S"]) -> Float[Array, "S N K"]:
    """Return the gradient of every loss on the data at several parameters, without weights. Padding is included.

    Parameters
    ----------
    target : Target
        Posteriors of all replicates: model, data and counts.
    theta : Array of shape (K, S)
        Parameters.
    """
    points = jnp.asarray(theta).T
    if isinstance(target.loss, CountsRisk):
        data = target.select(jnp.zeros(1, int))
        return jax.lax.map(lambda point: _scores(data, point), points)
    gradients_of = _gradients(target)

    def on_device(data):
        # One block at a time, each at all points.
        return jax.lax.map(lambda block: jax.vmap(lambda point: gradients_of(block, point))(points), data)

    by_block = map_over_devices(target.mesh, on_device, target.data)
    return jnp.moveaxis(by_block, 1, 0).reshape(len(points), -1, len(theta))
