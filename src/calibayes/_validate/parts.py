"""Checks of data in parts: every process checks the rows that it will hold, and all of them raise the same error.

What is exchanged does not grow with the number of observations: an evenly spaced sample, from which least squares and
the rank of X are computed, the smallest and largest values, a few distinct responses, and a checksum.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int, PyTree

from calibayes._backend.arguments import unique_names
from calibayes._backend.devices import rows_of_processes
from calibayes._backend.distributed import gather, on_all_processes
from calibayes._core.coordinates import Coordinates
from calibayes._core.parts import CheckedParts, Parts
from calibayes._core.risk import block_length
from calibayes._validate.data import (
    Observations,
    generic_arrays,
    linear_arrays,
    require_determined,
)
from calibayes._validate.functions import check_functions
from calibayes.losses import CountsRisk, LinearLoss
from calibayes.model import GibbsModel


@dataclass(frozen=True)
class PartsChecksConfig:
    """Tuning constants of the checks of data in parts."""

    max_responses: int = 1024
    """Largest number of distinct responses of a process that are checked by the loss, next to their range. Labels have
    few. Order-of-magnitude choice."""


CONFIG = PartsChecksConfig()


class _Summary(NamedTuple):
    """What a process knows of its rows; arrays of leaves are flattened to columns."""

    sample: Float[np.ndarray, "S C"]
    low: Float[np.ndarray, "1 C"]
    high: Float[np.ndarray, "1 C"]
    rows: Int[np.ndarray, " S"]
    responses: Float[np.ndarray, " R"]
    checksum: Int[np.ndarray, "1"]


def check_parts(model: GibbsModel, parts: Parts, names: Sequence[str] | None) -> Observations:
    """Check data in parts and the model's functions on them.

    Parameters
    ----------
    model : GibbsModel
        Model of the data.
    parts : Parts
        The user's data.
    names : sequence of str or None
        Names of the parameters. None takes those of the parts or of the prior, or `theta[k]`.

    Returns
    -------
    Observations
        The data, as `CheckedParts`.

    Raises
    ------
    TypeError, ValueError
        In all processes, if the data of any of them are invalid.
    """
    if not isinstance(model, GibbsModel):
        raise TypeError(f"model must be a GibbsModel(loss, prior); got {type(model).__name__}.")
    if parts.n < 2:
        raise ValueError(f"data must hold at least two observations; got {parts.n}.")
    if isinstance(model.loss, CountsRisk):
        raise ValueError(
            f"data in parts (calibayes.Parts) need a loss, of which each process sums its own part; "
            f"{type(model.loss).__name__} is a risk of all observations together. Pass the data as arrays."
        )
    linear = isinstance(model.loss, LinearLoss)
    convert = partial(_convert, model)
    first = on_all_processes(lambda: convert(next(parts.chunks(0, 1))[1], 0))
    leaves, structure = jax.tree.flatten(first)
    dim = leaves[0].shape[1] if linear else model.dim
    assert dim is not None
    if model.dim is not None and model.dim != dim:
        raise ValueError(f"X has {dim} columns, but the model has {model.dim} parameters (its dim, or its prior's).")
    own_rows = rows_of_processes(parts.n, block_length(dim))
    own = on_all_processes(lambda: _summarize(parts, convert, own_rows, linear))
    # A process of which all devices hold only padding has no rows.
    gathered = ([part for part in gather(value) if part.size] for value in own)
    joined = _Summary(*(np.concatenate(parts) if parts else np.empty(0) for parts in gathered))
    flat, low, high = joined.sample[np.argsort(joined.rows)], joined.low.min(0), joined.high.max(0)
    unflatten = partial(_unflatten, structure, leaves)
    sample = unflatten(flat)
    smallest, largest = (jax.tree.map(lambda leaf: np.asarray(leaf[0]), unflatten(ends[None])) for ends in (low, high))
    if linear:
        _check_linear(model, sample, joined.responses)
    given = parts.names if names is None else names
    default = getattr(model.prior, "names", None) or [f"theta[{k}]" for k in range(dim)]
    names = default if given is None else unique_names(given, dim)
    Coordinates.from_prior(model.prior, dim)
    check_functions(model, sample, dim)
    with np.errstate(over="ignore"):
        checksum = int(joined.checksum.sum())
    checked = CheckedParts(parts, convert, sample, smallest, largest, f"{parts.n} {dim} {checksum}")
    return Observations(checked, parts.n, dim, [str(name) for name in names])


def _convert(model: GibbsModel, data: Any, first: int) -> PyTree[np.ndarray]:
    """Return a chunk as arrays of finite numbers; errors name the row in all of the data."""
    try:
        return linear_arrays(model, data)[0] if isinstance(model.loss, LinearLoss) else generic_arrays(data)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{error} (Rows are counted from observation {first:,}.)") from None


def _summarize(parts: Parts, convert: Any, own: list[tuple[int, int]], linear: bool) -> _Summary:
    """Read the rows of this process, and return what the others need to know."""
    samples, lows, highs, rows, n_columns = [], [], [], [], None
    responses, checksum = np.empty(0), np.zeros(1, np.int64)
    for start, stop in own:
        expected = start
        for first, chunk in parts.chunks(start, stop):
            if not len(jax.tree.leaves(chunk)[0]):
                break
            arrays = jax.tree.leaves(convert(chunk, first))
            flat = np.concatenate([leaf.reshape(len(leaf), -1).astype(np.float64) for leaf in arrays], 1)
            if first != expected or (n_columns is not None and flat.shape[1] != n_columns):
                raise ValueError(
                    f"data: observations {expected:,} and later have {flat.shape[1]} numbers, and those before "
                    f"{n_columns}. read(start, stop) must return the same arrays for all parts."
                )
            expected, n_columns = first + len(flat), flat.shape[1]
            index = np.arange(first, expected)
            sampled = index % parts.sample_step == 0
            samples.append(flat[sampled])
            rows.append(index[sampled])
            lows.append(flat.min(0))
            highs.append(flat.max(0))
            checksum += _checksum(flat, index)
            if linear:
                responses = np.unique(np.concatenate([responses, arrays[1]]))
                if len(responses) > CONFIG.max_responses:
                    responses = np.concatenate([responses[: CONFIG.max_responses], responses[-1:]])
        if expected != stop:
            raise ValueError(
                f"data: reading observations {start:,} to {stop:,} returned {expected - start:,}; n is {parts.n:,}."
            )
    if not samples:
        nothing = np.empty((0, 0))
        return _Summary(nothing, nothing, nothing, np.empty(0, int), responses, checksum)
    low, high = np.min(lows, axis=0, keepdims=True), np.max(highs, axis=0, keepdims=True)
    return _Summary(np.concatenate(samples), low, high, np.concatenate(rows), responses, checksum)


def _check_linear(
    model: GibbsModel,
    sample: tuple[np.ndarray, np.ndarray],
    responses: Float[np.ndarray, " R"],
) -> None:
    """Check the response, and that the data are not fitted exactly, for which the sample is taken as all data."""
    assert isinstance(model.loss, LinearLoss)
    x, y = sample
    model.loss.check(np.unique(responses))
    require_determined(x, y, model)


def _unflatten(structure: Any, leaves: list[np.ndarray], flat: Float[np.ndarray, "S C"]) -> PyTree[np.ndarray]:
    """Return rows of numbers as a pytree with the shapes and types of `leaves`."""
    sizes = np.cumsum([leaf[:1].size for leaf in leaves])[:-1]
    parts = np.split(flat, sizes, 1)
    shaped = [part.reshape(len(part), *leaf.shape[1:]) for part, leaf in zip(parts, leaves, strict=True)]
    return jax.tree.unflatten(structure, [part.astype(leaf.dtype) for part, leaf in zip(shaped, leaves, strict=True)])


def _checksum(flat: Float[np.ndarray, "S C"], index: Int[np.ndarray, " S"]) -> Int[np.ndarray, "1"]:
    """Return a checksum modulo 2**64 of rows and their numbers; that of all rows is the sum over parts."""
    multipliers = np.random.default_rng(0).integers(-(2**62), 2**62, flat.shape[1])
    with np.errstate(over="ignore"):
        rows = (np.ascontiguousarray(flat).view(np.int64) * multipliers).sum(1)
        # The shift lets the last bits depend on the first ones.
        return np.atleast_1d(((rows + (rows >> 31) + 1) * (2 * index + 1)).sum())
