"""Room for what is compiled.

Every program that XLA compiles for a processor maps memory, and a calibration of a new shape has some thousand pieces.
Linux allows a process so many maps (65,530 unless told) and XLA aborts it at one more: after a few dozen shapes, in a
notebook or a cross-validation.
"""

import gc
from pathlib import Path

import jax

_MAPS, _LIMIT = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
_SHARE = 0.6


def make_room(share: float = _SHARE) -> bool:
    """Forget what was compiled if its maps take more than a share of those allowed; it is compiled anew when needed."""
    if not (_MAPS.exists() and _LIMIT.exists()):
        return False
    if _MAPS.read_bytes().count(b"\n") <= share * int(_LIMIT.read_text()):
        return False
    jax.clear_caches()
    gc.collect()
    return True
