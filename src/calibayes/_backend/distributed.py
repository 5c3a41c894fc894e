"""Many processes, on one machine or on many, as one computation: JAX's own distributed runtime.

Every process runs the same program on the same arguments and comes to the same result; process 0 alone writes. A
process that dies leaves the others waiting for it in the middle of a sum, where nothing can interrupt them. So each
has a guard that looks after the others, and ends its own process with a word if one is gone. JAX would end it too, but
minutes later and in words of its own.
"""

import atexit
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import jax
import numpy as np

PATIENCE = 30.0
"""Seconds without a sign of life after which a process is taken for dead; twenty times as long before its first."""
_FIRST = 20
_LAUNCHED = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")
_SIGNS = "calibayes/alive"
_LEFT, _FAILED = "left", "failed"
_EVERY = 1.0
_EXIT_STATUS = 70
_GO_ON = "Start all processes again by the same command; with a checkpoint the run goes on from where it was."


class ClusterError(RuntimeError):
    """Processes of a run that do not work together: one was given other arguments, or is gone."""


def join() -> None:
    """Where Slurm or Open MPI started several processes, make them one computation; before anything is computed."""
    if max(int(os.environ.get(name, 1)) for name in _LAUNCHED) > 1 and not jax.distributed.is_initialized():
        jax.distributed.initialize()
        # What JAX's network layer has to say must not come between what is printed.
        sys.stdout.flush()
        printed = os.dup(1)
        os.dup2(2, 1)
        sys.stdout = os.fdopen(printed, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)


def leads() -> bool:
    """Whether this process is the one that writes."""
    return jax.process_index() == 0


def agree(values: Mapping[str, str]) -> None:
    """Raise unless all processes have the same."""
    if jax.process_count() == 1:
        return
    from jax.experimental.multihost_utils import process_allgather

    own = [np.frombuffer(sha256(value.encode()).digest(), np.uint8) for value in values.values()]
    everyone = np.asarray(process_allgather(np.stack(own)))
    differing = [name for i, name in enumerate(values) if (everyone[:, i] != everyone[0, i]).any()]
    if differing:
        raise ClusterError(
            f"the {jax.process_count()} processes of this run differ in: {', '.join(differing)}. Each must make the "
            "same call on the same data, and see the same file as its checkpoint."
        )


@contextmanager
def guarded() -> Iterator[None]:
    """While something is computed by all processes together."""
    if jax.process_count() == 1:
        yield
        return
    guard = _Guard.begin()
    guard.busy += 1
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not lost(error):
            raise
        raise ClusterError(f"the processes lost touch with each other ({_first_line(error)}). {_GO_ON}") from None
    finally:
        guard.busy -= 1


def lost(error: BaseException) -> bool:
    """Whether processes may go different ways from here, which nothing can make good: one is gone, or interrupted."""
    network = isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error)
    return jax.process_count() > 1 and (network or isinstance(error, KeyboardInterrupt))


class _Guard(threading.Thread):
    """Gives signs of life through JAX's coordination service, and listens for the others'."""

    only: "_Guard | None" = None

    @classmethod
    def begin(cls) -> "_Guard":
        if cls.only is None:
            cls.only = cls()
            cls.only.start()
            atexit.register(cls.only.leave)
        return cls.only

    def __init__(self) -> None:
        super().__init__(daemon=True, name="calibayes-guard")
        from jax._src.distributed import global_state

        self.client: Any = global_state.client
        self.own = f"{_SIGNS}/{jax.process_index()}"
        self.signs, self.last_sign = 0, ""
        self.busy = 0
        """Whether this process needs the others."""
        self.pause = threading.Event()

    def run(self) -> None:
        now = time.monotonic()
        heard = {f"{_SIGNS}/{i}": ("", now) for i in range(jax.process_count())}
        for sign in iter(self._next_sign, None):
            try:
                self.client.key_value_set(self.own, sign, True)
                if sign in (_LEFT, _FAILED):
                    break
                said = dict(self.client.key_value_dir_get(_SIGNS))
            except jax.errors.JaxRuntimeError as error:
                self._end("0, through which the others meet, is gone", _first_line(error))
                break
            for name, (before, since) in heard.items():
                sign, who = said.get(name, ""), name.rpartition("/")[2]
                if sign == _FAILED:
                    self._end(f"{who} has failed", "see what it said")
                if sign != before:
                    heard[name] = (sign, time.monotonic())
                    continue
                patience = PATIENCE if sign else _FIRST * PATIENCE
                if (self.busy or sign != _LEFT) and time.monotonic() - since > patience:
                    self._end(f"{who} is gone", f"nothing heard of it for {patience:g} seconds")
            self.pause.wait(_EVERY)

    def _next_sign(self) -> str:
        self.signs += 1
        return self.last_sign or str(self.signs)

    def _end(self, what: str, why: str) -> None:
        if self.last_sign:
            return
        print(f"calibayes: process {what} ({why}): the run cannot go on. {_GO_ON}", file=sys.stderr)
        _exit_now()

    def leave(self) -> None:
        """At the end of this process. After an error that nobody caught JAX would wait for the others, and they for us.

        Nor may the thread be in the middle of a call when Python ends, which would abort it.
        """
        failed = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        self.last_sign = _FAILED if failed else _LEFT
        self.pause.set()
        self.join(5 * _EVERY)
        if failed:
            _exit_now()


def _exit_now() -> None:
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(_EXIT_STATUS)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]
