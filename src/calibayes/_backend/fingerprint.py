"""Digests of values that are the same in every process: numbers by their bytes, functions by their code.

Functions are compared as in `calibayes._backend.functions`: by bytecode, constants and captured values. A class,
function or module of an installed package is represented by its name, and one of the user's own by its code. An object
is represented by its class and its attributes; one without attributes by its class alone.

A strict digest is an error where this could miss a difference: for code of installed packages other than JAX, NumPy and
this one, whose version it does not include, for modules of the user, whose variables can change, and for objects of
unknown classes.
"""

import dataclasses
import dis
import weakref
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calibayes._backend.functions import Function, captured_values, from_library

_KNOWN = (
    "builtins",
    "calibayes",
    "collections",
    "dataclasses",
    "equinox",
    "functools",
    "jax",
    "jaxlib",
    "math",
    "numpy",
)
"""Packages whose objects a strict digest represents by name and attributes; the versions are not included."""
_GENERATED = (
    "__dict__",
    "__doc__",
    "__firstlineno__",
    "__module__",
    "__slotnames__",
    "__static_attributes__",
    "__weakref__",
    "_abc_impl",
)
"""Attributes of a class that follow from the others, or do not affect what its instances do."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), range, slice)
"""Types whose values their `repr` determines; subclasses are not among them, because they can have methods."""
_CONTAINERS = (tuple, list, dict, set, frozenset, np.ndarray)
"""Types whose values their content determines; subclasses are not among them, because they can have methods."""
_CONTAINER_PACKAGES = ("calibayes", "equinox", "jax", "jaxlib")
"""Packages whose subclasses of containers, and whose arrays, their content determines."""


class UnstableDigestError(ValueError):
    """A value cannot be represented with certainty."""


def digest(value: object, strict: bool = False) -> str:
    """Return a digest of 64 hexadecimal digits, which is the same for equal values in any process.

    Parameters
    ----------
    value : object
        Value to represent.
    strict : bool
        Whether different values must have different digests. Default: False, which suffices to warn about a change.

    Returns
    -------
    str

    Raises
    ------
    UnstableDigestError
        If `strict` and the value contains an object whose behaviour its attributes and code may not determine.
    """
    return _hash(value, strict, {}).hex()


def _hash(value: object, strict: bool, known: dict[int, tuple[object, bytes]]) -> bytes:
    """Return the digest of a value.

    `known` holds the values that were hashed, by id, with their digests: each is hashed once, however often it occurs.
    It keeps them alive, so that no other value gets the same id. A value that contains itself is found there, too.
    """
    cls = type(value)
    if cls in _PLAIN:
        return sha256(f"{cls.__name__} {value!r}".encode()).digest()
    if id(value) in known:
        return known[id(value)][1]
    if strict:
        _require_known(value)
    known[id(value)] = value, b"itself"
    own = f"{cls.__module__}.{cls.__qualname__}".encode() if from_library(cls) else _hash(cls, strict, known)
    total = sha256(own)
    for part in _parts(value):
        inner = part if isinstance(part, bytes) else _hash(part, strict, known)
        total.update(len(inner).to_bytes(8, "little") + inner)
    known[id(value)] = value, total.digest()
    return total.digest()


def _parts(value: object) -> Iterator[Any]:
    """Yield the parts that distinguish a value from others of its type: bytes, or values to be hashed in turn."""
    if not (from_library(type(value)) or isinstance(value, type)):
        # Also of a tuple, a dictionary or a number of the user's own class.
        yield _attributes(value)
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        yield from _array(value)
    elif isinstance(value, tuple | list):
        yield from value
    elif isinstance(value, dict):
        yield from (pair for item in value.items() for pair in item)
    elif isinstance(value, set | frozenset):
        yield from sorted(value, key=_order)
    elif isinstance(value, _PLAIN):
        yield repr(value)
    elif isinstance(value, CodeType):
        names = (value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars)
        counts = (value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount, value.co_flags)
        yield from (value.co_code, value.co_exceptiontable, value.co_consts, names, counts)
    elif isinstance(value, Function):
        yield from (value.fn.__code__, value.captured)
    elif isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, ModuleType):
        yield value.__name__
        if not from_library(value) and getattr(value, "__file__", None):
            yield Path(str(value.__file__)).read_bytes()
    elif isinstance(value, type) or (callable(value) and from_library(value) and hasattr(value, "__qualname__")):
        yield from (value.__module__, value.__qualname__)
        if isinstance(value, type) and not from_library(value):
            attributes = {name: part for name, part in vars(value).items() if not _is_generated(name)}
            yield from (part for pair in sorted(attributes.items()) for part in pair)
            yield value.__bases__
    elif isinstance(value, FunctionType):
        yield from (value.__code__, captured_values(value))
    elif isinstance(value, property):
        yield value.fget
    elif isinstance(value, staticmethod | classmethod):
        yield value.__func__
    elif isinstance(value, np.dtype):
        yield value.str
    elif hasattr(value, "__wrapped__"):
        yield value.__wrapped__
    elif hasattr(value, "__array__"):
        yield np.asarray(value)
    else:
        yield getattr(value, "__name__", "")
        if from_library(type(value)):
            yield _attributes(value)


def _attributes(value: object) -> Any:
    """Return the attributes of an object, including those in slots, also if its class defines what is pickled."""
    return object.__getstate__(value)


def _order(item: object) -> str:
    """Return the key by which the items of a set are sorted: the same in every process."""
    return digest(item)


def _is_generated(name: str) -> bool:
    return name in _GENERATED or name.startswith(("__dataclass_", "__abstract"))


def _array(value: object) -> Iterator[Any]:
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
        value = np.asarray(value)
    if isinstance(value, jax.Array):
        yield from (f"{value.dtype} {value.shape}", _content(value))
        return
    array = np.asarray(value)
    yield f"{array.dtype.str} {array.shape}"
    yield array.tolist() if array.dtype.hasobject else array.tobytes()


_contents: dict[int, tuple[weakref.ref, bytes]] = {}
"""JAX arrays by their id, with the digests of their content."""


def _content(array: jax.Array) -> bytes:
    """Return the digest of the content of a JAX array, which cannot change and is therefore hashed only once."""
    key = id(array)
    known = _contents.get(key)
    if known is None or known[0]() is not array:
        content = sha256(np.asarray(array).tobytes()).digest()
        known = _contents[key] = weakref.ref(array, lambda _: _contents.pop(key, None)), content
    return known[1]


def _require_known(value: object) -> None:
    """Raise an error for code of other packages, and for objects that may differ although their attributes agree."""
    if isinstance(value, CodeType):
        imported = [one.argval for one in dis.get_instructions(value) if one.opname == "IMPORT_NAME"]
        if any(name.partition(".")[0] not in _KNOWN for name in imported):
            raise UnstableDigestError(f"{value.co_name} imports {', '.join(imported)}.")
        return
    if isinstance(value, (*_CONTAINERS, np.generic, np.dtype, jax.Array)):
        cls, package = type(value), type(value).__module__.partition(".")[0]
        is_scalar = package == "numpy" and not isinstance(value, np.ndarray)
        if not (cls in _CONTAINERS or package in _CONTAINER_PACKAGES or is_scalar):
            raise UnstableDigestError(f"{cls.__qualname__} is a container with methods of its own.")
        return
    named = value if isinstance(value, type | ModuleType) or callable(value) else type(value)
    module = named.__name__ if isinstance(named, ModuleType) else getattr(named, "__module__", None)
    module = type(named).__module__ if module is None else module
    if module.partition(".")[0] in _KNOWN:
        is_local = isinstance(named, FunctionType) and "<locals>" in named.__qualname__
        if is_local or (named is not value and not hasattr(value, "__dict__")):
            raise UnstableDigestError(f"{value!r} has a state that its attributes do not show.")
        return
    own_code = isinstance(named, FunctionType | Function | MethodType) or (
        isinstance(named, type) and dataclasses.is_dataclass(named)
    )
    if not own_code or from_library(named):
        raise UnstableDigestError(f"{value!r} cannot be identified by its code.")
