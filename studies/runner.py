"""Run what is not yet stored, one after another or some side by side, and say how long the rest will take."""

import math
import os
import platform
import threading
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import jax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import calibayes as cb
from calibayes._backend.jit import side_by_side, together
from calibayes.regions import Interval, Region, as_region
from studies.store import Line, Store

Kind = tuple[str, int, str]


class Case(NamedTuple):
    """A dataset and a method, for some regions: the first is calibrated, the others go on from there."""

    problem: str
    n: int
    dataset: int
    sampler: str
    regions: tuple[str, ...]

    @property
    def kind(self) -> Kind:
        """What takes about the same time."""
        return (self.problem, self.n, self.sampler)


class Timed(NamedTuple):
    result: cb.Result
    seconds: float
    how: str


Work = Callable[[Case], list[Line]]


def run(cases: Sequence[Case], work: Work, store: Store, console: Console, at_once: int = 1) -> bool:
    """Do what is missing, so many cases of a kind at once. False if it was interrupted; what was done is stored anyway.

    A case with a region missing is done anew as a whole, so that its lines do not depend on what was asked for before;
    side by side they do depend, by the samplers' error, on who else ran.
    """
    pending = [case for case in cases if not all((*case[:4], region) in store for region in case.regions)]
    left, took = Counter(case.kind for case in pending), defaultdict[Kind, list[float]](list)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, TextColumn("{task.fields[left]}"), console=console, transient=True)
    task = bar.add_task("", total=len(cases), completed=len(cases) - len(pending), left="")
    storing = threading.Lock()

    def do(case: Case) -> None:
        description = f"{case.problem}, N {case.n}, {case.sampler}, dataset {case.dataset}"
        bar.update(task, description=description, left=time_left(left, took))
        began = time.perf_counter()
        try:
            lines = work(case)
        except jax.errors.JaxRuntimeError:
            # Of the machine, such as no memory left, and not of the calibration.
            raise
        except (ValueError, RuntimeError) as error:
            console.print(f"[yellow]{description}: {error}")
            lines = [_failed(case, region, error) for region in case.regions]
        with storing:
            store.add(lines)
            took[case.kind].append((time.perf_counter() - began) / (at_once if side_by_side() else 1))
            left[case.kind] -= 1
            bar.advance(task)

    try:
        with bar, warnings.catch_warnings():
            warnings.simplefilter("ignore", cb.CalibrationWarning)
            if at_once == 1:
                for case in pending:
                    do(case)
            for kind in left if at_once > 1 else ():
                first, *others = (case for case in pending if case.kind == kind)
                # Alone, so that what does not run for all of them is compiled once.
                do(first)
                together([partial(do, case) for case in others], at_once)
    except KeyboardInterrupt:
        console.print(f"Stopped. {len(store.lines)} lines are in {store.path}; the same command goes on from there.")
        return False
    return True


def time_left(left: Mapping[Kind, int], took: Mapping[Kind, Sequence[float]]) -> str:
    """From what each kind of case took so far; a lower bound while there are kinds that no one has seen."""
    known = sum(number * median(took[kind]) for kind, number in left.items() if took.get(kind))
    unknown = any(number and not took.get(kind) for kind, number in left.items())
    if not known:
        return "time left unknown" if unknown else ""
    amount = f"{known / 60:.0f} min" if known >= 90 else f"{known:.0f} s"
    return f"{'more than ' if unknown else 'about '}{amount} left"


def in_regions(case: Case, calibrate: Callable[[Region], cb.Result]) -> dict[str, Timed]:
    """The first region of a case, from nothing, and the others, from there."""
    first, *others = case.regions
    jit, began = _compilations(), time.perf_counter()
    result = _finished(calibrate(as_named(first)))
    seconds = time.perf_counter() - began
    how = "together" if side_by_side() else "warm" if _compilations() == jit else "cold"
    found = {first: Timed(result, seconds, how)}
    for region in others:
        began = time.perf_counter()
        own = _finished(result.at(region=as_named(region)))
        found[region] = Timed(own, time.perf_counter() - began, "together" if side_by_side() else "at")
    return found


def lines_of(case: Case, found: dict[str, Timed], truth: Sequence[float] | None) -> list[Line]:
    """What is stored of a case."""
    return [_line(case, region, *timed, truth) for region, timed in found.items()]


def as_named(region: str) -> Region:
    """A region by its name in studies, where the two parameters of a line have one too."""
    return {"intercept": Interval(0), "slope": Interval(1)}.get(region) or as_region(region)


def _line(case: Case, region: str, result: cb.Result, seconds: float, how: str, truth: Sequence[float] | None) -> Line:
    level = math.nan if truth is None else result.level_of(truth)
    if truth is not None and math.isnan(level):
        level = math.inf
    found = result.calibration.found
    note = "" if result.converged and not found.concerns else result.message
    return Line(
        *case[:4],
        region=region,
        eta=result.eta,
        eta_se=result.eta_se,
        truth=level,
        iterations=len(result.trace),
        converged=result.converged,
        seconds=seconds,
        how=how,
        note=note,
        machine=machine(),
    )


def _failed(case: Case, region: str, error: Exception) -> Line:
    """A case that gave no result: a set that holds nothing."""
    return Line(*case[:4], region, math.nan, math.nan, math.inf, 0, False, math.nan, "failed", str(error), machine())


def _finished(result: cb.Result) -> cb.Result:
    """The result; but an interrupt that it survived is the study's."""
    if result.calibration.loop.interrupted:
        raise KeyboardInterrupt
    return result


_compiled = Counter[str]()


@cache
def _listen() -> None:
    def count(event: str, duration_secs: float, **_: Any) -> None:  # noqa: ARG001
        _compiled.update([event])

    jax.monitoring.register_event_duration_secs_listener(count)


def _compilations() -> int:
    """Programs compiled in this process since it was first asked."""
    _listen()
    return _compiled["/jax/core/compile/backend_compile_duration"]


@cache
def machine() -> str:
    """Processor or accelerator, and versions."""
    name = jax.devices()[0].device_kind
    if jax.default_backend() == "cpu":
        cpuinfo = Path("/proc/cpuinfo")
        text = cpuinfo.read_text() if cpuinfo.exists() else ""
        models = [entry.split(":", 1)[1].strip() for entry in text.splitlines() if entry.startswith("model name")]
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        name = f"{cores} x {models[0] if models else platform.processor() or platform.machine()}"
    return f"{name}; jax {jax.__version__}; calibayes {cb.__version__}"
