"""Functions made from the same code over the same values are one function, and compile once."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from calibayes._backend.functions import Function, as_float, static


def capturing(value):
    return static(lambda theta: theta * value)


def with_default(value):
    return static(lambda theta, scale=value: theta * scale)


def with_keyword_default(value):
    return static(lambda theta, *, scale=value: theta * scale)


MAKERS = [capturing, with_default, with_keyword_default]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("text", ["2.5", "1000", "True", "'ab' * 20", "None"])
def test_remade_function_is_equal(make, text):
    """Over values that are equal, though made anew and not the same objects."""
    first, second = make(eval(text)), make(eval(text))
    assert first.fn is not second.fn
    assert first == second
    assert hash(first) == hash(second)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(("a", "b"), [(2.0, 3.0), (1, 1.0), (1, True), ("a", "b"), (0.0, None)])
def test_other_value_is_another_function(make, a, b):
    """A number of another type makes another dtype, so 1, 1.0 and True must not be mistaken for each other."""
    assert make(a) != make(b)


def test_other_code_is_another_function():
    plus, minus = static(lambda theta: theta + 1), static(lambda theta: theta - 1)
    assert plus != minus
    assert capturing(2.0) != with_default(2.0)
    assert plus != plus.fn


@pytest.mark.parametrize("make", MAKERS)
def test_arrays_compare_by_identity_if_they_cannot_change(make):
    """Equality of arrays has no truth value, and comparing large ones would cost. NumPy's can change in place."""
    array = jnp.arange(3.0)
    assert make(array) == make(array)
    assert make(array) != make(array + 0)
    mutable = np.arange(3.0)
    assert make(mutable) != make(mutable)


def test_remade_function_does_not_recompile():
    traces = []

    @eqx.filter_jit
    def apply(fn, theta):
        traces.append(1)
        return fn(theta)

    def results(*values):
        return [float(apply(capturing(value), jnp.ones(()))) for value in values]

    assert results(2.0, 2.0) == [2.0, 2.0]
    assert len(traces) == 1
    assert results(5.0, 2.0) == [5.0, 2.0]
    assert len(traces) == 2


def test_static_leaves_modules_alone():
    """A module keeps its arrays as leaves; only plain functions are wrapped."""
    layer = eqx.nn.Identity()
    assert static(layer) is layer
    assert isinstance(static(lambda theta: theta), Function)
    assert static(np.negative) is np.negative


def test_function_calls_and_names_what_it_wraps():
    def double(theta):
        return 2 * theta

    wrapped = static(double)
    assert wrapped(4) == 8
    assert repr(wrapped) == "double"


@pytest.mark.parametrize("value", [1, True, np.float64(1), np.arange(3), [1, 2]])
def test_as_float_is_of_the_default_type(value):
    array = as_float(value)
    assert array.dtype == jnp.zeros(()).dtype
    np.testing.assert_array_equal(array, np.asarray(value, float))


def test_loop_variable_is_seen_as_it_was():
    """All turns of a loop share one variable; what each function saw is noted when it is wrapped."""
    made = []
    for tau in (0.5, 0.9):
        made.append(static(lambda t: tau * t))  # noqa: B023, PERF401
    assert made[0] != made[1]


SCALE = 1.0


def by_global():
    return static(lambda t: SCALE * t)


def test_changed_global_makes_another_function(monkeypatch):
    before, same = by_global(), by_global()
    assert before == same
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    assert by_global() != before


def test_values_that_can_change_in_place_make_functions_differ():
    table = {"a": 1.0}
    make = lambda: static(lambda t: table["a"] * t)
    assert make() != make()


def helper(t):
    return SCALE * t


def by_helper():
    return static(lambda t: helper(t))


def test_what_helpers_see_counts_too(monkeypatch):
    before = by_helper()
    assert by_helper() == before
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    assert by_helper() != before
