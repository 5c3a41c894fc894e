"""A result as a DataTree, saved, and back."""

import dataclasses
import inspect
import platform

import jax
import numpy as np
import pytest

import calibayes as cb
from calibayes.io import from_datatree
from calibayes.report.settings import parse_settings
from calibayes.report.source import calibration_script


@pytest.fixture(scope="module")
def result():
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    data = cb.datasets.median_regression(60, 0)
    return cb.calibrate(model, data, seed=0, bootstrap=100, names=["one", "age"], progress=False)


@pytest.fixture(scope="module")
def tree(result):
    return result.to_datatree()


def test_groups(result, tree):
    np.testing.assert_array_equal(tree["posterior"]["theta"].values[0], result.draws)
    np.testing.assert_array_equal(tree["sample_stats"]["risk"].values[0], result.risk)
    assert np.exp(tree["sample_stats"]["log_weight"]).sum() == pytest.approx(1)
    np.testing.assert_array_equal(tree["curve"]["critical_level"], result.curve.critical_levels)
    np.testing.assert_array_equal(tree["curve"]["learning_rate"], result.curve.etas)
    assert tree["bootstrap"].sizes["row"] == 100
    assert tree["trace"]["eta"].values[-1] == result.trace[-1].eta
    said = tree["posterior"].attrs
    assert (said["eta"], said["level"], said["region"]) == (result.eta, 0.95, "HPD")
    assert said["calibayes_version"] == cb.__version__
    assert '"seed": "0"' in said["settings"]


def test_risk_carries_draws_to_another_learning_rate(result):
    """Reweighted draws against draws there: the spread of the slope, to four errors of both."""
    other = 0.7 * result.eta
    log_weights = -(other - result.eta) * result.risk.astype(float)
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    slope = result.draws[:, 1]
    spread = np.sqrt(weights @ (slope - weights @ slope) ** 2)
    there = result.posterior(other)[:, 1].std()
    error = there * np.sqrt(0.5 / len(slope) + 0.5 * (weights**2).sum())
    assert abs(spread - there) < 4 * error
    assert there > 1.1 * slope.std()


def test_saved_and_loaded(result, tmp_path):
    path = result.save(tmp_path / "result.nc")
    loaded = cb.load(path)
    assert loaded.summary() == result.summary()
    assert repr(loaded) == repr(result)
    for name in ("draws", "risk", "estimate", "repaired_rows"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(result, name))
    assert loaded.curve.eta_hat() == result.curve.eta_hat()
    assert loaded.curve.eta_se() == result.curve.eta_se()
    np.testing.assert_array_equal(loaded.curve.band(0.8), result.curve.band(0.8))
    assert [record.seconds for record in loaded.trace] == [record.seconds for record in result.trace]
    np.testing.assert_array_equal(loaded.trace[0].intervals, result.trace[0].intervals)
    assert loaded.concerns == result.concerns
    with pytest.raises(RuntimeError, match="calibrate again"):
        loaded.at(level=0.9)


def test_own_intervals_are_kept(result, tmp_path):
    loaded = cb.load(result.save(tmp_path / "result.nc"))
    own = result.intervals()
    assert repr(loaded.intervals()) == repr(loaded.intervals(0.95)) == repr(own)
    np.testing.assert_array_equal(loaded.intervals().bounds, own.bounds)
    assert loaded.intervals().messages == own.messages
    again = cb.load(loaded.save(tmp_path / "again.nc"))
    np.testing.assert_array_equal(again.intervals().eta_se, own.eta_se)
    assert "own 95% interval" in loaded.report(tmp_path / "page.html").read_text()
    for ask in ({"level": 0.9}, {"of": [[1.0, 1.0]]}):
        with pytest.raises(RuntimeError, match=r"only the parameters' at level 0\.95 were kept: calibrate again"):
            loaded.intervals(**ask)
    bare = from_datatree(dataclasses.replace(result, calibration=None).to_datatree())
    with pytest.raises(RuntimeError, match="none were kept: calibrate again"):
        bare.intervals()


RATIO = cb.regions.Functional(lambda theta: theta[0] / theta[1])


@pytest.mark.parametrize("region", [cb.regions.Box(), cb.regions.Interval(1), cb.regions.Linear([1.0, -2.5]), RATIO])
def test_region_comes_back_by_name(result, region):
    back = from_datatree(dataclasses.replace(result, region=region).to_datatree()).region
    assert back.name == region.name
    assert (type(back) is type(region)) == (not isinstance(region, cb.regions.Functional))


def test_saved_twice_is_saved_once(result):
    once = from_datatree(result.to_datatree())
    assert from_datatree(once.to_datatree()).settings == once.settings
    assert once.settings["seed"] == "0"


def test_all_that_decides_the_result_is_in_it(result):
    """Seed, versions, device, and every option of `calibrate` that is not in a field of its own."""
    assert result.versions == {
        "calibayes_version": cb.__version__,
        "jax_version": jax.__version__,
        "numpy_version": np.__version__,
        "python_version": platform.python_version(),
    }
    own = {"model", "data", "level", "region", "names"}
    no_matter = {"progress", "checkpoint"}
    assert set(inspect.signature(cb.calibrate).parameters) - own - no_matter <= set(result.settings)
    assert result.settings["device"] == jax.devices()[0].device_kind


def test_a_file_says_what_computed_it_and_of_which_model(result, tmp_path):
    """Not what reads it, or saves it again; and the call that gives it again is whole but for the data."""
    old = {name: f"0.{i}.0" for i, name in enumerate(result.versions)}
    loaded = cb.load(dataclasses.replace(result, versions=old).save(tmp_path / "result.nc"))
    again = cb.load(loaded.save(tmp_path / "again.nc"))
    assert loaded.versions == again.versions == old
    assert "Calibrated with calibayes 0.0.0, JAX 0.1.0, NumPy 0.2.0, Python 0.3.0" in (
        again.report(tmp_path / "page.html").read_text()
    )
    assert again.settings["model"] == "cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))"
    names = {"data": result.data}
    page = dataclasses.replace(again, settings=parse_settings(again.settings))
    exec(calibration_script(page).replace("seed=0", "seed=0, progress=False"), names)
    np.testing.assert_array_equal(names["result"].draws, result.draws)


def test_what_went_wrong_is_kept(result):
    lost = dataclasses.replace(result, converged=False, eta_se=float("inf"), concerns=["a; b", "c"])
    back = from_datatree(lost.to_datatree())
    assert not back.converged
    assert back.eta_se == float("inf")
    assert back.concerns == ["a; b", "c"]


def test_arviz_reads_it(result, tree):
    arviz_stats = pytest.importorskip("arviz_stats")
    summary = arviz_stats.summary(tree)
    np.testing.assert_allclose(summary["mean"].astype(float), result.draws.mean(0), atol=0.01)


def test_arviz_plots_it(tree):
    arviz_plots = pytest.importorskip("arviz_plots")
    plot = arviz_plots.plot_forest(tree, backend="none")
    assert len(plot.viz.children) > 0


def test_files_that_are_none(result, tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.nc"):
        result.save(tmp_path / "result.pkl")
    with pytest.raises(FileNotFoundError, match="there is no"):
        cb.load(tmp_path / "none.nc")
    other = result.to_datatree()
    other["posterior"].attrs = {}
    with pytest.raises(ValueError, match="not a calibration"):
        from_datatree(other)


def test_a_region_that_is_only_a_name_cannot_be_asked(result):
    back = from_datatree(dataclasses.replace(result, region=RATIO).to_datatree()).region
    with pytest.raises(ValueError, match="region Functional of a loaded result is known only by its name"):
        result.at(region=back)
