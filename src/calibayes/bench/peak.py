"""How fast the machine multiplies and adds in float32, by chains of both that stay in registers."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calibayes.bench.measured import Measured

CHAIN, TIMES = 16, 64
"""Multiply-adds between a load and a store, and how often they are made."""
_LONG_CHAIN, _FEW_TIMES = 512, 4
"""On accelerators, whose every load comes from far."""


class Chains(NamedTuple):
    """A call, and how many operations it makes, two a multiply-add."""

    call: Callable[[], Any]
    operations: float


def chains(found: Measured) -> list[Chains]:
    """The ways to compile them; the peak is the most that any reaches."""
    on_cpu = jax.default_backend() == "cpu"
    ways = [_by_xla(2**20, CHAIN, TIMES) if on_cpu else _by_xla(2**26, _LONG_CHAIN, _FEW_TIMES)]
    if on_cpu:
        try:
            from calibayes.bench import handwritten
        except ImportError:
            found.skipped.append("numba is not installed: the peak is by XLA alone.")
        else:
            values = np.linspace(0, 1, 2**20, dtype=np.float32)
            call = partial(handwritten.chains, values, np.float32(0.999), np.float32(0.001), TIMES)
            ways.append(Chains(call, 2 * CHAIN * TIMES * values.size))
    return ways


def _by_xla(size: int, length: int, times: int) -> Chains:
    @jax.jit
    def chains(values, factor, term):
        def one(_, values):
            for _ in range(length):
                values = values * factor + term
            return values

        return jax.lax.fori_loop(0, times, one, values)

    # Numbers that are known when it is compiled would be folded.
    call = partial(chains, jnp.linspace(0, 1, size), jnp.asarray(0.999, float), jnp.asarray(0.001, float))
    return Chains(call, 2 * length * times * size)
