"""The user's functions are traced once, and errors in them are explained."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import calibayes as cb
from calibayes._validate import functions as function_checks
from calibayes._validate.data import check_data


@pytest.mark.parametrize(
    ("loss", "dim"),
    [
        (lambda theta, datum: theta @ jnp.ones(3), 2),
        (lambda theta, datum: np.sin(theta[0]) * datum, 1),
        (lambda theta, datum: datum if theta[0] > 0 else -datum, 1),
    ],
    ids=["dim", "numpy", "if"],
)
def test_losses_that_jax_cannot_trace_are_explained(loss, dim):
    with pytest.raises(TypeError, match=r"loss\(theta, datum\) failed .* check dim"):
        check_data(cb.GibbsModel(loss, cb.priors.Normal(), dim=dim), np.ones(5), None)


@pytest.mark.parametrize("loss", [lambda theta, datum: jax.lax.complex(theta[0], theta[0]), lambda theta, datum: 1 / 0])
def test_losses_must_be_real_numbers(loss, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    x = np.ones((4, 2)) * [[1.0, 2.0]] * [[1], [2], [3], [5]]
    with pytest.raises(TypeError, match=r"loss\(theta, datum\)"):
        check_data(cb.GibbsModel(loss, cb.priors.Normal(), dim=2), x, None)


@pytest.fixture
def traced(monkeypatch):
    """Names of the functions that are traced."""
    names, require = [], function_checks.require_real_scalar
    monkeypatch.setattr(function_checks, "_passed", set())
    monkeypatch.setattr(
        function_checks, "require_real_scalar", lambda name, *args: names.append(name) or require(name, *args)
    )
    return names


def make_model(power):
    return cb.GibbsModel(lambda theta, datum: jnp.abs(theta[0] - jnp.sum(datum)) ** power, cb.priors.Normal(), dim=1)


def test_equal_functions_are_traced_once(traced):
    """Functions with other captured values, and data of another shape, are traced again."""
    y = np.arange(5.0)
    for model in (make_model(2), make_model(2)):
        check_data(model, y, None)
    assert traced == ["loss(theta, datum)", "prior.log_prob(theta)"]
    check_data(make_model(3), y, None)
    assert len(traced) == 4
    check_data(make_model(3), np.ones((5, 2)), None)
    assert len(traced) == 6


def test_callable_objects_are_traced_every_time(traced):
    """Their state may have changed."""

    class Loss:
        def __call__(self, theta, datum):
            return jnp.square(theta[0] - datum)

    model = cb.GibbsModel(Loss(), cb.priors.Normal(), dim=2)
    for _ in range(2):
        check_data(model, np.arange(5.0), None)
    assert len(traced) == 4


def test_functions_over_mutable_values_are_not_remembered(traced):
    """A function that captures a NumPy array equals no other function."""
    power = np.array([2.0])
    model = cb.GibbsModel(lambda theta, datum: jnp.abs(theta[0] - datum) ** power[0], cb.priors.Normal(), dim=1)
    check_data(model, np.arange(5.0), None)
    assert len(traced) == 2
    assert not function_checks._passed


def test_functions_that_failed_fail_again(traced):
    model = cb.GibbsModel(lambda theta, datum: theta + datum, cb.priors.Normal(), dim=2)
    for _ in range(2):
        with pytest.raises((TypeError, ValueError), match="loss"):
            check_data(model, np.arange(5.0), None)
    assert len(traced) == 2
