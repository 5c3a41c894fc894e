"""The script in a report repeats the calibration, and stored settings become objects again."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import calibayes as cb
import example_results
from calibayes._core.status import Code
from calibayes.io import StoredSetting
from calibayes.report.settings import parse_settings
from calibayes.report.source import calibration_script, python_source


@pytest.fixture(scope="module")
def result():
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    data = cb.datasets.median_regression(60, seed=0)
    return cb.calibrate(model, data, seed=0, bootstrap=200, names=["intercept", "slope"], progress=False)


def own_loss(theta, datum):
    return (datum - theta[0]) ** 2


def test_script_repeats_the_result(result):
    names = {"data": result.data}
    exec(calibration_script(result).replace("seed=0", "seed=0, progress=False"), names)
    assert names["result"].eta == result.eta
    assert names["result"].names == result.names


def test_script_lists_the_names_that_it_needs(result):
    comment = "# Define data as in the original analysis.\nimport calibayes as cb\n"
    assert calibration_script(result).startswith(comment)
    own = replace(result, model=cb.GibbsModel(own_loss, cb.priors.Normal(), dim=2))
    script = calibration_script(replace(own, settings=own.settings | {"draws": True}))
    assert script.startswith("# Define data, draws, own_loss as")
    settings = result.settings | {"call": "calibayes fit a.csv", "level": 0.95, "region": "HPD"}
    assert calibration_script(replace(result, settings=settings)) == "calibayes fit a.csv"


def test_script_after_a_fallback_asks_for_the_automatic_sampler(result):
    finding = example_results.make_diagnostic(Code.FALLBACK)
    settings = result.settings | {"sampler": cb.SMC(start="prior")}
    script = calibration_script(replace(result, settings=settings, diagnostics=[finding]))
    assert 'sampler="auto"' in script


@pytest.mark.parametrize(
    "value",
    [
        cb.SMC(n_particles=200, start="prior"),
        cb.MCMC(n_draws=500, kernel=cb.kernels.RAM()),
        cb.RobbinsMonro(gain=0.1, interpolate=False),
        cb.bootstrap.Block(200, 10),
        cb.bootstrap.Multinomial(200, size=7),
        cb.losses.Huber(0.1),
        cb.priors.StudentT(3.0, scale=[1.0, 2.5]),
        cb.regions.Interval(1),
        cb.regions.Linear([1.0, 2.5]),
        [1, "a", None, 2.5],
    ],
    ids=repr,
)
def test_source_evaluates_to_the_value(value):
    evaluated = eval(python_source(value), {"cb": cb})
    assert type(evaluated) is type(value)
    assert jax.tree.all(jax.tree.map(np.array_equal, evaluated, value))


def test_values_without_source_are_replaced_by_a_placeholder():
    assert python_source(np.zeros(100), "weights") == "weights"
    assert python_source(cb.losses.Generic(own_loss).fn) == "own_loss"
    assert python_source(lambda: None, "loss") == "loss"
    assert python_source(cb.interop.LogDensity(own_loss)).startswith("cb.interop.LogDensity(fn")
    assert python_source(cb.bootstrap.Cluster(20, np.arange(50))) == "cb.bootstrap.Cluster(20, groups)"
    assert python_source(jax.random.key(3)) == "jax.random.wrap_key_data(np.array([0, 3], np.uint32))"
    assert python_source(StoredSetting("<lambda>"), "estimate") == "estimate"
    assert python_source(StoredSetting("f(1)"), "estimate") == "f(1)"


def test_script_with_special_regions_and_bootstraps():
    functional = example_results.make_result(region=cb.regions.Functional(lambda theta: theta[0]))
    assert "region=cb.regions.Functional(" in calibration_script(functional)
    stored = example_results.make_result(region=cb.regions.UnavailableRegion("Functional(of some kind)"))
    assert "region=region," in calibration_script(stored).replace("\n", "")
    bayesian = example_results.make_result(settings={"seed": 0, "bootstrap": cb.bootstrap.Bayesian(40)})
    assert "bootstrap=cb.bootstrap.Bayesian(40)" in calibration_script(bayesian)


def test_script_names_a_numpyro_model():
    numpyro = pytest.importorskip("numpyro")

    def slopes(x, y):
        beta = numpyro.sample("beta", numpyro.distributions.Normal(0.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", numpyro.distributions.Normal(x @ beta, 1.0), obs=y)

    model = cb.GibbsModel.from_numpyro(slopes, (np.ones((4, 2)), np.ones(4)))
    script = calibration_script(example_results.make_result(model=model))
    assert "cb.GibbsModel.from_numpyro(slopes, data)" in script


@pytest.mark.parametrize(
    "text",
    [
        *("<function f at 0x7f>", "os.system('true')", "print(1)", "unknown(3)", "SMC(n_particles='a'", "__doc__()"),
        *("-" * 100_000 + "1", "(" * 500, "SMC(" * 90 + ")" * 90, "Cluster(None, None)", "9" * 5000),
    ],
)
def test_only_classes_of_the_library_are_constructed(text):
    assert parse_settings({"sampler": StoredSetting(text)}) == {"sampler": text}


def test_settings_survive_a_round_trip():
    settings = {"sampler": cb.SMC(n_particles=300), "seed": 7, "estimate": "mode", "eta_init": None}
    assert parse_settings({name: StoredSetting(repr(value)) for name, value in settings.items()}) == settings


@pytest.mark.parametrize("rule", ["kesten", "syring-martin"])
def test_search_rule_survives_as_source(rule):
    search = eval(python_source(cb.RobbinsMonro(rule)), {"cb": cb})
    assert search == cb.RobbinsMonro(rule)
