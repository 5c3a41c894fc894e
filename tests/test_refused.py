"""What is refused, or found wanting, in words that say what to do about it."""

import builtins
import dataclasses
import pickle
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import calibayes as cb
import example_results
from calibayes._backend import devices, functions, treefile
from calibayes._backend.jit import together
from calibayes._core.target import make_target
from calibayes._validate.checks import check_data, check_initial_risk
from calibayes.cli import app, output, tables
from calibayes.cli.columns import class_target, select_columns
from calibayes.cli.options import complete_column
from calibayes.io import to_datatree
from calibayes.samplers.audit import Audit
from calibayes.samplers.initial import init_at_prior
from calibayes.solve import checkpoint, fallback, seek
from calibayes.solve.found import FELL_BACK, NOT_AUDITED

MODEL = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
DATA = cb.datasets.median_regression(60, 0)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: cb.SMC(resample_below=1.5), "resample_below must be above 0 and at most 1; got 1.5"),
        (lambda: cb.kernels.RAM(target_acceptance=1.2), "target_acceptance must"),
        (lambda: cb.GibbsModel(3, cb.priors.Normal()), "loss must be one of calibayes.losses or a function"),
        (lambda: cb.MCMC(n_draws=8).check(make_target(MODEL, DATA, np.ones((3, 60)), 2)), "n_draws must be above 8"),
        (lambda: cb.regions.NamedRegion("Own").check(2), "region Own of a loaded result is known only by its name"),
        (lambda: cb.gpc_smc(MODEL, DATA, seed=0, sampler="smc"), "to choose another, use calibrate"),
        (lambda: cb.gpc_mcmc(MODEL, DATA, seed=0, sampler="smc"), "to choose another, use calibrate"),
    ],
)
def test_arguments(make, said, monkeypatch):
    import jaxtyping

    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises((ValueError, TypeError), match=said):
        make()


def test_choices_of_smc(monkeypatch):
    import jaxtyping

    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match="start must be one of mcmc, prior; got 'middle'"):
        cb.SMC(start="middle")


def test_the_algorithms_of_the_paper_have_its_settings(monkeypatch):
    asked = []

    def calibrate(*_, **options):
        asked.append(options)
        return example_results.make_result()

    monkeypatch.setattr(sys.modules["calibayes.calibrate"], "calibrate", calibrate)
    cb.gpc_smc(MODEL, DATA, seed=1, n_particles=300)
    cb.gpc_mcmc(MODEL, DATA, seed=1, n_draws=400, region="hpd")
    cb.gpc_mcmc(MODEL, DATA, seed=1, kernel=cb.kernels.PolsonScott())
    smc, ram, polson = asked
    assert (smc["sampler"].n_particles, smc["region"], smc["bootstrap"], smc["eta_init"]) == (300, "box", 500, 1.0)
    assert (ram["sampler"].n_draws, ram["region"]) == (400, "hpd")
    assert isinstance(ram["sampler"].kernel, cb.kernels.RAM)
    assert isinstance(polson["sampler"].kernel, cb.kernels.PolsonScott)
    assert all(isinstance(one["search"], cb.RobbinsMonro) for one in asked)


def test_sparse_matrices():
    scipy = pytest.importorskip("scipy.sparse")
    with pytest.raises(TypeError, match=r"X is a sparse matrix: pass X.toarray\(\)"):
        check_data(MODEL, (scipy.csr_array(np.eye(3)), np.ones(3)), None)


def test_priors_over_matrices():
    dist = pytest.importorskip("numpyro.distributions")
    with pytest.raises(ValueError, match=r"over one vector of parameters; its draws have shape \(2, 3\)"):
        cb.GibbsModel(cb.losses.Squared(), dist.Normal(0.0, 1.0).expand([2, 3]))


def log_of_first(theta, datum):
    return jnp.log(theta[0]) + jnp.abs(datum - theta[0])


def test_draws_where_the_loss_is_not_finite():
    model = cb.GibbsModel(log_of_first, cb.priors.Normal(), dim=1)
    y = np.arange(5.0)
    target = make_target(model, y, np.ones((3, 5)), 1)
    with pytest.raises(ValueError, match="infinite or NaN at 1 of 3 draws, which cannot be of the posterior"):
        check_initial_risk(target, np.array([[1.0], [-1.0], [2.0]]), jax.random.key(0))


def test_a_prior_where_the_loss_is_nowhere_finite():
    model = cb.GibbsModel(log_of_first, cb.priors.Uniform(-2.0, -1.0), dim=1)
    target = make_target(model, np.arange(5.0), np.ones((3, 5)), 1)
    with pytest.raises(ValueError, match=r"all but 0 of 50 draws of the prior\. Choose a prior nearer"):
        init_at_prior(jax.random.key(0), target, 50)


# Tables and the command line.


@pytest.fixture
def table():
    return pd.DataFrame({"y": [1.0, 2, 4, 8, 9], "a": [1.0, 3, 2, 5, 4], "b": [1.0, np.nan, np.nan, np.nan, np.nan]})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target": "y", "columns": "a,y"}, "--columns contains the target 'y'"),
        (
            {"target": "y", "columns": "b", "drop_missing": True},
            "--drop-missing leaves 1 of 5 rows; values are missing",
        ),
        ({"target": "y", "formula": "a ~ y"}, "--target is y, but the formula predicts a"),
        ({"target": None, "formula": "y ~ 0"}, "the model has no predictors"),
    ],
)
def test_tables(table, options, said):
    with pytest.raises(ValueError, match=said):
        select_columns(table, **options)


def test_labels_that_cannot_be_compared():
    signs, called = class_target(pd.Series(["b", 1, "b"], dtype=object), "y", None)
    assert called == ["1", "b"]
    np.testing.assert_array_equal(signs, [1, -1, 1])


def test_a_table_that_memory_ran_out_for(table, monkeypatch, tmp_path):
    table.to_csv(tmp_path / "t.csv")

    def read(*_, **__):
        raise MemoryError

    monkeypatch.setattr(pd, "read_csv", read)
    with pytest.raises(ValueError, match=r"t.csv does not fit into memory"):
        tables.read_table(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("loss", "title"),
    [
        (cb.losses.Expectile(0.25), "0.25 expectile regression"),
        (cb.losses.Huber(1.5), "Huber regression (delta 1.5)"),
        (cb.losses.Hinge(), "Support vector machine"),
        (cb.losses.Quantile(0.9), "0.9 quantile regression"),
    ],
)
def test_titles(loss, title):
    assert output.model_title(loss) == title


def test_nothing_to_complete_from_a_file_that_is_not_there():
    class Context:
        params = {"data": "nowhere.csv"}
        args = ()

    assert complete_column(Context(), "a") == []


@pytest.mark.parametrize("package", ["pandas", "formulaic", "arviz_base", "numpyro"])
def test_a_package_that_is_missing_is_named(package, monkeypatch, table):
    load = builtins.__import__

    def missing(name, *args, **options):
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return load(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    ask = {
        "pandas": lambda: tables.read_table(__import__("pathlib").Path("t.csv")),
        "formulaic": lambda: select_columns(table, None, formula="y ~ a"),
        "arviz_base": lambda: to_datatree(example_results.make_result()),
        "numpyro": lambda: cb.GibbsModel.from_numpyro(lambda x: None, np.ones(3)),
    }
    with pytest.raises(ImportError, match=r"needs .*: pip install 'calibayes\["):
        ask[package]()


def test_a_report_that_needs_arviz_says_so(monkeypatch, tmp_path):
    (tmp_path / "r.nc").write_bytes(b"")

    def load(*_):
        raise ImportError("load needs ArviZ: pip install 'calibayes[arviz]'.")

    monkeypatch.setattr(cb, "load", load)
    ended = CliRunner().invoke(app, ["report", str(tmp_path / "r.nc")], env={"COLUMNS": "200"})
    assert ended.exit_code == 2
    assert "needs ArviZ" in ended.output


# Checkpoints.


def test_a_directory_that_cannot_be_written_to(monkeypatch, tmp_path):
    monkeypatch.setattr(checkpoint.os, "access", lambda *_: False)
    with pytest.raises(cb.CheckpointError, match="nothing can be written to the directory"):
        checkpoint.check_path(tmp_path / "run.ckpt")


def test_a_checkpoint_that_does_not_say_what_it_is_of(tmp_path):
    path = tmp_path / "run.ckpt"
    treefile.write(path, {"max_iterations": 3}, [1.0], None)
    with pytest.raises(cb.CheckpointError, match="does not say what it is of: remove it"):
        checkpoint.Checkpoint(path, {"data": "a"}, 3)


def test_a_file_that_cannot_be_opened(monkeypatch, tmp_path):
    path = tmp_path / "run.ckpt"
    treefile.write(path, {}, [1.0], None)

    def no_entry(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "open", no_entry)
    with pytest.raises(cb.CheckpointError, match="cannot be read: Permission denied"):
        treefile.read(path)


# Devices.


def test_devices_of_two_kinds(monkeypatch):
    class Device:
        def __init__(self, kind):
            self.device_kind = kind

    monkeypatch.setattr(jax, "devices", lambda *_: [Device("fast"), Device("slow")])
    with pytest.raises(RuntimeError, match="must all be of one kind"):
        devices.choose_mesh(1000, 10**6, 10**4)


def test_calls_side_by_side_are_for_one_process(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(RuntimeError, match="run in one process"):
        together([lambda: None], 1)


def test_a_function_is_pickled_with_what_it_sees_noted_anew():
    function = functions.Function(log_of_first)
    assert pickle.loads(pickle.dumps(function)) == function


# Transport's answer, where it cannot be made sure of.


def calibrated():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = cb.calibrate(MODEL, DATA, seed=0, bootstrap=100, progress=False)
    return result, [str(warning.message) for warning in caught if issubclass(warning.category, cb.CalibrationWarning)]


def test_an_audit_that_cannot_be_held_is_said(monkeypatch):
    def broken(*_):
        raise RuntimeError("the ladder did not reach eta")

    monkeypatch.setattr(fallback, "audit", broken)
    result, warned = calibrated()
    assert result.converged
    assert result.concerns[-1] == f"{NOT_AUDITED}: the ladder did not reach eta"
    assert any(NOT_AUDITED in message for message in warned)


def test_a_sampler_that_fails_its_audit_too_is_not_relied_on(monkeypatch):
    levels = np.full(20, 0.5)
    monkeypatch.setattr(fallback, "audit", lambda *_: Audit(np.arange(20), levels, np.ones((2, 20)), True))
    result, warned = calibrated()
    assert not result.converged
    assert FELL_BACK in result.concerns
    assert "SMC failed the audit too" in result.message
    assert "Do not rely on this eta" in warned[-1]
    with pytest.warns(cb.NotConvergedWarning, match="SMC failed the audit too"):
        assert not result.at(level=0.9).converged


def test_where_smc_cannot_take_over_the_first_answer_is_not_relied_on(monkeypatch):
    levels = np.full(20, 0.5)
    monkeypatch.setattr(fallback, "audit", lambda *_: Audit(np.arange(20), levels, np.ones((2, 20)), True))

    def broken(*_):
        raise ValueError("the prior is far from the data")

    monkeypatch.setattr(fallback.SMC, "init", broken)
    result, _ = calibrated()
    assert not result.converged
    assert "SMC from the prior could not take over: the prior is far from the data" in result.message


def test_where_transport_finds_no_answer_every_row_is_sampled(monkeypatch):
    run = seek.run

    def lost(loop, live):
        return dataclasses.replace(run(loop, live), converged=False, outcome="eta ran away")

    monkeypatch.setattr(seek, "run", lost)
    result, warned = calibrated()
    assert result.converged
    assert "transport found no answer (eta ran away)" in result.concerns
    assert FELL_BACK in result.concerns
    assert any("eta ran away" in message for message in warned)
