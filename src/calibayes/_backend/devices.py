"""More than one device, in one process or in many: who takes which observations and which rows.

Whatever goes over the observations (the risk, influences, totals of counts) is shared out by `jax.shard_map` over a
mesh of two axes: each device takes some of the observations on some of the rows, and one sum over observations tells
all of them the result. Counts follow from a row's key and an observation's number, so nothing else need be exchanged.
Everything else, which does not grow with the number of observations, is done by every device alike: particles are the
same everywhere, and whoever asks for them need not know how many devices there are.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

ROWS, OBSERVATIONS = "rows", "observations"
SOME = P(OBSERVATIONS)
"""Blocks of observations, shared out."""
ALL = P()
_WORTH = 2**23
"""Observations times rows from which several devices of one process are worth the while."""
_FEWEST_BLOCKS = 32
"""Blocks a device, below which rows are shared out instead."""

_asked: ContextVar[tuple[int, int] | None] = ContextVar("mesh", default=None)


@contextmanager
def mesh(*, rows: int = 1, observations: int = 1) -> Iterator[None]:
    """Calibrations inside use `rows * observations` devices, laid out so.

    Unless told, they use all devices that there are where it is worth it: observations are shared out as long as there
    are enough for each, then rows. Particles are kept by each. `mesh()` is one device.
    """
    for name, number in (("rows", rows), ("observations", observations)):
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"{name} must be a number of devices, at least 1; got {number!r}.")
    wanted, there = rows * observations, len(jax.devices())
    if wanted > there:
        raise ValueError(f"a mesh of {rows} x {observations} needs {wanted} devices; there are {there}.")
    if jax.process_count() > 1 and wanted != there:
        raise ValueError(f"a mesh over {jax.process_count()} processes must take all of their {there} devices.")
    token = _asked.set((rows, observations))
    try:
        yield
    finally:
        _asked.reset(token)


@contextmanager
def like(mesh: Mesh | None) -> Iterator[None]:
    """Targets made inside lie on the same devices."""
    shape = (1, 1) if mesh is None else mesh.devices.shape
    token = _asked.set((shape[0], shape[1]))
    try:
        yield
    finally:
        _asked.reset(token)


def mesh_for(n_blocks: int, n: int, n_replicates: int) -> Mesh | None:
    """The devices for so many blocks of N observations, on so many rows; None for just one."""
    shape = _asked.get()
    if shape is None:
        there = len(jax.devices())
        if jax.process_count() == 1 and n * n_replicates < _WORTH:
            there = 1
        parts = [d for d in range(1, there + 1) if there % d == 0 and (d == 1 or n_blocks >= d * _FEWEST_BLOCKS)]
        shape = there // parts[-1], parts[-1]
    if shape == (1, 1):
        return None
    devices = np.asarray(jax.devices()[: shape[0] * shape[1]]).reshape(shape)
    kinds = {device.device_kind for device in devices.flat}
    if len(kinds) > 1:
        raise RuntimeError(f"devices must all be of one kind, to come to the same result; got {', '.join(kinds)}.")
    return Mesh(devices, (ROWS, OBSERVATIONS))


def shares(mesh: Mesh | None, n_blocks: int) -> int:
    """Blocks, with as many empty ones as let each device have as many as the others."""
    return n_blocks if mesh is None else n_blocks + -n_blocks % mesh.shape[OBSERVATIONS]


def placed(mesh: Mesh | None, shape: tuple[int, ...], part: Callable[[slice], np.ndarray]) -> Any:
    """Blocks of observations, each made where it is kept; for one device on the host, to be handed over with others."""
    if mesh is None:
        return part(slice(0, shape[0]))
    whole = lambda index: slice(*index[0].indices(shape[0])[:2])
    return jax.make_array_from_callback(shape, NamedSharding(mesh, SOME), lambda index: part(whole(index)))


def summed(mesh: Mesh | None, fn: Callable[..., Any], specs: Any, *args: Any, rows: int | None = None) -> Any:
    """`fn` of each device's share of the arguments, and the sum of that over observations.

    If it is for rows, so many in all, `fn` has a first argument, those that are this device's: what it finds for them
    comes first axis first. Where there are not enough to go round, the last come again.
    """
    if mesh is None:
        return fn(*args) if rows is None else fn(slice(None), *args)

    def part(*args: Any) -> Any:
        if rows is None:
            return jax.lax.psum(fn(*args), OBSERVATIONS)
        each = -(-rows // mesh.shape[ROWS])
        own = jnp.minimum(jax.lax.axis_index(ROWS) * each + jnp.arange(each), rows - 1)
        return jax.lax.all_gather(jax.lax.psum(fn(own, *args), OBSERVATIONS), ROWS, tiled=True)[:rows]

    return jax.shard_map(part, mesh=mesh, in_specs=specs, out_specs=ALL, check_vma=False)(*args)


def each(mesh: Mesh | None, fn: Callable[..., Any], *args: Any) -> Any:
    """`fn` of blocks of observations, whose own blocks stay where they are."""
    if mesh is None:
        return fn(*args)
    return jax.shard_map(fn, mesh=mesh, in_specs=SOME, out_specs=SOME, check_vma=False)(*args)
