"""A finished calibration, which can be asked again: another level or region, each parameter's own, fresh rows.

Whatever is asked starts from the particles that are there, and moves or fits them anew only where eta asks for it.
"""

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray, PyTree

from calibayes.bootstrap import Bootstrap
from calibayes.checks import CalibrationWarning, as_key, check_counts, check_eta, check_level
from calibayes.curve import Coverage, critical_levels
from calibayes.found import Found
from calibayes.functions import as_float
from calibayes.loop import Loop
from calibayes.model import GibbsModel
from calibayes.particles import Particles
from calibayes.progress import LiveLine
from calibayes.regions import Interval, Region, as_region
from calibayes.result import Intervals, Result
from calibayes.samplers.start import moved
from calibayes.target import make_target

_REPORTED = 4_000
"""Draws of the calibrated posterior that are handed over, at most."""


@dataclass(frozen=True)
class Problem:
    """What a user asked, checked."""

    model: GibbsModel
    data: Any
    """As the user gave them."""
    observations: PyTree[np.ndarray]
    names: Sequence[str]
    bootstrap: Bootstrap | None
    """What the rows were drawn from; None if they were given."""
    counts: Float[np.ndarray, "B N"]
    settings: dict[str, Any]
    key: PRNGKeyArray


@dataclass(frozen=True)
class Calibration:
    problem: Problem
    loop: Loop
    found: Found

    def result(self) -> Result:
        """What is reported; with a warning, if there is something to worry about."""
        found, loop, problem = self.found, self.loop, self.problem
        if not found.converged or found.concerns:
            warnings.warn(f"calibration: {found.message}.", CalibrationWarning, stacklevel=3)
        assert found.curve is not None
        repaired = np.full(found.coverage.n_rows + 1, loop.fell_back)
        if found.reach.repaired is not None:
            repaired |= found.reach.repaired
        return Result(
            eta=found.eta,
            eta_se=found.curve.eta_se(),
            coverage=found.coverage,
            converged=found.converged,
            message=found.message,
            trace=loop.trace,
            draws=_draws(problem.key, loop.target.constrained(found.particles)),
            curve=found.curve,
            estimate=np.asarray(found.point),
            level=loop.level,
            names=list(problem.names),
            repaired_rows=np.flatnonzero(repaired[1:]),
            region=loop.region,
            model=problem.model,
            data=problem.data,
            counts=problem.counts,
            settings=problem.settings | {"sampler": loop.sampler, "search": loop.search},
            calibration=self,
        )

    def at(self, level: float | None, region: str | Region | None) -> Result:
        """The calibration for another level or region."""
        level = self.loop.level if level is None else level
        check_level(level, self.found.coverage.n_rows)
        region = self.loop.region if region is None else as_region(region)
        region.check(self.loop.target.dim)
        return self._at(level, region).result()

    def _at(self, level: float, region: Region) -> "Calibration":
        with LiveLine(False, 1) as live:
            loop, found = replace(self.loop, began=time.perf_counter()).again(self.found, region, level, live)
        return replace(self, loop=loop, found=found)

    def intervals(self, level: float | None) -> Intervals:
        """Each parameter's equal-tailed interval from the posterior at the eta that calibrates that interval."""
        level = self.loop.level if level is None else level
        check_level(level, self.found.coverage.n_rows)
        tails = [(1 - level) / 2, (1 + level) / 2]
        each = [self._at(level, Interval(k)).result() for k in range(self.loop.target.dim)]
        return Intervals(
            list(self.problem.names),
            level,
            bounds=np.array([np.quantile(own.draws[:, k], tails) for k, own in enumerate(each)]),
            eta=np.array([own.eta for own in each]),
            eta_se=np.array([own.eta_se for own in each]),
            converged=np.array([own.converged for own in each]),
            messages=[own.message for own in each],
        )

    def posterior(self, eta: float) -> Float[np.ndarray, "M K"]:
        """Draws of the posterior on the data at any learning rate."""
        return _draws(self.problem.key, self.loop.target.constrained(self._particles_at(eta)))

    def level_of(self, theta: Any, eta: float | None) -> float:
        """The smallest level at which the set on the data holds a point."""
        point = np.asarray(theta, float)
        if point.shape != (self.loop.target.dim,) or not np.isfinite(point).all():
            raise ValueError(f"theta must be {self.loop.target.dim} finite numbers; got {theta!r}.")
        eta = self.found.eta if eta is None else eta
        particles = self._particles_at(eta)
        data = self.loop.target.row(0)
        return float(critical_levels(data, particles, as_float(eta), self.loop.region, as_float(point))[0])

    def _particles_at(self, eta: float) -> Particles:
        """Particles on the data, moved by ASMC* if they are not at `eta`."""
        check_eta("eta", eta)
        found, key = self.found, jax.random.fold_in(self.problem.key, 6)
        if eta == found.eta:
            return found.particles
        particles, settled = moved(key, self.loop.target.row(0), found.particles, found.eta, float(eta))
        if not np.all(settled):
            message = f"the particles had not settled at eta = {eta:.4g}: what is said of the posterior there is rough."
            warnings.warn(message, CalibrationWarning, stacklevel=4)
        return particles

    def validate(self, bootstrap: Any, seed: Any) -> Coverage:
        """Coverage at eta on rows that had no part in choosing it."""
        if bootstrap is None:
            bootstrap = self.problem.bootstrap
            if bootstrap is None:
                raise ValueError(
                    "validate needs to know how to draw fresh rows, and the counts of this calibration were given: "
                    "pass bootstrap=, as to calibrate."
                )
        n = self.problem.counts.shape[1]
        rows = check_counts(bootstrap, n, len(self.problem.counts))
        key = jax.random.fold_in(self.problem.key, 5) if seed is None else as_key(seed)
        row_key, begin_key, init_key = jax.random.split(key, 3)
        counts = np.asarray(rows.counts(row_key, n)) if isinstance(rows, Bootstrap) else rows
        target = make_target(self.problem.model, self.problem.observations, counts, self.loop.target.dim)
        with LiveLine(False, 1) as live:
            return self.loop.elsewhere(self.found, target, begin_key, init_key, live)


def _draws(key: PRNGKeyArray, particles: Particles) -> Float[np.ndarray, "M K"]:
    """Equally weighted draws by stratified resampling, a number for which the particles speak."""
    theta, weights = np.asarray(particles.theta[:, 0]), np.asarray(particles.weights[0], np.float64)
    # A quarter as many as particles, so that weights hardly repeat them.
    n = min(_REPORTED, max(len(weights) // 4, 100))
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).astype(np.uint32))
    cdf = np.cumsum(weights)
    ancestors = np.searchsorted(cdf, (np.arange(n) + rng.uniform(size=n)) / n * cdf[-1], side="right")
    return theta.T[rng.permutation(np.minimum(ancestors, len(weights) - 1))]
