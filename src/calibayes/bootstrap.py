"""Bootstrap resampling schemes.

A bootstrap replicate is a vector of counts, one per observation, and never a copy of the data. The schemes differ only
in how they draw the counts of one replicate. Replicate b is drawn from its own key, `fold_in(key, b)`, so that it does
not depend on the number of replicates.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, Num, PRNGKeyArray, UInt

from calibayes._backend.devices import padded_size
from calibayes._backend.functions import host_array
from calibayes._backend.jit import jit, light_jit
from calibayes._backend.rng import replicate_keys, unrolled
from calibayes._core.counts import PoissonSpec, poisson_counts

__all__ = ["Bayesian", "Block", "Bootstrap", "Cluster", "Multinomial", "Poisson"]


@dataclass(frozen=True)
class BootstrapConfig:
    """Tuning constants of the bootstrap."""

    max_stored_counts: int = 2**27
    """Largest number of counts (replicates times observations) that is stored as an array. A larger Poisson bootstrap
    is drawn block by block from its keys whenever counts are needed. 2**27 float32 counts take 512 MiB; an
    order-of-magnitude choice for the memory of one calibration. Poisson counts are the same stored or not."""


CONFIG = BootstrapConfig()


class Bootstrap(eqx.Module):
    """Base class of bootstrap schemes.

    Subclass it and define `replicate`, which draws the counts of one replicate.

    Parameters
    ----------
    n_replicates : int
        Number of bootstrap replicates, B.

    Examples
    --------
    A random half of the data, each observation counted twice:

    >>> import jax
    >>> import jax.numpy as jnp
    >>> from calibayes.bootstrap import Bootstrap
    >>> class Halves(Bootstrap):
    ...     def replicate(self, key, n):
    ...         return jnp.where(jax.random.permutation(key, n) < n // 2, 2.0, 0.0)
    >>> counts = Halves(100).counts(jax.random.key(0), 10)
    >>> counts.shape
    (100, 10)
    """

    n_replicates: int = eqx.field(static=True)

    @abstractmethod
    def replicate(self, key: PRNGKeyArray, n: int) -> Float[Array, " N"]:
        """Draw the counts of one replicate.

        Parameters
        ----------
        key : PRNGKeyArray
            Random key of the replicate.
        n : int
            Number of observations, N.

        Returns
        -------
        Array of shape (N,)
            Count of each observation. Counts need not be integers. Their expectation should be one, unless the
            replicates are meant to have fewer observations than the data (see `Multinomial`).
        """

    def check(self, n: int) -> None:
        """Raise an error if this scheme cannot resample `n` observations.

        Parameters
        ----------
        n : int
            Number of observations.

        Raises
        ------
        ValueError
            If the settings do not fit the number of observations.
        """

    def counts(self, key: PRNGKeyArray, n: int) -> Float[Array, "B N"]:
        """Draw the counts of all replicates.

        Parameters
        ----------
        key : PRNGKeyArray
            JAX random key.
        n : int
            Number of observations, N.

        Returns
        -------
        Array of shape (B, N)
            Counts, one row per replicate.
        """
        return jax.device_put(self._host_counts(key, n))

    def _host_counts(self, key: PRNGKeyArray, n: int) -> Float[np.ndarray, "B N"]:
        """Draw the counts of all replicates, and copy them to the host."""
        self.check(n)
        return np.asarray(_draw(self, replicate_keys(key, self.n_replicates), n))


class _PaddedBootstrap(Bootstrap):
    """Scheme that draws random numbers in compiled programs of a few sizes, and counts them on the host.

    A random number does not depend on how many are drawn, so that it does not depend on the padding.
    """

    def replicate(self, key, n):
        return self._counts(self._draw(self._n_draws(n), key), n)

    @abstractmethod
    def _n_draws(self, n: int) -> int:
        """Return how many random numbers a replicate of `n` observations takes."""

    @staticmethod
    @abstractmethod
    def _draw(size: int, key: PRNGKeyArray) -> Num[Array, "... size"]:
        """Draw the random numbers of one replicate."""

    @abstractmethod
    def _counts(self, drawn: Any, n: int) -> Any:
        """Return the counts of `n` observations, given the random numbers of one or more replicates."""

    def _host_counts(self, key, n):
        if type(self).replicate is not _PaddedBootstrap.replicate:
            return super()._host_counts(key, n)
        self.check(n)
        n_draws, keys = self._n_draws(n), replicate_keys(key, self.n_replicates)
        drawn = np.asarray(_draw_padded(type(self)._draw, padded_size(n_draws), keys))
        return self._counts(drawn[..., :n_draws], n)


def _random_words(size: int, key: PRNGKeyArray) -> UInt[Array, "2 size"]:
    """Draw the words from which `jax.random.randint` computes integers."""
    dtype = np.dtype(f"u{jax.dtypes.canonicalize_dtype(int)}")
    return jnp.stack([jax.random.bits(half, (size,), dtype) for half in jax.random.split(key)])


def _integers(words: Any, limit: int) -> Any:
    """Return the integers of `jax.random.randint` from 0 to `limit` - 1, given random words.

    On the host NumPy computes them: XLA divides by a number that it does not know in several times the time.
    """
    base = 2 ** (8 * words.dtype.itemsize)
    half = math.isqrt(base) % limit
    divisor, factor = (words.dtype.type(number) for number in (limit, half**2 % base % limit))
    integers = (words[..., 0, :] % divisor * factor + words[..., 1, :] % divisor) % divisor
    return integers.astype(jax.dtypes.canonicalize_dtype(int))


class Multinomial(_PaddedBootstrap):
    r"""Efron's bootstrap: observations drawn with replacement.

    This is the bootstrap of Tanaka (2024). With `size` it is the m-out-of-n bootstrap.

    Parameters
    ----------
    n_replicates : int
        Number of bootstrap replicates.
    size : int, optional
        Number of observations drawn per replicate, m. Default: all n.
    rate : float
        Exponent $\gamma$ of the rate $n^{-\gamma}$ at which the minimiser of the loss converges: 1/2 in regular
        problems, 1/3 for losses of the 0-1 type. Default: 1/2.

    Notes
    -----
    For losses of the 0-1 type the minimiser converges at the rate $n^{-1/3}$, the n-out-of-n bootstrap is inconsistent
    (Abrevaya and Huang 2005), and the m-out-of-n bootstrap with $m \ll n$ is consistent (Bickel et al. 1997).

    The posterior with learning rate $\eta$ has a width of order $(n \eta)^{-1/2}$. It matches the spread of the
    minimiser, of order $n^{-\gamma}$, if $\eta$ is of order $n^{2\gamma - 1}$. Hence $\eta_m$ on m observations
    corresponds to $\eta_m (m / n)^{1 - 2\gamma}$ on n observations. The counts are multiplied by
    $(n / m)^{1 - 2\gamma}$, which expresses all replicates in terms of the learning rate on the full data. The
    expectation of a count is then $(m / n)^{2\gamma}$.

    References
    ----------
    Abrevaya and Huang (2005), On the bootstrap of the maximum score estimator, Econometrica 73.

    Bickel, Götze and van Zwet (1997), Resampling fewer than n observations, Statistica Sinica 7.

    Examples
    --------
    >>> import jax
    >>> import calibayes as cb
    >>> counts = cb.bootstrap.Multinomial(500).counts(jax.random.key(0), 100)
    >>> counts.shape, float(counts[0].sum())
    ((500, 100), 100.0)
    """

    size: int | None = eqx.field(static=True, default=None)
    rate: float = eqx.field(static=True, default=0.5)

    def check(self, n):
        is_integer = isinstance(self.size, int | np.integer) and not isinstance(self.size, bool)
        if self.size is not None and not (is_integer and 2 <= self.size <= n):
            raise ValueError(f"size of a bootstrap sample must be an integer from 2 to N = {n}; got {self.size!r}.")
        if not isinstance(self.rate, Real) or not 0 < self.rate <= 0.5:
            raise ValueError(f"rate must be above 0 and at most 1/2, the exponent of n^-rate; got {self.rate!r}.")

    _draw = staticmethod(_random_words)

    def _n_draws(self, n):
        return n if self.size is None else self.size

    def _counts(self, drawn, n):
        return _count(_integers(drawn, n), n) * host_array((n / drawn.shape[-1]) ** (1 - 2 * self.rate))


class Bayesian(_PaddedBootstrap):
    """Rubin's Bayesian bootstrap: Dirichlet weights, all of them positive.

    Parameters
    ----------
    n_replicates : int
        Number of bootstrap replicates.

    Notes
    -----
    The weights of a replicate are N times a draw from the uniform distribution on the simplex, Dirichlet(1, ..., 1).

    References
    ----------
    Rubin (1981), The Bayesian bootstrap, Annals of Statistics 9.

    Examples
    --------
    >>> import jax
    >>> import calibayes as cb
    >>> counts = cb.bootstrap.Bayesian(500).counts(jax.random.key(0), 100)
    >>> bool((counts > 0).all()), round(float(counts[0].sum()), 2)
    (True, 100.0)
    """

    def _n_draws(self, n):
        return n

    @staticmethod
    def _draw(size, key):
        return jax.random.exponential(key, (size,))

    def _counts(self, drawn, n):
        return drawn * (n / drawn.sum(-1, keepdims=True))


class Poisson(_PaddedBootstrap):
    """Independent Poisson(1) counts, for large data sets.

    Parameters
    ----------
    n_replicates : int
        Number of bootstrap replicates.

    Notes
    -----
    A count is a function of the replicate's key and the index of the observation. `calibrate` does not store the counts
    of a large bootstrap, but draws them block by block when they are needed.

    Examples
    --------
    >>> import jax
    >>> import calibayes as cb
    >>> counts = cb.bootstrap.Poisson(500).counts(jax.random.key(0), 100)
    >>> counts.shape
    (500, 100)
    """

    def _n_draws(self, n):
        return n + n % 2

    @staticmethod
    def _draw(size, key):
        return poisson_counts(key[None], jnp.asarray(0), size)[:, 0]

    def _counts(self, drawn, n):
        return drawn[..., :n]


class Block(_PaddedBootstrap):
    """Blocks of consecutive observations, for serially dependent data.

    Parameters
    ----------
    n_replicates : int
        Number of bootstrap replicates.
    length : int
        Length of the blocks.
    circular : bool
        Whether blocks wrap around the end of the series (circular block bootstrap, Politis and Romano 1992) or
        not (moving block bootstrap, Künsch 1989). Default: True.

    Notes
    -----
    Circular blocks draw every observation once in expectation. Moving blocks draw the ends of the series less often;
    their counts are centred, `counts - expected + 1`, which preserves the covariance of the moving block bootstrap. A
    centred count can be slightly below zero.

    References
    ----------
    Politis and Romano (1992), A circular block-resampling procedure for stationary data.

    Künsch (1989), The jackknife and the bootstrap for general stationary observations, Annals of Statistics 17.

    Examples
    --------
    >>> import jax
    >>> import calibayes as cb
    >>> counts = cb.bootstrap.Block(500, length=10).counts(jax.random.key(0), 100)
    >>> counts.shape, float(counts[0].sum())
    ((500, 100), 100.0)
    """

    length: int = eqx.field(static=True)
    circular: bool = eqx.field(static=True, default=True)

    def check(self, n):
        is_integer = isinstance(self.length, int | np.integer) and not isinstance(self.length, bool)
        if not (is_integer and 1 <= self.length <= n):
            raise ValueError(f"length of a block must be between 1 and N = {n}; got {self.length!r}.")

    _draw = staticmethod(_random_words)

    def _n_draws(self, n):
        return -(-n // self.length)

    def _counts(self, drawn, n):
        starts = _integers(drawn, n if self.circular else n - self.length + 1)
        offsets = np.arange(self.length, dtype=starts.dtype).reshape((1,) * starts.ndim + (-1,))
        members = (starts[..., None] + offsets) % n
        # The last block is truncated so that exactly N observations are drawn.
        counts = _count(members.reshape(*starts.shape[:-1], -1)[..., :n], n)
        return counts if self.circular else counts - host_array(self._expected(n)) + 1

    def _expected(self, n: int) -> Float[np.ndarray, " N"]:
        """Return the expected counts of moving blocks."""
        n_starts = n - self.length + 1
        n_full, remainder = divmod(n, self.length)
        i = np.arange(n)

        def n_containing(length: int) -> Int[np.ndarray, " N"]:
            """Return how many of the possible blocks, truncated to `length`, contain each observation."""
            return np.maximum(np.minimum(i, n_starts - 1) - np.maximum(i - length, -1), 0)

        return (n_full * n_containing(self.length) + n_containing(remainder)) / n_starts


class Cluster(_PaddedBootstrap):
    """Whole clusters drawn with replacement, for grouped data.

    Parameters
    ----------
    n_replicates : int
        Number of bootstrap replicates.
    groups : array-like of shape (N,)
        Cluster label of each observation: numbers, strings or dates. None, NaN, NaT and `pandas.NA` are rejected.

    Attributes
    ----------
    groups : Array of shape (N,)
        Index of each observation's cluster, from 0.
    n_groups : int
        Number of clusters.

    Examples
    --------
    >>> import jax
    >>> import calibayes as cb
    >>> bootstrap = cb.bootstrap.Cluster(500, groups=["a", "a", "b", "c", "c"])
    >>> counts = bootstrap.counts(jax.random.key(0), 5)
    >>> bool((counts[:, 0] == counts[:, 1]).all())
    True
    """

    groups: Int[Array, " N"]
    n_groups: int = eqx.field(static=True)

    def __init__(self, n_replicates: int, groups: object):
        if n_missing := _count_missing(groups):
            raise ValueError(f"groups must have a label for every observation; {n_missing} are missing.")
        try:
            names, indices = np.unique(np.asarray(groups), return_inverse=True)
        except TypeError:
            raise TypeError("groups must be labels of one kind, such as numbers or texts.") from None
        self.n_replicates = n_replicates
        self.groups = jax.device_put(indices.astype(np.int32))
        self.n_groups = len(names)

    def check(self, n):
        if self.groups.shape != (n,):
            raise ValueError(f"groups must hold one label for each of {n} observations; got {self.groups.shape}.")
        if self.n_groups < 2:
            raise ValueError("groups must name at least two clusters; got one.")

    _draw = staticmethod(_random_words)

    def _n_draws(self, n):  # noqa: ARG002
        return self.n_groups

    def _counts(self, drawn, n):  # noqa: ARG002
        groups = np.asarray(self.groups) if isinstance(drawn, np.ndarray) else self.groups
        return _count(_integers(drawn, self.n_groups), self.n_groups)[..., groups]


def _count_missing(labels: object) -> int:
    """Return the number of labels that are None, NaN, NaT or `pandas.NA`."""
    # NumPy would turn the NaN of a list of texts into a text.
    array = np.asarray(labels) if hasattr(labels, "dtype") else np.asarray(labels, object)
    if array.dtype != object:
        return int((array != array).sum())
    return sum(label is None or type(label).__name__ == "NAType" or bool(label != label) for label in array.flat)


def exceeds_storage(n_replicates: int, n: int) -> bool:
    """Return whether the counts of `n_replicates` replicates of `n` observations are too many to be stored."""
    return n_replicates * n > CONFIG.max_stored_counts


def draw_counts(
    bootstrap: Bootstrap | Float[np.ndarray, "B N"], key: PRNGKeyArray, n: int
) -> Float[np.ndarray, "B N"] | PoissonSpec:
    """Return the counts of all replicates, or the keys to draw them from if they are too many to be stored."""
    if not isinstance(bootstrap, Bootstrap):
        return bootstrap
    if isinstance(bootstrap, Poisson) and exceeds_storage(bootstrap.n_replicates, n):
        return PoissonSpec(key, bootstrap.n_replicates, n)
    return bootstrap._host_counts(key, n)


@jit
def _draw(bootstrap: Bootstrap, keys: Key[Array, " B"], n: int) -> Float[Array, "B N"]:
    return jax.lax.map(lambda key: bootstrap.replicate(unrolled(key), n), keys)


@light_jit
def _draw_padded(
    draw: Callable[[int, PRNGKeyArray], Num[Array, "... size"]], size: int, keys: Key[Array, " B"]
) -> Num[Array, "B ... size"]:
    return jax.lax.map(lambda key: draw(size, unrolled(key)), keys)


def _count(indices: Any, n: int) -> Any:
    """Return how often each of 0, ..., n - 1 occurs, along the last axis.

    On the host NumPy counts them, in a fraction of the time that XLA takes on a CPU.
    """
    if not isinstance(indices, np.ndarray):
        return jnp.zeros(n).at[indices].add(1.0)
    counts = np.empty((len(indices), n), jax.dtypes.canonicalize_dtype(float))
    for row, of_replicate in zip(counts, indices, strict=True):
        row[:] = np.bincount(of_replicate, minlength=n)
    return counts
