"""Transport against the two algorithms of the paper: whole calibrations on the same replicates, for the same region."""

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import jax

import calibayes as cb
from benchmarks.speed.measurement import Measurements, Ratio, timed
from benchmarks.speed.problems import Data, Sizes, bootstrap_counts, heart_disease, median_regression

_MCMC_ITERATIONS = 2
"""Timed iterations of GPC-MCMC."""
_MIN_SECONDS, _MAX_RUNS = 0.6, 15
"""A median of times is final after this total time or this number of calibrations."""


def measure(sizes: Sizes) -> Measurements:
    """Compare on both problems of the paper, and the SVM with an absolute time."""
    measurements = Measurements(quick=sizes.quick)
    _compare(median_regression(sizes.middle), sizes, measurements)
    svm = _compare(heart_disease(), sizes, measurements)
    baseline, seconds = ("one second", 1.0) if jax.default_backend() == "cpu" else ("50 ms", 0.05)
    (name, transport), (_, audited) = svm.items()
    goal = None if sizes.quick else 1.0
    note = f"without its audit; with it {audited.seconds():.2g} s"
    measurements.ratios.append(Ratio(name, baseline, transport.seconds(), seconds, goal, note))
    return measurements


def _compare(data: Data, sizes: Sizes, measurements: Measurements) -> dict[str, "Repeated"]:
    """Add the ratios of one problem; return the calibrations by transport, which can be timed again."""
    particles = sizes.particles
    options: dict[str, Any] = {"bootstrap": bootstrap_counts(len(data.y), sizes.replicates), "progress": False}
    call = partial(cb.calibrate, data.model, (data.x, data.y), region="box", **options)
    ours = {
        f"transport, {data.description}": Repeated(partial(call, sampler=cb.Transport(n_particles=particles))),
        f"transport with its audit, {data.description}": Repeated(
            partial(call, sampler=cb.Transport(n_particles=particles, audit=True))
        ),
    }
    smc = partial(cb.gpc_smc, data.model, (data.x, data.y), n_particles=particles, **options)
    mcmc = partial(cb.gpc_mcmc, data.model, (data.x, data.y), n_draws=sizes.chain, **options)
    timed(partial(smc, seed=0, max_iterations=1))
    smc_result, seconds = timed(partial(smc, seed=1))
    for name, transport in ours.items():
        note = f"{_summary(transport.result)}; baseline {_summary(smc_result)}"
        ratio = Ratio(name, f"GPC-SMC, M {particles:,}", transport.seconds(), seconds, note=note)
        measurements.ratios.append(ratio)
    # Every iteration of GPC-MCMC takes the same time, and its search needs as many iterations as that of GPC-SMC.
    timed(partial(mcmc, seed=0, max_iterations=1))
    mcmc_result, seconds = timed(partial(mcmc, seed=1, max_iterations=_MCMC_ITERATIONS))
    per_iteration, iterations = seconds / len(mcmc_result.trace), len(smc_result.trace)
    for name, transport in ours.items():
        note = (
            f"{iterations} iterations, as many as GPC-SMC, x {per_iteration:.1f} s, the mean of "
            f"{len(mcmc_result.trace)}; effective sample size {mcmc_result.trace[-1].ess:.0f}"
        )
        baseline = f"GPC-MCMC, R {sizes.chain:,}"
        ratio = Ratio(name, baseline, transport.seconds(), iterations * per_iteration, note=note)
        measurements.ratios.append(ratio)
    return ours


class Repeated:
    """A compiled calibration that is timed again after each baseline, so that both meet the same machine."""

    def __init__(self, call: Callable[..., cb.Result]):
        self.call = call
        self.result: cb.Result = timed(partial(call, seed=0))[0]
        self.previous = self._times()

    def seconds(self) -> float:
        """Return the median time over seeds, of the previous timings and of as many new ones."""
        new = self._times()
        both, self.previous = [*self.previous, *new], new
        return median(both)

    def _times(self) -> list[float]:
        times: list[float] = []
        while not times or (sum(times) < _MIN_SECONDS and len(times) < _MAX_RUNS):
            times += [timed(partial(self.call, seed=seed))[1] for seed in range(3)]
        return times


def _summary(result: cb.Result) -> str:
    last = result.trace[-1]
    suffix = "" if result.converged else ", not converged"
    return f"eta {result.eta:.3f} after {last.iteration} iterations, effective sample size {last.ess:.0f}{suffix}"
