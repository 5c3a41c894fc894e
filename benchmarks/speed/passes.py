"""How often a calibration goes over the observations, for how many particles: its cost at scale follows from that."""

import json
import subprocess
import sys
import time

import numpy as np

import calibayes as cb
from benchmarks.speed.measured import Measured
from benchmarks.speed.problems import Sizes
from calibayes._backend.fingerprint import digest
from calibayes._core.target import initial_reference
from calibayes._validate.data import check_data
from calibayes.samplers.transport.subsample import enough_observations

DIM = 10
_PROGRAM = """
import collections, json, sys
import jax
import numpy as np
import calibayes as cb
from calibayes._core.target import Target
n, dim, rows, particles = map(int, sys.argv[1:])
seen, risk = collections.Counter(), Target.risk

def counted(self, theta):
    shape = theta.shape[1:]
    if self.reference_loss.size >= n:
        jax.debug.callback(lambda: seen.update([shape]))
    return risk(self, theta)

Target.risk = counted
rng = np.random.default_rng(0)
x = np.column_stack([np.ones(n), rng.normal(size=(n, dim - 1))])
y = x @ rng.normal(size=dim) + rng.standard_t(3, size=n)
model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
options = dict(bootstrap=rows, sampler=cb.Transport(n_particles=particles), region="box", progress=False)
cb.calibrate(model, (x, y), seed=0, **options)
jax.effects_barrier()
print(json.dumps([[*shape, times] for shape, times in seen.items()]))
"""


def measure(sizes: Sizes) -> Measured:
    """In a process of its own, in which nothing is compiled yet.

    Of so many observations that the draws on the data climb over some of them, which is not counted.
    """
    found = Measured(quick=sizes.quick)
    n = 500 if sizes.quick else 3 * enough_observations(DIM)
    arguments = [str(number) for number in (n, DIM, sizes.rows, sizes.particles)]
    out = subprocess.run([sys.executable, "-c", _PROGRAM, *arguments], capture_output=True, text=True, check=True)
    shape = {"N": n, "K": DIM, "B": sizes.rows, "M": sizes.particles}
    host = {"host N": 20 * n, "host seconds": _host(20 * n)}
    found.figures["passes"] = shape | host | {"calls": json.loads(out.stdout.splitlines()[-1])}
    return found


def _host(n: int) -> float:
    """Seconds that a process takes for all of the data before they are on devices: checks, a first fit, a digest."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(n, DIM)), rng.normal(size=n)
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    began = time.perf_counter()
    observations = check_data(model, (x, y), None)
    initial_reference(*observations.data)
    digest(observations.data)
    return time.perf_counter() - began
