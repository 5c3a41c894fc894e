"""Unrolled functions have the same values, and contain no short products or sums."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._core.target import make_target
from calibayes._core.unroll import CONFIG, unroll

X, THETA = jnp.asarray([1.0, -2.0, 3.0]), jnp.asarray([0.5, 0.25, -1.0])


@jax.jit
def nested(theta, datum):
    return jnp.abs(datum["y"] - datum["x"] @ theta)


def logistic(theta, datum):
    """Loss with a custom derivative, a branch, a loop and a constant."""
    score = jax.lax.cond(datum["y"] > 0, lambda f: f, lambda f: -f, jnp.dot(theta, datum["x"]))
    looped = jax.lax.fori_loop(0, 3, lambda _, f: f + jnp.asarray([1.0, 2.0, 3.0]) @ datum["x"], score)
    return jax.nn.softplus(-looped)


def matrix(theta, datum):
    return jnp.square(jnp.outer(datum["x"], theta) @ datum["x"]).sum() + jax.lax.dot(theta, theta)


@pytest.mark.parametrize("fn", [nested, logistic, matrix])
def test_unrolled_functions_have_the_same_value(fn):
    datum = {"x": X, "y": jnp.asarray(1.5)}
    unrolled = unroll(fn, THETA, datum)
    np.testing.assert_allclose(unrolled(THETA, datum), fn(THETA, datum), rtol=1e-6)
    other = {"x": 2 * X, "y": jnp.asarray(-1.5)}
    np.testing.assert_allclose(jax.jit(unrolled)(3 * THETA, other), fn(3 * THETA, other), rtol=1e-6)


def test_short_products_are_unrolled():
    short, long = jnp.ones(CONFIG.max_product_length), jnp.ones(CONFIG.max_product_length + 1)
    dot = lambda a, b: a @ b
    assert "dot_general" not in str(jax.make_jaxpr(unroll(dot, short, short))(short, short))
    assert "dot_general" in str(jax.make_jaxpr(unroll(dot, long, long))(long, long))
    assert unroll(dot, short, short)(short, short) == CONFIG.max_product_length


def test_short_sums_are_unrolled():
    total = lambda theta: jnp.square(theta).sum()
    for length in (1, CONFIG.max_sum_length, CONFIG.max_sum_length + 1):
        theta = jnp.arange(1.0, length + 1)
        unrolled = unroll(total, theta)
        assert ("reduce_sum" in str(jax.make_jaxpr(unrolled)(theta))) == (length > CONFIG.max_sum_length)
        np.testing.assert_allclose(unrolled(theta), total(theta), rtol=1e-6)
    matrix_sum = unroll(lambda theta: jnp.outer(theta, theta).sum(), THETA)
    np.testing.assert_allclose(matrix_sum(THETA), float(THETA.sum()) ** 2, rtol=1e-6)


def test_sums_over_no_axis_are_kept():
    """Of a vector, and of a number."""
    vector = lambda theta: (jnp.sum(theta, axis=()) * X).sum()
    np.testing.assert_allclose(unroll(vector, THETA)(THETA), THETA @ X, rtol=1e-6)
    number = lambda theta: theta[0] + jnp.sum(theta[1], axis=())
    assert unroll(number, THETA)(THETA) == 0.75


@pytest.mark.parametrize(("dtype", "product_dtype"), [(jnp.bfloat16, jnp.float32), (jnp.int8, jnp.int32)])
def test_products_have_the_preferred_type(dtype, product_dtype):
    """257 * 257 has more digits than bfloat16, and 300 is beyond int8."""
    vector = jnp.asarray([100, 100, 3] if dtype == jnp.int8 else [257, 1, 0.5], dtype)
    fn = lambda a, b: jax.lax.dot(a, b, preferred_element_type=product_dtype)
    product = unroll(fn, vector, vector)(vector, vector)
    assert product.dtype == product_dtype
    assert product == fn(vector, vector)


def test_constant_functions():
    """Such as the log-density of a flat prior."""
    flat = unroll(lambda theta: jnp.zeros(()), THETA)
    np.testing.assert_array_equal(jax.vmap(flat)(jnp.stack([THETA, THETA])), np.zeros(2))


def test_empty_products():
    fn = lambda theta, x: theta[0] + x[3:] @ theta[3:]
    assert unroll(fn, THETA, X)(THETA, X) == 0.5


def test_risk_of_a_generic_loss_with_a_product():
    """Against NumPy, for several replicates."""
    rng = np.random.default_rng(0)
    x, y, counts = rng.normal(size=(21, 3)), rng.normal(size=21), rng.poisson(1, size=(4, 21))
    model = cb.GibbsModel(lambda t, d: jnp.abs(d[1] - d[0] @ t), cb.priors.Normal(), dim=3)
    target = make_target(model, (x, y), counts, 3)
    theta = rng.normal(size=(3, 5, 7))
    losses = np.abs(y[:, None, None] - np.tensordot(x, theta, 1)) - np.abs(y)[:, None, None]
    expected = np.tensordot(np.concatenate([np.ones((1, 21)), counts]), losses, 1)
    risk = target.risk(jnp.asarray(theta, float))
    np.testing.assert_allclose(risk, np.stack([expected[b, b] for b in range(5)]), rtol=1e-4, atol=1e-4)
