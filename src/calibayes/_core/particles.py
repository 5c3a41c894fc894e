r"""Weighted particles of many replicates: weights, moments, quantiles and resampling.

Axes: K parameters, B replicates, M particles. Parameters are the leading axis and particles the last, because the risk
engine loops over particles innermost. Weights are stored as logarithms, normalised to sum to one.

No function sorts. The share of particles on one side of a point is a comparison and a sum, and quantiles are found by
bisection on such shares.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray, UInt

from calibayes._backend.jit import jit, light_jit
from calibayes._backend.rng import with_unrolled_threefry


@dataclass(frozen=True)
class ParticlesConfig:
    """Tuning constants of operations on particles."""

    max_unrolled_dim: int = 8
    """Number of parameters up to which the product of a matrix and particles is unrolled into sums; above, it is a
    matrix product. Order-of-magnitude choice; it affects the running time, and results by rounding only."""
    gpu_bits_per_step: int = 4
    """Number of bits of a quantile that are found in one pass over the particles on a GPU, where a pass takes less time
    than its launch. On a CPU it is one bit. Order-of-magnitude choice; results do not depend on it."""


CONFIG = ParticlesConfig()

T = TypeVar("T")


class Particles(eqx.Module):
    """M weighted particles of each of B replicates, with the values of the target at them.

    Attributes
    ----------
    theta : Array of shape (K, B, M)
        Positions, in the unbounded coordinates of the target (`calibayes._core.coordinates`).
    risk : Array of shape (B, M)
        Risk relative to the reference of the target.
    log_prior : Array of shape (B, M)
        Logarithm of the prior density of the coordinates.
    log_weights : Array of shape (B, M)
        Logarithms of the weights, which sum to one in each replicate.
    """

    theta: Float[Array, "K B M"]
    risk: Float[Array, "B M"]
    log_prior: Float[Array, "B M"]
    log_weights: Float[Array, "B M"]

    @property
    def weights(self) -> Float[Array, "B M"]:
        return jnp.exp(self.log_weights)

    def with_log_weights(self, log_weights: Float[Array, "B M"]) -> "Particles":
        return Particles(self.theta, self.risk, self.log_prior, log_weights)

    @jit
    def replicate(self, index: int) -> "Particles":
        """Return the particles of one replicate; the axis of replicates is kept, with length one."""
        one = slice(index, index + 1)
        return Particles(self.theta[:, one], self.risk[one], self.log_prior[one], self.log_weights[one])

    @jit
    def select(self, indices: Int[Array | np.ndarray, " R"]) -> "Particles":
        """Return the particles of the replicates at `indices`, which may repeat."""
        return Particles(self.theta[:, indices], self.risk[indices], self.log_prior[indices], self.log_weights[indices])

    @jit
    def with_replicates(self, indices: Int[Array | np.ndarray, " R"], new: "Particles") -> "Particles":
        """Return these particles with the replicates at `indices` replaced."""
        return Particles(
            self.theta.at[:, indices].set(new.theta),
            self.risk.at[indices].set(new.risk),
            self.log_prior.at[indices].set(new.log_prior),
            self.log_weights.at[indices].set(new.log_weights),
        )

    def take(self, ancestors: Int[Array, "B n"]) -> "Particles":
        """Return the particles at indices `ancestors` of each replicate, with equal weights."""
        return Particles(
            jnp.take_along_axis(self.theta, jnp.broadcast_to(ancestors[None], (len(self.theta), *ancestors.shape)), -1),
            jnp.take_along_axis(self.risk, ancestors, -1),
            jnp.take_along_axis(self.log_prior, ancestors, -1),
            uniform_log_weights(ancestors.shape),
        )

    def merge_replicates(self) -> "Particles":
        """Return the particles of all replicates as one replicate, for populations of the same density."""
        theta, risk, log_prior, log_weights = jax.device_get((self.theta, self.risk, self.log_prior, self.log_weights))
        merged = (
            theta.reshape(len(theta), 1, -1),
            risk.reshape(1, -1),
            log_prior.reshape(1, -1),
            host_normalise(log_weights.reshape(1, -1)),
        )
        return Particles(*jax.device_put(merged))


@jit
def pool(parts: list[Particles]) -> Particles:
    """Concatenate several sets of particles of the same replicates."""
    pooled = jax.tree.map(lambda *leaves: jnp.concatenate(leaves, -1), *parts)
    return pooled.with_log_weights(normalise(pooled.log_weights))


def choose(where: Bool[Array | np.ndarray, " B"], new: Particles, old: Particles) -> Particles:
    """Return the particles of `new` in the replicates where `where` is true, and of `old` in the others."""
    mask = where[:, None]
    return Particles(
        jnp.where(mask[None], new.theta, old.theta),
        jnp.where(mask, new.risk, old.risk),
        jnp.where(mask, new.log_prior, old.log_prior),
        jnp.where(mask, new.log_weights, old.log_weights),
    )


# Weights


def uniform_log_weights(shape: tuple[int, ...]) -> Float[Array, "B M"]:
    return jnp.full(shape, -math.log(shape[-1]), float)


def normalise(log_weights: Float[Array, "... M"]) -> Float[Array, "... M"]:
    """Normalise log-weights so that the weights sum to one; if all are minus infinity, they stay so."""
    return normalise_with_ess(log_weights)[0]


def normalise_with_ess(log_weights: Float[Array, "... M"]) -> tuple[Float[Array, "... M"], Float[Array, "..."]]:
    """Return `normalise(log_weights)` and `ess(log_weights)`, with one exponential per particle."""
    # Subtract the largest first: next to a large number the logarithm of the sum would be lost in rounding.
    relative = _relative_to_largest(log_weights)
    weights = jnp.exp(relative)
    total = jnp.log(weights.sum(-1, keepdims=True))
    normalised = jnp.where(jnp.isfinite(total), relative - jnp.broadcast_to(total, log_weights.shape), -jnp.inf)
    return normalised, ess_of_weights(weights)


def reweight(
    log_weights: Float[Array, "B M"], risk: Float[Array, "B M"], step: Float[Array, " B"]
) -> Float[Array, "B M"]:
    r"""Return the log-weights $\log w_i - s R_i$, normalised, after a change of the learning rate by a step $s$."""
    return normalise(_unnormalised(log_weights, risk, step))


def reweight_with_ess(
    log_weights: Float[Array, "B M"], risk: Float[Array, "B M"], step: Float[Array, " B"]
) -> tuple[Float[Array, "B M"], Float[Array, " B"]]:
    """Return `reweight(log_weights, risk, step)`, and the effective sample size."""
    return normalise_with_ess(_unnormalised(log_weights, risk, step))


@light_jit
def reweight_particles(particles: Particles, step: Float[Array, ""]) -> Particles:
    """Reweight the particles of all replicates to a learning rate that has changed by `step`."""
    steps = jnp.full(particles.risk.shape[0], step)
    return particles.with_log_weights(reweight(particles.log_weights, particles.risk, steps))


def ess(log_weights: Float[Array, "... M"]) -> Float[Array, "..."]:
    r"""Return the effective sample size $(\sum W)^2 / \sum W^2$. The weights need not be normalised."""
    return ess_of_weights(_scaled_weights(log_weights))


def ess_after(
    log_weights: Float[Array, "B M"], risk: Float[Array, "B M"], step: Float[Array, " B"]
) -> Float[Array, " B"]:
    """Return the effective sample size after a change of the learning rate by `step`."""
    return ess(_unnormalised(log_weights, risk, step))


def weights_after(
    log_weights: Float[Array, "B M"], risk: Float[Array, "B M"], step: Float[Array, " B"]
) -> tuple[Float[Array, "B M"], Float[Array, " B"]]:
    """Return the weights and their effective sample size after a change of the learning rate by `step`.

    It takes one exponential per particle; `reweight` followed by `ess` takes two.
    """
    scaled = _scaled_weights(_unnormalised(log_weights, risk, step))
    total = scaled.sum(-1)
    return scaled / jnp.where(total > 0, total, 1.0)[:, None], ess_of_weights(scaled)


def _unnormalised(log_weights, risk, step):
    # A particle with a risk that is not finite gets weight zero whatever the sign of `step`, and a particle with
    # weight zero keeps it: the differences of infinities would be NaN or plus infinity.
    alive = jnp.isfinite(risk) & (log_weights > -jnp.inf)
    return jnp.where(alive, log_weights - step[:, None] * jnp.where(alive, risk, 0.0), -jnp.inf)


def _scaled_weights(log_weights: Float[Array, "... M"]) -> Float[Array, "... M"]:
    """Return weights scaled so that the largest is one."""
    return jnp.exp(_relative_to_largest(log_weights))


def _relative_to_largest(log_weights: Float[Array, "... M"]) -> Float[Array, "... M"]:
    largest = log_weights.max(-1, keepdims=True)
    return log_weights - jnp.broadcast_to(jnp.where(jnp.isfinite(largest), largest, 0.0), log_weights.shape)


def ess_of_weights(weights: Float[Array, "... M"]) -> Float[Array, "..."]:
    r"""Return the effective sample size $(\sum W)^2 / \sum W^2$ of weights that need not be normalised."""
    total, squares = weights.sum(-1), jnp.square(weights).sum(-1)
    return jnp.where(squares > 0, jnp.square(total) / jnp.where(squares > 0, squares, 1.0), 0.0)


def host_normalise(log_weights: Float[np.ndarray, "... M"]) -> Float[np.ndarray, "... M"]:
    """Return `normalise(log_weights)`, computed by NumPy in double precision."""
    largest = log_weights.max(-1, keepdims=True)
    relative = log_weights - np.where(np.isfinite(largest), largest, 0.0).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        normalised = relative - np.log(np.exp(relative).sum(-1, keepdims=True))
    return np.where(np.isnan(normalised), -np.inf, normalised).astype(log_weights.dtype)


def host_reweight(particles: Particles, step: float) -> Particles:
    """Return `reweight_particles(particles, step)`, with weights computed by NumPy in double precision."""
    risk, log_weights = jax.device_get((particles.risk, particles.log_weights))
    alive = np.isfinite(risk) & (log_weights > -np.inf)
    shifted = np.where(alive, log_weights - step * np.where(alive, risk, 0.0).astype(np.float64), -np.inf)
    return particles.with_log_weights(jax.device_put(host_normalise(shifted).astype(log_weights.dtype)))


# Moments and linear maps


def host_means(particles: Particles) -> Float[np.ndarray, "K B"]:
    """Return the weighted mean of each replicate, computed by NumPy in double precision."""
    theta, log_weights = jax.device_get((particles.theta, particles.log_weights))
    return np.einsum("kbm,bm->kb", theta, np.exp(log_weights.astype(np.float64)))


def host_moments(particles: Particles) -> tuple[Float[np.ndarray, "K B"], Float[np.ndarray, "B K K"]]:
    """Return the weighted mean and covariance of each replicate, computed by NumPy in double precision."""
    means, theta = host_means(particles), np.asarray(particles.theta)
    weights = np.exp(np.asarray(particles.log_weights, np.float64))
    centred = np.moveaxis(theta - means[:, :, None], 1, 0)
    return means, (centred * weights[:, None]) @ np.swapaxes(centred, 1, 2)


def mean(theta: Float[Array, "K B M"], weights: Float[Array, "B M"]) -> Float[Array, "K B"]:
    return (theta * weights[None]).sum(-1)


def covariance(theta: Float[Array, "K B M"], weights: Float[Array, "B M"]) -> Float[Array, "B K K"]:
    """Return the weighted covariance of each replicate."""
    return mean_and_covariance(theta, weights)[1]


def mean_and_covariance(
    theta: Float[Array, "K B M"], weights: Float[Array, "B M"]
) -> tuple[Float[Array, "K B"], Float[Array, "B K K"]]:
    """Return the weighted mean and covariance of each replicate, in one pass."""

    def one(theta: Float[Array, "K M"], weights: Float[Array, " M"]) -> tuple[Float[Array, " K"], Float[Array, "K K"]]:
        centre = jnp.matmul(theta, weights, precision=jax.lax.Precision.HIGHEST)
        centred = theta - centre[:, None]
        return centre, jnp.matmul(centred * weights[None], centred.T, precision=jax.lax.Precision.HIGHEST)

    means, covariances = map_replicates(one, theta, weights)
    return means.T, covariances


def map_replicates(fn: Callable[..., T], theta: Float[Array, "K B M"], values: Float[Array, "B M"]) -> T:
    """Return the results of `fn(theta, values)` on each replicate, stacked along the first axis.

    On a CPU this is a loop, because a batched matrix product would transpose all particles.
    """

    def loop(theta, values):
        return jax.lax.map(lambda b: fn(theta[:, b], values[b]), jnp.arange(values.shape[0]))

    return jax.lax.platform_dependent(theta, values, cpu=loop, default=jax.vmap(fn, (1, 0)))


def transform(matrix: Float[Array, "B K K"], theta: Float[Array, "K B M"]) -> Float[Array, "K B M"]:
    """Return `matrix @ theta` for each replicate; for few parameters unrolled, as one pass without copies."""
    dim = len(theta)
    if dim > CONFIG.max_unrolled_dim:
        return jax.lax.platform_dependent(matrix, theta, cpu=_transform_in_loop, default=_transform_in_batch)
    return jnp.stack([sum(matrix[:, k, j, None] * theta[j] for j in range(dim)) for k in range(dim)])


def _transform_in_batch(matrix: Float[Array, "B K K"], theta: Float[Array, "K B M"]) -> Float[Array, "K B M"]:
    return jnp.einsum("bkj,jbm->kbm", matrix, theta, precision=jax.lax.Precision.HIGHEST)


def _transform_in_loop(matrix: Float[Array, "B K K"], theta: Float[Array, "K B M"]) -> Float[Array, "K B M"]:
    def set_replicate(b, transformed):
        return jax.lax.dynamic_update_index_in_dim(transformed, matrix[b] @ theta[:, b], b, 1)

    return jax.lax.fori_loop(0, theta.shape[1], set_replicate, jnp.zeros_like(theta))


# Shares and quantiles


def share_below(
    values: Float[Array, "... M"], weights: Float[Array, "... M"], point: Float[Array, "..."]
) -> Float[Array, "..."]:
    """Return the weighted share of values below a point; values equal to it count half."""
    points = jnp.broadcast_to(point[..., None], values.shape)
    side = jnp.where(values < points, 1.0, jnp.where(values == points, 0.5, 0.0))
    return (side * weights).sum(-1)


def quantile(
    values: Float[Array, "... M"], weights: Float[Array, "... M"], probability: Float[Array, "..."]
) -> Float[Array, "..."]:
    """Return the smallest value with at least `probability` of the weight at or below it.

    Floats are ordered like unsigned integers after setting the sign bit of positive floats and inverting all bits of
    negative ones. The function finds the rank of the
    quantile among all floats bit by bit, so that the result is exact whatever the range of the values.
    """
    bits = jnp.finfo(values.dtype).bits
    bits_per_step = 1 if jax.default_backend() == "cpu" else CONFIG.gpu_bits_per_step
    unsigned = jnp.uint32 if bits == 32 else jnp.uint64
    rank_of_infinity = jnp.asarray(0xFF800000 if bits == 32 else 0xFFF0000000000000, unsigned)
    smallest, largest = values.min(-1), values.max(-1)
    candidates = jnp.arange(1, 2**bits_per_step, dtype=unsigned).reshape(-1, *(1,) * probability.ndim)

    def add_bits(i, rank):
        """Extend the leading bits of the rank, which is zero otherwise."""
        shift = (bits - bits_per_step * (i + 1)).astype(unsigned)
        points = _float_of_rank(jnp.minimum(rank[None] + (candidates << shift) - 1, rank_of_infinity), values.dtype)
        below = jnp.where(values[None] <= points[..., None], weights[None], 0.0).sum(-1)
        # The smallest and the largest value are bounds for a probability of 0, or above the rounded sum of the weights.
        short = ((below < probability[None]) | ~(points >= smallest[None])) & ~(points >= largest[None])
        return rank + (short.sum(0).astype(unsigned) << shift)

    rank = jax.lax.fori_loop(0, bits // bits_per_step, add_bits, jnp.zeros(probability.shape, unsigned))
    return _float_of_rank(rank, values.dtype)


def _float_of_rank(rank: UInt[Array, "..."], dtype: Any) -> Float[Array, "..."]:
    """Return the float with a rank among all floats, from the smallest."""
    top = jnp.asarray(1 << (8 * rank.dtype.itemsize - 1), rank.dtype)
    value = jax.lax.bitcast_convert_type(jnp.where(rank >= top, rank ^ top, ~rank), dtype)
    # Processors flush subnormal numbers to zero.
    return jnp.where(jnp.abs(value) < jnp.finfo(dtype).tiny, 0.0, value)


# Resampling


def stratified(key: PRNGKeyArray, weights: Float[Array, " M"], n: int | None = None) -> Int[Array, " n"]:
    """Draw ancestors by stratified resampling (Kitagawa 1996): one uniform in each of `n` equal strata.

    Parameters
    ----------
    key : PRNGKeyArray
        Random key.
    weights : Array of shape (M,)
        Weights, which need not be normalised.
    n : int or None
        Number of ancestors. Default: M.

    Returns
    -------
    Array of shape (n,)
        Indices in ascending order.
    """
    return _inverse_cdf(weights, jax.random.uniform(with_unrolled_threefry(key), weights.shape if n is None else (n,)))


def systematic(key: PRNGKeyArray, weights: Float[Array, " M"]) -> Int[Array, " M"]:
    """Draw ancestors by systematic resampling: the same uniform in each of M equal strata."""
    return _inverse_cdf(weights, jnp.full_like(weights, jax.random.uniform(with_unrolled_threefry(key), ())))


RESAMPLING = {"stratified": stratified, "systematic": systematic}


def resample(
    keys: Key[Array, " B"], particles: Particles, where: Bool[Array, " B"], scheme: str = "stratified"
) -> Particles:
    """Resample replicates to equal weights.

    Parameters
    ----------
    keys : keys of shape (B,)
        Key of each replicate.
    particles : Particles
        Weighted particles.
    where : Array of shape (B,)
        Replicates to resample. If there are none, nothing is computed.
    scheme : str
        Name in `RESAMPLING`. Default: `"stratified"`.

    Returns
    -------
    Particles
    """

    def resampled() -> Particles:
        ancestors = jax.vmap(RESAMPLING[scheme])(keys, particles.weights)
        size = particles.risk.shape[-1]
        taken = particles.take(jnp.where(where[:, None], ancestors, jnp.arange(size, dtype=ancestors.dtype)[None]))
        return taken.with_log_weights(jnp.where(where[:, None], taken.log_weights, particles.log_weights))

    return jax.lax.cond(where.any(), resampled, lambda: particles)


def _inverse_cdf(weights: Float[Array, " M"], uniforms: Float[Array, " n"]) -> Int[Array, " n"]:
    n = uniforms.shape[0]
    points = (jnp.arange(n, dtype=weights.dtype) + uniforms) / n
    # Weights are rounded to integers, whose cumulative sum is exact: it does not increase at a weight of zero, however
    # it is computed. Its last element is at most 2^31, up to the rounding of the sum, and fits into 32 bits.
    cdf = _cumulative_sum((weights / weights.sum() * 2.0**31).astype(jnp.uint32))
    last = cdf[-1]
    points = jnp.minimum((points * last.astype(points.dtype)).astype(jnp.uint32), last - 1)
    return _number_at_or_below(cdf, points)


def _cumulative_sum(values: UInt[Array, " M"]) -> UInt[Array, " M"]:
    """Return the cumulative sum; on a CPU by a loop, because XLA expands it to many operations."""
    if jax.default_backend() != "cpu":
        return jnp.cumsum(values, dtype=values.dtype)
    size = len(values)

    def add_shifted(i, sums):
        padded = jnp.concatenate([jnp.zeros_like(sums), sums])
        return sums + jax.lax.dynamic_slice_in_dim(padded, size - (1 << i), size)

    return jax.lax.fori_loop(0, (size - 1).bit_length(), add_shifted, values)


def _number_at_or_below(ordered: UInt[Array, " M"], points: UInt[Array, " n"]) -> Int[Array, " n"]:
    """Return the number of ordered values at or below each point, at most M - 1, found bit by bit."""
    size = len(ordered)
    n_bits = size.bit_length()

    def add_bit(i, number):
        candidate = number + (1 << (n_bits - 1 - i))
        below = (candidate < size) & (ordered[jnp.minimum(candidate, size) - 1] <= points)
        return jnp.where(below, candidate, number)

    return jax.lax.fori_loop(0, n_bits, add_bit, jnp.zeros(points.shape, jnp.int32))
