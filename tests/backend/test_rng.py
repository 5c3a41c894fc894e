"""Random numbers of the inner loop against those of JAX, and key derivation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32
from scipy import stats

from calibayes._backend.rng import fold_key, normals, replicate_keys, split_key, threefry, uniforms


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
