"""Exclusive use of a file by one process, by a lock file next to it.

Where it can, the operating system holds the lock (`fcntl.flock`). It releases the lock when the process ends, however
that happens, so that the next process takes over the lock file of a killed one.

Elsewhere, the existence of the lock file is the lock. The file states the id and the host of its process, so that the
lock of a process that has ended is recognized on the same host.
"""

import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

_MAX_ATTEMPTS = 100
"""Number of attempts to open a lock file that other processes remove at the same time."""


class Owner(NamedTuple):
    """Process that holds a lock; without an id if the lock file does not state it."""

    pid: int | None
    host: str

    def __str__(self) -> str:
        return "another process" if self.pid is None else f"process {self.pid} on {self.host}"


class LockedError(Exception):
    """Another process, or another call in this process, holds the lock."""

    def __init__(self, owner: Owner):
        super().__init__(str(owner))


def lock_path(path: Path) -> Path:
    """Return the path of the lock file of a file."""
    return path.with_name(f"{path.name}.lock")


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Hold the lock of a file; its lock file is removed afterwards.

    Raises
    ------
    LockedError
        If the lock is held. The error names the process that holds it.
    OSError
        If the lock file cannot be written.
    """
    lock = lock_path(path)
    handle, locked = _acquire(lock)
    if not locked:
        os.close(handle)
    try:
        yield
    finally:
        # A file that is locked is removed before the lock is released: later, it could be that of another process.
        with suppress(OSError):
            lock.unlink()
        if locked:
            os.close(handle)


def _acquire(lock: Path) -> tuple[int, bool]:
    """Return a handle of the lock file, and whether the operating system holds its lock."""
    for _ in range(_MAX_ATTEMPTS):
        created, handle = _open(lock)
        if handle is None:
            continue
        try:
            locked = _try_lock(handle)
            is_current = _is_current(handle, lock)
            if is_current and (locked or (locked is None and created)):
                os.truncate(handle, 0)
                os.write(handle, json.dumps(Owner(os.getpid(), socket.gethostname())).encode())
                return os.dup(handle), bool(locked)
            owner = _read_owner(lock)
            if is_current and (locked is False or not _has_ended(owner)):
                raise LockedError(owner)
            if is_current:
                # While the file is open, no other file has its number.
                _remove_stale(lock, os.fstat(handle))
        finally:
            os.close(handle)
    raise LockedError(_read_owner(lock))


def _remove_stale(lock: Path, status: os.stat_result) -> None:
    """Remove the lock file with this status, unless another process has replaced it by its own meanwhile."""
    moved = lock.with_name(f"{lock.name}.{os.getpid()}")
    with suppress(FileNotFoundError):
        os.replace(lock, moved)
        if os.path.samestat(moved.stat(), status):
            moved.unlink()
        else:
            os.replace(moved, lock)


def _open(lock: Path) -> tuple[bool, int | None]:
    """Return whether the lock file was created, and its handle; None if another process removed it meanwhile."""
    try:
        return True, os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        with suppress(FileNotFoundError):
            return False, os.open(lock, os.O_RDWR)
    return False, None


def _try_lock(handle: int) -> bool | None:
    """Return whether the operating system gave the lock to this process; None if it has no locks for this file."""
    try:
        import fcntl
    except ImportError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_current(handle: int, lock: Path) -> bool:
    """Return whether the open lock file is still the one at its path, and was not removed by its previous owner."""
    try:
        return os.path.samestat(os.fstat(handle), lock.stat())
    except FileNotFoundError:
        return False


def _read_owner(lock: Path) -> Owner:
    try:
        pid, host = json.loads(lock.read_bytes())
        return Owner(int(pid), str(host))
    except (OSError, ValueError, TypeError):
        return Owner(None, "")


def _has_ended(owner: Owner) -> bool:
    """Return whether the owner of a lock was a process of this host that has ended."""
    return owner.pid is not None and owner.host == socket.gethostname() and not _is_running(owner.pid)


def _is_running(pid: int) -> bool:
    if sys.platform == "win32":
        # os.kill would end the process.
        import ctypes

        kernel = ctypes.windll.kernel32
        handle = kernel.OpenProcess(0x1000, False, pid)  # PROCESS_QUERY_LIMITED_INFORMATION
        code = ctypes.c_ulong()
        running = bool(handle and kernel.GetExitCodeProcess(handle, ctypes.byref(code)) and code.value == 259)
        kernel.CloseHandle(handle)
        return running
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
