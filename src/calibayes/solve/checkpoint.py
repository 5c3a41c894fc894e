"""A calibration that can be killed at any moment and goes on where it was.

By replay. The loop hands whatever takes time to a `Journal`, step by step; a `Checkpoint` is a journal in a file. When
the same call is made again the loop runs again from its beginning, and is given what is in the file instead of
computing it, until there is no more. So the search, the refinement, the audit and the fallback are written down once,
without a word about where they could have been cut, and what is cheap to find again is not stored. What makes the end
bit for bit the same is that nothing in between depends on anything but those steps.

States are large: only those are kept that may be asked for again, from the last move on, the best one's, and what the
fallback would return to. Of others, what was derived from them is enough.
"""

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from calibayes._backend import treefile
from calibayes._backend.distributed import leads
from calibayes._backend.fingerprint import digest
from calibayes._backend.treefile import Gone
from calibayes._backend.warnings import CalibrationWarning, CheckpointError
from calibayes._core.target import Target
from calibayes._validate.checks import Observations
from calibayes.bootstrap import Bootstrap
from calibayes.model import GibbsModel

T = TypeVar("T")

_STATES = ("init", "move", "mend", "last mend")
_WRITTEN = (str, int, float, type(None))
_READABLE = 40


class Journal:
    """What the loop hands its steps to. This one keeps nothing."""

    def step(self, name: str, compute: Callable[[], T], best: Any = None) -> T:  # noqa: ARG002
        """What took long, and is saved at once; `best` is the state to return to, if there is one."""
        return compute()

    def note(self, name: str, compute: Callable[[], T]) -> T:  # noqa: ARG002
        """What is derived from a state: saved with the next step, as it can be found again until then."""
        return compute()

    def hold(self, state: Any) -> None:
        """Keep this state whatever comes."""


class Checkpoint(Journal):
    """Steps in a file, named in their order."""

    def __init__(self, path: Path, fingerprint: dict[str, str], max_iterations: int):
        """Of a file that is there or not. Raises if it is of another run, or if it could not be written."""
        self.path = path
        self.header: dict[str, Any] = {"fingerprint": fingerprint, "max_iterations": max_iterations}
        self._names: list[str] = []
        self._values: list[Any] = []
        self._at = 0
        self._held: list[Any] = []
        self._unsaved = False
        self._stored: Callable[[Target | None], Any] | None = None
        self.found = ""
        """What tells the file that was there from others; nothing if there was none."""
        if path.exists():
            header, self._stored = treefile.read(path)
            self._require_same(header)
            self.found = treefile.checksum(path)

    def _require_same(self, header: dict[str, Any]) -> None:
        ours, theirs = self.header["fingerprint"], header.get("fingerprint")
        if not isinstance(theirs, dict):
            raise CheckpointError(f"checkpoint {str(self.path)!r} does not say what it is of: remove it.")
        other = [name for name, value in ours.items() if theirs.get(name) != value]
        if other:
            differing = ", ".join(_difference(name, theirs.get(name), ours[name]) for name in other)
            raise CheckpointError(
                f"checkpoint {str(self.path)!r} is of another calibration, by its {differing}. To go on with it, make "
                "the same call as before; to start afresh, remove the file or name another."
            )
        before = header.get("max_iterations")
        if not isinstance(before, int) or self.header["max_iterations"] < before:
            raise CheckpointError(
                f"checkpoint {str(self.path)!r} is of a run with max_iterations = {before}: to go on with it, allow as "
                f"many or more; got {self.header['max_iterations']}."
            )

    def begin(self, live: Target | None) -> None:
        """With the target as the call made it."""
        self.live = live
        if self._stored is not None:
            steps, self._stored = self._stored(live), None
            if not isinstance(steps, list) or any(type(step) is not tuple or len(step) != 2 for step in steps):
                raise CheckpointError(f"checkpoint {str(self.path)!r} is damaged: remove it to start afresh.")
            self._names, self._values = [name for name, _ in steps], [value for _, value in steps]

    def step(self, name: str, compute: Callable[[], T], best: Any = None) -> T:
        known = self._known(name)
        value = self.note(name, compute)
        if not known:
            self._drop(best)
            self.save()
        return value

    def note(self, name: str, compute: Callable[[], T]) -> T:
        if not self._known(name):
            # More iterations are allowed than before: what came after the last of them is no more.
            del self._names[self._at :], self._values[self._at :]
            self._values.append(compute())
            self._names.append(name)
            self._unsaved = True
        self._at += 1
        return self._values[self._at - 1]

    def hold(self, state: Any) -> None:
        self._held.append(state)

    def save(self) -> None:
        """Write what has been done so far, if there is anything new. A full disk must not end a long run."""
        if not (self._unsaved and leads()):
            return
        try:
            treefile.write(self.path, self.header, list(zip(self._names, self._values, strict=True)), self.live)
            self._unsaved = False
        except OSError as error:
            message = f"checkpoint {str(self.path)!r} could not be written: {error.strerror}. The run goes on."
            warnings.warn(message, CalibrationWarning, stacklevel=2)

    def _known(self, name: str) -> bool:
        return self._at < len(self._names) and self._names[self._at] == name

    def _drop(self, best: Any) -> None:
        """The states that nothing asks for any more: all but those since the last move, the best and those held."""
        moves = [i for i, name in enumerate(self._names) if name in ("init", "move")]
        kept = [*self._held, best, *(self._values[moves[-1] :] if moves else [])]
        gone: dict[int, Gone] = {}
        for i, name in enumerate(self._names):
            value = self._values[i]
            if name in _STATES and not any(value is other for other in kept):
                # The same for the same state: whether mending changed it must not be forgotten.
                self._values[i] = gone.setdefault(id(value), Gone()) if not isinstance(value, Gone) else value


def check_path(path: Any) -> Path:
    """Where a checkpoint is or will be; it can be written."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"checkpoint must be the path of a file; got {path!r}.")
    path = Path(path).expanduser().resolve()
    if path.is_dir():
        raise CheckpointError(f"checkpoint must be a file, and {str(path)!r} is a directory: name a file in it.")
    if not path.parent.is_dir():
        raise CheckpointError(f"checkpoint: there is no directory {str(path.parent)!r}: make it first.")
    if path.exists() and not path.is_file():
        raise CheckpointError(f"checkpoint must be a file, and {str(path)!r} is something else.")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise CheckpointError(f"checkpoint: nothing can be written to the directory {str(path.parent)!r}.")
    return path


def fingerprint(
    model: GibbsModel, observations: Observations, rows: Bootstrap | np.ndarray, settings: dict[str, Any]
) -> dict[str, str]:
    """What a run depends on, but for the number of iterations."""
    from calibayes import __version__

    parts = {
        "data": observations.data,
        "loss": model.loss,
        "prior": model.prior,
        "number of parameters": observations.dim,
        "bootstrap": rows,
        **settings,
    }
    device = jax.devices()[0]
    return {
        **{name: repr(value) if isinstance(value, _WRITTEN) else digest(value) for name, value in parts.items()},
        "calibayes": __version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        # Bytecode is another with every version.
        "python": ".".join(map(str, sys.version_info[:2])),
        "device": f"{device.platform} {device.device_kind}",
        "floats": np.dtype(jax.dtypes.canonicalize_dtype(float)).name,
    }


def _difference(name: str, theirs: Any, ours: str) -> str:
    if not isinstance(theirs, str) or max(len(theirs), len(ours)) > _READABLE:
        return name
    return f"{name} ({theirs} there, {ours} here)"
