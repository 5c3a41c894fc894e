r"""Calibrate the difficult models and compare the coverage at the reported learning rate with the exact one.

The library gets the same bootstrap counts as the integration, so that the exact coverage at the reported learning rate
should equal the level up to the Monte Carlo error of the particles (`monte_carlo_error`); the error of the bootstrap,
which `eta_se` describes, does not enter. A case is

- right, if the library converged and the exact coverage is within 0.02 plus three Monte Carlo errors of the level, or
  if the library says that coverage jumps past the level, reports the conservative side of the jump, and there is one;
- declined, if the library did not converge;
- wrong, if it converged to anything else.

A declined case has an answer if its exact coverage falls from at least the level to less than it somewhere.
"""

import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

import calibayes as cb
from benchmarks.validate.adversarial.families import Case, drawn_cases, fixed_cases, huge

PART = "adversarial"
"""Name of this part of the validation."""
MARGIN = 0.02
"""Error of the coverage, beyond the Monte Carlo error, that is accepted."""
MAX_SECONDS = 60.0
"""Largest time of a case: that of its first call, with compilation, on an otherwise idle machine (`is_slow`)."""
MIN_ANSWERED = 0.9
"""Smallest share of the cases with an answer that must get it."""
_TIME_LIMIT = 240.0
"""Seconds after which a calibration is interrupted, as by Ctrl-C."""
_ESS = 1000
"""Effective sample size of a replicate with the default number of particles."""
_POPULATIONS = 20
"""Number of populations of the transport sampler; the replicates of one share their draws."""
_BEYOND_JUMP = 1.3
"""Factor on eta within which coverage must fall below the level, where the library reports a jump. The library reports
eta up to 10% below a jump, whose own position has an error of about 4%."""
_DECADES, _STEPS_PER_DECADE, _ANSWER_REPLICATES = 6, 2, 100
"""Range and density of the learning rates at which a crossing of the exact coverage is looked for, and the number of
replicates that this uses."""


class Report(NamedTuple):
    """What the library reported on a case."""

    converged: bool
    eta: float
    coverage: float
    codes: tuple[str, ...] = ()


def monte_carlo_error(n_replicates: int, level: float) -> float:
    """Return the standard error of the exact coverage at the reported learning rate, due to the particles.

    The library compares with `level` critical levels that have a standard error of e = sqrt(level (1 - level) / ESS).
    Replicates of one population share their draws, which contributes e / sqrt(20) to the coverage. The part specific to
    a replicate moves about n e of n replicates to the other side of `level`, in either direction, which contributes
    sqrt(e / n). Both assume that the density of the critical levels near `level` is about one, as it is where coverage
    equals the level for a range of levels. The effective sample size is a constant, not the reported one: few
    effective particles do not excuse a wrong answer.
    """
    error = (level * (1 - level) / _ESS) ** 0.5
    return (error**2 / _POPULATIONS + error / n_replicates) ** 0.5


def tolerance(case: Case) -> float:
    """Return the largest accepted distance of the exact coverage to the level."""
    return MARGIN + 3 * monte_carlo_error(len(case.exact.counts), case.level)


def verdict(report: Report, exact: Callable[[float], float], level: float, allowed: float) -> str:
    """Return "right", "wrong" (converged to a wrong answer) or "declined".

    Parameters
    ----------
    report : Report
        What the library reported.
    exact : callable
        Exact coverage as a function of eta.
    level : float
        Requested level.
    allowed : float
        Accepted distance of the exact coverage to the level.
    """
    if not report.converged:
        return "declined"
    if not (np.isfinite(report.eta) and report.eta > 0):
        return "wrong"
    coverage = exact(report.eta)
    if abs(coverage - level) <= allowed:
        return "right"
    if cb.Code.LEVEL_NOT_ATTAINED in report.codes and coverage >= level and abs(coverage - report.coverage) <= allowed:
        return "right" if exact(_BEYOND_JUMP * report.eta) <= level + allowed else "wrong"
    return "wrong"


def has_answer(case: Case) -> bool:
    """Return whether the exact coverage falls from at least the level to less than it somewhere."""
    scale = np.abs(case.exact.losses(case.exact.centre[None])).mean()
    exponents = np.arange(-_DECADES * _STEPS_PER_DECADE, _DECADES * _STEPS_PER_DECADE + 1) / _STEPS_PER_DECADE
    case, covered = case._replace(exact=case.exact._replace(counts=case.exact.counts[:_ANSWER_REPLICATES])), False
    for exponent in exponents:
        coverage = case.coverage(float(10.0**exponent / max(scale, 1e-300)))
        if covered and coverage < case.level:
            return True
        covered = coverage >= case.level
    return False


@contextmanager
def _interrupt_after(seconds: float) -> Iterator[threading.Event]:
    """Raise `KeyboardInterrupt` after some seconds, on which a calibration ends with its best result so far."""
    expired = threading.Event()

    def interrupt(signum: int, frame: Any) -> None:  # noqa: ARG001
        expired.set()
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield expired
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def check(case: Case, seed: int = 0) -> dict[str, Any]:
    """Calibrate a case and return what was reported and what is exact."""
    start, cpu_start = time.perf_counter(), time.process_time()
    with _interrupt_after(_TIME_LIMIT) as expired:
        try:
            result = cb.calibrate(
                case.model,
                case.data,
                level=case.level,
                region=case.library_region,
                estimate=case.estimate,
                bootstrap=case.exact.counts,
                seed=seed,
                progress=False,
            )
        except KeyboardInterrupt:
            if not expired.is_set():
                raise
            result, status = None, "INTERRUPTED"
        except Exception as error:  # An error is a result of the case, and the others should run.
            traceback.print_exc()
            result, status = None, type(error).__name__
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    report, eta_se, exact = Report(False, float("nan"), float("nan")), float("nan"), float("nan")
    if result is not None:
        codes = tuple(str(finding.code) for finding in result.diagnostics)
        report = Report(result.converged, float(result.eta), float(result.coverage), codes)
        eta_se, status = float(result.eta_se), result.status.name
        exact = case.coverage(report.eta) if np.isfinite(report.eta) and report.eta > 0 else exact
    outcome = verdict(report, case.coverage, case.level, tolerance(case))
    return {
        "name": case.name,
        "region": case.region,
        "level": case.level,
        "eta": report.eta,
        "eta_se": eta_se,
        "coverage": report.coverage,
        "exact": exact,
        "tolerance": tolerance(case),
        "status": status,
        "codes": list(report.codes),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "verdict": outcome,
        "has_answer": outcome == "right" or has_answer(case),
    }


def easy_seconds() -> float:
    """Return the seconds of the first calibration of an easy model, with compilation."""
    line = check(huge(0.0, 1.0, linear=False))
    return float(min(line["seconds"], line["cpu_seconds"]))


def run(seed: int | None = None) -> list[dict[str, Any]]:
    """Check the fixed cases, and cases whose constants are drawn at random from a seed, by default a fresh one."""
    seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
    print(f"seed of the drawn cases: {seed}", flush=True)
    easy = easy_seconds()
    print(f"easy model: {easy:.1f} s", flush=True)
    lines = []
    for kind, cases in (("fixed", fixed_cases()), ("drawn", drawn_cases(seed))):
        for case in cases:
            line = {"set": kind, "seed": seed if kind == "drawn" else None, "easy_seconds": easy, **check(case)}
            lines.append(line)
            print(describe(line), flush=True)
    print(summary(lines), flush=True)
    return lines


def describe(line: dict[str, Any]) -> str:
    """Return one line of text about a case."""
    answer = "" if line["has_answer"] else " (no answer exists)"
    return (
        f"{line['verdict']:8}{answer} {line['name']}: {line['status']}, eta {line['eta']:.4g}, coverage "
        f"{line['coverage']:.3f}, exact {line['exact']:.3f}, level {line['level']:g}, {line['seconds']:.0f} s "
        f"(processor {line['cpu_seconds']:.0f} s) {' '.join(line['codes'])}"
    )


def is_slow(line: dict[str, Any]) -> bool:
    """Return whether a case took too long.

    If other programs use the machine, the processor time of all threads, which is longer than the time on an idle
    machine, is shorter than the time that passed.
    """
    return bool(min(line["seconds"], line["cpu_seconds"]) > MAX_SECONDS)


def summary(lines: Sequence[dict[str, Any]]) -> str:
    """Return the numbers of cases by outcome as a sentence."""
    with_answer = [line for line in lines if line["has_answer"]]
    right = sum(line["verdict"] == "right" for line in with_answer)
    wrong = sum(line["verdict"] == "wrong" for line in lines)
    return (
        f"{right} of {len(with_answer)} cases with an answer got it; {wrong} of {len(lines)} cases converged to a "
        f"wrong answer; {sum(map(is_slow, lines))} took longer than {MAX_SECONDS:.0f} s."
    )


def passed(lines: Sequence[dict[str, Any]]) -> bool:
    """Return whether no answer is wrong, none took too long, and enough of those that exist were found."""
    with_answer = [line for line in lines if line["has_answer"]]
    right = sum(line["verdict"] == "right" for line in with_answer)
    none_wrong = not any(line["verdict"] == "wrong" for line in lines)
    return none_wrong and right >= MIN_ANSWERED * len(with_answer) and not any(map(is_slow, lines))
