"""Memory that a request would take, held against what there is, before any of it is allocated.

What is counted is the least that a request needs, so that nothing is refused that would have fitted. A machine that
does not say how much it has refuses nothing.
"""

import os
from pathlib import Path

import jax
import numpy as np

_MEMINFO = Path("/proc/meminfo")
_LIMIT, _USED = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
_LITTLE = 2**26
"""Bytes for which it is not worth while to ask: compiling takes more."""
_COPIES = 2
"""Of the counts on the host, and of the particles: those at one learning rate and those at the next."""


def require_memory(argument: str, n_bytes: int, what: str, way_out: str, *, on_device: bool = False) -> None:
    """Raise if so many bytes are not to be had: of the host's memory, or of each device that computes."""
    if n_bytes < _LITTLE:
        return
    available, whose = host_memory(), "memory"
    if on_device and (there := device_memory()) is not None:
        available, whose = there, "the device's memory"
    if available is not None and n_bytes > available:
        raise ValueError(
            f"{argument}: {what} would take {_gb(n_bytes)} GB at least, and {_gb(available)} GB of {whose} are free. "
            f"{way_out}"
        )


def require_counts(n_replicates: int, n: int) -> None:
    """Room for B x N counts that are stored."""
    what = f"counts of {n:,} observations on {n_replicates:,} rows"
    way_out = "Use fewer rows, or bootstrap.Poisson(B), whose counts are never stored."
    size = n_replicates * n * _float().itemsize
    require_memory("bootstrap", _COPIES * size, what, way_out)
    require_memory("bootstrap", size, what, way_out, on_device=True)


def require_particles(n_replicates: int, n_particles: int, dim: int) -> None:
    """Room for particles with their risk, prior density and weight on every row."""
    what = f"{n_particles:,} particles or draws of {dim:,} parameters on {n_replicates:,} rows"
    size = _COPIES * n_replicates * n_particles * (dim + 3) * _float().itemsize
    way_out = "Use fewer rows (bootstrap=) or fewer particles or draws (sampler=)."
    require_memory("bootstrap, sampler", size, what, way_out, on_device=True)


def require_array(name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Room for the checks of an array, and for the array in float64 if it is none."""
    size = int(np.prod([int(n) for n in shape], dtype=object))
    each = _float().itemsize + 1 + (0 if dtype == np.float64 else 8)
    require_memory(name, size * each, f"numbers in the shape {shape}", "Use fewer observations or columns.")


def _gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:,.1f}" if n_bytes < 10**15 else f"more than {10**6:,}"


def _float() -> np.dtype:
    return np.dtype(jax.dtypes.canonicalize_dtype(float))


def host_memory() -> int | None:
    """Bytes that can be had without swapping, also within the limits of a container."""
    found = []
    if _MEMINFO.exists():
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines() if ":" in line)
        if "MemAvailable" in lines:
            found.append(1024 * int(lines["MemAvailable"].split()[0]))
    if _LIMIT.exists() and _USED.exists() and (limit := _LIMIT.read_text().strip()) != "max":
        found.append(max(int(limit) - int(_USED.read_text()), 0))
    if not found and "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(found, default=None)


def device_memory() -> int | None:
    """Bytes left on the fullest accelerator of this process; None where the host's memory is computed in."""
    stats = [device.memory_stats() for device in jax.local_devices()]
    if not all(stat and "bytes_limit" in stat for stat in stats):
        return None
    return min(stat["bytes_limit"] - stat.get("bytes_in_use", 0) for stat in stats)
