"""Cold start: the import, and the first calibration of a process with and without a compilation cache."""

import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict

from benchmarks.speed.measurement import Measurements, Ratio
from benchmarks.speed.problems import Sizes

_IMPORT = """
import time
start = time.perf_counter()
import {names}
print(time.perf_counter() - start)
"""
_FIRST = """
import time
start = time.perf_counter()
import calibayes as cb
from benchmarks.speed.problems import median_regression
data = median_regression({n})
run = lambda: cb.calibrate(data.model, (data.x, data.y), bootstrap={b}, seed=0, progress=False)
run()
print(time.perf_counter() - start)
start = time.perf_counter()
run()
print(time.perf_counter() - start)
"""


def measure(sizes: Sizes) -> Measurements:
    """Measure fresh processes."""
    measurements = Measurements(quick=sizes.quick)
    repeats = min(sizes.repeats, 5)
    ours, dependencies = (
        min(_printed(_IMPORT.format(names=names))[0] for _ in range(repeats))
        for names in ("calibayes", "equinox, jax, numpy")
    )
    measurements.ratios.append(Ratio("import calibayes", "one second", ours, 1.0, 1.0))
    measurements.ratios.append(Ratio("import calibayes", "import equinox, jax, numpy", ours, dependencies))
    measurements.figures["imports"] = _import_times()
    if sizes.quick:
        measurements.skipped.append("the first calibration of a fresh process is not part of a quick run.")
        return measurements
    with tempfile.TemporaryDirectory() as folder:
        cache = {"CALIBAYES_CACHE_DIR": folder}
        program = _FIRST.format(n=sizes.middle, b=sizes.replicates)
        (cold, _), (cached, repeated) = (_printed(program, **cache) for _ in range(2))
    first = f"first calibration of a process, N {sizes.middle:,}, B {sizes.replicates:,}"
    measurements.ratios.append(Ratio(f"{first}, with a compilation cache", "empty cache", cached, cold))
    measurements.ratios.append(Ratio("second calibration", f"{first}, with a compilation cache", repeated, cached))
    measurements.ratios.append(Ratio("second calibration", f"{first}, empty cache", repeated, cold))
    return measurements


def _import_times() -> dict[str, float]:
    """Return the seconds of an import by top-level package, the slowest first."""
    out = _run(["-X", "importtime", "-c", "import calibayes"])
    seconds = defaultdict[str, float](float)
    for microseconds, module in re.findall(r"import time:\s+(\d+) \|\s+\d+ \|\s+([\w.]+)", out.stderr):
        seconds[module.split(".")[0]] += int(microseconds) / 1e6
    slowest = sorted(seconds, key=seconds.__getitem__, reverse=True)
    return {package: seconds[package] for package in slowest[:6]}


def _printed(program: str, **environment: str) -> list[float]:
    return [float(line) for line in _run(["-c", program], **environment).stdout.split()]


def _run(arguments: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    # Bytecode is cached, as for an installed package.
    env = os.environ | {"PYTHONDONTWRITEBYTECODE": ""} | environment
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True, env=env)
