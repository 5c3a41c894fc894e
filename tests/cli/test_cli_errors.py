"""Errors of the command line: invalid selections of columns, missing packages, and labels of its output."""

import builtins
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import calibayes as cb
import example_results
from calibayes.cli import app
from calibayes.cli.options import complete_column
from calibayes.io import to_datatree
from calibayes.report.description import model_title
from calibayes.tables.columns import class_target, select_columns
from calibayes.tables.files import read_table


@pytest.fixture
def table():
    return pd.DataFrame({"y": [1.0, 2, 4, 8, 9], "a": [1.0, 3, 2, 5, 4], "b": [1.0, np.nan, np.nan, np.nan, np.nan]})


@pytest.mark.parametrize(
    ("options", "message"),
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
def test_invalid_selections_are_rejected(table, options, message):
    with pytest.raises(ValueError, match=message):
        select_columns(table, **options)


def test_labels_that_cannot_be_sorted_are_sorted_as_text():
    signs, classes = class_target(pd.Series(["b", 1, "b"], dtype=object), "y", None)
    assert classes == ["1", "b"]
    np.testing.assert_array_equal(signs, [1, -1, 1])


@pytest.mark.parametrize(
    ("loss", "title"),
    [
        (cb.losses.Expectile(0.25), "0.25 expectile regression"),
        (cb.losses.Huber(1.5), "Huber regression (delta 1.5)"),
        (cb.losses.Hinge(), "Support vector machine"),
        (cb.losses.Quantile(0.9), "0.9 quantile regression"),
    ],
)
def test_titles_name_the_model(loss, title):
    assert model_title(loss) == title


def test_completion_of_a_missing_file_is_empty():
    class Context:
        params = {"data": "nowhere.csv"}
        args = ()

    assert complete_column(Context(), "a") == []


@pytest.mark.parametrize("package", ["pandas", "formulaic", "arviz_base", "numpyro"])
def test_missing_packages_are_named_with_their_extra(package, monkeypatch, table):
    import_module = builtins.__import__

    def fail_for_package(name, *args, **options):
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return import_module(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", fail_for_package)
    calls = {
        "pandas": lambda: read_table(Path("t.csv")),
        "formulaic": lambda: select_columns(table, None, formula="y ~ a"),
        "arviz_base": lambda: to_datatree(example_results.make_result()),
        "numpyro": lambda: cb.GibbsModel.from_numpyro(lambda x: None, np.ones(3)),
    }
    with pytest.raises(ImportError, match=r"needs .*: pip install 'calibayes\["):
        calls[package]()


def test_report_without_arviz_names_the_extra(monkeypatch, tmp_path):
    (tmp_path / "r.nc").write_bytes(b"")

    def load(*_):
        raise ImportError("load needs ArviZ: pip install 'calibayes[arviz]'.")

    monkeypatch.setattr(cb, "load", load)
    ended = CliRunner().invoke(app, ["report", str(tmp_path / "r.nc")], env={"COLUMNS": "200"})
    assert ended.exit_code == 2
    assert "needs ArviZ" in ended.output
