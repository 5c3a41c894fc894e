"""A million observations: how long, and how much memory, where nothing of size rows x observations is stored."""

import json
import subprocess
import sys

import jax

from benchmarks.speed.measured import Measured, Ratio
from benchmarks.speed.problems import Sizes

_BUDGET = 8.0
"""GB that a machine should have for it."""
_MINUTE = 60.0
_PROGRAM = """
import json, re, sys, time
import numpy as np
import calibayes as cb
n, dim, rows, particles, times = map(int, sys.argv[1:])
rng = np.random.default_rng(0)
x = np.column_stack([np.ones(n), rng.normal(size=(n, dim - 1))])
y = x @ rng.normal(size=dim) + rng.standard_t(3, size=n)
model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
options = dict(bootstrap=cb.bootstrap.Poisson(rows), sampler=cb.Transport(n_particles=particles), region="box")
seconds = []
for seed in range(times):
    began = time.perf_counter()
    result = cb.calibrate(model, (x, y), seed=seed, progress=False, **options)
    seconds.append(time.perf_counter() - began)
held = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())
print(json.dumps({"seconds": seconds, "GB": int(held[1]) / 1e6, "eta": result.eta, "message": result.message}))
"""


def measure(sizes: Sizes) -> Measured:
    """In a process of its own. Fewer particles on a processor: what they take is time, not memory."""
    found = Measured(quick=sizes.quick)
    on_cpu = jax.default_backend() == "cpu"
    n, dim = (20_000 if sizes.quick else 1_000_000), 10
    rows, particles = sizes.rows, sizes.particles // 2 if on_cpu else sizes.particles
    times = 1 if on_cpu else 2
    arguments = [str(number) for number in (n, dim, rows, particles, times)]
    out = subprocess.run([sys.executable, "-c", _PROGRAM, *arguments], capture_output=True, text=True, check=True)
    figures = json.loads(out.stdout.splitlines()[-1])
    found.figures["large"] = figures | {"N": n}
    what = f"transport, median regression, N {n:,}, K {dim}, B {rows:,}, M {particles:,}"
    first, last = figures["seconds"][0], figures["seconds"][-1]
    if on_cpu:
        note = f"{first:.0f} s, compilation included"
        found.ratios.append(Ratio(what, f"{_BUDGET:g} GB of memory", figures["GB"], _BUDGET, 1.0, note, "GB"))
    else:
        note = f"{first:.0f} s the first time, compilation included; the process held {figures['GB']:.1f} GB"
        found.ratios.append(Ratio(what, "a minute", last, _MINUTE, 1.0, note))
    return found
