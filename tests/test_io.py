"""A result survives the conversion to a DataTree and to a file."""

import dataclasses
import inspect
import platform

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
import example_results
from calibayes import requery
from calibayes._core.particles import Particles, uniform_log_weights
from calibayes._core.status import Code, Severity, Status
from calibayes.io import StoredSetting, from_datatree, layout
from calibayes.report.settings import parse_settings
from calibayes.report.source import calibration_script

FINDINGS = [
    example_results.make_diagnostic(Code.REPAIRED, Severity.INFO, 3, "3 of 100 replicates were repaired."),
    example_results.make_diagnostic(Code.NO_CROSSING, Severity.ERROR, 0, 'Coverage "jumps"; use more replicates.'),
]


@pytest.fixture(scope="module")
def result():
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    data = cb.datasets.median_regression(60, 0)
    return cb.calibrate(model, data, seed=0, bootstrap=100, names=["one", "age"], progress=False)


@pytest.fixture(scope="module")
def tree(result):
    return result.to_datatree()


def test_groups_and_attributes(result, tree):
    for k, name in enumerate(result.names):
        assert tree["posterior"][name].shape == (4, len(result.draws) // 4)
        np.testing.assert_array_equal(tree["posterior"][name].values.ravel(), result.draws[:, k])
    np.testing.assert_array_equal(tree["sample_stats"]["risk"].values.ravel(), result.risk)
    assert np.exp(tree["sample_stats"]["log_weight"]).sum() == pytest.approx(1)
    np.testing.assert_array_equal(tree["curve"]["critical_level"], result.curve.critical_levels)
    np.testing.assert_array_equal(tree["curve"]["learning_rate"], result.curve.etas)
    assert tree["bootstrap"].sizes["replicate"] == 100
    assert tree["trace"]["eta"].values[-1] == result.trace[-1].eta
    attributes = tree["posterior"].attrs
    assert (attributes["eta"], attributes["level"], attributes["region"]) == (result.eta, 0.95, "HPD")
    assert attributes["status"] == "CONVERGED"
    assert attributes["calibayes_version"] == cb.__version__
    assert '"seed": "0"' in attributes["settings"]


def test_risk_reweights_draws_to_another_learning_rate(result):
    """The spread of the slope from reweighted draws agrees with draws there to four standard errors of both."""
    other = 0.7 * result.eta
    log_weights = -(other - result.eta) * result.risk.astype(float)
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    slope = result.draws[:, 1]
    reweighted = np.sqrt(weights @ (slope - weights @ slope) ** 2)
    sampled = result.posterior(other)[:, 1].std()
    error = sampled * np.sqrt(0.5 / len(slope) + 0.5 * (weights**2).sum())
    assert abs(reweighted - sampled) < 4 * error
    assert sampled > 1.1 * slope.std()


def test_file_round_trip(result, tmp_path):
    path = result.save(tmp_path / "result.nc")
    loaded = cb.load(path)
    assert loaded.summary() == result.summary()
    assert repr(loaded) == repr(result)
    for name in ("draws", "risk", "estimate", "repaired_replicates"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(result, name))
    assert loaded.curve.eta_hat() == result.curve.eta_hat()
    assert loaded.curve.eta_se() == result.curve.eta_se()
    np.testing.assert_array_equal(loaded.curve.band(0.8), result.curve.band(0.8))
    assert [record.seconds for record in loaded.trace] == [record.seconds for record in result.trace]
    assert [record.steps for record in loaded.trace] == [record.steps for record in result.trace]
    np.testing.assert_array_equal(loaded.trace[0].intervals, result.trace[0].intervals)
    assert loaded.status is result.status
    assert loaded.diagnostics == result.diagnostics
    with pytest.raises(RuntimeError, match=r"without its particles\. Run `calibrate` again"):
        loaded.at(level=0.9)


def test_intervals_are_stored(result, tmp_path):
    loaded = cb.load(result.save(tmp_path / "result.nc"))
    intervals = result.intervals()
    assert repr(loaded.intervals()) == repr(loaded.intervals(0.95)) == repr(intervals)
    np.testing.assert_array_equal(loaded.intervals().bounds, intervals.bounds)
    assert loaded.intervals().status == intervals.status
    assert loaded.intervals().diagnostics == intervals.diagnostics
    assert loaded.intervals().messages == intervals.messages
    reloaded = cb.load(loaded.save(tmp_path / "reloaded.nc"))
    np.testing.assert_array_equal(reloaded.intervals().eta_se, intervals.eta_se)
    assert "calibrated at its own learning rate" in loaded.report(tmp_path / "page.html").read_text()
    for options in ({"level": 0.9}, {"of": [[1.0, 1.0]]}):
        with pytest.raises(
            RuntimeError, match=r"(?i)only the parameters' at level 0\.95 were kept.* `calibrate` again"
        ):
            loaded.intervals(**options)
    without_intervals = from_datatree(dataclasses.replace(result, calibration=None).to_datatree())
    with pytest.raises(RuntimeError, match=r"(?i)none were kept.* `calibrate` again"):
        without_intervals.intervals()


RATIO = cb.regions.Functional(lambda theta: theta[0] / theta[1])


@pytest.mark.parametrize("region", [cb.regions.Box(), cb.regions.Interval(1), cb.regions.Linear([1.0, -2.5]), RATIO])
def test_region_round_trip(result, region):
    loaded = from_datatree(dataclasses.replace(result, region=region).to_datatree()).region
    assert loaded.name == region.name
    assert (type(loaded) is type(region)) == (not isinstance(region, cb.regions.Functional))


@pytest.mark.parametrize("strata", [None, np.arange(400) // 40])
def test_weights_clusters_and_categories_are_described_after_loading(strata, tmp_path):
    """Files do not store the labels of clusters, whose number is nevertheless known."""
    settings = {
        "weights": "survey",
        "bootstrap": cb.bootstrap.Cluster(40, np.arange(400) // 2, strata),
        "roles": {"cluster": "firm", "weights": "w", "strata": "region"},
        "reference_categories": {"sector": "it's"},
    }
    saved = example_results.make_stored_result(settings=settings)
    loaded = cb.load(saved.save(tmp_path / "result.nc"))
    assert "weighted by w and resampled in 200 clusters of firm" in loaded.summary()
    assert loaded.summary() == saved.summary()
    assert cb.load(loaded.save(tmp_path / "again.nc")).summary() == saved.summary()
    assert (
        "The observations are weighted by w and resampled in 200" in loaded.report(tmp_path / "page.html").read_text()
    )


def test_settings_without_descriptions_are_loaded(tmp_path):
    """As of files that were saved before descriptions were."""
    settings = {"weights": "survey", "bootstrap": cb.bootstrap.Cluster(40, np.arange(20)), "roles": {"weights": "w"}}
    text = {name: StoredSetting(repr(value)) for name, value in settings.items()}
    loaded = cb.load(example_results.make_stored_result(settings=text).save(tmp_path / "result.nc"))
    assert "observations    weighted\n" in loaded.summary()
    assert "The observations are weighted by w." in loaded.report(tmp_path / "page.html").read_text()


def test_settings_do_not_change_when_saved_again(result):
    loaded = from_datatree(result.to_datatree())
    assert from_datatree(loaded.to_datatree()).settings == loaded.settings
    assert loaded.settings["seed"] == "0"


def test_result_contains_everything_that_determines_it(result):
    """Seed, versions, device, and every option of `calibrate` that has no attribute of its own."""
    assert result.versions == {
        "calibayes_version": cb.__version__,
        "jax_version": jax.__version__,
        "numpy_version": np.__version__,
        "python_version": platform.python_version(),
    }
    attributes = {"model", "data", "level", "region", "names"}
    without_effect = {"progress", "checkpoint"}
    assert set(inspect.signature(cb.calibrate).parameters) - attributes - without_effect <= set(result.settings)
    assert result.settings["device"] == jax.devices()[0].device_kind


def test_file_keeps_versions_and_model_of_the_computation(result, tmp_path):
    """Reading or saving a file with other versions changes neither; the script only lacks the data."""
    old = {name: f"0.{i}.0" for i, name in enumerate(result.versions)}
    loaded = cb.load(dataclasses.replace(result, versions=old).save(tmp_path / "result.nc"))
    reloaded = cb.load(loaded.save(tmp_path / "reloaded.nc"))
    assert loaded.versions == reloaded.versions == old
    assert "Computed with calibayes 0.0.0, JAX 0.1.0, NumPy 0.2.0, Python 0.3.0" in (
        reloaded.report(tmp_path / "page.html").read_text()
    )
    assert reloaded.settings["model"] == "cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))"
    names = {"data": result.data}
    parsed = dataclasses.replace(reloaded, settings=parse_settings(reloaded.settings))
    exec(calibration_script(parsed).replace("seed=0", "seed=0, progress=False"), names)
    np.testing.assert_array_equal(names["result"].draws, result.draws)


def test_status_and_diagnostics_round_trip(result):
    failed = dataclasses.replace(result, status=Status.NO_CROSSING, eta_se=float("inf"), diagnostics=FINDINGS)
    loaded = from_datatree(failed.to_datatree())
    assert loaded.status is Status.NO_CROSSING
    assert not loaded.converged
    assert loaded.eta_se == float("inf")
    assert loaded.diagnostics == FINDINGS


def test_arviz_summarizes_the_tree(result, tree):
    arviz_stats = pytest.importorskip("arviz_stats")
    summary = arviz_stats.summary(tree)
    np.testing.assert_allclose(summary["mean"].astype(float), result.draws.mean(0), atol=0.01)


def test_arviz_plots_the_tree(tree):
    arviz_plots = pytest.importorskip("arviz_plots")
    plot = arviz_plots.plot_forest(tree, backend="none")
    assert len(plot.viz.children) > 0


def test_invalid_files_are_rejected(result, tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.nc"):
        result.save(tmp_path / "result.pkl")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        cb.load(tmp_path / "none.nc")
    other = result.to_datatree()
    other["posterior"].attrs = {}
    with pytest.raises(ValueError, match="not a calibration"):
        from_datatree(other)


def test_region_that_is_only_a_name_cannot_be_used(result):
    loaded = from_datatree(dataclasses.replace(result, region=RATIO).to_datatree()).region
    with pytest.raises(ValueError, match=r"Functional.*pass the region itself"):
        result.at(region=loaded)


def test_arrays_of_parameters_are_one_variable():
    """Names that are no complete array, or that clash with others, are variables of their own."""
    names = ["mu", "beta[0]", "beta[1]", "w[0,0]", "w[0,1]", "gap[0]", "gap[2]", "C(g)[T.b]", "a/b", "a_b", "draw"]
    draws = np.arange(44.0).reshape(4, 11)
    variables = layout.to_variables(names, draws)
    assert {name: array.shape[2:] for name, array in variables.items()} == {
        "mu": (),
        "beta": (2,),
        "w": (1, 2),
        "gap[0]": (),
        "gap[2]": (),
        "C(g)[T.b]": (),
        "a_b": (),
        "a_b_": (),
        "draw_": (),
    }
    np.testing.assert_array_equal(variables["beta"][:, 0], draws[:, 1:3])
    np.testing.assert_array_equal(layout.from_variables(names, variables), draws)
    assert layout.to_variables(["x"], draws[:3, :1])["x"].shape == (1, 3)


def test_many_parameters_are_one_variable_with_their_names_as_coordinates():
    names = [f"column {k}" for k in range(60)]
    draws = np.random.default_rng(0).normal(size=(100, 60))
    record = dataclasses.replace(example_results.make_result().trace[0], intervals=np.zeros((60, 2)))
    result = example_results.make_stored_result(
        names=names, draws=draws, estimate=draws.mean(0), saved_intervals=None, trace=[record]
    )
    tree = result.to_datatree()
    assert tree["posterior"]["theta"].dims == ("chain", "draw", "parameter")
    np.testing.assert_array_equal(tree["posterior"]["theta"].sel(parameter="column 7").values.ravel(), draws[:, 7])


def test_chains_come_from_different_particles():
    """R-hat is near 1 for draws of one posterior, and large if half of the particles are elsewhere."""
    theta = np.random.default_rng(0).normal(size=(1, 1, 20_000))
    for shift, low, high in ((0.0, 0.99, 1.01), (1.0, 1.05, 2.0)):
        moved = theta + shift * (np.arange(20_000) < 10_000)
        particles = Particles(
            jnp.asarray(moved), jnp.zeros((1, 20_000)), jnp.zeros((1, 20_000)), uniform_log_weights((1, 20_000))
        )
        draws, _ = requery._draw(jax.random.key(0), particles)
        assert len(draws) == 4_000
        assert low < cb.diagnostics.r_hat(layout.split_chains(draws[:, 0])[None])[0] < high
