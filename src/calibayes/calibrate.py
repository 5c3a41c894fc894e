"""The loop: sample every row at eta, ask each whether its set covers the estimate, move eta, repeat.

Paper, figures 1 and 3: the two algorithms differ in the sampler alone. `calibrate` takes any.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

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
    check_numbers,
    check_start,
)
from calibayes.curve import critical_levels, local_curve
from calibayes.estimate import ESTIMATES, point_estimate
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
from calibayes.target import make_target

SAMPLERS: dict[str, type[Sampler]] = {"auto": SMC, "smc": SMC, "mcmc": MCMC}
_DEFAULT_ROWS = 500
_COLLAPSED = 10.0


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
    region, sampler = as_region(region), _as_sampler(sampler)
    search = RobbinsMonro() if search is None else search
    region.check(observations.dim)
    check_draws(sampler.n_draws, observations.dim)
    if not callable(estimate) and estimate not in ESTIMATES:
        raise ValueError(f"estimate must be one of {', '.join(ESTIMATES)} or a function; got {estimate!r}.")
    keys = dict(
        zip(
            ("rows", "start", "check", "pilot", "walk", "point", "draws"),
            jax.random.split(as_key(seed), 7),
            strict=True,
        )
    )

    counts = np.asarray(rows.counts(keys["rows"], observations.n)) if isinstance(rows, Bootstrap) else rows
    target = make_target(model, observations.data, counts, observations.dim)
    sampler.check(target)
    start = check_start(target, draws, keys["check"])

    def point_at(particles: Particles, eta: float) -> Float[Array, " K"]:
        return point_estimate(estimate, keys["point"], target.row(0), particles, eta)

    eta = 1.0 if eta_init is None else float(eta_init)
    searching = search.init(as_float(eta))
    trace: list[Record] = []
    found: _Found | None = None
    outcome = f"stopped after {max_iterations} iterations, short of the tolerance {tolerance:g}"
    converged = False
    with LiveLine(progress, sampler.n_draws) as live:
        try:
            live.phase("start: posterior on the data")
            begun = pilot(keys["pilot"], target, eta, sampler.n_pilot, start)
            target = begun.target
            live.phase("start: bootstrap rows")
            state = sampler.init(keys["walk"], target, begun)
            for iteration in range(1, max_iterations + 1):
                reach = sampler.reach(state, eta)
                if bool(reach.short.any()):
                    outcome = (
                        f"{int(reach.short.sum())} rows did not reach eta = {eta:.4g} within the sampler's cap on rungs"
                    )
                    break
                particles = state.particles
                point = point_at(particles.row(0), eta)
                levels = critical_levels(target, particles, as_float(eta), region, point)
                coverage = Coverage(int((levels <= level).sum()), n_rows)
                trace.append(_record(iteration, eta, coverage, reach, particles, level, time.perf_counter() - began))
                live.iteration(iteration, eta, coverage, trace[-1].ess)
                if found is None or abs(coverage - level) <= abs(found.coverage - level):
                    found = _Found(eta, coverage, particles, point, reach)
                if abs(coverage - level) < tolerance:
                    converged, outcome = True, f"coverage within {tolerance:g} of {level:g}"
                    break
                if iteration == max_iterations:
                    break
                searching = search.update(searching, as_float(float(coverage)), level)
                eta = float(searching.eta)
                live.phase(f"to eta {eta:.4g}")
                state = sampler.move(target, state, eta, live.share)
        except KeyboardInterrupt:
            if found is None:
                raise
            outcome = f"interrupted in iteration {len(trace) + 1}; this is the best result so far"
        if found is None:
            raise RuntimeError(f"nothing to report: {outcome}.")
        live.phase("coverage curve")
        reweighted = point_at if callable(estimate) or estimate == "mean" else None
        curve = local_curve(target, found.particles, found.eta, region, reweighted, level, found.point)

    message = "; ".join([outcome, *_concerns(found, begun.forgot)])
    if message != outcome or not converged:
        warnings.warn(f"calibration: {message}.", CalibrationWarning, stacklevel=2)
    return Result(
        eta=found.eta,
        eta_se=curve.eta_se(),
        coverage=found.coverage,
        converged=converged,
        message=message,
        trace=trace,
        draws=np.asarray(_equal_draws(keys["draws"], found.particles.row(0))),
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
            "tolerance": tolerance,
            "max_iterations": max_iterations,
            "seed": seed,
            "bootstrap": bootstrap,
        },
    )


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


class _Found:
    """The iteration closest to the level so far."""

    def __init__(self, eta: float, coverage: Coverage, particles: Particles, point: Array, reach: Reach):
        self.eta, self.coverage, self.particles, self.point, self.reach = eta, coverage, particles, point, reach


def _as_sampler(sampler: str | Sampler) -> Sampler:
    if isinstance(sampler, Sampler):
        return sampler
    if sampler not in SAMPLERS:
        raise ValueError(f"sampler must be one of {', '.join(SAMPLERS)}, or an SMC(...) or MCMC(...); got {sampler!r}.")
    return SAMPLERS[sampler]()


def _record(
    iteration: int, eta: float, coverage: Coverage, reach: Reach, particles: Particles, level: float, seconds: float
) -> Record:
    return Record(
        iteration=iteration,
        eta=eta,
        coverage=float(coverage),
        ess=float(jnp.median(reach.ess)),
        ess_min=float(reach.ess.min()),
        rungs=reach.rungs,
        acceptance=reach.acceptance,
        seconds=seconds,
        intervals=np.asarray(_marginal_intervals(particles.row(0), as_float(level))),
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


def _concerns(found: _Found, pilot_forgot: bool) -> list[str]:
    """What a user should know of the sampling, in words."""
    reach = found.reach
    concerns = []
    collapsed = int((reach.ess < _COLLAPSED).sum())
    if collapsed:
        concerns.append(f"the weights collapsed on {collapsed} rows (effective size below {_COLLAPSED:g})")
    unmixed = int(reach.unmixed.sum())
    if unmixed or not pilot_forgot:
        concerns.append(f"the first particles had not mixed on {unmixed} rows: try more particles or another start")
    if reach.invalid:
        concerns.append(f"the loss was NaN at {reach.invalid} particles, which were given up")
    return concerns
