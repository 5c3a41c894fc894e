"""How a call ended: an answer, a status that says it is none, or an error; of ours, or from deep inside."""

import re
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
from calibayes.solve import seek
from calibayes.solve.found import UNKNOWN_ERROR

OURS = Path(cb.__file__).parent
_COMPILED = "/jax/core/compile/backend_compile_duration"
_PLAIN = (ValueError, TypeError, RuntimeError, NotImplementedError)
_count = {"compiled": 0}


def _listen(event: str, _: float, **__: Any) -> None:
    _count["compiled"] += event == _COMPILED


jax.monitoring.register_event_duration_secs_listener(_listen)


def compilations() -> int:
    """Programs that were compiled so far."""
    return _count["compiled"]


class ReachedError(Exception):
    """A sampler was about to start."""


@contextmanager
def no_sampler() -> Iterator[None]:
    """Calibrations end where the first sampler would start."""

    def reached(*_: Any, **__: Any) -> None:
        raise ReachedError

    with patch.object(seek, "run", reached):
        yield


@dataclass(frozen=True)
class Ending:
    kind: str
    """answer, not converged, refused, reached, or wrong."""
    said: str
    jit: int
    result: Any = None

    @property
    def template(self) -> str:
        """What was said, without the values that it was said of."""
        return re.sub(r"(?<=got ).*|'[^']*'|[-+]?\d[\d.,e+-]*", "#", self.said)


def attempt(call: Callable[[], Any]) -> Ending:
    """Make a call, and judge how it ended."""
    before = compilations()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            found: Any = call()
        except ReachedError:
            return Ending("reached", "", compilations() - before)
        except Exception as error:
            kind = "refused" if _is_ours(error) else "wrong"
            return Ending(kind, _said(error, kind), compilations() - before)
    jit = compilations() - before
    flaw = flaw_of(found, [warning.category for warning in warned])
    if flaw:
        return Ending("wrong", flaw, jit, found)
    return Ending("answer" if found.converged else "not converged", found.message, jit, found)


def _is_ours(error: Exception) -> bool:
    """Raised by a statement of ours, or by scikit-learn's own checks, with something to read."""
    last = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    ours = OURS in last.parents or "sklearn/utils" in last.as_posix()
    return ours and isinstance(error, _PLAIN) and len(str(error)) > 15


def _said(error: Exception, kind: str) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = "" if kind == "refused" else f"{last.filename}:{last.lineno} "
    return f"{where}{type(error).__name__}: {error}"


def flaw_of(result: cb.Result, warned: list[type]) -> str:
    """What is wrong with a result, if anything: a number that is none, or a failure that it keeps to itself."""
    numbers = {
        "eta": result.eta,
        "coverage": float(result.coverage),
        "draws": result.draws,
        "risk": result.risk,
        "estimate": result.estimate,
    }
    if result.converged and UNKNOWN_ERROR not in result.concerns:
        numbers["eta_se"] = result.eta_se
    lost = [name for name, value in numbers.items() if not np.isfinite(value).all()]
    if lost:
        return f"not finite: {', '.join(lost)} (converged: {result.converged}, {result.message})"
    if not (result.eta > 0 and 0 <= result.coverage <= 1 and len(result.message) > 15):
        return f"eta {result.eta}, coverage {result.coverage}, message {result.message!r}"
    told = any(issubclass(category, cb.CalibrationWarning) for category in warned)
    if not result.converged and not (told and "NOT CONVERGED" in repr(result) and result.message in repr(result)):
        return f"not converged, and silent about it: {result!r}"
    return ""
