"""The report describes every kind of model, bootstrap, sampler and region."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
import example_results
from calibayes.io import StoredSetting
from calibayes.report.description import describe
from calibayes.report.settings import parse_settings


def description(**changes):
    return "\n".join(describe(example_results.make_result(**changes)))


def own_loss(theta, datum):
    return (datum - theta[0]) ** 2


def own_rho(prediction, y):
    return jnp.abs(prediction - y)


def total(theta):
    return theta.sum()


class OwnLoss(cb.losses.LinearLoss):
    def rho(self, prediction, y):
        return jnp.abs(prediction - y)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (cb.losses.Quantile(0.5), "the check loss at τ = 0.5 (median regression);"),
        (cb.losses.Quantile(0.9), "the check loss at τ = 0.9;"),
        (cb.losses.Absolute(), "absolute errors;"),
        (cb.losses.Squared(), "half squared errors;"),
        (cb.losses.Huber(1.5), "Huber’s loss with δ = 1.5;"),
        (cb.losses.Expectile(0.25), "the asymmetric squared error at τ = 0.25;"),
        (cb.losses.Hinge(), "twice the hinge loss"),
        (cb.losses.Logistic(), "the logistic loss;"),
        (cb.losses.Linear(own_rho), "a user-defined loss of the linear prediction (own_rho);"),
        (OwnLoss(), "the loss OwnLoss;"),
    ],
)
def test_losses(loss, expected):
    text = description(model=cb.GibbsModel(loss, cb.priors.Normal()))
    assert f"The risk is the sum over observations of {expected}" in text


def test_user_defined_losses():
    model = cb.GibbsModel(own_loss, cb.priors.Normal(), dim=2)
    assert "a user-defined loss (own_loss);" in description(model=model)
    likelihood = cb.GibbsModel.from_log_likelihood(own_loss, cb.priors.Normal(), dim=2)
    assert "minus a user-defined log-likelihood (own_loss);" in description(model=likelihood)


@pytest.mark.parametrize(
    ("prior", "expected"),
    [
        (cb.priors.Normal(scale=3.0), "normal, independent over parameters, with location 0 and scale 3."),
        (cb.priors.Laplace(scale=[1.0, 4.0]), "Laplace, independent over parameters, with location 0 and scale from 1"),
        (cb.priors.Uniform(-1.0, 2.0), "uniform, independent over parameters, with lower bound -1 and upper bound 2."),
        (cb.priors.StudentT(df=4.0), "degrees of freedom 4"),
    ],
)
def test_priors(prior, expected):
    text = description(model=cb.GibbsModel(cb.losses.Squared(), prior))
    assert "the prior is " in text
    assert expected in text


class OwnPrior(cb.priors.Normal):
    """A user-defined prior."""


def test_user_defined_prior():
    assert "the prior is OwnPrior." in description(model=cb.GibbsModel(cb.losses.Squared(), OwnPrior()))


@pytest.mark.parametrize(
    ("bootstrap", "expected"),
    [
        (200, "40 bootstrap replicates of the data:"),
        (cb.bootstrap.Bayesian(40), "replicates of the Bayesian bootstrap"),
        (cb.bootstrap.Poisson(40), "replicates of the Poisson bootstrap"),
        (cb.bootstrap.Block(40, 7), "replicates, resampled in blocks of 7 consecutive observations:"),
        (cb.bootstrap.Cluster(40, np.repeat([0, 1, 2], 5)), "bootstrap replicates, resampled in 3 clusters:"),
        (cb.bootstrap.Stratified(40, np.repeat([0, 1, 2], 5)), "bootstrap replicates, resampled within 3 strata:"),
        (cb.bootstrap.Multinomial(40, size=50), "bootstrap replicates of 50 observations each"),
        (np.ones((40, 3)), "with user-supplied counts"),
        (StoredSetting("Own(3)"), "drawn by Own(3)"),
        (StoredSetting(f"Own({'1, ' * 40})"), "drawn by Own:"),
    ],
)
def test_bootstraps(bootstrap, expected):
    assert expected in description(settings={"seed": 0, "bootstrap": bootstrap})


LIKELIHOOD = cb.GibbsModel.from_log_likelihood(own_loss, cb.priors.Normal(), dim=2)
RISK = cb.GibbsModel.from_risk(lambda theta, data, counts: counts @ (data - theta[0]) ** 2, cb.priors.Normal(), dim=2)


@pytest.mark.parametrize(
    ("model", "bootstrap"),
    [
        (cb.GibbsModel(cb.losses.Quantile(0.9), cb.priors.Laplace(scale=[1.0, 4.0])), cb.bootstrap.Block(40, 7)),
        (cb.GibbsModel(cb.losses.Cox("breslow"), OwnPrior()), cb.bootstrap.Cluster(40, np.repeat([0, 1, 2], 5))),
        (LIKELIHOOD, cb.bootstrap.Stratified(40, np.repeat([0, 1, 2], 5))),
        (RISK, np.ones((40, 3))),
    ],
)
def test_loaded_results_are_described_as_before(model, bootstrap, tmp_path):
    """Also those that were saved again after loading."""
    settings = {"seed": 0, "estimate": "mode", "weights": "survey", "bootstrap": bootstrap, "n": 15}
    result = example_results.make_stored_result(model=model, settings=settings)
    loaded = cb.load(result.save(tmp_path / "result.nc"))
    again = cb.load(loaded.save(tmp_path / "again.nc"))
    for one in (loaded, again):
        assert one.model is None
        assert describe(replace(one, settings=parse_settings(one.settings))) == describe(result)


def test_result_that_was_saved_without_descriptions():
    settings = {"seed": StoredSetting("0"), "bootstrap": StoredSetting("Block(n_replicates=40, length=7)")}
    text = description(settings=parse_settings(settings))
    assert "2 parameters. Loss and prior are not described here, because the result was saved without" in text
    assert "bootstrap replicates, resampled in blocks of 7 consecutive observations" in text


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (cb.Transport(), "corrected by importance weights."),
        (cb.Transport(audit=True), "an independent sampler agreed on a subset of the replicates."),
        (cb.SMC(n_particles=2000), "by sequential Monte Carlo with 2,000 particles."),
        (cb.MCMC(n_draws=5000), "by a Markov chain of 5,000 draws after warm-up."),
    ],
)
def test_samplers(sampler, expected):
    audited = {"audited_region": "HPD"} if getattr(sampler, "audit", False) else {}
    assert description(settings={"seed": 0, "sampler": sampler, **audited}).endswith(expected)


@pytest.mark.parametrize(
    ("region", "expected"),
    [
        (cb.regions.Interval(1), "of one parameter, b."),
        (cb.regions.Functional(total), "of a function of the parameters, total. The calibrated 95% interval is "),
        (cb.regions.Linear([1.0, 2.0]), "of a linear combination of the parameters. The calibrated 95% interval is "),
        (cb.regions.Box(), "boxes, the product of the marginal intervals"),
    ],
)
def test_regions(region, expected):
    assert expected in description(region=region)


def test_centred_intercept_is_explained():
    assert "prediction where every column is zero" in description(settings={"seed": 0, "centred": True})


@pytest.mark.parametrize("estimate", ["mode", "minimizer", "mean"])
def test_estimates(estimate):
    prefix = "posterior " if estimate != "minimizer" else ""
    assert f"contains the {prefix}{estimate}" in description(settings={"estimate": estimate})
