"""Check memory and compilations of a process that calibrates for minutes.

    python -m benchmarks.soak [--minutes 5] [--only "new shapes"]

Half of the time is spent on new data of one shape: memory must not grow after the first calibrations, and no program
may be compiled again and again. The other half is spent on shapes that are all new: the number of memory maps must stay
below the limit of the system, beyond which the process would be killed. To reach that limit within minutes, compiled
programs are dropped at a small share of it.

A third part, whose length does not depend on the time, calibrates data of 60 shapes with the default settings. The
resident memory must stay below a limit that `docs/robust.md` states.
"""

import argparse
import json
import logging
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import jax
import numpy as np

import calibayes as cb
from benchmarks.common import RESULTS, write_json
from calibayes._backend import program_cache
from calibayes._backend.memory import clear_caches_if_full
from calibayes._backend.versions import versions

MODEL = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
WARM_UP = 50
"""Number of calibrations after which memory is compared."""
MAX_GROWTH = 0.05
"""Largest growth of memory after those, relative to the memory held then."""
MAX_LATE_SHARE = 0.05
"""Largest share of programs first compiled in the second half, for rarely used branches of the code."""
MAX_COMPILATIONS = 5
"""Largest number of calibrations that may compile a function for the same arguments: the number of places that call it
with other static arguments. A program that is dropped and compiled again would be compiled by every calibration."""
N_SHAPES = 60
"""Number of shapes that are calibrated with the default settings."""
SHAPE_OBSERVATIONS = (40, 150, 400, 900, 2_000, 4_500)
"""Numbers of observations, each padded to another size."""
LOSSES = (cb.losses.Quantile(0.5), cb.losses.Squared(), cb.losses.Logistic())
MAX_MEMORY_MB = 1_500
"""Largest resident memory during any of those calibrations, in megabytes."""
MAP_SHARE = 0.08
"""Share of the allowed memory maps at which compiled programs are dropped in the second part."""


def memory(field: str = "VmRSS") -> float:
    """Return the resident memory of this process in megabytes; `VmHWM` is its maximum so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1e3


def memory_maps() -> int:
    """Return the number of memory maps of this process."""
    return Path("/proc/self/maps").read_bytes().count(b"\n")


def calibrate(n: int, seed: int) -> None:
    """Run a small calibration with an audit."""
    sampler = cb.Transport(n_particles=200, audit=True)
    data = cb.datasets.median_regression(n, seed)
    result = cb.calibrate(MODEL, data, bootstrap=100, sampler=sampler, seed=seed, progress=False)
    assert result.eta > 0, result


@contextmanager
def record_compilations() -> Iterator[list[str]]:
    """Record the functions compiled inside the context, each with the shapes and types of its arguments."""
    programs = list[str]()

    class Recorder(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if str(record.msg).startswith("Compiling") and isinstance(record.args, tuple):
                programs.append(f"{record.args[0]} of {record.args[1]}")

    logger, recorder = logging.getLogger("jax._src.interpreters.pxla"), Recorder()
    level, propagate = logger.level, logger.propagate
    logger.addHandler(recorder)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield programs
    finally:
        logger.removeHandler(recorder)
        logger.setLevel(level)
        logger.propagate = propagate


def same_shape(seconds: float) -> dict[str, Any]:
    """Calibrate new data of one shape."""
    end, held, programs = time.perf_counter() + seconds, list[float](), list[set[str]]()
    while time.perf_counter() < end or len(held) < 2 * WARM_UP:
        with record_compilations() as compiled:
            calibrate(60, len(held))
        held.append(memory())
        programs.append(set(compiled))
    first, last = max(held[:WARM_UP]), max(held[-WARM_UP:])
    numbers = Counter(program for compiled in programs for program in compiled)
    assert numbers, "no compilation was recorded: the log messages of JAX may have changed"
    most_compiled = max(numbers, key=lambda program: numbers[program])
    half = len(programs) // 2
    measured = {
        "calibrations": len(held),
        "warm_up": WARM_UP,
        "memory_first_mb": round(first),
        "memory_last_mb": round(last),
        "max_growth": MAX_GROWTH,
        "programs": len(numbers),
        "programs_in_second_half": len(set().union(*programs[half:]) - set().union(*programs[:half])),
        "most_compilations": numbers[most_compiled],
        "max_compilations": MAX_COMPILATIONS,
    }
    assert last < (1 + MAX_GROWTH) * first, f"memory grew: {measured}"
    assert numbers[most_compiled] <= MAX_COMPILATIONS, f"{most_compiled} is compiled too often: {measured}"
    assert measured["programs_in_second_half"] <= MAX_LATE_SHARE * len(numbers), f"new programs late: {measured}"
    return measured


def new_shapes(seconds: float) -> dict[str, Any]:
    """Calibrate data with another number of observations every time."""
    end, held, maps, drops = time.perf_counter() + seconds, list[float](), list[int](), 0

    def clear_early(*_: Any, **__: Any) -> bool:
        nonlocal drops
        cleared = clear_caches_if_full(MAP_SHARE)
        drops += cleared
        return cleared

    with patch.object(sys.modules["calibayes.calibrate"], "clear_caches_if_full", clear_early):
        while time.perf_counter() < end or not drops:
            calibrate(101 + len(held), len(held))
            held.append(memory())
            maps.append(memory_maps())
    limit = int(Path("/proc/sys/vm/max_map_count").read_text())
    measured = {
        "calibrations": len(held),
        "most_maps": max(maps),
        "max_maps": limit,
        "map_share": MAP_SHARE,
        "drops": drops,
        "most_memory_mb": round(max(held)),
    }
    assert max(maps) < limit, measured
    return measured


def default_settings(_: float) -> dict[str, Any]:
    """Calibrate data of `N_SHAPES` shapes by several losses with the default settings, and watch the memory."""
    held, peaks = list[float](), list[float]()
    with TemporaryDirectory() as folder, reset_cache_dir():
        # An empty folder, so that every program is compiled.
        cb.set_cache_dir(folder)
        for i, (n, dim, loss) in enumerate(shapes()):
            rng = np.random.default_rng(i)
            x = rng.normal(size=(n, dim))
            y = x.sum(1) + rng.normal(size=n)
            data = (x, np.sign(y) if isinstance(loss, cb.losses.Logistic) else y)
            cb.calibrate(cb.GibbsModel(loss, cb.priors.Normal(scale=10.0)), data, seed=i, progress=False)
            held.append(memory())
            peaks.append(memory("VmHWM"))
            print(
                f"{i + 1} {type(loss).__name__} N {n} K {dim}: {held[-1]:.0f} MB, peak {peaks[-1]:.0f} MB", flush=True
            )
    measured = {
        "shapes": len(held),
        "memory_first_mb": round(held[0]),
        "most_memory_mb": round(max(held)),
        "memory_last_mb": round(held[-1]),
        "peak_memory_mb": round(peaks[-1]),
        "max_memory_mb": MAX_MEMORY_MB,
    }
    assert peaks[-1] < MAX_MEMORY_MB, f"too much memory: {measured}"
    return measured


def shapes() -> list[tuple[int, int, Any]]:
    """Return numbers of observations and parameters, all different after padding, with a loss for each."""
    pairs = [(n, dim) for n in SHAPE_OBSERVATIONS for dim in range(1, N_SHAPES // len(SHAPE_OBSERVATIONS) + 1)]
    # In random order, as a user would meet them, and not from small to large.
    order = np.random.default_rng(0).permutation(len(pairs))
    return [(*pairs[i], LOSSES[k % len(LOSSES)]) for k, i in enumerate(order)]


@contextmanager
def reset_cache_dir() -> Iterator[None]:
    """Restore the folder of compiled programs at the end."""
    setting = program_cache._Setting
    folder, is_set = setting.folder, setting.is_set
    try:
        yield
    finally:
        setting.folder, setting.is_set = folder, is_set


PARTS = {"same shape": same_shape, "new shapes": new_shapes, "default settings": default_settings}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--only", choices=PARTS, help="run one part and keep the stored results of the other")
    parser.add_argument("--out", type=Path, default=RESULTS / "soak.json")
    options = parser.parse_args()
    warnings.simplefilter("ignore", cb.CalibrationWarning)
    stored: dict[str, Any] = json.loads(options.out.read_text()) if options.only and options.out.exists() else {}
    stored |= {"device": jax.devices()[0].platform, **versions(), "minutes": options.minutes}
    for name in [options.only] if options.only else PARTS:
        stored[name] = PARTS[name](30 * options.minutes)
        print(name, json.dumps(stored[name], indent=2), flush=True)
        write_json(options.out, stored)


if __name__ == "__main__":
    main()
