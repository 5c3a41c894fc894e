"""The inner loop on a GPU for losses of a linear prediction: one kernel that loops over all observations.

The scan of `calibayes._core.risk` launches a kernel per block of observations, which reads all particles from memory.
Here a program of the kernel keeps some particles of one replicate in registers and loops over the observations, whose
covariates and count are read once for all particles of the program. Written in Pallas for Triton.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun
from jaxtyping import Array, Float, PyTree

from calibayes._core.counts import Counts, fold_chunks
from calibayes._core.loss import LinearLoss
from calibayes._core.risk import risk_by_scan


@dataclass(frozen=True)
class RiskGPUConfig:
    """Tuning constants of the kernel. They affect the running time, and results by rounding only.

    Tiles, warps and unrolling were compared on an H200 with 4,000 particles per replicate, where they reached between
    36% and 51% of its peak (`docs/performance.md`). `python -m benchmarks.speed` measures the running time.
    """

    unroll: int = 8
    """Number of observations unrolled in one step of the loop."""
    observations_per_call: int = 2**14
    """Number of observations whose counts are in memory at the same time. Order-of-magnitude choice."""
    min_particles: int = 1
    """Number of particles per replicate from which the kernel is used. The scan would be faster below about 8, but its
    program for a few particles fails to compile on GPUs with JAX 0.11 ("Failed to translate module to LLVM IR")."""
    max_dim: int = 32
    """Number of parameters above which the scan is used, because the particles do not fit into registers.
    Order-of-magnitude choice."""
    large_tile_dim: int = 10
    """Number of parameters up to which 16 particles per thread fit into its registers."""
    target_programs: int = 2**11
    """Number of programs that occupy a GPU. If particles give fewer, the observations are divided between programs.
    Order-of-magnitude choice."""
    min_steps_per_program: int = 4
    """Smallest number of steps of the loop in a program when observations are divided. Order-of-magnitude choice."""
    full_particles: int = 2**18
    """Number of particles in all replicates from which large tiles occupy the whole GPU. Order-of-magnitude choice."""


CONFIG = RiskGPUConfig()

_SUPPORTED = """
    abs add and broadcast_in_dim convert_element_type copy cos custom_jvp_call custom_vjp_call div eq exp exp2 expm1
    ge gt integer_pow is_finite jit le log log1p logistic lt max min mul ne neg not or pjit pow reshape rsqrt
    select_n sign sin sqrt square squeeze stop_gradient sub tanh xor
"""
"""Names of the JAX primitives that the kernel can contain. A loss with any other primitive is evaluated by the scan."""


def linear_risk(
    loss: LinearLoss,
    theta: Float[Array, "K B M"],
    blocks: PyTree[Array],
    reference_loss: Float[Array, "G L"],
    counts: Counts,
) -> Float[Array, "B M"]:
    """Return the risk of a loss of a linear prediction, by the kernel if possible and by the scan otherwise.

    It is relative to the reference.

    The parameters are those of `calibayes._core.risk.risk_by_scan`.
    """
    by_scan = lambda theta: risk_by_scan(loss, theta, blocks, reference_loss, counts)
    if not is_supported(loss.rho, theta):
        return by_scan(theta)
    by_kernel = lambda theta: risk_by_kernel(loss, theta, blocks, reference_loss, counts)
    return jax.lax.platform_dependent(theta, cuda=by_kernel, default=by_scan)


def is_supported(rho: Callable[..., Array], theta: Float[Array, "K B M"]) -> bool:
    """Return whether the kernel can evaluate a loss at these particles on the current backend."""
    dim, _, size = theta.shape
    if jax.default_backend() != "gpu" or theta.dtype != jnp.float32:
        return False
    if size < CONFIG.min_particles or dim > CONFIG.max_dim:
        return False
    closed, supported = _trace(rho, _tile(theta)[0]), set(_SUPPORTED.split())
    return all(jnp.ndim(c) == 0 for c in closed.consts) and supported.issuperset(_primitives(closed.jaxpr))


def risk_by_kernel(
    loss: LinearLoss,
    theta: Float[Array, "K B M"],
    blocks: PyTree[Array],
    reference_loss: Float[Array, "G L"],
    counts: Counts,
) -> Float[Array, "B M"]:
    """Return the same as `calibayes._core.risk.risk_by_scan`, by calls of the kernel."""
    flatten = lambda leaf: leaf.reshape(-1, *leaf.shape[2:])

    def add_chunk(total, chunk):
        data, reference_chunk, elements = chunk
        chunk_counts = flatten(jax.vmap(counts.block)(elements))
        data, reference_chunk = jax.tree.map(flatten, data), flatten(reference_chunk)
        return total + fused_risk(loss.rho, theta, data, reference_chunk, chunk_counts, loss.finite)

    zeros = jnp.zeros(theta.shape[1:], theta.dtype)
    width = CONFIG.observations_per_call // reference_loss.shape[1]
    return fold_chunks(add_chunk, zeros, (blocks, reference_loss, counts.blocks), counts.n_blocks, width)


def fused_risk(
    rho: Callable[..., Array],
    theta: Float[Array, "K B M"],
    data: tuple[Float[Array, "N K"], Float[Array, " N"], Float[Array, " N"]],
    reference_loss: Float[Array, " N"],
    counts: Float[Array, "N B"],
    finite: bool,
    interpret: bool = False,
) -> Float[Array, "B M"]:
    """Sum `counts * (rho(offset + x @ theta, y) - reference_loss)` over observations by one call of the kernel.

    If there are too few particles to occupy a GPU, the observations are divided between programs as well.

    Parameters
    ----------
    rho : callable
        Loss `rho(prediction, y)`.
    theta : Array of shape (K, B, M)
        Particles relative to the reference.
    data : tuple of Array
        Observations `(x, y, offset)`.
    reference_loss : Array of shape (N,)
        Losses of the reference.
    counts : Array of shape (N, B)
        Counts of the replicates.
    finite : bool
        Whether all losses are finite.
    interpret : bool
        Whether to run the kernel in Pallas' interpreter, for tests without a GPU. Default: False.

    Returns
    -------
    Array of shape (B, M)
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    dim, n_replicates, size = theta.shape
    tile, warps = _tile(theta)
    padded = jnp.pad(theta, ((0, 0), (0, 0), (0, -size % tile)))
    n_tiles, n_steps = padded.shape[-1] // tile, -(-len(reference_loss) // CONFIG.unroll)
    splits = CONFIG.target_programs // (n_replicates * n_tiles)
    splits = max(1, min(splits, n_steps // CONFIG.min_steps_per_program))
    steps_per_program = -(-n_steps // splits)
    # The last program is padded with observations whose counts are zero.
    fill = steps_per_program * splits * CONFIG.unroll - len(reference_loss)
    data, reference_loss, counts = jax.tree.map(
        lambda leaf: jnp.pad(leaf, ((0, fill), *((0, 0),) * (leaf.ndim - 1))), (data, reference_loss, counts)
    )
    closed = _trace(rho, tile)
    constants = [jnp.asarray(constant)[None] for constant in closed.consts]
    unblocked = pl.BlockSpec(memory_space=pl.ANY)
    call = pl.pallas_call(
        _make_kernel(closed.jaxpr, finite, steps_per_program, _multiply_add if interpret else _fused_multiply_add),
        grid=(n_replicates, n_tiles, splits),
        in_specs=[pl.BlockSpec((dim, 1, tile), lambda b, m, _: (0, b, m)), *[unblocked] * (5 + len(constants))],
        out_specs=pl.BlockSpec((1, 1, tile), lambda b, m, split: (split, b, m)),
        out_shape=jax.ShapeDtypeStruct((splits, n_replicates, n_tiles * tile), theta.dtype),
        compiler_params=None if interpret else triton.CompilerParams(num_warps=warps, num_stages=1),
        interpret=interpret,
    )
    return call(padded, *data, reference_loss, counts.T, *constants).sum(0)[:, :size]


def _make_kernel(
    jaxpr: Jaxpr, finite: bool, n_steps: int, multiply_add: Callable[[Any, Array, Array], Array]
) -> Callable[..., None]:
    """Return the kernel that sums the losses of one tile of particles over the observations of one program.

    Parameters
    ----------
    jaxpr : Jaxpr
        Operations of the loss.
    finite : bool
        Whether all losses are finite.
    n_steps : int
        Number of steps of the loop in a program, each over `CONFIG.unroll` observations.
    multiply_add : callable
        Function `(a, b, c) -> a * b + c`.

    Returns
    -------
    callable
        Function of references to the particles, the observations, the counts, the constants of the loss and the output.
    """
    from jax.experimental import pallas as pl

    def kernel(theta_ref, x_ref, y_ref, offset_ref, reference_ref, counts_ref, *refs):
        *constant_refs, out_ref = refs
        loss = jaxpr_as_fun(ClosedJaxpr(jaxpr, [ref[0] for ref in constant_refs]))
        dim, _, tile = theta_ref.shape
        dtype = theta_ref.dtype
        particles = [theta_ref[k, 0, :] for k in range(dim)]
        replicate, first = pl.program_id(0), pl.program_id(2) * n_steps

        def add_step(step, total):
            losses, reference = jnp.zeros(tile, dtype), jnp.zeros((), dtype)
            for i in range(CONFIG.unroll):
                index = (first + step) * CONFIG.unroll + i
                prediction = jnp.full(tile, offset_ref[index], dtype)
                for k in range(dim):
                    prediction = multiply_add(x_ref[index, k], particles[k], prediction)
                count = counts_ref[replicate, index]
                term = loss(prediction, y_ref[index])[0]
                losses = multiply_add(count, term if finite else jnp.where(count != 0, term, 0.0), losses)
                reference = reference + count * reference_ref[index]
            return total + (losses - reference)

        out_ref[0, 0, :] = jax.lax.fori_loop(0, n_steps, add_step, jnp.zeros(tile, dtype))

    return kernel


def _multiply_add(a: Any, b: Array, c: Array) -> Array:
    return a * b + c


def _fused_multiply_add(a: Any, b: Array, c: Array) -> Array:
    """Return `a * b + c` by one instruction, which the compiler does not generate by itself."""
    from jax.experimental.pallas import triton

    return triton.elementwise_inline_asm(
        "fma.rn.f32 $0, $1, $2, $3;",
        args=[jnp.broadcast_to(a, b.shape), b, c],
        constraints="=f,f,f,f",
        pack=1,
        result_shape_dtypes=[jax.ShapeDtypeStruct(b.shape, b.dtype)],
    )[0]


def _tile(theta: Float[Array, "K B M"]) -> tuple[int, int]:
    """Return the number of particles and of warps per program: large tiles if there are enough particles for them."""
    dim, n_replicates, size = theta.shape
    if n_replicates * size >= CONFIG.full_particles and size > 128:
        return (1024 if dim <= CONFIG.large_tile_dim and size > 512 else 512), 2
    return max(32, min(128, 1 << (size - 1).bit_length())), 1


def _trace(rho: Callable[..., Array], tile: int) -> ClosedJaxpr:
    """Return the operations of a loss, and the constants it captures."""
    prediction, y = jax.ShapeDtypeStruct((tile,), jnp.float32), jax.ShapeDtypeStruct((), jnp.float32)
    return jax.make_jaxpr(rho)(prediction, y)


def _primitives(jaxpr: Any) -> Iterator[str]:
    """Yield the names of all primitives, including those of nested functions."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _primitives(inner)
