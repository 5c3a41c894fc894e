"""Conversion and checks of single arguments. Every error names the argument and shows the value received."""

from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from calibayes._backend.fork import require_working_jax
from calibayes._backend.functions import as_float

_MAX_DISPLAY_LENGTH = 80
"""Number of characters of a value in an error message, about one line."""


def display(value: object) -> str:
    """Return the representation of a value on one line, abbreviated if it is long."""
    try:
        text = " ".join(repr(value).split())
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= _MAX_DISPLAY_LENGTH else f"{text[: _MAX_DISPLAY_LENGTH - 4]} ..."


def fraction(name: str, value: Any, hint: str = "") -> float:
    """Return a number strictly between 0 and 1 as a float.

    Parameters
    ----------
    name : str
        Name of the argument in error messages.
    value : float
        Value of the argument.
    hint : str
        Text appended to the error message. Default: none.

    Returns
    -------
    float

    Raises
    ------
    TypeError, ValueError
        If `value` is not a number, or out of range.
    """
    _require_real(name, value)
    if not 0 < value < 1:
        raise ValueError(f"{name} must be between 0 and 1, both excluded; got {display(value)}.{hint}")
    return float(value)


def integer(name: str, value: object, minimum: int | None = None) -> int:
    """Return an integer that is at least `minimum`, if that is given; raise an error for any other value."""
    if not isinstance(value, Integral) or isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be an integer; got {display(value)}.")
    if minimum is not None and value < minimum:
        raise ValueError(f"{name} must be at least {minimum}; got {display(value)}.")
    return int(value)


def positive(name: str, value: Any) -> float:
    """Return a number that is positive, finite and normal in JAX's default float type; raise an error otherwise."""
    _require_real(name, value)
    floats = np.finfo(jax.dtypes.canonicalize_dtype(float))
    if not 0 < value < np.inf:
        raise ValueError(f"{name} must be positive and finite; got {display(value)}.")
    if not float(floats.tiny) <= value <= float(floats.max):
        raise ValueError(
            f"{name} must be within the range of {floats.dtype}, {floats.tiny:.0e} to {floats.max:.0e}; "
            f"got {display(value)}."
        )
    return float(value)


def scalar(name: str, value: object) -> Float[Array, ""]:
    """Return one positive and finite number as an array; raise an error for any other value."""
    array = parameters(name, value)
    if array.ndim != 0 or not 0 < float(array) < np.inf:
        raise ValueError(f"{name} must be one positive and finite number; got {display(value)}.")
    return array


def parameters(name: str, value: object) -> Float[Array, "..."]:
    """Convert the parameters of a loss or a prior to an array of the default float type.

    Parameters
    ----------
    name : str
        Name of the argument in error messages.
    value : float or array_like
        Real numbers. Numbers too small for a normal float become zero, because processors may flush them to zero.

    Returns
    -------
    Array

    Raises
    ------
    TypeError
        If `value` holds anything but real numbers.
    """
    require_working_jax()
    if isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.numpy.floating):
        return as_float(value)
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "iufO" or any(item is None for item in array.flat):
            raise TypeError
        numbers = array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} must be a number or an array of numbers; got {display(value)}.") from None
    floats = np.finfo(jax.dtypes.canonicalize_dtype(float))
    with np.errstate(over="ignore"):
        return as_float(np.where(np.abs(numbers) < floats.tiny, 0.0, numbers).astype(floats.dtype))


def unique_names(names: object, dim: int) -> list[str]:
    """Return the names of `dim` parameters as a list of distinct strings; raise an error otherwise."""
    if isinstance(names, str | bytes) or not isinstance(names, Iterable):
        raise TypeError(f"names must be a list of {dim} names; got {display(names)}.")
    strings = [str(name) for name in names]
    if len(strings) != dim:
        raise ValueError(f"names must name each of {dim} parameters; got {len(strings)} names.")
    duplicates = sorted({name for name in strings if strings.count(name) > 1})
    if duplicates:
        raise ValueError(f"names must be distinct; {display(duplicates[0])} occurs more than once.")
    return strings


def _require_real(name: str, value: object) -> None:
    """Raise an error for anything but a real number, including booleans and arrays of one number."""
    if not isinstance(value, Real) or isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be a number; got {display(value)}.")
