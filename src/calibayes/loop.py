"""The loop: sample every row at eta, ask each whether its set covers the estimate, move eta, repeat.

Paper, figures 1 and 3: the two algorithms differ in the sampler alone. Once the search has stopped, eta is refined on
the rows' critical etas (see `calibayes.curve`).
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from calibayes.curve import Curve, critical_levels, local_curve, shift
from calibayes.estimate import point_estimate
from calibayes.functions import as_float
from calibayes.particles import Particles, pool, quantile
from calibayes.progress import LiveLine
from calibayes.regions import Region
from calibayes.result import Coverage, Record
from calibayes.samplers.base import Reach, Sampler
from calibayes.samplers.start import pilot
from calibayes.search import Search
from calibayes.target import Target

_COLLAPSED = 10.0
_FEW = 100.0
_RELOCATIONS = 4


@dataclass
class Found:
    """An iteration's answer, or the refined one."""

    eta: float
    coverage: Coverage
    point: Float[Array, " K"]
    particles: Particles
    """On the data's row."""
    state: Any
    reach: Reach
    concerns: list[str]
    converged: bool = False
    outcome: str = ""

    @property
    def message(self) -> str:
        return "; ".join([self.outcome, *self.concerns])


@dataclass
class Loop:
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

    def run(self, live: LiveLine) -> tuple[Found, Curve]:
        """The search, then the curve around the last eta and the answer from it."""
        found, interrupted = self._search(live)
        live.phase("coverage curve")
        try:
            if interrupted:
                return found, self._curve(found, [found.state.particles])
            curve, data = self._curve_and_data(found)
            if not (found.converged and self.search.refine):
                return found, curve
            return self._refined(found, curve, data, live)
        except KeyboardInterrupt:
            if not interrupted:
                found = replace(found, converged=False, outcome="interrupted while refining eta; this is from before")
            return found, Curve.empty(found.coverage.n_rows, self.level)

    def _search(self, live: LiveLine) -> tuple[Found, bool]:
        """The iteration nearest to the level, and whether the user cut the search short."""
        best: Found | None = None
        interrupted = False
        outcome = f"stopped after {self.max_iterations} iterations, short of the tolerance {self.tolerance:g}"
        try:
            for found in self._iterations(live):
                if best is None or self._error(found) <= self._error(best):
                    best = found
                if self._error(found) < self.tolerance:
                    best.converged, outcome = True, f"coverage within {self.tolerance:g} of {self.level:g}"
                    break
            else:
                outcome += self._way_out()
        except KeyboardInterrupt:
            if best is None:
                raise
            interrupted = True
            outcome = f"interrupted in iteration {len(self.trace) + 1}; this is the best result so far"
        except _OutOfReachError as error:
            if best is None:
                raise RuntimeError(f"calibration: {error}.") from None
            outcome = str(error)
        assert best is not None
        best.outcome = outcome
        if best.converged and best.reach.unmixed.sum() > 0.25 * (1 - self.level) * best.coverage.n_rows:
            best.converged = False
            best.outcome += ", but from particles that had not settled"
        return best, interrupted

    def _iterations(self, live: LiveLine) -> Iterator[Found]:
        pilot_key, walk_key = jax.random.split(jax.random.fold_in(self.key, 0))
        live.phase("start: posterior on the data")
        begun = pilot(pilot_key, self.target, self.eta, self.sampler.n_pilot, self.start)
        _require_resolution(begun.particles)
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

    def _assess(self, state: Any, eta: float) -> Found:
        reach = self.sampler.reach(state, eta)
        short = int(reach.short.sum())
        if short:
            raise _OutOfReachError(f"{short} rows did not reach eta = {eta:.4g} within the sampler's cap on rungs")
        data = state.particles.row(0)
        point = self._point(data, eta)
        levels = np.asarray(critical_levels(self.target, state.particles, as_float(eta), self.region, point))
        coverage = Coverage(int((levels <= self.level).sum()), len(levels))
        return Found(eta, coverage, point, data, state, reach, _concerns(reach, int(np.isnan(levels).sum())))

    def _point(self, particles: Particles, eta: float) -> Float[Array, " K"]:
        key = jax.random.fold_in(self.key, 1)
        point = point_estimate(self.estimate, key, self.target.row(0), particles, eta)
        if point.shape != (self.target.dim,) or not np.isfinite(point).all():
            raise ValueError(f"estimate must be {self.target.dim} finite numbers; got {np.asarray(point)}.")
        return point

    def _error(self, found: Found) -> float:
        return abs(found.coverage - self.level)

    def _way_out(self) -> str:
        """A hint, if the search never came past the answer."""
        above = [record.coverage > self.level for record in self.trace]
        if all(above) or not any(above):
            larger = "larger" if all(above) else "smaller"
            return f": eta must be {larger} still; start there (eta_init=) or take longer steps (RobbinsMonro(gain=))"
        return ""

    def _curve(self, found: Found, snapshots: Iterable[Particles]) -> Curve:
        moving = callable(self.estimate) or self.estimate == "mean"
        point = self._point if moving else lambda *_: found.point
        return local_curve(self.target, snapshots, found.eta, self.region, point, self.level)

    def _curve_and_data(self, found: Found) -> tuple[Curve, Particles]:
        """The curve from snapshots of the particles, and those of the data's row, pooled."""
        data: list[Particles] = []

        def tapped() -> Iterator[Particles]:
            for particles in self.sampler.snapshots(self.target, found.state):
                data.append(particles.row(0))
                yield particles

        curve = self._curve(found, tapped())
        return curve, pool(data)

    def _refined(self, found: Found, curve: Curve, data: Particles, live: LiveLine) -> tuple[Found, Curve]:
        """The answer at the quantile of the rows' critical etas.

        While that lies in the outer half of the curve or beyond, the particles move towards it and the curve is drawn
        anew.
        """
        try:
            for _ in range(_RELOCATIONS):
                eta = float(np.clip(curve.eta_hat(), curve.etas[0], curve.etas[-1]))
                if abs(np.log(eta / found.eta)) <= np.log(curve.etas[-1] / found.eta) / 2:
                    break
                live.phase(f"to eta {eta:.4g}")
                state = self.sampler.move(self.target, found.state, eta, live.share)
                found = replace(self._assess(state, eta), converged=True, outcome=found.outcome)
                curve, data = self._curve_and_data(found)
        except _OutOfReachError as error:
            found.concerns.append(str(error))
        eta = curve.eta_hat()
        if not 0 < eta < np.inf:
            found.concerns.append("eta could not be refined: the coverage curve around it does not meet the level")
            return found, curve
        covered = int((curve.critical_etas() >= eta).sum())
        particles, _ = shift(data, as_float(eta - found.eta))
        coverage = Coverage(covered, found.coverage.n_rows)
        point = self._point(particles, eta)
        return replace(found, eta=eta, coverage=coverage, particles=particles, point=point), curve


_update = eqx.filter_jit(lambda search, state, coverage, level: search.update(state, coverage, level))


class _OutOfReachError(Exception):
    """The sampler did not get to a learning rate."""


def _require_resolution(particles: Particles) -> None:
    """Floats near the posterior must be much closer together than the posterior is wide."""
    theta = np.asarray(particles.theta[:, 0])
    coarse = np.spacing(np.abs(theta).max(1)) > 0.05 * theta.std(1)
    if coarse.any():
        k = int(np.argmax(coarse))
        raise ValueError(
            f"parameter {k} is near {theta[k].mean():.3g}, with a posterior only {theta[k].std():.2g} wide: too narrow "
            f"for {theta.dtype}. Centre y and the columns of X, or enable JAX's x64."
        )


def _record(iteration: int, found: Found, level: float, seconds: float) -> Record:
    sizes = found.reach.ess
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


def _concerns(reach: Reach, undefined: int) -> list[str]:
    """What a user should know of the sampling, in words."""
    concerns = []
    collapsed, typical = int((reach.ess < _COLLAPSED).sum()), float(np.median(reach.ess))
    if collapsed:
        concerns.append(f"the effective size collapsed on {collapsed} rows, to below {_COLLAPSED:g}")
    if typical < _FEW:
        concerns.append(
            f"the effective size of a row is only {typical:.0f}, which biases eta low: use more particles or draws"
        )
    unmixed = int(reach.unmixed.sum())
    if unmixed:
        concerns.append(f"the first particles had not settled on {unmixed} rows: try an eta_init nearer to the answer")
    if undefined:
        concerns.append(f"the region's level is NaN on {undefined} rows, which count as not covered")
    if reach.invalid:
        concerns.append(f"the loss was NaN at {reach.invalid} proposed particles, which were given up")
    return concerns
