"""Summary of the head-to-head: coverage, misses, widths and interval scores of every method in every cell."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from studies.head_to_head import designs
from studies.head_to_head.names import DESIGNS, LEVEL, LOSSES, SLOPE, UNIT, WIDE
from studies.records import Outcome, Record, proportion_se

PRELIMINARY = 500
"""Number of data sets below which a cell is marked as preliminary."""
OURS = ("gpc", "gpc-studentized", "matching", UNIT)
"""Own methods, in the order in which they are shown; others follow in the order of the store."""


@dataclass(frozen=True)
class Column:
    """One method on the data sets of a cell.

    Attributes
    ----------
    name : str
        Name of the method.
    outcomes : dict
        Outcomes by the number of the data set.
    theta : tuple of float
        True values of the parameters whose intervals are stored.
    """

    name: str
    outcomes: dict[int, Outcome]
    theta: tuple[float, ...]

    @property
    def number(self) -> int:
        """Number of data sets."""
        return len(self.outcomes)

    @property
    def failures(self) -> int:
        """Number of data sets without an interval."""
        return sum(not outcome.intervals for outcome in self.outcomes.values())

    @cached_property
    def succeeded(self) -> list[int]:
        """Numbers of the data sets with an interval."""
        return [number for number, outcome in self.outcomes.items() if outcome.intervals]

    @cached_property
    def bounds(self) -> np.ndarray:
        """Intervals of the data sets that have one, shape (D, P, 2)."""
        bounds = [self.outcomes[number].intervals for number in self.succeeded]
        return np.array(bounds, float).reshape(-1, len(self.theta), 2)

    @property
    def too_high(self) -> np.ndarray:
        """Whether an interval lies above the true value, shape (D, P)."""
        return self.bounds[..., 0] > self.theta

    @property
    def too_low(self) -> np.ndarray:
        """Whether an interval lies below the true value, shape (D, P)."""
        return self.bounds[..., 1] < self.theta

    @property
    def covered(self) -> np.ndarray:
        """Whether an interval contains the true value, shape (D, P)."""
        return ~(self.too_high | self.too_low)

    @property
    def coverage(self) -> np.ndarray:
        """Share of the intervals that contain the true value, shape (P,)."""
        return self.covered.mean(0)

    @property
    def coverage_se(self) -> float:
        """Standard error of the coverage of the first parameter."""
        return proportion_se(float(self.coverage[0]), len(self.succeeded))

    @property
    def null_se(self) -> float:
        """Standard error of a coverage if the true coverage is 95%, for the comparison with 95%."""
        return math.sqrt(LEVEL * (1 - LEVEL) / max(len(self.succeeded), 1))

    @property
    def widths(self) -> np.ndarray:
        """Widths of the intervals, shape (D, P)."""
        return np.ptp(self.bounds, -1)

    @property
    def scores(self) -> np.ndarray:
        """Interval scores of Gneiting and Raftery (2007): width and 2 / 0.05 times the distance to the true value."""
        below = np.maximum(self.bounds[..., 0] - self.theta, 0)
        above = np.maximum(self.theta - self.bounds[..., 1], 0)
        return self.widths + 2 / (1 - LEVEL) * (below + above)

    @property
    def joint_coverage(self) -> float:
        """Share of the joint sets that contain the true parameter; NaN without joint sets."""
        levels = [outcome.level for outcome in self.outcomes.values() if not math.isnan(outcome.level)]
        return float(np.mean([level <= LEVEL for level in levels])) if levels else math.nan

    @property
    def seconds(self) -> float:
        """Median processor seconds."""
        return float(np.median([outcome.seconds for outcome in self.outcomes.values()]))


@dataclass(frozen=True)
class Cell:
    """All methods for one loss, design and number of observations."""

    loss: str
    design: str
    n: int
    columns: dict[str, Column]

    @property
    def number(self) -> int:
        """Number of data sets of plain GPC."""
        return self.columns["gpc"].number

    @property
    def is_preliminary(self) -> bool:
        return self.number < PRELIMINARY


def cells(records: Iterable[Record]) -> list[Cell]:
    """Group records into cells, ordered by loss, number of observations and design; those with plain GPC only."""
    outcomes: dict[tuple[str, str, int], dict[str, dict[int, Outcome]]] = {}
    for record in records:
        loss, design = record.problem.split(", ")
        methods = outcomes.setdefault((loss, design, record.n), {})
        for name, outcome in record.methods.items():
            methods.setdefault(name, {})[record.dataset] = outcome
    keys = [key for key, methods in outcomes.items() if "gpc" in methods]
    losses = (*LOSSES, WIDE)
    keys.sort(key=lambda key: (losses.index(key[0]), key[2], DESIGNS.index(key[1])))
    return [Cell(*key, _columns(key, outcomes[key])) for key in keys]


def _columns(key: tuple[str, str, int], methods: dict[str, dict[int, Outcome]]) -> dict[str, Column]:
    """Return the methods of a cell that were applied at least once, own methods first."""
    loss, design, _ = key
    theta = designs.truth(loss, design)
    stored = theta if loss == WIDE else (theta[SLOPE],)
    names = sorted(methods, key=lambda name: OURS.index(name) if name in OURS else len(OURS))
    columns = {name: Column(name, dict(sorted(methods[name].items())), stored) for name in names}
    return {name: column for name, column in columns.items() if column.succeeded}


@dataclass(frozen=True)
class Difference:
    """Mean of paired differences with its standard error."""

    mean: float
    se: float

    @property
    def is_clear(self) -> bool:
        """Whether the difference is larger than three standard errors."""
        return abs(self.mean) > 3 * self.se


def difference(first: Column, second: Column, values: str) -> Difference:
    """Compare two methods on the data sets that both have: the mean of `values` of the first minus that of the second.

    Parameters
    ----------
    first, second : Column
        Methods of one cell.
    values : str
        Property of a column with one value for each data set: `covered`, `widths` or `scores`.

    Returns
    -------
    Difference
    """
    rows = [dict(zip(column.succeeded, getattr(column, values)[:, 0], strict=True)) for column in (first, second)]
    common = sorted(rows[0].keys() & rows[1].keys())
    if len(common) < 2:
        return Difference(math.nan, math.nan)
    gaps = np.array([float(rows[0][k]) - float(rows[1][k]) for k in common])
    return Difference(float(gaps.mean()), float(gaps.std(ddof=1) / math.sqrt(len(gaps))))


def relative_width(column: Column, reference: Column) -> float:
    """Return the ratio of the mean widths of two methods on the data sets that both have."""
    rows = [dict(zip(one.succeeded, one.widths.mean(1), strict=True)) for one in (column, reference)]
    common = rows[0].keys() & rows[1].keys()
    if not common:
        return math.nan
    return float(sum(rows[0][k] for k in common) / sum(rows[1][k] for k in common))


def beyond(columns: Iterable[tuple[Cell, Column]]) -> tuple[list[str], list[str]]:
    """Return the cells in which the coverage is more than three standard errors below, and above, 95%."""
    below: list[str] = []
    above: list[str] = []
    for cell, column in columns:
        gap = float(column.coverage[0]) - LEVEL
        if abs(gap) > 3 * column.null_se:
            text = f"{cell.loss}, {cell.design}, N {cell.n}: {100 * (gap + LEVEL):.1f}"
            (below if gap < 0 else above).append(text)
    return below, above


def having(all_cells: Sequence[Cell], name: str) -> list[tuple[Cell, Column]]:
    """Return the cells in which a method was applied."""
    return [(cell, cell.columns[name]) for cell in all_cells if name in cell.columns]
