"""Transport against the paper's two algorithms: whole calibrations on the same rows, for the same set."""

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import jax

import calibayes as cb
from benchmarks.speed.measured import Measured, Ratio, timed
from benchmarks.speed.problems import Data, Sizes, heart_disease, median_regression, rows_of

_TIMED = 2
"""Iterations of GPC-MCMC that are run."""
_LONG_ENOUGH, _MOST = 0.6, 15
"""Seconds, and calibrations, after which a median stands."""


def measure(sizes: Sizes) -> Measured:
    found = Measured(quick=sizes.quick)
    _one(median_regression(sizes.middle), sizes, found)
    svm = _one(heart_disease(), sizes, found)
    against, limit = ("one second", 1.0) if jax.default_backend() == "cpu" else ("50 ms", 0.05)
    (name, own), (_, audited) = svm.items()
    wanted = None if sizes.quick else 1.0
    note = f"without its audit; with it {audited.seconds():.2g} s"
    found.ratios.append(Ratio(name, against, own.seconds(), limit, wanted, note))
    return found


def _one(data: Data, sizes: Sizes, found: Measured) -> dict[str, "Repeated"]:
    """What was timed by transport is given back, to be timed again."""
    particles = sizes.particles
    options: dict[str, Any] = {"bootstrap": rows_of(len(data.y), sizes.rows), "progress": False}
    call = partial(cb.calibrate, data.model, (data.x, data.y), region="box", **options)
    ours = {
        f"transport, {data.shape}": Repeated(partial(call, sampler=cb.Transport(n_particles=particles))),
        f"transport with its audit, {data.shape}": Repeated(
            partial(call, sampler=cb.Transport(n_particles=particles, audit=True))
        ),
    }
    smc = partial(cb.gpc_smc, data.model, (data.x, data.y), n_particles=particles, **options)
    mcmc = partial(cb.gpc_mcmc, data.model, (data.x, data.y), n_draws=sizes.chain, **options)
    timed(partial(smc, seed=0, max_iterations=1))
    theirs, seconds = timed(partial(smc, seed=1))
    for name, own in ours.items():
        note = f"{_said(own.result)}; theirs {_said(theirs)}"
        found.ratios.append(Ratio(name, f"GPC-SMC, M {particles:,}", own.seconds(), seconds, note=note))
    # Every iteration of GPC-MCMC is the same work, and its search that of GPC-SMC.
    timed(partial(mcmc, seed=0, max_iterations=1))
    chains, two = timed(partial(mcmc, seed=1, max_iterations=_TIMED))
    once, iterations = two / len(chains.trace), len(theirs.trace)
    for name, own in ours.items():
        note = (
            f"{iterations} iterations, as GPC-SMC had, x {once:.1f} s, the mean of {len(chains.trace)}; effective size "
            f"{chains.trace[-1].ess:.0f}"
        )
        found.ratios.append(Ratio(name, f"GPC-MCMC, R {sizes.chain:,}", own.seconds(), iterations * once, note=note))
    return ours


class Repeated:
    """A calibration by transport, compiled, and timed again whenever another has been, for both to meet one machine."""

    def __init__(self, call: Callable[..., cb.Result]):
        self.call = call
        self.result: cb.Result = timed(partial(call, seed=0))[0]
        self.before = self._times()

    def seconds(self) -> float:
        """The median over seeds, of those timed before and of as many more."""
        after = self._times()
        both, self.before = [*self.before, *after], after
        return median(both)

    def _times(self) -> list[float]:
        """Short ones more often."""
        times: list[float] = []
        while not times or (sum(times) < _LONG_ENOUGH and len(times) < _MOST):
            times += [timed(partial(self.call, seed=seed))[1] for seed in range(3)]
        return times


def _said(result: cb.Result) -> str:
    last = result.trace[-1]
    ending = "" if result.converged else ", not converged"
    return f"eta {result.eta:.3f} in {last.iteration} iterations, effective size {last.ess:.0f}{ending}"
