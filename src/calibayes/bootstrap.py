"""Bootstraps: how often each observation counts on each row.

A bootstrap sample is a row of counts, never a copy of the data. The bootstraps differ only in how they
draw the row, from a key of its own (`fold_in(key, b)`), so that row b is the same whatever B is.
"""

from abc import abstractmethod
from numbers import Real
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from calibayes._backend.rng import replicate_keys
from calibayes._core.counts import Poissons, poisson_counts

MANY = 2**27
"""Counts that are still stored, whichever bootstrap they are of."""


class Bootstrap(eqx.Module):
    """B rows of counts of N observations, each with expectation one unless a bootstrap draws fewer than N."""

    n_replicates: int = eqx.field(static=True)

    @abstractmethod
    def replicate(self, key: PRNGKeyArray, n: int) -> Float[Array, " N"]:
        """One row of counts."""

    def check(self, n: int) -> None:
        """Raise if this bootstrap cannot be drawn for `n` observations."""

    def counts(self, key: PRNGKeyArray, n: int) -> Float[Array, "B N"]:
        self.check(n)
        return _draw(self, replicate_keys(key, self.n_replicates), n)


def drawn(
    rows: "Bootstrap | Float[np.ndarray, 'B N']", key: PRNGKeyArray, n: int
) -> Float[np.ndarray, "B N"] | Poissons:
    """Rows of counts; or, if they are many and need not be stored, what to draw them from."""
    if not isinstance(rows, Bootstrap):
        return rows
    if isinstance(rows, Poisson) and rows.n_replicates * n > MANY:
        return Poissons(key, rows.n_replicates, n)
    return np.asarray(rows.counts(key, n))


class Multinomial(Bootstrap):
    """Efron's: N observations drawn with replacement, the paper's; or `size` of them, the m-out-of-n bootstrap.

    Where the loss is of the 0-1 type its minimiser converges like n^-1/3, the n-out-of-n bootstrap is inconsistent
    (Abrevaya and Huang 2005), and drawing m << n is consistent (Bickel, Götze and van Zwet 1997). `rate` is the
    exponent gamma of that n^-gamma: 1/2 in regular problems, 1/3 in cube-root ones. A posterior at eta is about
    (n eta)^-1/2 wide, and as wide as the minimiser varies if eta is of order n^(2 gamma - 1). Hence eta_m on m
    observations stands for eta_m (m / n)^(1 - 2 gamma) on all n, and counts are multiplied by
    (n / m)^(1 - 2 gamma): rows are then on the scale of the data's eta, and nothing else need know. Their expectation
    is (m / n)^(2 gamma).
    """

    size: int | None = eqx.field(static=True, default=None)
    rate: float = eqx.field(static=True, default=0.5)

    def check(self, n):
        whole = isinstance(self.size, int | np.integer) and not isinstance(self.size, bool)
        if self.size is not None and not (whole and 2 <= self.size <= n):
            raise ValueError(f"size of a bootstrap sample must be an integer from 2 to N = {n}; got {self.size!r}.")
        if not isinstance(self.rate, Real) or not 0 < self.rate <= 0.5:
            raise ValueError(f"rate must be above 0 and at most 1/2, the exponent of n^-rate; got {self.rate!r}.")

    def replicate(self, key, n):
        size = n if self.size is None else self.size
        drawn = _tally(jax.random.randint(key, (size,), 0, n), n)
        return drawn * (n / size) ** (1 - 2 * self.rate)


class Bayesian(Bootstrap):
    """Rubin's: Dirichlet weights, so that no observation is ever left out."""

    def replicate(self, key, n):
        weights = jax.random.exponential(key, (n,))
        return weights * (n / weights.sum())


class Poisson(Bootstrap):
    """Independent Poisson(1) counts, which need no knowledge of N.

    They follow from the row's key and the observation's number, and are drawn where they are needed instead of stored:
    the one for large data.
    """

    def replicate(self, key, n):
        return poisson_counts(key[None], jnp.asarray(0), n + n % 2)[:n, 0]


class Block(Bootstrap):
    """Blocks of consecutive observations, for serially dependent data.

    Circular blocks wrap around the end of the series, so that every observation is expected once.
    Moving blocks do not and leave the ends out too often: their counts are centred, `counts - expected
    + 1`, which keeps the covariance of the moving-block bootstrap. A centred count can fall slightly
    below zero.
    """

    length: int = eqx.field(static=True)
    circular: bool = eqx.field(static=True, default=True)

    def check(self, n):
        whole = isinstance(self.length, int | np.integer) and not isinstance(self.length, bool)
        if not (whole and 1 <= self.length <= n):
            raise ValueError(f"length of a block must be between 1 and N = {n}; got {self.length!r}.")

    def replicate(self, key, n):
        n_blocks = -(-n // self.length)
        n_starts = n if self.circular else n - self.length + 1
        starts = jax.random.randint(key, (n_blocks,), 0, n_starts)
        # The last block is cut so that N observations are drawn in all.
        counts = _tally((self._members(starts) % n).reshape(-1)[:n], n)
        return counts if self.circular else counts - self._expected(n) + 1

    def _members(self, starts: Int[Array, " J"]) -> Int[Array, "J L"]:
        return starts[:, None] + jnp.arange(self.length)[None, :]

    def _expected(self, n: int) -> Float[Array, " N"]:
        n_starts = n - self.length + 1
        members = self._members(jnp.arange(n_starts))
        n_full, cut = divmod(n, self.length)
        full = _tally(members.reshape(-1), n) * n_full
        return (full + _tally(members[:, :cut].reshape(-1), n)) / n_starts


class Cluster(Bootstrap):
    """Whole groups drawn with replacement; `groups` holds the label of each observation."""

    groups: Int[Array, " N"]
    n_groups: int = eqx.field(static=True)

    def __init__(self, n_replicates: int, groups: Any):
        labels = np.asarray(groups)
        try:
            names, indices = np.unique(labels, return_inverse=True)
        except TypeError:
            raise TypeError("groups must be labels of one kind, with none missing.") from None
        if labels.dtype.kind == "f" and np.isnan(labels).any():
            raise ValueError(f"groups must have a label for every observation; {np.isnan(labels).sum()} are NaN.")
        self.n_replicates, self.groups, self.n_groups = (
            n_replicates,
            jax.device_put(indices.astype(np.int32)),
            len(names),
        )

    def check(self, n):
        if self.groups.shape != (n,):
            raise ValueError(f"groups must hold one label for each of {n} observations; got {self.groups.shape}.")
        if self.n_groups < 2:
            raise ValueError("groups must name at least two clusters; got one.")

    def replicate(self, key, n):  # noqa: ARG002
        drawn = _tally(jax.random.randint(key, (self.n_groups,), 0, self.n_groups), self.n_groups)
        return drawn[self.groups]


@eqx.filter_jit
def _draw(bootstrap: Bootstrap, keys: Key[Array, " B"], n: int) -> Float[Array, "B N"]:
    return jax.lax.map(lambda key: bootstrap.replicate(key, n), keys)


def _tally(indices: Int[Array, " J"], n: int) -> Float[Array, " N"]:
    return jnp.zeros(n).at[indices].add(1.0)
