"""Peak memory of calibrations of data in memory and in parts, in one process and in two.

    python -m benchmarks.parts [--observations 1000000] [--parameters 10] [--store]

The data are memory-mapped NumPy files. Few replicates and particles are used, so that the data dominate the memory.
For each process it reports the bytes of the observations on its devices, and its peak memory above that after the
calibration of a few observations. Two processes find each other by the environment variables of Slurm.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.common import RESULTS, Table, machine, write_json

_PROGRAM = """
import json, re, sys, warnings
from pathlib import Path
import jax, numpy as np
import calibayes as cb
from calibayes._backend import distributed
warnings.simplefilter("ignore")
folder, in_parts = Path(sys.argv[1]), sys.argv[2] == "parts"
distributed.join_processes()
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1e6
model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
options = dict(bootstrap=cb.bootstrap.Poisson(20), sampler=cb.Transport(n_particles=100), progress=False)
def calibrate(n):
    data = tuple(np.load(folder / f"{name}.npy", mmap_mode="r")[:n] for name in "xy")
    if not in_parts:
        # Data in memory, as a user would pass them.
        data = tuple(np.array(array) for array in data)
    return cb.calibrate(model, cb.Parts.from_arrays(data) if in_parts else data, seed=0, **options)
with cb.mesh(observations=len(jax.devices())):
    calibrate(2_000)
    before = peak()
    result = calibrate(None)
leaves = jax.tree.leaves(result.calibration.problem.target.data)
held = sum(shard.data.nbytes for leaf in leaves for shard in leaf.addressable_shards) / 1e9
print(json.dumps(dict(eta=result.eta, held=held, before=before, peak=peak())), flush=True)
"""


def write_data(folder: Path, n: int, dim: int) -> None:
    """Write the data of a median regression."""
    rng = np.random.default_rng(0)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", float, (n, dim))
    y = np.lib.format.open_memmap(folder / "y.npy", "w+", float, (n,))
    for first in range(0, n, 2**16):
        rows = slice(first, min(first + 2**16, n))
        x[rows] = rng.normal(size=(rows.stop - first, dim))
        x[rows, 0] = 1.0
        y[rows] = x[rows].sum(1) + rng.standard_t(3, rows.stop - first)


def run(folder: Path, kind: str, processes: int) -> list[dict[str, Any]]:
    """Calibrate in one or two processes, and return what each of them printed."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = str(bound.getsockname()[1])
    common = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_COORDINATOR_PORT": port}
    if processes > 1:
        common |= {"SLURM_JOB_ID": "1", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": str(processes)}
        common |= {"SLURM_STEP_NUM_TASKS": str(processes)}

    def run_one(rank: int) -> dict[str, Any]:
        env = common | ({"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} if processes > 1 else {})
        command = [sys.executable, "-c", _PROGRAM, str(folder), kind]
        process = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
        return dict(json.loads(process.stdout.splitlines()[-1]))

    with ThreadPoolExecutor(processes) as executor:
        return list(executor.map(run_one, range(processes)))


def table(results: dict[str, list[dict[str, Any]]], n: int, dim: int) -> Table:
    """Return the memory of every process."""
    size = 8e-9 * n * (dim + 1)
    rows = [
        [case, f"{rank}", f"{run['held']:.3f}", f"{run['peak'] - run['before']:.2f}", f"{run['eta']:.4f}"]
        for case, runs in results.items()
        for rank, run in enumerate(runs)
    ]
    columns = [f"N {n:,}, K {dim}: {size:.3f} GB in double precision", "process", "observations on its devices, GB"]
    return Table([*columns, "increase of the peak memory, GB", "eta"], rows)


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--observations", type=int, default=1_000_000)
    parser.add_argument("--parameters", type=int, default=10)
    parser.add_argument("--store", action="store_true", help="store the results in results/parts.json")
    arguments = parser.parse_args()
    n, dim, results = arguments.observations, arguments.parameters, {}
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder), n, dim)
        for processes in (1, 2):
            for kind in ("memory", "parts"):
                name = f"{processes} process{'es' * (processes > 1)}, data in {kind}"
                results[name] = run(Path(folder), kind, processes)
    Console(width=140).print(table(results, n, dim).rich())
    if arguments.store:
        write_json(RESULTS / "parts.json", {"machine": machine(), "N": n, "K": dim, "runs": results})


if __name__ == "__main__":
    main()
