"""Speed as ratios measured side by side in one run: `make bench`."""

import argparse
import functools
import json
import os
import platform
import subprocess
import sys
import time
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import calibayes as cb
from benchmarks import handwritten
from calibayes.target import Target, make_target

MEDIAN = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
SVM = cb.GibbsModel(cb.losses.Hinge(), cb.priors.Laplace(scale=10.0))
ENGINE = eqx.filter_jit(Target.risk)


def best_of(call, repeats=7):
    """Shortest of some timings, after one to warm up."""
    jax.block_until_ready(call())
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - began)
    return min(times)


def by_hand_result(by_hand, out):
    by_hand()
    return out


def risk_engine():
    """The engine against the hand-compiled loop: B 500, M 1,000."""
    rng = np.random.default_rng(0)
    problems = {
        "median regression N 1,600": (MEDIAN, cb.datasets.median_regression(1600)),
        "SVM N 462": (SVM, cb.datasets.heart_disease()),
    }
    for name, (model, (x, y)) in problems.items():
        n, k = x.shape
        counts = rng.multinomial(n, np.full(n, 1 / n), size=499)
        target = make_target(model, (x, y), counts, k)
        theta = rng.normal(size=(k, 500, 1000)).astype(np.float32)
        out = np.zeros((500, 1000), np.float32)
        single = [a.astype(np.float32) for a in (x, y, np.concatenate([np.ones((1, n)), counts]))]
        if k == 2:
            by_hand = functools.partial(handwritten.quantile_2, theta, *single, np.float32(0.5), out)
        else:
            by_hand = functools.partial(handwritten.hinge_8, theta, *single, out)
        ours = functools.partial(ENGINE, target, jnp.asarray(theta))
        gap = np.asarray(ours()) - by_hand_result(by_hand, out)
        assert np.ptp(gap, axis=1).max() < 1e-3 * np.ptp(out), "the two do not compute the same"
        seconds, hand = best_of(ours), best_of(by_hand)
        yield f"risk engine, {name}", "hand-compiled loop", seconds, hand


def timed_calibration(calibrate, model, make_data, **options):
    """Seconds of compilation (a short run twice, the difference) and of a whole calibration, compiled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cb.CalibrationWarning)
        began = time.perf_counter()
        calibrate(model, make_data(1), seed=1, progress=False, max_iterations=2, **options)
        cold = time.perf_counter() - began
        began = time.perf_counter()
        calibrate(model, make_data(1), seed=1, progress=False, max_iterations=2, **options)
        compilation = cold - (time.perf_counter() - began)
        began = time.perf_counter()
        result = calibrate(model, make_data(2), seed=2, progress=False, **options)
    return compilation, time.perf_counter() - began, result


def algorithms():
    """GPC-SMC against GPC-MCMC at the paper's settings: B 500, M 1,000, R 20,000, N 400."""
    data = lambda seed: cb.datasets.median_regression(400, seed)
    smc_compile, smc, a = timed_calibration(cb.gpc_smc, MEDIAN, data)
    mcmc_compile, mcmc, b = timed_calibration(cb.gpc_mcmc, MEDIAN, data)
    note = (
        f"eta {a.eta:.3f} +- {a.eta_se:.3f} in {len(a.trace)} iterations and {b.eta:.3f} +- {b.eta_se:.3f} in "
        f"{len(b.trace)}; compilation, {smc_compile:.1f} s and {mcmc_compile:.1f} s, not counted; median multiESS of "
        f"the chains {b.trace[-1].ess:.0f}, median ESS of the particles {a.trace[-1].ess:.0f}"
    )
    yield "GPC-SMC, median regression N 400", "GPC-MCMC", smc, mcmc, note


def memory():
    """Peak memory of a process that calibrates the SVM at the paper's M 4,000, from near the answer."""
    # VmHWM and not ru_maxrss, which a process inherits from the one that started it.
    program = """
import re, warnings, calibayes as cb
warnings.simplefilter("ignore", cb.CalibrationWarning)
model = cb.GibbsModel(cb.losses.Hinge(), cb.priors.Laplace(scale=10.0))
data = cb.datasets.heart_disease()
cb.gpc_smc(model, data, seed=0, n_particles=4000, eta_init=0.15, max_iterations=3, progress=False)
print(int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1e6)
"""
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return float(out.stdout.split()[-1])


def demo():
    """Seconds from Enter to table, in a fresh process."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "calibayes", "demo"], capture_output=True, check=True)
    return time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="also write the figures to this file")
    parser.add_argument("--quick", action="store_true", help="the risk engine only")
    options = parser.parse_args()
    console = Console()
    machine = (
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, jax {jax.__version__}, "
        f"{jax.default_backend()}"
    )
    console.print(f"calibayes {cb.__version__} on {machine}\n")
    table = Table("what", "against", "ours, s", "theirs, s", "theirs / ours")
    figures = {"machine": machine, "ratios": []}
    notes = []
    for row in [*risk_engine(), *([] if options.quick else algorithms())]:
        what, against, ours, theirs, *note = row
        notes += note
        table.add_row(what, against, f"{ours:.3g}", f"{theirs:.3g}", f"{theirs / ours:.2f}")
        figures["ratios"].append({"what": what, "against": against, "ours": ours, "theirs": theirs})
    console.print(table)
    if not options.quick:
        figures |= {"svm_peak_gb": memory(), "demo_seconds": demo()}
        notes.append(f"peak memory, SVM with M 4,000: {figures['svm_peak_gb']:.2f} GB")
        notes.append(f"calibayes demo in a fresh process: {figures['demo_seconds']:.1f} s")
    for note in notes:
        console.print(note)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
