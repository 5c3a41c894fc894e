"""Can a process go on calibrating? Memory and compilations over minutes of it.

    python -m benchmarks.soak [--minutes 5] [--only "new shapes"]

Half of the time on new data of one shape: memory must stay where it was after the first few, and no program be compiled
again and again. The other half on shapes that are all new: memory maps must stay below the limit, beyond which the
process would be ended. So that few minutes show it, room is made at a small share of the maps allowed.
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
from typing import Any
from unittest.mock import patch

import jax

import calibayes as cb
from calibayes._backend import memory as compiled_memory
from calibayes.io import versions

RESULTS = Path(__file__).parents[1] / "results" / "soak.json"
MODEL = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
FIRST = 50
"""Calibrations after which memory is compared."""
GROWTH = 0.05
"""Of the memory held after those, that may come on top by the end."""
LATE = 0.05
"""Of all programs, that may be needed for the first time in the last half: rare ways through the code."""
AGAIN = 5
"""Calibrations that may compile one function for arguments of one kind: as many as there are places that call it with
other sizes or settings. A program that is lost and compiled again would be, by every calibration that needs it."""
SHARE = 0.08
"""Of the maps allowed, at which compiled programs are forgotten in the second half."""


def memory() -> float:
    """Megabytes that the process holds."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1e3


def maps() -> int:
    return Path("/proc/self/maps").read_bytes().count(b"\n")


def once(n: int, seed: int) -> None:
    sampler = cb.Transport(n_particles=200, audit=True)
    result = cb.calibrate(
        MODEL, cb.datasets.median_regression(n, seed), bootstrap=100, sampler=sampler, seed=seed, progress=False
    )
    assert result.eta > 0, result


@contextmanager
def jit() -> Iterator[list[str]]:
    """Functions compiled meanwhile, each with the shapes and types of its arguments."""
    programs = list[str]()

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if str(record.msg).startswith("Compiling") and isinstance(record.args, tuple):
                programs.append(f"{record.args[0]} of {record.args[1]}")

    logger, notes = logging.getLogger("jax._src.interpreters.pxla"), Notes()
    before = logger.level, logger.propagate
    logger.addHandler(notes)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield programs
    finally:
        logger.removeHandler(notes)
        logger.setLevel(before[0])
        logger.propagate = before[1]


def same_shape(seconds: float) -> dict[str, Any]:
    """New data of one shape."""
    until, held, programs = time.perf_counter() + seconds, list[float](), list[set[str]]()
    while time.perf_counter() < until or len(held) < 2 * FIRST:
        with jit() as here:
            once(60, len(held))
        held.append(memory())
        programs.append(set(here))
    first, last = max(held[:FIRST]), max(held[-FIRST:])
    times = Counter(program for some in programs for program in some)
    assert times, "nothing was seen to be compiled: look at how"
    most = max(times, key=lambda program: times[program])
    half = len(programs) // 2
    found = {
        "calibrations": len(held),
        "first": FIRST,
        "memory_first_mb": round(first),
        "memory_last_mb": round(last),
        "allowed": GROWTH,
        "programs": len(times),
        "programs_in_last_half": len(set().union(*programs[half:]) - set().union(*programs[:half])),
        "compiled_by_at_most": times[most],
        "compiled_by_allowed": AGAIN,
    }
    assert last < (1 + GROWTH) * first, f"memory grew: {found}"
    assert times[most] <= AGAIN, f"{most} is compiled again and again: {found}"
    assert found["programs_in_last_half"] <= LATE * len(times), f"there is no end to new programs: {found}"
    return found


def new_shapes(seconds: float) -> dict[str, Any]:
    """A number of observations that there has not been yet, every time."""
    until, held, mapped, forgot = time.perf_counter() + seconds, [], [], 0

    def clear_caches_if_full(min_interval: float = 0.0) -> bool:
        nonlocal forgot
        made = compiled_memory.clear_caches_if_full(SHARE)
        forgot += made
        return made

    with patch.object(sys.modules["calibayes.calibrate"], "clear_caches_if_full", clear_caches_if_full):
        while time.perf_counter() < until or not forgot:
            once(101 + len(held), len(held))
            held.append(memory())
            mapped.append(maps())
    limit = int(Path("/proc/sys/vm/max_map_count").read_text())
    found = {
        "calibrations": len(held),
        "maps_most": max(mapped),
        "maps_allowed": limit,
        "share": SHARE,
        "forgot": forgot,
        "memory_most_mb": round(max(held)),
    }
    assert max(mapped) < limit, found
    return found


PARTS = {"same shape": same_shape, "new shapes": new_shapes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--only", choices=PARTS, help="one part; the other stays as it is stored")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    warnings.simplefilter("ignore", cb.CalibrationWarning)
    found: dict[str, Any] = json.loads(options.out.read_text()) if options.only and options.out.exists() else {}
    found |= {"device": jax.devices()[0].platform, **versions(), "minutes": options.minutes}
    for name in [options.only] if options.only else PARTS:
        found[name] = PARTS[name](30 * options.minutes)
        print(name, json.dumps(found[name], indent=2), flush=True)
        options.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
