"""Checks of single arguments: values that are not numbers, sizes or names are rejected under the argument's name."""

import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import calibayes as cb
from calibayes._backend.arguments import display, fraction, integer, parameters, positive, scalar, unique_names


@pytest.fixture(autouse=True)
def _without_type_checker(monkeypatch):
    """Users run without the type checker of the tests."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.mark.parametrize("value", ["1", None, True, [1.0], np.ones(1), 1j, {}])
@pytest.mark.parametrize("check", [positive, fraction, lambda name, value: integer(name, value, 1)])
def test_values_that_are_not_numbers_are_rejected(check, value):
    with pytest.raises(TypeError, match=r"size must be an? (number|integer); got"):
        check("size", value)


@pytest.mark.parametrize("value", [0, -1.0, np.nan, np.inf, 1e-300, 1e300, 10**400])
def test_positive_rejects_numbers_outside_the_range_of_the_float_type(value):
    with pytest.raises(ValueError, match="eta must be"):
        positive("eta", value)
    assert positive("eta", np.float32(2.0)) == 2.0


def test_integer_rejects_floats_and_small_values():
    assert integer("n", np.int64(3), 1) == 3
    with pytest.raises(TypeError, match=r"n must be an integer; got 3\.0"):
        integer("n", 3.0, 1)
    with pytest.raises(ValueError, match="n must be at least 1; got 0"):
        integer("n", 0, 1)


@pytest.mark.parametrize("value", ["a", None, 1j, [1.0, "a"], {}, True, 10**400, object(), [[1.0], [1.0, 2.0]]])
def test_parameters_of_losses_and_priors_must_be_numbers(value):
    with pytest.raises(TypeError, match="scale must be a number or an array of numbers; got"):
        cb.priors.Normal(scale=value)
    with pytest.raises(TypeError, match="tau must be a number or an array of numbers; got"):
        cb.losses.Quantile(value)


def test_subnormal_parameters_are_zero():
    """A processor that flushes them to zero would divide by zero."""
    assert float(parameters("a", 1e-40)) == 0.0
    with pytest.raises(ValueError, match="scale must be positive"):
        cb.priors.Normal(scale=1e-40)
    with pytest.raises(ValueError, match="delta must be one positive and finite number"):
        cb.losses.Huber([1.0])
    assert float(scalar("gain", jnp.asarray(2.0))) == 2.0


def test_displayed_values_are_short():
    assert len(display(10**10_000)) < 100
    assert display(np.zeros((50, 50))).endswith(" ...")


@pytest.mark.parametrize("names", ["ab", 5, None, 3.5])
def test_names_must_be_a_list(names):
    with pytest.raises(TypeError, match="names must be a list of 2 names"):
        unique_names(names, 2)


def test_names_must_be_distinct():
    with pytest.raises(ValueError, match="names must be distinct; 'a' occurs more than once"):
        unique_names(["a", "a"], 2)
    assert unique_names(np.array(["a", "b"]), 2) == ["a", "b"]


@pytest.mark.parametrize("dim", [2.0, "2", True])
def test_dim_must_be_an_integer(dim):
    with pytest.raises(TypeError, match="dim must be an integer"):
        cb.GibbsModel(lambda theta, datum: theta[0], cb.priors.Normal(), dim=dim)


@pytest.mark.parametrize(
    "make",
    [
        lambda: cb.SMC(n_particles=2.5),
        lambda: cb.MCMC(n_draws="a"),
        lambda: cb.Transport(n_particles=True),
        lambda: cb.kernels.RWMH(target_acceptance="a"),
        lambda: cb.Bracket(closeness=None),
    ],
)
def test_errors_of_samplers_and_searches_name_the_argument(make):
    with pytest.raises(TypeError, match=r"n_particles|n_draws|target_acceptance|closeness"):
        make()
