"""One calibration at a learning rate: every row sampled there, and asked whether its set covers the estimate.

Where to go from there is said in `calibayes.solve.seek`.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from calibayes._backend.distributed import agree, lost
from calibayes._backend.functions import host_array
from calibayes._core.curve import Coverage, Curve
from calibayes._core.particles import Particles, pool, shift
from calibayes._core.target import Target
from calibayes.progress import LiveLine
from calibayes.regions import Region
from calibayes.result import Record
from calibayes.samplers.base import Sampler, Snapshot
from calibayes.solve.assess import assess
from calibayes.solve.checkpoint import Journal
from calibayes.solve.curve import FEW_POINTS, POINTS, grid_around, half_width, local_curve
from calibayes.solve.estimate import point_estimate, points_along
from calibayes.solve.found import UNKNOWN_ERROR, Found, concerns_of, standing
from calibayes.solve.search import Search


@dataclass
class Loop:
    """One calibration: everything chosen and checked, and the trace as it grows."""

    target: Target
    draws: Float[Array, "M K"] | None
    region: Region
    sampler: Sampler
    search: Search
    estimate: str | Callable[..., Any]
    eta: float | None
    level: float
    tolerance: float
    max_iterations: int
    key: PRNGKeyArray
    began: float
    trace: list[Record] = field(default_factory=list)
    start: Any = None
    """What the sampler began with."""
    best: Found | None = None
    fell_back: bool = False
    distrust: str = ""
    """Why nothing found on these particles is to be relied on, if so."""
    interrupted: bool = False
    journal: Journal = field(default_factory=Journal)
    """Where steps are written down that take long, to be had again if the run is."""

    def moved(self, found: Found, eta: float, live: LiveLine) -> Found | None:
        """What is found with the particles at another learning rate, mended; None if they did not get there."""
        state = self.sampler.move(self.target, found.state, eta, live.share)
        try:
            there = self.assess(self.sampler.refine(self.target, state, live.share), eta)
        except _OutOfReachError:
            return None
        there.concerns = [*standing(found.concerns), *there.concerns]
        return there

    def guarded(self, search: Callable[[], Found]) -> Found:
        """What a search finds; what it had, if it was cut short."""
        try:
            found = search()
            if found.curve is None:
                at_hand = [Snapshot(found.particles, found.state.particles)]
                found.curve = self.journal.note("last curve", lambda: self._curve(found, at_hand))
        except KeyboardInterrupt as error:
            if self.best is None or lost(error):
                raise
            self.interrupted = True
            found = replace(self.best, converged=False)
            found.outcome = f"interrupted after iteration {len(self.trace)}; this is the best result so far"
        except _OutOfReachError as error:
            if self.best is None:
                raise RuntimeError(f"calibration: {error}.") from None
            found = replace(self.best, converged=False, outcome=str(error))
        if found.curve is None:
            found.curve = Curve.empty(found.coverage.n_replicates, self.level)
        found.eta_se = found.curve.eta_se()
        if found.converged and not np.isfinite(found.eta_se):
            found.concerns.append(UNKNOWN_ERROR)
        return found

    def elsewhere(
        self, found: Found, target: Target, begin_key: PRNGKeyArray, init_key: PRNGKeyArray, live: LiveLine
    ) -> tuple[Coverage, list[str]]:
        """Coverage of the answer on other rows, and what to worry about there."""
        target = target.recentre(self.target.reference)
        start = self.sampler.draw_initial_again(begin_key, target, self.start, found.eta, self.draws)
        loop = replace(self, target=target, trace=[], best=None)
        state = self.sampler.init(init_key, target, start, found.eta)
        state = self.sampler.refine(target, state, live.share)
        fresh = loop.assess(state, found.eta)
        # Averaged over snapshots, as the curve is.
        curve = loop._curve(fresh, self.sampler.snapshots(target, state))
        levels = curve.critical_levels[len(curve.etas) // 2]
        return Coverage(int((levels <= self.level).sum()), len(levels)), fresh.concerns

    def step(self, name: str, compute: Callable[[], Any]) -> Any:
        """What takes long: written down."""
        return self.journal.step(name, compute, None if self.best is None else self.best.state)

    def move(self, state: Any, eta: float, live: LiveLine) -> Any:
        """The state at another learning rate."""
        return self.step("move", lambda: self.sampler.move(self.target, state, eta, live.share))

    def refine(self, state: Any, live: LiveLine, name: str = "mend") -> Any:
        """The state with maps fitted and failing rows sampled."""
        live.phase("maps, and rows whose weights fail")
        return self.step(name, lambda: self.sampler.refine(self.target, state, live.share))

    def mend_at_once(self, state: Any, eta: float, live: LiveLine) -> Any:
        """Before anything is known of the state; which will be, if that is interrupted."""
        try:
            return self.refine(state, live)
        except KeyboardInterrupt as error:
            if self.best is None and not lost(error):
                self.best = self.assess(state, eta)
                self.record(self.best, live)
            raise

    def mended(self, found: Found, live: LiveLine, name: str = "mend") -> Found:
        """The same with maps fitted and failing rows sampled, if there was anything to mend."""
        state = self.refine(found.state, live, name)
        if state is found.state:
            return found
        mended = self.assess(state, found.eta)
        self.record(mended, live)
        return mended

    def reading(self, found: Found, closeness: float, rough: bool) -> tuple[float, bool]:
        """Eta by the curve around the particles, from one snapshot or all; and whether it is near to where they are."""
        read = lambda: self._curve_and_data(found, rough)
        found.curve, found.particles = self.journal.note("rough curve" if rough else "curve", read)
        self.best = found
        answer = found.curve.eta_hat()
        reach = np.log(found.curve.etas[-1] / found.eta)
        return answer, bool(0 < answer < np.inf and abs(np.log(answer / found.eta)) <= min(closeness, reach / 2))

    def answer(self, found: Found, eta: float) -> Found:
        """What is found at the quantile of the rows' critical etas."""
        assert found.curve is not None
        particles = shift(found.particles, host_array(eta - found.eta))
        point = self.point(particles, eta)
        covered = int((found.curve.critical_etas() >= eta).sum())
        self._require_point(np.asarray(point))
        outcome = f"the {self.level:g} sets cover at {self.level:g}"
        if found.reach.repaired is not None and found.reach.repaired.any():
            n = int(found.reach.repaired.sum())
            these, were = ("row", "was") if n == 1 else ("rows", "were")
            outcome += f"; {n} {these} whose weights had failed {were} sampled by ASMC*"
        self.best = replace(
            found,
            eta=eta,
            coverage=Coverage(covered, found.coverage.n_replicates),
            particles=particles,
            point=point,
            converged=True,
            outcome=outcome,
        )
        return self.best

    def assess(self, state: Any, eta: float) -> Found:
        """Coverage where the particles are, and what else is known of them."""
        coverage, point, data, reach, *rest = self.journal.note("assess", lambda: self._assessment(state, eta))
        concerns, width, intervals = rest
        return Found(eta, coverage, point, data, state, eta, reach, list(concerns), width, intervals)

    def _assessment(self, state: Any, eta: float) -> tuple[Any, ...]:
        reach = self.sampler.info(state, eta)
        short = int(reach.not_reached.sum())
        if short:
            raise _OutOfReachError(f"{short} rows did not reach eta = {eta:.4g} within the sampler's cap on rungs")
        data = self.sampler.data(state)
        point = None if self.estimate == "mean" else self.point(data, eta)
        own = assess(self.target, state.particles, data, host_array(eta), self.region, point, host_array(self.level))
        point = own.point
        levels, at, invalid, variance, intervals = jax.device_get(own)
        self._require_point(at)
        reach = reach if reach.invalid is not None else reach._replace(invalid=int(invalid))
        levels = levels[1:]
        coverage = Coverage(int((levels <= self.level).sum()), len(levels))
        concerns = concerns_of(reach, int(np.isnan(levels).sum()))
        return coverage, point, data, reach, concerns, half_width(eta, float(variance)), intervals

    def point(self, particles: Particles, eta: float) -> Float[Array, " K"]:
        point = point_estimate(self.estimate, self.key, self.target, particles, eta)
        if point.shape != (self.target.dim,):
            self._require_point(np.asarray(point))
        return point

    def _require_point(self, point: Float[np.ndarray, "..."]) -> None:
        if point.shape != (self.target.dim,) or not np.isfinite(point).all():
            raise ValueError(f"estimate must be {self.target.dim} finite numbers; got {point}.")

    def _curve(self, found: Found, snapshots: Any, rough: bool = False) -> Curve:
        def points_of(data: Particles, etas: np.ndarray) -> Float[Array, "G K"] | None:
            if self.estimate == "mean":
                return None
            return points_along(self.estimate, self.key, self.target, data, found.eta, etas)

        etas = grid_around(found.eta, found.half_width, FEW_POINTS if rough else POINTS)
        populations = self.sampler.n_populations
        return local_curve(self.target, snapshots, found.eta, etas, self.region, points_of, self.level, populations)

    def _curve_and_data(self, found: Found, rough: bool) -> tuple[Curve, Particles]:
        """The curve from snapshots of the particles, and those on the data, pooled."""
        data: list[Particles] = []

        def tapped() -> Iterator[Snapshot]:
            for snapshot in islice(self.sampler.snapshots(self.target, found.state), 1 if rough else None):
                if not data or snapshot.data is not data[-1]:
                    data.append(snapshot.data)
                yield snapshot

        curve = self._curve(found, tapped(), rough)
        return curve, data[0] if len(data) == 1 else pool(data)

    def record(self, found: Found, live: LiveLine) -> None:
        """An iteration goes into the trace; all processes must have seen the same."""
        record = self.journal.note("record", lambda: self._record_of(found))
        # What is had again brings its time with it.
        self.began = min(self.began, time.perf_counter() - record.seconds)
        self.trace.append(record)
        agree({"eta": repr(record.eta), "coverage": repr(record.coverage), "effective size": repr(record.ess)})
        live.iteration(record.iteration, record.eta, record.coverage, record.ess)

    def _record_of(self, found: Found) -> Record:
        sizes = found.reach.ess
        return Record(
            iteration=len(self.trace) + 1,
            eta=found.eta,
            coverage=float(found.coverage),
            ess=float(np.median(sizes)),
            ess_min=float(sizes.min()),
            steps=found.reach.steps,
            acceptance=found.reach.acceptance,
            seconds=time.perf_counter() - self.began,
            intervals=found.intervals,
        )


class _OutOfReachError(Exception):
    """The sampler did not get to a learning rate."""
