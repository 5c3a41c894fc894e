"""Functions made from the same code over the same values are equal, and compile once."""

import pickle
from collections import namedtuple

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
def test_functions_over_equal_values_are_equal(make, text):
    """The values are equal, but not the same objects."""
    first, second = make(eval(text)), make(eval(text))
    assert first.fn is not second.fn
    assert first == second
    assert hash(first) == hash(second)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(("a", "b"), [(2.0, 3.0), (1, 1.0), (1, True), ("a", "b"), (0.0, None)])
def test_functions_over_different_values_differ(make, a, b):
    """A number of another type gives another dtype, so that 1, 1.0 and True must be distinguished."""
    assert make(a) != make(b)


def test_functions_with_different_code_differ():
    plus, minus = static(lambda theta: theta + 1), static(lambda theta: theta - 1)
    assert plus != minus
    assert capturing(2.0) != with_default(2.0)
    assert plus != plus.fn


@pytest.mark.parametrize("make", MAKERS)
def test_named_tuples_of_different_classes_differ(make):
    """Their fields or methods differ, although the values are the same; notebooks often define a class again."""
    first, second = namedtuple("Settings", "a b"), namedtuple("Settings", "b a")
    assert make(first(1.0, 2.0)) == make(first(1.0, 2.0))
    assert make(first(1.0, 2.0)) != make(second(1.0, 2.0))
    assert make(first(1.0, 2.0)) != make((1.0, 2.0))


@pytest.mark.parametrize("make", MAKERS)
def test_captured_arrays_compare_by_identity_if_they_are_immutable(make):
    """Comparing large arrays by value would be slow. NumPy arrays can change in place, so they never compare equal."""
    array = jnp.arange(3.0)
    assert make(array) == make(array)
    assert make(array) != make(array + 0)
    mutable = np.arange(3.0)
    assert make(mutable) != make(mutable)


def test_equal_functions_compile_once():
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


def test_static_wraps_plain_functions_only():
    """A module keeps its arrays as leaves."""
    layer = eqx.nn.Identity()
    assert static(layer) is layer
    assert isinstance(static(lambda theta: theta), Function)
    assert static(np.negative) is np.negative


def test_function_calls_and_names_the_wrapped_function():
    def double(theta):
        return 2 * theta

    wrapped = static(double)
    assert wrapped(4) == 8
    assert repr(wrapped) == "double"


@pytest.mark.parametrize("value", [1, True, np.float64(1), np.arange(3), [1, 2]])
def test_as_float_returns_the_default_float_type(value):
    array = as_float(value)
    assert array.dtype == jnp.zeros(()).dtype
    np.testing.assert_array_equal(array, np.asarray(value, float))


def test_loop_variable_is_captured_when_the_function_is_wrapped():
    """The lambdas of a loop share one variable."""
    wrapped = []
    for tau in (0.5, 0.9):
        wrapped.append(static(lambda t: tau * t))  # noqa: B023, PERF401
    assert wrapped[0] != wrapped[1]


SCALE = 1.0


def using_global():
    return static(lambda t: SCALE * t)


def test_changed_global_makes_functions_differ(monkeypatch):
    before, same = using_global(), using_global()
    assert before == same
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    assert using_global() != before


def test_mutable_captured_values_make_functions_differ():
    table = {"a": 1.0}
    make = lambda: static(lambda t: table["a"] * t)
    assert make() != make()


def helper(t):
    return SCALE * t


def using_helper():
    return static(lambda t: helper(t))


def test_values_captured_by_helpers_are_compared(monkeypatch):
    before = using_helper()
    assert using_helper() == before
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    assert using_helper() != before


def log_of_first(theta, datum):
    return jnp.log(theta[0]) + jnp.abs(datum - theta[0])


def test_function_can_be_pickled():
    """The captured values include the module `jnp`, which cannot be pickled; they are recorded again."""
    function = Function(log_of_first)
    assert pickle.loads(pickle.dumps(function)) == function


def test_call_after_a_captured_variable_has_changed_is_an_error(monkeypatch):
    """Programs that were compiled for the recorded value would be used for the new one."""
    wrapped, with_helper = using_global(), using_helper()
    assert (wrapped(3.0), with_helper(3.0)) == (3.0, 3.0)
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    for function in (wrapped, with_helper):
        with pytest.raises(ValueError, match=r"(SCALE|helper), which the function <lambda> uses, has changed"):
            function(3.0)
    monkeypatch.setitem(globals(), "SCALE", namedtuple("Settings", "a b")(1.0, 2.0))
    with_tuple = using_global()
    monkeypatch.setitem(globals(), "SCALE", namedtuple("Settings", "b a")(1.0, 2.0))
    with pytest.raises(ValueError, match="has changed"):
        with_tuple(3.0)
    tau = 0.5
    late = static(lambda t: tau * t)
    tau = 0.9
    with pytest.raises(ValueError, match="an argument with a default: tau=tau"):
        late(3.0)


def test_attributes_are_not_captured_as_global_variables(monkeypatch):
    monkeypatch.setitem(globals(), "mean", 1.0)
    wrapped = static(lambda t: t.mean())
    monkeypatch.setitem(globals(), "mean", 2.0)
    assert wrapped.captured == ()
    assert wrapped(np.arange(3.0)) == 1.0


def factorial(n):
    return n * factorial(n - 1) if n > 1 else 1


def test_recursive_functions_can_be_called():
    assert static(lambda n: factorial(n))(4) == 24
