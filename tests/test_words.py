"""What a report says of a calibration, whatever it was of."""

import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
import example_results
from calibayes.io import StoredSetting
from calibayes.report import words
from calibayes.report.settings import parse_settings
from calibayes.report.source import calibration_script, python_source
from calibayes.report.verdict import Grade, checks
from calibayes.result import Intervals

MODEL = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal())


def said(**changes):
    return "\n".join(words.done(example_results.make_result(**changes)))


def own_loss(theta, datum):
    return (datum - theta[0]) ** 2


def own_rho(prediction, y):
    return jnp.abs(prediction - y)


class Odd(cb.losses.LinearLoss):
    def rho(self, prediction, y):
        return jnp.abs(prediction - y)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (cb.losses.Quantile(0.5), "the check loss at τ = 0.5, whose target is the median;"),
        (cb.losses.Quantile(0.9), "the check loss at τ = 0.9;"),
        (cb.losses.Absolute(), "absolute errors;"),
        (cb.losses.Squared(), "half squared errors;"),
        (cb.losses.Huber(1.5), "Huber’s loss with δ = 1.5;"),
        (cb.losses.Expectile(0.25), "the asymmetric squared error at τ = 0.25;"),
        (cb.losses.Hinge(), "twice the hinge loss"),
        (cb.losses.Logistic(), "the logistic loss;"),
        (cb.losses.Linear(own_rho), "a loss of the linear prediction, of the user’s own (own_rho);"),
        (Odd(), "the loss Odd;"),
    ],
)
def test_losses(loss, expected):
    text = said(model=cb.GibbsModel(loss, cb.priors.Normal()))
    assert f"The risk is the sum over observations of {expected}" in text


def test_losses_of_ones_own():
    assert "a loss of the user’s own (own_loss);" in said(model=cb.GibbsModel(own_loss, cb.priors.Normal(), dim=2))
    likelihood = cb.GibbsModel.from_log_likelihood(own_loss, cb.priors.Normal(), dim=2)
    assert "minus a log-likelihood of the user’s own (own_loss);" in said(model=likelihood)


@pytest.mark.parametrize(
    ("prior", "expected"),
    [
        (cb.priors.Normal(scale=3.0), "normal, independent over parameters, with location 0 and scale 3."),
        (cb.priors.Laplace(scale=[1.0, 4.0]), "Laplace, independent over parameters, with location 0 and scale from 1"),
        (cb.priors.Uniform(-1.0, 2.0), "uniform, independent over parameters, with lower end -1 and upper end 2."),
        (cb.priors.StudentT(df=4.0), "degrees of freedom 4"),
    ],
)
def test_priors(prior, expected):
    """The usual ones, by their parameters."""
    text = said(model=cb.GibbsModel(cb.losses.Squared(), prior))
    assert "the prior is " in text
    assert expected in text


class Mine(cb.priors.Normal):
    """A prior of one's own."""


def test_a_prior_of_ones_own():
    assert "the prior is Mine." in said(model=cb.GibbsModel(cb.losses.Squared(), Mine()))


@pytest.mark.parametrize(
    ("bootstrap", "expected"),
    [
        (200, "40 bootstrap samples of the data:"),
        (cb.bootstrap.Bayesian(40), "samples of the Bayesian bootstrap"),
        (cb.bootstrap.Poisson(40), "samples of the Poisson bootstrap"),
        (cb.bootstrap.Block(40, 7), "samples of the block bootstrap (blocks of 7)"),
        (cb.bootstrap.Cluster(40, np.repeat([0, 1, 2], 5)), "bootstrap samples of whole clusters (of 3)"),
        (cb.bootstrap.Multinomial(40, size=50), "bootstrap samples of 50 observations each"),
        (np.ones((40, 3)), "with counts that were given"),
        (StoredSetting("Own(3)"), "drawn by Own(3)"),
        (StoredSetting(f"Own({'1, ' * 40})"), "drawn by Own:"),
    ],
)
def test_bootstraps(bootstrap, expected):
    assert expected in said(settings={"seed": 0, "bootstrap": bootstrap})


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (cb.Transport(), "corrected by importance weights."),
        (cb.SMC(n_particles=2000), "by sequential Monte Carlo with 2,000 particles."),
        (cb.MCMC(n_draws=5000), "by a Markov chain of 5,000 kept draws."),
    ],
)
def test_samplers(sampler, expected):
    assert said(settings={"seed": 0, "sampler": sampler}).endswith(expected)


@pytest.mark.parametrize(
    ("region", "expected"),
    [
        (cb.regions.Interval(1), "of one parameter, b."),
        (cb.regions.Functional(own_rho), "of a function of the parameters, own_rho."),
        (cb.regions.Linear([1.0, 2.0]), "of a linear combination of the parameters."),
        (cb.regions.Box(), "boxes, the product of the marginal intervals"),
    ],
)
def test_regions(region, expected):
    assert expected in said(region=region)


def test_a_centred_intercept_is_explained():
    assert "prediction where every column is zero" in said(settings={"seed": 0, "centred": True})


@pytest.mark.parametrize("estimate", ["mode", "minimizer", "mean"])
def test_estimates(estimate):
    assert f"holds the {'posterior ' if estimate[1] != 'i' else ''}{estimate}" in said(settings={"estimate": estimate})


# Settings that came from a file.


@pytest.mark.parametrize(
    "text", ["<function f at 0x7f>", "os.system('true')", "print(1)", "unknown(3)", "SMC(n_particles='a'", "__doc__()"]
)
def test_text_that_is_no_setting_of_ours_stays_text(text):
    """Nothing of a file is called but the library's own classes."""
    assert parse_settings({"sampler": StoredSetting(text)}) == {"sampler": text}


def test_settings_come_back():
    settings = {"sampler": cb.SMC(n_particles=300), "seed": 7, "estimate": "mode", "eta_init": None}
    assert parse_settings({name: StoredSetting(repr(value)) for name, value in settings.items()}) == settings


def test_what_cannot_be_written_down_is_named():
    assert python_source(StoredSetting("<lambda>"), "estimate") == "estimate"
    assert python_source(StoredSetting("f(1)"), "estimate") == "f(1)"
    call = calibration_script(example_results.make_result(region=cb.regions.Functional(lambda theta: theta[0])))
    assert "region=cb.regions.Functional(" in call
    remembered = cb.regions.NamedRegion("Functional(of some kind)")
    assert "region=region," in calibration_script(example_results.make_result(region=remembered)).replace("\n", "")
    own = calibration_script(example_results.make_result(settings={"seed": 0, "bootstrap": cb.bootstrap.Bayesian(40)}))
    assert "bootstrap=cb.bootstrap.Bayesian(40)" in own


def test_a_numpyro_model_is_named():
    numpyro = pytest.importorskip("numpyro")

    def slopes(x, y):
        beta = numpyro.sample("beta", numpyro.distributions.Normal(0.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", numpyro.distributions.Normal(x @ beta, 1.0), obs=y)

    model = cb.GibbsModel.from_numpyro(slopes, (np.ones((4, 2)), np.ones(4)))
    assert "cb.GibbsModel.from_numpyro(slopes, data)" in calibration_script(example_results.make_result(model=model))


# The verdict on each parameter's own interval.


@pytest.mark.parametrize(
    ("converged", "errors", "value", "grade"),
    [
        ([True, True], [0.1, 0.1], "all converged", Grade.GOOD),
        ([True, False], [0.1, 0.1], "1 not converged", Grade.CARE),
        ([True, True], [0.1, np.inf], "1 without an error", Grade.CARE),
    ],
)
def test_own_intervals_are_judged(converged, errors, value, grade):
    own = Intervals(
        ["a", "b"], 0.95, np.zeros((2, 2)), np.ones(2), np.array(errors), np.array(converged), ["fine", "fine"]
    )
    found = [check for check in checks(example_results.make_result(), own) if "own" in check.name.lower()]
    assert [(check.value, check.grade) for check in found] == [(value, grade)]


def test_an_unknown_number_of_observations_is_not_judged():
    assert not any("observations" in check.name.lower() for check in checks(example_results.make_result(), None))
