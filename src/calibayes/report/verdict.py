"""Whether a result can be reported: every check with its value, and what it means."""

import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from calibayes.found import NOT_AUDITED
from calibayes.result import Intervals, Result
from calibayes.samplers import Transport

_LARGE_ERROR, _HOPELESS_ERROR = 0.1, 0.5
"""Of eta, relative to it. Widths go with the square root of eta, so theirs is half of it."""
_MANY_REPAIRED = 0.1
_FEW_EFFECTIVE, _COLLAPSED = 100.0, 10.0


class Grade(IntEnum):
    """In order: the worst of the checks is the verdict."""

    GOOD = 0
    CARE = 1
    BAD = 2


VERDICTS = {
    Grade.GOOD: "You can report this",
    Grade.CARE: "Report with care",
    Grade.BAD: "Do not report this",
}


@dataclass(frozen=True)
class Check:
    name: str
    value: str
    meaning: str
    grade: Grade


def checks(result: Result, own: Intervals | None) -> list[Check]:
    """What a referee would ask, answered from the result alone."""
    found = [_search(result), _error(result), _coverage(result), _effective(result), _repaired(result)]
    found += [_audit(result)] if isinstance(result.settings.get("sampler"), Transport) else []
    found += [_own(own)] if own is not None else []
    return found + [
        Check("Warning", concern, "Raised by the calibration.", Grade.CARE) for concern in _concerns(result)
    ]


def verdict(found: list[Check]) -> Grade:
    return max(check.grade for check in found)


def _search(result: Result) -> Check:
    outcome = _sentence(result.message.split("; ")[0])
    if result.converged:
        return Check("Search", "converged", f"{outcome}.", Grade.GOOD)
    return Check("Search", "not converged", f"{outcome}. This learning rate is not calibrated.", Grade.BAD)


def _error(result: Result) -> Check:
    name, relative = "Error of η", result.eta_se / result.eta
    if not math.isfinite(relative):
        meaning = "The coverage curve does not reach far enough to tell how sure this learning rate is."
        return Check(name, "unknown", meaning, Grade.BAD)
    meaning = f"Widths of intervals go with η to the power −1/2, so they are known to about {relative / 2:.1%}."
    if relative > _LARGE_ERROR:
        meaning += " More bootstrap samples make this smaller."
    grade = Grade.BAD if relative > _HOPELESS_ERROR else Grade.CARE if relative > _LARGE_ERROR else Grade.GOOD
    return Check(name, f"{relative:.1%} of η", meaning, grade)


def _coverage(result: Result) -> Check:
    low, high = result.coverage.interval
    value = f"{float(result.coverage):.1%} ({low:.1%} to {high:.1%})"
    if low <= result.level <= high:
        meaning = f"The interval holds the level, {result.level:g}. η was chosen on these same samples, so it should."
        return Check("Coverage", value, meaning, Grade.GOOD)
    meaning = f"The interval does not hold the level, {result.level:g}: the sets do not cover as often as they say."
    return Check("Coverage", value, meaning, Grade.CARE if result.converged else Grade.BAD)


def _effective(result: Result) -> Check:
    name = "Effective draws"
    if not len(result.curve.etas):
        return Check(name, "no curve", "The coverage curve could not be drawn.", Grade.BAD)
    nearest = int(np.argmin(np.abs(np.log(result.curve.etas / result.eta))))
    size = float(result.curve.ess[nearest])
    meaning = "Of a typical bootstrap sample at η. "
    meaning += "Enough to place the estimate in its set." if size >= _FEW_EFFECTIVE else "Few draws bias η low."
    grade = Grade.GOOD if size >= _FEW_EFFECTIVE else Grade.CARE if size >= _COLLAPSED else Grade.BAD
    return Check(name, f"{size:,.0f}", meaning, grade)


def _repaired(result: Result) -> Check:
    rows, n = len(result.repaired_rows), result.coverage.n_rows
    meaning = "Bootstrap samples that the first sampler could not do, and that a slower one did."
    grade = Grade.GOOD
    if rows > _MANY_REPAIRED * n:
        meaning += " So many say that the posteriors differ much between samples, or are far from normal."
        grade = Grade.CARE
    return Check("Sampled again", f"{rows:,} of {n:,}", meaning, grade)


def audited(result: Result) -> bool:
    """Whether an independent sampler agreed."""
    sampler = result.settings.get("sampler")
    asked = isinstance(sampler, Transport) and sampler.audit
    return asked and result.converged and not any(concern.startswith(NOT_AUDITED) for concern in result.concerns)


def _audit(result: Result) -> Check:
    name = "Second opinion"
    if not result.settings["sampler"].audit:
        meaning = 'No independent sampler looked for modes or bounds that no draw came to: sampler="auto" would.'
        return Check(name, "not asked for", meaning, Grade.CARE)
    if not audited(result):
        return Check(name, "none", "The audit by an independent sampler was not held.", Grade.CARE)
    meaning = "An independent sampler that started from the prior found the same on twenty of the bootstrap samples."
    held_for = result.settings.get("audited")
    if held_for != result.region.name:
        return Check(name, f"agrees, for {held_for}", f"{meaning} But it was asked of other sets.", Grade.GOOD)
    return Check(name, "agrees", meaning, Grade.GOOD)


def _own(own: Intervals) -> Check:
    name, lost = "Own intervals", [own.names[k] for k in np.flatnonzero(~own.converged)]
    vague = [own.names[k] for k in np.flatnonzero(own.converged & ~np.isfinite(own.eta_se))]
    if not lost and vague:
        meaning = f"How sure the learning rates are of {', '.join(vague)} is not known."
        return Check(name, f"{len(vague)} without an error", meaning, Grade.CARE)
    if not lost:
        return Check(name, "all converged", "Each parameter's own calibration ended well.", Grade.GOOD)
    return Check(name, f"{len(lost)} not converged", f"Do not use those of {', '.join(lost)}.", Grade.CARE)


def _concerns(result: Result) -> list[str]:
    return [_sentence(concern) for concern in result.concerns]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
