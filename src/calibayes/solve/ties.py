"""Bootstrap replicates that are equal data sets.

Discrete data and very small samples have few distinct bootstrap samples. Replicates with the same observations have
the same posterior, and the same critical level up to Monte Carlo error. Averaged over equal replicates, coverage is the
step function that it should be, and a jump past the level is recognized (`Curve.attainable_eta`).
"""

import jax
import numpy as np
from jaxtyping import Float, Int, PyTree

from calibayes._core.parts import CheckedParts

_MAX_NUMBERS = 2**22
"""Largest number of values, of the data or of the counts, that are compared. For larger data, replicates are taken as
distinct."""


def label_equal_replicates(
    data: PyTree[np.ndarray] | CheckedParts, counts: Float[np.ndarray, "B N"] | object
) -> Int[np.ndarray, " B"] | None:
    """Return a label for each replicate, the same for replicates with the same observations.

    Parameters
    ----------
    data : pytree of ndarray or CheckedParts
        Observations, along the first axis of each array.
    counts : ndarray of shape (B, N)
        Counts of the replicates. Others, such as counts that are drawn on the fly, are taken as distinct.

    Returns
    -------
    ndarray of shape (B,) or None
        Labels; None if all replicates are distinct.
    """
    if not isinstance(counts, np.ndarray) or counts.size > _MAX_NUMBERS or (counts != np.round(counts)).any():
        return None
    leaves = [np.asarray(leaf, np.float64).reshape(counts.shape[1], -1) for leaf in jax.tree.leaves(data)]
    values = np.concatenate(leaves, 1)
    if values.size > _MAX_NUMBERS:
        return None
    # Random projections of integers modulo 2**64: equal rows have equal projections, and the probability that others do
    # is negligible.
    rng = np.random.default_rng(0)
    _, observation = np.unique(_project(values.view(np.int64), rng), return_inverse=True)
    order = np.argsort(observation, kind="stable")
    firsts = np.searchsorted(observation[order], np.arange(observation.max() + 1))
    totals = np.add.reduceat(counts.astype(np.int64)[:, order], firsts, axis=1)
    _, labels = np.unique(_project(totals, rng), return_inverse=True)
    return None if labels.max() + 1 == len(labels) else labels


def average_equal(levels: Float[np.ndarray, "... B"], labels: Int[np.ndarray, " B"] | None) -> np.ndarray:
    """Return critical levels with those of equal replicates replaced by their mean."""
    if labels is None:
        return levels
    sizes = np.bincount(labels)
    flat = levels.reshape(-1, len(labels))
    means = np.stack([np.bincount(labels, row) / sizes for row in flat.astype(np.float64)])
    return means[:, labels].reshape(levels.shape)


def _project(rows: Int[np.ndarray, "R C"], rng: np.random.Generator) -> Int[np.ndarray, " R"]:
    multipliers = rng.integers(-(2**62), 2**62, rows.shape[1])
    with np.errstate(over="ignore"):
        return (rows * multipliers).sum(1)
