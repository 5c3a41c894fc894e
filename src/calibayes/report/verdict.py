"""Whether a result can be reported: every check with its value, and what it means."""

import math
import re
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from calibayes.result import Intervals, Result
from calibayes.samplers import Transport
from calibayes.solve.found import FAILED, FELL_BACK, NOT_AUDITED, UNKNOWN_ERROR

_LARGE_ERROR, _HOPELESS_ERROR = 0.1, 0.5
"""Of eta, relative to it. Widths go with the square root of eta, so theirs is half of it."""
_MANY_REPAIRED, _MOST_REPAIRED = 0.1, 0.5
_SOME_ROWS, _MANY_ROWS = 0.02, 0.2
"""Shares of the bootstrap samples on which something was amiss."""
FEW_OBSERVATIONS, _ENOUGH = 100, 500
"""A parameter; by the study that `docs/results.md` tells of."""
_FEW_EFFECTIVE, _COLLAPSED = 100.0, 10.0


class Grade(IntEnum):
    """In order: the worst of the checks is the verdict."""

    GOOD = 0
    NOTED = 1
    """Good to know; it takes nothing from the result."""
    CARE = 2
    BAD = 3


VERDICTS = {
    Grade.GOOD: "You can report this",
    Grade.NOTED: "You can report this",
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
    found = [_search(result), _error(result), _coverage(result), *_observations(result), _effective(result)]
    found += [_fell_back(result)] if FELL_BACK in result.concerns else [_repaired(result)]
    found += [_audit(result)] if isinstance(result.settings.get("sampler"), Transport) else []
    found += [_own(own)] if own is not None else []
    return found + _concerns(result)


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


def _observations(result: Result) -> list[Check]:
    """Whether there are so many that the bootstrap is near to what it stands for; if it is known how many there are."""
    n, parameters = observations(result), len(result.names)
    if n is None:
        return []
    value = f"{n:,} for {parameters} parameter{'s' * (parameters > 1)}"
    if n >= _ENOUGH * parameters:
        return [Check("Observations", value, "Enough for the bootstrap.", Grade.GOOD)]
    meaning = (
        "The bootstrap is too hopeful on few observations, and no check here can see it. In our study of median "
        "regression with 2 parameters, 95% sets covered the truth in about 90% of datasets of 100 observations, 92% of "
        "400 and 96% of 1,600."
    )
    few = n < FEW_OBSERVATIONS * parameters
    return [Check("Observations", value, meaning, Grade.CARE if few else Grade.NOTED)]


def observations(result: Result) -> int | None:
    n = result.settings.get("n")
    return int(n) if n is not None else None if result.counts is None else result.counts.shape[1]


def _repaired(result: Result) -> Check:
    rows, n = len(result.repaired_replicates), result.coverage.n_replicates
    meaning = "Bootstrap samples that the first sampler could not do, and that a slower one did."
    grade = Grade.GOOD
    if rows > _MANY_REPAIRED * n:
        meaning += " So many say that the posteriors differ much between samples, or are far from normal."
        grade = Grade.CARE if rows > _MOST_REPAIRED * n else Grade.NOTED
    return Check("Sampled again", f"{rows:,} of {n:,}", meaning, grade)


def _fell_back(result: Result) -> Check:
    """Another sampler did it all, and stood up to the same audit, or the search says that it did not."""
    why = " and ".join(concern for concern in result.concerns if concern.startswith(FAILED))
    meaning = f"{_sentence(why)}, {FELL_BACK}. That is slower, and this answer is its own."
    return Check("Sampler", "fell back", meaning, Grade.NOTED if result.converged else Grade.BAD)


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
        why = next((concern for concern in result.concerns if concern.startswith(NOT_AUDITED)), "not held")
        return Check(name, "none", f"The audit by an independent sampler: {why}.", Grade.CARE)
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


def _concerns(result: Result) -> list[Check]:
    """Those that no other check tells of."""
    told = ["the effective size of a row is only", UNKNOWN_ERROR] + [FAILED, FELL_BACK] * (FELL_BACK in result.concerns)
    if isinstance(result.settings.get("sampler"), Transport):
        told.append(NOT_AUDITED)
    return [
        Check("Warning", _sentence(concern), "Raised by the calibration.", _seriousness(concern, result))
        for concern in result.concerns
        if not concern.startswith(tuple(told))
    ]


def _seriousness(concern: str, result: Result) -> Grade:
    """By the share of bootstrap samples that it is about, where it says how many."""
    rows = re.search(r"\bon (\d+) rows\b", concern)
    if rows:
        share = int(rows[1]) / result.coverage.n_replicates
        return Grade.BAD if share > _MANY_ROWS else Grade.CARE if share > _SOME_ROWS else Grade.NOTED
    return Grade.NOTED if concern.startswith("the loss was NaN at") else Grade.CARE


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
