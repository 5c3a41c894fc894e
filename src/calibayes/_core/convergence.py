r"""How far to trust Markov chains, importance weights and populations of particles.

`multi_ess` is Vats, Flegal and Jones' (Biometrika 106, 2019): $n\,(|\Lambda| / |\Sigma|)^{1/K}$, with $\Lambda$ the
covariance of the draws and $\Sigma$ that of their mean times n, by batch means of size $\lfloor\sqrt n\rfloor$.
`min_ess` is the smallest of the K effective sizes $n / \tau_k$, with $\tau_k$ the integrated autocorrelation time
by Geyer's initial monotone sequence (Statistical Science 7, 1992).

`pareto_k` is the shape of the tail of importance weights: moments of them of order 1 / k and above do not exist, and
past `pareto_k_limit` no practical number of draws makes up for it (Vehtari, Simpson, Gelman, Yao and Gabry, Journal
of Machine Learning Research 25, 2024). `r_hat` and `population_ess` compare populations run independently of each
other, which shows what no population can know of itself: that they disagree.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from calibayes._backend.linalg import cholesky, lower_inverse
from calibayes._core.particles import factor

_ROWS = 64
_NUMBERS = 2**24
"""That a GPU may hold at once for tails of weights."""


def multi_ess(chain: Float[np.ndarray, "R K"]) -> float:
    """Multivariate effective sample size of a chain, a draw a row."""
    chain = _checked(chain)
    return float(batch_means_ess(jnp.asarray(chain - chain.mean(0), float)))


@jax.jit
def batch_means_ess(chain: Float[Array, "R K"]) -> Float[Array, ""]:
    """`multi_ess` of a checked chain, for use inside compiled code. Zero for a chain that does not move."""
    n, dim = chain.shape
    size = int(n**0.5)
    n_batches = n // size
    # What does not move is zero then, to the last digit.
    chain = chain - chain[:1]
    # No linear map changes the ratio: one that makes the draws all but uncorrelated leaves digits for it.
    chain = _product(chain - chain.mean(0)[None], lower_inverse(factor(_covariance(chain)[None]))[0].T)
    kept = chain[n - n_batches * size :]
    batches = kept.reshape(n_batches, size, dim).mean(1)
    both = jnp.stack([_covariance(chain), size * _covariance(batches)])
    roots = jnp.diagonal(cholesky(both), axis1=1, axis2=2)
    log_ratio = 2 * (jnp.log(roots[0]) - jnp.log(roots[1])).sum()
    return jnp.nan_to_num(n * jnp.exp(log_ratio / dim), nan=0.0)


_product = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)


def _covariance(draws: Float[Array, "R K"]) -> Float[Array, "K K"]:
    centred = draws - draws.mean(0)[None]
    return _product(centred.T, centred) / (len(draws) - 1)


def min_ess(chain: Float[np.ndarray, "R K"]) -> float:
    """Smallest effective sample size over the parameters of a chain, a draw a row."""
    chain = _checked(chain)
    return float(min(len(chain) / _autocorrelation_time(column) for column in chain.T))


def pareto_k(log_weights: Float[np.ndarray | Array, "B M"]) -> Float[np.ndarray, " B"]:
    """Pareto k-hat of each row's importance weights, which need not be normalised.

    A generalized Pareto distribution is fitted to what the ceil(min(M / 5, 3 sqrt(M))) largest weights exceed the next
    largest by; of weights tied with that one nothing is left to fit. Minus infinity means that k was not computed for
    constant weights, which have no tail; plus infinity that fewer than five different weights are left to fit, all
    are zero, or one is not a number.
    """
    log_weights = log_weights if isinstance(log_weights, jax.Array) else np.asarray(log_weights)
    if log_weights.ndim != 2 or log_weights.shape[1] < 2:
        raise ValueError(f"log_weights must be (rows, draws), with at least 2 draws; got shape {log_weights.shape}.")
    n_draws = log_weights.shape[1]
    size = math.ceil(min(n_draws / 5, 3 * math.sqrt(n_draws))) + 1
    with jax.enable_x64(True):
        if isinstance(log_weights, jax.Array) and jax.default_backend() != "cpu":
            return np.asarray(_pareto_k(log_weights, size))
        # NumPy is quicker to find the largest. So many rows at a time that any number of them is compiled once.
        tails = np.partition(np.asarray(log_weights), n_draws - size, axis=1)[:, -size:]
        full = np.concatenate([tails, np.zeros((-len(tails) % _ROWS, size), tails.dtype)])
        found = [np.asarray(_pareto_k(full[i : i + _ROWS], size)) for i in range(0, len(full), _ROWS)]
        return np.concatenate([*found, np.empty(0)])[: len(tails)]


@partial(jax.jit, static_argnums=1)
def _pareto_k(log_weights: Float[Array, "B M"], size: int) -> Float[Array, " B"]:
    """From the largest `size` of each row."""
    # In ascending order; NaN is the largest, whatever its sign.
    log_weights = jnp.where(jnp.isnan(log_weights), jnp.nan, log_weights)
    tail = jnp.sort(log_weights) if log_weights.shape[1] == size else jax.lax.top_k(log_weights, size)[0][:, ::-1]
    resolution = 8 * float(jnp.finfo(tail.dtype).eps)
    ordered = tail.astype(float)
    largest = ordered[:, -1]
    gap = resolution * jnp.maximum(jnp.abs(largest), 1.0)
    constant = jnp.isfinite(largest) & (largest - ordered[:, 1] <= gap)
    weights = jnp.exp(ordered - largest[:, None])
    fitted = ~constant & ((jnp.diff(weights, axis=1) > 0).sum(1) >= 5)
    k = _pareto_shape(weights[:, 1:] - weights[:, :1])
    return jnp.where(fitted, k, jnp.where(constant, -jnp.inf, jnp.inf))


def pareto_k_limit(size: int) -> float:
    """The k-hat up to which importance weights of `size` draws can be relied on: min(1 - 1 / log10(size), 0.7)."""
    if size < 2:
        raise ValueError(f"size must be at least 2; got {size}.")
    return min(1 - 1 / math.log10(size), 0.7)


def _pareto_shape(excess: Float[Array, "B J"]) -> Float[Array, " B"]:
    """Shape k of generalized Pareto distributions of the positive numbers on each row, in ascending order.

    Zhang and Stephens' (Technometrics 51, 2009) posterior mean of theta = -k / sigma over the profile likelihood,
    on their grid of quantiles of a prior; then drawn towards 1/2 as ten more numbers would, as PSIS does. In units of
    the largest number. Zeros are in no sum, as log(1 - theta 0) = 0, and so need only be left out of the number n.
    """
    size = excess.shape[1]
    excess = excess / excess[:, -1:]
    number = (excess > 0).sum(1)
    at, n = jnp.clip(size - number + (number + 2) // 4 - 1, 0, size - 1), number.astype(excess.dtype)
    quartile = jnp.take_along_axis(excess, at[:, None], 1)
    quartile = jnp.maximum(quartile, 1e-300)  # so that its inverse is finite
    n_grid = 30 + math.isqrt(size)
    quantiles = 1 - jnp.sqrt(n_grid / (jnp.arange(n_grid, dtype=float) + 0.5))
    theta = 1 + quantiles[None] / (3 * quartile)
    theta = jnp.where(theta == 0, jnp.finfo(theta.dtype).eps, theta)  # where k / theta has a limit, but is 0 / 0

    def shape(theta: Float[Array, " B"]) -> Float[Array, " B"]:
        return jnp.log1p(-theta[:, None] * excess).sum(1) / n

    # A column at a time stays in a processor's cache; elsewhere it is so many launches.
    at_once = None if jax.default_backend() == "cpu" else max(1, min(n_grid, _NUMBERS // excess.size))
    k = jax.lax.map(shape, theta.T, batch_size=at_once).T
    profile = n[:, None] * (jnp.log(-theta / k) - k)
    posterior = jnp.exp(profile - profile.max(1, keepdims=True))
    mean = (theta * posterior).sum(1) / posterior.sum(1)
    return (n * shape(mean) + 5) / (n + 10)


def r_hat(populations: Float[np.ndarray | Array, "K G M"]) -> Float[np.ndarray, " K"]:
    """R-hat of each of K quantities on G independent populations of M draws, by Gelman and Rubin's definition.

    Populations are not split: the draws of one are exchangeable, and its halves agree whatever is wrong with it. One
    where all draws are equal; infinity where they are in each population, but populations differ.
    """
    return _r_hat(*_variances(populations), populations.shape[2])


def _r_hat(within: Float[np.ndarray, " K"], between: Float[np.ndarray, " K"], n_draws: int) -> Float[np.ndarray, " K"]:
    ratio = np.divide(between, within, out=np.where(between > 0, np.inf, 1 / n_draws), where=within > 0)
    return np.sqrt((n_draws - 1) / n_draws + ratio)


def population_ess(populations: Float[np.ndarray | Array, "K G M"]) -> Float[np.ndarray, " K"]:
    """Effective number of draws for the mean of each of K quantities, in G independent populations of M together.

    As many independent draws as have means that vary like those of the populations, at most G M. From a variance of
    G means, so right to a factor of about 1 +- sqrt(2 / (G - 1)). All G M count where all are equal.
    """
    return _population_ess(*_variances(populations), *populations.shape[1:])


def population_agreement(
    within: Float[np.ndarray, " K"], between: Float[np.ndarray, " K"], n_populations: int, n_draws: int
) -> tuple[float, float]:
    """The largest R-hat of all quantities, and the smallest effective number of draws, given their `spread`."""
    sizes = _population_ess(within, between, n_populations, n_draws)
    return float(_r_hat(within, between, n_draws).max()), float(sizes.min())


def _population_ess(
    within: Float[np.ndarray, " K"], between: Float[np.ndarray, " K"], n_populations: int, n_draws: int
) -> Float[np.ndarray, " K"]:
    ratio = np.divide(within, between, out=np.full_like(within, np.inf), where=between > 0)
    return n_populations * np.minimum(ratio, n_draws)


def _variances(
    populations: Float[np.ndarray | Array, "K G M"],
) -> tuple[Float[np.ndarray, " K"], Float[np.ndarray, " K"]]:
    """Mean variance within populations, and variance of their means."""
    draws = np.asarray(populations, float)
    if draws.ndim != 3 or min(draws.shape[1:]) < 2:
        raise ValueError(
            "populations must be (quantities, populations, draws), with at least two populations of two draws; "
            f"got shape {draws.shape}."
        )
    if not np.isfinite(draws).all():
        raise ValueError("populations must be finite.")
    return within_between_variances(draws)


def within_between_variances(draws: Any) -> tuple[Any, Any]:
    """Mean variance within populations and variance of their means, of quantities (K, G, M) in either kind of array."""
    # From the first draw, so that equal draws have variance zero, not that of rounding.
    first = draws[:, :, :1]
    gaps = draws - first
    means = (first - first[:, :1])[..., 0] + gaps.mean(2)
    return gaps.var(2, ddof=1).mean(1), means.var(1, ddof=1)


def _autocorrelation_time(x: Float[np.ndarray, " R"]) -> float:
    """1 + 2 times the sum of autocorrelations, cut where sums of adjacent pairs turn negative."""
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


def _checked(chain: np.ndarray) -> np.ndarray:
    chain = np.asarray(chain, float)
    if chain.ndim != 2 or len(chain) <= 2 * chain.shape[1] ** 2 or len(chain) < 16:
        raise ValueError(
            f"chain must be (draws, parameters), with more than 2 K^2 draws and at least 16; got shape {chain.shape}."
        )
    if not np.isfinite(chain).all():
        raise ValueError("chain must be finite.")
    return chain
