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


def inverse_cholesky(matrices: Float[Array, "B K K"]) -> Float[Array, "B K K"]:
    """Return the inverse of the lower Cholesky factor of each matrix, NaN for one that is not positive definite."""
    return jax.lax.platform_dependent(matrices, cpu=_inverse_cholesky, default=_inverse_cholesky_by_solve)


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
    both = _matrix_absolute(jnp.concatenate([matrices - low * eye, matrices - high * eye]))
    below, above = both[: len(matrices)], both[len(matrices) :]
    return 0.5 * ((low + high) * eye + below - above)


def _eliminate(matrices: Float[Array, "B K J"]) -> Float[Array, "B K J"]:
    """Eliminate the entries below the diagonal of the first K columns; the values there are not zero, but undefined.

    Each step is one elementwise operation on all matrices, which is fast to compile.
    """
    dim = matrices.shape[1]
    rows = jnp.arange(dim)[None, :, None]

    def subtract_row(k, matrices):
        row = jax.lax.dynamic_slice_in_dim(matrices, k, 1, 1)
        column = jax.lax.dynamic_slice_in_dim(matrices, k, 1, 2)
        pivot = jax.lax.dynamic_slice_in_dim(row, k, 1, 2)
        return jnp.where(rows > k, matrices - column / pivot * row, matrices)

    return jax.lax.fori_loop(0, dim - 1, subtract_row, matrices)


def _cholesky(matrices: Float[Array, "B K K"]) -> Float[Array, "B K K"]:
    eliminated = jnp.swapaxes(_eliminate(matrices), 1, 2)
    root = jnp.tril(eliminated) / jnp.sqrt(diagonal(eliminated))[:, None, :]
    return jnp.where(jnp.isfinite(root).all((1, 2), keepdims=True), root, jnp.nan)


def _inverse_cholesky(matrices: Float[Array, "B K K"]) -> Float[Array, "B K K"]:
    dim, eye = matrices.shape[-1], jnp.broadcast_to(jnp.eye(matrices.shape[-1], dtype=matrices.dtype), matrices.shape)
    eliminated = _eliminate(jnp.concatenate([matrices, eye], -1))
    inverse = eliminated[:, :, dim:] / jnp.sqrt(diagonal(eliminated))[:, :, None]
    return jnp.where(jnp.isfinite(inverse).all((1, 2), keepdims=True), inverse, jnp.nan)


def diagonal(matrices: Float[Array, "B K J"]) -> Float[Array, "B K"]:
    """Return the diagonal of each matrix, as a slice; `jnp.diagonal` gathers it, which takes longer to compile."""
    n_matrices, dim, n_columns = matrices.shape
    return matrices.reshape(n_matrices, -1)[:, : dim * (n_columns + 1) : n_columns + 1]


def _inverse_cholesky_by_solve(matrices: Float[Array, "B K K"]) -> Float[Array, "B K K"]:
    return _lower_inverse_by_solve(jnp.linalg.cholesky(matrices))


def _lower_inverse(roots: Float[Array, "B K K"]) -> Float[Array, "B K K"]:
    dim, eye = roots.shape[-1], jnp.broadcast_to(jnp.eye(roots.shape[-1], dtype=roots.dtype), roots.shape)
    return _eliminate(jnp.concatenate([roots, eye], -1))[:, :, dim:] / diagonal(roots)[:, :, None]


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
