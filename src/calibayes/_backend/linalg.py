r"""Small symmetric matrices, many at once: their Cholesky factors, inverses of these, and eigenvalues within bounds.

Factors are written out where a processor computes. What XLA calls there, LAPACK for each matrix of a batch, takes a
thread of its pool and waits in it for others of the same pool: as many such calls at a time as there are threads wait
for ever.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_HALVINGS = 30
"""After so many steps the sign is known of eigenvalues above 1e-5 of the matrix's norm."""


def cholesky(matrices: Float[Array, "B K K"]) -> Float[Array, "B K K"]:
    """Lower triangular factors; NaN of what is not positive definite."""
    return jax.lax.platform_dependent(matrices, cpu=_cholesky, default=jnp.linalg.cholesky)


def _cholesky(matrices: Float[Array, "B K K"]) -> Float[Array, "B K K"]:
    dim = matrices.shape[-1]

    def row(k, upper):
        own = matrices[:, k] - (upper[:, :, k, None] * upper).sum(1)
        own = own / jnp.sqrt(own[:, k])[:, None]
        return upper.at[:, k].set(jnp.where((jnp.arange(dim) >= k)[None], own, 0.0))

    upper = jax.lax.fori_loop(0, dim, row, jnp.zeros_like(matrices))
    whole = jnp.isfinite(upper).all((1, 2), keepdims=True)
    return jnp.swapaxes(jnp.where(whole, upper, jnp.nan), 1, 2)


def lower_inverse(roots: Float[Array, "B K K"]) -> Float[Array, "B K K"]:
    """Of lower triangular matrices."""
    return jax.lax.platform_dependent(roots, cpu=_lower_inverse, default=_solved)


def _solved(roots: Float[Array, "B K K"]) -> Float[Array, "B K K"]:
    eye = jnp.broadcast_to(jnp.eye(roots.shape[-1], dtype=roots.dtype), roots.shape)
    return jax.scipy.linalg.solve_triangular(roots, eye, lower=True)


def _lower_inverse(roots: Float[Array, "B K K"]) -> Float[Array, "B K K"]:
    eye = jnp.broadcast_to(jnp.eye(roots.shape[-1], dtype=roots.dtype), roots.shape)

    def row(k, inverse):
        before = (roots[:, k, :, None] * inverse).sum(1)
        return inverse.at[:, k].set((eye[:, k] - before) / roots[:, k, k][:, None])

    return jax.lax.fori_loop(0, roots.shape[-1], row, jnp.zeros_like(roots))


def clipped(matrices: Float[Array, "B K K"], low: float, high: float) -> Float[Array, "B K K"]:
    r"""Symmetric matrices with their eigenvalues clipped: $(a + b + |X - a| - |X - b|) / 2$."""
    eye = jnp.eye(matrices.shape[-1], dtype=matrices.dtype)[None]
    # To the last digit: what is not symmetric has eigenvalues without a sign.
    matrices = 0.5 * (matrices + jnp.swapaxes(matrices, 1, 2))
    below, above = (_absolute(matrices - bound * eye) for bound in (low, high))
    return 0.5 * ((low + high) * eye + below - above)


def _absolute(matrices: Float[Array, "B K K"]) -> Float[Array, "B K K"]:
    """With the absolute values of their eigenvalues, by Newton and Schulz' iteration for their signs."""
    product = lambda a, b: jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
    size = jnp.sqrt(jnp.square(matrices).sum((1, 2), keepdims=True))
    first = matrices / jnp.where(size > 0, size, 1.0)
    step = lambda _, sign: 1.5 * sign - 0.5 * product(product(sign, sign), sign)
    found = product(matrices, jax.lax.fori_loop(0, _HALVINGS, step, first))
    return 0.5 * (found + jnp.swapaxes(found, 1, 2))
