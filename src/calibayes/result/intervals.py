"""Marginal intervals, each calibrated at its own learning rate, and their tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import DTypeLike

from calibayes._backend.text import align, html_table, latex_table, markdown_table, printable
from calibayes._core.status import Diagnostic, Status


def describe(status: Status, diagnostics: Sequence[Diagnostic]) -> str:
    """Return the status and the diagnostics as one line of sentences."""
    return " ".join([status.value, *(diagnostic.message for diagnostic in diagnostics)])


def percent(level: float) -> str:
    """Return a level as a percentage, such as 95% or 97.5%."""
    return f"{level:.0%}" if round(level * 100) == level * 100 else f"{level:.1%}"


def standard_errors(bounds: Float[np.ndarray, "K 2"], level: float) -> Float[np.ndarray, " K"]:
    """Return the widths of intervals divided by the width of a standard normal interval of the same level."""
    return np.ptp(bounds, 1) / normal_width(level)


def normal_width(level: float) -> float:
    """Return the width of the central interval of a standard normal distribution at a level."""
    return 2 * NormalDist().inv_cdf(0.5 + 0.5 * level)


@dataclass(frozen=True, repr=False)
class Intervals:
    """Marginal credible intervals, each calibrated at its own learning rate.

    `numpy.asarray(intervals)` has shape (K, 2).

    Attributes
    ----------
    names : list of str
        Names of the parameters.
    level : float
        Level of the intervals.
    bounds : ndarray of shape (K, 2)
        Lower and upper bounds.
    eta : ndarray of shape (K,)
        Learning rate at which each interval is calibrated.
    eta_se : ndarray of shape (K,)
        Standard errors of these learning rates.
    status : list of Status
        How the search for each learning rate ended.
    diagnostics : list of list of Diagnostic
        Findings about each of them.
    means : ndarray of shape (K,) or None
        Posterior means at the joint learning rate; None if unknown.

    Examples
    --------
    >>> intervals = result.intervals()
    >>> np.asarray(intervals).shape
    (2, 2)
    """

    names: list[str]
    level: float
    bounds: Float[np.ndarray, "K 2"]
    eta: Float[np.ndarray, " K"]
    eta_se: Float[np.ndarray, " K"]
    status: list[Status]
    diagnostics: list[list[Diagnostic]]
    means: Float[np.ndarray, " K"] | None = None

    @property
    def converged(self) -> Bool[np.ndarray, " K"]:
        """Whether each interval can be relied on."""
        return np.array([status.is_success for status in self.status], bool)

    @property
    def messages(self) -> list[str]:
        """Status and diagnostics of each interval as text."""
        return [describe(*pair) for pair in zip(self.status, self.diagnostics, strict=True)]

    @property
    def standard_errors(self) -> Float[np.ndarray, " K"]:
        """Widths of the intervals, divided by the width of a standard normal interval of the same level."""
        return standard_errors(self.bounds, self.level)

    def to_frame(self) -> Any:
        """Convert to a pandas data frame.

        Returns
        -------
        pandas.DataFrame
            One row per parameter with the columns mean (if known), low, high, eta, eta_se and converged.

        Examples
        --------
        >>> list(result.intervals().to_frame().columns)
        ['mean', 'low', 'high', 'eta', 'eta_se', 'converged']
        """
        import pandas as pd

        columns = {} if self.means is None else {"mean": self.means}
        columns |= {"low": self.bounds[:, 0], "high": self.bounds[:, 1], "eta": self.eta, "eta_se": self.eta_se}
        return pd.DataFrame(columns | {"converged": self.converged}, index=pd.Index(self.names, name="parameter"))

    def to_latex(self) -> str:
        r"""Convert to a LaTeX table.

        Returns
        -------
        str
            A `tabular` environment with one row per parameter.

        Examples
        --------
        >>> print(result.intervals().to_latex().splitlines()[0])
        \begin{tabular}{lrrrr}
        """
        return latex_table(self.cells())

    def to_markdown(self) -> str:
        """Convert to a Markdown table.

        Returns
        -------
        str
            A table with one row per parameter.

        Examples
        --------
        >>> print(result.intervals().to_markdown().splitlines()[0])
        | parameter | mean | 95% low | 95% high | eta |
        """
        return markdown_table(self.cells())

    def cells(self) -> list[list[str]]:
        """Return the rows of the tables as text, with their head.

        Returns
        -------
        list of list of str
        """
        head, columns = [f"{percent(self.level)} low", f"{percent(self.level)} high", "eta"], [*self.bounds.T, self.eta]
        if self.means is not None:
            head, columns = ["mean", *head], [self.means, *columns]
        rows = zip(self.names, *columns, strict=True)
        return [["parameter", *head], *([name, *(f"{value:.4g}" for value in values)] for name, *values in rows)]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.bounds, dtype=dtype)

    def __repr__(self) -> str:
        head, *rows = self.cells()
        lines = align([["", *head[1:], "se"], *([*row, f"{e:.2g}"] for row, e in zip(rows, self.eta_se, strict=True))])
        return printable("\n".join([*lines, *self._failures()]), multiline=True)

    def _repr_html_(self) -> str:
        return html_table(self.cells(), "", *self._failures())

    def _failures(self) -> list[str]:
        return [
            f"NOT CONVERGED: {printable(self.names[k])}: {self.messages[k]}" for k in np.flatnonzero(~self.converged)
        ]
