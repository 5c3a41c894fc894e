"""Several processes, on one machine or on many, as one computation.

Every process runs the same program on the same arguments and obtains the same result; only process 0 writes files.
Communication and health checks are those of JAX's distributed runtime: each process sends heartbeats to a
coordination service in process 0, and when the heartbeats of a process stop, JAX terminates the others.
"""

import atexit
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import TypeVar, cast

import jax
import numpy as np

T = TypeVar("T")


@dataclass(frozen=True)
class DistributedConfig:
    """Settings of JAX's distributed runtime."""

    heartbeat_timeout_seconds: int = 30
    """Time without heartbeats after which a process counts as lost, in seconds. JAX's default is 100. Heartbeats come
    from a thread of their own, also while a process computes, so 30 s without any are not a slow computation.
    Order-of-magnitude choice."""


CONFIG = DistributedConfig()

_TASK_COUNTS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")
"""Environment variables in which Slurm and Open MPI pass the number of processes."""


class DistributedError(RuntimeError):
    """The processes of a run do not agree on their arguments, or one of them was lost.

    Examples
    --------
    >>> import calibayes as cb
    >>> issubclass(cb.DistributedError, RuntimeError)
    True
    """


def join_processes() -> None:
    """Start JAX's distributed runtime if Slurm or Open MPI started several processes.

    Must be called before JAX computes anything. Does nothing in a single process, or if the runtime was started before.
    """
    if max(int(os.environ.get(name, 1)) for name in _TASK_COUNTS) > 1 and not jax.distributed.is_initialized():
        jax.distributed.initialize(heartbeat_timeout_seconds=CONFIG.heartbeat_timeout_seconds)
        # JAX's network layer logs to file descriptor 1. Send these messages to stderr, and the output of Python to a
        # copy of the original stdout.
        sys.stdout.flush()
        stdout = os.dup(1)
        os.dup2(2, 1)
        sys.stdout = os.fdopen(stdout, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)


def is_main_process() -> bool:
    """Return whether this is process 0, which writes files and prints."""
    return jax.process_index() == 0


def agree(values: Mapping[str, str]) -> None:
    """Check that all processes have the same values.

    Parameters
    ----------
    values : mapping of str to str
        Values by name, with the same names in all processes.

    Raises
    ------
    DistributedError
        If a value differs between processes, or if a process was lost.
    """
    if jax.process_count() == 1:
        return
    from jax.experimental.multihost_utils import process_allgather

    digests = np.stack([np.frombuffer(sha256(value.encode()).digest(), np.uint8) for value in values.values()])
    try:
        gathered = np.asarray(process_allgather(digests))
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        raise _lost_process_error(error) from None
    differing = [name for i, name in enumerate(values) if (gathered[:, i] != gathered[0, i]).any()]
    if differing:
        raise DistributedError(
            f"the {jax.process_count()} processes of this run differ in: {', '.join(differing)}. Each must make the "
            "same call on the same data, and see the same file as its checkpoint."
        )


def gather(array: np.ndarray) -> list[np.ndarray]:
    """Return the arrays of all processes, in the order of the processes; their shapes may differ.

    Raises
    ------
    DistributedError
        If a process was lost.
    """
    if jax.process_count() == 1:
        return [array]
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    return [np.load(io.BytesIO(part)) for part in _gather_bytes(content.getvalue())]


def on_all_processes(fn: Callable[[], T]) -> T:
    """Call a function that works on the data of one process; if it fails in one process, raise the error in all.

    Raises
    ------
    Exception
        The error of this process; a `DistributedError` if only others failed.
    """
    if jax.process_count() == 1:
        return fn()
    value, failure = None, None
    try:
        value = fn()
    except (ValueError, TypeError, OSError, ImportError) as error:
        failure = error
    messages = _gather_bytes(b"" if failure is None else f"{type(failure).__name__}: {failure}".encode())
    if failure is not None:
        raise failure
    failed = [(process, message.decode()) for process, message in enumerate(messages) if message]
    if failed:
        raise DistributedError(f"process {failed[0][0]} of this run failed. {failed[0][1]}")
    return cast(T, value)


def _gather_bytes(content: bytes) -> list[bytes]:
    from jax.experimental.multihost_utils import process_allgather

    try:
        lengths = np.asarray(process_allgather(np.array([len(content)], np.int32)))[:, 0]
        padded = np.zeros(max(lengths.max(), 1), np.uint8)
        padded[: len(content)] = np.frombuffer(content, np.uint8)
        gathered = np.asarray(process_allgather(padded))
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        raise _lost_process_error(error) from None
    return [row[:length].tobytes() for row, length in zip(gathered, lengths, strict=True)]


@contextmanager
def raise_distributed_errors() -> Iterator[None]:
    """Replace JAX's error about a lost process by a `DistributedError` that says how to continue.

    Also a decorator. Without effect in a single process.
    """
    if jax.process_count() == 1:
        yield
        return
    _register_exit_handler()
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not processes_out_of_sync(error):
            raise
        raise _lost_process_error(error) from None


def processes_out_of_sync(error: BaseException) -> bool:
    """Return whether the processes may be in different states after an error, so that none of them can continue.

    That is the case after a failed communication and after an interrupt, which each process receives at a different
    time. Running out of memory is not a failed communication.
    """
    communication = isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error)
    return jax.process_count() > 1 and (communication or isinstance(error, DistributedError | KeyboardInterrupt))


def _lost_process_error(error: Exception) -> DistributedError:
    reason = str(error).strip().partition("\n")[0][:200]
    return DistributedError(
        f"a process of this run was lost ({reason}). Start all processes again by the same command; with a checkpoint "
        "the run continues from its last step."
    )


@cache
def _register_exit_handler() -> None:
    """Register `_exit_after_uncaught_exception` once, after JAX's own handler, so that it runs before that."""
    atexit.register(_exit_after_uncaught_exception)


def _exit_after_uncaught_exception() -> None:
    """Exit at once after an uncaught exception.

    JAX's exit handler would wait in a barrier for the other processes, which wait for this one in the middle of a sum,
    until its shutdown timeout of five minutes.
    """
    if getattr(sys, "last_exc", None) or getattr(sys, "last_value", None):
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(1)
