"""Trees of arrays and typed records in one file, without pickle: nothing in a file is ever run.

The file consists of a line that identifies the format, the length of a header, the header in JSON, the arrays one after
another, and a checksum, which is compared before anything else is parsed. The header states dtype and shape of every
array and lists the nodes of the tree, each made of earlier ones, so that an object which occurs twice is one object
again after loading. The sizes are compared with the size of the file.

Records are named tuples, dataclasses, `equinox.Module`s and enum members. They are stored by the name of their class,
which must be defined in a module that the caller trusts, and are rebuilt field by field without calling a constructor.
"""

import dataclasses
import json
import math
import sys
from collections.abc import Callable, Collection
from enum import Enum
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calibayes._backend.files import append_checksum, read_with_checksum, replace_file
from calibayes._backend.warnings import CheckpointError

_MAGIC = b"calibayes checkpoint 7\n"
_DTYPES = ("bool", "int8", "int32", "int64", "uint8", "uint32", "uint64", "float32", "float64")
_PACKAGE = __name__.partition(".")[0]

Replace = Callable[[object], object]
"""Function that returns a storable stand-in for an object that must not be stored itself, or None to store it."""
Restore = Callable[[Any], Any]
"""Function that returns the object for its stand-in."""


def write(path: Path, header: dict[str, Any], tree: object, trusted: Collection[str], replace: Replace) -> None:
    """Write the whole file, or leave the old one as it was.

    Parameters
    ----------
    path : Path
        File to write.
    header : dict
        JSON values to store in front.
    tree : object
        Nested lists, tuples, dicts, records, arrays, keys and plain values.
    trusted : collection of str
        Modules, besides those of this package, whose classes may be stored.
    replace : callable
        Stand-ins for objects that are not stored.

    Raises
    ------
    CheckpointError
        If the tree contains something that cannot be stored.
    """
    flattened = _Flattened(trusted, replace)
    flattened.add(tree)
    kinds = [[array.dtype.name, array.shape] for array in flattened.arrays]
    head = json.dumps(header | {"arrays": kinds, "nodes": flattened.nodes}).encode()
    pieces: list[Any] = [_MAGIC, len(head).to_bytes(8, "little"), head]
    pieces.extend(array.reshape(-1).view(np.uint8) for array in flattened.arrays)
    with replace_file(path) as temporary:
        with temporary.open("xb") as file:
            file.writelines(pieces)
        append_checksum(temporary)


def read(path: Path, trusted: Collection[str]) -> tuple[dict[str, Any], Callable[[Restore], object]]:
    """Return the header, and a function that builds the tree given the restorer of stand-ins.

    Raises
    ------
    CheckpointError
        If the file is damaged or was not written by this module.
    """
    damaged = f"checkpoint {str(path)!r} was not written by calibayes, or is damaged. Remove it to start afresh."
    try:
        header, arrays = _parse(read_with_checksum(path))
        nodes = list(header.pop("nodes"))
    except (OSError, MemoryError) as error:
        reason = getattr(error, "strerror", "it does not fit into memory")
        raise CheckpointError(f"checkpoint {str(path)!r} cannot be read: {reason}.") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise CheckpointError(damaged) from error

    def build(restore: Restore) -> object:
        built: list[Any] = []
        try:
            for node in nodes:
                built.append(_build(node, built, arrays, trusted, restore))
            return built[-1]
        except Exception as error:
            raise CheckpointError(damaged) from error

    return header, build


def _parse(content: memoryview) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Return the header and the arrays of a file."""
    position = len(_MAGIC) + 8
    if content[: len(_MAGIC)] != _MAGIC:
        raise ValueError("the first line is that of another format.")
    end = position + int.from_bytes(content[len(_MAGIC) : position], "little")
    header = json.loads(bytes(content[position:end]))
    arrays = []
    for dtype_name, dims in header.pop("arrays"):
        if dtype_name not in _DTYPES:
            raise ValueError(f"arrays of type {dtype_name!r} are not allowed.")
        dtype, shape = np.dtype(dtype_name), _shape(dims)
        start, end = end, end + dtype.itemsize * math.prod(shape)
        arrays.append(np.frombuffer(content[start:end], dtype).reshape(shape))
    if end != len(content):
        raise ValueError("the arrays do not have the size of the file.")
    return header, arrays


def _shape(shape: Any) -> tuple[int, ...]:
    if not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError("a shape consists of non-negative integers.")
    return tuple(shape)


class _Flattened:
    """A tree as a list of nodes, each made of earlier ones, and a list of arrays; every object occurs once."""

    def __init__(self, trusted: Collection[str], replace: Replace):
        self.trusted, self.replace = trusted, replace
        self.nodes: list[list[Any]] = []
        self.arrays: list[np.ndarray] = []
        self._known: dict[int, tuple[int, Any]] = {}

    def add(self, value: object) -> int:
        """Return the index of the value's node, which is added if it is new."""
        if id(value) in self._known:
            return self._known[id(value)][0]
        self.nodes.append(self._node(value))
        # The value is kept so that no other object gets its id.
        self._known[id(value)] = (len(self.nodes) - 1, value)
        return len(self.nodes) - 1

    def _node(self, value: Any) -> list[Any]:
        kind = type(value)
        if value is None or kind in (bool, int, float, str):
            return ["plain", value]
        if kind in (list, tuple):
            return [kind.__name__, *map(self.add, value)]
        if kind is dict:
            return ["dict", *(self.add(part) for item in value.items() for part in item)]
        if (stand_in := self.replace(value)) is not None:
            return ["replaced", self.add(stand_in)]
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            return ["key", self._array(jax.random.key_data(value))]
        if isinstance(value, jax.Array | np.ndarray) and value.dtype.name in _DTYPES:
            return ["jax" if isinstance(value, jax.Array) else "numpy", self._array(value)]
        if isinstance(value, np.generic) and value.dtype.name in _DTYPES:
            return ["scalar", self._array(value)]
        name = f"{kind.__module__}:{kind.__qualname__}"
        if _find_class(name, self.trusted) is kind:
            if isinstance(value, Enum):
                return ["enum", name, value.name]
            if (fields := _fields(kind)) is not None:
                return ["record", name, *(self.add(getattr(value, field)) for field in fields)]
            if kind.__module__.partition(".")[0] == _PACKAGE and hasattr(kind, "__getnewargs__"):
                return ["new", name, *value.__getnewargs__()]
        raise CheckpointError(
            f"checkpoint: a state holds a {name}, which cannot be stored. The state of a sampler, kernel or search "
            "must consist of arrays, numbers, tuples, lists, dicts, and named tuples, dataclasses or equinox modules "
            "that are defined at the top level of the same module as the sampler, kernel or search."
        )

    def _array(self, value: Any) -> int:
        self.arrays.append(np.ascontiguousarray(value).reshape(value.shape))
        return len(self.arrays) - 1


def _build(
    node: list[Any], built: list[Any], arrays: list[np.ndarray], trusted: Collection[str], restore: Restore
) -> Any:
    """Return the value of a node."""
    kind, *rest = node
    if kind == "plain":
        return rest[0]
    if kind in ("list", "tuple"):
        return (list if kind == "list" else tuple)(built[i] for i in rest)
    if kind == "dict":
        return {built[key]: built[value] for key, value in zip(rest[::2], rest[1::2], strict=True)}
    if kind == "replaced":
        return restore(built[rest[0]])
    if kind in ("enum", "record", "new"):
        cls = _find_class(rest[0], trusted)
        if cls is None:
            raise ValueError(f"{rest[0]} is not a class of a trusted module.")
        if kind == "enum" and issubclass(cls, Enum):
            return cls[rest[1]]
        if kind == "record":
            return _record(cls, [built[i] for i in rest[1:]])
        if kind == "new" and hasattr(cls, "__getnewargs__"):
            return cls.__new__(cls, *rest[1:])
        raise ValueError(f"{rest[0]} is not stored as a node of kind {kind!r}.")
    array = arrays[rest[0]]
    if kind == "key":
        return jax.random.wrap_key_data(jnp.array(array), impl="threefry2x32")
    if kind == "scalar":
        return array[()]
    if kind not in ("jax", "numpy"):
        raise ValueError(f"there is no node of kind {kind!r}.")
    return jnp.array(array) if kind == "jax" else np.array(array)


def _find_class(name: str, trusted: Collection[str]) -> Any:
    """Return the class of that name if it is defined in a module that is trusted and already imported; else None.

    A class that such a module only imports, as in `calibayes.result:np.memmap`, is not one of its own.
    """
    module_name, _, qualified = name.partition(":")
    if module_name.partition(".")[0] != _PACKAGE and module_name not in trusted:
        return None
    value: Any = sys.modules.get(module_name)
    for part in qualified.split("."):
        value = getattr(value, part, None)
    return value if isinstance(value, type) and f"{value.__module__}:{value.__qualname__}" == name else None


def _fields(cls: type) -> tuple[str, ...] | None:
    if issubclass(cls, tuple):
        return getattr(cls, "_fields", None)
    if dataclasses.is_dataclass(cls):
        return tuple(field.name for field in dataclasses.fields(cls))
    return None


def _record(cls: Any, values: list[Any]) -> Any:
    names = _fields(cls)
    if names is None or len(names) != len(values):
        raise ValueError(f"{cls.__qualname__} does not have {len(values)} fields.")
    if issubclass(cls, tuple):
        return tuple.__new__(cls, values)
    record = object.__new__(cls)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(record, name, value)
    return record
