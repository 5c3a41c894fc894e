"""Transport against the paper's two algorithms, on the same rows: `python -m benchmarks.transport [part ...]`.

Parts: `ess` (effective sizes after at most three evaluations), `median` and `svm` (seconds against GPC-SMC), `mcmc`
(against GPC-MCMC on the SVM; long), `levels` (error of the critical levels at equal compute), `cost` (how time grows
with N, B and M). Without a name: all but `mcmc`.
"""

import functools
import sys
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import calibayes as cb
from benchmarks.__main__ import MEDIAN, SVM
from calibayes.curve import critical_levels
from calibayes.estimate import point_estimate
from calibayes.functions import as_float
from calibayes.noise import row_keys
from calibayes.particles import ess
from calibayes.samplers.asmc import stay
from calibayes.samplers.guess import first_eta
from calibayes.samplers.start import COARSE, from_prior, pilot
from calibayes.target import make_target

CONSOLE = Console()


def logistic(n, dim, seed=0):
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(n), rng.normal(size=(n, dim - 1))])
    y = np.where(rng.uniform(size=n) < 1 / (1 + np.exp(-x @ rng.normal(0, 0.3, dim))), 1, -1)
    return cb.GibbsModel(cb.losses.Logistic(), cb.priors.Normal(scale=10.0)), (x, y)


def rows_of(n, n_rows, seed=0):
    return np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=n_rows)


def timed(call):
    began = time.perf_counter()
    out = jax.block_until_ready(call())
    return out, time.perf_counter() - began


def quietly(call, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cb.CalibrationWarning)
        return call(**options)


def effective_sizes():
    """Share of M that is effective after at most three evaluations of the risk, near the eta of the box."""
    problems = {
        "median regression N 100, K 2": (MEDIAN, cb.datasets.median_regression(100), 500),
        "heart disease SVM, K 8": (SVM, cb.datasets.heart_disease(), 500),
        "logistic N 1,000, K 20": (*logistic(1000, 20), 100),
        "logistic N 5,000, K 50": (*logistic(5000, 50), 40),
    }
    table = Table("problem", "M", "evaluations", "lowest", "5%", "median", title="effective size / M over rows")
    for name, (model, data, n_rows) in problems.items():
        n, dim = data[0].shape
        target = make_target(model, data, rows_of(n, n_rows), dim)
        sampler = cb.Transport(repair=False)
        pool = sampler.begin(jax.random.key(0), target, None, None)
        target = pool.target
        eta = first_eta(target, pool, cb.regions.Box(), 0.95)
        state = sampler.mend(target, sampler.init(jax.random.key(1), target, pool, eta), lambda _: None)
        size = sampler.size(dim)
        shares = np.asarray(ess(state.particles.log_weights))[1:] / size
        quantiles = [f"{q:.2f}" for q in np.quantile(shares, [0, 0.05, 0.5])]
        table.add_row(name, f"{size:,}", str(state.evaluations), *quantiles)
    CONSOLE.print(table)


def against_smc(name, model, data, n_particles, **options):
    """Whole calibrations on the same rows, compiled; compilation is the difference of a first and a second run."""
    counts = rows_of(len(data[1]), 500)
    common = {"region": "box", "bootstrap": counts, "progress": False}
    short = {"eta_init": options.pop("near"), "max_iterations": 1}

    def smc(seed, **changes):
        return quietly(lambda: cb.gpc_smc(model, data, seed=seed, n_particles=n_particles, **common, **changes))

    compilation = timed(lambda: smc(0, **short))[1] - timed(lambda: smc(0, **short))[1]
    paper, paper_seconds = timed(lambda: smc(1))
    size = paper.trace[-1].ess
    CONSOLE.print(
        f"{name}: GPC-SMC, M {n_particles:,}: {paper_seconds:.1f} s (and {compilation:.1f} s to compile), eta "
        f"{paper.eta:.4f} +- {paper.eta_se:.4f} in {len(paper.trace)} iterations, effective size {size:.0f}"
    )
    # As many particles as give the effective size that GPC-SMC had.
    probe = cb.calibrate(model, data, sampler=cb.Transport(n_particles=int(size)), seed=0, **common)
    chosen = int(np.ceil(size * int(size) / probe.trace[-1].ess / 100) * 100)
    for label, audit in (("transport", False), ("transport with its audit", True)):
        sampler = cb.Transport(n_particles=chosen, audit=audit)
        run = functools.partial(cb.calibrate, model, data, sampler=sampler, **common)
        jax.clear_caches()
        _, cold = timed(functools.partial(run, seed=1))
        runs = [timed(functools.partial(run, seed=seed)) for seed in (1, 2, 3)]
        result, warm = runs[0][0], float(np.median([seconds for _, seconds in runs]))
        CONSOLE.print(
            f"  {label}, M {chosen:,}: {warm:.2f} s (and {cold - warm:.1f} s to compile), eta {result.eta:.4f} +- "
            f"{result.eta_se:.4f}, effective size {result.trace[-1].ess:.0f}: "
            f"[bold]{paper_seconds / warm:.0f} times faster[/bold], compilation included "
            f"{(paper_seconds + compilation) / cold:.0f} times"
        )
    return warm


def median():
    against_smc("median regression N 400", MEDIAN, cb.datasets.median_regression(400), 1000, near=1.4)


def svm():
    against_smc("heart disease SVM", SVM, cb.datasets.heart_disease(), 4000, near=0.15)


def mcmc():
    """GPC-MCMC on the SVM, with Polson and Scott's sampler as in the paper, timed on its first iteration."""
    data = cb.datasets.heart_disease()
    counts = rows_of(len(data[1]), 500)
    common = {"region": "box", "bootstrap": counts, "progress": False}
    fast = lambda: cb.calibrate(SVM, data, sampler=cb.Transport(n_particles=4000), seed=1, **common)
    fast()
    result, seconds = timed(fast)
    for name, kernel in (("RAM", cb.kernels.RAM()), ("Polson-Scott", cb.kernels.PolsonScott())):
        run = functools.partial(quietly, functools.partial(cb.gpc_mcmc, SVM, data, kernel=kernel, seed=1, **common))
        _, one = timed(functools.partial(run, max_iterations=1))
        paper, whole = timed(run) if name == "RAM" else (None, float("nan"))
        at = f"eta {paper.eta:.4f} in {len(paper.trace)} iterations" if paper else "first iteration only"
        CONSOLE.print(
            f"GPC-MCMC on the SVM, {name}: one iteration {one:.0f} s, all {whole:.0f} s ({at}); transport, M 4,000: "
            f"{seconds:.2f} s, eta {result.eta:.4f}: {one / seconds:.0f} and {whole / seconds:.0f} times faster"
        )


def levels():
    """Error of the critical levels of the SVM's box at one eta, each method against a long run, and its seconds.

    Errors fall with the square root of the time spent, so error times root seconds is the error at equal compute.
    """
    data, eta, n_rows = cb.datasets.heart_disease(), 0.15, 100
    dim = data[0].shape[1]
    start = make_target(SVM, data, rows_of(len(data[1]), n_rows), dim)
    region = cb.regions.as_region("box")
    target = pilot(jax.random.key(0), start, eta, 4000, None).target

    def level_of(particles, point):
        return np.asarray(critical_levels(target, particles, as_float(eta), region, point))[1:]

    walkers = from_prior(jax.random.key(1), target, eta, 4000)
    keys, none = row_keys(jax.random.key(2), n_rows + 1), jnp.zeros(n_rows + 1, bool)
    point = point_estimate("mean", jax.random.key(0), target.row(0), walkers.particles.row(0), eta)
    reference = []
    for _ in range(50):
        walkers = stay(keys, target, walkers, COARSE.kernel, jnp.asarray(10), none)
        reference.append(level_of(walkers.particles, point))
    reference = np.mean(reference, 0)

    samplers = {
        "transport, M 1,000": cb.Transport(n_particles=1000),
        "transport, M 4,000": cb.Transport(n_particles=4000),
        "GPC-SMC, from eta 1, M 4,000": cb.SMC(n_particles=4000),
        "GPC-MCMC, R 20,000, RAM": cb.MCMC(),
    }
    table = Table("method", "seconds", "RMS error of levels", "error x root seconds", title=f"SVM, {n_rows} rows")
    for name, sampler in samplers.items():
        from_eta = 1.0 if isinstance(sampler, cb.SMC) else eta

        def run(sampler=sampler, from_eta=from_eta):
            begun = sampler.begin(jax.random.key(3), start, from_eta, None)
            begun = begun._replace(target=target)
            state = sampler.init(jax.random.key(4), target, begun, from_eta)
            state = sampler.mend(target, state, lambda _: None)
            return state if from_eta == eta else sampler.move(target, state, eta, lambda _: None)

        run()
        state, seconds = timed(run)
        error = np.sqrt(np.mean(np.square(level_of(state.particles, point) - reference)))
        table.add_row(name, f"{seconds:.2f}", f"{error:.4f}", f"{error * seconds**0.5:.4f}")
    CONSOLE.print(table)


def cost():
    """Seconds of one transport to all rows, and their slope against N, B and M in a log-log fit."""
    base = {"n": 1600, "n_rows": 1000, "n_particles": 1000}
    axes = {"n": (1600, 3200, 6400), "n_rows": (1000, 2000, 4000), "n_particles": (1000, 2000, 4000)}
    for axis, values in axes.items():
        seconds = [_transport_seconds(**base | {axis: value}) for value in values]
        slope = np.polyfit(np.log(values), np.log(seconds), 1)[0]
        shown = ", ".join(f"{value:,}: {second:.2f} s" for value, second in zip(values, seconds, strict=True))
        CONSOLE.print(f"transport against {axis}: {shown}; slope {slope:.2f}")


def _transport_seconds(n, n_rows, n_particles):
    data = cb.datasets.median_regression(n)
    target = make_target(MEDIAN, data, rows_of(n, n_rows), 2)
    sampler = cb.Transport(n_particles=n_particles, max_evaluations=2, repair=False)
    pool = sampler.begin(jax.random.key(0), target, None, None)
    # One more refit than the first maps, so that a refit is timed too.
    run = lambda: (
        sampler.mend(
            pool.target, sampler.init(jax.random.key(1), pool.target, pool, 0.9 * pool.eta), lambda _: None
        ).particles
    )
    timed(run)
    return min(timed(run)[1] for _ in range(5))


PARTS = {"ess": effective_sizes, "median": median, "svm": svm, "levels": levels, "cost": cost, "mcmc": mcmc}


def main():
    for name in sys.argv[1:] or [name for name in PARTS if name != "mcmc"]:
        PARTS[name]()


if __name__ == "__main__":
    main()
