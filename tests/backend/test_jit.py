"""Compiled functions behave the same whether they are dispatched by `jax.jit` or `equinox.filter_jit`."""

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
    "times", [jnp.asarray(3.0), np.asarray(3.0, np.float32), 3], ids=["jax array", "numpy array", "static integer"]
)
def test_arrays_and_static_arguments_are_traced_once(times):
    traces = []

    @jit
    def scaled(module, times):
        traces.append(1)
        return module.scale * times, Pair(module.loc * times, module.scale)

    for loc in (1.0, 2.0):
        scale, moved = scaled(Pair(jnp.asarray(loc), jnp.asarray(2.0)), times)
        assert float(scale) == 6.0
        assert isinstance(moved, Pair)
        assert float(moved.loc) == 3 * loc
    assert len(traces) == 1


def test_strings_are_static():
    @jit
    def add_if_more(x, name):
        return x + 1 if name == "more" else x

    assert float(add_if_more(jnp.ones(()), "more")) == 2
    assert float(add_if_more(jnp.ones(()), "less")) == 1
