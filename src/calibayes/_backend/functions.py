"""User functions and numbers as leaves of a model.

JAX compiles once per function object, so a lambda that is written again in a loop or in a notebook cell would be
compiled again. `Function` compares functions by their code and the values they capture: two functions made from the
same code over the same values are equal, and compile once.
"""

import dis
import sys
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

Numbers = ArrayLike | Sequence[float]
"""Type of an argument that is a number, or one number per parameter."""

_READS_OF_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
"""Instructions that read a global variable by its name."""
_COMPARED_BY_VALUE = (bool, int, float, complex, str, bytes, type(None))
_LIBRARIES = (*sys.stdlib_module_names, "calibayes")


class Function:
    """Python function that equals every other function with the same code and the same captured values.

    The captured values (closure, defaults and globals) are recorded when the function is wrapped, so that the lambdas
    of a loop over `tau` differ although they share one variable. A call is an error if a variable has changed since
    then: programs that were compiled for the recorded values would be used for others. Captured values that can change
    in place, such as NumPy arrays and dictionaries, make two functions unequal. A change in place is not noticed by a
    call, but by `calibrate` (`calibayes._backend.outdated`).

    Parameters
    ----------
    fn : function
        Function to wrap.

    Attributes
    ----------
    fn : function
        The wrapped function.
    captured : tuple
        Names and values of the variables that the function captured when it was wrapped.

    Raises
    ------
    ValueError
        By a call or `check_unchanged`, if a captured variable has changed.
    """

    def __init__(self, fn: FunctionType):
        self.fn = fn
        self.captured = captured_values(fn)

    def __call__(self, *args: Any) -> Any:
        self.check_unchanged()
        return self.fn(*args)

    def check_unchanged(self) -> None:
        """Raise an error if a captured variable has changed; to be called before `fn` is called directly."""
        for (name, recorded), (_, current) in zip(self.captured, captured_values(self.fn), strict=True):
            if not _unchanged(recorded, current):
                raise ValueError(
                    f"{name}, which the function {self!r} uses, has changed since the model was made. Make the model "
                    f"again, or fix the value by an argument with a default: {name}={name}."
                )

    def __hash__(self) -> int:
        return hash(self.fn.__code__)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Function)
            and self.fn.__code__ == other.fn.__code__
            and _same(self.captured, other.captured)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # The captured values may include modules, which cannot be pickled; they are recorded again when unpickling.
        return Function, (self.fn,)

    def __repr__(self) -> str:
        return getattr(self.fn, "__name__", repr(self.fn))


def as_float(value: object) -> Float[Array, "..."]:
    """Convert to a JAX array of the default float type."""
    return jnp.asarray(value, dtype=float)


def host_array(value: object) -> Any:
    """Convert to a NumPy array of JAX's default float type.

    Compiled functions accept it as it is. Creating a JAX array instead would take a transfer to the device, and a small
    compiled function for the conversion.
    """
    return np.asarray(value, jax.dtypes.canonicalize_dtype(float))


def static(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap plain functions in `Function`, and return other callables, such as equinox modules, unchanged."""
    if isinstance(fn, FunctionType) and not isinstance(fn, eqx.Module):
        return Function(fn)
    return fn


def captured_values(fn: FunctionType, callers: tuple[FunctionType, ...] = ()) -> tuple[tuple[str, Any], ...]:
    """Return the names and values of the closure, the defaults and the globals that a function uses.

    Parameters
    ----------
    fn : function
        Function to inspect.
    callers : tuple of function
        Functions through which `fn` was reached, to detect recursion.

    Returns
    -------
    tuple
        Pairs of a name and a value. A user's helper function is replaced by its code and its own captured values.
    """
    code, defaults = fn.__code__, fn.__defaults__ or ()
    arguments = code.co_varnames[: code.co_argcount]
    pairs = [
        *zip(code.co_freevars, (cell.cell_contents for cell in fn.__closure__ or ()), strict=True),
        *zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True),
        *sorted((fn.__kwdefaults__ or {}).items()),
        *((name, fn.__globals__.get(name)) for name in sorted(_global_names(code))),
    ]
    return tuple((name, _expand_helper(value, (*callers, fn))) for name, value in pairs)


def from_library(value: object) -> bool:
    """Return whether a module, class or function belongs to an installed package, which is assumed not to change."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    module = sys.modules.get(name) if isinstance(name, str) else None
    if module is None or not (callable(value) or isinstance(value, ModuleType)):
        return False
    file = getattr(module, "__file__", None) or ""
    return module.__name__.partition(".")[0] in _LIBRARIES or "site-packages" in file or "dist-packages" in file


def _expand_helper(value: object, callers: tuple[FunctionType, ...]) -> Any:
    """Replace a user's function by its code and captured values; a recursive one by an object that equals no other."""
    if type(value) is not FunctionType or from_library(value):
        return value
    return _Recursion() if value in callers else (value.__code__, *captured_values(value, callers))


class _Recursion:
    """Place of a function among the values that it captures itself."""


def _global_names(code: CodeType) -> set[str]:
    """Return the names of the global variables that code reads; those of attributes and local variables are others."""
    nested = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    own = {one.argval for one in dis.get_instructions(code) if one.opname in _READS_OF_GLOBALS}
    return own.union(*map(_global_names, nested))


def _unchanged(recorded: object, current: object) -> bool:
    """Return whether a variable still has the value that was recorded; changes in place are not noticed."""
    if isinstance(recorded, tuple) and type(recorded) is type(current):
        return len(recorded) == len(current) and all(map(_unchanged, recorded, current))
    is_equal = recorded is current or (isinstance(recorded, _Recursion) and isinstance(current, _Recursion))
    return is_equal or _same(recorded, current)


def _same(a: object, b: object) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        # Named tuples with other names, or of another class with other methods, differ.
        return type(a) is type(b) and len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, _COMPARED_BY_VALUE):
        return type(a) is type(b) and a == b
    if isinstance(a, CodeType):
        return a == b
    return a is b and (isinstance(a, jax.Array) or from_library(a))
