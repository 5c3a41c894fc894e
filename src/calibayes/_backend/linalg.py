r"""Linear algebra of batches of small matrices: Cholesky factors, their inverses, and clipped eigenvalues.

On the CPU the factors are computed by explicit loops instead of LAPACK. XLA runs LAPACK for each matrix of a batch in
a thread of its pool, where it waits for other threads of the same pool; when as many such calls run at the same time
as there are threads, the program deadlocks.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@dataclass(frozen=True)
class LinalgConfig:
    """Tuning constants of the linear algebra."""

    sign_iterations: int = 30
    """Number of Newton-Schulz iterations for the matrix sign function. A small eigenvalue grows by 1.5 per iteration
    and 1.5**30 = 2e5, so 30 iterations resolve the sign of eigenvalues above 1e-5 of the norm of the matrix."""


CONFIG = LinalgConfig()


def cholesky(matrices: Float[Array, "B K K"]) -> Float[Array, "B K K"]:
    """Return the lower Cholesky factor of each matrix, NaN for a matrix that is not positive definite."""
    return jax.lax.platform_dependent(matrices, cpu=_cholesky, default=jnp.linalg.cholesky)


def lower_inverse(roots: Float[Array, "B K K"]) -> Float[Array, "B K K"]:
    """Return the inverse of each lower triangular matrix."""
    return jax.lax.platform_dependent(roots, cpu=_lower_inverse, default=_lower_inverse_by_solve)


def clip_eigenvalues(matrices: Float[Array, "B K K"], low: float, high: float) -> Float[Array, "B K K"]:
    r"""Clip the eigenvalues of symmetric matrices to an interval.

    Uses $\mathrm{clip}(X) = (a + b + |X - a| - |X - b|) / 2$ for the interval $[a, b]$, where $|\cdot|$ is the matrix
    absolute value.

    Parameters
    ----------
    matrices : Array of shape (B, K, K)
        Symmetric matrices, up to rounding.
    low, high : float
        Ends of the interval.

    Returns
    -------
    Array of shape (B, K, K)
    """
    eye = jnp.eye(matrices.shape[-1], dtype=matrices.dtype)[None]
    # Exactly symmetric: rounding can make eigenvalues of an asymmetric matrix complex, which have no sign.
    matrices = 0.5 * (matrices + jnp.swapaxes(matrices, 1, 2))
    below, above = (_matrix_absolute(matrices - bound * eye) for bound in (low, high))
    return 0.5 * ((low + high) * eye + below - above)


def _cholesky(matrices: Float[Array, "B K K"]) -> Float[Array, "B K K"]:
    dim = matrices.shape[-1]

    def fill_row(k, upper):
        row = matrices[:, k] - (upper[:, :, k, None] * upper).sum(1)
        row = row / jnp.sqrt(row[:, k])[:, None]
        return upper.at[:, k].set(jnp.where((jnp.arange(dim) >= k)[None], row, 0.0))

    upper = jax.lax.fori_loop(0, dim, fill_row, jnp.zeros_like(matrices))
    valid = jnp.isfinite(upper).all((1, 2), keepdims=True)
    return jnp.swapaxes(jnp.where(valid, upper, jnp.nan), 1, 2)


def _lower_inverse(roots: Float[Array, "B K K"]) -> Float[Array, "B K K"]:
    eye = jnp.broadcast_to(jnp.eye(roots.shape[-1], dtype=roots.dtype), roots.shape)

    def fill_row(k, inverse):
        product = (roots[:, k, :, None] * inverse).sum(1)
        return inverse.at[:, k].set((eye[:, k] - product) / roots[:, k, k][:, None])

    return jax.lax.fori_loop(0, roots.shape[-1], fill_row, jnp.zeros_like(roots))


def _lower_inverse_by_solve(roots: Float[Array, "B K K"]) -> Float[Array, "B K K"]:
    eye = jnp.broadcast_to(jnp.eye(roots.shape[-1], dtype=roots.dtype), roots.shape)
    return jax.scipy.linalg.solve_triangular(roots, eye, lower=True)


def _matrix_absolute(matrices: Float[Array, "B K K"]) -> Float[Array, "B K K"]:
    """Return symmetric matrices with the absolute eigenvalues, by the Newton-Schulz iteration for the matrix sign."""
    product = lambda a, b: jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
    norm = jnp.sqrt(jnp.square(matrices).sum((1, 2), keepdims=True))
    scaled = matrices / jnp.where(norm > 0, norm, 1.0)
    step = lambda _, sign: 1.5 * sign - 0.5 * product(product(sign, sign), sign)
    absolute = product(matrices, jax.lax.fori_loop(0, CONFIG.sign_iterations, step, scaled))
    return 0.5 * (absolute + jnp.swapaxes(absolute, 1, 2))
