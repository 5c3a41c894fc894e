"""Batches of small matrices against NumPy; and no LAPACK call in programs for the CPU."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes
from calibayes._backend.linalg import (
    cholesky,
    clip_eigenvalues,
    diagonal,
    factor,
    factor_and_inverse,
    host_factor,
    host_inverse_factor,
    inverse_factor,
    lower_inverse,
)

BATCH = 7
TOLERANCE = 300 * np.finfo(np.float32).eps
"""For numbers of order one in matrices with a condition number of at most 30, summed over up to 40 terms."""


def symmetric(dim, low, high, seed=0):
    """Return symmetric matrices with eigenvalues from `low` to `high`, their eigenvectors and eigenvalues."""
    rng = np.random.default_rng(seed)
    vectors = np.linalg.qr(rng.normal(size=(BATCH, dim, dim)))[0]
    values = np.linspace(low, high, dim) if dim > 1 else np.array([high])
    return (vectors * values) @ np.swapaxes(vectors, 1, 2), vectors, values


@pytest.mark.parametrize("dim", [1, 2, 8, 40])
def test_cholesky_and_inverse_match_numpy(dim):
    matrices, *_ = symmetric(dim, 0.1, 3.0)
    roots = np.asarray(jax.jit(cholesky)(jnp.asarray(matrices, float)))
    np.testing.assert_allclose(roots, np.linalg.cholesky(matrices), atol=TOLERANCE)
    expected = np.linalg.inv(roots.astype(np.float64))
    inverses = np.asarray(jax.jit(lower_inverse)(jnp.asarray(roots)))
    np.testing.assert_allclose(inverses, expected, atol=10 * TOLERANCE)
    assert (np.triu(roots, 1) == 0).all()
    assert (np.triu(inverses, 1) == 0).all()


def test_cholesky_of_indefinite_matrices_is_nan():
    definite, *_ = symmetric(3, 0.5, 2.0)
    indefinite, *_ = symmetric(3, -0.5, 2.0)
    zero = np.zeros((1, 3, 3))
    roots = np.asarray(jax.jit(cholesky)(jnp.asarray(np.concatenate([definite, indefinite, zero]), float)))
    assert np.isfinite(roots[:BATCH]).all()
    assert np.isnan(np.diagonal(roots[BATCH:], axis1=1, axis2=2)).any(-1).all()


@pytest.mark.parametrize("dim", [1, 2, 8, 40])
@pytest.mark.parametrize("on_host", [False, True], ids=["compiled", "host"])
def test_factor_is_a_root_of_the_covariance(dim, on_host):
    """Up to the ridge of 1e-5, for standard deviations of any magnitude. The inverse is that of the factor."""
    scale = np.geomspace(1e-3, 1e4, dim)
    matrices = symmetric(dim, 0.1, 3.0)[0] * scale * scale[:, None]
    if on_host:
        root, inverse = host_factor(matrices), host_inverse_factor(matrices)
    else:
        root, inverse = map(np.asarray, jax.jit(factor_and_inverse)(jnp.asarray(matrices, float)))
        np.testing.assert_allclose(jax.jit(factor)(jnp.asarray(matrices, float)), root, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(jax.jit(inverse_factor)(jnp.asarray(matrices, float)), inverse, rtol=1e-6)
    for matrix in (root, inverse):
        assert (np.triu(matrix, 1) == 0).all()
    error = (root @ root.transpose(0, 2, 1) - matrices) / (scale * scale[:, None])
    assert np.abs(error).max() < 1e-3
    product = (inverse * scale) @ (root / scale[:, None])
    np.testing.assert_allclose(product, np.broadcast_to(np.eye(dim), product.shape), atol=1e-3)


@pytest.mark.parametrize("on_host", [False, True], ids=["compiled", "host"])
def test_factors_of_degenerate_matrices_are_finite(on_host):
    """A singular matrix has a factor; zero, NaN and an indefinite matrix get a diagonal one, alone and among others."""
    singular, indefinite = [[1.0, 2.0], [2.0, 4.0]], [[1.0, 3.0], [3.0, 1.0]]
    matrices = np.array([np.zeros((2, 2)), singular, indefinite, [[1.0, np.nan], [np.nan, 1.0]], np.eye(2)])
    apply = lambda fn, host, matrices: host(matrices) if on_host else np.asarray(fn(jnp.asarray(matrices, float)))
    roots = apply(factor, host_factor, matrices)
    assert np.isfinite(roots).all()
    assert np.isfinite(apply(inverse_factor, host_inverse_factor, matrices)).all()
    np.testing.assert_allclose(roots[1] @ roots[1].T, singular, rtol=1e-4)
    assert (roots[[0, 2, 3], 1, 0] == 0).all()
    np.testing.assert_allclose(apply(factor, host_factor, matrices[2:3]), roots[2:3])


@pytest.mark.parametrize("shape", [(3, 1, 1), (3, 4, 4), (3, 4, 7)])
def test_diagonal_of_matrices_that_need_not_be_square(shape):
    matrices = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    np.testing.assert_array_equal(diagonal(jnp.asarray(matrices)), np.diagonal(matrices, axis1=1, axis2=2))


@pytest.mark.parametrize("dim", [1, 2, 8, 40])
@pytest.mark.parametrize(("low", "high"), [(-3.0, 9.0), (0.5, 2.0), (-1.0, 0.1), (0.25, 4.0)])
def test_eigenvalues_are_clipped(dim, low, high):
    matrices, vectors, values = symmetric(dim, low, high)
    expected = (vectors * np.clip(values, 0.25, 4.0)) @ np.swapaxes(vectors, 1, 2)
    np.testing.assert_allclose(clip_eigenvalues(matrices, 0.25, 4.0), expected, atol=1e-12)


@pytest.mark.parametrize("fn", [cholesky, factor, factor_and_inverse, inverse_factor, lower_inverse])
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="programs for the CPU")
def test_cpu_programs_do_not_call_lapack(fn):
    """LAPACK calls can deadlock in XLA's thread pool."""
    assert "lapack" in jax.jit(jnp.linalg.cholesky).lower(jnp.ones((BATCH, 3, 3))).as_text()
    assert "lapack" not in jax.jit(fn).lower(jnp.ones((BATCH, 3, 3))).as_text()


def test_no_other_module_uses_jax_linear_algebra():
    """NumPy and SciPy on the host are allowed."""
    package = Path(calibayes.__file__).parent
    pattern = re.compile(r"(jnp|jax\.numpy|scipy|lax)\.linalg")
    users = {path.name for path in package.rglob("*.py") if pattern.search(path.read_text())}
    assert users == {"linalg.py"}
