"""Trees of arrays in one file, of types that are known: no pickle, nothing in a file is ever run.

The file is a line that says what it is, the length of a header, the header in JSON, the arrays one after another, and a
checksum. The header names the dtype and the shape of every array, and lists the tree's nodes, each made of earlier
ones, so that what was one object is one object again. Types are looked up in `KNOWN`. Sizes are held against the file's
before anything is allocated.

A `Target` is not stored again: it is the caller's live one with its reference moved, and made from that.
"""

import json
import math
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calibayes._backend.warnings import CheckpointError
from calibayes._core.curve import Coverage, Curve
from calibayes._core.particles import Particles
from calibayes._core.target import Target
from calibayes.kernels import crank_nicolson, ram, rwmh
from calibayes.result import Record
from calibayes.samplers.audit import Audit
from calibayes.samplers.base import SamplerInfo
from calibayes.samplers.initial import InitialDraws
from calibayes.samplers.mcmc import MCMCState
from calibayes.samplers.smc import SMCState
from calibayes.samplers.tempering import TemperingState
from calibayes.samplers.transport.maps import Base, Maps
from calibayes.samplers.transport.pool import Pool
from calibayes.samplers.transport.sampler import Source, TransportState
from calibayes.samplers.transport.transfer import Carried

_MAGIC = b"calibayes checkpoint 5\n"
_DTYPES = ("bool", "int8", "int32", "int64", "uint8", "uint32", "uint64", "float32", "float64")


class Gone:
    """In the place of something large that nothing needs any more."""


KNOWN: dict[str, type] = {
    f"{kind.__module__}.{kind.__qualname__}": kind
    for kind in (
        *(
            Particles,
            InitialDraws,
            Pool,
            TemperingState,
            SMCState,
            MCMCState,
            Base,
            Maps,
            Carried,
            Source,
            TransportState,
        ),
        *(crank_nicolson._Adaptation, ram._Adaptation, rwmh._Adaptation),
        *(SamplerInfo, Curve, Record, Audit),
    )
}
_NAMES = {kind: name for name, kind in KNOWN.items()}


def write(path: Path, header: dict[str, Any], tree: Any, live: Target | None) -> None:
    """The whole file or, whatever happens on the way, what was there before."""
    flat = _Flat(live)
    flat.add(tree)
    kinds = [[array.dtype.name, array.shape] for array in flat.arrays]
    head = json.dumps(header | {"arrays": kinds, "nodes": flat.nodes}).encode()
    pieces: list[Any] = [_MAGIC, len(head).to_bytes(8, "little"), head]
    pieces.extend(array.reshape(-1).view(np.uint8) for array in flat.arrays)
    # One name, so that what a killed process leaves behind is overwritten by the next.
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            check = 0
            for piece in pieces:
                file.write(piece)
                check = zlib.crc32(piece, check)
            file.write(check.to_bytes(4, "little"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read(path: Path) -> tuple[dict[str, Any], Callable[[Target | None], Any]]:
    """The header, and what makes the tree again given the live target."""
    foreign = f"checkpoint {str(path)!r} was not written by calibayes, or is damaged: remove it to start afresh."
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            check = zlib.crc32(begin := file.read(len(_MAGIC) + 8))
            length = int.from_bytes(begin[len(_MAGIC) :], "little")
            if not begin.startswith(_MAGIC) or length > size:
                raise CheckpointError(foreign)
            check = zlib.crc32(head := file.read(length), check)
            header = json.loads(head)
            kinds = [(np.dtype(_DTYPES[_DTYPES.index(dtype)]), _shape(shape)) for dtype, shape in header.pop("arrays")]
            sizes = [dtype.itemsize * math.prod(shape) for dtype, shape in kinds]
            if len(begin) + length + sum(sizes) + 4 != size:
                raise CheckpointError(foreign)
            arrays = []
            for (dtype, shape), n_bytes in zip(kinds, sizes, strict=True):
                check = zlib.crc32(data := file.read(n_bytes), check)
                arrays.append(np.frombuffer(data, dtype).reshape(shape))
            if file.read(4) != check.to_bytes(4, "little"):
                raise CheckpointError(foreign)
        nodes = list(header.pop("nodes"))
    except OSError as error:
        raise CheckpointError(f"checkpoint {str(path)!r} cannot be read: {error.strerror}.") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise CheckpointError(foreign) from error

    def tree(live: Target | None) -> Any:
        made: list[Any] = []
        try:
            for node in nodes:
                made.append(_made(node, made, arrays, live))
            return made[-1]
        except Exception as error:
            raise CheckpointError(foreign) from error

    return header, tree


def checksum(path: Path) -> str:
    """What tells a file from others."""
    return path.read_bytes()[-4:].hex()


def _shape(shape: Any) -> tuple[int, ...]:
    if not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError("a shape is made of integers.")
    return tuple(shape)


class _Flat:
    """A tree taken apart into nodes, each of earlier ones, and arrays; every object once."""

    def __init__(self, live: Target | None):
        self.live = live
        self.nodes: list[list[Any]] = []
        self.arrays: list[np.ndarray] = []
        self._seen: dict[int, tuple[int, Any]] = {}

    def add(self, value: Any) -> int:
        """The number of a value's node."""
        if id(value) in self._seen:
            return self._seen[id(value)][0]
        self.nodes.append(self._node(value))
        # With the value, so that nothing else gets its id.
        self._seen[id(value)] = (len(self.nodes) - 1, value)
        return len(self.nodes) - 1

    def _node(self, value: Any) -> list[Any]:
        kind = type(value)
        if value is None or kind in (bool, int, float, str):
            return ["plain", value]
        if kind in (list, tuple):
            return [kind.__name__, *map(self.add, value)]
        if kind is dict:
            return ["dict", *(self.add(part) for item in value.items() for part in item)]
        if kind is Coverage:
            return ["coverage", *value.__getnewargs__()]
        if kind is Gone:
            return ["gone"]
        if kind is Target:
            return ["target", *([] if value is self.live else [self.add(value.reference)])]
        if kind in _NAMES:
            fields = value if isinstance(value, tuple) else [getattr(value, name) for name in _fields(kind)]
            return ["known", _NAMES[kind], *map(self.add, fields)]
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            return ["key", self._array(jax.random.key_data(value))]
        if isinstance(value, jax.Array | np.ndarray) and value.dtype.name in _DTYPES:
            return ["jax" if isinstance(value, jax.Array) else "numpy", self._array(value)]
        if isinstance(value, np.generic) and value.dtype.name in _DTYPES:
            return ["scalar", self._array(value)]
        raise CheckpointError(
            f"checkpoint: a state holds a {kind.__module__}.{kind.__qualname__}, which cannot be stored. What a kernel "
            "or a sampler of your own keeps must be made of arrays, numbers, tuples, lists and dicts."
        )

    def _array(self, value: Any) -> int:
        self.arrays.append(np.ascontiguousarray(value).reshape(value.shape))
        return len(self.arrays) - 1


def _made(node: list[Any], made: list[Any], arrays: list[np.ndarray], live: Target | None) -> Any:
    """The value of a node."""
    kind, *rest = node
    if kind == "plain":
        return rest[0]
    if kind in ("list", "tuple"):
        return (list if kind == "list" else tuple)(made[i] for i in rest)
    if kind == "dict":
        return {made[key]: made[value] for key, value in zip(rest[::2], rest[1::2], strict=True)}
    if kind == "coverage":
        return Coverage(*rest)
    if kind == "gone":
        return Gone()
    if kind == "target":
        return _moved(live, *(made[i] for i in rest))
    if kind == "known":
        return KNOWN[rest[0]](*(made[i] for i in rest[1:]))
    array = arrays[rest[0]]
    if kind == "key":
        return jax.random.wrap_key_data(jnp.array(array), impl="threefry2x32")
    if kind == "scalar":
        return array[()]
    if kind not in ("jax", "numpy"):
        raise ValueError(f"no node is a {kind!r}.")
    return jnp.array(array) if kind == "jax" else np.array(array)


def _moved(live: Target | None, *reference: Any) -> Target | None:
    """The live target, or that with another reference."""
    if not reference:
        return live
    (point,) = reference
    if live is None or (point.shape, point.dtype) != (live.reference.shape, live.reference.dtype):
        raise ValueError("the reference of another target.")
    return live.recentre(point)


def _fields(kind: type) -> list[str]:
    return list(kind.__dataclass_fields__)  # type: ignore[attr-defined]
