"""One calibration in all processes that Slurm or Open MPI started; without an argument, in this process alone."""

import sys

import jax

if len(sys.argv) > 1:
    jax.distributed.initialize()  # before any other use of JAX

import calibayes as cb

model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
data = cb.datasets.median_regression(1_600, seed=0)
with cb.mesh(observations=jax.device_count()):
    result = cb.calibrate(model, data, bootstrap=500, seed=0)
if jax.process_index() == 0:
    print(result)
