"""A linear model of a large Parquet file, of which every process of a run reads only its own rows.

This is for files of numbers that are too large for stored bootstrap counts. The model, its default prior and its
results are those of the whole table up to rounding (`calibayes.tables.linear`): means and spreads are sums over
processes, and medians are found by counting the values of all processes below trial values.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int

from calibayes import losses
from calibayes._backend.devices import rows_of_processes
from calibayes._backend.distributed import gather, on_all_processes
from calibayes._core.parts import Parts, fields_of, holds_numbers
from calibayes._core.risk import block_length
from calibayes.design import Design
from calibayes.losses import LinearLoss
from calibayes.resampling import exceeds_storage
from calibayes.result import Result
from calibayes.tables.columns import Selection, class_target, drop_constant_columns, split_names
from calibayes.tables.linear import LinearModel, require_rows

_N_TRIALS = 256
"""Trial values per round of the search for a median: eight rounds find a number of 64 bits."""


@dataclass(frozen=True)
class LinearModelInParts(LinearModel):
    """A linear model whose columns and response are read in parts; `y` holds the rows of this process."""

    table: "OwnRows"
    kept: Int[np.ndarray, " P"]
    """Indices of the predictors among the columns of the table."""
    positive: float | None
    """Value of the response of the positive class; None for losses that are not of two classes."""

    @property
    def n_rows(self) -> int:
        return self.table.n

    def calibrate(
        self, *, bootstrap: object, block: int | None = None, call: str, file: str | None = None, **options: Any
    ) -> Result:
        assert block is None
        assert isinstance(self.loss, LinearLoss)
        assert isinstance(self.y, np.ndarray)
        loss, design, values = self.loss, self.design, _Values(self.y)
        loss.check(np.unique(np.concatenate(gather(np.unique(self.y)[:_N_TRIALS]))))
        offset = values.median() if design.intercept and loss.location else 0.0
        prior = design.prior_of_spread(loss, *values.moved(-offset).location_and_spread(loss, design.intercept))

        def centred_design(chunk: Any) -> tuple[np.ndarray, np.ndarray]:
            x, y = self._selected(chunk)
            return design.matrix(x), y - offset

        def original_design(chunk: Any) -> tuple[np.ndarray, np.ndarray]:
            x, y = self._selected(chunk)
            return design.uncentred_matrix(x), y

        return design.calibrate_centred(
            loss,
            prior,
            self.table.map(centred_design),
            offset,
            self.table.map(original_design),
            names=self.selection.names,
            call=call,
            about=self.about(file),
            bootstrap=bootstrap,
            **options,
        )

    def _selected(self, chunk: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        x, y = chunk
        return x[:, self.kept], y if self.positive is None else np.where(y == self.positive, 1.0, -1.0)


class OwnRows:
    """Columns and response of a file, of which the rows of this process are kept in memory."""

    def __init__(self, file: Parts):
        self.file, self.n, self.names = file, file.n, file.names
        self.ranges = rows_of_processes(file.n, block_length(self.n_columns + 1))
        self.own = [self._read_range(*rows) for rows in self.ranges]

    @property
    def n_columns(self) -> int:
        """Number of columns, without the response."""
        return len(self.names or ())

    @property
    def rows(self) -> Float[np.ndarray, "R C"]:
        """The rows of this process, with the response in the last column."""
        return self.own[0] if len(self.own) == 1 else np.concatenate([np.empty((0, self.n_columns + 1)), *self.own])

    def chunks(self, start: int, stop: int) -> Iterator[tuple[int, Any]]:
        """Yield the rows from `start` to `stop`, as `Parts.chunks` does."""
        for (first, last), table in zip(self.ranges, self.own, strict=True):
            if first <= start and stop <= last:
                yield start, (table[start - first : stop - first, :-1], table[start - first : stop - first, -1])
                return
        # Rows outside the ranges of this process are read again: the first row, which all processes need, and rows that
        # several processes hold but another one checked.
        yield from self.file.chunks(start, stop)

    def map(self, fn: Callable[[Any], Any]) -> Parts:
        """Return `Parts` with `fn` applied to every chunk."""

        def read(start: int, stop: int) -> Any:
            chunks = [fn(chunk) for _, chunk in self.chunks(start, stop)]
            return jax.tree.map(lambda *leaves: np.concatenate(leaves), *chunks)

        return Parts(read, self.n)

    def _read_range(self, start: int, stop: int) -> Float[np.ndarray, "R C"]:
        table = np.empty((stop - start, self.n_columns + 1))
        for first, (x, y) in self.file.chunks(start, stop):
            rows = slice(first - start, first - start + len(y))
            table[rows, :-1], table[rows, -1] = x, y
        return table


class _Values:
    """Values of all processes, of which each holds some."""

    def __init__(self, own: Float[np.ndarray, " R"]):
        self.own = own

    def moved(self, offset: float) -> "_Values":
        """Return the values plus an offset."""
        return _Values(self.own + offset)

    def mean(self) -> float:
        """Return the mean."""
        return float(_sum(self.own.sum()) / _sum(np.asarray(float(len(self.own)))))

    def median(self) -> float:
        """Return the median: the mean of the two middle values if their number is even."""
        n = int(_sum(np.asarray(float(len(self.own)))))
        keys = np.sort(_to_keys(self.own))
        return float(np.mean([self._order_statistic(keys, rank) for rank in ((n - 1) // 2, n // 2)]))

    def location_and_spread(self, loss: LinearLoss, intercept: bool) -> tuple[float, float]:
        """Return the centre and the spread that determine the default prior."""
        if loss.log_link:
            return self.mean(), 1.0
        centre = self.median() if intercept and not loss.margin else 0.0
        return centre, _Values(np.square(self.own - centre)).mean() ** 0.5

    @staticmethod
    def _order_statistic(keys: Int[np.ndarray, " R"], rank: int) -> float:
        """Return the value with `rank` values below it, by bisection over all processes; `keys` are sorted."""
        ends = np.concatenate(gather(keys[[0, -1]] if len(keys) else keys))
        low, high = int(ends.min()), int(ends.max())
        while low < high:
            step = max(1, -(-(high - low) // _N_TRIALS))
            trials = np.array([min(low + step * i, high) for i in range(_N_TRIALS + 1)], np.int64)
            below = np.sum(gather(np.searchsorted(keys, trials, side="right")), axis=0)
            first = int(np.argmax(below > rank))
            low, high = (low if first == 0 else int(trials[first - 1]) + 1), int(trials[first])
        return float(_to_keys(np.array([low], np.int64).view(np.float64), inverse=True)[0])


def _to_keys(values: Float[np.ndarray, " R"], inverse: bool = False) -> Any:
    """Return integers in the order of floating-point numbers; with `inverse` the numbers of such integers."""
    bits = values.view(np.int64)
    ordered = np.where(bits >= 0, bits, np.int64(-(2**63)) - bits)
    return ordered.view(np.float64) if inverse else ordered


def _sum(values: np.ndarray) -> np.ndarray:
    """Return the sum over processes."""
    return np.asarray(np.sum(gather(np.asarray(values, np.float64)), axis=0))


def linear_model_in_parts(
    path: Path,
    target: str | None,
    columns: str | None,
    intercept: bool,
    loss: LinearLoss,
    positive: str | None,
    default_delta: bool,
    n_replicates: int,
) -> LinearModelInParts | None:
    """Return the linear model of a Parquet file, or None if every process has to read all of it.

    That is so in a single process, for other files, and for files with columns that are not numbers, with missing
    values, or with so few rows that bootstrap counts are stored.
    """
    if jax.process_count() == 1 or not path.name.lower().endswith(".parquet") or target is None:
        return None
    numbers = _numeric_columns(path)
    if numbers is None or target not in numbers:
        return None
    names = [name for name in numbers if name != target] if columns is None else split_names(columns, numbers)
    if not set(names) <= set(numbers) or target in names or not exceeds_storage(n_replicates, numbers[target]):
        return None
    table = on_all_processes(lambda: OwnRows(Parts.from_parquet(path, target, names)))
    if _sum(np.asarray(float(np.isnan(table.rows).any()))) > 0:
        return None
    return _fit_design(table, target, intercept, loss, positive, default_delta)


def _numeric_columns(path: Path) -> dict[str, int] | None:
    """Return the number of rows by name of the columns; None if a column is not numeric or has no name of its own."""
    from pyarrow import parquet

    file = parquet.ParquetFile(path)
    fields = fields_of(file.schema_arrow)
    numeric = all(map(holds_numbers, fields))
    names = [field.name for field in fields]
    if not numeric or len(set(names)) < len(names) or names[:1] == ["Unnamed: 0"]:
        return None
    return dict.fromkeys(names, file.metadata.num_rows)


def _fit_design(
    table: OwnRows, target: str, intercept: bool, loss: LinearLoss, positive: str | None, default_delta: bool
) -> LinearModelInParts:
    """Return the model: drop constant columns, and compute means and spreads of the others."""
    import pandas

    rows, all_names = table.rows, list(table.names or ())
    x, y = rows[:, :-1], rows[:, -1]
    # A process of which all devices hold rows of others has none of its own.
    ends = np.concatenate(gather(np.stack([rows.min(0, initial=np.inf), rows.max(0, initial=-np.inf)])))
    ends = np.stack([ends.min(0), ends.max(0)])
    if not np.isfinite(ends[:, -1]).all():
        raise ValueError(f"the target {target!r} is infinite in {int(_sum(np.isinf(y).sum()))} rows.")
    names, _, notes = drop_constant_columns(all_names, ends[:, :-1], intercept)
    kept = np.array([all_names.index(name) for name in names], int)
    require_rows(table.n, len(names) + intercept)
    classes, positive_value = None, None
    if loss.margin:
        distinct = np.unique(np.concatenate(gather(np.unique(y)[:_N_TRIALS])))
        signs, classes = class_target(pandas.Series(distinct), target, positive)
        positive_value = float(distinct[np.argmax(signs)])
        y = np.where(y == positive_value, 1.0, -1.0)
    elif ends[0, -1] == ends[1, -1]:
        raise ValueError(f"the target {target!r} is {ends[0, -1]:g} in every row.")
    means = _sum(x[:, kept].sum(0)) / table.n if intercept else np.zeros(len(kept))
    spreads = np.sqrt(_sum(np.square(x[:, kept] - means).sum(0)) / table.n)
    varies = np.ptp(ends[:, kept], axis=0) > 0 if intercept else spreads > 0
    design = Design(means, np.where(varies, spreads, 1.0), intercept)
    if default_delta:
        loss = losses.Huber(_default_huber_delta(design, x[:, kept], y))
    empty = pandas.Series(dtype=float)
    selection = Selection(target, empty, names, np.empty((0, len(names))), intercept, None, None, None, notes)
    return LinearModelInParts(selection, loss, y, classes, design, table, kept, positive_value)


def _default_huber_delta(design: Design, x: Float[np.ndarray, "R P"], y: Float[np.ndarray, " R"]) -> float:
    """Return the threshold of `Design.default_huber_delta`, with least squares by the normal equations."""
    matrix = design.matrix(x) / np.concatenate([np.ones(int(design.intercept)), design.spreads])
    gram = _sum(matrix.T @ matrix)
    residual = y - matrix @ np.linalg.lstsq(gram, _sum(matrix.T @ y))[0]
    return design.huber_delta_of(
        residual, lambda values: _Values(values).median(), lambda values: _Values(values).mean()
    )
