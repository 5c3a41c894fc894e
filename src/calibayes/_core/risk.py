r"""The hot loop: the weighted risk of many particles on many rows.

$$ R_b(\theta) - R_b(\theta_0) = \sum_i c_{bi}\,\{r_i(\theta) - r_i(\theta_0)\} $$

for every particle $\theta$ on every row $b$ of counts $c$. Two things decide its speed and its accuracy.

*Layout.* A scan over blocks of observations, unrolled inside the block, over parameters unrolled, with
particles on the minor axis: each block is one fused pass over the particles, in registers. Nothing of
size B x M x N is ever stored.

*The reference* $\theta_0$. Losses are taken relative to a point inside the posterior, a few observations at a
time, so that the sum stays of the order of the posterior's own spread instead of growing with N, and float32
is enough.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from calibayes._core.counts import Counts
from calibayes._core.loss import LinearLoss
from calibayes._core.unroll import unroll

_SHORT, _LONG, _FEW = 8, 16, 4
_CACHED = 5 * 2**19
"""Numbers that a processor's last cache holds with room to spare: particles, their sums and what is on its way."""
UNROLLED = 64
"""Up to this many parameters predictions are unrolled sums, `CHAIN` terms at a time; beyond, matrix products."""
CHAIN = 10


def block_length(dim: int) -> int:
    """Observations unrolled in one pass over the particles; on a GPU, where a pass is a launch, more if it has room."""
    return _LONG if dim <= _FEW and jax.default_backend() != "cpu" else _SHORT


def in_replicate_batches(
    fn: Callable[[Float[Array, "K R M"], Counts], Float[Array, "R M"]], theta: Float[Array, "K B M"], counts: Counts
) -> Float[Array, "B M"]:
    """`fn` of all rows; on a processor, of as many at a time as its last cache holds, where it does not hold all."""
    dim, n_replicates, size = theta.shape
    each = max(1, _CACHED // ((dim + 2) * size))
    if jax.default_backend() != "cpu" or n_replicates <= 2 * each:
        return fn(theta, counts)
    times = -(-n_replicates // each)
    each = -(-n_replicates // times)
    stretch = lambda first: fn(jax.lax.dynamic_slice_in_dim(theta, first, each, 1), counts.stretch(first, each))
    # The last begins earlier where they do not go round, with rows that were there already.
    found = jax.lax.map(stretch, jnp.minimum(each * jnp.arange(times), n_replicates - each))
    return jnp.concatenate([found[:-1].reshape(-1, size), found[-1, times * each - n_replicates :]])


def weighted_risk(
    losses_of: Callable[[Any], list[Float[Array, "B M"]]],
    blocks: PyTree[Array],
    base: Float[Array, "G L"],
    counts: Counts,
    n_particles: int,
    finite: bool,
    along: Float[Array, "K B M"] | tuple[()] = (),
    slopes_of: Callable[[Any], tuple[Float[Array, "K L"], Float[Array, " L"]]] | None = None,
) -> Float[Array, "B M"]:
    """Sum over all observations of `counts * loss`, less the reference's own sum, block by block.

    `losses_of(block)` gives the loss of every particle for each observation of a block, `base` those of the reference;
    `slopes_of(block)` a part of the loss that is linear in `along`, which is summed over a block before it meets a
    particle, and its constant. Block by block, so that only small numbers are added to small ones.
    Where losses may be infinite, an observation that a row does not hold must not touch it: `0 * inf` is left out.
    """

    def add(total, scanned):
        block, base_block, at = scanned
        counted = counts.block(at)
        terms = [counted[i][:, None] * loss for i, loss in enumerate(losses_of(block))]
        if not finite:
            terms = [jnp.where(counted[i][:, None] != 0, term, 0.0) for i, term in enumerate(terms)]
        here = sum(terms[1:], terms[0])
        coefficients = -base_block[None]
        if slopes_of is not None:
            slopes, constant = slopes_of(block)
            coefficients = jnp.concatenate([slopes, (constant - base_block)[None]])
        # Term by term, so that a row's sum is rounded the same whatever rows are beside it; and once for all particles.
        sums = jax.lax.optimization_barrier(
            sum(coefficients[:, i, None] * counted[i][None] for i in range(len(counted)))
        )
        return total + sum((sums[k][:, None] * along[k] for k in range(len(along))), here + sums[-1][:, None]), None

    start = jnp.zeros((counts.n_replicates, n_particles), base.dtype)
    return jax.lax.scan(add, start, (blocks, base, counts.blocks))[0]


def risk_by_scan(
    loss: LinearLoss,
    theta: Float[Array, "K B M"],
    blocks: tuple[Float[Array, "G L K"], Float[Array, "G L"], Float[Array, "G L"]],
    base: Float[Array, "G L"],
    counts: Counts,
) -> Float[Array, "B M"]:
    """Of a linear loss, by the fewest operations a particle and observation; y is part of the offset where it can."""
    bent, tilt = loss.decompose()
    rho = bent
    if loss.location:
        x, y, offset = blocks
        blocks, rho = (x, y, offset - y), lambda beyond, y: bent(beyond, jnp.zeros_like(y))
    losses_of, size = linear_losses(rho, theta), theta.shape[-1]
    if tilt is None:
        return weighted_risk(losses_of, blocks, base, counts, size, loss.finite)
    slopes_of = lambda block: (tilt * block[0].T, tilt * block[2])
    return weighted_risk(losses_of, blocks, base, counts, size, loss.finite, theta, slopes_of)


def linear_losses(
    rho: Callable[..., Array], theta: Float[Array, "K B M"]
) -> Callable[[Any], list[Float[Array, "B M"]]]:
    """Losses `rho(offset + x @ theta, y)` of a block `(x, y, offset)`."""

    def losses_of(block):
        x, y, offset = block
        if len(theta) <= UNROLLED:
            predictions = [_unrolled(x[i], theta, offset[i]) for i in range(len(y))]
        else:
            predictions = list(jnp.tensordot(x, theta, 1) + offset[:, None, None])
        return [rho(prediction, y[i]) for i, prediction in enumerate(predictions)]

    return losses_of


def _unrolled(x: Float[Array, " K"], theta: Float[Array, "K B M"], offset: Float[Array, ""]) -> Float[Array, "B M"]:
    """`offset + x @ theta`. One long chain of sums would keep the processor waiting for each term."""
    total = offset
    for start in range(0, len(theta), CHAIN):
        terms = [x[k] * theta[k] for k in range(start, min(start + CHAIN, len(theta)))]
        total = sum(terms, total) if start == 0 else total + sum(terms[1:], terms[0])
    return total


def generic_losses(
    fn: Callable[..., Array], theta: Float[Array, "K B M"]
) -> Callable[[Any], list[Float[Array, "B M"]]]:
    """Losses `fn(theta, datum)` of a block of observations, whatever they are made of."""

    def losses_of(block):
        size = len(jax.tree.leaves(block)[0])
        data = [jax.tree.map(lambda leaf, i=i: leaf[i], block) for i in range(size)]
        one = unroll(fn, theta[:, 0, 0], data[0])
        on_particles = jax.vmap(jax.vmap(one, (1, None)), (1, None))
        return [on_particles(theta, datum).astype(theta.dtype) for datum in data]

    return losses_of
