"""Random numbers and keys against those of JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32
from scipy import stats

from calibayes._backend.rng import (
    fold_in,
    fold_key,
    key_from_seed,
    normals,
    replicate_keys,
    split_key,
    threefry,
    uniforms,
    with_unrolled_threefry,
)


def test_threefry_equals_that_of_jax(key):
    words = jax.random.key_data(key)
    counter = jnp.asarray(np.random.default_rng(0).integers(0, 2**32, 64, dtype=np.uint32))
    expected = threefry_2x32(words, counter)
    got = jnp.concatenate(threefry((words[0], words[1]), (counter[:32], counter[32:])))
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_uniforms_and_normals_have_their_distributions(count, key):
    """KS tests at level 1e-3 of each stream of 20,000; correlations within 4.5 / sqrt(20,000)."""
    uniform = np.asarray(uniforms(replicate_keys(key, 2), count, 20_000))
    assert uniform.shape == (count, 2, 20_000)
    assert uniform.min() > 0
    assert uniform.max() < 1
    streams = uniform.reshape(2 * count, -1)
    for stream in streams:
        assert stats.kstest(stream, "uniform").pvalue > 1e-3
        assert stats.kstest(np.asarray(normals(jnp.asarray(stream))), "norm").pvalue > 1e-3
    correlation = np.corrcoef(np.concatenate([streams[:, 1:], streams[:, :-1]]))
    assert np.abs(correlation - np.eye(4 * count)).max() < 4.5 / np.sqrt(20_000)


def test_normals_of_extreme_uniforms_are_finite():
    extremes = jnp.asarray([2.0**-24, 1 - 2.0**-24])
    low, high = normals(extremes)
    assert jnp.isfinite(low)
    assert low == -high


def test_uniforms_of_a_replicate_depend_on_its_key_only(key):
    keys = replicate_keys(key, 5)
    np.testing.assert_array_equal(uniforms(keys, 3, 100)[:, 3:4], uniforms(keys[3:4], 3, 100))
    assert (uniforms(keys[:1], 3, 100) != uniforms(keys[1:2], 3, 100)).all()


def test_derived_keys_equal_those_of_jax(key):
    """Words are taken modulo 2^32, because steps down may be negative."""
    folded = jax.random.fold_in(jax.random.fold_in(key, 3), 2**32 - 2)
    assert fold_key(key, 3, -2) == folded
    assert fold_key(key, 3, 2) != folded
    assert split_key(key, 2, 7)[1] == jax.random.split(jax.random.fold_in(key, 7))[1]
    for n in (2, 5):
        np.testing.assert_array_equal(
            jax.random.key_data(jnp.stack(split_key(key, n))), jax.random.key_data(jax.random.split(key, n))
        )


def _assert_equal_keys(got, expected):
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(jax.random.key_data(got), jax.random.key_data(expected))


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_keys_equal_those_of_jax_in_and_outside_of_compiled_functions(compiled, x64):
    with jax.enable_x64(x64):
        key, call = jax.random.key(2**40 + 3), jax.jit if compiled else lambda fn: fn
        _assert_equal_keys(key_from_seed(2**40 + 3), key)
        keys = jax.random.split(key, 5)
        _assert_equal_keys(call(lambda key: jnp.stack(split_key(key, 5)))(key), keys)
        expected = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(5))
        _assert_equal_keys(call(lambda key: replicate_keys(key, 5))(key), expected)
        counts = jnp.array([0, 3, 1, 2**31 - 1, 9])
        _assert_equal_keys(call(fold_in)(keys, counts), jax.vmap(jax.random.fold_in)(keys, counts))
        _assert_equal_keys(call(fold_in)(keys, counts[1]), jax.vmap(jax.random.fold_in, (0, None))(keys, counts[1]))


def test_keys_outside_of_compiled_functions_compile_nothing(key):
    with jax.log_compiles(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax._src.compiler, "backend_compile_and_load", lambda *_a, **_k: pytest.fail("compiled"))
        replicate_keys(fold_key(split_key(key, 3, 11)[1], 1, 2), 1234)


def test_keys_of_another_generator_are_folded_by_jax():
    key = jax.random.key(0, impl="rbg")
    _assert_equal_keys(replicate_keys(key, 3), jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(3)))
    assert with_unrolled_threefry(key) is key


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize(
    "draw",
    [
        lambda key: jax.random.uniform(key, (3, 7)),
        lambda key: jax.random.normal(key, (5,)),
        lambda key: jax.random.randint(key, (9,), 0, 100),
        lambda key: jax.random.permutation(key, 11),
        lambda key: jax.random.choice(jax.random.split(jax.random.fold_in(key, 3))[1], 20, (4,)),
        lambda key: jax.random.bits(key, (4,), jnp.uint8),
    ],
)
def test_unrolled_keys_give_the_numbers_of_jax(draw, x64):
    with jax.enable_x64(x64):
        key = jax.random.key(5)
        np.testing.assert_array_equal(jax.jit(lambda key: draw(with_unrolled_threefry(key)))(key), draw(key))
        keys = jax.random.split(key, 3)
        np.testing.assert_array_equal(
            jax.vmap(lambda key: draw(with_unrolled_threefry(key)))(keys), jax.vmap(draw)(keys)
        )


def test_unrolled_numbers_are_one_fusion():
    def fusions(fn):
        return jax.jit(fn).lower(jax.random.key(0)).compile().as_text().count(" fusion(")

    assert fusions(lambda key: jax.random.uniform(with_unrolled_threefry(key), (100,))) == 1
    assert fusions(lambda key: replicate_keys(key, 100)) == 1
