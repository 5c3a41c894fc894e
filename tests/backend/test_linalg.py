"""Batches of small matrices against NumPy; and no LAPACK call in programs for the CPU."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes
from calibayes._backend.linalg import cholesky, clip_eigenvalues, diagonal, inverse_cholesky, lower_inverse

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
    direct = jax.jit(inverse_cholesky)(jnp.asarray(matrices, float))
    np.testing.assert_allclose(direct, expected, atol=10 * TOLERANCE)
    assert (np.triu(direct, 1) == 0).all()
    assert (np.triu(roots, 1) == 0).all()
    assert (np.triu(inverses, 1) == 0).all()


def test_cholesky_of_indefinite_matrices_is_nan():
    definite, *_ = symmetric(3, 0.5, 2.0)
    indefinite, *_ = symmetric(3, -0.5, 2.0)
    zero = np.zeros((1, 3, 3))
    for fn in (cholesky, inverse_cholesky):
        roots = np.asarray(jax.jit(fn)(jnp.asarray(np.concatenate([definite, indefinite, zero]), float)))
        assert np.isfinite(roots[:BATCH]).all()
        assert np.isnan(roots[BATCH:]).all()


@pytest.mark.parametrize("shape", [(3, 1, 1), (3, 4, 4), (3, 4, 7)])
def test_diagonal_of_matrices_that_need_not_be_square(shape):
    matrices = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    np.testing.assert_array_equal(diagonal(jnp.asarray(matrices)), np.diagonal(matrices, axis1=1, axis2=2))


@pytest.mark.parametrize("dim", [1, 2, 8, 40])
@pytest.mark.parametrize(("low", "high"), [(-3.0, 9.0), (0.5, 2.0), (-1.0, 0.1), (0.25, 4.0)])
def test_eigenvalues_are_clipped(dim, low, high):
    matrices, vectors, values = symmetric(dim, low, high)
    expected = (vectors * np.clip(values, 0.25, 4.0)) @ np.swapaxes(vectors, 1, 2)
    clipped = np.asarray(jax.jit(clip_eigenvalues, static_argnums=(1, 2))(jnp.asarray(matrices, float), 0.25, 4.0))
    # The sign of an eigenvalue within 1e-5 of a bound is not resolved, but does not matter there.
    np.testing.assert_allclose(clipped, expected, atol=20 * TOLERANCE)


def test_nearly_symmetric_matrices_are_clipped():
    """Rounding can make a matrix asymmetric. The eigenvalues of this one are complex, 4 +- 1e-6 i."""
    matrix = 4 * np.eye(2) + 1e-6 * np.array([[0, 1], [-1, 0]])
    clipped = jax.jit(clip_eigenvalues, static_argnums=(1, 2))(jnp.asarray(matrix[None], float), 0.25, 4.0)
    np.testing.assert_allclose(np.asarray(clipped)[0], 4 * np.eye(2), atol=1e-4)


@pytest.mark.parametrize("fn", [cholesky, inverse_cholesky, lower_inverse, lambda m: clip_eigenvalues(m, 0.25, 4.0)])
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
