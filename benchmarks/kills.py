"""Is a killed run worth anything? Processes ended by SIGKILL at random moments, each going on from its checkpoint.

    python -m benchmarks.kills [--kills 50]

Every problem is run once without a checkpoint. Then a process runs it with one, is killed after a random share of the
time that took, and another goes on, until one comes to the end; what that one found must be the first one's, byte for
byte. Then from the beginning again, until so many have been killed. What came of it is stored problem by problem.
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
from studies.runner import machine

import calibayes as cb
from calibayes.io import versions

RESULTS = Path(__file__).parents[1] / "results" / "kills.json"
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
    parts = (getattr(result.curve, part.name) for part in fields(result.curve))
    curve = [np.asarray(part).tobytes() for part in parts if part is not None]
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


def kill(
    rng: np.random.Generator, problem: str, place: Path, wanted: int, found: str, seconds: float
) -> dict[str, Any]:
    """Kill so many processes, and count those that came to the end, and the same end."""
    checkpoint = place / "run.ckpt"
    killed = saved = ended = same = 0
    while killed < wanted or not ended or checkpoint.exists():
        process, out = start(problem, checkpoint, place / "cache")
        if killed < wanted:
            time.sleep(rng.uniform(0, seconds))
            process.send_signal(signal.SIGKILL)
        last = out.read()
        if process.wait() == -signal.SIGKILL:
            killed += 1
            saved += checkpoint.exists()
            continue
        assert process.returncode == 0, "a process failed to go on"
        ended += 1
        same += last == found
        checkpoint.unlink()
    iterations = int(found.split()[1])
    ends = {"killed": killed, "saved": saved, "ended": ended, "same": same}
    return {"iterations": iterations, "seconds": round(seconds, 1), **ends}


def store(path: Path, found: dict[str, Any]) -> None:
    """All of it or what was there before."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(found, indent=2) + "\n")
    os.replace(part, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--problem", choices=PROBLEMS, help=argparse.SUPPRESS)
    parser.add_argument("--checkpoint", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.problem:
        return run(options.problem, options.checkpoint)
    rng = np.random.default_rng(options.seed)
    stored: dict[str, Any] = {"machine": machine(), **versions(), "problems": {}}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for i, problem in enumerate(PROBLEMS):
            wanted = len(range(i, options.kills, len(PROBLEMS)))
            found = kill(rng, problem, place, wanted, *measured(problem, place / "cache"))
            stored["problems"][problem] = found
            store(options.out, stored)
            print(problem, json.dumps(found), flush=True)
            assert found["same"] == found["ended"], f"{problem} ended elsewhere"
    return None


if __name__ == "__main__":
    main()
