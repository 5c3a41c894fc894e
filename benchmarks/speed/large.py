"""A million observations: time and memory of a calibration that stores no array of size replicates x observations."""

import json
import subprocess
import sys

import jax

from benchmarks.speed.measurement import Measurements, Ratio
from benchmarks.speed.problems import Sizes

_MEMORY_GOAL = 8.0
"""Memory in GB that should be enough on a CPU."""
_TIME_GOAL = 60.0
"""Seconds that should be enough on an accelerator."""
_PROGRAM = """
import json, re, sys, time
import numpy as np
import calibayes as cb
n, dim, replicates, particles, runs = map(int, sys.argv[1:])
rng = np.random.default_rng(0)
x = np.column_stack([np.ones(n), rng.normal(size=(n, dim - 1))])
y = x @ rng.normal(size=dim) + rng.standard_t(3, size=n)
model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
options = dict(bootstrap=cb.bootstrap.Poisson(replicates), sampler=cb.Transport(n_particles=particles), region="box")
seconds = []
for seed in range(runs):
    start = time.perf_counter()
    result = cb.calibrate(model, (x, y), seed=seed, progress=False, **options)
    seconds.append(time.perf_counter() - start)
peak = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())
print(json.dumps({"seconds": seconds, "GB": int(peak[1]) / 1e6, "eta": result.eta, "message": result.message}))
"""


def measure(sizes: Sizes) -> Measurements:
    """Measure in a separate process; with fewer particles on a CPU, where they cost time but little memory."""
    measurements = Measurements(quick=sizes.quick)
    on_cpu = jax.default_backend() == "cpu"
    n, dim = (20_000 if sizes.quick else 1_000_000), 10
    replicates, particles = sizes.replicates, sizes.particles // 2 if on_cpu else sizes.particles
    runs = 1 if on_cpu else 2
    arguments = [str(number) for number in (n, dim, replicates, particles, runs)]
    out = subprocess.run([sys.executable, "-c", _PROGRAM, *arguments], capture_output=True, text=True, check=True)
    figures = json.loads(out.stdout.splitlines()[-1])
    measurements.figures["large"] = figures | {"N": n}
    case = f"transport, median regression, N {n:,}, K {dim}, B {replicates:,}, M {particles:,}"
    first, last = figures["seconds"][0], figures["seconds"][-1]
    if on_cpu:
        note = f"{first:.0f} s, compilation included"
        ratio = Ratio(case, f"{_MEMORY_GOAL:g} GB of memory", figures["GB"], _MEMORY_GOAL, 1.0, note, "GB")
    else:
        note = f"first run {first:.0f} s, compilation included; peak host memory {figures['GB']:.1f} GB"
        ratio = Ratio(case, "one minute", last, _TIME_GOAL, 1.0, note)
    measurements.ratios.append(ratio)
    return measurements
