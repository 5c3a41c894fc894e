"""Transport against the paper's two algorithms: whole calibrations on the same rows, for the same set."""

from functools import partial
from typing import Any

import calibayes as cb
from calibayes.bench.measured import Measured, Ratio, timed
from calibayes.bench.problems import Data, Sizes, heart_disease, median_regression, rows_of


def measure(sizes: Sizes) -> Measured:
    found = Measured(quick=sizes.quick)
    _one(median_regression(sizes.middle), sizes.particles, sizes, found)
    _one(heart_disease(), sizes.svm_particles, sizes, found)
    return found


def _one(data: Data, particles: int, sizes: Sizes, found: Measured) -> None:
    options: dict[str, Any] = {"bootstrap": rows_of(len(data.y), sizes.rows), "progress": False}
    call = partial(cb.calibrate, data.model, (data.x, data.y), region="box", **options)
    ours = {}
    for name, audit in ((f"transport, {data.shape}", False), (f"transport with its audit, {data.shape}", True)):
        ours[name] = warm_transport(partial(call, sampler=cb.Transport(n_particles=particles, audit=audit)))
    smc = partial(cb.gpc_smc, data.model, (data.x, data.y), n_particles=particles, **options)
    mcmc = partial(cb.gpc_mcmc, data.model, (data.x, data.y), n_draws=sizes.chain, **options)
    for peer, algorithm in ((f"GPC-SMC, M {particles:,}", smc), (f"GPC-MCMC, R {sizes.chain:,}", mcmc)):
        timed(partial(algorithm, seed=0, max_iterations=1))
        theirs, their_seconds = timed(partial(algorithm, seed=1))
        for name, (result, seconds) in ours.items():
            note = f"{_said(result)}; theirs {_said(theirs)}"
            found.ratios.append(Ratio(name, peer, seconds, their_seconds, note=note))


def warm_transport(call: Any, seeds: tuple[int, ...] = (1, 2, 3)) -> tuple[cb.Result, float]:
    """A calibration and its seconds, the median over seeds, after one that compiles."""
    timed(partial(call, seed=0))
    runs = sorted((timed(partial(call, seed=seed)) for seed in seeds), key=lambda run: run[1])
    return runs[len(runs) // 2]


def _said(result: cb.Result) -> str:
    last = result.trace[-1]
    ending = "" if result.converged else ", not converged"
    return f"eta {result.eta:.3f} in {last.iteration} iterations, effective size {last.ess:.0f}{ending}"
