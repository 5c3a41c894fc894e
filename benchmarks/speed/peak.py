"""How fast the machine multiplies and adds in float32, by chains of both that stay in registers."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.speed.measured import Measured, best_of

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
    if jax.default_backend() == "gpu":
        ways.append(_by_pallas(2**24, TIMES, TIMES))
    if on_cpu:
        try:
            from benchmarks.speed import handwritten
        except ImportError:
            found.skipped.append("numba is not installed: the peak is by XLA alone.")
        else:
            values = np.linspace(0, 1, 2**20, dtype=np.float32)
            call = partial(handwritten.chains, values, np.float32(0.999), np.float32(0.001), TIMES)
            ways.append(Chains(call, 2 * CHAIN * TIMES * values.size))
    return ways


def bandwidth(repeats: int) -> float:
    """Bytes a second from memory, by the sum of an array far larger than any cache."""
    size = 2**27 if jax.default_backend() == "cpu" else 2**28
    (seconds,) = best_of([partial(jax.jit(jnp.sum), jnp.zeros(size, jnp.float32))], repeats)
    return 4 * size / seconds


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


def _by_pallas(size: int, length: int, times: int) -> Chains:
    """In one kernel, several chains a thread; the instruction by name, as XLA multiplies first and then adds."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    tile = 2048
    shape = [jax.ShapeDtypeStruct((tile,), jnp.float32)]

    def kernel(values_ref, factor_ref, term_ref, out_ref):
        factor, term = (jnp.broadcast_to(ref[0], tile) for ref in (factor_ref, term_ref))
        asm, constraints = "fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f"

        def one(_, values):
            for _ in range(length):
                args = [values, factor, term]
                (values,) = triton.elementwise_inline_asm(
                    asm, args=args, constraints=constraints, pack=1, result_shape_dtypes=shape
                )
            return values

        out_ref[:] = jax.lax.fori_loop(0, times, one, values_ref[:])

    some, whole = pl.BlockSpec((tile,), lambda i: (i,)), pl.BlockSpec((1,), lambda _: (0,))
    call = pl.pallas_call(
        kernel,
        grid=(size // tile,),
        in_specs=[some, whole, whole],
        out_specs=some,
        out_shape=jax.ShapeDtypeStruct((size,), jnp.float32),
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=1),
    )
    args = (jnp.linspace(0, 1, size), jnp.full(1, 0.999), jnp.full(1, 0.001))
    return Chains(partial(jax.jit(call), *args), 2 * length * times * size)
