r"""Risks that are functions of the counts: their evaluation, and their derivatives in counts and parameters.

A risk $R(\theta, c)$ need not be a sum over observations. What takes the place of the loss of observation i is the
derivative of the risk with respect to its count, $\partial R / \partial c_i$, and of the gradient of this loss
$\partial^2 R / \partial\theta\,\partial c_i$: the estimate $\hat\theta(c)$ solves $\partial R / \partial\theta = 0$, so
that $\partial\hat\theta / \partial c_i = -H^{-1}\,\partial^2 R / \partial\theta\,\partial c_i$ with the Hessian H. For
a sum of losses both are the loss and its gradient. Nuisance parameters that JAX computes from the counts are
differentiated as well.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from calibayes._core import risk as risk_module
from calibayes._core.counts import Counts
from calibayes._core.loss import CountsRisk
from calibayes._core.risk import in_batches


class CountsData(NamedTuple):
    """Arguments of a risk other than the parameters, for several replicates."""

    data: PyTree[Array]
    """Prepared data."""
    counts: Counts
    nuisance: PyTree[Array]
    """Nuisance parameters, with the replicates along the first axis of every array."""

    def rows(self) -> tuple[Float[Array, "R N"], PyTree[Array]]:
        """Return the counts and nuisance parameters with the replicates along the first axis."""
        return self.counts.to_array().T, self.nuisance

    def slice_replicates(self, first: Int[Array, ""] | int, n: int) -> "CountsData":
        """Return the arguments for `n` consecutive replicates from `first`."""
        first = jnp.asarray(first)
        cut = lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, n, 0)
        return CountsData(self.data, self.counts.slice_replicates(first, n), jax.tree.map(cut, self.nuisance))


def relative_risk(
    loss: CountsRisk, theta: Float[Array, "K B M"], reference: Float[Array, " K"], args: CountsData
) -> Float[Array, "B M"]:
    """Return the risk minus the risk of the reference on the same replicate, where the latter is finite."""
    dim, n_replicates, n_particles = theta.shape
    numbers = loss.memory_per_particle(args.data, args.counts.n_stored)
    n_at_once = max(1, memory() // max(numbers, dim))
    batch = max(1, n_at_once // n_particles)
    if jax.default_backend() == "cpu" and numbers >= args.counts.n_stored:
        # A CPU takes ten times as long for products with the counts of several replicates at a time.
        batch = 1

    def of_batch(first: Int[Array, ""] | int, n: int) -> Float[Array, "R M"]:
        points, rows = jax.lax.dynamic_slice_in_dim(theta, first, n, 1), args.slice_replicates(first, n).rows()
        return _vmap(of_replicate)(points, *rows)

    def of_replicate(
        theta: Float[Array, "K M"], counts: Float[Array, " N"], nuisance: PyTree[Array]
    ) -> Float[Array, " M"]:
        value = lambda point: loss(point, args.data, counts, nuisance).astype(theta.dtype)
        of_particles = lambda first, n: jax.vmap(value, 1)(jax.lax.dynamic_slice_in_dim(theta, first, n, 1))
        constant = value(reference)
        return in_batches(of_particles, n_particles, n_at_once) - jnp.where(jnp.isfinite(constant), constant, 0.0)

    return in_batches(of_batch, n_replicates, batch)


def fit_nuisance(loss: CountsRisk, data: PyTree[Array], counts: Counts) -> PyTree[Array]:
    """Return the nuisance parameters of every replicate, computed by JAX."""
    args = CountsData(data, counts, None)

    def of_batch(first: Int[Array, ""] | int, n: int) -> PyTree[Array]:
        return jax.vmap(loss.nuisance, (None, 0))(data, args.slice_replicates(first, n).rows()[0])

    return in_batches(of_batch, counts.n_replicates, max(1, memory() // counts.n_stored))


def weighted_count_derivatives(
    loss: CountsRisk, theta: Float[Array, "K M"], weights: Float[Array, "J M"], args: CountsData
) -> Float[Array, "J N"]:
    """Return weighted sums over particles of the derivatives in the counts of the first replicate."""
    counts, nuisance = jax.tree.map(lambda leaf: leaf[0], args.slice_replicates(0, 1).rows())
    risk = _with_nuisance(loss, args.data)
    n_particles = theta.shape[1]
    numbers = max(args.counts.n_stored, loss.memory_per_particle(args.data, args.counts.n_stored))
    size = min(n_particles, max(1, memory() // numbers))

    def add(total: Array, first: Int[Array, ""]) -> tuple[Array, None]:
        # The last chunk starts early enough to be complete. It repeats particles, whose weights are set to zero.
        start = jnp.minimum(first, n_particles - size)
        points, factors = (jax.lax.dynamic_slice_in_dim(leaf, start, size, 1) for leaf in (theta, weights))
        factors = jnp.where(start + jnp.arange(size)[None] >= first, factors, 0.0)
        value, pull_back = jax.vjp(
            lambda c: jax.vmap(lambda point: risk(point, c, nuisance).astype(c.dtype), 1)(points), counts
        )
        factors = jnp.where(jnp.isfinite(value)[None], factors, 0.0)
        return total + jax.vmap(lambda row: pull_back(row)[0])(factors), None

    zeros = jnp.zeros((len(weights), len(counts)), weights.dtype)
    return jax.lax.scan(add, zeros, jnp.arange(0, n_particles, size))[0]


Scores = Callable[[Float[Array, " K"], Float[Array, " N"], Any], Float[Array, "N K"]]
"""Function of parameters, counts and nuisance parameters: the derivative in theta of the derivatives in the counts."""


def scores_of(loss: CountsRisk, data: PyTree[Array]) -> Scores:
    """Return the function that takes the place of the gradients of all losses; values that are not finite are zero."""
    risk = _with_nuisance(loss, data)
    in_counts = lambda theta, counts, nuisance: jax.grad(
        lambda c: risk(theta, c, nuisance).astype(theta.dtype),
    )(counts)
    return lambda *args: _finite(jax.jacfwd(in_counts)(*args))


class RiskDerivatives(NamedTuple):
    """Derivatives of the risk of several replicates in the parameters, and the products of the scores."""

    gradient: Float[Array, "K R"]
    hessian: Float[Array, "R K K"]
    outer: Float[Array, "R K K"]


def derivatives(
    loss: CountsRisk, theta: Float[Array, "K R"], args: CountsData, per_draw: Float[Array, " N"] | float = 1.0
) -> RiskDerivatives:
    """Return gradients, Hessians and summed outer products of the scores.

    `per_draw` are the weights of the observations each time that they are drawn (`calibayes._core.weights`).
    """
    scores_at = scores_of(loss, args.data)

    def of_replicate(point: Array, counts: Array, nuisance: PyTree[Array]) -> RiskDerivatives:
        risk = lambda point: loss.differentiable_risk(point, args.data, counts, nuisance).astype(theta.dtype)
        scores = scores_at(point, counts, nuisance)
        factors = (counts * per_draw)[:, None]
        outer = jnp.matmul((scores * factors).T, scores, precision=jax.lax.Precision.HIGHEST)
        return RiskDerivatives(jax.grad(risk)(point), jax.hessian(risk)(point), outer)

    values = map_replicates(of_replicate, theta, args)
    return values._replace(gradient=values.gradient.T)


def map_replicates(fn: Callable[..., Any], theta: Float[Array, "K B"], args: CountsData) -> PyTree[Array]:
    """Apply a function of parameters, counts and nuisance parameters to every replicate, in batches.

    The memory of a batch suffices for functions that hold some numbers for every observation and parameter. A CPU takes
    one replicate at a time: cumulative sums and products of several at a time take ten times as long.
    """
    size = 1 if jax.default_backend() == "cpu" else max(1, memory() // (args.counts.n_stored * len(theta)))

    def of_batch(first: Int[Array, ""] | int, n: int) -> PyTree[Array]:
        points, rows = jax.lax.dynamic_slice_in_dim(theta, first, n, 1), args.slice_replicates(first, n).rows()
        return _vmap(fn)(points, *rows)

    return in_batches(of_batch, theta.shape[1], size)


def _vmap(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of several replicates; of a single one without a batch axis, which products are faster for."""

    def call(theta: Array, counts: Array, nuisance: PyTree[Array]) -> PyTree[Array]:
        if len(counts) > 1:
            return jax.vmap(fn, (1, 0, 0))(theta, counts, nuisance)
        value = fn(theta[:, 0], counts[0], jax.tree.map(lambda leaf: leaf[0], nuisance))
        return jax.tree.map(lambda leaf: leaf[None], value)

    return call


def memory() -> int:
    """Return the number of floats that a batch may hold for every intermediate result of the risk."""
    constants = risk_module.CONFIG
    return constants.cached_numbers if jax.default_backend() == "cpu" else constants.gpu_max_chunk_elements


def _with_nuisance(loss: CountsRisk, data: PyTree[Array]) -> Callable[..., Float[Array, ""]]:
    """Return the risk as a function of parameters, counts and nuisance parameters.

    Nuisance parameters that JAX can compute are computed from the counts again, so that they are differentiated.
    """
    if loss.nuisance_on_host:
        return lambda theta, counts, nuisance: loss.differentiable_risk(theta, data, counts, nuisance)
    return lambda theta, counts, _: loss.differentiable_risk(theta, data, counts, loss.nuisance(data, counts))


def _finite(values: Float[Array, "..."]) -> Float[Array, "..."]:
    return jnp.where(jnp.isfinite(values), values, 0.0)
