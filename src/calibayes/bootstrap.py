"""Bootstrap resampling schemes.

A bootstrap replicate is a vector of counts, one per observation, and never a copy of the data. The schemes differ only
in how they draw the counts of one replicate. Replicate b is drawn from its own key, `fold_in(key, b)`, so that it does
not depend on the number of replicates.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
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
from calibayes._backend.rng import replicate_keys, with_unrolled_threefry
from calibayes._core.counts import poisson_counts

__all__ = ["Bayesian", "Block", "Bootstrap", "Cluster", "Multinomial", "Poisson", "Stratified"]


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
        return jax.device_put(self.host_counts(replicate_keys(key, self.n_replicates), n))

    def repeated(self, repeats: Int[np.ndarray, " N"]) -> "Bootstrap":  # noqa: ARG002
        """Return the scheme for data in which each observation is repeated, next to its copies.

        Override it if the scheme has labels of the observations.

        Parameters
        ----------
        repeats : ndarray of shape (N,)
            Number of times that each observation occurs.

        Returns
        -------
        Bootstrap
            Default: the scheme itself.
        """
        return self

    def host_counts(self, keys: Key[Array, " R"], n: int) -> Float[np.ndarray, "R N"]:
        """Draw the counts of some replicates, and copy them to the host.

        Parameters
        ----------
        keys : keys of shape (R,)
            Keys of the replicates.
        n : int
            Number of observations, N.

        Returns
        -------
        ndarray of shape (R, N)
        """
        self.check(n)
        return np.asarray(_draw(self, keys, n))


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

    def host_counts(self, keys, n):
        if type(self).replicate is not _PaddedBootstrap.replicate:
            return super().host_counts(keys, n)
        self.check(n)
        n_draws = self._n_draws(n)
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


class Stratified(_PaddedBootstrap):
    """Observations drawn with replacement within each stratum, for stratified samples.

    Parameters
    ----------
    n_replicates : int
        Number of bootstrap replicates.
    strata : array-like of shape (N,)
        Stratum label of each observation: numbers, strings or dates. None, NaN, NaT and `pandas.NA` are rejected.

    Attributes
    ----------
    strata : Array of shape (N,)
        Index of each observation's stratum, from 0.
    sizes : tuple of int
        Number of observations of each stratum.

    Notes
    -----
    From a stratum of n observations n - 1 are drawn, and their counts are multiplied by n / (n - 1), so that the
    bootstrap variance of a sum is the unbiased one (Rao, Wu and Yue 1992). With n draws it would be too small by the
    factor (n - 1) / n, which is one half with two observations per stratum.

    References
    ----------
    Rao, Wu and Yue (1992), Some recent work on resampling methods for complex surveys, Survey Methodology 18.

    Examples
    --------
    >>> import jax
    >>> import calibayes as cb
    >>> bootstrap = cb.bootstrap.Stratified(500, strata=["a", "a", "a", "b", "b"])
    >>> counts = bootstrap.counts(jax.random.key(0), 5)
    >>> float(counts[0, :3].sum()), float(counts[0, 3:].sum())
    (3.0, 2.0)
    """

    strata: Int[Array, " N"]
    sizes: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, n_replicates: int, strata: object):
        indices, sizes = _indices(strata, "strata")
        self.n_replicates = n_replicates
        self.strata = jax.device_put(indices)
        self.sizes = sizes

    def check(self, n):
        _check_labels(self.strata, "strata", n)
        _check_strata(self.sizes, "observation")

    def repeated(self, repeats):
        self.check(len(repeats))
        return Stratified(self.n_replicates, np.repeat(np.asarray(self.strata), repeats))

    _draw = staticmethod(_random_words)

    def _n_draws(self, n):
        return n - len(self.sizes)

    def _counts(self, drawn, n):  # noqa: ARG002
        on_host = isinstance(drawn, np.ndarray)
        strata = np.asarray(self.strata) if on_host else self.strata
        # Ranks of the observations when they are sorted by stratum.
        units = strata.argsort(stable=True).argsort(stable=True)
        return _counts_within_strata(drawn, self.sizes)[..., units]


class Cluster(_PaddedBootstrap):
    """Whole clusters drawn with replacement, for grouped data.

    Parameters
    ----------
    n_replicates : int
        Number of bootstrap replicates.
    groups : array-like of shape (N,)
        Cluster label of each observation: numbers, strings or dates. None, NaN, NaT and `pandas.NA` are rejected.
    strata : array-like of shape (N,), optional
        Stratum label of each observation. Clusters are drawn within strata, as in a survey: from a stratum of n
        clusters n - 1, with counts multiplied by n / (n - 1), as by `Stratified`. Default: no strata, n of n clusters.

    Attributes
    ----------
    groups : Array of shape (N,)
        Index of each observation's cluster, from 0. With strata, clusters of a stratum have consecutive indices.
    n_groups : int
        Number of clusters.
    strata : Array of shape (N,) or None
        Index of each observation's stratum; None without strata.
    sizes : tuple of int or None
        Number of clusters of each stratum; None without strata.

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
    strata: Int[Array, " N"] | None = None
    sizes: tuple[int, ...] | None = eqx.field(static=True, default=None)

    def __init__(self, n_replicates: int, groups: object, strata: object = None):
        indices, group_sizes = _indices(groups, "groups")
        self.n_replicates = n_replicates
        self.n_groups = len(group_sizes)
        self.strata, self.sizes = None, None
        if strata is not None:
            of_observations = _indices(strata, "strata")[0]
            if of_observations.shape != indices.shape:
                raise ValueError(
                    f"strata must hold one label for each of {len(indices)} observations; got {len(of_observations)}."
                )
            indices, self.sizes = _order_by_stratum(indices, of_observations)
            self.strata = jax.device_put(of_observations)
        self.groups = jax.device_put(indices)

    def check(self, n):
        _check_labels(self.groups, "groups", n)
        if self.n_groups < 2:
            raise ValueError("groups must name at least two clusters; got one.")
        if self.sizes is not None:
            _check_strata(self.sizes, "cluster")

    def repeated(self, repeats):
        self.check(len(repeats))
        strata = None if self.strata is None else np.repeat(np.asarray(self.strata), repeats)
        return Cluster(self.n_replicates, np.repeat(np.asarray(self.groups), repeats), strata)

    _draw = staticmethod(_random_words)

    def _n_draws(self, n):  # noqa: ARG002
        return self.n_groups - (0 if self.sizes is None else len(self.sizes))

    def _counts(self, drawn, n):  # noqa: ARG002
        groups = np.asarray(self.groups) if isinstance(drawn, np.ndarray) else self.groups
        if self.sizes is not None:
            return _counts_within_strata(drawn, self.sizes)[..., groups]
        return _count(_integers(drawn, self.n_groups), self.n_groups)[..., groups]


def _counts_within_strata(drawn: Any, sizes: tuple[int, ...]) -> Any:
    """Return the counts of units that are sorted by stratum: n - 1 of n are drawn from each, times n / (n - 1)."""
    stops = np.cumsum(np.array(sizes) - 1)
    units = [
        _integers(drawn[..., stop - size + 1 : stop], size) + first
        for size, stop, first in zip(sizes, stops.tolist(), [0, *np.cumsum(sizes).tolist()], strict=False)
    ]
    concatenate = np.concatenate if isinstance(drawn, np.ndarray) else jnp.concatenate
    factors = host_array(np.repeat([size / (size - 1) for size in sizes], sizes))
    return _count(concatenate(units, -1), sum(sizes)) * factors


def _order_by_stratum(
    groups: Int[np.ndarray, " N"], strata: Int[np.ndarray, " N"]
) -> tuple[Int[np.ndarray, " N"], tuple[int, ...]]:
    """Return the indices of the clusters, sorted by stratum, and the number of clusters of each stratum."""
    pairs, ordered = np.unique(np.stack([strata, groups], 1), axis=0, return_inverse=True)
    if len(pairs) > groups.max() + 1:
        raise ValueError(
            "strata: a cluster lies in more than one stratum. Use labels that differ between strata, such as pairs of "
            "stratum and cluster."
        )
    return ordered.reshape(-1).astype(np.int32), tuple(int(size) for size in np.bincount(pairs[:, 0]))


def _indices(labels: object, name: str) -> tuple[Int[np.ndarray, " N"], tuple[int, ...]]:
    """Return the index of each label among the sorted labels, and how often each of them occurs."""
    if n_missing := _count_missing(labels):
        raise ValueError(f"{name} must have a label for every observation; {n_missing} are missing.")
    try:
        _, indices, sizes = np.unique(np.asarray(labels), return_inverse=True, return_counts=True)
    except TypeError:
        raise TypeError(f"{name} must be labels of one kind, such as numbers or texts.") from None
    return indices.astype(np.int32), tuple(int(size) for size in sizes)


def _check_labels(labels: Int[Array, "..."], name: str, n: int) -> None:
    if labels.shape != (n,):
        raise ValueError(f"{name} must hold one label for each of {n} observations; got {labels.shape}.")


def _check_strata(sizes: tuple[int, ...], unit: str) -> None:
    if 1 in sizes:
        raise ValueError(
            f"strata: {sizes.count(1)} of {len(sizes)} strata have only one {unit}, which does not show how much it "
            "varies. Merge them with similar strata."
        )


def _count_missing(labels: object) -> int:
    """Return the number of labels that are None, NaN, NaT or `pandas.NA`."""
    # NumPy would turn the NaN of a list of texts into a text.
    array = np.asarray(labels) if hasattr(labels, "dtype") else np.asarray(labels, object)
    if array.dtype != object:
        return int((array != array).sum())
    return sum(label is None or type(label).__name__ == "NAType" or bool(label != label) for label in array.flat)


@jit
def _draw(bootstrap: Bootstrap, keys: Key[Array, " B"], n: int) -> Float[Array, "B N"]:
    return jax.lax.map(lambda key: bootstrap.replicate(with_unrolled_threefry(key), n), keys)


@light_jit
def _draw_padded(
    draw: Callable[[int, PRNGKeyArray], Num[Array, "... size"]], size: int, keys: Key[Array, " B"]
) -> Num[Array, "B ... size"]:
    return jax.lax.map(lambda key: draw(size, with_unrolled_threefry(key)), keys)


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
