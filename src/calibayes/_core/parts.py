"""Observations that are read in parts, each by the process that holds it.

A target needs every observation once, on the device that holds it. Data in parts are therefore read from where they are
stored, chunk by chunk, when they are checked and when they are placed on devices; no process holds all of them, and
nothing that grows with their number is exchanged. What the calibration needs to know about all observations is in
`CheckedParts`: an evenly spaced sample, the largest values and a checksum.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, PyTree

from calibayes._backend.arguments import integer
from calibayes._backend.devices import place_blocks

Reader = Callable[[int, int], Any]
"""Function of a first and a last row, the latter excluded, that returns the observations between them."""


@dataclass(frozen=True)
class PartsConfig:
    """Tuning constants of the reading of data in parts."""

    chunk: int = 2**16
    """Number of observations that are read at a time: with ten columns 5 MiB in double precision. Order-of-magnitude
    choice; it affects memory and the running time only."""
    sample: int = 2**16
    """Smallest number of observations of the sample, if there are as many. From at least twice this many observations
    every k-th is taken, as for the initial reference of a target. Order-of-magnitude choice."""


CONFIG = PartsConfig()


class Parts:
    """Observations that are read in parts, for data that are too large for the memory of one process.

    Pass it as the `data` of `calibrate`. In a run of several processes each process reads and checks only the rows that
    its devices hold, and the first row. The replicates are those of the Poisson bootstrap.

    Parameters
    ----------
    read : callable
        Function `read(start, stop)` that returns the observations from `start` up to but excluding `stop`, in the form
        that `calibrate` takes: `(X, y)` for losses of a linear prediction, otherwise a pytree of arrays whose first
        axis is the observations. All processes must have the same observations in the same order.
    n : int
        Number of observations.
    names : sequence of str, optional
        Names of the parameters. Default: `theta[0]` and so on.

    Examples
    --------
    >>> import calibayes as cb
    >>> X, y = cb.datasets.median_regression(n=100, seed=0)
    >>> parts = cb.Parts(lambda start, stop: (X[start:stop], y[start:stop]), n=100)
    >>> parts.n
    100
    """

    def __init__(self, read: Reader, n: int, names: Sequence[str] | None = None):
        if not callable(read):
            raise TypeError(f"read must be a function of (start, stop); got {type(read).__name__}.")
        self.n = integer("n", n, 1)
        self.names = None if names is None else [str(name) for name in names]
        self._read = read

    @staticmethod
    def from_arrays(data: PyTree[np.ndarray], names: Sequence[str] | None = None) -> "Parts":
        """Read parts of arrays, such as those of `numpy.load(path, mmap_mode="r")`.

        Parameters
        ----------
        data : pytree of array
            Arrays with the observations along the first axis, such as a pair `(X, y)`.
        names : sequence of str, optional
            Names of the parameters.

        Returns
        -------
        Parts
        """
        lengths = sorted({len(leaf) for leaf in jax.tree.leaves(data)})
        if len(lengths) != 1:
            raise ValueError(f"data must be arrays of the same length; got {', '.join(map(str, lengths))}.")
        return Parts(lambda start, stop: jax.tree.map(lambda leaf: leaf[start:stop], data), lengths[0], names)

    @staticmethod
    def from_parquet(path: str | PathLike[str], target: str, columns: Sequence[str] | None = None) -> "Parts":
        """Read parts of a Parquet file: the response and the columns of X, all of them numbers.

        Parameters
        ----------
        path : path
            The file. Its row groups are read one after the other, and only those that overlap the part.
        target : str
            Name of the column y.
        columns : sequence of str, optional
            Names of the columns of X, in their order. Default: all columns but the target and the index of a pandas
            data frame. No intercept is added.

        Returns
        -------
        Parts

        Raises
        ------
        ImportError
            If pyarrow is not installed (`pip install 'calibayes[tables]'`).
        TypeError
            If a column does not hold numbers or booleans.
        ValueError
            If a column does not exist.
        """
        return _ParquetParts(path, target, columns)

    @property
    def sample_step(self) -> int:
        """The sample of the observations is every observation whose row is a multiple of this number."""
        return max(1, self.n // CONFIG.sample)

    def chunks(self, start: int, stop: int) -> Iterator[tuple[int, Any]]:
        """Yield the observations from `start` to `stop` in chunks, each with the row of its first observation.

        Parameters
        ----------
        start, stop : int
            First row, and the row after the last one.

        Yields
        ------
        tuple of int and pytree of ndarray
            Row of the first observation of a chunk, and the chunk.
        """
        for first in range(start, stop, CONFIG.chunk):
            yield first, self._read(first, min(first + CONFIG.chunk, stop))


class _ParquetParts(Parts):
    """The columns of a Parquet file."""

    def __init__(self, path: str | PathLike[str], target: str, columns: Sequence[str] | None):
        file = _open_parquet(path)
        schema = file.schema_arrow
        fields = [field.name for field in fields_of(schema)]
        columns = [name for name in fields if name != target] if columns is None else list(columns)
        for name in (target, *columns):
            if name not in schema.names:
                raise ValueError(f"there is no column {name!r}. The columns are {', '.join(schema.names)}.")
            _require_numbers(schema.field(name))
        super().__init__(self._read_rows, file.metadata.num_rows, columns)
        self._path, self._target, self._columns = path, target, columns

    def chunks(self, start, stop):
        file, first = _open_parquet(self._path), 0
        for group in range(file.metadata.num_row_groups if stop > start else 0):
            begin, first = first, first + file.metadata.row_group(group).num_rows
            if first <= start or begin >= stop:
                continue
            row = begin
            for batch in file.iter_batches(CONFIG.chunk, [group], columns=[*self._columns, self._target]):
                low, high = max(start - row, 0), min(stop - row, batch.num_rows)
                if low < high:
                    yield row + low, self._to_arrays(batch.slice(low, high - low))
                row += batch.num_rows
                if row >= stop:
                    break

    def _read_rows(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        pairs = [chunk for _, chunk in self.chunks(start, stop)]
        return tuple(np.concatenate(arrays) for arrays in zip(*pairs, strict=True))  # type: ignore[return-value]

    def _to_arrays(self, batch: Any) -> tuple[np.ndarray, np.ndarray]:
        values = np.empty((batch.num_rows, len(self._columns) + 1))
        for k, name in enumerate([*self._columns, self._target]):
            values[:, k] = batch.column(name).to_numpy(zero_copy_only=False)
        return values[:, :-1], values[:, -1]


def fields_of(schema: Any) -> list[Any]:
    """Return the fields of the schema of a Parquet file without the index of a pandas data frame."""
    index = (schema.pandas_metadata or {}).get("index_columns", [])
    return [field for field in schema if field.name not in index]


def holds_numbers(field: Any) -> bool:
    """Return whether a field of a Parquet file has an integer, floating-point or boolean type."""
    from pyarrow import types

    return types.is_integer(field.type) or types.is_floating(field.type) or types.is_boolean(field.type)


def _require_numbers(field: Any) -> None:
    """Raise an error for a field whose values would be converted to numbers, such as times and texts of digits."""
    from pyarrow import types

    if not (holds_numbers(field) or types.is_decimal(field.type)):
        raise TypeError(
            f"column {field.name!r} must hold numbers; its type is {field.type}. Leave it out (columns=), or convert "
            "it to numbers."
        )


def _open_parquet(path: str | PathLike[str]) -> Any:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError("reading Parquet files needs pyarrow: pip install 'calibayes[tables]'.") from error
    return parquet.ParquetFile(path)


@dataclass(frozen=True, eq=False)
class CheckedParts:
    """Data in parts that have passed all checks.

    Attributes
    ----------
    parts : Parts
        The data.
    convert : callable
        Function of a chunk and the row of its first observation that returns a pytree of arrays.
    sample : pytree of ndarray
        Every k-th observation, for a k such that there are at most some 100,000. The same in all processes.
    low, high : pytree of ndarray
        Smallest and largest value of each array, for each column of X.
    checksum : str
        Checksum of all observations.
    """

    parts: Parts
    convert: Callable[[Any, int], PyTree[np.ndarray]]
    sample: PyTree[np.ndarray]
    low: PyTree[np.ndarray]
    high: PyTree[np.ndarray]
    checksum: str

    @property
    def n(self) -> int:
        """Number of observations."""
        return self.parts.n

    def to_blocks(
        self, prepare: Callable[[PyTree], PyTree], length: int, n_blocks: int, mesh: Mesh | None
    ) -> PyTree[Any]:
        """Return `prepare(data)` in blocks, each read by the process that holds it.

        Parameters
        ----------
        prepare : callable
            Function of some observations.
        length : int
            Number of observations per block.
        n_blocks : int
            Number of blocks, including padding by an observation.
        mesh : Mesh or None
            Devices; None for a single one.
        """
        template = prepare(jax.tree.map(lambda leaf: leaf[:1], self.sample))
        leaves, structure = jax.tree.flatten(template)
        held: dict[tuple[int, int], list[np.ndarray | None]] = {}

        def make_part(blocks: slice, index: int) -> np.ndarray:
            rows = blocks.start * length, blocks.stop * length
            if rows not in held:
                held[rows] = self._read(prepare, *rows, leaves)
            part = held[rows][index]
            assert part is not None
            return part.reshape(-1, length, *part.shape[1:])

        placed = []
        for index, leaf in enumerate(leaves):
            placed.append(place_blocks(mesh, (n_blocks, length, *leaf.shape[1:]), partial(make_part, index=index)))
            for parts in held.values():
                parts[index] = None
        return jax.tree.unflatten(structure, placed)

    def _read(
        self, prepare: Callable[[PyTree], PyTree], start: int, stop: int, leaves: list[np.ndarray]
    ) -> list[np.ndarray | None]:
        """Return the rows from `start` to `stop` in JAX's default types; rows after the last observation repeat one."""
        arrays = [np.empty((stop - start, *leaf.shape[1:]), default_type(leaf)) for leaf in leaves]
        last = min(stop, self.n)
        for first, chunk in self.parts.chunks(start, last):
            read = jax.tree.leaves(prepare(self.convert(chunk, first)))
            for array, values in zip(arrays, read, strict=True):
                array[first - start : first - start + len(values)] = values
        for array, leaf in zip(arrays, leaves, strict=True):
            array[max(last - start, 0) :] = array[last - start - 1] if last > start else leaf[0]
        return list(arrays)


def n_observations(data: PyTree[np.ndarray] | CheckedParts) -> int:
    """Return the number of observations of checked data."""
    return data.n if isinstance(data, CheckedParts) else len(jax.tree.leaves(data)[0])


def sample_of(data: PyTree[np.ndarray] | CheckedParts) -> PyTree[np.ndarray]:
    """Return checked data, or the sample of data in parts."""
    return data.sample if isinstance(data, CheckedParts) else data


def columns_of(
    data: tuple[np.ndarray, np.ndarray] | CheckedParts,
) -> tuple[Float[np.ndarray, "N K"], tuple[Float[np.ndarray, " K"], Float[np.ndarray, " K"]] | None]:
    """Return X of checked data and None, or the sample of X in parts and the smallest and largest values of X."""
    if isinstance(data, CheckedParts):
        return data.sample[0], (data.low[0], data.high[0])
    return data[0], None


def largest_values(data: PyTree[np.ndarray] | CheckedParts) -> PyTree[np.ndarray]:
    """Return the largest absolute values of checked data, for each column of X."""
    if isinstance(data, CheckedParts):
        return jax.tree.map(lambda low, high: np.asarray(np.maximum(-low, high)), data.low, data.high)
    return jax.tree.map(lambda leaf: np.asarray(np.abs(leaf).max(0)), data)


def default_type(leaf: np.ndarray) -> np.dtype:
    """Return the type in which JAX stores the values of an array."""
    return np.dtype(jax.dtypes.canonicalize_dtype(float if np.issubdtype(leaf.dtype, np.floating) else leaf.dtype))
