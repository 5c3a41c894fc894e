"""Marginal intervals, each calibrated at its own learning rate, and their tables."""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
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
    return f"{100 * level:.4g}%"


def standard_errors(bounds: Float[np.ndarray, "K 2"], level: float) -> Float[np.ndarray, " K"]:
    """Return the widths of intervals divided by the width of a standard normal interval of the same level."""
    return np.ptp(bounds, 1) / normal_width(level)


def normal_width(level: float) -> float:
    """Return the width of the central interval of a standard normal distribution at a level."""
    return 2 * NormalDist().inv_cdf(0.5 + 0.5 * level)


def format_number(value: float | np.floating, scale: float | np.floating, digits: int = 3) -> str:
    """Format a number to the significant digits of a scale, such as the width of an interval."""
    value, scale = float(value), float(scale)
    if not (math.isfinite(value) and 0 < scale < math.inf):
        return f"{value:.{digits + 1}g}"
    decimals = digits - 1 - math.floor(math.log10(scale))
    return f"{value:.{max(decimals, 0)}f}" if -4 <= decimals <= 6 else f"{value:.{digits}e}"


_DEFAULT_COLUMNS = ("mean", "se", "low", "high", "eta")
_IN_UNITS = ("mean", "se", "low", "high")
"""Columns that are rounded to the width of the interval; the others are learning rates."""


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
            One row per parameter with the columns mean (if known), se, low, high, eta, eta_se and converged.

        Examples
        --------
        >>> list(result.intervals().to_frame().columns)
        ['mean', 'se', 'low', 'high', 'eta', 'eta_se', 'converged']
        """
        import pandas as pd

        return pd.DataFrame(self._columns(), index=pd.Index(self.names, name="parameter"))

    def to_latex(self, columns: Sequence[str] | None = None, digits: int = 3) -> str:
        r"""Convert to a LaTeX table.

        Parameters
        ----------
        columns : sequence of str, optional
            Columns of the table, of those of `to_frame`. Default: mean, se, low, high and eta.
        digits : int
            Significant digits of the width of an interval, to which the numbers of its row are rounded. Default: 3.

        Returns
        -------
        str
            A `tabular` environment with one row per parameter. Intervals that did not converge are marked.

        Examples
        --------
        >>> print(result.intervals().to_latex(["mean", "low", "high"]).splitlines()[0])
        \begin{tabular}{lrrr}
        """
        return latex_table(self.cells(columns, digits))

    def to_markdown(self, columns: Sequence[str] | None = None, digits: int = 3) -> str:
        """Convert to a Markdown table.

        Parameters
        ----------
        columns, digits
            As for `to_latex`.

        Returns
        -------
        str
            A table with one row per parameter.

        Examples
        --------
        >>> print(result.intervals().to_markdown().splitlines()[0])
        | parameter | mean | se | 95% low | 95% high | eta |
        """
        return markdown_table(self.cells(columns, digits))

    def to_csv(self, path: str | Path | None = None) -> str:
        """Convert to comma-separated values with all digits, and write them to a file.

        Parameters
        ----------
        path : str or Path, optional
            File to write. Default: none.

        Returns
        -------
        str
            A head and one row per parameter, with the columns of `to_frame`.

        Examples
        --------
        >>> print(result.intervals().to_csv().splitlines()[0])
        parameter,mean,se,low,high,eta,eta_se,converged
        """
        columns = self._columns()
        text = StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["parameter", *columns])
        values = [column.tolist() for column in columns.values()]
        writer.writerows(zip(map(printable, self.names), *values, strict=True))
        if path is not None:
            Path(path).write_text(text.getvalue(), encoding="utf-8")
        return text.getvalue()

    def cells(self, columns: Sequence[str] | None = None, digits: int = 3) -> list[list[str]]:
        """Return the rows of the tables as text, with their head.

        Parameters
        ----------
        columns, digits
            As for `to_latex`.

        Returns
        -------
        list of list of str
        """
        values = self._columns()
        if isinstance(columns, str):
            raise TypeError(
                f"columns must be a list of names of columns; got {columns!r}. The table is returned as text."
            )
        names = [name for name in _DEFAULT_COLUMNS if name in values] if columns is None else list(columns)
        unknown = [name for name in names if name not in values]
        if unknown:
            raise ValueError(f"columns must be some of {', '.join(values)}; got {unknown[0]!r}.")
        if not isinstance(digits, int) or digits < 1:
            raise ValueError(f"digits must be a positive integer; got {digits!r}.")
        widths, eta = np.ptp(self.bounds, 1), float(np.median(self.eta)) if len(self.eta) else 1.0
        texts = []
        for name in names:
            scales = widths if name in _IN_UNITS else np.full(len(widths), eta)
            rounded = zip(values[name].tolist(), scales.tolist(), strict=True)
            texts.append([str(v) if isinstance(v, bool) else format_number(v, scale, digits) for v, scale in rounded])
        bounds = {"low": f"{percent(self.level)} low", "high": f"{percent(self.level)} high"}
        head = ["parameter", *(bounds.get(name, name) for name in names)]
        labels = [
            name if ok or "converged" in names else f"{name} (not converged)"
            for name, ok in zip(self.names, self.converged, strict=True)
        ]
        return [head, *(list(row) for row in zip(labels, *texts, strict=True))]

    def _columns(self) -> dict[str, np.ndarray]:
        """Return the columns of the tables by name."""
        columns = {} if self.means is None else {"mean": self.means}
        columns |= {"se": self.standard_errors, "low": self.bounds[:, 0], "high": self.bounds[:, 1]}
        return columns | {"eta": self.eta, "eta_se": self.eta_se, "converged": self.converged}

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.bounds, dtype=dtype)

    def __repr__(self) -> str:
        head, *rows = self.cells([*(name for name in _DEFAULT_COLUMNS if name in self._columns()), "eta_se"])
        return printable("\n".join([*align([["", *head[1:]], *rows]), *self._failures()]), multiline=True)

    def _repr_html_(self) -> str:
        return html_table(self.cells(), "", *self._failures())

    def _failures(self) -> list[str]:
        return [
            f"NOT CONVERGED: {printable(self.names[k])}: {self.messages[k]}" for k in np.flatnonzero(~self.converged)
        ]
