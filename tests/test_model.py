"""Construction of models and its errors."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import calibayes as cb
from calibayes.losses import Generic

LOSS = cb.losses.Quantile(0.3)


def quadratic(theta, datum):
    return jnp.square(theta).sum() * datum


@pytest.mark.parametrize(
    ("loss", "prior", "dim", "expected"),
    [
        (LOSS, cb.priors.Normal(), None, None),
        (LOSS, cb.priors.Normal(), 4, 4),
        (LOSS, cb.priors.Normal(scale=np.ones(3)), None, 3),
        (quadratic, cb.priors.Normal(), 2, 2),
        (quadratic, cb.priors.Uniform(np.zeros(3), 1.0), None, 3),
    ],
    ids=["unknown", "argument", "prior", "function, argument", "function, prior"],
)
def test_dim_is_taken_from_the_argument_or_the_prior(loss, prior, dim, expected):
    assert cb.GibbsModel(loss, prior, dim=dim).dim == expected


def test_function_loss_requires_dim():
    with pytest.raises(
        ValueError, match=r"dim, the number of parameters, is required.*GibbsModel\(loss, prior, dim=K\)"
    ):
        cb.GibbsModel(quadratic, cb.priors.Normal())


@pytest.mark.parametrize("dim", [0, -2])
def test_dim_must_be_at_least_one(dim):
    with pytest.raises(ValueError, match=f"dim must be at least 1; got {dim}"):
        cb.GibbsModel(quadratic, cb.priors.Normal(), dim=dim)


def test_prior_arguments_of_different_lengths_are_rejected():
    with pytest.raises(ValueError, match="Normal was given parameters of different lengths"):
        cb.GibbsModel(LOSS, cb.priors.Normal(np.zeros(2), np.ones(3)))


@pytest.mark.parametrize("loss", [cb.losses.Quantile, cb.losses.Hinge])
def test_loss_class_instead_of_instance_is_rejected(loss):
    with pytest.raises(TypeError, match=rf"loss must be an instance: write {loss.__name__}\(\.\.\.\)"):
        cb.GibbsModel(loss, cb.priors.Normal())


@pytest.mark.parametrize("prior", [None, 1.0])
def test_invalid_prior_is_rejected(prior):
    with pytest.raises(TypeError, match="prior must have log_prob"):
        cb.GibbsModel(LOSS, prior)


def test_linear_losses_are_kept_and_functions_are_wrapped():
    assert cb.GibbsModel(LOSS, cb.priors.Normal()).loss is LOSS
    assert isinstance(cb.GibbsModel(quadratic, cb.priors.Normal(), dim=1).loss, Generic)


@pytest.mark.parametrize("theta", [[0.5, 1.0], [-2.0, 0.3]])
def test_loss_of_from_log_likelihood_is_the_negative_log_likelihood(theta):
    """An asymmetric likelihood: Gumbel, with a non-zero location."""

    def log_likelihood(theta, datum):
        z = (datum - theta[0]) / theta[1]
        return -z - jnp.exp(-z) - jnp.log(theta[1])

    model = cb.GibbsModel.from_log_likelihood(log_likelihood, cb.priors.Normal(), dim=2)
    loss = cb.GibbsModel(lambda t, d: -log_likelihood(t, d), cb.priors.Normal(), dim=2)
    theta = jnp.array(theta)
    for datum in (-1.0, 0.2, 2.5):
        value = model.loss(theta, jnp.float32(datum))
        assert value == pytest.approx(-stats.gumbel_r.logpdf(datum, *map(float, theta)), rel=1e-5)
        assert value == loss.loss(theta, jnp.float32(datum))
    assert model.dim == 2


def test_prior_and_dim_must_agree():
    loss = lambda theta, datum: theta[0] * datum
    with pytest.raises(ValueError, match="dim = 2, but the prior is for 3"):
        cb.GibbsModel(loss, cb.priors.Normal(scale=np.ones(3)), dim=2)
    with pytest.raises(TypeError, match=r"write Normal\(\.\.\.\)"):
        cb.GibbsModel(loss, cb.priors.Normal, dim=2)
    with pytest.raises(ValueError, match="different lengths"):
        cb.priors.Uniform(low=np.zeros(3), high=np.ones(2))
    with pytest.raises(ValueError, match="different lengths"):
        cb.priors.Normal(np.zeros(3), np.ones(2))
    numpyro = pytest.importorskip("numpyro.distributions")
    prior = numpyro.MultivariateNormal(np.zeros(3, np.float32), np.eye(3, dtype=np.float32))
    assert cb.GibbsModel(loss, prior).dim == 3


def test_prior_for_no_parameters_is_rejected():
    with pytest.raises(ValueError, match="prior must be for at least one parameter"):
        cb.GibbsModel(LOSS, cb.priors.Normal(scale=np.ones(0)))
