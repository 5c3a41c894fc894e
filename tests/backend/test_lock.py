"""One process at a time holds the lock of a file, and a process that has ended blocks no other."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from calibayes._backend import lock as lock_module
from calibayes._backend.lock import LockedError, lock_file, lock_path

# The module is loaded without the package, which takes a second to import.
PREPARE = """
import importlib.util, sys, time
spec = importlib.util.spec_from_file_location("lock", sys.argv[1])
lock = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lock)
from pathlib import Path
path = Path(sys.argv[2])
if sys.argv[3] == "without":
    lock._try_lock = lambda handle: None
"""
HOLD = (
    PREPARE
    + """
with lock.lock_file(path):
    print("held", flush=True)
    sys.stdin.read()
"""
)
# A counter in a file, which loses increments if two processes hold the lock.
COUNT = (
    PREPARE
    + """
done = 0
while done < 40:
    try:
        with lock.lock_file(path):
            number = int(path.read_text())
            time.sleep(0.0005)
            path.write_text(str(number + 1))
            done += 1
    except lock.LockedError:
        time.sleep(0.0005)
"""
)


@pytest.fixture(params=["with", "without"])
def locks(request, monkeypatch):
    """Whether the operating system has locks."""
    if request.param == "without":
        monkeypatch.setattr(lock_module, "_try_lock", lambda handle: None)
    return request.param


@contextmanager
def holding(path, locks):
    """Hold the lock in another process, which ends when its input is closed."""
    command = [sys.executable, "-c", HOLD, lock_module.__file__, str(path), locks]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.stdin.close()


def test_lock_is_exclusive_and_is_removed(locks, tmp_path):
    path = tmp_path / "a"
    with lock_file(path):
        assert json.loads(lock_path(path).read_text()) == [os.getpid(), socket.gethostname()]
        with pytest.raises(LockedError, match=f"process {os.getpid()} on {socket.gethostname()}"), lock_file(path):
            pass
        assert lock_path(path).exists()
    assert not list(tmp_path.iterdir())
    with lock_file(path):
        pass


def test_exception_releases_the_lock(locks, tmp_path):
    with pytest.raises(KeyboardInterrupt), lock_file(tmp_path / "a"):
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_error_names_the_other_process(locks, tmp_path):
    path = tmp_path / "a"
    with holding(path, locks) as process:
        with pytest.raises(LockedError, match=f"process {process.pid} on "), lock_file(path):
            pass
        process.stdin.close()
        process.wait()
    with lock_file(path):
        pass


def test_killed_process_does_not_block(locks, tmp_path):
    path = tmp_path / "a"
    with holding(path, locks) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert lock_path(path).exists()
    with lock_file(path):
        assert json.loads(lock_path(path).read_text())[0] == os.getpid()
    assert not list(tmp_path.iterdir())


def test_file_of_an_unknown_process_blocks_only_without_locks(locks, tmp_path):
    """The operating system knows whether a process of another host holds the lock; the file does not show it."""
    path = tmp_path / "a"
    for content in ('[1, "another host"]', "", "{", "[1]", '["x", 1]'):
        lock_path(path).write_text(content)
        if locks == "with":
            with lock_file(path):
                pass
        else:
            with pytest.raises(LockedError, match=r"process 1 on another host|another process"), lock_file(path):
                pass
            assert lock_path(path).read_text() == content


def test_lock_file_that_its_owner_removed_is_not_used(tmp_path, monkeypatch):
    """Between opening and locking, the previous owner removes the file: another process could lock a new one."""
    path, try_lock, n_attempts = tmp_path / "a", lock_module._try_lock, []

    def remove_first(handle):
        if not n_attempts:
            lock_path(path).unlink()
        n_attempts.append(1)
        return try_lock(handle)

    monkeypatch.setattr(lock_module, "_try_lock", remove_first)
    with lock_file(path):
        assert len(n_attempts) == 2
        assert lock_path(path).exists()


def test_processes_take_turns(locks, tmp_path):
    path = tmp_path / "a"
    path.write_text("0")
    command = [sys.executable, "-c", COUNT, lock_module.__file__, str(path), locks]
    processes = [subprocess.Popen(command) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4
    assert path.read_text() == "160"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("pid", "running"),
    [(os.getpid(), True), (1, True), (2**22 + 1, False), (10**30, False)],
    ids=["own", "first", "none", "huge"],
)
def test_running_processes_are_recognized(pid, running):
    assert lock_module._is_running(pid) is running


def test_directory_without_write_permission_is_an_error(tmp_path):
    with pytest.raises(OSError, match="No such file"), lock_file(tmp_path / "nowhere" / "a"):
        pass


def test_stale_lock_is_taken_by_one_process_only(tmp_path, monkeypatch):
    """Without locks of the operating system, another process takes over after this one has read the stale lock."""
    path = tmp_path / "a"
    lock_path(path).write_text(json.dumps([2**22 + 1, socket.gethostname()]))
    monkeypatch.setattr(lock_module, "_try_lock", lambda handle: None)
    has_ended, others = lock_module._has_ended, []

    def other_process_is_faster(owner):
        ended = has_ended(owner)
        if not others:
            others.append(lock_file(path))
            others[0].__enter__()
        return ended

    monkeypatch.setattr(lock_module, "_has_ended", other_process_is_faster)
    with pytest.raises(LockedError), lock_file(path):
        pass
    assert [file.name for file in tmp_path.iterdir()] == [lock_path(path).name]
    others[0].__exit__(None, None, None)
