"""The solver: sample at eta, ask every replicate whether its credible set covers the estimate, move eta, repeat.

Tanaka (2024), figures 1 and 3: the two algorithms differ in the sampler only. In outline:

    initial = sampler.draw_initial(...)                     posterior on the data
    state   = sampler.init(..., eta)                        particles on every replicate
    repeat
        iterate = observe(state, what the search asks for)  coverage, or the coverage curve around eta
        search  = rule.update(search, evaluation)             the next eta, or a status
        state   = sampler.move(state, search.eta)
"""

import time
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from calibayes._backend.distributed import agree, processes_out_of_sync
from calibayes._backend.rng import split_key
from calibayes._backend.time_limit import TimeLimitError, time_limit
from calibayes._core.curve import Curve
from calibayes._core.precision import PrecisionCheck, PrecisionError, is_double
from calibayes._core.status import Code, Diagnostic, Severity, Status, worst
from calibayes.samplers.base import SamplerState
from calibayes.solve.checkpoint import Checkpoint
from calibayes.solve.crossings import describe_crossings
from calibayes.solve.iterate import Iterate, TraceRecord
from calibayes.solve.problem import CoverageProblem, NotReachedError
from calibayes.solve.progress import Progress
from calibayes.solve.search import Evaluation, Request, Search, SearchState


@dataclass(frozen=True)
class SolverConfig:
    """Constants of the solver."""

    slope_range: float = 0.7
    """Distance in log eta up to which learning rates of the trace show the slope of the coverage at the answer: a
    factor of two, over which the coverage of a normal posterior is close to linear."""


CONFIG = SolverConfig()

STOPS = (KeyboardInterrupt, TimeLimitError)
"""Errors that end a search with the best iterate so far."""
_REFINED = (Request.REFINED_CURVE, Request.REFINED_COVERAGE)
"""Requests before which the sampler refines its state."""


@dataclass(frozen=True)
class SolverState:
    """Everything that the search needs to continue; checkpoints store it after every step.

    Attributes
    ----------
    state : object
        State of the sampler.
    eta : float
        Learning rate of `state`.
    search : SearchState
        State of the search rule.
    trace : tuple of TraceRecord
        Learning rates visited so far.
    current : Iterate or None
        What is known at `eta`.
    best : Iterate or None
        The iterate whose coverage is nearest to the level.
    n_visited : int
        Number of learning rates visited; asking again at the same one counts, too.
    stuck : bool
        Whether the search rule asked for the same learning rate and the same quantity twice.
    seconds : float
        Seconds since the start of the calibration.
    """

    state: SamplerState
    eta: float
    search: SearchState
    trace: tuple[TraceRecord, ...] = ()
    current: Iterate | None = None
    best: Iterate | None = None
    n_visited: int = 1
    stuck: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class Solution:
    """The answer of a search: the problem it solved, the final iterate (with a status) and the trace."""

    problem: CoverageProblem
    iterate: Iterate
    trace: tuple[TraceRecord, ...]


@dataclass
class Solver:
    """The search for one calibration, with the limits that the user set.

    Attributes
    ----------
    rule : Search
        Rule for the next learning rate.
    tolerance : float
        Tolerance on coverage, for rules that use it.
    max_iterations : int
        Maximum number of learning rates to visit.
    checkpoint : Checkpoint
        Where progress is saved.
    progress : Progress
        Where progress is displayed.
    started : float
        `time.perf_counter()` at the start of the calibration.
    precision : PrecisionCheck or None
        Check of the float type. Default: None, no check.
    """

    rule: Search
    tolerance: float
    max_iterations: int
    checkpoint: Checkpoint
    progress: Progress
    started: float
    precision: PrecisionCheck | None = None
    latest: SolverState | None = field(default=None, init=False)
    """The state after the last evaluation, from which an interrupted search takes its result."""

    def solve(self, problem: CoverageProblem, eta: float | None) -> Solution:
        """Draw from the posterior on the data, sample every replicate, and search for the learning rate."""
        return self.solve_from_initial(self.draw_initial(problem, eta), eta)

    def draw_initial(self, problem: CoverageProblem, eta: float | None) -> CoverageProblem:
        """Return the problem with draws from the posterior on the data."""
        initial_key, _ = split_key(problem.key, 2, 0)
        sampler = problem.sampler
        self.progress.phase("initial draws on the data")
        initial = self.checkpoint.stage(
            "initial", lambda: sampler.draw_initial(initial_key, problem.target, eta, problem.draws)
        )
        problem = replace(problem, target=initial.target, initial=initial)
        if self.precision is not None:
            self.precision.check_initial(problem.target, initial.particles, initial.eta)
        return problem

    def solve_from_initial(self, problem: CoverageProblem, eta: float | None) -> Solution:
        """Sample every replicate of a problem with initial draws, and search for the learning rate from `eta`."""
        _, init_key = split_key(problem.key, 2, 0)
        sampler, initial = problem.sampler, problem.initial
        assert initial is not None
        self.progress.phase("bootstrap replicates")

        def start() -> SolverState:
            first = eta
            if first is None:
                first = sampler.initial_eta(problem.target, initial, problem.region, problem.level)
            return self.start_at(sampler.init(init_key, problem.target, initial, first), first)

        return self.search(problem, self.checkpoint.stage("search", start), "search", "solution")

    def start_at(self, state: SamplerState, eta: float) -> SolverState:
        """Return the solver's state before its first evaluation, with the sampler's state at `eta`."""
        return SolverState(state, eta, self.rule.init(eta), seconds=self._elapsed())

    def search(self, problem: CoverageProblem, solver_state: SolverState, stage: str, result_stage: str) -> Solution:
        """Run the search from a state to its end; `stage` and `result_stage` are its names in the checkpoint.

        An interrupt, the time limit, or a learning rate that the sampler cannot reach, ends it with the best iterate so
        far.
        """
        # A continued run counts the seconds of its earlier part.
        self.started = min(self.started, time.perf_counter() - solver_state.seconds)
        if self.checkpoint.allows_more_iterations and _stopped_at_limit(self.checkpoint.get(result_stage)):
            self.checkpoint.discard(result_stage)
        if (finished := self.checkpoint.get(result_stage)) is not None:
            iterate, trace = finished
            return Solution(problem, iterate, trace)
        self.latest = solver_state
        try:
            while solver_state.search.status is None and not self._at_limit(solver_state):
                solver_state = self._step(problem, solver_state)
                self.checkpoint.put(stage, solver_state)
            solver_state, iterate = self._conclude(problem, solver_state)
            iterate = check_rounding(self.precision, problem, iterate, repeatable=not is_double())
            iterate = self.finish(problem, iterate, solver_state.trace)
        except STOPS as error:
            if self.latest.best is None or processes_out_of_sync(error):
                raise
            with time_limit(None):
                iterate = self.finish(problem, stopped(self.latest.best, error), self.latest.trace)
            return Solution(problem, iterate, self.latest.trace)
        except NotReachedError as error:
            if solver_state.best is None:
                raise RuntimeError(f"calibration: {error}.") from None
            finding = Diagnostic(Code.NOT_REACHED, Severity.ERROR, 0, f"{error}.")
            iterate = _with(solver_state.best, Status.NOT_REACHED, (finding,))
            iterate = self.finish(problem, iterate, solver_state.trace)
        try:
            self.checkpoint.put(result_stage, (iterate, solver_state.trace))
        except KeyboardInterrupt as error:
            # The answer is complete; only its file is not.
            if processes_out_of_sync(error):
                raise
        return Solution(problem, iterate, solver_state.trace)

    def _at_limit(self, solver_state: SolverState) -> bool:
        """Whether the search wants to go on after the last iteration."""
        search = solver_state.search
        moves = search.eta != solver_state.eta or solver_state.stuck
        return solver_state.current is not None and moves and search.limited and self._used(solver_state)

    def _used(self, solver_state: SolverState) -> bool:
        return solver_state.n_visited >= self.max_iterations

    def _step(self, problem: CoverageProblem, solver_state: SolverState) -> SolverState:
        """Move to the learning rate that the search asks for, find out what it needs to know, and ask it again."""
        if solver_state.search.eta != solver_state.eta:
            eta = solver_state.search.eta
            self.progress.phase(f"to eta {eta:.4g}")
            moved = problem.sampler.move(problem.target, solver_state.state, eta, self.progress.fraction_done)
            n_visited = solver_state.n_visited + 1
            solver_state = replace(solver_state, state=moved, eta=eta, current=None, n_visited=n_visited)
        solver_state, request = self._observe(problem, solver_state)
        iterate = solver_state.current
        assert iterate is not None
        evaluation = Evaluation(
            eta=iterate.eta,
            coverage=float(iterate.coverage),
            level=problem.level,
            tolerance=self.tolerance,
            refined=request in _REFINED,
            crossing=np.nan if iterate.curve is None else iterate.curve.lowest_crossing(),
            half_width=np.nan if iterate.curve is None else float(np.log(iterate.curve.etas[-1] / iterate.eta)),
        )
        before, search = solver_state.search, self.rule.update(solver_state.search, evaluation)
        # A rule that asks for the same thing again has not moved, but must not go on for ever.
        stuck = search.status is None and (search.eta, search.request) == (before.eta, before.request)
        n_visited = solver_state.n_visited + stuck
        return replace(solver_state, search=search, stuck=stuck, n_visited=n_visited, seconds=self._elapsed())

    def _observe(self, problem: CoverageProblem, solver_state: SolverState) -> tuple[SolverState, Request]:
        """Compute the quantity that the search asks for, at the learning rate of the particles.

        Returns the new state and the request that was carried out: `REFINED_CURVE_IF_CHEAP` becomes `REFINED_CURVE` or
        `ROUGH_CURVE`.
        """
        request, sampler = solver_state.search.request, problem.sampler
        if request is Request.REFINED_CURVE_IF_CHEAP:
            cheap = sampler.refine_is_cheap(problem.target, solver_state.state)
            request = Request.REFINED_CURVE if cheap else Request.ROUGH_CURVE
        if request in _REFINED:
            solver_state = self._refine(problem, solver_state)
        if solver_state.current is None:
            solver_state = self._evaluate(problem, solver_state)
        if request in (Request.REFINED_CURVE, Request.ROUGH_CURVE):
            self.progress.phase("coverage curve")
            assert solver_state.current is not None
            iterate = problem.with_curve(solver_state.current, rough=request is Request.ROUGH_CURVE)
            solver_state = replace(
                solver_state, current=iterate, best=_replace_if_same_particles(solver_state.best, iterate)
            )
            self.latest = solver_state
        return solver_state, request

    def _refine(self, problem: CoverageProblem, solver_state: SolverState) -> SolverState:
        """Let the sampler improve its particles at the current learning rate (`Sampler.refine`).

        If it is interrupted before any learning rate has been evaluated, the unrefined state is evaluated, so that
        there is a result to return.
        """
        self.progress.phase("refinement of the particles")
        try:
            refined = problem.sampler.refine(problem.target, solver_state.state, self.progress.fraction_done)
        except STOPS as error:
            if solver_state.best is None and not processes_out_of_sync(error):
                with time_limit(None):
                    self._evaluate(problem, solver_state)
            raise
        if refined is not solver_state.state or solver_state.current is None:
            return self._evaluate(problem, replace(solver_state, state=refined), refined=True)
        return replace(solver_state, current=replace(solver_state.current, refined=True))

    def _evaluate(self, problem: CoverageProblem, solver_state: SolverState, *, refined: bool = False) -> SolverState:
        """Compute the coverage at the sampler's state, and add it to the trace."""
        iterate = problem.evaluate(solver_state.state, solver_state.eta, refined=refined)
        record = TraceRecord(
            iteration=len(solver_state.trace) + 1,
            eta=iterate.eta,
            coverage=float(iterate.coverage),
            ess=float(np.median(iterate.info.ess)),
            ess_min=float(iterate.info.ess.min()),
            steps=iterate.info.steps,
            acceptance=iterate.info.acceptance,
            seconds=self._elapsed(),
            intervals=iterate.intervals,
        )
        # All processes of a distributed run must have come to the same result.
        agree({"eta": repr(record.eta), "coverage": repr(record.coverage), "effective size": repr(record.ess)})
        self.progress.iteration(record.iteration, record.eta, record.coverage, record.ess)
        best = solver_state.best
        replaces = best is not None and best.eta == iterate.eta and refined and not best.refined
        if best is None or replaces or _error(problem, iterate) <= _error(problem, best):
            best = iterate
        self.latest = replace(solver_state, current=iterate, best=best, trace=(*solver_state.trace, record))
        return self.latest

    def _conclude(self, problem: CoverageProblem, solver_state: SolverState) -> tuple[SolverState, Iterate]:
        """Return the solver state at the end of the search, and the iterate to report, with its status."""
        search, current, best = solver_state.search, solver_state.current, solver_state.best
        assert current is not None
        assert best is not None
        if search.status is Status.COMPUTED:
            return solver_state, _with(problem.at_eta(current, search.eta), search.status, search.diagnostics)
        if search.status is Status.CONVERGED:
            if search.from_curve and current.curve is not None:
                iterate = problem.at_crossing(current)
                return solver_state, _with(iterate, search.status, search.diagnostics)
            solver_state = self._refined_at(problem, solver_state, search.eta)
            assert solver_state.current is not None
            iterate = _with(solver_state.current, search.status, search.diagnostics)
            # A rough curve only leads the search; the result gets a full one.
            return solver_state, replace(iterate, curve=None)
        if search.status is None:
            solver_state = self._refined_at(problem, solver_state, best.eta)
            assert solver_state.current is not None
            finding = self._limit_diagnostic(problem, solver_state)
            return solver_state, _with(solver_state.current, Status.MAX_ITERATIONS, (finding,))
        findings = search.diagnostics
        if search.status is Status.NO_CROSSING and not findings:
            findings = (_no_crossing(problem, current, solver_state.trace),)
        return solver_state, _with(current, search.status, findings)

    def _refined_at(self, problem: CoverageProblem, solver_state: SolverState, eta: float) -> SolverState:
        """Return the state at a learning rate with a refined iterate, which is sampled anew if it was not kept."""
        current, best = solver_state.current, solver_state.best
        kept = next((one for one in (current, best) if one is not None and one.eta == eta), None)
        if kept is not None:
            solver_state = replace(solver_state, state=kept.state, eta=eta, current=kept)
            return solver_state if kept.refined else self._refine(problem, solver_state)
        moved = problem.sampler.move(problem.target, solver_state.state, eta, self.progress.fraction_done)
        return self._refine(problem, replace(solver_state, state=moved, eta=eta, current=None))

    def finish(self, problem: CoverageProblem, iterate: Iterate, trace: tuple[TraceRecord, ...]) -> Iterate:
        """Return the iterate with a coverage curve, and with a status that its diagnostics allow."""
        if iterate.curve is None and iterate.status in (Status.INTERRUPTED, Status.TIME_LIMIT, Status.NOT_REACHED):
            iterate = replace(iterate, curve=Curve.empty(iterate.coverage.n_replicates, problem.level))
        elif iterate.curve is None:
            iterate = replace(iterate, curve=problem.curve(iterate, islice(problem.snapshots(iterate.state), 1)))
        if iterate.status is Status.CONVERGED and not np.isfinite(iterate.eta_se):
            iterate = replace(iterate, eta_se_along_trace=_eta_se_along_trace(problem, iterate, trace))
        if iterate.status is Status.CONVERGED and not np.isfinite(iterate.eta_se):
            message = (
                "The standard error of eta could not be computed because its interval extends beyond the coverage "
                "curve. Use more bootstrap replicates."
            )
            finding = Diagnostic(Code.ETA_SE_UNKNOWN, Severity.WARNING, 0, message)
            iterate = replace(iterate, diagnostics=(*iterate.diagnostics, finding))
        if iterate.status is Status.CONVERGED:
            assert iterate.curve is not None
            crossings = describe_crossings(iterate.curve, iterate.eta, trace)
            iterate = iterate if crossings is None else _with(iterate, iterate.status, (crossings,))
        return check_reliability(iterate)

    def _limit_diagnostic(self, problem: CoverageProblem, solver_state: SolverState) -> Diagnostic:
        message = f"The search stopped after {self.max_iterations} iterations."
        above = [record.coverage > problem.level for record in solver_state.trace]
        if self.rule.uses_tolerance and (all(above) or not any(above)):
            direction = "larger" if all(above) else "smaller"
            message += (
                f" Eta must be {direction} still: start there (eta_init=), or take longer steps (RobbinsMonro(gain=))."
            )
        else:
            message += " Allow more (max_iterations=)."
        return Diagnostic(Code.MAX_ITERATIONS, Severity.ERROR, 0, message)

    def _elapsed(self) -> float:
        return time.perf_counter() - self.started


def check_reliability(iterate: Iterate) -> Iterate:
    """Return the iterate; one that succeeded, but with a diagnostic of severity ERROR, is unreliable."""
    if iterate.status is not None and iterate.status.is_success and worst(iterate.diagnostics) is Severity.ERROR:
        return replace(iterate, status=Status.UNRELIABLE)
    return iterate


def check_rounding(
    precision: PrecisionCheck | None, problem: CoverageProblem, iterate: Iterate, *, repeatable: bool
) -> Iterate:
    """Return the iterate, with a diagnostic if rounding errors are too large at its learning rate.

    Raises
    ------
    PrecisionError
        Instead of the diagnostic, if the calibration is `repeatable` in double precision.
    """
    try:
        if precision is not None:
            precision.check_risk(iterate.eta)
            if iterate.status is not None and iterate.status.is_success:
                precision.check_parameters(problem.target, iterate.particles, iterate.eta)
    except PrecisionError as error:
        if repeatable:
            raise
        message = str(error)
        finding = Diagnostic(Code.ROUNDING, Severity.ERROR, 0, f"{message[0].upper()}{message[1:]}")
        return replace(iterate, diagnostics=(*iterate.diagnostics, finding))
    return iterate


def stopped(iterate: Iterate, error: BaseException) -> Iterate:
    """Return the iterate with the status of a search that one of `STOPS` ended."""
    if not isinstance(error, TimeLimitError):
        return replace(iterate, status=Status.INTERRUPTED)
    message = "The calibration stopped at its time limit. Allow more (max_seconds=), or use fewer bootstrap replicates."
    return _with(iterate, Status.TIME_LIMIT, (Diagnostic(Code.TIME_LIMIT, Severity.ERROR, 0, message),))


def _eta_se_along_trace(problem: CoverageProblem, iterate: Iterate, trace: tuple[TraceRecord, ...]) -> float:
    """Return the standard error of eta from the slope of coverage in log eta, at the learning rates near the answer.

    Infinite if fewer than two of them show a coverage that is neither zero nor one, or if coverage does not decrease.
    """
    assert iterate.curve is not None
    near = [
        (np.log(record.eta / iterate.eta), record.coverage)
        for record in trace
        if abs(np.log(record.eta / iterate.eta)) <= CONFIG.slope_range and 0 < record.coverage < 1
    ]
    if len({distance for distance, _ in near}) < 2:
        return np.inf
    distances, coverages = np.array(near).T
    slope = np.polyfit(distances, coverages, 1)[0]
    return float(iterate.eta * iterate.curve.coverage_se(problem.level) / -slope) if slope < 0 else np.inf


def _stopped_at_limit(finished: tuple[Iterate, tuple[TraceRecord, ...]] | None) -> bool:
    return finished is not None and finished[0].status is Status.MAX_ITERATIONS


def _error(problem: CoverageProblem, iterate: Iterate) -> float:
    return abs(float(iterate.coverage) - problem.level)


def _replace_if_same_particles(best: Iterate | None, iterate: Iterate) -> Iterate | None:
    """Return `iterate` if the best iterate has the same particles, to keep its new curve; otherwise the best."""
    same = best is not None and best.state is iterate.state and best.eta == iterate.eta
    return iterate if same else best


def _with(iterate: Iterate, status: Status, findings: tuple[Diagnostic, ...]) -> Iterate:
    return replace(iterate, status=status, diagnostics=(*iterate.diagnostics, *findings))


def _no_crossing(problem: CoverageProblem, iterate: Iterate, trace: tuple[TraceRecord, ...]) -> Diagnostic:
    """Describe where coverage was when the search left its range."""
    level, coverage = problem.level, float(iterate.coverage)
    highest = max(trace, key=lambda record: record.coverage)
    if coverage < level <= highest.coverage:
        message = (
            f"Coverage does not decrease steadily with the learning rate: it is {highest.coverage:.3f} at eta = "
            f"{highest.eta:.3g} and {coverage:.3f} at eta = {iterate.eta:.2g}."
        )
    elif coverage < level:
        message = (
            f"No learning rate from {iterate.eta:.2g} up covers at {level:g}: the largest coverage is "
            f"{highest.coverage:.3f}, at eta = {highest.eta:.3g}. The point estimate may lie where the posterior has "
            'no mass. Try estimate="mode", or another region.'
        )
    else:
        message = (
            f"The credible sets still cover more than {level:g} at eta = {iterate.eta:.2g}: they do not shrink as eta "
            "grows."
        )
    return Diagnostic(Code.NO_CROSSING, Severity.ERROR, 0, message)
