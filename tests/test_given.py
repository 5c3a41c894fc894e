"""What is no number, no size and no name is refused under the name of the argument."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pandas as pd
import polars as pl
import pytest

import calibayes as cb
from calibayes._backend.arguments import display, fraction, integer, parameters, positive, scalar, unique_names
from calibayes._validate.checks import check_data, check_initial_draws

MODEL = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal())
X, Y = np.ones((4, 2)) * [[1.0, 2.0]] * [[1], [2], [3], [5]], np.arange(4.0)


@pytest.fixture(autouse=True)
def _as_users_have_it(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.mark.parametrize("value", ["1", None, True, [1.0], np.ones(1), 1j, {}])
@pytest.mark.parametrize("check", [positive, fraction, lambda name, value: integer(name, value, 1)])
def test_what_is_no_number(check, value):
    with pytest.raises(TypeError, match=r"size must be an? (number|integer); got"):
        check("size", value)


@pytest.mark.parametrize("value", [0, -1.0, np.nan, np.inf, 1e-300, 1e300, 10**400])
def test_positive_in_the_floats_that_are_computed_with(value):
    with pytest.raises(ValueError, match="eta must be"):
        positive("eta", value)
    assert positive("eta", np.float32(2.0)) == 2.0


def test_integers_are_not_floats():
    assert integer("n", np.int64(3), 1) == 3
    with pytest.raises(TypeError, match=r"n must be an integer; got 3\.0"):
        integer("n", 3.0, 1)
    with pytest.raises(ValueError, match="n must be at least 1; got 0"):
        integer("n", 0, 1)


@pytest.mark.parametrize("value", ["a", None, 1j, [1.0, "a"], {}, True, 10**400, object(), [[1.0], [1.0, 2.0]]])
def test_parameters_are_numbers(value):
    with pytest.raises(TypeError, match="scale must be a number, or numbers; got"):
        cb.priors.Normal(scale=value)
    with pytest.raises(TypeError, match="tau must be a number, or numbers; got"):
        cb.losses.Quantile(value)


def test_parameters_too_small_for_full_digits_are_zero():
    """A processor that flushes them to zero would divide by it."""
    assert float(parameters("a", 1e-40)) == 0.0
    with pytest.raises(ValueError, match="scale must be positive"):
        cb.priors.Normal(scale=1e-40)
    with pytest.raises(ValueError, match="delta must be positive and finite, one number"):
        cb.losses.Huber([1.0])
    assert float(scalar("gain", jnp.asarray(2.0))) == 2.0


def test_errors_stay_short():
    assert len(display(10**10_000)) < 100
    assert display(np.zeros((50, 50))).endswith(" ...")


@pytest.mark.parametrize("names", ["ab", 5, None, 3.5])
def test_names_are_a_list(names):
    with pytest.raises(TypeError, match="names must be a list of 2 names"):
        unique_names(names, 2)


def test_names_differ():
    with pytest.raises(ValueError, match="names must differ; 'a' comes more than once"):
        unique_names(["a", "a"], 2)
    assert unique_names(np.array(["a", "b"]), 2) == ["a", "b"]


def test_tables_that_are_not_what_they_seem():
    with pytest.raises(ValueError, match="X has more than one column 'a'"):
        check_data(MODEL, (pd.DataFrame(X, columns=["a", "a"]), Y), None)
    with pytest.raises(TypeError, match=r"X is a table that has not been read yet: pass X.collect\(\)"):
        check_data(MODEL, (pl.LazyFrame({"a": Y}), Y), None)
    with pytest.raises(ValueError, match="X has masked values"):
        check_data(MODEL, (np.ma.masked_array(X, X > 5), Y), None)
    with pytest.raises(ValueError, match="y must be an array of numbers"):
        check_data(MODEL, (X, [[1.0], [1.0, 2.0]]), None)


@pytest.mark.parametrize("loss", [lambda theta, datum: jax.lax.complex(theta[0], theta[0]), lambda theta, datum: 1 / 0])
def test_losses_are_real_numbers(loss):
    with pytest.raises(TypeError, match=r"loss\(theta, datum\)"):
        check_data(cb.GibbsModel(loss, cb.priors.Normal(), dim=2), X, None)


@pytest.mark.parametrize("dim", [2.0, "2", True])
def test_dim_is_an_integer(dim):
    with pytest.raises(TypeError, match="dim must be an integer"):
        cb.GibbsModel(lambda theta, datum: theta[0], cb.priors.Normal(), dim=dim)


def test_draws_of_complex_numbers_or_text():
    """The imaginary part was dropped in silence."""
    for draws in (np.zeros((200, 2), complex), np.full((200, 2), "a")):
        with pytest.raises(TypeError, match="draws must hold numbers"):
            check_initial_draws(draws, MODEL.prior, 2)


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
def test_samplers_and_searches_name_their_own(make):
    with pytest.raises(TypeError, match=r"n_particles|n_draws|target_acceptance|closeness"):
        make()


def test_groups_have_labels():
    with pytest.raises(TypeError, match="groups must be labels of one kind"):
        cb.bootstrap.Cluster(100, [None, 1, 2])
    with pytest.raises(ValueError, match="groups must have a label for every observation; 1 are NaN"):
        cb.bootstrap.Cluster(100, [np.nan, 1, 2])


def test_functions_of_a_region_are_tried_first():
    with pytest.raises(TypeError, match=r"Functional\(fn\) failed on 2 parameters"):
        cb.regions.Functional(lambda theta: 1 / 0).check(2)
    with pytest.raises(TypeError, match="real value"):
        cb.regions.Functional(lambda theta: jax.lax.complex(theta[0], theta[0])).check(2)
