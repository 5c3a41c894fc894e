"""Run the cases of a study that are not stored yet, in one or several processes, with an estimate of the time left.

Every case has its own seed, so its result does not depend on the number of processes. Only the parent process writes to
the results file. Times of calibrations that ran at the same time are marked as `shared` and left out of comparisons.
"""

import math
import multiprocessing
import signal
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Protocol

import jax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import calibayes as cb
from benchmarks.common import machine
from calibayes._core.status import Status
from calibayes.regions import Interval, Region, as_region
from studies.store import Key, Line

Kind = tuple[str, int, str]

_shared = False
"""Whether this process is one of several workers."""


class Case(NamedTuple):
    """A data set, a method and the regions to calibrate: the first from scratch, the others from its particles."""

    problem: str
    n: int
    dataset: int
    sampler: str
    regions: tuple[str, ...]

    @property
    def kind(self) -> Kind:
        """Cases of one kind take about the same time."""
        return (self.problem, self.n, self.sampler)

    @property
    def description(self) -> str:
        return f"{self.problem}, N {self.n}, {self.sampler}, dataset {self.dataset}"


RunCase = Callable[[Case], Sequence[Any]]


class ResultsFile(Protocol):
    """The stored lines of a study, such as `studies.store.Store`."""

    path: Path

    @property
    def lines(self) -> Sequence[Any]:
        """All lines."""

    def __contains__(self, key: Key) -> bool: ...

    def add(self, lines: Sequence[Any]) -> None:
        """Append lines."""


class Calibrated(NamedTuple):
    """The calibration of one region, and its time."""

    result: cb.Result
    seconds: float
    timing: str


class Outcome(NamedTuple):
    """The lines of a case, its time, and the error message if it raised one."""

    case: Case
    lines: Sequence[Any]
    seconds: float
    error: str = ""


def run(cases: Sequence[Case], run_case: RunCase, store: ResultsFile, console: Console, processes: int = 1) -> bool:
    """Run all cases that are not stored yet.

    A case of which any region is missing is run as a whole, so that its lines do not depend on earlier commands.

    Parameters
    ----------
    cases : sequence of Case
        All cases of the study.
    run_case : callable
        Returns the lines of a case. With several processes it must be importable by its name.
    store : ResultsFile
        Results file; receives the lines of a case as soon as it is finished.
    console : Console
        Where progress and errors are printed.
    processes : int
        Number of processes. With 1, cases run in this process.

    Returns
    -------
    bool
        False if the study was interrupted.
    """
    pending = [case for case in cases if not all((*case[:4], region) in store for region in case.regions)]
    remaining, seconds = Counter(case.kind for case in pending), defaultdict[Kind, list[float]](list)
    processes = max(1, min(processes, len(pending)))
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, TextColumn("{task.fields[left]}"), console=console, transient=True)
    task = bar.add_task(f"{len(pending)} cases to run", total=len(cases), completed=len(cases) - len(pending), left="")
    outcomes = _sequential if processes == 1 else partial(_parallel, processes=processes)
    try:
        with bar:
            for outcome in outcomes(pending, run_case):
                if outcome.error:
                    console.print(f"[yellow]{outcome.case.description}: {outcome.error}")
                store.add(outcome.lines)
                kind = outcome.case.kind
                seconds[kind].append(outcome.seconds / processes)
                remaining[kind] -= 1
                bar.update(task, description=outcome.case.description, left=time_left(remaining, seconds))
                bar.advance(task)
    except KeyboardInterrupt:
        console.print(f"Stopped. {store.path} has {len(store.lines)} lines; the same command continues from there.")
        return False
    return True


def _sequential(cases: Sequence[Case], run_case: RunCase) -> Iterator[Outcome]:
    return (_execute(run_case, case) for case in cases)


def _parallel(cases: Sequence[Case], run_case: RunCase, processes: int) -> Iterator[Outcome]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, _start_worker) as executor:
        futures = [executor.submit(_execute, run_case, case) for case in cases]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise


def _start_worker() -> None:
    """Prepare a worker process. An interrupt is handled by the parent, which stops the workers."""
    global _shared
    _shared = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _execute(run_case: RunCase, case: Case) -> Outcome:
    """Run a case. A failed calibration is a result of the study; an error of the machine ends the study."""
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cb.CalibrationWarning)
        try:
            lines, error = run_case(case), ""
        except jax.errors.JaxRuntimeError:
            # For example out of memory.
            raise
        except (ValueError, RuntimeError) as raised:
            lines, error = [_failed(case, region, raised) for region in case.regions], str(raised)
    return Outcome(case, lines, time.perf_counter() - start, error)


def time_left(remaining: Mapping[Kind, int], seconds: Mapping[Kind, Sequence[float]]) -> str:
    """Estimate the time left from the cases of each kind that are done; a lower bound if a kind has none."""
    known = sum(number * median(seconds[kind]) for kind, number in remaining.items() if seconds.get(kind))
    incomplete = any(number and not seconds.get(kind) for kind, number in remaining.items())
    if not known:
        return "time left unknown" if incomplete else ""
    amount = f"{known / 60:.0f} min" if known >= 90 else f"{known:.0f} s"
    return f"{'more than ' if incomplete else 'about '}{amount} left"


def calibrate_regions(case: Case, calibrate: Callable[[Region], cb.Result]) -> dict[str, Calibrated]:
    """Calibrate the first region of a case from scratch, and the others from its particles."""
    first, *others = case.regions
    compilations, start = _compilations(), time.perf_counter()
    result = _require_finished(calibrate(region_by_name(first)))
    seconds = time.perf_counter() - start
    timing = "shared" if _shared else "warm" if _compilations() == compilations else "cold"
    calibrated = {first: Calibrated(result, seconds, timing)}
    for region in others:
        start = time.perf_counter()
        requeried = _require_finished(result.at(region=region_by_name(region)))
        calibrated[region] = Calibrated(requeried, time.perf_counter() - start, "requery")
    return calibrated


def to_lines(case: Case, calibrated: Mapping[str, Calibrated], truth: Sequence[float] | None) -> list[Line]:
    """Return the lines to store; `truth` is the true parameter, if it is known."""
    return [_line(case, region, *timed, truth) for region, timed in calibrated.items()]


def region_by_name(region: str) -> Region:
    """Return a region by its name in the studies, where `intercept` and `slope` are the intervals of a line."""
    return {"intercept": Interval(0), "slope": Interval(1)}.get(region) or as_region(region)


def _line(
    case: Case, region: str, result: cb.Result, seconds: float, timing: str, truth: Sequence[float] | None
) -> Line:
    level = math.nan if truth is None else result.level_of(truth)
    if truth is not None and math.isnan(level):
        level = math.inf
    return Line(
        *case[:4],
        region=region,
        eta=result.eta,
        eta_se=result.eta_se,
        truth_level=level,
        iterations=len(result.trace),
        converged=result.converged,
        seconds=seconds,
        timing=timing,
        note="" if result.converged and not result.diagnostics else result.message,
        machine=machine(),
    )


def _failed(case: Case, region: str, error: Exception) -> Line:
    """Return the line of a case without a result, whose set contains nothing."""
    return Line(*case[:4], region, math.nan, math.nan, math.inf, 0, False, math.nan, "failed", str(error), machine())


def _require_finished(result: cb.Result) -> cb.Result:
    """Return the result. A calibration turns an interrupt into a partial result; here it ends the study."""
    if result.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    return result


_events = Counter[str]()


@cache
def _listen() -> None:
    def count(event: str, duration_secs: float, **_: Any) -> None:  # noqa: ARG001
        _events.update([event])

    jax.monitoring.register_event_duration_secs_listener(count)


def _compilations() -> int:
    """Return the number of programs compiled in this process since the first call."""
    _listen()
    return _events["/jax/core/compile/backend_compile_duration"]
