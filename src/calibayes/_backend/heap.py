"""Return freed memory to the system.

The compiler returns its memory to the C library, which keeps it: several hundred megabytes for one calibration.
"""

import ctypes
import time
from collections.abc import Callable
from functools import cache

_last_release = -float("inf")
"""Time of the last release, by `time.monotonic`."""


def release_freed_memory(min_interval: float = 0.0) -> None:
    """Return freed memory to the system, where the C library can.

    Parameters
    ----------
    min_interval : float
        Smallest time since the last release, in seconds; earlier calls do nothing. A release takes about 20 ms.
        Default: 0.
    """
    global _last_release
    trim = _malloc_trim()
    if trim is not None and time.monotonic() >= _last_release + min_interval:
        trim(0)
        _last_release = time.monotonic()


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """Return the function of the GNU C library; None for other libraries."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
