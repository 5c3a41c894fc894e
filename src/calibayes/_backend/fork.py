"""Refuse to compute in a process that was forked after JAX had started.

JAX computes in threads, and `os.fork` copies only the thread that calls it. The child of a process in which JAX has
started waits for ever at its first computation. A child that was forked before that, and processes started by `spawn`,
`forkserver` or joblib's loky backend, are not affected.
"""

import os

import jax


class _Process:
    """State of JAX in this process and in the processes that it was forked from."""

    used: bool = False
    """Whether calibayes has computed in this process or in one that it was forked from."""
    started_at_fork: bool = False
    """Whether JAX had started in the parent when it last forked; written by the parent before it forks."""
    forked_after_start: bool = False
    """Whether this process was forked from one in which JAX had started."""


def require_working_jax() -> None:
    """Raise an error if JAX cannot compute in this process.

    Raises
    ------
    RuntimeError
        If the process was forked from one in which JAX had started.
    """
    if _Process.forked_after_start:
        raise RuntimeError(
            "this process was forked after JAX had started in its parent, and would wait for ever: JAX computes in "
            "threads, which a fork does not copy. Start processes by another method, such as "
            'multiprocessing.get_context("spawn"), "forkserver" or joblib\'s loky backend, or fork before the first '
            "use of JAX; creating a prior or a loss with parameters is a use."
        )
    _Process.used = True


def is_forked_after_start() -> bool:
    """Return whether this process was forked from one in which JAX had started, so that it cannot compute."""
    return _Process.forked_after_start


def _jax_has_started() -> bool:
    """Return whether JAX has started its devices. Its private function also notices uses that are not by calibayes."""
    bridge = getattr(getattr(jax, "_src", None), "xla_bridge", None)
    started = getattr(bridge, "backends_are_initialized", None)
    return _Process.used or (started is not None and started())


def _before_fork() -> None:
    _Process.started_at_fork = _jax_has_started()


def _after_fork_in_child() -> None:
    _Process.forked_after_start |= _Process.started_at_fork


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
