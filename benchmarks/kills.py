"""Is a killed run worth anything? Processes ended by SIGKILL at random moments, each going on from its checkpoint.

    python -m benchmarks.kills [--kills 50]

Every problem is run once without a checkpoint. Then a process runs it with one, is killed after a random share of the
time that took, and another goes on, until one comes to the end; what that one found must be the first one's, byte for
byte. Then from the beginning again, until so many have been killed.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import IO

import jax
import numpy as np

import calibayes as cb

MEDIAN = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
PROBLEMS = {
    "auto": {"sampler": "auto", "bootstrap": 1000},
    "smc": {"sampler": cb.SMC(n_particles=400, ess_target=0.99), "bootstrap": 200, "eta_init": 0.7, "tolerance": 0.006},
    "mcmc": {"sampler": cb.MCMC(n_draws=2000), "bootstrap": 100, "eta_init": 0.7, "tolerance": 0.011},
}


def run(problem: str, checkpoint: str | None) -> None:
    """What a process does: say that it begins, and at the end what it found."""
    print("begun", flush=True)
    data = cb.datasets.median_regression(100, seed=0)
    result = cb.calibrate(MEDIAN, data, seed=0, progress=False, checkpoint=checkpoint, **PROBLEMS[problem])
    trace = [replace(record, seconds=0.0) for record in result.trace]
    curve = [np.asarray(part).tobytes() for part in jax.tree.leaves(result.curve)]
    intervals = [record.intervals.tobytes() for record in trace]
    found = (result.eta, result.eta_se, result.message, result.draws.tobytes(), trace, intervals, curve)
    print(sha256(repr(found).encode()).hexdigest(), len(trace), flush=True)


def start(problem: str, checkpoint: Path | None, cache: Path) -> tuple["subprocess.Popen[str]", IO[str]]:
    """A process that has begun."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.kills", "--problem", problem]
    if checkpoint is not None:
        command += ["--checkpoint", str(checkpoint)]
    kept = {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | kept)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process, process.stdout


def measured(problem: str, cache: Path) -> tuple[str, float]:
    """What a process finds that is left alone, and how long it takes once everything has been compiled."""
    for _ in range(2):
        process, out = start(problem, None, cache)
        began = time.perf_counter()
        found = out.read()
        seconds = time.perf_counter() - began
        assert process.wait() == 0
    return found, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--problem", choices=PROBLEMS, help=argparse.SUPPRESS)
    parser.add_argument("--checkpoint", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.problem:
        return run(options.problem, options.checkpoint)
    rng = np.random.default_rng(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for i, problem in enumerate(PROBLEMS):
            wanted = len(range(i, options.kills, len(PROBLEMS)))
            found, seconds = measured(problem, place / "cache")
            kills, ends = kill(rng, problem, place, wanted, found, seconds)
            iterations = found.split()[1]
            print(f"{problem}: {iterations} iterations in {seconds:.1f} s; {kills} killed, {ends} ended, all the same")
    return None


def kill(
    rng: np.random.Generator, problem: str, place: Path, wanted: int, found: str, seconds: float
) -> tuple[int, int]:
    checkpoint = place / "run.ckpt"
    kills = ends = 0
    while kills < wanted or not ends or checkpoint.exists():
        process, out = start(problem, checkpoint, place / "cache")
        if kills < wanted:
            time.sleep(rng.uniform(0, seconds))
            process.send_signal(signal.SIGKILL)
        last = out.read()
        if process.wait() == -signal.SIGKILL:
            kills += 1
            continue
        assert process.returncode == 0, "a process failed to go on"
        assert last == found, f"{problem} ended elsewhere after {kills} kills"
        ends += 1
        checkpoint.unlink()
    return kills, ends


if __name__ == "__main__":
    main()
