"""Draws of other samplers as initial draws of a calibration."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class DrawsConfig:
    """Constants of `draws_from`."""

    min_draws: int = 100
    """Smallest number of draws that is accepted. Fewer rows are usually chains that were mistaken for draws; an
    order-of-magnitude choice."""


CONFIG = DrawsConfig()


def draws_from(
    source: object, names: Sequence[str] | None = None, *, chains: bool = False
) -> tuple[Float[np.ndarray, "D K"], list[str]]:
    """Convert the draws of another sampler to the arguments `draws` and `names` of `calibrate`.

    Parameters
    ----------
    source : dict, data frame, DataTree, NumPyro MCMC or CmdStanPy fit
        A dict of arrays with draws along the first axis; a data frame with one column per parameter; an ArviZ DataTree
        or any object with an attribute `posterior`; an object with a method `get_samples` (NumPyro) or
        `stan_variables` (CmdStanPy).
    names : sequence of str, optional
        Parameters (`"beta[0]"`) or whole variables (`"beta"`) to select, in the order of the model's parameters.
        Default: all variables, in the order of the source.
    chains : bool
        Whether the arrays of a dict have an axis of chains before the axis of draws. Default: False.

    Returns
    -------
    draws : ndarray of shape (D, K)
        Draws of all chains.
    names : list of str
        Names of the K parameters.

    Raises
    ------
    TypeError
        If `source` is of an unknown type, or a selected variable is not numeric.
    ValueError
        If a name is unknown or selected twice, if variables have different numbers of draws, or if there are fewer than
        100 draws.

    Notes
    -----
    The elements of an array are in C order, the last index fastest, whatever the order of the source.

    Examples
    --------
    >>> import numpy as np
    >>> import calibayes as cb
    >>> rng = np.random.default_rng(0)
    >>> samples = {"mu": rng.normal(size=500), "beta": rng.normal(size=(500, 2))}
    >>> draws, names = cb.interop.draws_from(samples, ["beta", "mu"])
    >>> draws.shape, names
    ((500, 3), ['beta[0]', 'beta[1]', 'mu'])
    """
    columns = _columns(source, chains)
    selected = list(columns) if names is None else [column for name in names for column in _matching(columns, name)]
    if not selected:
        raise ValueError("there are no draws: the source has no variables, or names is empty.")
    if len(set(selected)) < len(selected):
        raise ValueError(f"names must name each parameter once; got {', '.join(map(str, names or []))}.")
    lengths = {len(columns[name]) for name in selected}
    if len(lengths) > 1:
        raise ValueError(f"variables must have the same number of draws; got {sorted(lengths)}. Select some by names=.")
    draws = np.column_stack([_floats(name, columns[name]) for name in selected])
    if len(draws) < CONFIG.min_draws:
        hint = "" if chains else " If the first axis of the arrays is chains, pass chains=True."
        raise ValueError(f"{len(draws)} draws of {draws.shape[1]} parameters are too few to start from.{hint}")
    return draws, selected


def element_names(name: str, shape: tuple[int, ...]) -> list[str]:
    """Return the names of the elements of a variable, such as `beta[0]` or `w[0,1]`."""
    return [f"{name}[{','.join(map(str, index))}]" if shape else name for index in np.ndindex(shape)]


def _columns(source: object, chains: bool) -> dict[str, np.ndarray]:
    """Return the draws of every parameter by name."""
    if hasattr(source, "columns"):
        return _frame_columns(source)
    for method in ("stan_variables", "get_samples"):
        source = getattr(source, method)() if hasattr(source, method) else source
    source = getattr(source, "posterior", source)
    if hasattr(source, "data_vars"):
        source, chains = {str(name): _draws_first(array) for name, array in source.data_vars.items()}, False
    if not isinstance(source, Mapping):
        raise TypeError(
            "draws must be a dict of arrays, a data frame, an ArviZ DataTree or an object with a posterior; got "
            f"{type(source).__name__}. Pass a (D, K) array to calibrate(draws=) directly."
        )
    columns: dict[str, np.ndarray] = {}
    for name, values in source.items():
        array, n_leading = np.asarray(values), 2 if chains else 1
        if array.ndim < n_leading:
            axes = "axes of chains and draws" if chains else "an axis of draws"
            raise ValueError(f"{name!r} must start with {axes}; got shape {array.shape}.")
        shape = array.shape[n_leading:]
        flat = array.reshape(int(np.prod(array.shape[:n_leading])), int(np.prod(shape)))
        columns |= dict(zip(element_names(str(name), shape), flat.T, strict=True))
    return columns


def _draws_first(array: Any) -> np.ndarray:
    """Return the values of an xarray variable with the draws of all chains along the first axis."""
    leading = [dim for dim in ("chain", "draw", "sample") if dim in array.dims]
    values = array.transpose(*leading, ...).values
    return values.reshape(-1, *values.shape[len(leading) :])


def _frame_columns(frame: Any) -> dict[str, np.ndarray]:
    """Return the columns of a data frame, without CmdStan's diagnostics and with the elements of arrays in C order."""
    names = [str(name) for name in frame.columns]
    kept = [n for n in names if not n.endswith("__") and n not in ("chain", "draw")]
    first = {variable: kept.index(name) for name in reversed(kept) for variable in [_parse_element(name)[0]]}
    kept.sort(key=lambda name: (first[_parse_element(name)[0]], _parse_element(name)[1]))
    return {name: np.asarray(frame[name]) for name in kept}


def _parse_element(column: str) -> tuple[str, tuple[int, ...]]:
    """Split `w[0,1]` into the variable `w` and the index (0, 1)."""
    match = re.fullmatch(r"(.+)\[(\d+(?:, ?\d+)*)\]", column)
    return (match[1], tuple(map(int, match[2].split(",")))) if match else (column, ())


def _floats(name: str, values: np.ndarray) -> np.ndarray:
    try:
        return np.asarray(values, float)
    except (TypeError, ValueError):
        raise TypeError(f"draws of {name!r} must be numbers; got {values.dtype}. Exclude it by names=.") from None


def _matching(columns: Iterable[str], name: str) -> list[str]:
    matching = [column for column in columns if name in (column, _parse_element(column)[0])]
    if not matching:
        raise ValueError(
            f"there are no draws of {name!r}, only of {', '.join(columns)}. Stan counts elements from 1: select whole "
            "variables, as in names=['mu', 'beta']."
        )
    return matching
