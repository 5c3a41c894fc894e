r"""One refit of the affine maps from the importance weights of the mapped particles.

A refit moves $\mu_b$ and $L_b$ to the mean and covariance of the posterior of the replicate. With few effective
particles these must be estimated with care:

- *Moments*: the weighted mean and covariance, with tempered weights ($w^t$ with t < 1) until enough particles are
  effective, and the covariance shrunk towards that of the present map by the expected contribution of noise.
- *Regression*, if weighted moments would need more effective particles than there are: for normal u and
  $\log w = a + \delta^\top u - u^\top Q u / 2$, the averages of $\log w \cdot u$ and of $-\log w \cdot uu^\top$ over
  all particles (with centred log-weights) are $\delta$ and $Q$ by Stein's identity, so that the posterior has precision
  $I + Q$ and mean $(I + Q)^{-1}\delta$ in the coordinates of u. Q is shrunk in the same way.

Both need sums over particles of some numbers times $u$ and $uu^\top$. All replicates of a population have the same u,
so that these sums are matrix products. On a CPU NumPy computes them, and compiles nothing; an accelerator computes them
where the weights are. The rest is algebra of small matrices on the host.
"""

from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from calibayes._backend.functions import host_array
from calibayes._backend.jit import jit
from calibayes._backend.linalg import clip_eigenvalues, host_factor
from calibayes._core.particles import Particles
from calibayes.samplers.transport import config
from calibayes.samplers.transport.maps import AffineMaps, WhitenedPool

Draws = Float[Array | np.ndarray, "K M"]
LogWeights = Float[Array | np.ndarray, "T M"]
Exponents = Float[Array | np.ndarray, " T"]
"""Whitened draws of one population; log-weights of its replicates, and exponents of their weights."""

Moments = tuple[Float[np.ndarray, "R K"], Float[np.ndarray, "R K K"]]
"""Means and covariances of some posteriors, in the coordinates of u."""


class Sums(NamedTuple):
    """Sums over the particles of every replicate, as NumPy or JAX arrays."""

    first: Float[Array | np.ndarray, "B K"]
    """Weighted mean of u, or slope of the log-weights in u."""
    second: Float[Array | np.ndarray, "B K K"]
    """Weighted covariance of u, or curvature of the log-weights in u."""
    variance: Float[Array | np.ndarray, " B"]
    """Noise variance of an off-diagonal entry of `second`."""


def required_ess(dim: int) -> int:
    """Return the effective sample size that weighted moments of `dim` parameters require."""
    return config.CONFIG.refit.ess_per_parameter * dim


def n_search_particles(dim: int, size: int, fits_moments: bool) -> int:
    """Return the number of particles used during the search, of `size` particles of `dim` parameters.

    `fits_moments` states whether the maps are fitted to moments of these particles.
    """
    constants = config.CONFIG.fit
    smallest = max(constants.min_search_particles, required_ess(dim) if fits_moments else 0)
    return min(size, max(size // constants.search_thinning, smallest))


def whiten(particles: Particles, eta: float, fits_moments: bool) -> tuple[WhitenedPool, WhitenedPool]:
    """Return the whitened pool, and the part of it for the search."""
    whitened = WhitenedPool.from_particles(particles, eta)
    return whitened, whitened.truncated(n_search_particles(len(particles.theta), whitened.n_particles, fits_moments))


def refit_maps(
    pool: WhitenedPool, maps: AffineMaps, log_weights: Float[Array, "B M"], ess: Float[np.ndarray, " B"]
) -> AffineMaps:
    """Return maps to the posterior means and covariances, estimated from the weights of `maps`.

    Parameters
    ----------
    pool : WhitenedPool
        The pool.
    maps : AffineMaps
        The present maps.
    log_weights : array of shape (B, M)
        Log-weights of the particles mapped by `maps`.
    ess : array of shape (B,)
        Their effective sample sizes.
    """
    constants = config.CONFIG.refit
    dim, _, size = pool.u.shape
    required = required_ess(dim)
    too_few = ess < required
    # Where few replicates have too few effective particles, tempered moments serve for them too.
    by_regression = too_few & (required > constants.moments_only_below * size) | (required >= size)
    step, spread = np.zeros((len(ess), dim)), np.zeros((len(ess), dim, dim))
    if not by_regression.all():
        step[~by_regression], spread[~by_regression] = _weighted_moments(pool, log_weights, too_few, ~by_regression)
    if by_regression.any():
        step[by_regression], spread[by_regression] = _regression_moments(pool, log_weights, by_regression)
    centre = maps.centre + np.einsum("bkj,bj->kb", maps.root, step)
    # Importance weights are unbounded where the proposal has lighter tails than the posterior.
    widening = (1 + constants.widening / dim**constants.widening_decay) ** 0.5
    return AffineMaps(host_array(centre), host_array(widening * maps.root @ host_factor(spread)))


def _weighted_moments(
    pool: WhitenedPool, log_weights: Float[Array, "B M"], too_few: Bool[np.ndarray, " B"], where: Bool[np.ndarray, " B"]
) -> Moments:
    """Estimate by tempered weights ($w^t$ with t < 1), with the covariance shrunk towards the identity.

    `where` are the replicates to estimate, and those of `too_few` have too few effective particles.
    """
    exponents = np.ones(len(too_few), pool.u.dtype)
    if (tempered := too_few & where).any():
        exponents[tempered] = _largest_exponents(np.asarray(log_weights)[tempered], required_ess(len(pool.u)))
    if jax.default_backend() == "cpu":
        sums = _by_population_on_host(_weighted_sums, pool, np.asarray(log_weights), exponents, where)
    else:
        sums = _weighted_sums_on_device(pool, log_weights, exponents)
    means, covariances, variances = (np.asarray(total, np.float64)[where] for total in sums)
    return means, _shrink_to_identity(covariances, variances)


def _regression_moments(pool: WhitenedPool, log_weights: Float[Array, "B M"], where: Bool[np.ndarray, " B"]) -> Moments:
    """Estimate by Stein's identity, with equal weights for all particles, on the replicates of `where`."""
    unused = np.zeros(len(where), pool.u.dtype)
    if jax.default_backend() == "cpu":
        sums = _by_population_on_host(_regression_sums, pool, np.asarray(log_weights), unused, where)
    else:
        sums = _regression_sums_on_device(pool, log_weights, unused)
    slopes, curvatures, variances = (np.asarray(total, np.float64)[where] for total in sums)
    eye, limit = np.eye(len(pool.u)), config.CONFIG.refit.max_variance_ratio
    precision = _shrink_to_identity(eye - curvatures, variances)
    precision = np.where(np.isfinite(precision), precision, eye)
    spread = np.linalg.inv(clip_eigenvalues(precision, 1 / limit, limit))
    return np.einsum("bkj,bj->bk", spread, slopes), spread


def _shrink_to_identity(
    matrix: Float[np.ndarray, "B K K"], variance: Float[np.ndarray, " B"]
) -> Float[np.ndarray, "B K K"]:
    """Shrink matrices towards the identity by the expected squared distance due to noise (James-Stein).

    `variance` is the noise variance of an off-diagonal entry, and half of that of a diagonal one, so that the squared
    distance due to noise is K (K + 1) times `variance`.
    """
    dim = matrix.shape[-1]
    eye = np.eye(dim)
    distance = np.square(matrix - eye).sum((-1, -2))
    kept = np.clip(1 - dim * (dim + 1) * variance / np.where(distance > 0, distance, 1.0), 0.0, 1.0)
    return eye + kept[:, None, None] * (matrix - eye)


def _largest_exponents(log_weights: Float[np.ndarray, "R M"], required: int) -> Float[np.ndarray, " R"]:
    """Return the largest exponents with which the weights have the required effective sample size."""
    relative = _relative_to_largest(log_weights, np)
    low, high = np.zeros(len(relative), relative.dtype), np.ones(len(relative), relative.dtype)
    for _ in range(config.CONFIG.refit.tempering_bisections):
        middle = 0.5 * (low + high)
        weights = np.exp(middle[:, None] * relative)
        enough = np.square(weights.sum(-1)) >= required * np.square(weights).sum(-1)
        low, high = np.where(enough, middle, low), np.where(enough, high, middle)
    return low


# Sums over the particles of the replicates of one population, by NumPy or by JAX as the array module `xp`


def _weighted_sums(u: Draws, log_weights: LogWeights, exponents: Exponents, xp: ModuleType) -> Sums:
    """Return weighted means and covariances."""
    weights = xp.exp(exponents[:, None] * _relative_to_largest(log_weights, xp))
    weights = xp.where(xp.isfinite(log_weights), weights, 0.0)
    total = weights.sum(-1)
    weights = weights / xp.where(total > 0, total, 1.0)[:, None]
    squares = xp.square(weights).sum(-1)
    means = weights @ u.T
    covariances = (weights[:, None] * u[None]) @ u.T - means[:, :, None] * means[:, None, :]
    # Without any weight, nothing is known: the infinite noise shrinks the covariance to the identity.
    return Sums(means, covariances, xp.where(total > 0, squares, xp.inf))


def _regression_sums(u: Draws, log_weights: LogWeights, unused: Exponents, xp: ModuleType) -> Sums:
    """Return slopes and curvatures of the log-weights."""
    del unused
    size = u.shape[-1]
    value = xp.maximum(log_weights, log_weights.max(-1, keepdims=True) - config.CONFIG.refit.log_weight_range)
    value = value - value.mean(-1, keepdims=True)
    slope = value @ u.T / size
    residual = value - slope @ u
    curvature = (residual[:, None] * u[None]) @ u.T / size
    return Sums(slope, curvature, xp.square(residual).sum(-1) / size**2)


def _relative_to_largest(log_weights: LogWeights, xp: ModuleType) -> LogWeights:
    """Return log-weights relative to the largest, clipped so that products with a small exponent stay finite."""
    largest = log_weights.max(-1, keepdims=True)
    relative = log_weights - xp.where(xp.isfinite(largest), largest, 0.0)
    return xp.maximum(relative, -config.CONFIG.refit.max_log_weight_gap)


def _by_population_on_host(
    sums_of: Callable[..., Sums],
    pool: WhitenedPool,
    log_weights: Float[np.ndarray, "B M"],
    exponents: Float[np.ndarray, " B"],
    where: Bool[np.ndarray, " B"],
) -> Sums:
    """Return the sums of the replicates of `where`, one population after another; zero for the others."""
    (dim, n_populations, _), n = pool.u.shape, len(where)
    sums = Sums(np.zeros((n, dim)), np.zeros((n, dim, dim)), np.zeros(n))
    with np.errstate(invalid="ignore"):
        for population in range(min(n_populations, n)):
            replicates = np.flatnonzero(where[population::n_populations]) * n_populations + population
            if len(replicates):
                part = sums_of(pool.u[:, population], log_weights[replicates], exponents[replicates], np)
                for total, values in zip(sums, part, strict=True):
                    total[replicates] = values
    return sums


@jit
def _weighted_sums_on_device(
    pool: WhitenedPool, log_weights: Float[Array, "B M"], exponents: Float[Array | np.ndarray, " B"]
) -> Sums:
    return _by_population_on_device(_weighted_sums, pool, log_weights, jnp.asarray(exponents))


@jit
def _regression_sums_on_device(
    pool: WhitenedPool, log_weights: Float[Array, "B M"], unused: Float[Array | np.ndarray, " B"]
) -> Sums:
    return _by_population_on_device(_regression_sums, pool, log_weights, jnp.asarray(unused))


def _by_population_on_device(
    sums_of: Callable[..., Sums], pool: WhitenedPool, log_weights: Float[Array, "B M"], exponents: Float[Array, " B"]
) -> Sums:
    """Return the sums of all replicates, with the replicates of a population along an axis of their own."""
    n, n_populations = len(log_weights), pool.n_populations
    missing = -n % n_populations

    def by_population(leaf: Array) -> Array:
        padded = jnp.concatenate([leaf, jnp.zeros((missing, *leaf.shape[1:]), leaf.dtype)])
        return jnp.swapaxes(padded.reshape(-1, n_populations, *leaf.shape[1:]), 0, 1)

    def by_replicate(leaf: Array) -> Array:
        return jnp.swapaxes(leaf, 0, 1).reshape(-1, *leaf.shape[2:])[:n]

    with jax.default_matmul_precision("highest"):
        arguments = (jnp.swapaxes(pool.u, 0, 1), by_population(log_weights), by_population(exponents))
        return jax.tree.map(by_replicate, jax.lax.map(lambda args: sums_of(*args, jnp), arguments))
