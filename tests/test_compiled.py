"""Compiled functions: one meaning, however they are called."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from calibayes._backend.jit import jit


class Pair(eqx.Module):
    loc: Array
    scale: Array


@pytest.mark.parametrize(
    "times", [jnp.asarray(3.0), np.asarray(3.0, np.float32), 3], ids=["there", "handed", "constant"]
)
def test_arrays_and_anything_else(times):
    """Traced once for each, whatever the values are."""
    seen = []

    @jit
    def scaled(module, times):
        seen.append(1)
        return module.scale * times, Pair(module.loc * times, module.scale)

    for loc in (1.0, 2.0):
        found, moved = scaled(Pair(jnp.asarray(loc), jnp.asarray(2.0)), times)
        assert float(found) == 6.0
        assert isinstance(moved, Pair)
        assert float(moved.loc) == 3 * loc
    assert len(seen) == 1


def test_words_are_constants():
    @jit
    def named(x, name):
        return x + 1 if name == "more" else x

    assert float(named(jnp.ones(()), "more")) == 2
    assert float(named(jnp.ones(()), "less")) == 1
