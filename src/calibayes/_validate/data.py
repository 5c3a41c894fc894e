"""Checks of the observations: `(X, y)` for losses of a linear prediction, any pytree of arrays for other losses."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from calibayes._backend.arguments import unique_names
from calibayes._backend.memory import require_memory_for_array
from calibayes._core.coordinates import Coordinates
from calibayes._core.parts import CheckedParts
from calibayes._validate.counts_risk import check_counts_risk
from calibayes._validate.functions import check_functions
from calibayes.losses import CountsRisk, LinearLoss
from calibayes.model import GibbsModel


@dataclass(frozen=True)
class DataConfig:
    """Tuning constants of the data checks."""

    max_residual: float = 64 * float(np.finfo(np.float64).eps)
    """Residual of least squares, relative to y and to the terms of the prediction, up to which X fits y exactly: the
    rounding errors of a least-squares fit in double precision."""
    max_relative_fit: float = 0.1
    """Parameters of an exact fit, relative to the interquartile range of the prior, below which the prior does not
    determine them. Order-of-magnitude choice. With 10 observations of 15 parameters and a prior 100 times wider than
    the fit, a calibration had not ended after six minutes; with priors as wide as the fit, five ended within 20 s."""
    n_prior_draws: int = 64
    """Draws of the prior from which its interquartile range is computed, for this comparison of magnitudes."""


CONFIG = DataConfig()


class Observations(NamedTuple):
    """Data that have passed all checks, as NumPy arrays or in parts.

    Attributes
    ----------
    data : pytree of ndarray or CheckedParts
        Arrays with the observations along the first axis. For losses of a linear prediction, the pair `(X, y)`.
    n : int
        Number of observations.
    dim : int
        Number of parameters.
    names : list of str
        Name of each parameter.
    """

    data: PyTree[np.ndarray] | CheckedParts
    n: int
    dim: int
    names: list[str]


def check_data(model: GibbsModel, data: object, names: Sequence[str] | None) -> Observations:
    """Check the data and the model's functions on them.

    Parameters
    ----------
    model : GibbsModel
        Model of the data.
    data : pytree
        The user's data: `(X, y)` for losses of a linear prediction, else arrays with a common leading axis.
    names : sequence of str or None
        Names of the parameters. None takes the columns of a data frame, the names of the prior, or `theta[k]`.

    Returns
    -------
    Observations
        The data as NumPy arrays.

    Raises
    ------
    TypeError, ValueError
        If the data, the names or the model's functions are invalid.
    """
    if not isinstance(model, GibbsModel):
        raise TypeError(f"model must be a GibbsModel(loss, prior); got {type(model).__name__}.")
    linear = isinstance(model.loss, LinearLoss)
    checked, columns = _check_linear_data(model, data) if linear else (generic_arrays(data), None)
    if isinstance(model.loss, CountsRisk):
        checked, columns = model.loss.check(checked), _columns_of_first(data)
    leaves = jax.tree.leaves(checked)
    n = len(leaves[0])
    _require_two_observations(n)
    dim = leaves[0].shape[1] if linear else model.dim
    if isinstance(model.loss, CountsRisk):
        dim = model.loss.n_parameters(checked) or dim
    if dim is None:
        raise ValueError("dim, the number of parameters, is required for this risk: GibbsModel(risk, prior, dim=K).")
    if model.dim is not None and model.dim != dim:
        raise ValueError(f"X has {dim} columns, but the model has {model.dim} parameters (its dim, or its prior's).")
    if names is None:
        names = (
            (columns if columns and len(columns) == dim else None)
            or getattr(model.prior, "names", None)
            or [f"theta[{k}]" for k in range(dim)]
        )
    else:
        names = unique_names(names, dim)
    Coordinates.from_prior(model.prior, dim)
    check_functions(model, checked, dim)
    if isinstance(model.loss, CountsRisk):
        check_counts_risk(model.loss, model.prior, checked, dim)
    if linear:
        require_determined(leaves[0], leaves[1], model)
    return Observations(checked, n, dim, [str(name) for name in names])


def as_numeric_array(name: str, value: object, *, keep_integers: bool = False) -> np.ndarray:
    """Convert an array-like argument to float64.

    Parameters
    ----------
    name : str
        Name of the argument in error messages.
    value : array_like
        Array, sequence, series or data frame.
    keep_integers : bool
        Whether integer and boolean arrays keep their dtype. Default: False.

    Returns
    -------
    ndarray

    Raises
    ------
    TypeError, ValueError
        If `value` is not an array of real numbers.
    """
    if hasattr(value, "toarray"):
        raise TypeError(f"{name} is a sparse matrix: pass {name}.toarray().")
    if np.ma.is_masked(value):
        raise ValueError(f"{name} has masked values: drop or impute them, and pass an array without a mask.")
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} must be an array of numbers: {error}") from None
    require_memory_for_array(name, array.shape, array.dtype)
    if keep_integers and array.dtype.kind in "biu":
        if (array != array.astype(jax.dtypes.canonicalize_dtype(array.dtype))).any():
            raise ValueError(f"{name} holds integers too large for 32 bits. Enable JAX's x64, or pass floats.")
        return array
    floats = _to_float64(array)
    if floats is None:
        raise TypeError(f"{name} must hold numbers; got {array.dtype}.")
    return floats


def require_finite(name: str, array: np.ndarray, columns: list[str] | None = None) -> None:
    """Raise an error if a floating-point array has values that are not finite in the default float type."""
    if array.dtype.kind != "f":
        return
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    with np.errstate(over="ignore"):
        finite = np.isfinite(array.astype(dtype))
    if not finite.all():
        invalid = np.argwhere(~finite)
        location = f"row {invalid[0][0]}"
        if array.ndim > 1:
            location += f", column {columns[invalid[0][1]] if columns else invalid[0][1]}"
        raise ValueError(
            f"{name} must be finite; {len(invalid)} of {array.size} values are NaN, infinite or beyond {dtype}, the "
            f"first in {location}. Drop or impute them."
        )


def _check_linear_data(model: GibbsModel, data: object) -> tuple[tuple[np.ndarray, np.ndarray], list[str] | None]:
    """Return `(X, y)` in float64 and the column names of X, None if X is not a data frame."""
    (x, y), columns = linear_arrays(model, data)
    _require_two_observations(len(x))
    assert isinstance(model.loss, LinearLoss)
    model.loss.check(y)
    return (x, y), columns


def linear_arrays(model: GibbsModel, data: object) -> tuple[tuple[np.ndarray, np.ndarray], list[str] | None]:
    """Return `(X, y)` in float64, all of them finite, and the column names of X, None if X is not a data frame."""
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise TypeError(f"data must be a pair (X, y) for {type(model.loss).__name__}; got {type(data).__name__}.")
    columns = _column_names(data[0])
    x = as_numeric_array("X", data[0]) if columns is None else _frame_to_array(data[0], columns)
    y = as_numeric_array("y", data[1])
    if x.ndim != 2:
        raise ValueError(f"X must have two dimensions, (observations, parameters); got shape {x.shape}.")
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise ValueError(f"y must have one dimension; got shape {y.shape}.")
    if len(x) != len(y):
        raise ValueError(f"X and y must have the same length; got {len(x)} and {len(y)} observations.")
    if x.size == 0:
        raise ValueError(f"X is empty: shape {x.shape}.")
    require_finite("X", x, columns)
    require_finite("y", y)
    return (x, y), columns


def require_determined(x: np.ndarray, y: np.ndarray, model: GibbsModel) -> None:
    """Raise an error if the data are fitted exactly, and the prior is too wide to determine the parameters instead.

    The loss of the estimate is then zero on the data and on every replicate, and the posterior is that of the prior in
    some directions. If the prior determines the parameters, the estimate is no exact fit, and there may be an answer.
    """
    n, dim = x.shape
    underdetermined = n <= dim and np.linalg.matrix_rank(_scaled(x)) == n
    if not underdetermined:
        # Few rows suffice to show that a fit is not exact.
        location = isinstance(model.loss, LinearLoss) and model.loss.location
        if not location or not (_is_exact_fit(x[: 2 * dim + 2], y[: 2 * dim + 2]) and _is_exact_fit(x, y)):
            return
    spread = _prior_spread(model, dim)
    if not np.isfinite(spread).all():
        return
    fit = np.linalg.lstsq(x * spread, y)[0]
    if not np.abs(fit).max() < CONFIG.max_relative_fit:
        return
    if underdetermined:
        raise ValueError(
            f"X: {n} observations do not determine {dim} parameters, and the prior is too wide to do so. Parameters "
            "that fit all observations exactly fit every bootstrap replicate, so that no learning rate is calibrated. "
            "Use fewer columns than observations, or a narrower prior."
        )
    raise ValueError(
        f"y: all {n} observations are fitted exactly by the columns of X. The estimate is then the same on every "
        "bootstrap replicate, and no learning rate is calibrated. Check that X does not determine y."
    )


def _prior_spread(model: GibbsModel, dim: int) -> np.ndarray:
    """Return the interquartile range of each parameter under the prior; NaN if the prior cannot be sampled."""
    if not hasattr(model.prior, "sample"):
        return np.full(dim, np.nan)
    draws = np.asarray(model.prior.sample(jax.random.key(0), (CONFIG.n_prior_draws, dim)), np.float64)
    return np.subtract(*np.quantile(draws, [0.75, 0.25], axis=0)) * np.ones(dim)


def _is_exact_fit(x: np.ndarray, y: np.ndarray) -> bool:
    scaled = _scaled(x)
    fit = np.linalg.lstsq(scaled, y)[0]
    sizes = np.abs(y).max() + np.abs(scaled) @ np.abs(fit)
    return bool((np.abs(y - scaled @ fit) <= CONFIG.max_residual * sizes).all())


def generic_arrays(data: object) -> PyTree[np.ndarray]:
    """Return the user's data as arrays of finite numbers with the same length."""
    is_frame = lambda leaf: hasattr(leaf, "columns") or hasattr(leaf, "to_numpy")
    leaves, structure = jax.tree.flatten(data, is_leaf=is_frame)
    if not leaves:
        raise ValueError("data is empty: it must hold arrays with a common leading axis.")
    arrays = []
    for i, leaf in enumerate(leaves):
        name = "data" if len(leaves) == 1 else f"array {i} of data"
        array = as_numeric_array(name, leaf, keep_integers=True)
        if array.ndim == 0 or array.size == 0:
            raise ValueError(f"{name} must have observations along its first axis; got shape {array.shape}.")
        require_finite(name, array)
        arrays.append(array)
    lengths = sorted({len(array) for array in arrays})
    if len(lengths) > 1:
        raise ValueError(f"data must be arrays of the same length; got {', '.join(map(str, lengths))}.")
    return jax.tree.unflatten(structure, arrays)


def _columns_of_first(data: Any) -> list[str] | None:
    """Return the columns of a data frame that is the first of several arrays."""
    return _column_names(data[0]) if isinstance(data, tuple | list) and data else None


def _require_two_observations(n: int) -> None:
    if n < 2:
        raise ValueError(f"data must hold at least two observations; got {n}.")


def _column_names(table: object) -> list[str] | None:
    if hasattr(table, "collect"):
        raise TypeError("X is a lazy data frame that has not been read yet: pass X.collect().")
    if not hasattr(table, "columns"):
        return None
    columns = [str(column) for column in table.columns]
    duplicates = [column for column in columns if columns.count(column) > 1]
    if duplicates:
        raise ValueError(f"X has more than one column {duplicates[0]!r}: rename them.")
    return columns


def _frame_to_array(frame: Any, columns: list[str]) -> np.ndarray:
    """Convert a pandas or polars data frame to float64, column by column."""
    require_memory_for_array("X", frame.shape, np.dtype(object))
    arrays = [_to_float64(frame[column]) for column in frame.columns]
    not_numeric = [column for column, array in zip(columns, arrays, strict=True) if array is None]
    if not_numeric:
        raise TypeError(f"X must hold numbers; these columns do not: {', '.join(not_numeric)}. Encode or drop them.")
    return np.column_stack([array for array in arrays if array is not None]) if arrays else np.empty((len(frame), 0))


def _to_float64(value: object) -> np.ndarray | None:
    """Convert to float64; return None for text, dates, complex numbers and other objects."""
    array = np.asarray(value)
    if array.dtype.kind in "USMmc" or (array.dtype.kind == "O" and any(isinstance(v, str) for v in array.flat)):
        return None
    try:
        return np.asarray(value, np.float64)
    except (TypeError, ValueError, OverflowError):
        return None


def _scaled(x: np.ndarray) -> np.ndarray:
    """Return X with columns scaled to a largest value of one."""
    scale = np.abs(x).max(0)
    return x / np.where(scale > 0, scale, 1)
