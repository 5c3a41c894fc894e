"""How a call ended: with an answer, with a status that reports a failure, or with an error, ours or an internal one."""

import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import numpy as np

import calibayes as cb
from calibayes._core.status import Code
from calibayes.solve.solver import Solver

PACKAGE = Path(cb.__file__).parent
_COMPILATION = "/jax/core/compile/backend_compile_duration"
_ERRORS = (ValueError, TypeError, RuntimeError, NotImplementedError)
_MIN_MESSAGE = 15
"""Length in characters that a useful message has at least."""
_count = {"compilations": 0}


def _listen(event: str, duration_secs: float, **_: Any) -> None:  # noqa: ARG001
    _count["compilations"] += event == _COMPILATION


jax.monitoring.register_event_duration_secs_listener(_listen)


def compilations() -> int:
    """Return the number of programs compiled in this process."""
    return _count["compilations"]


class AcceptedError(Exception):
    """All checks passed and a sampler would start."""


@contextmanager
def no_sampler() -> Iterator[None]:
    """End calibrations with `AcceptedError` where the first sampler would start."""

    def accept(*_: Any, **__: Any) -> None:
        raise AcceptedError

    # Programs that are compiled in the background would count as compiled by a later call.
    module = sys.modules["calibayes.calibrate"]
    with patch.object(Solver, "draw_initial", accept), patch.object(module, "prefetch_programs", lambda _: None):
        yield


@dataclass(frozen=True)
class Outcome:
    """The outcome of a call.

    Attributes
    ----------
    kind : str
        `answer`, `not converged`, `rejected` (an error of the library), `accepted` (a sampler would have started) or
        `wrong`.
    message : str
        The error message, or the message of the result.
    compiled : int
        Number of programs compiled.
    result : Result or None
        The result, if there is one.
    """

    kind: str
    message: str
    compiled: int
    result: cb.Result | None = None

    @property
    def template(self) -> str:
        """The message without the values that it reports."""
        return re.sub(r"(?<=got ).*|'[^']*'|[-+]?\d[\d.,e+-]*", "#", self.message)


def attempt(call: Callable[[], Any]) -> Outcome:
    """Make a call and classify its outcome."""
    before = compilations()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result: Any = call()
        except AcceptedError:
            return Outcome("accepted", "", compilations() - before)
        except Exception as error:
            kind = "rejected" if _is_ours(error) else "wrong"
            return Outcome(kind, _describe(error, kind), compilations() - before)
    compiled = compilations() - before
    defect = find_defect(result, [warning.category for warning in caught])
    if defect:
        return Outcome("wrong", defect, compiled, result)
    return Outcome("answer" if result.converged else "not converged", result.message, compiled, result)


def _is_ours(error: Exception) -> bool:
    """Return whether an error was raised by this package, or by the input checks of scikit-learn, with a message."""
    last = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    ours = PACKAGE in last.parents or "sklearn/utils" in last.as_posix()
    return ours and isinstance(error, _ERRORS) and len(str(error)) > _MIN_MESSAGE


def _describe(error: Exception, kind: str) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = "" if kind == "rejected" else f"{last.filename}:{last.lineno} "
    return f"{place}{type(error).__name__}: {error}"


def find_defect(result: cb.Result, warned: list[type[Warning]]) -> str:
    """Return what is wrong with a result: a number that is not finite, or a failure without a warning; or nothing."""
    numbers: dict[str, Any] = {
        "eta": result.eta,
        "coverage": float(result.coverage),
        "draws": result.draws,
        "risk": result.risk,
        "estimate": result.estimate,
    }
    if result.converged and all(finding.code is not Code.ETA_SE_UNKNOWN for finding in result.diagnostics):
        numbers["eta_se"] = result.eta_se
    not_finite = [name for name, value in numbers.items() if not np.isfinite(value).all()]
    if not_finite:
        return f"not finite: {', '.join(not_finite)} (converged: {result.converged}, {result.message})"
    if not (result.eta > 0 and 0 <= result.coverage <= 1 and len(result.message) > _MIN_MESSAGE):
        return f"eta {result.eta}, coverage {result.coverage}, message {result.message!r}"
    has_warning = any(issubclass(category, cb.CalibrationWarning) for category in warned)
    is_shown = "NOT CONVERGED" in repr(result) and result.message in repr(result)
    if not result.converged and not (has_warning and is_shown):
        return f"not converged without a warning: {result!r}"
    return ""
