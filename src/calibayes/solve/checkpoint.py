"""Progress of a calibration in a file, so that a killed run continues where it was.

A calibration is a sequence of named stages (initial draws, search, solution, audit, ...). A `Checkpoint` holds the
result of every completed stage, and the state of sampler and search after each iteration of an unfinished one. The same
call made again takes the completed stages from the file and continues with the rest. Nothing else influences the
computation, so that the result is bit for bit the same. A run locks its file, so that another run cannot replace it.
"""

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from calibayes._backend import treefile
from calibayes._backend.distributed import is_main_process
from calibayes._backend.files import remove_temporary_files, stored_checksum
from calibayes._backend.fingerprint import digest
from calibayes._backend.lock import LockedError, lock_file, lock_path
from calibayes._backend.warnings import CalibrationWarning, CheckpointError
from calibayes._core.target import Target

T = TypeVar("T")

_PLAIN = (str, int, float, type(None))
_MAX_DISPLAYED = 40


class Checkpoint:
    """Stages of a calibration, in memory and, with a path, in a file.

    Parameters
    ----------
    path : Path or None
        File to continue from and to save to; None keeps nothing.
    fingerprint : dict of str to str
        Digests of everything that the calibration depends on, except for the number of iterations.
    max_iterations : int
        Maximum number of iterations of this call.
    trusted : frozenset of str
        Modules of the user's own sampler, kernel and search, whose states may be stored.

    Raises
    ------
    CheckpointError
        If the file is damaged or belongs to another calibration.
    """

    def __init__(
        self,
        path: Path | None = None,
        fingerprint: dict[str, str] | None = None,
        max_iterations: int = 1,
        trusted: frozenset[str] = frozenset(),
    ):
        self.path = path
        self.trusted = trusted
        self.header: dict[str, Any] = {"fingerprint": fingerprint or {}, "max_iterations": max_iterations}
        self.loaded_checksum = ""
        self._stages: dict[str, Any] = {}
        self._target: Target | None = None
        self._build: Callable[[treefile.Restore], Any] | None = None
        self._previous_max_iterations = max_iterations
        if path is not None and path.exists():
            header, self._build = treefile.read(path, trusted)
            self._require_same_run(header)
            self._previous_max_iterations = header["max_iterations"]
            self.header["in_double"] = header.get("in_double") is True
            self.loaded_checksum = stored_checksum(path)

    @property
    def allows_more_iterations(self) -> bool:
        """Whether this call allows more iterations than the one that wrote the file."""
        return self.header["max_iterations"] > self._previous_max_iterations

    @property
    def in_double(self) -> bool:
        """Whether the run was repeated in double precision."""
        return bool(self.header.get("in_double", False))

    def restart_in_double(self) -> None:
        """Forget all stages, because the run is repeated in double precision."""
        self.header["in_double"] = True
        self._stages, self._build = {}, None

    def load(self, target: Target) -> None:
        """Restore the stages from the file; targets in it are `target` with another reference."""
        self._target = target
        if self._build is None:
            return
        stages, self._build = self._build(self._restore), None
        if not isinstance(stages, dict) or not all(isinstance(name, str) for name in stages):
            raise CheckpointError(f"checkpoint {str(self.path)!r} is damaged. Remove it to start afresh.")
        self._stages = stages

    def get(self, name: str) -> Any:
        """Return the stored value of a stage, None if there is none."""
        return self._stages.get(name)

    def put(self, name: str, value: object) -> None:
        """Store the value of a stage and save the file."""
        if self.path is not None:
            self._stages[name] = value
            self.save()

    def discard(self, *names: str) -> None:
        """Forget stages whose values are no longer valid."""
        for name in names:
            self._stages.pop(name, None)

    def stage(self, name: str, compute: Callable[[], T]) -> T:
        """Return the stored value of a stage, or compute, store and return it."""
        if name in self._stages:
            return self._stages[name]
        value = compute()
        self.put(name, value)
        return value

    def save(self) -> None:
        """Write the file. A full disk must not end a long run, so that an error is only a warning."""
        if self.path is None or not is_main_process():
            return
        try:
            treefile.write(self.path, self.header, self._stages, self.trusted, self._replace)
        except OSError as error:
            message = (
                f"checkpoint {str(self.path)!r} could not be written: {error.strerror}. The calibration continues."
            )
            warnings.warn(message, CalibrationWarning, stacklevel=2)

    def _require_same_run(self, header: dict[str, Any]) -> None:
        ours, theirs = self.header["fingerprint"], header.get("fingerprint")
        if not isinstance(theirs, dict):
            raise CheckpointError(f"checkpoint {str(self.path)!r} does not name its calibration. Remove it.")
        differing = [
            _difference(name, theirs.get(name), value) for name, value in ours.items() if theirs.get(name) != value
        ]
        if differing:
            raise CheckpointError(
                f"checkpoint {str(self.path)!r} belongs to another calibration, which differs in "
                f"{', '.join(differing)}. Repeat the same call to continue it; to start afresh, remove the file or "
                "name another."
            )
        before = header.get("max_iterations")
        if not isinstance(before, int) or self.header["max_iterations"] < before:
            raise CheckpointError(
                f"checkpoint {str(self.path)!r} is of a run with max_iterations = {before}. To continue it, allow at "
                f"least as many; got {self.header['max_iterations']}."
            )

    def _replace(self, value: object) -> object:
        """Store a target as its reference: the data are the caller's."""
        return {"reference": value.reference} if isinstance(value, Target) else None

    def _restore(self, stand_in: Any) -> Target:
        reference, target = stand_in["reference"], self._target
        if target is None or (reference.shape, reference.dtype) != (target.reference.shape, target.reference.dtype):
            raise ValueError("the reference belongs to another target.")
        same = np.array_equal(np.asarray(reference), np.asarray(target.reference))
        return target if same else target.recentre(reference)


def check_path(path: object) -> Path:
    """Return the resolved path of a checkpoint, or raise if a file there could not be written."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"checkpoint must be the path of a file; got {path!r}.")
    path = Path(path).expanduser().resolve()
    if path.is_dir():
        raise CheckpointError(f"checkpoint must be a file, but {str(path)!r} is a directory. Name a file in it.")
    if not path.parent.is_dir():
        raise CheckpointError(f"checkpoint: the directory {str(path.parent)!r} does not exist. Create it first.")
    if path.exists() and not path.is_file():
        raise CheckpointError(f"checkpoint must be a regular file, but {str(path)!r} is not.")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise CheckpointError(f"checkpoint: the directory {str(path.parent)!r} is not writable.")
    return path


@contextmanager
def lock_checkpoint(path: Path | None) -> Iterator[None]:
    """Keep other runs from using a checkpoint, and remove temporary files that killed runs left behind.

    Does nothing without a path, and in processes that do not write files.

    Raises
    ------
    CheckpointError
        If a run that is still alive uses the file, or the lock file cannot be written.
    """
    if path is None or not is_main_process():
        yield
        return
    with ExitStack() as stack:
        try:
            stack.enter_context(lock_file(path))
        except LockedError as error:
            raise CheckpointError(
                f"checkpoint {str(path)!r} is in use by {error}. Wait for the end of that calibration, or name another "
                f"file. If it has ended, remove {lock_path(path).name!r}."
            ) from None
        except OSError as error:
            raise CheckpointError(f"checkpoint {str(path)!r} cannot be locked: {error.strerror}.") from None
        remove_temporary_files(path)
        yield


def fingerprint(parts: dict[str, Any]) -> dict[str, str]:
    """Return digests of the parts of a call, and of the software and device that determine its result."""
    from calibayes import __version__

    device = jax.devices()[0]
    return {
        **{name: repr(value) if isinstance(value, _PLAIN) else digest(value) for name, value in parts.items()},
        "calibayes": __version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        # User functions are compared by bytecode, which changes with the Python version.
        "python": ".".join(map(str, sys.version_info[:2])),
        "device": f"{device.platform} {device.device_kind}",
        "floats": np.dtype(jax.dtypes.canonicalize_dtype(float)).name,
    }


def _difference(name: str, theirs: object, ours: str) -> str:
    if not isinstance(theirs, str) or max(len(theirs), len(ours)) > _MAX_DISPLAYED:
        return name
    return f"{name} ({theirs} in the file, {ours} in this call)"
