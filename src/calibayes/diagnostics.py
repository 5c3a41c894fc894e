r"""Effective sample sizes of Markov chains.

`multi_ess` is Vats, Flegal and Jones' (Biometrika 106, 2019): $n\,(|\Lambda| / |\Sigma|)^{1/K}$, with $\Lambda$ the
covariance of the draws and $\Sigma$ that of their mean times n, by batch means of size $\lfloor\sqrt n\rfloor$.
`min_ess` is the smallest of the K effective sizes $n / \tau_k$, with $\tau_k$ the integrated autocorrelation time
by Geyer's initial monotone sequence (Statistical Science 7, 1992).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def multi_ess(chain: Float[np.ndarray, "R K"]) -> float:
    """Multivariate effective sample size of a chain, a draw a row."""
    chain = _checked(chain)
    return float(multi_ess_of(jnp.asarray(chain - chain.mean(0), float)))


@jax.jit
def multi_ess_of(chain: Float[Array, "R K"]) -> Float[Array, ""]:
    """`multi_ess` of a checked chain, for use inside compiled code. Zero for a chain that does not move."""
    n, dim = chain.shape
    size = int(n**0.5)
    n_batches = n // size
    kept = chain[n - n_batches * size :]
    batches = kept.reshape(n_batches, size, dim).mean(1)
    centred = batches - kept.mean(0)[None]
    of_mean = size * centred.T @ centred / (n_batches - 1)
    of_draws = jnp.atleast_2d(jnp.cov(chain, rowvar=False))
    log_ratio = jnp.linalg.slogdet(of_draws)[1] - jnp.linalg.slogdet(of_mean)[1]
    return jnp.nan_to_num(n * jnp.exp(log_ratio / dim), nan=0.0)


def min_ess(chain: Float[np.ndarray, "R K"]) -> float:
    """Smallest effective sample size over the parameters of a chain, a draw a row."""
    chain = _checked(chain)
    return float(min(len(chain) / _autocorrelation_time(column) for column in chain.T))


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
