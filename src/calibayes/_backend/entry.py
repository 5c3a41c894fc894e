"""The context in which every function that computes for a user runs."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax

from calibayes._backend.distributed import raise_distributed_errors
from calibayes._backend.fork import require_working_jax
from calibayes._backend.heap import release_freed_memory
from calibayes._backend.jit import n_compiled


@contextmanager
def entry_point() -> Iterator[None]:
    """Check that JAX can compute, turn off its debugging options, replace its errors, and release memory at the end.

    Also a decorator. NaN and infinity are ordinary values in a calibration: a loss of infinity is a density of zero.
    `jax_debug_nans` and `jax_debug_infs` would end it with an error about an internal function, and without compilation
    (`jax_disable_jit`) it would be too slow to be useful. A NaN of the user's loss is reported by a diagnostic or an
    error.

    Raises
    ------
    RuntimeError
        If JAX cannot compute in this process (`calibayes._backend.fork`).
    DistributedError
        If a process of a distributed run was lost.
    """
    require_working_jax()
    n_before = n_compiled()
    try:
        with jax.debug_nans(False), jax.debug_infs(False), jax.disable_jit(False), raise_distributed_errors():
            yield
    finally:
        # A call that compiles nothing has little to release, and should not wait for it.
        if n_compiled() > n_before:
            release_freed_memory()
