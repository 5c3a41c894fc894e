"""Factors of many small matrices, against NumPy's of each; and that no program on a processor waits for LAPACK."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes
from calibayes._backend.linalg import cholesky, clip_eigenvalues, lower_inverse

ROWS = 7
TOLERANCE = 300 * np.finfo(np.float32).eps
"""Of numbers of the order of one, in matrices of condition 30 or less, summed over up to 40."""


def symmetric(dim, low, high, seed=0):
    """With eigenvalues from `low` to `high`."""
    rng = np.random.default_rng(seed)
    vectors = np.linalg.qr(rng.normal(size=(ROWS, dim, dim)))[0]
    values = np.linspace(low, high, dim) if dim > 1 else np.array([high])
    return (vectors * values) @ np.swapaxes(vectors, 1, 2), vectors, values


@pytest.mark.parametrize("dim", [1, 2, 8, 40])
def test_factors_and_their_inverses(dim):
    matrices, *_ = symmetric(dim, 0.1, 3.0)
    roots = np.asarray(jax.jit(cholesky)(jnp.asarray(matrices, float)))
    np.testing.assert_allclose(roots, np.linalg.cholesky(matrices), atol=TOLERANCE)
    inverses = np.asarray(jax.jit(lower_inverse)(jnp.asarray(roots)))
    np.testing.assert_allclose(inverses, np.linalg.inv(roots.astype(np.float64)), atol=10 * TOLERANCE)
    assert (np.triu(roots, 1) == 0).all()
    assert (np.triu(inverses, 1) == 0).all()


def test_what_is_not_positive_definite_has_no_factor():
    good, *_ = symmetric(3, 0.5, 2.0)
    bad, *_ = symmetric(3, -0.5, 2.0)
    empty = np.zeros((1, 3, 3))
    roots = np.asarray(jax.jit(cholesky)(jnp.asarray(np.concatenate([good, bad, empty]), float)))
    assert np.isfinite(roots[:ROWS]).all()
    assert np.isnan(roots[ROWS:]).all()


@pytest.mark.parametrize("dim", [1, 2, 8, 40])
@pytest.mark.parametrize(("low", "high"), [(-3.0, 9.0), (0.5, 2.0), (-1.0, 0.1), (0.25, 4.0)])
def test_eigenvalues_are_clipped(dim, low, high):
    matrices, vectors, values = symmetric(dim, low, high)
    expected = (vectors * np.clip(values, 0.25, 4.0)) @ np.swapaxes(vectors, 1, 2)
    found = np.asarray(jax.jit(clip_eigenvalues, static_argnums=(1, 2))(jnp.asarray(matrices, float), 0.25, 4.0))
    # Signs are not known of eigenvalues within 1e-5 of a bound, where they do not matter.
    np.testing.assert_allclose(found, expected, atol=20 * TOLERANCE)


def test_what_is_symmetric_but_for_rounding_is_clipped():
    """Whose eigenvalues are not real: 4 and a millionth of i."""
    turned = 4 * np.eye(2) + 1e-6 * np.array([[0, 1], [-1, 0]])
    found = np.asarray(jax.jit(clip_eigenvalues, static_argnums=(1, 2))(jnp.asarray(turned[None], float), 0.25, 4.0))
    np.testing.assert_allclose(found[0], 4 * np.eye(2), atol=1e-4)


@pytest.mark.parametrize(
    "fn", [cholesky, lower_inverse, lambda m: clip_eigenvalues(m, 0.25, 4.0)], ids=["factor", "inverse", "clip"]
)
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="of processors")
def test_a_processor_is_not_handed_to_lapack(fn):
    """Which waits in a thread of the pool that it waits for."""
    assert "lapack" in jax.jit(jnp.linalg.cholesky).lower(jnp.ones((ROWS, 3, 3))).as_text()
    assert "lapack" not in jax.jit(fn).lower(jnp.ones((ROWS, 3, 3))).as_text()


def test_nothing_else_asks_for_lapack():
    """What is measured against, and what runs on the host, may."""
    room = Path(calibayes.__file__).parent
    asked = re.compile(r"(jnp|jax\.numpy|scipy|lax)\.linalg")
    found = {path.name for path in room.rglob("*.py") if asked.search(path.read_text())}
    assert found == {"factors.py", "peers.py"}
