"""Memory limits: of arrays that a request would allocate, and of compiled programs.

*Arrays.* `require_memory` and its variants compare the memory that a request needs at least with the available memory,
before anything is allocated. The sizes are lower bounds, so no request that would have fitted is rejected. If the
available memory is unknown, nothing is rejected.

*Compiled programs.* The programs that XLA compiles for the CPU occupy memory maps: those of the first calibration and
its intervals about 700 (the example of the README), those of another number of replicates about 450 more. Linux limits
the number of maps per process (65,530 by default), and XLA aborts the process when the limit is exceeded: after a few
dozen shapes, in a notebook or a cross-validation. `clear_caches_if_full` drops compiled programs before that happens.
Long before, it drops those that have not been called for the longest time, so that the memory of a long session is
bounded; the cache on disk makes it fast to read them again.
"""

import gc
import os
import time
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from calibayes._backend.jit import clear_programs, drop_oldest_programs, n_programs


@dataclass(frozen=True)
class MemoryConfig:
    """Tuning constants of the memory checks, and the files from which Linux reports its limits."""

    min_bytes: int = 2**26
    """Smallest request that is compared with the available memory, in bytes. Smaller requests need less than the
    compiler does. Order-of-magnitude choice; results do not depend on it."""
    copies: int = 2
    """Number of copies that are alive at the same time: of counts on the host, as drawn and in blocks; of particles,
    at the current and at the next learning rate."""
    max_map_share: float = 0.6
    """Share of the allowed memory maps above which compiled programs are dropped. The programs of one calibration take
    a few per cent of the limit, so the remaining 0.4 are a wide margin. Order-of-magnitude choice; `python -m
    benchmarks.soak` runs many shapes against it."""
    max_programs: int = 100
    """Number of compiled programs above which some are dropped. A calibration uses about 20 for each shape of data, 40
    with further questions, and each takes about 1.4 MB. `python -m benchmarks.soak --only "default settings"` measures
    the memory of 60 shapes."""
    kept_share: float = 0.6
    """Share of `max_programs` that remain: those that were called last."""
    meminfo: Path = Path("/proc/meminfo")
    """Available memory of the machine."""
    cgroup_limit: Path = Path("/sys/fs/cgroup/memory.max")
    """Memory limit of the container."""
    cgroup_usage: Path = Path("/sys/fs/cgroup/memory.current")
    """Memory that the container uses, including the page cache, which the kernel frees when it is needed."""
    cgroup_stat: Path = Path("/sys/fs/cgroup/memory.stat")
    """Parts of that memory."""
    maps: Path = Path("/proc/self/maps")
    """Memory maps of this process, one per line."""
    map_limit: Path = Path("/proc/sys/vm/max_map_count")
    """Largest number of memory maps of a process."""


CONFIG = MemoryConfig()

_last_check = -float("inf")
"""Time of the last count of memory maps, by `time.monotonic`."""


def require_memory(argument: str, n_bytes: int, description: str, remedy: str, *, on_device: bool = False) -> None:
    """Raise an error if a request does not fit into the available memory.

    Parameters
    ----------
    argument : str
        Name of the argument that asks for the memory.
    n_bytes : int
        Number of bytes needed.
    description : str
        Description of the stored object, used as the subject of a sentence.
    remedy : str
        Sentence that says how to use less.
    on_device : bool
        Whether the memory is needed on every device that computes, instead of on the host. Default: False.

    Raises
    ------
    ValueError
        If fewer bytes are available.
    """
    if n_bytes < CONFIG.min_bytes:
        return
    available, kind = host_memory(), "memory"
    if on_device and (free := device_memory()) is not None:
        available, kind = free, "device memory"
    if available is not None and n_bytes > available:
        raise ValueError(
            f"{argument}: {description} would take {_lower_bound(n_bytes)} GB, and {available / 1e9:,.1f} GB of {kind} "
            f"are available. {remedy}"
        )


def require_memory_for_counts(n_replicates: int, n: int) -> None:
    """Raise an error if bootstrap counts of `n_replicates` replicates of `n` observations cannot be stored."""
    description = f"counts of {n:,} observations in {n_replicates:,} replicates"
    remedy = "Use fewer replicates, or bootstrap.Poisson(B), which does not store its counts."
    size = n_replicates * n * _float().itemsize
    require_memory("bootstrap", CONFIG.copies * size, description, remedy)
    require_memory("bootstrap", size, description, remedy, on_device=True)


def require_memory_for_particles(n_replicates: int, n_particles: int, dim: int) -> None:
    """Raise an error if particles with their risk, prior density and weight cannot be stored for all replicates."""
    description = f"{n_particles:,} particles or draws of {dim:,} parameters in {n_replicates:,} replicates"
    size = CONFIG.copies * n_replicates * n_particles * (dim + 3) * _float().itemsize
    remedy = "Use fewer replicates (bootstrap=) or fewer particles or draws (sampler=)."
    require_memory("bootstrap, sampler", size, description, remedy, on_device=True)


def require_memory_for_array(name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Raise an error if the checks of an array need too much memory, including its copy in float64 if it is none."""
    size = int(np.prod([int(n) for n in shape], dtype=object))
    bytes_per_number = _float().itemsize + 1 + (0 if dtype == np.float64 else 8)
    require_memory(name, size * bytes_per_number, f"an array of shape {shape}", "Use fewer observations or columns.")


def host_memory() -> int | None:
    """Return the number of bytes available without swapping, within the limits of a container; None if unknown."""
    limits = []
    if CONFIG.meminfo.exists():
        lines = dict(line.split(":", 1) for line in CONFIG.meminfo.read_text().splitlines() if ":" in line)
        if "MemAvailable" in lines:
            limits.append(1024 * int(lines["MemAvailable"].split()[0]))
    in_container = CONFIG.cgroup_limit.exists() and CONFIG.cgroup_usage.exists()
    if in_container and (limit := CONFIG.cgroup_limit.read_text().strip()) != "max":
        used = int(CONFIG.cgroup_usage.read_text()) - _page_cache()
        limits.append(min(max(int(limit) - used, 0), int(limit)))
    if not limits and "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=None)


def _page_cache() -> int:
    """Return the number of bytes of files that the container has in memory and that can be freed."""
    if not CONFIG.cgroup_stat.exists():
        return 0
    parts = dict(line.split() for line in CONFIG.cgroup_stat.read_text().splitlines())
    return int(parts.get("inactive_file", 0)) + int(parts.get("active_file", 0))


def device_memory() -> int | None:
    """Return the number of bytes available on the fullest accelerator of this process; None if it computes on a CPU."""
    stats = [device.memory_stats() for device in jax.local_devices()]
    if not all(stat and "bytes_limit" in stat for stat in stats):
        return None
    return min(stat["bytes_limit"] - stat.get("bytes_in_use", 0) for stat in stats)


def clear_caches_if_full(max_share: float | None = None, min_interval: float = 0.0) -> bool:
    """Drop the oldest compiled programs if there are many, and all if they occupy too many memory maps.

    They are read from disk or compiled again when they are needed.

    Parameters
    ----------
    max_share : float or None
        Share of the allowed memory maps above which programs are dropped. Default: `CONFIG.max_map_share`.
    min_interval : float
        Smallest time between two counts of the maps, in seconds. Calls in between do nothing. Default: 0.

    Returns
    -------
    bool
        Whether programs were dropped.
    """
    global _last_check
    share = CONFIG.max_map_share if max_share is None else max_share
    if time.monotonic() < _last_check + min_interval:
        return False
    _last_check = time.monotonic()
    has_maps = CONFIG.maps.exists() and CONFIG.map_limit.exists()
    if has_maps and CONFIG.maps.read_bytes().count(b"\n") > share * int(CONFIG.map_limit.read_text()):
        clear_programs()
    elif n_programs() > CONFIG.max_programs:
        drop_oldest_programs(int(CONFIG.kept_share * CONFIG.max_programs))
    else:
        return False
    gc.collect()
    return True


def _lower_bound(n_bytes: int) -> str:
    return f"at least {n_bytes / 1e9:,.1f}" if n_bytes < 10**15 else f"more than {10**6:,}"


def _float() -> np.dtype:
    return np.dtype(jax.dtypes.canonicalize_dtype(float))
