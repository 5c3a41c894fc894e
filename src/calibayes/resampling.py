"""The counts of all replicates, given a bootstrap and the weights of the observations.

An integer weight is a number of repetitions. The bootstrap is drawn as for the repeated data, and the counts of the
copies of an observation are added, so that with the same key replicates are those of the repeated data. Other weights
are survey weights, which multiply the counts of the observations.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, PRNGKeyArray

from calibayes._backend.rng import fold_in, replicate_keys
from calibayes._core.counts import PoissonSpec
from calibayes._core.weights import Weights
from calibayes.bootstrap import Bootstrap, Poisson


@dataclass(frozen=True)
class ResamplingConfig:
    """Tuning constants of the storage of counts."""

    max_stored_counts: int = 2**27
    """Largest number of counts (replicates times observations) that is stored as an array. A larger Poisson bootstrap
    is drawn block by block from its keys whenever counts are needed. 2**27 float32 counts take 512 MiB; an
    order-of-magnitude choice for the memory of one calibration. Poisson counts are the same stored or not."""
    drawn_at_once: int = 2**24
    """Largest number of counts of repeated observations that are drawn before they are added up, 64 MiB in float32.
    Order-of-magnitude choice; it does not change the counts."""


CONFIG = ResamplingConfig()


def exceeds_storage(n_replicates: int, n: int) -> bool:
    """Return whether the counts of `n_replicates` replicates of `n` observations are too many to be stored."""
    return n_replicates * n > CONFIG.max_stored_counts


def draw_counts(
    bootstrap: Bootstrap | Float[np.ndarray, "B N"],
    key: PRNGKeyArray,
    n: int,
    weights: Weights | None = None,
    *,
    in_parts: bool = False,
) -> Float[np.ndarray, "B N"] | PoissonSpec:
    """Return the counts of all replicates, or the keys to draw them from if they are too many to be stored.

    Parameters
    ----------
    bootstrap : Bootstrap or ndarray of shape (B, N)
        Bootstrap, or counts, which include the weights.
    key : PRNGKeyArray
        Key of the bootstrap.
    n : int
        Number of observations.
    weights : Weights or None
        Weights of the observations. Default: None, all one.
    in_parts : bool
        Whether the data are in parts, whose counts are never stored. Default: False.

    Returns
    -------
    ndarray of shape (B, N) or PoissonSpec
        Counts, including the weights; a `PoissonSpec` is without weights.

    Raises
    ------
    ValueError
        If all observations of a replicate have weight zero.
    """
    if not isinstance(bootstrap, Bootstrap):
        return bootstrap
    if isinstance(bootstrap, Poisson) and (in_parts or exceeds_storage(bootstrap.n_replicates, n)):
        return PoissonSpec(key, bootstrap.n_replicates, n)
    if weights is not None and weights.repeats:
        return _draw_sums(bootstrap, key, weights)
    counts = bootstrap.host_counts(replicate_keys(key, bootstrap.n_replicates), n)
    if weights is None:
        return counts
    counts = counts * weights.values.astype(counts.dtype)
    empty = counts.sum(1) == 0
    if empty.any():
        raise ValueError(
            f"weights: {int(empty.sum())} of {len(counts)} bootstrap replicates contain only observations of weight "
            "zero. Leave these observations out."
        )
    return counts


def _draw_sums(bootstrap: Bootstrap, key: PRNGKeyArray, weights: Weights) -> Float[np.ndarray, "B N"]:
    """Draw the counts of the repeated data, and add those of the copies of each observation."""
    repeats = weights.values.astype(np.int64)
    expanded, present = bootstrap.repeated(repeats), np.flatnonzero(repeats)
    firsts, n = np.cumsum(repeats)[present] - repeats[present], weights.n_resampled
    replicates = np.arange(bootstrap.n_replicates, dtype=np.uint32)
    step = max(1, CONFIG.drawn_at_once // n)
    sums = []
    for first in range(0, len(replicates), step):
        counts = expanded.host_counts(fold_in(key, replicates[first : first + step]), n)
        sums.append(np.zeros((len(counts), len(repeats)), counts.dtype))
        sums[-1][:, present] = np.add.reduceat(counts, firsts, axis=1)
    return np.concatenate(sums)
