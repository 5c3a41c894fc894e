"""The loop: sample every row at eta, ask each whether its set covers the estimate, move eta, repeat.

Paper, figures 1 and 3: the two algorithms differ in the sampler alone. `calibrate` takes any.
"""

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from calibayes.bootstrap import Bootstrap
from calibayes.checks import (
    CalibrationWarning,
    as_key,
    check_counts,
    check_data,
    check_draws,
    check_estimate,
    check_numbers,
    check_start,
)
from calibayes.curve import Curve, critical_levels, local_curve, shift
from calibayes.estimate import point_estimate
from calibayes.functions import as_float
from calibayes.model import GibbsModel
from calibayes.particles import Particles, quantile, resample
from calibayes.progress import LiveLine
from calibayes.regions import Region, as_region
from calibayes.result import Coverage, Record, Result
from calibayes.samplers import MCMC, SMC, Sampler
from calibayes.samplers.base import Reach
from calibayes.samplers.start import pilot
from calibayes.search import RobbinsMonro, Search
from calibayes.target import Target, make_target

SAMPLERS: dict[str, type[Sampler]] = {"auto": SMC, "smc": SMC, "mcmc": MCMC}
_DEFAULT_ROWS = 500
_COLLAPSED = 10.0
_FEW = 100.0


def calibrate(
    model: GibbsModel,
    data: Any,
    *,
    level: float = 0.95,
    region: str | Region = "hpd",
    sampler: str | Sampler = "auto",
    search: Search | None = None,
    bootstrap: Any = None,
    estimate: str | Callable[..., Any] = "mean",
    eta_init: float | None = None,
    tolerance: float = 0.005,
    max_iterations: int = 100,
    draws: Any = None,
    names: Sequence[str] | None = None,
    seed: Any,
    progress: bool = True,
) -> Result:
    """Choose eta so that credible sets at `level` cover as often as they say.

    Args:
        model: a `GibbsModel`.
        data: `(X, y)` for linear losses; else a pytree of arrays with observations leading.
        level: the credible level that coverage should meet.
        region: which set: `"hpd"`, `"ellipsoid"`, `"box"`, `"simultaneous"`, `regions.Interval(k)` or
            `regions.Functional(fn)`.
        sampler: `"smc"` (what `"auto"` takes), `"mcmc"`, or an `SMC(...)` or `MCMC(...)`.
        search: the rule for the next eta; `RobbinsMonro()` unless told.
        bootstrap: a number of rows (500 unless told), one of `calibayes.bootstrap`, or counts (B, N).
        estimate: what the sets should cover: `"mean"`, `"mode"`, `"minimizer"`, or `fn(draws, weights)`.
        eta_init: where the search starts; 1 unless told.
        tolerance: the search stops when coverage is closer than this to `level`.
        max_iterations: of the search.
        draws: (M, K) draws of the posterior at `eta_init` to start from; else the start is from the prior.
        names: of the parameters; else the columns of a data frame.
        seed: an int or a JAX key.
        progress: show a live line on a terminal or in a notebook.

    Interrupted (Ctrl-C), it returns the best result so far.
    """
    began = time.perf_counter()
    observations = check_data(model, data, names)
    rows = check_counts(bootstrap, observations.n, _DEFAULT_ROWS)
    n_rows = rows.n_rows if isinstance(rows, Bootstrap) else len(rows)
    check_numbers(level, tolerance, eta_init, max_iterations, n_rows)
    check_estimate(estimate)
    search = RobbinsMonro() if search is None else search
    if not isinstance(search, Search):
        raise TypeError(f"search must be a RobbinsMonro(...); got {search!r}.")
    region, sampler = as_region(region), _as_sampler(sampler)
    region.check(observations.dim)
    check_draws(sampler.n_draws, observations.dim)

    row_key, check_key, run_key = jax.random.split(as_key(seed), 3)
    counts = np.asarray(rows.counts(row_key, observations.n)) if isinstance(rows, Bootstrap) else rows
    target = make_target(model, observations.data, counts, observations.dim)
    sampler.check(target)
    run = _Run(
        target=target,
        start=check_start(target, draws, check_key),
        region=region,
        sampler=sampler,
        search=search,
        estimate=estimate,
        eta=1.0 if eta_init is None else float(eta_init),
        level=level,
        tolerance=tolerance,
        max_iterations=max_iterations,
        key=run_key,
        began=began,
    )
    with LiveLine(progress, sampler.n_draws) as live:
        found, curve = run.search_eta(live)
    if not found.converged or found.concerns:
        warnings.warn(f"calibration: {found.message}.", CalibrationWarning, stacklevel=2)
    return Result(
        eta=found.eta,
        eta_se=curve.eta_se(),
        coverage=found.coverage,
        converged=found.converged,
        message=found.message,
        trace=run.trace,
        draws=np.asarray(_equal_draws(run_key, found.particles)),
        curve=curve,
        estimate=np.asarray(found.point),
        level=level,
        names=observations.names,
        region=region,
        model=model,
        data=data,
        counts=counts,
        settings={
            "sampler": sampler,
            "search": search,
            "estimate": estimate,
            "bootstrap": bootstrap,
            "eta_init": run.eta,
            "tolerance": tolerance,
            "max_iterations": max_iterations,
            "seed": seed,
        },
    )


@dataclass
class _Found:
    """An iteration's answer, or the refined one."""

    eta: float
    coverage: Coverage
    point: Float[Array, " K"]
    particles: Particles
    """On the data's row."""
    state: Any
    reach: Reach
    converged: bool = False
    outcome: str = ""
    concerns: list[str] = field(default_factory=list)

    @property
    def message(self) -> str:
        return "; ".join([self.outcome, *self.concerns])


@dataclass
class _Run:
    """One calibration: everything chosen and checked, and the trace as it grows."""

    target: Target
    start: Float[Array, "M K"] | None
    region: Region
    sampler: Sampler
    search: Search
    estimate: str | Callable[..., Any]
    eta: float
    level: float
    tolerance: float
    max_iterations: int
    key: PRNGKeyArray
    began: float
    trace: list[Record] = field(default_factory=list)

    def search_eta(self, live: LiveLine) -> tuple[_Found, Curve]:
        """The loop over learning rates, then the curve around the last one and the answer from it."""
        best: _Found | None = None
        outcome = f"stopped after {self.max_iterations} iterations, short of the tolerance {self.tolerance:g}"
        try:
            for found in self._iterations(live):
                if best is None or self._error(found) <= self._error(best):
                    best = found
                if self._error(found) < self.tolerance:
                    best.converged, outcome = True, f"coverage within {self.tolerance:g} of {self.level:g}"
                    break
        except KeyboardInterrupt:
            if best is None:
                raise
            outcome = f"interrupted in iteration {len(self.trace) + 1}; this is the best result so far"
        except _OutOfReachError as error:
            if best is None:
                raise RuntimeError(f"calibration: {error}.") from None
            outcome = str(error)
        assert best is not None
        best.outcome, best.concerns = outcome, _concerns(best.reach)
        live.phase("coverage curve")
        try:
            curve = self._curve(best, self.sampler.snapshots(self.target, best.state))
            return self._refined(best, curve, live) if best.converged and self.search.refine else (best, curve)
        except KeyboardInterrupt:
            best.converged, best.outcome = False, "interrupted while eta was refined; this is the result before"
            return best, self._curve(best, [best.state.particles])

    def _iterations(self, live: LiveLine) -> Iterator[_Found]:
        pilot_key, walk_key = jax.random.split(self.key)
        live.phase("start: posterior on the data")
        begun = pilot(pilot_key, self.target, self.eta, self.sampler.n_pilot, self.start)
        self.target = begun.target
        live.phase("start: bootstrap rows")
        state = self.sampler.init(walk_key, self.target, begun)
        eta, searching = self.eta, self.search.init(as_float(self.eta))
        for iteration in range(1, self.max_iterations + 1):
            found = self._assess(state, eta)
            self.trace.append(_record(iteration, found, self.level, time.perf_counter() - self.began))
            live.iteration(iteration, eta, found.coverage, self.trace[-1].ess)
            yield found
            if iteration < self.max_iterations:
                searching = _update(self.search, searching, as_float(float(found.coverage)), as_float(self.level))
                eta = float(searching.eta)
                live.phase(f"to eta {eta:.4g}")
                state = self.sampler.move(self.target, state, eta, live.share)

    def _assess(self, state: Any, eta: float) -> _Found:
        reach = self.sampler.reach(state, eta)
        short = int(reach.short.sum())
        if short:
            raise _OutOfReachError(f"{short} rows did not reach eta = {eta:.4g} within the sampler's cap on rungs")
        data = state.particles.row(0)
        point = self._point(data, eta)
        levels = np.asarray(critical_levels(self.target, state.particles, as_float(eta), self.region, point))
        return _Found(eta, Coverage(int((levels <= self.level).sum()), len(levels)), point, data, state, reach)

    def _point(self, particles: Particles, eta: float) -> Float[Array, " K"]:
        return point_estimate(self.estimate, self.key, self.target.row(0), particles, eta)

    def _error(self, found: _Found) -> float:
        return abs(found.coverage - self.level)

    def _curve(self, found: _Found, snapshots: Iterable[Particles]) -> Curve:
        moving = callable(self.estimate) or self.estimate == "mean"
        point = self._point if moving else lambda *_: found.point
        return local_curve(self.target, snapshots, found.eta, self.region, point, self.level)

    def _refined(self, found: _Found, curve: Curve, live: LiveLine) -> tuple[_Found, Curve]:
        """The answer at the quantile of the rows' critical etas; as it was, if the curve does not hold it.

        Where that lies in the outer half of the curve, the particles move there and the curve is drawn anew.
        """
        eta = curve.eta_hat()
        if 0 < eta < np.inf and abs(np.log(eta / found.eta)) > np.log(curve.etas[-1] / found.eta) / 2:
            live.phase(f"to eta {eta:.4g}")
            state = self.sampler.move(self.target, found.state, eta, live.share)
            moved = self._assess(state, eta)
            found = replace(moved, converged=True, outcome=found.outcome, concerns=_concerns(moved.reach))
            curve = self._curve(found, self.sampler.snapshots(self.target, state))
            eta = curve.eta_hat()
        if not 0 < eta < np.inf:
            return found, curve
        covered = int((curve.critical_etas() >= eta).sum())
        particles, _ = shift(found.particles, as_float(eta - found.eta))
        point = self._point(particles, eta)
        coverage = Coverage(covered, found.coverage.n_rows)
        return replace(found, eta=eta, coverage=coverage, particles=particles, point=point), curve


_update = eqx.filter_jit(lambda search, state, coverage, level: search.update(state, coverage, level))


class _OutOfReachError(Exception):
    """The sampler did not get to a learning rate."""


def gpc_smc(model: GibbsModel, data: Any, *, seed: Any, n_particles: int = 1000, **options: Any) -> Result:
    """Generalized posterior calibration by sequential Monte Carlo (figure 3), with the paper's settings.

    `options` are those of `calibrate`. The paper takes 1,000 particles for quantile regression, 4,000 for the SVM.
    """
    return calibrate(model, data, seed=seed, **_paper(options, SMC(n_particles=n_particles)))


def gpc_mcmc(model: GibbsModel, data: Any, *, seed: Any, n_draws: int = 20_000, **options: Any) -> Result:
    """Generalized posterior calibration by MCMC (figure 1; Syring and Martin 2019), with the paper's settings.

    `options` are those of `calibrate`. For the SVM the paper passes `sampler=MCMC(kernel=kernels.PolsonScott())`.
    """
    return calibrate(model, data, seed=seed, **_paper(options, MCMC(n_draws=n_draws)))


def _paper(options: dict[str, Any], sampler: Sampler) -> dict[str, Any]:
    defaults = {
        "sampler": sampler,
        "search": RobbinsMonro("kesten"),
        "region": "box",
        "bootstrap": 500,
        "eta_init": 1.0,
    }
    return defaults | options


def _as_sampler(sampler: str | Sampler) -> Sampler:
    if isinstance(sampler, Sampler):
        return sampler
    if sampler not in SAMPLERS:
        raise ValueError(f"sampler must be one of {', '.join(SAMPLERS)}, or an SMC(...) or MCMC(...); got {sampler!r}.")
    return SAMPLERS[sampler]()


def _record(iteration: int, found: _Found, level: float, seconds: float) -> Record:
    sizes = np.asarray(found.reach.ess)
    return Record(
        iteration=iteration,
        eta=found.eta,
        coverage=float(found.coverage),
        ess=float(np.median(sizes)),
        ess_min=float(sizes.min()),
        rungs=found.reach.rungs,
        acceptance=found.reach.acceptance,
        seconds=seconds,
        intervals=np.asarray(_marginal_intervals(found.particles, as_float(level))),
    )


@jax.jit
def _marginal_intervals(particles: Particles, level: Float[Array, ""]) -> Float[Array, "K 2"]:
    theta = particles.theta[:, 0]
    weights = jnp.broadcast_to(particles.weights, theta.shape)
    tails = [jnp.full(len(theta), tail) for tail in (0.5 * (1 - level), 0.5 * (1 + level))]
    return jnp.stack([quantile(theta, weights, tail) for tail in tails], -1)


@jax.jit
def _equal_draws(key: PRNGKeyArray, particles: Particles) -> Float[Array, "M K"]:
    return resample(key[None], particles, jnp.ones(1, bool)).theta[:, 0].T


def _concerns(reach: Reach) -> list[str]:
    """What a user should know of the sampling, in words."""
    concerns = []
    collapsed = int((reach.ess < _COLLAPSED).sum())
    if collapsed:
        concerns.append(f"the weights collapsed on {collapsed} rows (effective size below {_COLLAPSED:g})")
    typical = float(np.median(reach.ess))
    if typical < _FEW:
        concerns.append(
            f"the effective size of a row is only {typical:.0f}, which biases eta low: use more particles or draws"
        )
    unmixed = int(reach.unmixed.sum())
    if unmixed:
        concerns.append(f"the first particles had not settled on {unmixed} rows: try more particles or another start")
    if reach.invalid:
        concerns.append(f"the loss was NaN at {reach.invalid} particles, which were given up")
    return concerns
