"""Time of `calibrate` with its default arguments: the first call of a fresh process and later calls.

    python -m benchmarks.defaults [--only readme ...] [--limit 120] [--store]

Every case runs in a process of its own, on the device that JAX chooses, with an empty program cache, and once more in a
process that finds the programs of the first one on disk. Times exclude the import. Later calls use other seeds.
`--limit` is the time in seconds after which a process is ended. The machine and the versions are stored.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from rich.console import Console

from benchmarks.common import RESULTS, Table, machine, write_json

_PRELUDE = """
import json, time, warnings
start = time.perf_counter()
import jax, numpy as np
import calibayes as cb
imported = time.perf_counter() - start
warnings.simplefilter("ignore")
compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: compiled.append(seconds) if event.endswith("backend_compile_duration") else None)
def logistic(n, k):
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(n), rng.normal(size=(n, k - 1))])
    y = np.where(rng.uniform(size=n) < 1 / (1 + np.exp(-x @ rng.normal(size=k) / k**0.5)), 1.0, -1.0)
    return cb.GibbsModel(cb.losses.Logistic(), cb.priors.Normal(scale=10.0)), (x, y)
def location(loss, n, k):
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(n), rng.normal(size=(n, k - 1))])
    return cb.GibbsModel(loss, cb.priors.Normal(scale=100.0)), (x, x.sum(1) + rng.standard_t(3, size=n))
def median():
    return cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0)), cb.datasets.median_regression(100)
def svm():
    return cb.GibbsModel(cb.losses.Hinge(), cb.priors.Laplace(scale=10.0)), cb.datasets.heart_disease()
def breast_cancer():
    from sklearn.datasets import load_breast_cancer
    x, y = load_breast_cancer(return_X_y=True)
    x = np.column_stack([np.ones(len(x)), (x - x.mean(0)) / x.std(0)])
    return cb.GibbsModel(cb.losses.Logistic(), cb.priors.Normal(scale=10.0)), (x, np.where(y == 1, 1.0, -1.0))
"""
CASES = {
    "readme": "median()",
    "svm": "svm()",
    "logistic, K 20, N 2,000": "logistic(2000, 20)",
    "logistic, K 50, N 5,000": "logistic(5000, 50)",
    "logistic, K 100, N 10,000": "logistic(10_000, 100)",
    "logistic, K 200, N 20,000": "logistic(20_000, 200)",
    "quantile, K 50, N 5,000": "location(cb.losses.Quantile(0.5), 5000, 50)",
    "huber, K 50, N 5,000": "location(cb.losses.Huber(), 5000, 50)",
    "logistic, K 10, N 1e6": "logistic(1_000_000, 10)",
    "breast cancer, K 31": "breast_cancer()",
}
"""Python expression of the model and the data of each case."""


def measure(name: str, calls: int, limit: float) -> dict[str, Any]:
    """Run a case in a fresh process, and once more in a second process that finds the programs of the first on disk.

    Return the calls that the first process finished within the limit, and the first call of the second.
    """
    with tempfile.TemporaryDirectory() as folder:
        runs, errors = _calls_of_process(name, calls, limit, folder)
        kept = _calls_of_process(name, 1, limit, folder)[0] if runs else []
    return {"runs": runs, "kept": kept, "limit": limit} | ({} if runs else {"errors": errors[-1000:]})


def _calls_of_process(name: str, calls: int, limit: float, cache: str) -> tuple[list[dict[str, Any]], str]:
    """Return the calls that a new process with this program cache finished within the limit, and its error output."""
    program = f"""{_PRELUDE}
model, data = {CASES[name]}
for seed in range({calls}):
    before, begin = len(compiled), time.perf_counter()
    try:
        result = cb.calibrate(model, data, seed=seed, progress=False)
        answer = dict(eta=float(result.eta), eta_se=float(result.eta_se), status=result.status.name,
                      codes=[d.code.name for d in result.diagnostics])
    except Exception as error:
        answer = dict(error=f"{{type(error).__name__}}: {{error}}"[:300])
    print(json.dumps(dict(seconds=time.perf_counter() - begin, compiled=len(compiled) - before, **answer)), flush=True)
"""
    environment = os.environ | {"CALIBAYES_CACHE_DIR": cache}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        output, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")], errors


def table(results: dict[str, Any]) -> Table:
    """Return the times and answers of all cases."""
    rows = []
    for name, case in results.items():
        runs = case["runs"]
        if not runs:
            rows.append([name, f"over {case['limit']:.0f}", "", "", "", "", ""])
            continue
        last = runs[-1]
        answer = last.get("error") or f"{last['eta']:.3g} ({last['eta_se']:.1g})"
        later = ", ".join(f"{run['seconds']:.3g}" for run in runs[1:]) or f"over {case['limit']:.0f}"
        status = ", ".join([last.get("status", ""), *last.get("codes", [])])
        kept = ", ".join(f"{run['seconds']:.3g}" for run in case["kept"])
        rows.append([name, f"{runs[0]['seconds']:.3g}", str(runs[0]["compiled"]), kept, later, answer, status])
    columns = [
        "case",
        "first call, s",
        "programs compiled",
        "first call, programs kept, s",
        "later calls, s",
        "eta (standard error)",
        "status",
    ]
    return Table(columns, rows)


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--calls", type=int, default=4)
    parser.add_argument("--limit", type=float, default=120)
    parser.add_argument("--store", action="store_true", help="store the results in results/defaults_*.json")
    arguments = parser.parse_args()
    results = {}
    for name in arguments.only:
        results[name] = measure(name, arguments.calls, arguments.limit)
        print(name, json.dumps(results[name]), file=sys.stderr, flush=True)
    Console(width=140).print(table(results).rich())
    if arguments.store:
        import jax

        platform = "cpu" if jax.default_backend() == "cpu" else "gpu"
        write_json(RESULTS / f"defaults_{platform}.json", {"machine": machine(), **results})


if __name__ == "__main__":
    main()
