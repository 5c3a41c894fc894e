"""Number of passes over the observations in a calibration, from which its cost at scale is projected."""

import json
import subprocess
import sys
import time

import numpy as np

import calibayes as cb
from benchmarks.speed.measurement import Measurements
from benchmarks.speed.problems import Sizes
from calibayes._backend.fingerprint import digest
from calibayes._core.target import initial_reference
from calibayes._validate.data import check_data
from calibayes.samplers.transport.subsample import subsample_size

DIM = 10
_PROGRAM = """
import collections, json, sys
import jax
import numpy as np
import calibayes as cb
from calibayes._core.target import Target
n, dim, replicates, particles = map(int, sys.argv[1:])
passes, risk = collections.Counter(), Target.risk

def counted(self, theta):
    shape = theta.shape[1:]
    if self.reference_loss.size >= n:
        jax.debug.callback(lambda: passes.update([shape]))
    return risk(self, theta)

Target.risk = counted
rng = np.random.default_rng(0)
x = np.column_stack([np.ones(n), rng.normal(size=(n, dim - 1))])
y = x @ rng.normal(size=dim) + rng.standard_t(3, size=n)
model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
options = dict(bootstrap=replicates, sampler=cb.Transport(n_particles=particles), region="box", progress=False)
cb.calibrate(model, (x, y), seed=0, **options)
jax.effects_barrier()
print(json.dumps([[*shape, number] for shape, number in passes.items()]))
"""


def measure(sizes: Sizes) -> Measurements:
    """Count the passes in a fresh process, where nothing is compiled yet.

    N is large enough that the initial draws are tempered on a subsample, whose passes are not counted.
    """
    measurements = Measurements(quick=sizes.quick)
    n = 500 if sizes.quick else 3 * subsample_size(DIM)
    arguments = [str(number) for number in (n, DIM, sizes.replicates, sizes.particles)]
    out = subprocess.run([sys.executable, "-c", _PROGRAM, *arguments], capture_output=True, text=True, check=True)
    shape = {"N": n, "K": DIM, "B": sizes.replicates, "M": sizes.particles}
    host = {"host N": 20 * n, "host seconds": _host_seconds(20 * n)}
    measurements.figures["passes"] = shape | host | {"calls": json.loads(out.stdout.splitlines()[-1])}
    return measurements


def _host_seconds(n: int) -> float:
    """Return the time that each process spends on all data before they are on devices: checks, a fit, a digest."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(n, DIM)), rng.normal(size=n)
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    start = time.perf_counter()
    observations = check_data(model, (x, y), None)
    assert isinstance(observations.data, tuple)
    initial_reference(*observations.data)
    digest(observations.data)
    return time.perf_counter() - start
