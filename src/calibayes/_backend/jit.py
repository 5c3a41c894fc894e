"""Compilation with a small overhead per call.

A calibration calls dozens of compiled functions, many of which run for less time than `equinox.filter_jit` needs to
dispatch them. Where all arguments are arrays, `jit` dispatches through `jax.jit`, which takes a quarter of the time
(`docs/performance.md`).
"""

from collections.abc import Callable
from functools import cache, partial, wraps
from typing import Any, TypeVar, cast

import equinox as eqx
import jax
import numpy as np

F = TypeVar("F", bound=Callable[..., Any])


def jit(fn: F) -> F:
    """Compile a function of positional arguments, like `equinox.filter_jit` but with a faster call.

    Parameters
    ----------
    fn : callable
        Function of pytrees. Leaves that are not arrays, such as integers, are static.

    Returns
    -------
    callable
        Compiled function. If all leaves of the arguments are arrays or integers, `fn` must return arrays only.
    """
    jitted, filter_jitted = cache(partial(jax.jit, fn)), eqx.filter_jit(fn)

    @wraps(fn)
    def call(*args: Any) -> Any:
        integers = tuple(i for i, arg in enumerate(args) if type(arg) is int)
        others = [arg for arg in args if type(arg) is not int] if integers else args
        only_arrays = all(isinstance(leaf, jax.Array | np.ndarray) for leaf in jax.tree.leaves(others))
        return (jitted(static_argnums=integers) if only_arrays else filter_jitted)(*args)

    return cast(F, call)
