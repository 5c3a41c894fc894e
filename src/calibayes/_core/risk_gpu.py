"""The hot loop on a GPU, for linear losses: one kernel that goes over all observations.

As a scan (`calibayes._core.risk`) every block of observations reads the particles from memory and is launched by itself. Here
a program takes some particles of one row, keeps them in registers, and meets every observation once: what is read per
observation, its regressors and its count, serves all of them. Written in Pallas, for Triton.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jaxtyping import Array, Float, PyTree

from calibayes._core.counts import Counts, scan_chunks
from calibayes._core.loss import LinearLoss
from calibayes._core.risk import risk_by_scan

_UNROLL = 8
_AT_ONCE = 2**14
"""Observations whose counts are there at the same time."""
_FEWEST = 8
"""Particles a row, below which the scan is better."""
_MOST_PARAMETERS = 32
_FEW_PARAMETERS = 10
"""Up to so many, sixteen particles a thread fit into its registers."""
_PROGRAMS = 2**11
_FEWEST_BLOCKS = 4
_FULL = 2**18
"""Particles from which there is work for every processor, if each takes as many as it can hold."""
_KNOWN = """
    abs add and broadcast_in_dim convert_element_type copy cos custom_jvp_call custom_vjp_call div eq exp exp2 expm1
    ge gt integer_pow is_finite jit le log log1p logistic lt max min mul ne neg not or pjit pow reshape rsqrt
    select_n sign sin sqrt square squeeze stop_gradient sub tanh xor
"""
"""Operations that a kernel may have; a loss with any other keeps to the scan."""


def linear_risk(
    loss: LinearLoss,
    theta: Float[Array, "K B M"],
    blocks: PyTree[Array],
    base: Float[Array, "G L"],
    counts: Counts,
) -> Float[Array, "B M"]:
    """Of every particle on every row, by the kernel where there is one for it, else by the scan."""
    by_scan = lambda theta: risk_by_scan(loss, theta, blocks, base, counts)
    if not suits(loss.rho, theta):
        return by_scan(theta)
    by_kernel = lambda theta: risk_in_chunks(loss, theta, blocks, base, counts)
    return jax.lax.platform_dependent(theta, cuda=by_kernel, default=by_scan)


def suits(rho: Callable[..., Array], theta: Float[Array, "K B M"]) -> bool:
    """Whether the kernel can take this loss of so many particles."""
    dim, _, size = theta.shape
    if jax.default_backend() != "gpu" or theta.dtype != jnp.float32 or size < _FEWEST or dim > _MOST_PARAMETERS:
        return False
    closed, known = _closed(rho, _tile(theta)[0]), set(_KNOWN.split())
    return all(jnp.ndim(c) == 0 for c in closed.consts) and all(name in known for name in _primitives(closed.jaxpr))


def risk_in_chunks(
    loss: LinearLoss, theta: Float[Array, "K B M"], blocks: PyTree[Array], base: Float[Array, "G L"], counts: Counts
) -> Float[Array, "B M"]:
    """The same as `calibayes._core.risk.risk_by_scan`."""
    flat = lambda leaf: leaf.reshape(-1, *leaf.shape[2:])

    def add(total, chunk):
        data, base, at = chunk
        counted = flat(jax.vmap(counts.block)(at))
        return total + fused_risk(loss.rho, theta, jax.tree.map(flat, data), flat(base), counted, loss.finite), None

    start = jnp.zeros(theta.shape[1:], theta.dtype)
    return scan_chunks(add, start, (blocks, base, counts.blocks), _AT_ONCE // base.shape[1])[0]


def fused_risk(
    rho: Callable[..., Array],
    theta: Float[Array, "K B M"],
    data: tuple[Float[Array, "N K"], Float[Array, " N"], Float[Array, " N"]],
    base: Float[Array, " N"],
    counts: Float[Array, "N B"],
    finite: bool,
    interpret: bool = False,
) -> Float[Array, "B M"]:
    """Sum over observations of `counts * (rho(offset + x @ theta, y) - base)`.

    Where particles are too few to occupy a GPU, the observations are split between programs too.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    dim, n_replicates, size = theta.shape
    tile, warps = _tile(theta)
    padded = jnp.pad(theta, ((0, 0), (0, 0), (0, -size % tile)))
    tiles, blocks = padded.shape[-1] // tile, -(-len(base) // _UNROLL)
    splits = max(1, min(_PROGRAMS // (n_replicates * tiles), blocks // _FEWEST_BLOCKS))
    each = -(-blocks // splits)
    # Observations that only fill up the last split count nowhere.
    fill = each * splits * _UNROLL - len(base)
    data, base, counts = jax.tree.map(
        lambda leaf: jnp.pad(leaf, ((0, fill), *((0, 0),) * (leaf.ndim - 1))), (data, base, counts)
    )
    closed = _closed(rho, tile)
    constants = [jnp.asarray(constant)[None] for constant in closed.consts]

    def multiply_add(a, b, c):
        """`a * b + c` in one instruction, which the compiler would make of two."""
        if interpret:
            return a * b + c
        shape = jax.ShapeDtypeStruct((tile,), theta.dtype)
        args = [jnp.broadcast_to(a, tile), b, c]
        constraints, asm = "=f,f,f,f", "fma.rn.f32 $0, $1, $2, $3;"
        return triton.elementwise_inline_asm(
            asm, args=args, constraints=constraints, pack=1, result_shape_dtypes=[shape]
        )[0]

    def kernel(theta_ref, x_ref, y_ref, offset_ref, base_ref, counts_ref, *refs):
        *constant_refs, out_ref = refs
        loss = jaxpr_as_fun(ClosedJaxpr(closed.jaxpr, [ref[0] for ref in constant_refs]))
        particles = [theta_ref[k, 0, :] for k in range(dim)]
        row, first = pl.program_id(0), pl.program_id(2) * each

        def block(start, total):
            here, own = jnp.zeros(tile, theta.dtype), jnp.zeros((), theta.dtype)
            for i in range(_UNROLL):
                at = (first + start) * _UNROLL + i
                prediction = jnp.full(tile, offset_ref[at], theta.dtype)
                for k in range(dim):
                    prediction = multiply_add(x_ref[at, k], particles[k], prediction)
                count = counts_ref[row, at]
                term = loss(prediction, y_ref[at])[0]
                here = multiply_add(count, term if finite else jnp.where(count != 0, term, 0.0), here)
                own = own + count * base_ref[at]
            return total + (here - own)

        out_ref[0, 0, :] = jax.lax.fori_loop(0, each, block, jnp.zeros(tile, theta.dtype))

    whole = pl.BlockSpec(memory_space=pl.ANY)
    call = pl.pallas_call(
        kernel,
        grid=(n_replicates, tiles, splits),
        in_specs=[pl.BlockSpec((dim, 1, tile), lambda b, m, _: (0, b, m)), *[whole] * (5 + len(constants))],
        out_specs=pl.BlockSpec((1, 1, tile), lambda b, m, part: (part, b, m)),
        out_shape=jax.ShapeDtypeStruct((splits, n_replicates, tiles * tile), theta.dtype),
        compiler_params=None if interpret else triton.CompilerParams(num_warps=warps, num_stages=1),
        interpret=interpret,
    )
    return call(padded, *data, base, counts.T, *constants).sum(0)[:, :size]


def _tile(theta: Float[Array, "K B M"]) -> tuple[int, int]:
    """Particles a program, and warps: as many a thread as registers hold where there are plenty, else fewer."""
    dim, n_replicates, size = theta.shape
    if n_replicates * size >= _FULL and size > 128:
        return (1024 if dim <= _FEW_PARAMETERS and size > 512 else 512), 2
    return max(32, min(128, 1 << (size - 1).bit_length())), 1


def _closed(rho: Callable[..., Array], tile: int) -> ClosedJaxpr:
    """The loss as operations, and the numbers it closes over."""
    prediction, y = jax.ShapeDtypeStruct((tile,), jnp.float32), jax.ShapeDtypeStruct((), jnp.float32)
    return jax.make_jaxpr(rho)(prediction, y)


def _primitives(jaxpr: Any) -> Iterator[str]:
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _primitives(inner)
