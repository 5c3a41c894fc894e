"""Numbers and names as users give them: each is what it should be, or the error says which argument is not."""

from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from calibayes._backend.functions import as_float

_SHOWN = 80


def display(value: Any) -> str:
    """A value on one line of an error, however long it is."""
    try:
        text = " ".join(repr(value).split())
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 4]} ..."


def _require_number(name: str, value: Any) -> None:
    """A real number; an array of one is none, nor is a truth value."""
    if not isinstance(value, Real) or isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be a number; got {display(value)}.")


def fraction(name: str, value: Any, hint: str = "") -> float:
    _require_number(name, value)
    if not 0 < value < 1:
        raise ValueError(f"{name} must be between 0 and 1, both excluded; got {display(value)}.{hint}")
    return float(value)


def integer(name: str, value: Any, least: int) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be an integer; got {display(value)}.")
    if value < least:
        raise ValueError(f"{name} must be at least {least}; got {display(value)}.")
    return int(value)


def positive(name: str, value: Any) -> float:
    """Positive and finite, and still so in the floats that are computed with."""
    _require_number(name, value)
    floats = np.finfo(jax.dtypes.canonicalize_dtype(float))
    if not 0 < value < np.inf:
        raise ValueError(f"{name} must be positive and finite; got {display(value)}.")
    if not float(floats.tiny) <= value <= float(floats.max):
        raise ValueError(
            f"{name} must be a {floats.dtype}, {floats.tiny:.0e} to {floats.max:.0e}; got {display(value)}."
        )
    return float(value)


def scalar(name: str, value: Any) -> Float[Array, ""]:
    """One positive and finite number, as an array."""
    given = parameters(name, value)
    if given.ndim != 0 or not 0 < float(given) < np.inf:
        raise ValueError(f"{name} must be positive and finite, one number; got {display(value)}.")
    return given


def parameters(name: str, value: Any) -> Float[Array, "..."]:
    """Real numbers as an array, of a loss or a prior; or an error that says whose."""
    if isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.numpy.floating):
        return as_float(value)
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "iufO" or any(item is None for item in array.flat):
            raise TypeError
        given = array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} must be a number, or numbers; got {display(value)}.") from None
    # What floats have no full digits for is zero to a processor that is asked to hurry.
    kind = np.finfo(jax.dtypes.canonicalize_dtype(float))
    with np.errstate(over="ignore"):
        return as_float(np.where(np.abs(given) < kind.tiny, 0.0, given).astype(kind.dtype))


def unique_names(names: Any, dim: int) -> list[str]:
    """Of the parameters, one each."""
    if isinstance(names, str | bytes) or not isinstance(names, Iterable):
        raise TypeError(f"names must be a list of {dim} names; got {display(names)}.")
    given = [str(name) for name in names]
    if len(given) != dim:
        raise ValueError(f"names must name each of {dim} parameters; got {len(given)} names.")
    twice = sorted({name for name in given if given.count(name) > 1})
    if twice:
        raise ValueError(f"names must differ; {display(twice[0])} comes more than once.")
    return given
