"""Compiled functions: one program per shape, prefetched programs, and JAX's own options."""

import contextlib
import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from calibayes._backend import jit as jit_module
from calibayes._backend.jit import compiling_since, jit, prefetch


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


def test_shapes_of_a_prefetched_program_are_returned_and_it_is_traced_once():
    traces = []

    @jit
    def scaled(module, n):
        traces.append(1)
        return Pair(jnp.repeat(module.loc[None], n), module.scale), "static"

    shape = jax.ShapeDtypeStruct((), jnp.float32)
    pair, text = prefetch(scaled, Pair(shape, shape), 3)
    assert pair.loc.shape == (3,)
    assert text == "static"
    value, _ = scaled(Pair(jnp.asarray(2.0), jnp.asarray(1.0)), 3)
    assert value.loc.tolist() == [2.0, 2.0, 2.0]
    assert len(traces) == 1
    assert prefetch(scaled, Pair(shape, shape), 3)[0].loc.shape == (3,)
    assert len(traces) == 1


def test_error_in_a_prefetched_function_is_raised_and_not_kept():
    broken = [True]

    @jit
    def fragile(x):
        if broken:
            raise RuntimeError("broken")
        return x

    with pytest.raises(RuntimeError, match="broken"):
        prefetch(fragile, jax.ShapeDtypeStruct((), jnp.float32))
    broken.clear()
    assert float(fragile(jnp.ones(()))) == 1.0


def test_threads_that_need_the_same_program_compile_it_once():
    traces = []

    @jit
    def slow(x):
        time.sleep(0.2)
        traces.append(1)
        return x + 1

    with ThreadPoolExecutor(4) as executor:
        values = list(executor.map(slow, [jnp.ones(2)] * 4))
    assert len(traces) == 1
    assert all(float(value.sum()) == 4 for value in values)


def test_calls_inside_other_transformations():
    @jit
    def product(x, times):
        return x * times

    assert float(jax.grad(lambda x: product(x, 3))(jnp.asarray(2.0))) == 3
    assert jax.vmap(lambda x: product(x, 2))(jnp.arange(3.0)).tolist() == [0, 2, 4]


def test_debugging_options_of_jax_apply():
    @jit
    def divide(x):
        return x / x

    divide(jnp.ones(()))
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        divide(jnp.zeros(()))
    with jax.disable_jit():
        assert float(divide(jnp.ones(()))) == 1.0


def test_precision_is_distinguished_and_weak_dtypes_are_not():
    @jit
    def doubled(x):
        return 2 * x

    assert doubled(np.ones(2)).dtype == jnp.float32
    with jax.enable_x64(True):
        assert doubled(np.ones(2)).dtype == jnp.float64
    assert doubled(jnp.ones(2)).dtype == jnp.float32
    weak = jnp.asarray(1.0)
    assert weak.weak_type
    assert not doubled(weak).weak_type


def test_waiting_time_is_reported_while_a_program_compiles():
    seen = []

    @jit
    def watched(x):
        seen.append(compiling_since())
        return x

    assert compiling_since() is None
    watched(jnp.ones(()))
    assert seen[0] is not None
    assert compiling_since() is None


def test_arrays_on_other_devices_are_left_to_jax():
    @jit
    def plus_one(x):
        return x + 1

    device = jax.devices()[-1]
    assert plus_one(jax.device_put(jnp.ones(2), device)).devices() == {device}


@pytest.mark.cpu("a GPU has no light programs")
def test_light_program_is_compiled_without_options_that_xla_does_not_have(monkeypatch):
    unknown = dataclasses.replace(jit_module.CONFIG, light_options=(("xla_no_such_option", True),))
    monkeypatch.setattr(jit_module, "CONFIG", unknown)
    monkeypatch.setattr(jit_module._light_options, "supported", True)

    @jit_module.light_jit
    def plus_two(x):
        return x + 2

    assert float(plus_two(jnp.ones(()))) == 3
    assert not jit_module._light_options.supported


def test_failed_compilation_in_the_background_is_tried_again(monkeypatch):
    compile_program, failures = jit_module._compile, [RuntimeError("no memory")]

    def fail_once(*args):
        if failures:
            raise failures.pop()
        return compile_program(*args)

    monkeypatch.setattr(jit_module, "_compile", fail_once)

    @jit
    def plus_three(x):
        return x + 3

    prefetch(plus_three, jax.ShapeDtypeStruct((), jnp.float32))
    while failures:
        time.sleep(0.01)
    with contextlib.suppress(RuntimeError):  # if the call comes before the end of the failed compilation
        plus_three(jnp.ones(()))
    assert float(plus_three(jnp.ones(()))) == 4


def test_matrix_products_are_computed_at_full_precision():
    """A GPU would compute them with 10 bits by default."""
    text = jax.jit(lambda a: a @ a).lower(jnp.ones((2, 2))).as_text()
    assert "HIGHEST" not in text
    product = jit(lambda a: a @ a)
    traced = product.program._traced
    assert "HIGHEST" in jax.jit(traced).lower(jnp.ones((2, 2))).as_text()
