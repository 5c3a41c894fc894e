"""Peak rate of multiply-adds in float32, measured by chains of them that stay in registers; memory bandwidth."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.speed.measurement import Measurements, best_of

CHAIN, TIMES = 16, 64
"""Multiply-adds between a load and a store on a CPU, and how often they are repeated."""
_LONG_CHAIN, _FEW_TIMES = 512, 4
"""The same on accelerators, whose loads take longer."""


class Chains(NamedTuple):
    """A call and its number of operations, two per multiply-add."""

    call: Callable[[], Any]
    operations: float


def chains(measurements: Measurements) -> list[Chains]:
    """Return chains compiled in several ways; the peak is the highest rate of any."""
    on_cpu = jax.default_backend() == "cpu"
    variants = [_by_xla(2**20, CHAIN, TIMES) if on_cpu else _by_xla(2**26, _LONG_CHAIN, _FEW_TIMES)]
    if on_cpu:
        try:
            from benchmarks.speed import handwritten
        except ImportError:
            measurements.skipped.append("the peak by numba, which is not installed; XLA alone defines the peak.")
        else:
            values = np.linspace(0, 1, 2**20, dtype=np.float32)
            call = partial(handwritten.chains, values, np.float32(0.999), np.float32(0.001), TIMES)
            variants.append(Chains(call, 2 * CHAIN * TIMES * values.size))
    return variants


def bandwidth(repeats: int) -> float:
    """Return the memory bandwidth in bytes per second, by summing an array much larger than any cache."""
    size = 2**27 if jax.default_backend() == "cpu" else 2**28
    (seconds,) = best_of([partial(jax.jit(jnp.sum), jnp.zeros(size, jnp.float32))], repeats)
    return 4 * size / seconds


def _by_xla(size: int, length: int, times: int) -> Chains:
    @jax.jit
    def chains(values, factor, term):
        def chain(_, values):
            for _ in range(length):
                values = values * factor + term
            return values

        return jax.lax.fori_loop(0, times, chain, values)

    # Factor and term are arguments, because constants would be folded.
    call = partial(chains, jnp.linspace(0, 1, size), jnp.asarray(0.999, float), jnp.asarray(0.001, float))
    return Chains(call, 2 * length * times * size)
