"""Findings about the sample: few observations, integer weights that are repetitions, and columns that are redundant."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from calibayes._core.status import Code, Diagnostic, Severity
from calibayes._core.weights import Weights
from calibayes.bootstrap import Block, Cluster


@dataclass(frozen=True)
class SampleConfig:
    """Thresholds of the findings."""

    few_per_parameter: int = 100
    """Observations (or clusters, or blocks) per parameter below which a note says that coverage of the true parameter
    may be below the level. In simulated median regressions (`python -m studies table1`), 95% sets cover 92.2 to 93.0%
    (standard error 0.6) at 50 observations per parameter, and 92.9 to 94.9% (0.9) at 200."""
    very_few_per_parameter: int = 20
    """Number of them below which the note is a warning. Order-of-magnitude choice."""
    many_repetitions: float = 2.0
    """Mean of integer weights, over the rows of positive weight, above which a note says that they are taken as numbers
    of repetitions. Intervals are narrower than those of survey weights by about its square root, so that a smaller mean
    changes them by less than 1.4. Order-of-magnitude choice."""
    suspicious_repetitions: float = 20.0
    """The same, above which it is a warning: intervals of survey weights would be more than four times as wide.
    Order-of-magnitude choice."""
    rank_check_rows: int = 2**16
    """Number of rows of X on which collinearity is checked first; all rows are used only if these are collinear. If a
    subset of the rows has full column rank, so has X, so the value affects the running time only. Order-of-magnitude
    choice: the rank of 65,536 rows takes milliseconds."""


CONFIG = SampleConfig()


def few_observations(n: int, dim: int, bootstrap: object) -> list[Diagnostic]:
    """Return a finding if the bootstrap resamples few independent units per parameter.

    Parameters
    ----------
    n : int
        Number of observations.
    dim : int
        Number of parameters.
    bootstrap : Bootstrap or ndarray
        The bootstrap scheme, whose clusters or blocks are the independent units, or counts.
    """
    match bootstrap:
        case Cluster(n_groups=n_units):
            unit = "clusters"
        case Block(length=length):
            n_units, unit = n // length, f"blocks of {length} observations"
        case _:
            n_units, unit = n, "observations"
    if n_units >= CONFIG.few_per_parameter * dim:
        return []
    severity = Severity.WARNING if n_units < CONFIG.very_few_per_parameter * dim else Severity.INFO
    message = (
        f"{n_units:,} {unit} are few for {dim} parameter{'s' * (dim > 1)}: the coverage of the true parameters may be "
        "below the level, because the bootstrap is an approximation for large samples."
    )
    return [Diagnostic(Code.FEW_OBSERVATIONS, severity, n_units, message)]


def many_repetitions(weights: Weights | None) -> list[Diagnostic]:
    """Return a note if integer weights, which may be meant as survey weights, stand for many more observations.

    Parameters
    ----------
    weights : Weights or None
        Weights of the observations; None if all are one.
    """
    if weights is None or not weights.repeats:
        return []
    n, n_weighted = weights.n_resampled, int((weights.values > 0).sum())
    if n <= CONFIG.many_repetitions * n_weighted:
        return []
    severity = Severity.WARNING if n > CONFIG.suspicious_repetitions * n_weighted else Severity.INFO
    message = (
        f"Integer weights are taken as numbers of repetitions: {n:,} observations from {n_weighted:,} rows. If they "
        "are survey weights, divide them by their mean."
    )
    return [Diagnostic(Code.WEIGHTS_REPEAT, severity, n, message)]


def redundant_columns(
    x: Float[np.ndarray, "N K"],
    names: Sequence[str],
    extremes: tuple[Float[np.ndarray, " K"], Float[np.ndarray, " K"]] | None = None,
) -> list[Diagnostic]:
    """Return a diagnostic if a column of X is zero, a second constant, or collinear with others.

    Parameters
    ----------
    x : ndarray of shape (N, K)
        X, or the sample of data in parts, whose rank is taken as that of X.
    names : sequence of str
        Names of the parameters.
    extremes : pair of ndarray of shape (K,), optional
        Smallest and largest values of the columns. Default: those of `x`.
    """
    low, high = (x.min(0), x.max(0)) if extremes is None else extremes

    def label(k: int) -> str:
        return f"column {k}" if names[k] == f"theta[{k}]" else names[k]

    if len(x) > CONFIG.rank_check_rows and _has_full_rank(x[:: len(x) // CONFIG.rank_check_rows]):
        return []
    constant = [k for k in range(x.shape[1]) if low[k] == high[k]]
    zero = [k for k in constant if low[k] == 0]
    if zero or len(constant) > 1:
        redundant = zero or constant[1:]
        columns, plural = ", ".join(map(label, redundant)), len(redundant) > 1
        drop = "drop them" if plural else "drop it"
        if zero:
            coefficient = "coefficients" if plural else "coefficient"
            message = f"X: {columns}: all values are zero, so the data say nothing about the {coefficient}; {drop}."
        else:
            message = f"X: {columns}: constant, like the intercept. Only the prior separates the coefficients; {drop}."
    elif not _has_full_rank(x):
        redundant = [0]
        message = "X: its columns are collinear. Only the prior can tell their coefficients apart; drop a column."
    else:
        return []
    return [Diagnostic(Code.REDUNDANT_COLUMNS, Severity.WARNING, len(redundant), message)]


def _has_full_rank(x: np.ndarray) -> bool:
    scale = np.abs(x).max(0)
    return bool(np.linalg.matrix_rank(x / np.where(scale > 0, scale, 1)) == x.shape[1])
