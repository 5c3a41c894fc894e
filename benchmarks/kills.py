"""Check that a killed calibration continues from its checkpoint to the same result.

    python -m benchmarks.kills [--kills 50]

Every problem is run once without a checkpoint. Then processes run it with a checkpoint. Each is killed by SIGKILL after
a random share of the time of the first run, and the next one continues, until one finishes; its result must equal the
first one bit for bit. This is repeated until the requested number of processes has been killed.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import fields, replace
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

import numpy as np

import calibayes as cb
from benchmarks.common import RESULTS, machine, write_json
from calibayes._backend.versions import versions

MEDIAN = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
PROBLEMS: dict[str, dict[str, Any]] = {
    "auto": {"sampler": "auto", "bootstrap": 1000},
    "smc": {"sampler": cb.SMC(n_particles=400, ess_target=0.99), "bootstrap": 200, "eta_init": 0.7, "tolerance": 0.006},
    "mcmc": {"sampler": cb.MCMC(n_draws=2000), "bootstrap": 100, "eta_init": 0.7, "tolerance": 0.011},
}
_STARTED = "started\n"


def run(problem: str, checkpoint: str | None) -> None:
    """Calibrate in this process; print a line at the start, and a digest of the result at the end."""
    print(_STARTED, end="", flush=True)
    data = cb.datasets.median_regression(100, seed=0)
    result = cb.calibrate(MEDIAN, data, seed=0, progress=False, checkpoint=checkpoint, **PROBLEMS[problem])
    trace = [replace(record, seconds=0.0) for record in result.trace]
    curve_parts = (getattr(result.curve, part.name) for part in fields(result.curve))
    curve = [np.asarray(part).tobytes() for part in curve_parts if part is not None]
    intervals = [record.intervals.tobytes() for record in trace]
    content = (result.eta, result.eta_se, result.message, result.draws.tobytes(), trace, intervals, curve)
    print(sha256(repr(content).encode()).hexdigest(), len(trace), flush=True)


def start(problem: str, checkpoint: Path | None, cache: Path) -> tuple["subprocess.Popen[str]", IO[str]]:
    """Start a process and wait until it begins to calibrate."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.kills", "--problem", problem]
    if checkpoint is not None:
        command += ["--checkpoint", str(checkpoint)]
    environment = {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | environment)
    assert process.stdout is not None
    assert process.stdout.readline() == _STARTED
    return process, process.stdout


def uninterrupted(problem: str, cache: Path) -> tuple[str, float]:
    """Return the output of an uninterrupted process, and its time once everything has been compiled."""
    for _ in range(2):
        process, out = start(problem, None, cache)
        started = time.perf_counter()
        expected = out.read()
        seconds = time.perf_counter() - started
        assert process.wait() == 0
    return expected, seconds


def kill(
    rng: np.random.Generator, problem: str, folder: Path, n_kills: int, expected: str, seconds: float
) -> dict[str, Any]:
    """Kill a number of processes; count those that had saved, those that finished, and the identical results."""
    checkpoint = folder / "run.ckpt"
    killed = saved = finished = identical = 0
    while killed < n_kills or not finished or checkpoint.exists():
        process, out = start(problem, checkpoint, folder / "cache")
        if killed < n_kills:
            time.sleep(rng.uniform(0, seconds))
            process.send_signal(signal.SIGKILL)
        output = out.read()
        if process.wait() == -signal.SIGKILL:
            killed += 1
            saved += checkpoint.exists()
            continue
        assert process.returncode == 0, "a process failed to continue from its checkpoint"
        finished += 1
        identical += output == expected
        checkpoint.unlink()
    iterations = int(expected.split()[1])
    numbers = {"killed": killed, "saved": saved, "finished": finished, "identical": identical}
    return {"iterations": iterations, "seconds": round(seconds, 1), **numbers}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="number of processes to kill, over all problems")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random times")
    parser.add_argument("--out", type=Path, default=RESULTS / "kills.json")
    parser.add_argument("--problem", choices=PROBLEMS, help=argparse.SUPPRESS)
    parser.add_argument("--checkpoint", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.problem:
        return run(options.problem, options.checkpoint)
    rng = np.random.default_rng(options.seed)
    stored: dict[str, Any] = {"machine": machine(), **versions(), "problems": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for i, problem in enumerate(PROBLEMS):
            n_kills = len(range(i, options.kills, len(PROBLEMS)))
            counts = kill(rng, problem, folder, n_kills, *uninterrupted(problem, folder / "cache"))
            stored["problems"][problem] = counts
            write_json(options.out, stored)
            print(problem, json.dumps(counts), flush=True)
            assert counts["identical"] == counts["finished"], f"{problem}: a continued run gave another result"
    return None


if __name__ == "__main__":
    main()
