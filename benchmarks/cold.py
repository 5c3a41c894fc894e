"""The first answer of a fresh process: compilation, programs kept on disk, and shapes that repeat.

    python -m benchmarks.cold [--only readme ...] [--store]

Every case runs in processes of its own, first with an empty program cache, then with the programs that the first one
left. Times include the import. The peer is the first NUTS run (1,500 steps) of NumPyro on the model of the README, in
the same run, because these machines are shared. `compiled` counts the programs that XLA compiled.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
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
def median(n, tau=0.5):
    return cb.GibbsModel(cb.losses.Quantile(tau), cb.priors.Normal(scale=100.0)), cb.datasets.median_regression(n)
def run(model, data, **options):
    before, begin = len(compiled), time.perf_counter()
    result = cb.calibrate(model, data, seed=0, progress=False, **options)
    return {"seconds": time.perf_counter() - begin, "compiled": len(compiled) - before,
            "compile_seconds": sum(compiled[before:]), "eta": float(result.eta)}
"""
_EPILOGUE = """
print(json.dumps({"import": imported, "total": time.perf_counter() - start, "runs": runs}))
"""
CASES = {
    "readme": "runs = [run(*median(100)), run(*median(100))]",
    "own loss": """
from jax import numpy as jnp
def absolute(theta, datum):
    x, y = datum
    return 0.5 * jnp.abs(y - x @ theta)
model = cb.GibbsModel(absolute, cb.priors.Normal(scale=100.0), dim=2)
runs = [run(model, cb.datasets.median_regression(100)), run(model, cb.datasets.median_regression(100))]
""",
    "svm": """
model = cb.GibbsModel(cb.losses.Hinge(), cb.priors.Laplace(scale=10.0))
runs = [run(model, cb.datasets.heart_disease()), run(model, cb.datasets.heart_disease())]
""",
    "logistic, K 2": "runs = [run(*logistic(1000, 2), bootstrap=500), run(*logistic(1000, 2), bootstrap=500)]",
    "logistic, K 20": "runs = [run(*logistic(2000, 20), bootstrap=500), run(*logistic(2000, 20), bootstrap=500)]",
    "logistic, K 30": "runs = [run(*logistic(1000, 30), bootstrap=500), run(*logistic(1000, 30), bootstrap=500)]",
    "logistic, K 50": "runs = [run(*logistic(2000, 50), bootstrap=500)]",
    "other N and tau": "runs = [run(*median(n, tau)) for n, tau in ((400, 0.5), (410, 0.5), (700, 0.5), (400, 0.9))]",
    "20 folds": """
from sklearn.model_selection import cross_val_score
from calibayes.estimators import QuantileRegressor
x, y = cb.datasets.median_regression(400)
def fit(x, y):
    before, begin = len(compiled), time.perf_counter()
    QuantileRegressor().fit(x[:, 1:], y)
    return {"seconds": time.perf_counter() - begin, "compiled": len(compiled) - before}
runs = [fit(x[:380], y[:380]), fit(x[20:], y[20:])]
before, begin = len(compiled), time.perf_counter()
cross_val_score(QuantileRegressor(), x[:, 1:], y, cv=20)
runs.append({"seconds": time.perf_counter() - begin, "compiled": len(compiled) - before})
""",
}
"""Python code of each case, which sets `runs`."""
_NUMPYRO = """
import json, time
start = time.perf_counter()
import jax, numpy as np, numpyro, numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS
rng = np.random.default_rng(0)
x = np.column_stack([np.ones(100), rng.uniform(0, 10, 100)])
y = x @ np.array([2.0, 1.0]) + rng.normal(size=100)
def model():
    theta = numpyro.sample("theta", dist.Normal(0, 100).expand([2]))
    numpyro.factor("risk", -0.5 * jax.numpy.abs(y - x @ theta).sum())
mcmc = MCMC(NUTS(model), num_warmup=500, num_samples=1000, progress_bar=False)
mcmc.run(jax.random.key(0))
jax.block_until_ready(mcmc.get_samples())
print(json.dumps({"total": time.perf_counter() - start}))
"""


def measure(names: list[str]) -> dict[str, Any]:
    """Run the cases, each with an empty program cache and with the programs kept."""
    results: dict[str, Any] = {"peer": _peer()}
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            program = _PRELUDE + CASES[name] + _EPILOGUE
            results[name] = {"empty": _run(program, folder), "kept": _run(program, folder)}
        print(name, json.dumps(results[name]), file=sys.stderr, flush=True)
    results["peer again"] = _peer()
    return results


def _peer() -> dict[str, float]:
    """Return the time of the peer, NaN if it is not installed."""
    return _run(_NUMPYRO, "off") if find_spec("numpyro") else {"total": float("nan")}


def table(results: dict[str, Any]) -> Table:
    """Return the times of all cases, and the ratio to the peer."""
    peer = min(results["peer"]["total"], results["peer again"]["total"])
    rows = [["NumPyro, first NUTS run", f"{peer:.1f}", "", "", "", "", "1"]]
    for name, case in results.items():
        if "empty" not in case:
            continue
        first, kept = case["empty"], case["kept"]
        runs = first["runs"]
        total = first["import"] + runs[0]["seconds"]
        rows.append(
            [
                name,
                f"{total:.1f}",
                str(runs[0]["compiled"]),
                f"{kept['import']:.2f} + {kept['runs'][0]['seconds']:.2f}",
                ", ".join(f"{run['seconds']:.2f}" for run in runs[1:]),
                ", ".join(str(run["compiled"]) for run in runs[1:]),
                f"{total / peer:.2f}",
            ]
        )
    columns = [
        "case",
        "first call, s",
        "programs compiled",
        "programs kept: import + call, s",
        "later calls, s",
        "programs compiled",
        "first call / NumPyro",
    ]
    return Table(columns, rows)


def _run(program: str, folder: str) -> dict[str, Any]:
    environment = os.environ | {"CALIBAYES_CACHE_DIR": folder}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--store", action="store_true", help="store the results in results/cold_*.json")
    arguments = parser.parse_args()
    results = measure(arguments.only)
    Console(width=120).print(table(results).rich())
    if arguments.store:
        import jax

        platform = "cpu" if jax.default_backend() == "cpu" else "gpu"
        write_json(RESULTS / f"cold_{platform}.json", {"machine": machine(), **results})


if __name__ == "__main__":
    main()
