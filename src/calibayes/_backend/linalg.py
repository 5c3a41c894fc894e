"""Linear algebra of batches of small matrices: factors of covariance matrices, their inverses, and clipped eigenvalues.

Functions of JAX arrays are for compiled programs. On a CPU they compute factors by explicit loops instead of LAPACK:
XLA runs LAPACK for each matrix of a batch in a thread of its pool, where it waits for other threads of the same pool;
when as many such calls run at the same time as there are threads, the program deadlocks. Functions whose name begins
with `host_` are for NumPy arrays; they compile nothing, and call LAPACK in the thread of the caller.
"""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


@dataclass(frozen=True)
class LinalgConfig:
    """Tuning constants of the linear algebra."""

    ridge: float = 1e-5
    """Ridge added to a correlation matrix before its Cholesky factorisation, about a hundred times the rounding
    error of float32. It keeps nearly singular matrices positive definite and changes factors by a relative 1e-5."""


CONFIG = LinalgConfig()


# Compiled


def factor(covariance: Float[Array, "B K K"]) -> Float[Array, "B K K"]:
    """Return a lower Cholesky factor of each covariance matrix.

    A ridge keeps nearly singular matrices positive definite. A matrix without a factor, such as zero, gets a diagonal
    one.
    """
    scale, correlation = _ridged_correlation(covariance, jnp)
    root = cholesky(correlation)
    return scale[:, :, None] * jnp.where(jnp.isfinite(root), root, _identities(root))


def factor_and_inverse(covariance: Float[Array, "B K K"]) -> tuple[Float[Array, "B K K"], Float[Array, "B K K"]]:
    """Return `factor(covariance)` and its inverse, from one elimination."""
    scale, correlation = _ridged_correlation(covariance, jnp)
    root, inverse = jax.lax.platform_dependent(correlation, cpu=_cholesky_and_inverse, default=_cholesky_and_solve)
    root, inverse = (jnp.where(jnp.isfinite(matrix), matrix, _identities(matrix)) for matrix in (root, inverse))
    return scale[:, :, None] * root, inverse / scale[:, None, :]


def inverse_factor(covariance: Float[Array, "B K K"]) -> Float[Array, "B K K"]:
    """Return the inverse of `factor(covariance)`, which whitens particles with these covariances."""
    return factor_and_inverse(covariance)[1]


def cholesky(matrices: Float[Array, "B K K"]) -> Float[Array, "B K K"]:
    """Return the lower Cholesky factor of each matrix, NaN for a matrix that is not positive definite."""
    return jax.lax.platform_dependent(matrices, cpu=_cholesky, default=jnp.linalg.cholesky)


def lower_inverse(roots: Float[Array, "B K K"]) -> Float[Array, "B K K"]:
    """Return the inverse of each lower triangular matrix."""
    return jax.lax.platform_dependent(roots, cpu=_lower_inverse, default=_lower_inverse_by_solve)


def diagonal(matrices: Float[Array, "B K J"]) -> Float[Array, "B K"]:
    """Return the diagonal of each matrix, as a slice; `jnp.diagonal` gathers it, which takes longer to compile."""
    n_matrices, dim, n_columns = matrices.shape
    return matrices.reshape(n_matrices, -1)[:, : dim * (n_columns + 1) : n_columns + 1]


def _ridged_correlation(covariance: Any, xp: ModuleType) -> tuple[Any, Any]:
    """Return standard deviations and correlation matrices with a ridge, by the array module `xp`."""
    n_matrices, dim, _ = covariance.shape
    variance = covariance.reshape(n_matrices, -1)[:, :: dim + 1]
    scale = xp.sqrt(xp.maximum(variance, xp.finfo(covariance.dtype).tiny))
    correlation = covariance / (scale[:, :, None] * scale[:, None, :])
    return scale, xp.where(xp.eye(dim, dtype=bool)[None], 1.0, correlation / (1 + CONFIG.ridge))


def _identities(matrices: Float[Array, "B K K"]) -> Float[Array, "1 K K"]:
    return jnp.eye(matrices.shape[-1], dtype=matrices.dtype)[None]


def _eliminate(matrices: Float[Array, "B K J"]) -> Float[Array, "B K J"]:
    """Reduce the first K columns to upper triangular form by Gaussian elimination without pivoting.

    Entries below the diagonal are zero only up to rounding, and are not read.

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
    return _root_of_eliminated(_eliminate(matrices))


def _cholesky_and_inverse(matrices: Float[Array, "B K K"]) -> tuple[Float[Array, "B K K"], Float[Array, "B K K"]]:
    dim, eye = matrices.shape[-1], jnp.broadcast_to(_identities(matrices), matrices.shape)
    eliminated = _eliminate(jnp.concatenate([matrices, eye], -1))
    inverse = eliminated[:, :, dim:] / jnp.sqrt(diagonal(eliminated))[:, :, None]
    return _root_of_eliminated(eliminated[:, :, :dim]), _finite_or_nan(inverse)


def _root_of_eliminated(eliminated: Float[Array, "B K K"]) -> Float[Array, "B K K"]:
    upper = jnp.swapaxes(eliminated, 1, 2)
    return _finite_or_nan(jnp.tril(upper) / jnp.sqrt(diagonal(upper))[:, None, :])


def _finite_or_nan(matrices: Float[Array, "B K K"]) -> Float[Array, "B K K"]:
    return jnp.where(jnp.isfinite(matrices).all((1, 2), keepdims=True), matrices, jnp.nan)


def _cholesky_and_solve(matrices: Float[Array, "B K K"]) -> tuple[Float[Array, "B K K"], Float[Array, "B K K"]]:
    root = jnp.linalg.cholesky(matrices)
    return root, _lower_inverse_by_solve(root)


def _lower_inverse(roots: Float[Array, "B K K"]) -> Float[Array, "B K K"]:
    dim, eye = roots.shape[-1], jnp.broadcast_to(_identities(roots), roots.shape)
    return _eliminate(jnp.concatenate([roots, eye], -1))[:, :, dim:] / diagonal(roots)[:, :, None]


def _lower_inverse_by_solve(roots: Float[Array, "B K K"]) -> Float[Array, "B K K"]:
    return jax.scipy.linalg.solve_triangular(roots, jnp.broadcast_to(_identities(roots), roots.shape), lower=True)


# On the host


def host_factor(covariance: Float[np.ndarray, "B K K"]) -> Float[np.ndarray, "B K K"]:
    """Return a lower Cholesky factor of each covariance matrix, as `factor` does."""
    scale, correlation = _ridged_correlation(covariance, np)
    return scale[:, :, None] * _cholesky_or_identity(correlation)


def host_inverse_factor(covariance: Float[np.ndarray, "B K K"]) -> Float[np.ndarray, "B K K"]:
    """Return the inverse of `host_factor(covariance)`."""
    scale, correlation = _ridged_correlation(covariance, np)
    return np.tril(np.linalg.inv(_cholesky_or_identity(correlation))) / scale[:, None, :]


def clip_eigenvalues(matrices: Float[np.ndarray, "B K K"], low: float, high: float) -> Float[np.ndarray, "B K K"]:
    """Return symmetric matrices with their eigenvalues clipped to the interval from `low` to `high`."""
    values, vectors = np.linalg.eigh(matrices)
    return (vectors * np.clip(values, low, high)[:, None, :]) @ np.swapaxes(vectors, 1, 2)


def _cholesky_or_identity(matrices: Float[np.ndarray, "B K K"]) -> Float[np.ndarray, "B K K"]:
    eye = np.eye(matrices.shape[-1], dtype=matrices.dtype)[None]
    try:
        roots = np.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:
        if len(matrices) > 1:
            return np.concatenate([_cholesky_or_identity(matrix[None]) for matrix in matrices])
        return eye
    return np.where(np.isfinite(roots), roots, eye)
