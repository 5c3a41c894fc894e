"""One process of a distributed calibration, started by `backend/test_distributed.py`; prints its result as JSON.

Arguments: the path of a checkpoint, or "parts" for data in parts; then, as JSON, the data seed of each process, the
rank of the process that fails (-1 for none), how it fails ("kill" or "raise"), after how many saves of the checkpoint,
and the shape of the mesh.
"""

import json
import os
import signal
import sys
import warnings

import jax
import numpy as np

import calibayes as cb
from calibayes._backend import distributed
from calibayes.solve.checkpoint import Checkpoint

HEARTBEAT_TIMEOUT = 10


def summarize_calibration(seed: int, checkpoint: str | None) -> dict[str, float | list[float]]:
    """Calibrate a median regression of 60 observations and return the main results."""
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    options = {"sampler": cb.Transport(n_particles=150), "bootstrap": 42, "progress": False, "seed": 1}
    with warnings.catch_warnings():
        # With 42 replicates the standard error of eta cannot be computed.
        warnings.simplefilter("ignore", cb.CalibrationWarning)
        result = cb.calibrate(model, cb.datasets.median_regression(60, seed), checkpoint=checkpoint, **options)
        bounds = result.intervals().bounds
    critical = result.curve.critical_etas().tolist()
    return {"eta": result.eta, "draws": float(result.draws.sum()), "low": float(bounds[0, 0]), "critical": critical}


def summarize_parts() -> dict[str, float | str | list]:
    """Calibrate a median regression in parts; return the results, the rows read, and the error of an invalid row."""
    x, y = cb.datasets.median_regression(60, 0)
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    options = {"sampler": cb.Transport(n_particles=150), "bootstrap": 42, "progress": False, "seed": 1}
    rows = []

    def read(start, stop):
        rows.append((start, stop))
        return x[start:stop], y[start:stop]

    def read_invalid(start, stop):
        return x[start:stop], np.where(np.arange(start, stop) == 50, np.nan, y[start:stop])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cb.CalibrationWarning)
        result = cb.calibrate(model, cb.Parts(read, 60), **options)
        fresh = float(result.validate())
    try:
        cb.calibrate(model, cb.Parts(read_invalid, 60), **options)
    except (ValueError, cb.DistributedError) as error:
        message = f"{type(error).__name__}: {error}"
    critical = result.curve.critical_etas().tolist()
    return {"eta": result.eta, "fresh": fresh, "critical": critical, "rows": rows, "error": message}


def fail_after_saves(n_saves: int, failure: str) -> None:
    """Let this process fail when it has saved a checkpoint `n_saves` times, whether or not it writes the file."""
    save, done = Checkpoint.save, 0

    def count_and_fail(self: Checkpoint) -> None:
        nonlocal done
        save(self)
        done += 1
        if done == n_saves and failure == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if done == n_saves and failure == "raise":
            raise LookupError("an error in one process")

    Checkpoint.save = count_and_fail


if __name__ == "__main__":
    path, (seeds, failing, failure, n_saves, (replicates, observations)) = sys.argv[1], json.loads(sys.argv[2])
    distributed.CONFIG = distributed.DistributedConfig(heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT)
    distributed.join_processes()
    if failing == jax.process_index():
        fail_after_saves(n_saves, failure)
    with cb.mesh(replicates=replicates, observations=observations):
        in_parts = path == "parts"
        summary = summarize_parts() if in_parts else summarize_calibration(seeds[jax.process_index()], path)
    print(json.dumps({"devices": len(jax.devices()), **summary}), flush=True)
