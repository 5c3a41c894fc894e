"""What users hand over, made ready to be leaves of a model: numbers as arrays, functions as constants.

JAX compiles once per function object, so a lambda written anew in a loop or in a notebook cell would
compile anew. Two functions made from the same code over the same values are one function here.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

Numbers = ArrayLike | Sequence[float]
"""What a number, or one number per parameter, may be given as."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_LIBRARIES = (*sys.stdlib_module_names, "calibayes")


class Function:
    """A plain Python function, equal to another with the same code that saw the same values.

    What it sees (closure, defaults, globals) is noted when it is wrapped: a loop over `tau` makes a new function at
    every turn, though all share one variable. Values that could change in place make two functions different.
    """

    def __init__(self, fn: FunctionType):
        self.fn = fn
        self.seen = seen_by(fn)

    def __call__(self, *args: Any) -> Any:
        return self.fn(*args)

    def __hash__(self) -> int:
        return hash(self.fn.__code__)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Function) and self.fn.__code__ == other.fn.__code__ and _same(self.seen, other.seen)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # What it saw may hold modules, which do not pickle; it is noted anew.
        return Function, (self.fn,)

    def __repr__(self) -> str:
        return getattr(self.fn, "__name__", repr(self.fn))


def as_float(value: Any) -> Float[Array, "..."]:
    """`value` as an array of the default float type, whatever it was."""
    return jnp.asarray(value, dtype=float)


def host_array(value: Any) -> Any:
    """The same on the host, to be handed to what is compiled: a transfer and a program fewer than an array there."""
    return np.asarray(value, jax.dtypes.canonicalize_dtype(float))


def static(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` ready to be a leaf of a model: modules keep their arrays, functions compare by code."""
    if isinstance(fn, FunctionType) and not isinstance(fn, eqx.Module):
        return Function(fn)
    return fn


def seen_by(fn: FunctionType, within: tuple[FunctionType, ...] = ()) -> tuple[Any, ...]:
    """Values of the closure, the defaults and the globals that a function's code names; of helpers, what they see."""
    closure = [cell.cell_contents for cell in fn.__closure__ or ()]
    keywords = [value for _, value in sorted((fn.__kwdefaults__ or {}).items())]
    names = sorted({name for code in _codes(fn.__code__) for name in code.co_names})
    values = [*closure, *(fn.__defaults__ or ()), *keywords, *(fn.__globals__.get(name) for name in names)]
    return tuple(_noted(value, (*within, fn)) for value in values)


def _noted(value: Any, within: tuple[FunctionType, ...]) -> Any:
    """A helper as its code and what it sees now; one that leads back to itself as something equal to nothing."""
    if type(value) is not FunctionType or from_library(value):
        return value
    return object() if value in within else (value.__code__, *seen_by(value, within))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, _PLAIN):
        return type(a) is type(b) and a == b
    if isinstance(a, CodeType):
        return a == b
    return a is b and (isinstance(a, jax.Array) or from_library(a))


def from_library(value: Any) -> bool:
    """Whether a module, class or function comes from an installed package, which nobody changes on the way."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    module = sys.modules.get(name) if isinstance(name, str) else None
    if module is None or not (callable(value) or isinstance(value, ModuleType)):
        return False
    file = getattr(module, "__file__", None) or ""
    return module.__name__.partition(".")[0] in _LIBRARIES or "site-packages" in file or "dist-packages" in file
