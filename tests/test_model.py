"""What a model is made of, and what it says when it cannot be."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import calibayes as cb
from calibayes.losses import Generic

LOSS = cb.losses.Quantile(0.3)


def own(theta, datum):
    return jnp.square(theta).sum() * datum


@pytest.mark.parametrize(
    ("loss", "prior", "dim", "expected"),
    [
        (LOSS, cb.priors.Normal(), None, None),
        (LOSS, cb.priors.Normal(), 4, 4),
        (LOSS, cb.priors.Normal(scale=np.ones(3)), None, 3),
        (own, cb.priors.Normal(), 2, 2),
        (own, cb.priors.Uniform(np.zeros(3), 1.0), None, 3),
    ],
    ids=["any", "given", "of the prior", "own loss", "own loss, of the prior"],
)
def test_dim(loss, prior, dim, expected):
    assert cb.GibbsModel(loss, prior, dim=dim).dim == expected


def test_own_loss_needs_dim():
    with pytest.raises(ValueError, match=r"dim, the number of parameters, is needed.*GibbsModel\(loss, prior, dim=K\)"):
        cb.GibbsModel(own, cb.priors.Normal())


@pytest.mark.parametrize("dim", [0, -2])
def test_dim_is_at_least_one(dim):
    with pytest.raises(ValueError, match=f"dim must be at least 1; got {dim}"):
        cb.GibbsModel(own, cb.priors.Normal(), dim=dim)


def test_prior_of_different_lengths():
    with pytest.raises(ValueError, match="Normal was given parameters of different lengths"):
        cb.GibbsModel(LOSS, cb.priors.Normal(np.zeros(2), np.ones(3)))


@pytest.mark.parametrize("loss", [cb.losses.Quantile, cb.losses.Hinge])
def test_class_instead_of_instance(loss):
    with pytest.raises(TypeError, match=rf"loss must be an instance: write {loss.__name__}\(\.\.\.\)"):
        cb.GibbsModel(loss, cb.priors.Normal())


@pytest.mark.parametrize("prior", [None, 1.0])
def test_no_prior(prior):
    with pytest.raises(TypeError, match="prior must have log_prob"):
        cb.GibbsModel(LOSS, prior)


def test_losses_are_kept_or_wrapped():
    assert cb.GibbsModel(LOSS, cb.priors.Normal()).loss is LOSS
    assert isinstance(cb.GibbsModel(own, cb.priors.Normal(), dim=1).loss, Generic)


@pytest.mark.parametrize("theta", [[0.5, 1.0], [-2.0, 0.3]])
def test_from_log_likelihood_is_minus_the_loss(theta):
    """An asymmetric likelihood: skewed (Gumbel), and with a location that is not zero."""

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
