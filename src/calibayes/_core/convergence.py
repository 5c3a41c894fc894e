r"""Convergence diagnostics of Markov chains, importance weights and populations of particles.

*Chains.* `multi_ess` is the multivariate effective sample size of Vats, Flegal and Jones (2019), $n\,(|\Lambda| /
|\Sigma|)^{1/K}$, where $\Lambda$ is the covariance of the draws and $\Sigma$ that of their mean times $n$, estimated
by batch means of size $\lfloor\sqrt n\rfloor$. `smallest_ess` is the smallest of the K univariate effective sample
sizes $n / \tau_k$, where the integrated autocorrelation time $\tau_k$ is estimated by Geyer's (1992) initial monotone
sequence.

*Importance weights.* `pareto_k` is the shape of the tail of the weights: their moments of order $1 / k$ and above do
not exist, and above `pareto_k_limit` no practical number of draws is sufficient (Vehtari et al. 2024).

*Populations.* `r_hat` and `population_ess` compare populations that were sampled independently of each other, which
reveals errors that cannot be seen within a single population.

References
----------
Geyer (1992), Practical Markov chain Monte Carlo, Statistical Science 7.
Vats, Flegal and Jones (2019), Multivariate output analysis for Markov chain Monte Carlo, Biometrika 106.
Vehtari, Simpson, Gelman, Yao and Gabry (2024), Pareto smoothed importance sampling, JMLR 25.
Zhang and Stephens (2009), A new and efficient estimation method for the generalized Pareto distribution,
Technometrics 51.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from calibayes._backend.jit import jit
from calibayes._backend.linalg import cholesky, inverse_factor


@dataclass(frozen=True)
class ConvergenceConfig:
    """Tuning constants of the diagnostics. They affect time and memory only."""

    max_gpu_numbers: int = 2**24
    """Number of floats that the grid of the Pareto fit may take at a time on a GPU: 128 MiB in float64.
    Order-of-magnitude choice."""


CONFIG = ConvergenceConfig()

_MIN_CHAIN_LENGTH = 16
"""Shortest chain whose effective sample size is computed: four batches of four draws."""
_MIN_TAIL = 5
"""Smallest number of distinct tail weights to which a generalized Pareto distribution is fitted, as in PSIS."""


def multi_ess(chain: Float[np.ndarray, "R K"]) -> float:
    """Return the multivariate effective sample size of a Markov chain.

    Parameters
    ----------
    chain : ndarray of shape (R, K)
        R draws of K parameters, with R at least 16 and above 2 K^2.

    Returns
    -------
    float
        Effective sample size; 0 if a parameter does not move.

    Raises
    ------
    ValueError
        If the chain is too short or not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from calibayes.diagnostics import multi_ess
    >>> chain = np.random.default_rng(0).normal(size=(4000, 2))
    >>> 2500 < multi_ess(chain) < 6000
    True
    """
    chain = _check_chain(chain)
    return float(batch_means_ess(jnp.asarray(chain - chain.mean(0), float)))


@jit
def batch_means_ess(chain: Float[Array, "R K"]) -> Float[Array, ""]:
    """Return `multi_ess` of a chain without checks, for use in compiled code; 0 for a chain that does not move."""
    n, dim = chain.shape
    size = int(n**0.5)
    n_batches = n // size
    # A parameter that does not move becomes exactly zero.
    chain = chain - chain[:1]
    # The ratio of determinants is invariant to linear maps. Whitening keeps both matrices well conditioned.
    chain = _product(chain - chain.mean(0)[None], inverse_factor(_covariance(chain)[None])[0].T)
    kept = chain[n - n_batches * size :]
    batches = kept.reshape(n_batches, size, dim).mean(1)
    both = jnp.stack([_covariance(chain), size * _covariance(batches)])
    roots = jnp.diagonal(cholesky(both), axis1=1, axis2=2)
    log_ratio = 2 * (jnp.log(roots[0]) - jnp.log(roots[1])).sum()
    return jnp.nan_to_num(n * jnp.exp(log_ratio / dim), nan=0.0)


def smallest_ess(chain: Float[np.ndarray, "R K"]) -> float:
    """Return the smallest effective sample size over the parameters of a Markov chain.

    Parameters
    ----------
    chain : ndarray of shape (R, K)
        R draws of K parameters, with R at least 16 and above 2 K^2.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If the chain is too short or not finite, or if a parameter does not move.

    Examples
    --------
    >>> import numpy as np
    >>> from calibayes.diagnostics import smallest_ess
    >>> chain = np.cumsum(np.random.default_rng(0).normal(size=(4000, 2)), axis=0)
    >>> smallest_ess(chain) < 100
    True
    """
    chain = _check_chain(chain)
    return float(min(len(chain) / _autocorrelation_time(column) for column in chain.T))


def pareto_k(log_weights: Float[np.ndarray | Array, "B M"]) -> Float[np.ndarray, " B"]:
    """Return the Pareto k-hat of the importance weights of each replicate.

    A generalized Pareto distribution is fitted to the excess of the ceil(min(M / 5, 3 sqrt(M))) largest weights over
    the next largest weight. Weights equal to that one are left out.

    Parameters
    ----------
    log_weights : array of shape (B, M)
        Logarithms of the weights, up to a constant per replicate.

    Returns
    -------
    ndarray of shape (B,)
        Shape k of each replicate. Minus infinity for constant weights, which have no tail. Plus infinity if fewer than
        five distinct weights are left to fit, if all weights are zero, or if one is NaN.

    Raises
    ------
    ValueError
        If `log_weights` has the wrong shape.

    Examples
    --------
    >>> import numpy as np
    >>> from calibayes.diagnostics import pareto_k, pareto_k_limit
    >>> log_weights = 0.3 * np.random.default_rng(0).exponential(size=(1, 2000))  # a Pareto tail with k = 0.3
    >>> 0 < float(pareto_k(log_weights)[0]) < pareto_k_limit(2000)
    True
    """
    log_weights = log_weights if isinstance(log_weights, jax.Array) else np.asarray(log_weights)
    if log_weights.ndim != 2 or log_weights.shape[1] < 2:
        raise ValueError(
            f"log_weights must be (replicates, draws), with at least 2 draws; got shape {log_weights.shape}."
        )
    n_draws = log_weights.shape[1]
    size = math.ceil(min(n_draws / 5, 3 * math.sqrt(n_draws))) + 1
    if isinstance(log_weights, jax.Array) and jax.default_backend() != "cpu":
        with jax.enable_x64(True):
            return np.asarray(_pareto_k_on_device(log_weights, size))
    tails = np.sort(np.partition(np.asarray(log_weights), n_draws - size, axis=1)[:, -size:])
    with np.errstate(all="ignore"):
        return _pareto_k(tails, np)


def pareto_k_limit(size: int) -> float:
    """Return the largest Pareto k-hat at which importance weights are reliable.

    Parameters
    ----------
    size : int
        Number of draws, at least 2.

    Returns
    -------
    float
        min(1 - 1 / log10(size), 0.7), after Vehtari et al. (2024).

    Examples
    --------
    >>> from calibayes.diagnostics import pareto_k_limit
    >>> pareto_k_limit(100), pareto_k_limit(10_000)
    (0.5, 0.7)
    """
    if size < 2:
        raise ValueError(f"size must be at least 2; got {size}.")
    return min(1 - 1 / math.log10(size), 0.7)


def r_hat(populations: Float[np.ndarray | Array, "K G M"]) -> Float[np.ndarray, " K"]:
    """Return Gelman and Rubin's R-hat of independent populations.

    Populations are not split into halves, so that a trend within a Markov chain is not detected: pass the halves of a
    chain as two populations. The draws of a population of particles have no order.

    Parameters
    ----------
    populations : array of shape (K, G, M)
        K quantities in G populations of M draws each.

    Returns
    -------
    ndarray of shape (K,)
        R-hat of each quantity; 1 if all draws are equal, infinity if they are equal within populations only.

    Raises
    ------
    ValueError
        If there are fewer than two populations or draws, or if a draw is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from calibayes.diagnostics import r_hat
    >>> draws = np.random.default_rng(0).normal(size=(1, 4, 1000))
    >>> float(r_hat(draws)[0]) < 1.01
    True
    >>> float(r_hat(draws + np.arange(4)[None, :, None])[0]) > 1.5
    True
    """
    return _r_hat(*_check_and_decompose(populations), populations.shape[2])


def population_ess(populations: Float[np.ndarray | Array, "K G M"]) -> Float[np.ndarray, " K"]:
    """Return the effective sample size of independent populations together.

    It is the number of independent draws whose mean has the same variance as the mean over all populations, estimated
    by the variance of the G population means divided by G; at most G M. From G means the result is accurate to a factor
    of about 1 +- sqrt(2 / (G - 1)).

    Parameters
    ----------
    populations : array of shape (K, G, M)
        K quantities in G populations of M draws each.

    Returns
    -------
    ndarray of shape (K,)
        Effective sample size for the mean of each quantity; G M if all draws are equal.

    Raises
    ------
    ValueError
        If there are fewer than two populations or draws, or if a draw is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from calibayes.diagnostics import population_ess
    >>> population_ess(np.ones((1, 4, 1000)))
    array([4000.])
    """
    return _population_ess(*_check_and_decompose(populations), *populations.shape[1:])


def population_agreement(
    within: Float[np.ndarray, " K"], between: Float[np.ndarray, " K"], n_populations: int, n_draws: int
) -> tuple[float, float]:
    """Return the largest R-hat and the smallest effective sample size over all quantities.

    Parameters
    ----------
    within, between : ndarray of shape (K,)
        The values of `within_between_variances`.
    n_populations, n_draws : int
        Number of populations, and of draws in each.

    Returns
    -------
    tuple of float
    """
    sizes = _population_ess(within, between, n_populations, n_draws)
    return float(_r_hat(within, between, n_draws).max()), float(sizes.min())


def within_between_variances(draws: Any) -> tuple[Any, Any]:
    """Return the mean variance within populations and the variance of their means.

    Parameters
    ----------
    draws : Array or ndarray of shape (K, G, M)
        K quantities in G populations of M draws each.

    Returns
    -------
    tuple of arrays of shape (K,)
        Arrays of the same type as `draws`.
    """
    # Relative to the first draw, so that equal draws have variance exactly zero.
    first = draws[:, :, :1]
    gaps = draws - first
    means = (first - first[:, :1])[..., 0] + gaps.mean(2)
    return gaps.var(2, ddof=1).mean(1), means.var(1, ddof=1)


_product = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)


def _covariance(draws: Float[Array, "R K"]) -> Float[Array, "K K"]:
    centred = draws - draws.mean(0)[None]
    return _product(centred.T, centred) / (len(draws) - 1)


@partial(jax.jit, static_argnums=1)
def _pareto_k_on_device(log_weights: Float[Array, "B M"], size: int) -> Float[Array, " B"]:
    """Return Pareto k from the `size` largest log-weights of each replicate."""
    # Replace NaN of either sign, which top_k counts as the largest.
    log_weights = jnp.where(jnp.isnan(log_weights), jnp.nan, log_weights)
    return _pareto_k(jax.lax.top_k(log_weights, size)[0][:, ::-1], jnp)


def _pareto_k(tail: Any, xp: Any) -> Any:
    """Return Pareto k from the largest log-weights of each replicate in ascending order, by NumPy or JAX (`xp`)."""
    resolution = 8 * float(np.finfo(tail.dtype).eps)
    ordered = tail.astype(float)
    largest = ordered[:, -1]
    gap = resolution * xp.maximum(xp.abs(largest), 1.0)
    constant = xp.isfinite(largest) & (largest - ordered[:, 1] <= gap)
    weights = xp.exp(ordered - largest[:, None])
    fitted = ~constant & ((xp.diff(weights, axis=1) > 0).sum(1) >= _MIN_TAIL)
    k = _pareto_shape(weights[:, 1:] - weights[:, :1], xp)
    return xp.where(fitted, k, xp.where(constant, -xp.inf, xp.inf))


def _pareto_shape(excess: Any, xp: Any) -> Any:
    """Fit generalized Pareto distributions to non-negative numbers in ascending order, and return their shapes k.

    The estimate of Zhang and Stephens (2009): the posterior mean of theta = -k / sigma over the profile likelihood, on
    their grid of quantiles of a prior. Then, as in PSIS, k is shrunk towards 1/2 with the weight of ten observations.
    Numbers are scaled by the largest. Zeros do not contribute to the sums, because log(1 - theta 0) = 0, and only need
    to be left out of the number n.
    """
    size = excess.shape[1]
    excess = excess / excess[:, -1:]
    number = (excess > 0).sum(1)
    index, n = xp.clip(size - number + (number + 2) // 4 - 1, 0, size - 1), number.astype(excess.dtype)
    quartile = xp.take_along_axis(excess, index[:, None], 1)
    quartile = xp.maximum(quartile, 1e-300)  # so that its inverse is finite
    n_grid = 30 + math.isqrt(size)
    quantiles = 1 - np.sqrt(n_grid / (np.arange(n_grid) + 0.5))
    theta = 1 + quantiles[None] / (3 * quartile)
    theta = xp.where(theta == 0, np.finfo(theta.dtype).eps, theta)  # k / theta is 0 / 0 at 0, but has a limit

    def shape(theta: Any) -> Any:
        return xp.log1p(-theta[:, None] * excess).sum(1) / n

    if xp is np:
        k = np.stack([shape(theta[:, i]) for i in range(n_grid)], 1)
    else:
        # Several grid points at a time, because each step of the loop is a kernel launch.
        batch = max(1, min(n_grid, CONFIG.max_gpu_numbers // excess.size))
        k = jax.lax.map(shape, theta.T, batch_size=batch).T
    profile = n[:, None] * (xp.log(-theta / k) - k)
    posterior = xp.exp(profile - profile.max(1, keepdims=True))
    mean = (theta * posterior).sum(1) / posterior.sum(1)
    return (n * shape(mean) + 5) / (n + 10)


def _r_hat(within: Float[np.ndarray, " K"], between: Float[np.ndarray, " K"], n_draws: int) -> Float[np.ndarray, " K"]:
    ratio = np.divide(between, within, out=np.where(between > 0, np.inf, 1 / n_draws), where=within > 0)
    return np.sqrt((n_draws - 1) / n_draws + ratio)


def _population_ess(
    within: Float[np.ndarray, " K"], between: Float[np.ndarray, " K"], n_populations: int, n_draws: int
) -> Float[np.ndarray, " K"]:
    ratio = np.divide(within, between, out=np.full_like(within, np.inf), where=between > 0)
    return n_populations * np.minimum(ratio, n_draws)


def _check_and_decompose(
    populations: Float[np.ndarray | Array, "K G M"],
) -> tuple[Float[np.ndarray, " K"], Float[np.ndarray, " K"]]:
    draws = np.asarray(populations, float)
    if draws.ndim != 3 or min(draws.shape[1:]) < 2:
        raise ValueError(
            "populations must be (quantities, populations, draws), with at least two populations of two draws; "
            f"got shape {draws.shape}."
        )
    if not np.isfinite(draws).all():
        raise ValueError("populations must be finite.")
    return within_between_variances(draws)


def _autocorrelation_time(x: Float[np.ndarray, " R"]) -> float:
    """Return one plus twice the sum of the autocorrelations, by Geyer's initial monotone sequence."""
    correlation = _autocorrelation(x)
    pairs = correlation[: len(x) // 2 * 2].reshape(-1, 2).sum(1)
    negative = np.flatnonzero(pairs <= 0)
    initial = pairs[: negative[0]] if negative.size else pairs
    return max(2 * np.minimum.accumulate(initial).sum() - 1, 1 / len(x))


def _autocorrelation(x: Float[np.ndarray, " R"]) -> Float[np.ndarray, " R"]:
    n = len(x)
    transform = np.fft.rfft(x - x.mean(), 2 * n)
    covariance = np.fft.irfft(np.abs(transform) ** 2, 2 * n)[:n]
    if covariance[0] <= 0:
        raise ValueError("a parameter of the chain does not move: its effective sample size is not defined.")
    return covariance / covariance[0]


def _check_chain(chain: np.ndarray) -> np.ndarray:
    chain = np.asarray(chain, float)
    if chain.ndim != 2 or len(chain) <= 2 * chain.shape[1] ** 2 or len(chain) < _MIN_CHAIN_LENGTH:
        raise ValueError(
            f"chain must be (draws, parameters), with more than 2 K^2 draws and at least {_MIN_CHAIN_LENGTH}; "
            f"got shape {chain.shape}."
        )
    if not np.isfinite(chain).all():
        raise ValueError("chain must be finite.")
    return chain
