"""Draws of other samplers, as a start."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

_FEWEST = 100
"""Draws that `calibrate` starts from, at least."""


def draws_from(
    source: Any, names: Sequence[str] | None = None, *, chains: bool = False
) -> tuple[Float[np.ndarray, "M K"], list[str]]:
    """Draws of another sampler as `calibrate(draws=, names=)` takes them: (M, K), and the K names.

    Args:
        source: a dict of arrays with draws leading; a data frame with a column a parameter; an ArviZ DataTree, or
            anything with a `posterior`; a NumPyro `MCMC`; a fit of CmdStanPy.
        names: parameters (`beta[0]`) or whole variables (`beta`) to keep, in this order: the model's. All, in the
            source's order, unless told.
        chains: whether arrays of a dict have chains in front of draws.

    Elements of a variable follow each other as in C, the last index fastest, whatever order the source has them in.
    """
    columns = _columns(source, chains)
    picked = list(columns) if names is None else [column for name in names for column in _matching(columns, name)]
    if not picked:
        raise ValueError("there are no draws: the source has no variables, or names is empty.")
    if len(set(picked)) < len(picked):
        raise ValueError(f"names must name each parameter once; got {', '.join(map(str, names or []))}.")
    lengths = {len(columns[name]) for name in picked}
    if len(lengths) > 1:
        raise ValueError(f"variables must have the same number of draws; got {sorted(lengths)}. Choose some by names=.")
    draws = np.column_stack([_floats(name, columns[name]) for name in picked])
    if len(draws) < _FEWEST:
        hint = "" if chains else " If the first axis of the arrays is chains, say chains=True."
        raise ValueError(f"{len(draws)} draws of {draws.shape[1]} parameters are too few to start from.{hint}")
    return draws, picked


def numbered(name: str, shape: tuple[int, ...]) -> list[str]:
    """Names of a variable's elements: beta[0], or w[0,1]."""
    return [f"{name}[{','.join(map(str, index))}]" if shape else name for index in np.ndindex(shape)]


def _columns(source: Any, chains: bool) -> dict[str, np.ndarray]:
    """Every parameter's draws, one after the other."""
    if hasattr(source, "columns"):
        return _frame_columns(source)
    for method in ("stan_variables", "get_samples"):
        source = getattr(source, method)() if hasattr(source, method) else source
    source = getattr(source, "posterior", source)
    if hasattr(source, "data_vars"):
        source, chains = {str(name): _draws_first(array) for name, array in source.data_vars.items()}, False
    if not isinstance(source, Mapping):
        raise TypeError(
            "draws must come as a dict of arrays, a data frame, an ArviZ DataTree or what has a posterior; got "
            f"{type(source).__name__}. An (M, K) array is ready for calibrate(draws=)."
        )
    columns: dict[str, np.ndarray] = {}
    for name, values in source.items():
        array, leading = np.asarray(values), 2 if chains else 1
        if array.ndim < leading:
            raise ValueError(
                f"{name!r} must have {'chains and draws' if chains else 'draws'} in front; got shape {array.shape}."
            )
        shape = array.shape[leading:]
        flat = array.reshape(int(np.prod(array.shape[:leading])), int(np.prod(shape)))
        columns |= dict(zip(numbered(str(name), shape), flat.T, strict=True))
    return columns


def _draws_first(array: Any) -> np.ndarray:
    """The values of an xarray variable, draws of all chains along the first axis."""
    leading = [dim for dim in ("chain", "draw", "sample") if dim in array.dims]
    values = array.transpose(*leading, ...).values
    return values.reshape(-1, *values.shape[len(leading) :])


def _frame_columns(frame: Any) -> dict[str, np.ndarray]:
    """Columns that are no bookkeeping; a variable's by their indices, of which Stan's frames have the first fastest."""
    names = [str(name) for name in frame.columns]
    kept = [n for n in names if not n.endswith("__") and n not in ("chain", "draw")]
    first = {variable: kept.index(name) for name in reversed(kept) for variable in [_variable(name)[0]]}
    kept.sort(key=lambda name: (first[_variable(name)[0]], _variable(name)[1]))
    return {name: np.asarray(frame[name]) for name in kept}


def _variable(column: str) -> tuple[str, tuple[int, ...]]:
    found = re.fullmatch(r"(.+)\[(\d+(?:, ?\d+)*)\]", column)
    return (found[1], tuple(map(int, found[2].split(",")))) if found else (column, ())


def _floats(name: str, values: np.ndarray) -> np.ndarray:
    try:
        return np.asarray(values, float)
    except (TypeError, ValueError):
        raise TypeError(f"draws of {name!r} must be numbers; got {values.dtype}. Choose others by names=.") from None


def _matching(columns: Iterable[str], name: str) -> list[str]:
    found = [column for column in columns if name in (column, _variable(column)[0])]
    if not found:
        raise ValueError(
            f"there are no draws of {name!r}, only of {', '.join(columns)}. Stan counts elements from 1: ask for whole "
            "variables, as names=['mu', 'beta']."
        )
    return found
