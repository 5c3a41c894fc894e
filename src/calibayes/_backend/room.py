"""Room for what is compiled.

Every program that XLA compiles for a processor maps memory, and a calibration of a new shape has some thousand pieces.
Linux allows a process so many maps (65,530 unless told) and XLA aborts it at one more: after a few dozen shapes, in a
notebook or a cross-validation.
"""

import gc
import time
from pathlib import Path

import jax

_MAPS, _LIMIT = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
_SHARE = 0.6
_looked = -float("inf")


def make_room(share: float = _SHARE, every: float = 0.0) -> bool:
    """Forget what was compiled if its maps take more than a share of those allowed; it is compiled anew when needed.

    Looked at once in so many seconds.
    """
    global _looked
    if time.monotonic() < _looked + every or not (_MAPS.exists() and _LIMIT.exists()):
        return False
    _looked = time.monotonic()
    if _MAPS.read_bytes().count(b"\n") <= share * int(_LIMIT.read_text()):
        return False
    jax.clear_caches()
    gc.collect()
    return True
