"""The loop: sample every row at eta, ask each whether its set covers the estimate, move eta, repeat.

Paper, figures 1 and 3: the two algorithms differ in the sampler alone. A stochastic search stops at the first coverage
near the level; a bracketing one, and any search's refinement, solves for eta on the rows' critical etas (see
`calibayes.curve`).
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from calibayes.assess import assess
from calibayes.checkpoint import Journal
from calibayes.cluster import agree, lost
from calibayes.compiled import compiled
from calibayes.curve import FEW_POINTS, POINTS, Coverage, Curve, grid_around, half_width, local_curve
from calibayes.estimate import point_estimate, points_along
from calibayes.found import UNKNOWN_ERROR, Found, concerns_of, standing
from calibayes.functions import handed
from calibayes.noise import parted
from calibayes.particles import Particles, pool, shift
from calibayes.precision import require_precision
from calibayes.progress import LiveLine
from calibayes.regions import Region
from calibayes.result import Record
from calibayes.samplers.base import Sampler, Snapshot
from calibayes.search import Bracket, Search
from calibayes.target import Target

_ROUGHLY = 1.5
"""A rough curve's answer is some 0.1 off in log eta: nearer than this times what is near enough it cannot lead."""
_RELOCATIONS = 4
_FARTHEST = 1e5
"""Learning rates are looked for within this factor of the first."""


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

    def run(self, live: LiveLine) -> Found:
        """The search, and the curve around its answer."""
        return self.guarded(lambda: self._search(live))

    def again(self, found: Found, region: Region, level: float, live: LiveLine) -> tuple["Loop", Found]:
        """Another region or level, from the particles that are there. Not audited again."""
        search = Bracket()
        loop = replace(self, region=region, level=level, trace=[], best=None, search=search)
        again = loop.guarded(lambda: loop.solve(found.state, found.sampled, search, self.max_iterations, live))
        again.concerns = [*standing(found.concerns), *again.concerns]
        if self.distrust:
            again.converged, again.outcome = False, self.distrust
        return loop, again

    def moved(self, found: Found, eta: float, live: LiveLine) -> Found | None:
        """What is found with the particles at another learning rate, mended; None if they did not get there."""
        state = self.sampler.move(self.target, found.state, eta, live.share)
        try:
            there = self._assess(self.sampler.mend(self.target, state, live.share), eta)
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
            found.curve = Curve.empty(found.coverage.n_rows, self.level)
        found.eta_se = found.curve.eta_se()
        if found.converged and not np.isfinite(found.eta_se):
            found.concerns.append(UNKNOWN_ERROR)
        return found

    def elsewhere(
        self, found: Found, target: Target, begin_key: PRNGKeyArray, init_key: PRNGKeyArray, live: LiveLine
    ) -> tuple[Coverage, list[str]]:
        """Coverage of the answer on other rows, and what to worry about there."""
        target = target.recentre(self.target.reference)
        start = self.sampler.begin_again(begin_key, target, self.start, found.eta, self.draws)
        loop = replace(self, target=target, trace=[], best=None)
        state = self.sampler.init(init_key, target, start, found.eta)
        state = self.sampler.mend(target, state, live.share)
        fresh = loop._assess(state, found.eta)
        # Averaged over snapshots, as the curve is.
        curve = loop._curve(fresh, self.sampler.snapshots(target, state))
        levels = curve.critical_levels[len(curve.etas) // 2]
        return Coverage(int((levels <= self.level).sum()), len(levels)), fresh.concerns

    def _search(self, live: LiveLine) -> Found:
        begin_key, init_key = parted(self.key, 2, 0)
        live.phase("start: posterior on the data")
        self.start = self._step("begin", lambda: self.sampler.begin(begin_key, self.target, self.eta, self.draws))
        self.target = self.start.target
        require_precision(self.target, self.start.particles, self.start.eta)
        live.phase("start: bootstrap rows")
        eta = self.eta
        if eta is None:
            guess = lambda: self.sampler.first_eta(self.target, self.start, self.region, self.level)
            eta = self.journal.note("first eta", guess)
        state = self._step("init", lambda: self.sampler.init(init_key, self.target, self.start, eta))
        if isinstance(self.search, Bracket):
            return self.solve(state, eta, self.search, self.max_iterations, live)
        found = self._approximate(state, eta, live)
        if found.converged and getattr(self.search, "refine", False):
            outcome = found.outcome
            found = self.solve(found.state, found.eta, Bracket.nearby(), _RELOCATIONS, live, record=False)
            if not found.converged:
                found.concerns.append(f"eta could not be refined: {found.outcome}")
            found.outcome, found.converged = outcome, True
        return found

    def _approximate(self, state: Any, eta: float, live: LiveLine) -> Found:
        """Stochastic approximation: until coverage comes within the tolerance, or the iteration nearest to that."""
        searching = _begun(self.search, handed(eta))
        for iteration in range(1, self.max_iterations + 1):
            found = self._assess(state, eta)
            self._record(found, live)
            if self.best is None or self._error(found) <= self._error(self.best):
                self.best = found
            if self._error(found) < self.tolerance:
                found = self._mended(found, live)
            if self._error(found) < self.tolerance:
                found.converged, found.outcome = True, f"coverage within {self.tolerance:g} of {self.level:g}"
                if found.reach.unmixed.sum() > 0.25 * (1 - self.level) * found.coverage.n_rows:
                    found.converged = False
                    found.outcome += ", but from particles that had not settled"
                return found
            if iteration < self.max_iterations:
                searching = _update(self.search, searching, handed(float(found.coverage)), handed(self.level))
                eta = float(searching.eta)
                live.phase(f"to eta {eta:.4g}")
                state = self._move(state, eta, live)
        assert self.best is not None
        self.best = self._mended(self.best, live)
        self.best.limited = True
        self.best.outcome = (
            f"stopped after {self.max_iterations} iterations, short of the tolerance {self.tolerance:g}"
            + self._way_out()
        )
        return self.best

    def solve(self, state: Any, eta: float, search: Bracket, limit: int, live: LiveLine, record: bool = True) -> Found:
        """The eta that the curve around it gives back, from rows that have been mended where they need it.

        Rough curves lead to where they say it is. If a fitted one says that it is not, fitted ones lead on. Where that
        takes no time the first is a fitted one, which leads on if it meets the level.
        """
        searching: Any = None
        first, quick = eta, self.journal.note("quick", lambda: self.sampler.quick(self.target, state))
        sure = quick
        for _ in range(limit):
            state = self._mend_at_once(state, eta, live) if sure else state
            found = self._assess(state, eta)
            if record:
                self._record(found, live)
            self.best = found if self.best is None else self.best
            live.phase("coverage curve")
            near = sure
            if not sure:
                answer, near = self._reading(found, _ROUGHLY * search.closeness, rough=True)
                if searching is not None or not near:
                    searching = self._updated(search, searching, found, answer)
            # Two etas so close that curves disagree between them: the fitted one decides.
            closed = searching is not None and searching.high < np.exp(search.closeness / 4) * searching.low
            if near or closed:
                found = found if sure else self._mended(found, live)
                state = found.state
                live.phase("coverage curve")
                answer, near = self._reading(found, np.inf if closed else search.closeness, rough=False)
                if near:
                    return self._answer(found, answer)
                if closed:
                    found.outcome = (
                        f"coverage does not fall steadily with eta: it meets {self.level:g} nowhere near {eta:.4g}"
                    )
                    return found
                searching = self._updated(search, searching if sure else None, found, answer)
                sure, quick = not quick or bool(0 < answer < np.inf), False
            eta = answer if searching.low < answer < searching.high else float(searching.eta)
            searching = eqx.tree_at(lambda s: s.eta, searching, handed(eta))
            if not first / _FARTHEST < eta < first * _FARTHEST:
                found.outcome = self._unreachable(found)
                return found
            live.phase(f"to eta {eta:.4g}")
            state = self._move(state, eta, live)
        found = self._mended(found, live, "last mend")
        found.outcome, found.limited = f"eta had not settled after {limit} iterations", True
        return found

    def _updated(self, search: Bracket, searching: Any, found: Found, answer: float) -> Any:
        searching = _begun(search, handed(found.eta)) if searching is None else searching
        side = _side(answer, found.eta, self.level, found.coverage)
        return jax.device_get(_update(search, searching, handed(side), handed(self.level)))

    def _step(self, name: str, compute: Callable[[], Any]) -> Any:
        return self.journal.step(name, compute, None if self.best is None else self.best.state)

    def _move(self, state: Any, eta: float, live: LiveLine) -> Any:
        return self._step("move", lambda: self.sampler.move(self.target, state, eta, live.share))

    def _mend(self, state: Any, live: LiveLine, name: str = "mend") -> Any:
        live.phase("maps, and rows whose weights fail")
        return self._step(name, lambda: self.sampler.mend(self.target, state, live.share))

    def _mend_at_once(self, state: Any, eta: float, live: LiveLine) -> Any:
        """Before anything is known of the state; which will be, if that is interrupted."""
        try:
            return self._mend(state, live)
        except KeyboardInterrupt as error:
            if self.best is None and not lost(error):
                self.best = self._assess(state, eta)
            raise

    def _mended(self, found: Found, live: LiveLine, name: str = "mend") -> Found:
        """The same with maps fitted and failing rows sampled, if there was anything to mend."""
        state = self._mend(found.state, live, name)
        if state is found.state:
            return found
        mended = self._assess(state, found.eta)
        self._record(mended, live)
        return mended

    def _reading(self, found: Found, closeness: float, rough: bool) -> tuple[float, bool]:
        """Eta by the curve around the particles, from one snapshot or all; and whether it is near to where they are."""
        read = lambda: self._curve_and_data(found, rough)
        found.curve, found.particles = self.journal.note("rough curve" if rough else "curve", read)
        self.best = found
        answer = found.curve.eta_hat()
        reach = np.log(found.curve.etas[-1] / found.eta)
        return answer, bool(0 < answer < np.inf and abs(np.log(answer / found.eta)) <= min(closeness, reach / 2))

    def _answer(self, found: Found, eta: float) -> Found:
        """What is found at the quantile of the rows' critical etas."""
        assert found.curve is not None
        particles = shift(found.particles, handed(eta - found.eta))
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
            coverage=Coverage(covered, found.coverage.n_rows),
            particles=particles,
            point=point,
            converged=True,
            outcome=outcome,
        )
        return self.best

    def _assess(self, state: Any, eta: float) -> Found:
        coverage, point, data, reach, *rest = self.journal.note("assess", lambda: self._assessment(state, eta))
        concerns, width, intervals = rest
        return Found(eta, coverage, point, data, state, eta, reach, list(concerns), width, intervals)

    def _assessment(self, state: Any, eta: float) -> tuple[Any, ...]:
        reach = self.sampler.reach(state, eta)
        short = int(reach.short.sum())
        if short:
            raise _OutOfReachError(f"{short} rows did not reach eta = {eta:.4g} within the sampler's cap on rungs")
        data = self.sampler.data(state)
        point = None if self.estimate == "mean" else self.point(data, eta)
        own = assess(self.target, state.particles, data, handed(eta), self.region, point, handed(self.level))
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

    def _error(self, found: Found) -> float:
        return abs(found.coverage - self.level)

    def _way_out(self) -> str:
        """A hint, if the search never came past the answer."""
        above = [record.coverage > self.level for record in self.trace]
        if all(above) or not any(above):
            larger = "larger" if all(above) else "smaller"
            return f": eta must be {larger} still; start there (eta_init=) or take longer steps (RobbinsMonro(gain=))"
        return ""

    def _unreachable(self, found: Found) -> str:
        most = max(self.trace, key=lambda record: record.coverage)
        if found.coverage < self.level <= most.coverage:
            return (
                f"coverage does not fall steadily with eta: it is {most.coverage:.3f} at eta = {most.eta:.3g}, and "
                f"{float(found.coverage):.3f} at {found.eta:.2g}"
            )
        if found.coverage < self.level:
            return (
                f"no learning rate from {found.eta:.2g} up covers at {self.level:g}: the sets cover "
                f"{most.coverage:.3f} at most, at eta = {most.eta:.3g}. The estimate may lie where the posterior has "
                'no mass: try estimate="mode", or another region'
            )
        return f"the sets still cover more than {self.level:g} at eta = {found.eta:.2g}: they do not shrink with eta"

    def _curve(self, found: Found, snapshots: Any, rough: bool = False) -> Curve:
        def points_of(data: Particles, etas: np.ndarray) -> Float[Array, "G K"] | None:
            if self.estimate == "mean":
                return None
            return points_along(self.estimate, self.key, self.target, data, found.eta, etas)

        etas = grid_around(found.eta, found.half_width, FEW_POINTS if rough else POINTS)
        populations = self.sampler.populations
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

    def _record(self, found: Found, live: LiveLine) -> None:
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
            rungs=found.reach.rungs,
            acceptance=found.reach.acceptance,
            seconds=time.perf_counter() - self.began,
            intervals=found.intervals,
        )


def _side(answer: float, eta: float, level: float, coverage: float) -> float:
    """A coverage that tells the bracket on which side of eta the answer is; the one there, if that is off the curve."""
    if answer == 0:
        return min(coverage, 0.99 * level)
    if answer == np.inf:
        return max(coverage, level)
    return level if answer >= eta else 0.99 * level


_begun = compiled(lambda search, eta: search.init(eta))
_update = compiled(lambda search, state, coverage, level: search.update(state, coverage, level))


class _OutOfReachError(Exception):
    """The sampler did not get to a learning rate."""
