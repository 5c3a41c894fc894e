"""What users hand over, made ready to be leaves of a model: numbers as arrays, functions as constants.

JAX compiles once per function object, so a lambda written anew in a loop or in a notebook cell would
compile anew. Two functions made from the same code over the same values are one function here.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class Function:
    """A plain Python function, equal to another with the same code, defaults, globals and closure."""

    def __init__(self, fn: FunctionType):
        self.fn = fn

    def __call__(self, *args: Any) -> Any:
        return self.fn(*args)

    def __hash__(self) -> int:
        return hash(self.fn.__code__)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Function):
            return False
        a, b = self.fn, other.fn
        return a is b or (
            a.__code__ == b.__code__ and a.__globals__ is b.__globals__ and _same(_captured(a), _captured(b))
        )

    def __repr__(self) -> str:
        return getattr(self.fn, "__name__", repr(self.fn))


def as_float(value: Any) -> Float[Array, "..."]:
    """`value` as an array of the default float type, whatever it was."""
    return jnp.asarray(value, dtype=float)


def static(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` ready to be a leaf of a model: modules keep their arrays, functions compare by code."""
    if isinstance(fn, FunctionType) and not isinstance(fn, eqx.Module):
        return Function(fn)
    return fn


def _captured(fn: FunctionType) -> list[Any]:
    keywords = sorted((fn.__kwdefaults__ or {}).items())
    return [
        *(cell.cell_contents for cell in fn.__closure__ or ()),
        *(fn.__defaults__ or ()),
        *(value for _, value in keywords),
    ]


def _same(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(
        x is y or (type(x) is type(y) and isinstance(x, _PLAIN) and x == y) for x, y in zip(a, b, strict=True)
    )
