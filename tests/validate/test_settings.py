"""Checks of seeds, levels and tolerances."""

import jax
import jaxtyping
import numpy as np
import pytest

from calibayes._validate.settings import as_key, check_search_settings


def test_seeds_are_integers_or_keys():
    expected = jax.random.key_data(jax.random.key(3))
    for seed in (3, np.int32(3), jax.random.key(3), jax.random.PRNGKey(3)):
        np.testing.assert_array_equal(jax.random.key_data(as_key(seed)), expected)


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("seed", [0, 1, -1, 2**31, 2**32 - 1, 2**32, 2**40 + 7, -(2**35), 2**63 - 1, -(2**63)])
def test_integer_seeds_give_the_keys_of_jax(seed, x64):
    with jax.enable_x64(x64):
        expected = jax.random.key_data(jax.random.key(seed))
        np.testing.assert_array_equal(jax.random.key_data(as_key(seed)), expected)


def test_seeds_above_64_bits_are_rejected():
    with pytest.raises(ValueError, match="seed must fit"):
        as_key(2**70)


@pytest.mark.parametrize(
    ("level", "tolerance", "n_replicates", "message"),
    [
        (0.999, 0.0005, 100, "replicates are too few for level = 0.999.*Use at least 5000"),
        (0.95, 0.06, 100, "must be below 0.05"),
        ("0.95", 0.005, 500, "level must"),
    ],
)
def test_level_tolerance_and_replicates_must_be_compatible(level, tolerance, n_replicates, message, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises((ValueError, TypeError), match=message):
        check_search_settings(level, tolerance, None, 10, n_replicates, to_tolerance=True)
