"""How long until something happens: the import, and the first calibration with and without compiled programs kept."""

import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict

from benchmarks.speed.measured import Measured, Ratio
from benchmarks.speed.problems import Sizes

_IMPORT = """
import time
began = time.perf_counter()
import {names}
print(time.perf_counter() - began)
"""
_FIRST = """
import time
began = time.perf_counter()
import calibayes as cb
from benchmarks.speed.problems import median_regression
data = median_regression({n})
run = lambda: cb.calibrate(data.model, (data.x, data.y), bootstrap={b}, seed=0, progress=False)
run()
print(time.perf_counter() - began)
began = time.perf_counter()
run()
print(time.perf_counter() - began)
"""


def measure(sizes: Sizes) -> Measured:
    found = Measured(quick=sizes.quick)
    repeats = min(sizes.repeats, 5)
    ours, needed = (
        min(_printed(_IMPORT.format(names=names))[0] for _ in range(repeats))
        for names in ("calibayes", "equinox, jax, numpy")
    )
    found.ratios.append(Ratio("import calibayes", "one second", ours, 1.0, 1.0))
    found.ratios.append(Ratio("import calibayes", "import equinox, jax, numpy", ours, needed))
    found.figures["imports"] = _imports()
    if sizes.quick:
        found.skipped.append("the first calibration in a fresh process is not part of a quick run.")
        return found
    with tempfile.TemporaryDirectory() as folder:
        kept = {"JAX_COMPILATION_CACHE_DIR": folder, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1"}
        program = _FIRST.format(n=sizes.middle, b=sizes.rows)
        (cold, _), (cached, again) = (_printed(program, **kept) for _ in range(2))
    what = f"first calibration in a process, N {sizes.middle:,}, B {sizes.rows:,}"
    found.ratios.append(Ratio(f"{what}, compiled programs kept", "nothing kept", cached, cold))
    found.ratios.append(Ratio("another calibration", f"{what}, compiled programs kept", again, cached))
    found.ratios.append(Ratio("another calibration", f"{what}, nothing kept", again, cold))
    return found


def _imports() -> dict[str, float]:
    """Seconds of an import by the package whose modules took them, the slowest first."""
    out = _run(["-X", "importtime", "-c", "import calibayes"])
    took = defaultdict[str, float](float)
    for microseconds, module in re.findall(r"import time:\s+(\d+) \|\s+\d+ \|\s+([\w.]+)", out.stderr):
        took[module.split(".")[0]] += int(microseconds) / 1e6
    slowest = sorted(took, key=took.__getitem__, reverse=True)
    return {package: took[package] for package in slowest[:6]}


def _printed(program: str, **environment: str) -> list[float]:
    return [float(line) for line in _run(["-c", program], **environment).stdout.split()]


def _run(arguments: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    # Bytecode is kept, as it is wherever a package is installed.
    env = os.environ | {"PYTHONDONTWRITEBYTECODE": ""} | environment
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True, env=env)
