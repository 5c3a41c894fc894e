"""Decide whether a result can be reported: a list of checks, each with a value, a grade and an explanation.

Checks read numbers, the `Status` and the `Diagnostic` objects of a result; they never look at the text of a message.
"""

import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from calibayes._core.status import Code, Diagnostic, Severity, Status
from calibayes.result import Intervals, Result
from calibayes.samplers import Transport


@dataclass(frozen=True)
class VerdictConfig:
    """Thresholds of the checks.

    All but the numbers of observations are order-of-magnitude choices that sort results by how much a reader should
    worry; no computation depends on them.
    """

    many_repaired: float = 0.1
    """Share of repaired replicates that is worth a note."""
    most_repaired: float = 0.5
    """Share of repaired replicates that needs caution: most replicates then come from the slower sampler."""
    some_replicates: float = 0.02
    """Share of replicates above which a finding about them needs caution."""
    many_replicates: float = 0.2
    """Share of replicates above which a finding about them means that the result should not be reported."""
    enough_observations: int = 500
    """Observations per parameter from which no note is needed. Order-of-magnitude choice: in table 1 of the paper on
    simulated data sets, coverage at 200 observations per parameter is still about a point below 95%."""
    low_ess: float = 100.0
    """Effective sample size of a typical replicate below which noise in the critical levels biases eta low."""
    collapsed_ess: float = 10.0
    """Effective sample size of a typical replicate below which its critical level is noise."""


CONFIG = VerdictConfig()


class Grade(IntEnum):
    """Outcome of a check; the largest grade of all checks is the verdict."""

    PASSED = 0
    NOTE = 1
    """Worth knowing, but no reason to doubt the result."""
    CAUTION = 2
    FAILED = 3


VERDICTS = {
    Grade.PASSED: "This result can be reported",
    Grade.NOTE: "This result can be reported",
    Grade.CAUTION: "Report with caution",
    Grade.FAILED: "Do not report this result",
}

_SEVERITY_GRADES = {Severity.INFO: Grade.NOTE, Severity.WARNING: Grade.CAUTION, Severity.ERROR: Grade.FAILED}
_SEARCH_CODES = frozenset({Code.NO_CROSSING, Code.MAX_ITERATIONS, Code.TIME_LIMIT, Code.NOT_REACHED})
_FALLBACK_CODES = frozenset({Code.AUDIT_FAILED, Code.FALLBACK, Code.FALLBACK_FAILED})
_PARTICLE_CODES = frozenset({Code.ESS_COLLAPSED, Code.NOT_MIXED})
_REPLICATE_CODES = _PARTICLE_CODES | {Code.LEVEL_UNDEFINED}
"""Diagnostics that are graded by their number of replicates."""


@dataclass(frozen=True)
class Check:
    """One check of a result."""

    name: str
    value: str
    meaning: str
    grade: Grade


def run_checks(result: Result, intervals: Intervals | None) -> list[Check]:
    """Return all checks of a result and, if given, of its individually calibrated intervals."""
    checks = [_search(result), _eta_se(result), _coverage(result), *_observations(result), _effective_size(result)]
    checks.append(_fallback(result) if has_code(result, Code.FALLBACK) else _repaired(result))
    if isinstance(result.settings.get("sampler"), Transport):
        checks.append(_audit(result))
    if intervals is not None:
        checks.append(_intervals(intervals))
    return checks + _other_diagnostics(result)


def overall_grade(checks: list[Check]) -> Grade:
    """Return the worst grade of the checks."""
    return max(check.grade for check in checks)


def has_code(result: Result, code: Code) -> bool:
    """Return whether the result has a diagnostic with this code."""
    return any(diagnostic.code is code for diagnostic in result.diagnostics)


def audit_passed(result: Result) -> bool:
    """Return whether an independent sampler checked the particles and agreed."""
    return "audited_region" in result.settings and result.converged and not has_code(result, Code.NOT_AUDITED)


def n_observations(result: Result) -> int | None:
    """Return the number of observations; None if the result does not know it."""
    n = result.settings.get("n")
    if n is not None:
        return int(n)
    return None if result.counts is None else result.counts.shape[1]


def _messages(result: Result, codes: frozenset[Code]) -> str:
    return " ".join(diagnostic.message for diagnostic in result.diagnostics if diagnostic.code in codes)


def _search(result: Result) -> Check:
    meaning = result.status.value
    if result.status is Status.COMPUTED:
        return Check("Search", "none needed", meaning, Grade.PASSED)
    if result.status is Status.CONVERGED:
        return Check("Search", "converged", meaning, Grade.PASSED)
    details = _messages(result, _SEARCH_CODES)
    meaning = " ".join(filter(None, [meaning, details, "This learning rate is not calibrated."]))
    return Check("Search", "not converged", meaning, Grade.FAILED)


def _eta_se(result: Result) -> Check:
    name, relative = "Error of η", result.eta_se / result.eta
    grade = _code_grade(result, Code.ETA_UNCERTAIN, Code.ETA_SE_UNKNOWN)
    if not math.isfinite(relative):
        meaning = "The standard error is unknown because the coverage curve does not extend far enough around η."
        return Check(name, "unknown", meaning, max(grade, Grade.CAUTION))
    meaning = (
        f"The width of an interval scales with η to the power −1/2, so widths are known to about {relative / 2:.1%}."
    )
    if grade > Grade.PASSED:
        meaning += " Use more bootstrap replicates to reduce the error."
    return Check(name, f"{relative:.1%} of η", meaning, grade)


def _code_grade(result: Result, *codes: Code) -> Grade:
    """Return the grade of the diagnostics with these codes, PASSED if there are none."""
    severities = [diagnostic.severity for diagnostic in result.diagnostics if diagnostic.code in codes]
    return max((_SEVERITY_GRADES[severity] for severity in severities), default=Grade.PASSED)


def _coverage(result: Result) -> Check:
    low, high = result.coverage.interval
    value = f"{float(result.coverage):.1%} ({low:.1%} to {high:.1%})"
    if result.status is Status.COMPUTED:
        contains = "contains" if low <= result.level <= high else "does not contain"
        meaning = f"The 95% interval of the coverage {contains} the level {result.level:g}. η was not chosen by it."
        return Check("Coverage", value, meaning, Grade.PASSED if low <= result.level else Grade.CAUTION)
    if low <= result.level <= high:
        meaning = (
            f"The 95% interval of the coverage contains the level {result.level:g}. η was chosen on these replicates."
        )
        return Check("Coverage", value, meaning, Grade.PASSED)
    meaning = f"The 95% interval of the coverage does not contain the level {result.level:g}."
    return Check("Coverage", value, meaning, Grade.CAUTION if result.converged else Grade.FAILED)


def _effective_size(result: Result) -> Check:
    name = "Effective sample size"
    if not len(result.curve.etas):
        return Check(name, "no curve", "The coverage curve could not be computed.", Grade.FAILED)
    nearest = int(np.argmin(np.abs(np.log(result.curve.etas / result.eta))))
    ess = float(result.curve.ess[nearest])
    meaning = "Median over replicates at η."
    if ess >= CONFIG.low_ess:
        return Check(name, f"{ess:,.0f}", f"{meaning} Large enough to estimate critical levels.", Grade.PASSED)
    grade = Grade.CAUTION if ess >= CONFIG.collapsed_ess else Grade.FAILED
    return Check(name, f"{ess:,.0f}", f"{meaning} A small effective sample size biases η low.", grade)


def _observations(result: Result) -> list[Check]:
    n, n_parameters = n_observations(result), len(result.names)
    if n is None:
        return []
    value = f"{n:,} for {n_parameters} parameter{'s' * (n_parameters > 1)}"
    if n >= CONFIG.enough_observations * n_parameters and not has_code(result, Code.FEW_OBSERVATIONS):
        return [Check("Observations", value, "Enough for the bootstrap approximation.", Grade.PASSED)]
    meaning = _messages(result, frozenset({Code.FEW_OBSERVATIONS})) or (
        "The bootstrap approximates the sampling distribution for large samples. With few observations per parameter, "
        "the coverage of the true parameters may be below the level."
    )
    grade = max(Grade.NOTE, _code_grade(result, Code.FEW_OBSERVATIONS))
    return [Check("Observations", value, f"{meaning} No check on this page can detect it.", grade)]


def _repaired(result: Result) -> Check:
    count, n_replicates = len(result.repaired_replicates), result.coverage.n_replicates
    meaning = "Replicates with degenerate importance weights, whose posterior was sampled again by a slower sampler."
    grade = Grade.PASSED
    if count > CONFIG.many_repaired * n_replicates:
        meaning += " A large number means that posteriors differ much between replicates or are far from normal."
        grade = Grade.CAUTION if count > CONFIG.most_repaired * n_replicates else Grade.NOTE
    return Check("Repaired replicates", f"{count:,} of {n_replicates:,}", meaning, grade)


def _fallback(result: Result) -> Check:
    """Grade a result of the fallback sampler, which passed the same audit if the search converged."""
    reasons = _messages(result, _SEARCH_CODES | _FALLBACK_CODES)
    meaning = f"{reasons} The reported result is that of the slower fallback sampler."
    return Check("Sampler", "fallback used", meaning, Grade.NOTE if result.converged else Grade.FAILED)


def _audit(result: Result) -> Check:
    name = "Audit"
    if not result.settings["sampler"].audit:
        meaning = (
            "No independent sampler checked whether the particles miss a mode of the posterior, or a part of it near a "
            "bound. Use "
            'sampler="auto" to run this audit.'
        )
        return Check(name, "not requested", meaning, Grade.CAUTION)
    if has_code(result, Code.AUDIT_FAILED):
        return Check(name, "failed", _messages(result, _FALLBACK_CODES), Grade.FAILED)
    if not audit_passed(result):
        meaning = _messages(result, frozenset({Code.NOT_AUDITED})) or "The audit by an independent sampler did not run."
        return Check(name, "not run", meaning, Grade.CAUTION)
    meaning = "An independent sampler agrees on twenty of the replicates."
    audited_region = result.settings.get("audited_region")
    if audited_region != result.region.name:
        meaning += " The audit used a different credible region than this result."
        return Check(name, f"passed, for {audited_region}", meaning, Grade.PASSED)
    return Check(name, "passed", meaning, Grade.PASSED)


def _intervals(intervals: Intervals) -> Check:
    name = "Individual intervals"
    failed = [intervals.names[k] for k in np.flatnonzero(~intervals.converged)]
    if failed:
        return Check(name, f"{len(failed)} not converged", f"Do not use those of {', '.join(failed)}.", Grade.CAUTION)
    unknown = [intervals.names[k] for k in np.flatnonzero(~np.isfinite(intervals.eta_se))]
    if unknown:
        meaning = f"The standard error of the learning rate is unknown for {', '.join(unknown)}."
        return Check(name, f"{len(unknown)} without a standard error", meaning, Grade.CAUTION)
    return Check(name, "all converged", "The calibration of each parameter’s own interval converged.", Grade.PASSED)


def _other_diagnostics(result: Result) -> list[Check]:
    """Return one check per diagnostic that no other check covers."""
    covered = {Code.REPAIRED, Code.ESS_LOW, Code.ETA_SE_UNKNOWN, Code.ETA_UNCERTAIN, Code.FEW_OBSERVATIONS}
    if not result.converged:
        covered |= _SEARCH_CODES
    if has_code(result, Code.FALLBACK):
        covered |= _SEARCH_CODES | _FALLBACK_CODES
    if isinstance(result.settings.get("sampler"), Transport):
        covered.add(Code.NOT_AUDITED)
    return [
        Check("Diagnostic", _value(diagnostic, result), diagnostic.message, _grade(diagnostic, result))
        for diagnostic in result.diagnostics
        if diagnostic.code not in covered
    ]


def _value(diagnostic: Diagnostic, result: Result) -> str:
    if diagnostic.code not in _REPLICATE_CODES:
        return diagnostic.code.value
    return f"{diagnostic.code.value} ({diagnostic.count:,} of {result.coverage.n_replicates:,} replicates)"


def _grade(diagnostic: Diagnostic, result: Result) -> Grade:
    """Return the grade of a diagnostic, by the share of replicates that it concerns where it concerns replicates."""
    if diagnostic.severity is Severity.ERROR:
        return Grade.FAILED
    if diagnostic.severity is Severity.INFO or diagnostic.code is Code.INVALID_LOSS:
        return Grade.NOTE
    if diagnostic.code not in _REPLICATE_CODES:
        return Grade.CAUTION
    if diagnostic.code in _PARTICLE_CODES and has_code(result, Code.FALLBACK):
        # The particles of the sampler that was replaced, or too few replicates to be an error.
        return Grade.NOTE
    share = diagnostic.count / result.coverage.n_replicates
    if share > CONFIG.many_replicates:
        return Grade.FAILED
    return Grade.CAUTION if share > CONFIG.some_replicates else Grade.NOTE
