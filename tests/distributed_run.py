"""One process of several, as `test_cluster.py` starts them: a calibration, and what it found as JSON.

Arguments: a checkpoint; then, as JSON, the seed of each process's data, which process kills itself after so many steps,
if any, and the mesh.
"""

import json
import os
import signal
import sys
import warnings

import jax

import calibayes as cb
from calibayes._backend import distributed as cluster
from calibayes.solve.checkpoint import Checkpoint


def found(seed: int, checkpoint: str | None) -> dict[str, float | list[float]]:
    """What a calibration of 60 observations has."""
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    options = {"sampler": cb.Transport(n_particles=150), "bootstrap": 42, "progress": False, "seed": 1}
    with warnings.catch_warnings():
        # So few rows that the error of eta is unknown.
        warnings.simplefilter("ignore", cb.CalibrationWarning)
        result = cb.calibrate(model, cb.datasets.median_regression(60, seed), checkpoint=checkpoint, **options)
        bounds = result.intervals().bounds
    critical = result.curve.critical_etas().tolist()
    return {"eta": result.eta, "draws": float(result.draws.sum()), "low": float(bounds[0, 0]), "critical": critical}


def killed_after(steps: int) -> None:
    """This process ends itself when it has come so far, whether it writes checkpoints or not."""
    save, done = Checkpoint.save, 0

    def counted(self: Checkpoint) -> None:
        nonlocal done
        save(self)
        done += 1
        if done == steps:
            os.kill(os.getpid(), signal.SIGKILL)

    Checkpoint.save = counted


if __name__ == "__main__":
    path, (seeds, victim, steps, (rows, observations)) = sys.argv[1], json.loads(sys.argv[2])
    cluster.join()
    cluster.PATIENCE = 10.0
    if victim == jax.process_index():
        killed_after(steps)
    with cb.mesh(replicates=rows, observations=observations):
        what = found(seeds[jax.process_index()], path)
    print(json.dumps({"devices": len(jax.devices()), **what}), flush=True)
