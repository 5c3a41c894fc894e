r"""The inner loop: the weighted risk of many particles in many replicates.

$$ R_b(\theta) - R_b(\theta_0) = \sum_i c_{bi}\,\{r_i(\theta) - r_i(\theta_0)\} $$

for every particle $\theta$ of every replicate $b$, with counts $c$. Two choices determine speed and accuracy.

*Layout.* The sum is a scan over blocks of observations. Inside a block it is unrolled over observations and parameters,
with particles on the last axis, so that each block is one fused pass over the particles. No array of size B x M x N is
stored. On a GPU with more than a few parameters, the predictions of some hundred observations at a time are a matrix
product, and the losses are summed in one pass over them.

*The reference* $\theta_0$. Losses are relative to a point inside the posterior and are added a few observations at a
time, so that the sums stay of the order of the posterior's own spread instead of growing with N, and float32 is
sufficient.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from calibayes._core.counts import Counts, fold_blocks, fold_chunks
from calibayes._core.loss import LinearLoss
from calibayes._core.unroll import unroll


@dataclass(frozen=True)
class RiskConfig:
    """Tuning constants of the scan over observations. They affect the running time, and results by rounding only.

    `python -m benchmarks.speed` measures the running time.
    """

    block_length: int = 8
    """Number of observations that are unrolled in one pass over the particles. On a CPU blocks of 16 took a quarter
    longer with 1 to 8 parameters (`docs/performance.md`)."""
    gpu_block_length: int = 16
    """The same on a GPU, where each block is a kernel launch (`max_gpu_unrolled_dim`)."""
    max_gpu_unrolled_dim: int = 8
    """Number of parameters up to which predictions are unrolled sums on a GPU. On an H200, a scan over such blocks took
    0.4 times as long as matrix products with 2 parameters, about as long with 8, and three times as long with 20."""
    gpu_chunk: int = 256
    """Number of observations whose predictions are one matrix product on a GPU. On an H200, 256 took 0.8 times as long
    as 64 with 20 to 50 parameters."""
    gpu_max_chunk_elements: int = 2**29
    """Largest number of predictions that are in the memory of a GPU at the same time, 2 GiB in float32."""
    cached_numbers: int = 5 * 2**19
    """Number of floats that fit into the last-level cache of a CPU: particles, their sums and intermediate results, 10
    MiB in float32. Larger sets of replicates are evaluated in batches of that size; smaller batches took up to twice
    the time (`docs/performance.md`)."""
    max_unrolled_dim: int = 12
    """Number of parameters up to which predictions are unrolled sums; above, they are matrix products, so that programs
    do not grow with the number of parameters. On a CPU a matrix product took 1.1 to 1.3 times as long for check, hinge
    and Huber losses with 10 parameters, and 0.85 to 1 times with 16; it took 0.8 and 0.5 times as long for a logistic
    loss."""
    chain_length: int = 10
    """Number of terms that an unrolled prediction adds in one chain. Several short chains can be computed in parallel,
    where one long chain has to wait for each of its terms. Order-of-magnitude choice."""


CONFIG = RiskConfig()


def block_length(dim: int) -> int:
    """Return the number of observations per block for `dim` parameters on the current backend."""
    unrolled_on_gpu = jax.default_backend() != "cpu" and dim <= CONFIG.max_gpu_unrolled_dim
    return CONFIG.gpu_block_length if unrolled_on_gpu else CONFIG.block_length


def in_replicate_batches(
    fn: Callable[[Float[Array, "K R M"], Counts], Float[Array, "R M"]], theta: Float[Array, "K B M"], counts: Counts
) -> Float[Array, "B M"]:
    """Evaluate a function of replicates; on a CPU in batches that fit into the last-level cache.

    Parameters
    ----------
    fn : callable
        Function of the particles and the counts of some replicates.
    theta : Array of shape (K, B, M)
        Particles.
    counts : Counts
        Counts of the B replicates.

    Returns
    -------
    Array of shape (B, M)
    """
    dim, n_replicates, n_particles = theta.shape
    batch = max(1, CONFIG.cached_numbers // ((dim + 2) * n_particles))
    if jax.default_backend() != "cpu" or n_replicates <= 2 * batch:
        return fn(theta, counts)

    def evaluate_batch(first, n):
        return fn(jax.lax.dynamic_slice_in_dim(theta, first, n, 1), counts.slice_replicates(first, n))

    return in_batches(evaluate_batch, n_replicates, batch)


def in_batches(fn: Callable[[Any, int], Any], n: int, size: int) -> Any:
    """Concatenate the values of `fn(first, n_items)` for consecutive batches of at most `size` of n items."""
    if size >= n:
        return fn(0, n)
    n_batches = -(-n // size)
    size = -(-n // n_batches)
    # The last batch starts early enough to be complete. It repeats items, which are dropped below.
    values = jax.lax.map(lambda first: fn(first, size), jnp.minimum(size * jnp.arange(n_batches), n - size))
    repeated = n_batches * size - n
    join = lambda leaf: jnp.concatenate([leaf[:-1].reshape(-1, *leaf.shape[2:]), leaf[-1, repeated:]])
    return jax.tree.map(join, values)


def weighted_risk(
    losses_of: Callable[[Any], list[Float[Array, "B M"]]],
    blocks: PyTree[Array],
    reference_loss: Float[Array, "G L"],
    counts: Counts,
    n_particles: int,
    finite: bool,
    linear_theta: Float[Array, "K B M"] | tuple[()] = (),
    linear_part: Callable[[Any], tuple[Float[Array, "K L"], Float[Array, " L"]]] | None = None,
) -> Float[Array, "B M"]:
    """Sum `counts * (loss - reference_loss)` over all observations, block by block.

    Parameters
    ----------
    losses_of : callable
        Function of a block of observations that returns, for each of them, the losses of all particles.
    blocks : pytree of Array
        Observations, with G blocks along the first axis and L observations along the second.
    reference_loss : Array of shape (G, L)
        Losses of the reference.
    counts : Counts
        Counts of B replicates.
    n_particles : int
        Number of particles M per replicate.
    finite : bool
        Whether all losses are finite. Otherwise an infinite loss of an observation with count zero is left out, since
        `0 * inf` is NaN.
    linear_theta : Array of shape (K, B, M)
        Particles at which the linear part is evaluated. Default: none.
    linear_part : callable or None
        Function of a block that returns the slopes and constants of a part of the losses that is linear in
        `linear_theta`. It is summed over the block before it is applied to particles. Default: None, no linear part.

    Returns
    -------
    Array of shape (B, M)
    """

    def add_block(total, scanned):
        block, reference_block, element = scanned
        block_counts = counts.block(element)
        terms = [block_counts[i][:, None] * loss for i, loss in enumerate(losses_of(block))]
        if not finite:
            terms = [jnp.where(block_counts[i][:, None] != 0, term, 0.0) for i, term in enumerate(terms)]
        nonlinear = sum(terms[1:], terms[0])
        coefficients = -reference_block[None]
        if linear_part is not None:
            slopes, constant = linear_part(block)
            coefficients = jnp.concatenate([slopes, (constant - reference_block)[None]])
        # An explicit sum is rounded in the same way whatever other replicates are present. The barrier keeps XLA from
        # computing it again for every particle.
        sums = jax.lax.optimization_barrier(
            sum(coefficients[:, i, None] * block_counts[i][None] for i in range(len(block_counts)))
        )
        linear = nonlinear + sums[-1][:, None]
        return total + sum((sums[k][:, None] * linear_theta[k] for k in range(len(linear_theta))), linear)

    zeros = jnp.zeros((counts.n_replicates, n_particles), reference_loss.dtype)
    return fold_blocks(add_block, zeros, (blocks, reference_loss, counts.blocks), counts.n_blocks)


def linear_risk(
    loss: LinearLoss,
    theta: Float[Array, "K B M"],
    blocks: tuple[Float[Array, "G L K"], Float[Array, "G L"], Float[Array, "G L"]],
    reference_loss: Float[Array, "G L"],
    counts: Counts,
) -> Float[Array, "B M"]:
    """Return the risk minus the risk of the reference, for a loss of a linear prediction.

    The parameters are those of `risk_by_scan`.
    """
    by_products = jax.default_backend() != "cpu" and len(theta) > CONFIG.max_gpu_unrolled_dim
    return (risk_by_products if by_products else risk_by_scan)(loss, theta, blocks, reference_loss, counts)


def risk_by_products(
    loss: LinearLoss,
    theta: Float[Array, "K B M"],
    blocks: tuple[Float[Array, "G L K"], Float[Array, "G L"], Float[Array, "G L"]],
    reference_loss: Float[Array, "G L"],
    counts: Counts,
) -> Float[Array, "B M"]:
    """Return the same as `risk_by_scan`, with the predictions of many observations at a time by a matrix product."""
    dim, n_replicates, n_particles = theta.shape
    flatten = lambda leaf: leaf.reshape(-1, *leaf.shape[2:])
    losses = jax.vmap(loss.rho)

    def add_chunk(total, chunk):
        data, reference, elements = chunk
        (x, y, offset), reference, weights = jax.tree.map(flatten, (data, reference, jax.vmap(counts.block)(elements)))
        products = jnp.matmul(x, theta.reshape(dim, -1), precision=jax.lax.Precision.HIGHEST)
        predictions = products.reshape(-1, n_replicates, n_particles) + offset[:, None, None]
        terms = weights[:, :, None] * (losses(predictions, y) - reference[:, None, None])
        if not loss.finite:
            # Leave out an infinite loss of an observation with count zero.
            terms = jnp.where(weights[:, :, None] != 0, terms, 0.0)
        return total + terms.sum(0)

    zeros = jnp.zeros((n_replicates, n_particles), reference_loss.dtype)
    chunk = min(CONFIG.gpu_chunk, CONFIG.gpu_max_chunk_elements // (n_replicates * n_particles))
    width = max(1, chunk // reference_loss.shape[1])
    return fold_chunks(add_chunk, zeros, (blocks, reference_loss, counts.blocks), counts.n_blocks, width, on_cpu=True)


def risk_by_scan(
    loss: LinearLoss,
    theta: Float[Array, "K B M"],
    blocks: tuple[Float[Array, "G L K"], Float[Array, "G L"], Float[Array, "G L"]],
    reference_loss: Float[Array, "G L"],
    counts: Counts,
) -> Float[Array, "B M"]:
    """Return the risk minus the risk of the reference, for a loss of a linear prediction, by a scan over blocks.

    The loss is decomposed to minimise the number of operations per particle and observation. For a location loss, y is
    included in the offset of the prediction.

    Parameters
    ----------
    loss : LinearLoss
        Loss of a linear prediction.
    theta : Array of shape (K, B, M)
        Particles relative to the reference.
    blocks : tuple of Array
        Blocks `(x, y, offset)` of observations; the prediction is `offset + x @ theta`.
    reference_loss : Array of shape (G, L)
        Losses of the reference.
    counts : Counts
        Counts of B replicates.

    Returns
    -------
    Array of shape (B, M)
    """
    # With many parameters the linear part of a block takes longer than the operations that it saves.
    nonlinear, slope = loss.decompose() if len(theta) <= CONFIG.max_unrolled_dim else (loss.rho, None)
    rho = nonlinear
    if loss.location:
        x, y, offset = blocks
        blocks, rho = (x, y, offset - y), lambda residual, y: nonlinear(residual, jnp.zeros_like(y))
    losses_of, n_particles = linear_losses(rho, theta), theta.shape[-1]
    if slope is None:
        return weighted_risk(losses_of, blocks, reference_loss, counts, n_particles, loss.finite)
    linear_part = lambda block: (slope * block[0].T, slope * block[2])
    return weighted_risk(losses_of, blocks, reference_loss, counts, n_particles, loss.finite, theta, linear_part)


def linear_losses(
    rho: Callable[..., Array], theta: Float[Array, "K B M"]
) -> Callable[[Any], list[Float[Array, "B M"]]]:
    """Return a function of a block `(x, y, offset)` that gives the losses `rho(offset + x @ theta, y)`."""

    def losses_of(block):
        x, y, offset = block
        if len(theta) <= CONFIG.max_unrolled_dim:
            predictions = [_unrolled_prediction(x[i], theta, offset[i]) for i in range(len(y))]
        else:
            # Without the barrier XLA takes the slices in the pass over the losses, which it then does not vectorise.
            products = jax.lax.optimization_barrier(
                tuple(jnp.tensordot(x, theta, 1, precision=jax.lax.Precision.HIGHEST))
            )
            predictions = [product + offset[i] for i, product in enumerate(products)]
        return [rho(prediction, y[i]) for i, prediction in enumerate(predictions)]

    return losses_of


def generic_losses(
    fn: Callable[..., Array], theta: Float[Array, "K B M"]
) -> Callable[[Any], list[Float[Array, "B M"]]]:
    """Return a function of a block of observations that gives the losses `fn(theta, datum)`."""

    def losses_of(block):
        length = len(jax.tree.leaves(block)[0])
        data = [jax.tree.map(lambda leaf, i=i: leaf[i], block) for i in range(length)]
        unrolled = unroll(fn, theta[:, 0, 0], data[0])
        on_particles = jax.vmap(jax.vmap(unrolled, (1, None)), (1, None))
        return [on_particles(theta, datum).astype(theta.dtype) for datum in data]

    return losses_of


def _unrolled_prediction(
    x: Float[Array, " K"], theta: Float[Array, "K B M"], offset: Float[Array, ""]
) -> Float[Array, "B M"]:
    """Return `offset + x @ theta` as a sum of short chains of terms."""
    total = offset
    for first in range(0, len(theta), CONFIG.chain_length):
        terms = [x[k] * theta[k] for k in range(first, min(first + CONFIG.chain_length, len(theta)))]
        total = sum(terms, total) if first == 0 else total + sum(terms[1:], terms[0])
    return total
