"""Computation on several devices, in one process or in several.

Only the sums over observations (the risk, influences, sums of counts) are distributed, by `jax.shard_map` over a
mesh of two axes: each device holds a part of the observations and computes the sums of a part of the replicates, and a
sum over devices gives every device the result. Counts are a function of the key of a replicate and the index of an
observation, so they are drawn where they are needed and never exchanged.

Everything else does not grow with the number of observations and is computed by all devices alike. Particles are the
same on every device, so code outside this module and `calibayes._core` does not depend on the number of devices.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

REPLICATES, OBSERVATIONS = "replicates", "observations"
"""Names of the axes of the mesh."""
SHARDED = P(OBSERVATIONS)
"""Partition of an array whose leading axis, blocks of observations, is divided between devices."""
UNSHARDED = P()
"""Partition of an array that every device holds completely."""


@dataclass(frozen=True)
class DevicesConfig:
    """Tuning constants of the default mesh."""

    min_counts: int = 2**23
    """Number of observations times replicates from which a single process uses all of its devices. Below, the
    communication takes longer than it saves. Order-of-magnitude choice; it affects the running time only."""
    min_blocks_per_device: int = 32
    """Number of blocks of observations per device below which replicates are divided between devices instead.
    Order-of-magnitude choice; it affects the running time only."""
    min_size: int = 256
    """Smallest number of observations for which memory is allocated. On a CPU the loops over observations leave out
    the padding, which costs memory only."""
    max_quadrupled_size: int = 2**12
    """Largest size of data up to which sizes are multiplied by four, so that most small data sets share their
    programs. Order-of-magnitude choice; the padding takes at most a few MiB."""
    max_doubled_size: int = 2**16
    """The same for sizes that are multiplied by two; larger ones grow by at most a quarter."""
    max_doubled_size_on_accelerator: int = 2**10
    """The same on an accelerator, where loops include the padding."""


CONFIG = DevicesConfig()

_requested_shape: ContextVar[tuple[int, int] | None] = ContextVar("mesh", default=None)


@contextmanager
def mesh(*, replicates: int = 1, observations: int = 1) -> Iterator[None]:
    """Choose how calibrations are distributed over devices.

    Calibrations inside the `with` block use `replicates * observations` devices. Outside of it they use all devices if
    the data are large: the observations are divided between all of them if there are enough observations for each
    device, and otherwise the replicates, or both. What is divided is the evaluation of the risk; every device holds the
    particles of all replicates. `mesh()` selects one device.

    Parameters
    ----------
    replicates : int
        Number of parts into which the bootstrap replicates are divided. Default: 1.
    observations : int
        Number of parts into which the observations are divided. Default: 1.

    Raises
    ------
    ValueError
        If there are fewer devices, or if there are several processes and the mesh does not use all of their devices.

    Examples
    --------
    >>> import calibayes as cb
    >>> with cb.mesh(replicates=1, observations=1):
    ...     pass  # cb.calibrate(...) on one device
    """
    for name, number in (("replicates", replicates), ("observations", observations)):
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"{name} must be a number of devices, at least 1; got {number!r}.")
    needed, available = replicates * observations, len(jax.devices())
    if needed > available:
        raise ValueError(f"a mesh of {replicates} x {observations} needs {needed} devices; {available} are available.")
    if jax.process_count() > 1 and needed != available:
        raise ValueError(f"a mesh over {jax.process_count()} processes must use all of their {available} devices.")
    token = _requested_shape.set((replicates, observations))
    try:
        yield
    finally:
        _requested_shape.reset(token)


@contextmanager
def use_mesh(mesh: Mesh | None) -> Iterator[None]:
    """Place the data of all targets that are made inside the `with` block on the devices of `mesh`.

    With None, they are placed on a single device.
    """
    shape = (1, 1) if mesh is None else mesh.devices.shape
    token = _requested_shape.set((shape[0], shape[1]))
    try:
        yield
    finally:
        _requested_shape.reset(token)


def choose_mesh(n_blocks: int, n: int, n_replicates: int, divisible: bool = True) -> Mesh | None:
    """Choose the devices of a target.

    Parameters
    ----------
    n_blocks : int
        Number of blocks of observations.
    n : int
        Number of observations.
    n_replicates : int
        Number of bootstrap replicates.
    divisible : bool
        Whether the observations can be divided between devices, because the risk is a sum over them. Default: True.

    Returns
    -------
    Mesh or None
        Mesh with the axes `REPLICATES` and `OBSERVATIONS`; None for a single device.

    Raises
    ------
    RuntimeError
        If the devices are of different kinds, whose results would differ.
    ValueError
        If the observations are to be divided, but cannot be.
    """
    shape = _requested_shape.get()
    if shape is None:
        n_devices = len(jax.devices())
        if jax.process_count() == 1 and n * n_replicates < CONFIG.min_counts:
            n_devices = 1
        divisors = [d for d in range(1, n_devices + 1) if n_devices % d == 0]
        parts = max(d for d in divisors if d == 1 or (divisible and n_blocks >= d * CONFIG.min_blocks_per_device))
        shape = n_devices // parts, parts
    if shape[1] > 1 and not divisible:
        raise ValueError(
            f"the observations of this risk cannot be divided between {shape[1]} devices, because it is not a sum over "
            "them. Divide the replicates: calibayes.mesh(replicates=...)."
        )
    if shape == (1, 1):
        return None
    devices = np.asarray(jax.devices()[: shape[0] * shape[1]]).reshape(shape)
    kinds = {device.device_kind for device in devices.flat}
    if len(kinds) > 1:
        raise RuntimeError(f"all devices of a mesh must be of one kind, so that results agree; got {', '.join(kinds)}.")
    return Mesh(devices, (REPLICATES, OBSERVATIONS))


def padded_size(n: int) -> int:
    """Return the number of observations, rounded up to one of a few sizes.

    Data of the same size share their compiled programs.
    """
    on_cpu = jax.default_backend() == "cpu"
    if n > (CONFIG.max_doubled_size if on_cpu else CONFIG.max_doubled_size_on_accelerator):
        eighth = 1 << ((n - 1).bit_length() - 3)
        return -(-n // eighth) * eighth
    size = CONFIG.min_size
    while size < n:
        size *= 4 if size < CONFIG.max_quadrupled_size else 2
    return size


def finely_padded_size(n: int) -> int:
    """Return the number of observations, rounded up by at most a quarter, where all loops include the padding."""
    eighth = max(8, 1 << max((n - 1).bit_length() - 3, 0))
    return -(-n // eighth) * eighth


def n_stored_blocks(mesh: Mesh | None, n: int, length: int, pad: bool = True) -> int:
    """Return the number of blocks in which observations are stored.

    Parameters
    ----------
    mesh : Mesh or None
        Devices of the target.
    n : int
        Number of observations.
    length : int
        Number of observations per block.
    pad : bool
        Whether to round up to one of a few sizes. Default: True.

    Returns
    -------
    int
        Number of blocks. On several devices it is only rounded up so that all of them hold equally many.
    """
    if mesh is None:
        return -(-(padded_size(n) if pad else n) // length)
    parts = mesh.shape[OBSERVATIONS]
    return -(-n // (length * parts)) * parts


def rows_of_processes(n: int, length: int) -> list[tuple[int, int]]:
    """Return the rows that this process reads first: each row belongs to one process that will hold it.

    Parameters
    ----------
    n : int
        Number of observations.
    length : int
        Number of observations per block.

    Returns
    -------
    list of (int, int)
        First row, and the row after the last, of each range.
    """
    if jax.process_count() == 1:
        return [(0, n)]
    mesh = choose_mesh(-(-n // length), n, 1)
    assert mesh is not None
    n_blocks = n_stored_blocks(mesh, n, length)
    owners: dict[tuple[int, int], int] = {}
    indices: dict[Any, Any] = dict(NamedSharding(mesh, SHARDED).devices_indices_map((n_blocks,)))
    for device, index in indices.items():
        start, stop, _ = index[0].indices(n_blocks)
        rows = min(start * length, n), min(stop * length, n)
        owners[rows] = min(owners.get(rows, device.process_index), device.process_index)
    own = sorted(rows for rows, process in owners.items() if process == jax.process_index() and rows[0] < rows[1])
    joined: list[tuple[int, int]] = []
    for start, stop in own:
        joined = (
            [*joined[:-1], (joined[-1][0], stop)] if joined and joined[-1][1] == start else [*joined, (start, stop)]
        )
    return joined


def place_blocks(mesh: Mesh | None, shape: tuple[int, ...], make_part: Callable[[slice], np.ndarray]) -> Any:
    """Make an array of blocks of observations, each part on the device that holds it.

    Parameters
    ----------
    mesh : Mesh or None
        Devices of the target.
    shape : tuple of int
        Shape of the complete array, with the blocks along the first axis.
    make_part : callable
        Function of a slice of blocks that returns these blocks.

    Returns
    -------
    Array or ndarray
        Sharded array; for a single device, a NumPy array, so that several of them can be transferred at once.
    """
    if mesh is None:
        return make_part(slice(0, shape[0]))
    blocks = lambda index: slice(*index[0].indices(shape[0])[:2])
    return jax.make_array_from_callback(shape, NamedSharding(mesh, SHARDED), lambda index: make_part(blocks(index)))


def on_all_devices(mesh: Mesh | None, array: np.ndarray) -> Any:
    """Return an array that every device of a mesh holds completely; with None the array as it is."""
    if mesh is None:
        return array
    return jax.make_array_from_callback(array.shape, NamedSharding(mesh, UNSHARDED), lambda index: array[index])


def sum_over_devices(
    mesh: Mesh | None, fn: Callable[..., Any], specs: object, *args: Any, n_replicates: int | None = None
) -> Any:
    """Apply a function to the observations of each device, and sum the results over the parts of the observations.

    Parameters
    ----------
    mesh : Mesh or None
        Devices of the target.
    fn : callable
        Function of the arguments as one device holds them. If `n_replicates` is given, it has an additional first
        argument, the indices of the replicates that this device computes, and returns their values along the first
        axis.
    specs : tuple of PartitionSpec
        How each argument is divided between devices.
    *args
        Arguments of `fn`.
    n_replicates : int or None
        Number of replicates that are divided between devices. Default: None, in which case every device computes all
        of them.

    Returns
    -------
    pytree of Array
        The sums, on every device.
    """
    if mesh is None:
        return fn(*args) if n_replicates is None else fn(slice(None), *args)

    def on_device(*args: Any) -> Any:
        if n_replicates is None:
            return jax.lax.psum(fn(*args), OBSERVATIONS)
        size = -(-n_replicates // mesh.shape[REPLICATES])
        # If the replicates cannot be divided evenly, the last one is computed several times; the
        # repetitions are dropped below.
        indices = jnp.minimum(jax.lax.axis_index(REPLICATES) * size + jnp.arange(size), n_replicates - 1)
        sums = jax.lax.psum(fn(indices, *args), OBSERVATIONS)
        return jax.lax.all_gather(sums, REPLICATES, tiled=True)[:n_replicates]

    return jax.shard_map(on_device, mesh=mesh, in_specs=specs, out_specs=UNSHARDED, check_vma=False)(*args)


def map_over_devices(mesh: Mesh | None, fn: Callable[..., Any], *args: Any) -> Any:
    """Apply a function to the blocks of observations of each device; the results stay on that device."""
    if mesh is None:
        return fn(*args)
    return jax.shard_map(fn, mesh=mesh, in_specs=SHARDED, out_specs=SHARDED, check_vma=False)(*args)
