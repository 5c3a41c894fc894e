"""A finished calibration, which can be asked again: another level or region, each parameter's own, fresh rows.

Whatever is asked starts from the particles that are there, and moves or fits them anew only where eta asks for it.
"""

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray, PyTree

from calibayes._backend.arguments import positive
from calibayes._backend.devices import like
from calibayes._backend.distributed import guarded
from calibayes._backend.functions import as_float
from calibayes._backend.warnings import CalibrationWarning, NotConvergedWarning
from calibayes._core.curve import Coverage, Curve
from calibayes._core.particles import Particles, shift
from calibayes._core.target import make_target
from calibayes._validate.checks import as_key, check_counts, check_draws, check_level
from calibayes.bootstrap import Bootstrap, drawn
from calibayes.io import versions
from calibayes.model import GibbsModel
from calibayes.progress import LiveLine
from calibayes.regions import Linear, Region, as_region, critical_levels
from calibayes.reparametrize import Reparametrization
from calibayes.result import Intervals, Result
from calibayes.samplers.initial import moved
from calibayes.solve import seek
from calibayes.solve.combinations import answered, curves
from calibayes.solve.found import UNKNOWN_ERROR, Found
from calibayes.solve.loop import Loop

_AT_ONCE = 256
"""Linear combinations whose levels on every row are held at a time."""
_ROUNDS = 6
_WORTH_A_MOVE = 3
"""So many combinations that are far from where the particles are have them moved there; fewer are done one by one."""
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
    counts: Float[np.ndarray, "B N"] | None
    """None if they were never stored."""
    settings: dict[str, Any]
    key: PRNGKeyArray
    view: Reparametrization | None = None
    """How parameters are reported; None as they were sampled."""


class _Own(NamedTuple):
    """What was found for one linear combination."""

    bounds: np.ndarray
    eta: float
    eta_se: float
    converged: bool
    message: str
    amiss: bool


@dataclass(frozen=True)
class Calibration:
    problem: Problem
    loop: Loop
    found: Found
    asked: dict[float, Intervals] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Each parameter's own interval, by level, once asked for."""

    def seen(self, view: Reparametrization, data: Any, settings: dict[str, Any]) -> "Calibration":
        """The same, with parameters reported in other coordinates, in which `data` are the data."""
        problem = replace(self.problem, view=view, data=data, settings=self.problem.settings | settings)
        return replace(self, problem=problem)

    def result(self) -> Result:
        """What is reported; with a warning, if there is something to worry about."""
        found, loop, problem = self.found, self.loop, self.problem
        if _amiss(found):
            kind = CalibrationWarning if found.converged else NotConvergedWarning
            warnings.warn(f"calibration: {found.message}.", kind, stacklevel=4)
        assert found.curve is not None
        repaired = np.full(found.coverage.n_replicates + 1, loop.fell_back)
        if found.reach.repaired is not None:
            repaired |= found.reach.repaired
        draws, risk = _draws(problem.key, loop.target.constrained(found.particles))
        result = Result(
            eta=found.eta,
            eta_se=found.eta_se,
            coverage=found.coverage,
            converged=found.converged,
            message=found.message,
            concerns=list(found.concerns),
            trace=loop.trace,
            draws=draws,
            risk=risk,
            curve=found.curve,
            estimate=np.asarray(found.point),
            level=loop.level,
            names=list(problem.names),
            repaired_replicates=np.flatnonzero(repaired[1:]),
            region=loop.region,
            model=problem.model,
            data=problem.data,
            counts=problem.counts,
            settings=problem.settings | {"sampler": loop.sampler, "search": loop.search},
            versions=versions(),
            calibration=self,
        )
        return result if problem.view is None else problem.view.result(result)

    @guarded()
    def at(self, level: float | None, region: str | Region | None) -> Result:
        """The calibration for another level or region."""
        level = self.loop.level if level is None else level
        check_level(level, self.found.coverage.n_replicates)
        if region is None:
            return self._at(level, self.loop.region).result()
        region = as_region(region)
        region.check(self.loop.target.dim)
        view = self.problem.view
        return self._at(level, region if view is None else view.region(region)).result()

    def _at(self, level: float, region: Region) -> "Calibration":
        with LiveLine(False, 1) as live:
            fresh = replace(self.loop, began=time.perf_counter())
            loop, found = seek.again(fresh, self.found, region, level, live)
        return replace(self, loop=loop, found=found)

    @guarded()
    def intervals(self, level: float | None, of: Any) -> Intervals:
        """Equal-tailed intervals of linear combinations, each at the eta that calibrates that interval."""
        level = self.loop.level if level is None else level
        check_level(level, self.found.coverage.n_replicates)
        if of is None and level in self.asked:
            return self.asked[level]
        dim, view = self.loop.target.dim, self.problem.view
        vectors = np.eye(dim) if of is None else np.asarray(of, float)
        if vectors.ndim != 2 or vectors.shape[1] != dim:
            raise ValueError(f"of must hold rows of {dim} numbers, one per parameter; got shape {vectors.shape}.")
        constants = np.zeros(len(vectors))
        if view is not None:
            vectors, constants = view.combinations(vectors)
        for vector in vectors:
            Linear(vector).check(dim)
        names = list(self.problem.names) if of is None else [f"row {i}" for i in range(len(vectors))]
        tails = [(1 - level) / 2, (1 + level) / 2]
        parts = [vectors[i : i + _AT_ONCE] for i in range(0, len(vectors), _AT_ONCE)]
        answers = [answer for part in parts for answer in self._near(level, part, tails)]
        for r in range(len(vectors)):
            answers[r] = answers[r] or self._own(level, vectors[r], tails)
        each = [answer for answer in answers if answer is not None]
        amiss = [f"{name}: {own.message}" for name, own in zip(names, each, strict=True) if own.amiss]
        if amiss:
            more = f" (and {len(amiss) - 1} others)" if len(amiss) > 1 else ""
            kind = CalibrationWarning if all(own.converged for own in each) else NotConvergedWarning
            warnings.warn(f"calibration of {amiss[0]}{more}.", kind, stacklevel=4)
        found = Intervals(
            names,
            level,
            bounds=np.array([own.bounds for own in each]).reshape(-1, 2) + constants[:, None],
            eta=np.array([own.eta for own in each]),
            eta_se=np.array([own.eta_se for own in each]),
            converged=np.array([own.converged for own in each], bool),
            messages=[own.message for own in each],
        )
        if of is None:
            self.asked[level] = found
        return found

    def _near(self, level: float, vectors: np.ndarray, tails: list[float]) -> list["_Own | None"]:
        """What particles near the joint eta can answer, and near some others; nothing, if they do not deserve trust."""
        found = self.found
        answers: list[_Own | None] = [None] * len(vectors)
        left = np.arange(len(vectors)) if found.converged else np.empty(0, int)
        for last in [False] * _ROUNDS + [True]:
            if not len(left):
                break
            own, data = curves(self.loop, found, level, vectors[left])
            wanted = []
            for r, curve in zip(left, own, strict=True):
                if answered(curve, found.sampled):
                    answers[r] = self._answer(found, level, vectors[r], curve, data, tails)
                else:
                    wanted.append(float(np.clip(curve.eta_hat(), curve.etas[0], curve.etas[-1])))
            left = np.array([r for r in left if answers[r] is None], int)
            if len(left) < _WORTH_A_MOVE or last:
                break
            with LiveLine(False, 1) as live:
                there = self.loop.moved(found, float(np.median(wanted)), live)
            if there is None:
                break
            found = there
        return answers

    def _answer(
        self, found: Found, level: float, vector: np.ndarray, curve: Curve, data: Particles, tails: list[float]
    ) -> "_Own":
        eta = curve.eta_hat()
        drawn = self.loop.target.constrained(shift(data, as_float(eta - found.sampled)))
        weights = np.asarray(drawn.weights[0], np.float64)
        values = vector @ np.asarray(drawn.theta[:, 0], np.float64)
        bounds = np.quantile(values, tails, weights=weights, method="inverted_cdf")
        error = curve.eta_se()
        known = np.isfinite(error) or UNKNOWN_ERROR in found.concerns
        concerns = [*found.concerns, *([] if known else [UNKNOWN_ERROR])]
        message = "; ".join([f"the {level:g} sets cover at {level:g}", *concerns])
        return _Own(bounds, eta, error, True, message, bool(concerns))

    def _own(self, level: float, vector: np.ndarray, tails: list[float]) -> "_Own":
        own = self._at(level, Linear(vector))
        draws = _draws(self.problem.key, own.loop.target.constrained(own.found.particles))[0]
        found = own.found
        assert found.curve is not None
        bounds = np.quantile(draws.astype(np.float64) @ vector, tails)
        return _Own(bounds, found.eta, found.eta_se, found.converged, found.message, _amiss(found))

    @guarded()
    def posterior(self, eta: float) -> Float[np.ndarray, "M K"]:
        """Draws of the posterior on the data at any learning rate."""
        draws = _draws(self.problem.key, self.loop.target.constrained(self._particles_at(eta)))[0]
        return draws if self.problem.view is None else self.problem.view.of(draws)

    @guarded()
    def level_of(self, theta: Any, eta: float | None) -> float:
        """The smallest level at which the set on the data holds a point."""
        point = np.asarray(theta, float)
        if point.shape != (self.loop.target.dim,) or not np.isfinite(point).all():
            raise ValueError(f"theta must be {self.loop.target.dim} finite numbers; got {theta!r}.")
        if self.problem.view is not None:
            point = self.problem.view.inside(point)
        eta = self.found.eta if eta is None else eta
        particles = self._particles_at(eta)
        data = self.loop.target.replicate(0)
        return float(critical_levels(data, particles, as_float(eta), self.loop.region, as_float(point))[0])

    def _particles_at(self, eta: float) -> Particles:
        """Particles on the data, moved by ASMC* if they are not at `eta`."""
        positive("eta", eta)
        found, key = self.found, jax.random.fold_in(self.problem.key, 6)
        if eta == found.eta:
            return found.particles
        particles, settled = moved(key, self.loop.target.replicate(0), found.particles, found.eta, float(eta))
        if not np.all(settled):
            message = f"the particles had not settled at eta = {eta:.4g}: what is said of the posterior there is rough."
            warnings.warn(message, CalibrationWarning, stacklevel=5)
        return particles

    @guarded()
    def validate(self, bootstrap: Any, seed: Any) -> Coverage:
        """Coverage at eta on rows that had no part in choosing it."""
        if bootstrap is None:
            bootstrap = self.problem.bootstrap
            if bootstrap is None:
                raise ValueError(
                    "validate needs to know how to draw fresh rows, and the counts of this calibration were given: "
                    "pass bootstrap=, as to calibrate."
                )
        n = len(jax.tree.leaves(self.problem.observations)[0])
        rows = check_counts(bootstrap, n, self.loop.target.n_replicates - 1)
        n_replicates = rows.n_replicates if isinstance(rows, Bootstrap) else len(rows)
        check_draws(self.loop.sampler.size(self.loop.target.dim), self.loop.target.dim, n_replicates)
        key = jax.random.fold_in(self.problem.key, 5) if seed is None else as_key(seed)
        row_key, begin_key, init_key = jax.random.split(key, 3)
        problem, known = self.problem, self.loop.target
        with like(known.mesh):
            target = make_target(problem.model, problem.observations, drawn(rows, row_key, n), known.dim)
        with LiveLine(False, 1) as live:
            coverage, concerns = self.loop.elsewhere(self.found, target, begin_key, init_key, live)
        if concerns:
            warnings.warn(f"on the fresh rows {'; '.join(concerns)}.", CalibrationWarning, stacklevel=4)
        return coverage


def _amiss(found: Found) -> bool:
    return not found.converged or bool(found.concerns)


def _draws(key: PRNGKeyArray, particles: Particles) -> tuple[Float[np.ndarray, "M K"], Float[np.ndarray, " M"]]:
    """Equally weighted draws, and their risk, by stratified resampling, a number for which the particles speak."""
    on_device = (particles.theta, particles.risk, particles.log_weights, jax.random.key_data(key))
    theta, risk, log_weights, words = jax.device_get(on_device)
    weights = np.exp(log_weights[0].astype(np.float64))
    # A quarter as many as particles, so that weights hardly repeat them.
    n = min(_REPORTED, max(len(weights) // 4, 100))
    rng = np.random.default_rng(words)
    cdf = np.cumsum(weights)
    ancestors = np.searchsorted(cdf, (np.arange(n) + rng.uniform(size=n)) / n * cdf[-1], side="right")
    picked = rng.permutation(np.minimum(ancestors, len(weights) - 1))
    # In double precision, in which their means are right however far from zero they are.
    return theta[:, 0].T[picked].astype(np.float64), risk[0, picked].astype(np.float64)
