r"""One refit of the affine maps from the importance weights of the mapped particles.

A refit moves $\mu_b$ and $L_b$ to the mean and covariance of the posterior of the replicate. With few effective
particles these must be estimated with care:

- *Moments*: the weighted mean and covariance, with tempered weights ($w^t$ with t < 1) until enough particles are
  effective, and the covariance shrunk towards that of the present map by the expected contribution of noise.
- *Regression*, if weighted moments would need more effective particles than there are: for normal u and
  $\log w = a + \delta^\top u - u^\top Q u / 2$, the averages of $\log w \cdot u$ and of $-\log w \cdot uu^\top$ over
  all particles (with centred log-weights) are $\delta$ and $Q$ by Stein's identity, so that the posterior has precision
  $I + Q$ and mean $(I + Q)^{-1}\delta$ in the coordinates of u. Q is shrunk in the same way.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from calibayes._backend.jit import jit, light_jit
from calibayes._backend.linalg import clip_eigenvalues, inverse_cholesky
from calibayes._core.particles import Particles, ess, ess_of_weights, factor, map_replicates, mean_and_covariance
from calibayes.samplers.transport import config
from calibayes.samplers.transport.maps import AffineMaps, WhitenedPool

Moments = tuple[Float[Array, "K B"], Float[Array, "B K K"]]
"""Mean and covariance of every posterior, in the coordinates of u."""


def required_ess(dim: int) -> int:
    """Return the effective sample size that weighted moments of `dim` parameters require."""
    return config.CONFIG.refit.ess_per_parameter * dim


@light_jit
def whiten(particles: Particles, eta: Float[Array, ""]) -> tuple[WhitenedPool, WhitenedPool]:
    """Return the whitened pool, and the part of it for the search."""
    constants = config.CONFIG.fit
    whitened, (dim, _, size) = WhitenedPool.from_particles(particles, eta), particles.theta.shape
    minimum = max(required_ess(dim), constants.min_search_particles)
    return whitened, whitened.truncated(min(size, max(size // constants.search_fraction, minimum)))


@jit
def refit_maps(pool: WhitenedPool, maps: AffineMaps, log_weights: Float[Array, "B M"]) -> AffineMaps:
    """Return maps to the posterior means and covariances, estimated from the weights of `maps`.

    Parameters
    ----------
    pool : WhitenedPool
        The pool.
    maps : AffineMaps
        The present maps.
    log_weights : array of shape (B, M)
        Log-weights of the particles mapped by `maps`.
    """
    constants = config.CONFIG.refit
    n_replicates, size = log_weights.shape
    u, _ = pool.assigned(n_replicates)
    dim = len(u)
    required = required_ess(dim)
    if required <= constants.moments_only_below * size:
        step, spread = _weighted_moments(u, log_weights, required)
    elif required >= size:
        step, spread = _regression_moments(u, log_weights)
    else:
        too_few, moments = ess(log_weights) < required, _weighted_moments(u, log_weights, required)

        def regression_where_too_few() -> Moments:
            (step, spread), (other_step, other_spread) = moments, _regression_moments(u, log_weights)
            mask = too_few[:, None, None]
            return jnp.where(too_few[None], other_step, step), jnp.where(mask, other_spread, spread)

        step, spread = jax.lax.cond(too_few.any(), regression_where_too_few, lambda: moments)
    centre = maps.centre + (maps.root * step.T[:, None, :]).sum(-1).T
    # Importance weights are unbounded where the proposal has lighter tails than the posterior.
    widening = (1 + constants.widening / dim**constants.widening_decay) ** 0.5
    return AffineMaps(centre, widening * maps.root @ factor(spread))


def _weighted_moments(u: Float[Array, "K B M"], log_weights: Float[Array, "B M"], required: int) -> Moments:
    """Estimate by tempered weights ($w^t$ with t < 1), with the covariance shrunk towards the identity."""
    constants = config.CONFIG.refit
    largest = log_weights.max(-1, keepdims=True)
    largest = jnp.broadcast_to(jnp.where(jnp.isfinite(largest), largest, 0.0), log_weights.shape)
    relative = jnp.maximum(log_weights - largest, -constants.max_log_weight_gap)

    def bisect(_, bracket):
        low, high = bracket
        middle = 0.5 * (low + high)
        enough = ess_of_weights(jnp.exp(middle[:, None] * relative)) >= required
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    too_few, zero = ess(log_weights) < required, jnp.zeros(len(log_weights), u.dtype)
    largest_exponent = lambda: jax.lax.fori_loop(0, constants.tempering_bisections, bisect, (zero, zero + 1))[0]
    exponent = jnp.where(too_few, jax.lax.cond(too_few.any(), largest_exponent, lambda: zero), 1.0)
    weights = jnp.where(jnp.isfinite(log_weights), jnp.exp(exponent[:, None] * relative), 0.0)
    total = weights.sum(-1)[:, None]
    weights, variance = weights / jnp.where(total > 0, total, 1.0), 1 / ess_of_weights(weights)
    means, covariances = mean_and_covariance(u, weights)
    return means, _shrink_to_identity(covariances, variance)


def _regression_moments(u: Float[Array, "K B M"], log_weights: Float[Array, "B M"]) -> Moments:
    """Estimate by Stein's identity, with equal weights for all particles."""
    constants = config.CONFIG.refit
    dim, _, size = u.shape
    largest = log_weights.max(-1, keepdims=True)
    value = jnp.maximum(log_weights, largest - constants.log_weight_range)
    value = value - value.mean(-1, keepdims=True)

    def regress(u: Float[Array, "K M"], value: Float[Array, " M"]):
        slope = jnp.matmul(u, value / size, precision=jax.lax.Precision.HIGHEST)
        residual = value - jnp.matmul(slope, u, precision=jax.lax.Precision.HIGHEST)
        return slope, (u * (residual / size)[None]) @ u.T, jnp.square(residual).sum() / size**2

    slope, curvature, variance = map_replicates(regress, u, value)
    precision = _shrink_to_identity(jnp.eye(dim)[None] - curvature, variance)
    precision = jnp.where(jnp.isfinite(precision), precision, jnp.eye(dim)[None])
    clipped = clip_eigenvalues(precision, 1 / constants.max_variance_ratio, constants.max_variance_ratio)
    inverse = inverse_cholesky(clipped)
    spread = jnp.matmul(jnp.swapaxes(inverse, -1, -2), inverse, precision=jax.lax.Precision.HIGHEST)
    return (spread * slope[:, None, :]).sum(-1).T, spread


def _shrink_to_identity(matrix: Float[Array, "B K K"], variance: Float[Array, " B"]) -> Float[Array, "B K K"]:
    """Shrink matrices towards the identity by the expected squared distance due to noise (James-Stein).

    `variance` is the noise variance of an off-diagonal entry, and half of that of a diagonal one, so that the squared
    distance due to noise is K (K + 1) times `variance`.
    """
    dim = matrix.shape[-1]
    eye = jnp.eye(dim)[None]
    distance = jnp.square(matrix - eye).sum((-1, -2))
    kept = jnp.clip(1 - dim * (dim + 1) * variance / jnp.where(distance > 0, distance, 1.0), 0.0, 1.0)
    return eye + kept[:, None, None] * (matrix - eye)
