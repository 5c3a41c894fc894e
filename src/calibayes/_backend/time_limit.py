"""A time limit on a computation.

Compiled programs check the limit before they run (`calibayes._backend.jit`). A computation therefore ends at the first
program after the limit, and neither a running program nor a compilation is cut short.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class TimeLimitError(TimeoutError):
    """The time limit has passed."""


class _Limit(NamedTuple):
    seconds: float
    deadline: float


_limit: ContextVar[_Limit | None] = ContextVar("time limit", default=None)


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Limit the time of the computations inside the context; with None, lift the limit of an outer context."""
    token = _limit.set(None if seconds is None else _Limit(seconds, time.monotonic() + seconds))
    try:
        yield
    finally:
        _limit.reset(token)


def has_time_limit() -> bool:
    """Return whether the context has a time limit."""
    return _limit.get() is not None


def check_time_limit() -> None:
    """Raise a `TimeLimitError` if the time limit of the context has passed."""
    limit = _limit.get()
    if limit is not None and time.monotonic() > limit.deadline:
        raise TimeLimitError(
            f"the time limit of {limit.seconds:g} s (max_seconds=) passed before the coverage was known at any "
            "learning rate. Allow more time, or use fewer bootstrap replicates."
        )
