import re

import jax
import pytest
from typer.testing import CliRunner

import calibayes as cb
from calibayes.cli import _keep_what_is_compiled, app


@pytest.mark.parametrize("asked", ["version", "--version"])
def test_version(asked):
    result = CliRunner().invoke(app, [asked])
    assert result.exit_code == 0
    assert result.output.strip() == cb.__version__


@pytest.mark.parametrize("command", [["--help"], ["demo", "--help"]])
def test_help(command):
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0
    assert "demo" in result.output


def test_demo_prints_before_and_after(tmp_path):
    report = tmp_path / "report.html"
    result = CliRunner().invoke(app, ["demo", "--report", str(report)], env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    for word in ("learning rate", "standard error", "coverage", "before", "calibrated", "intercept", "slope"):
        assert word in result.output
    assert "<html" in report.read_text()
    rates = [float(v) for v in re.findall(r"(?:before|calibrated) *│ *([\d.]+)", result.output)]
    assert rates[0] == 1.0
    assert 0.5 < rates[1] < 10
    # Two shares of 2,000 rows, eta's own and the fresh ones', each with an error of 0.005: this is four of both.
    fresh = float(re.search(r"fresh bootstrap samples the calibrated sets cover ([\d.]+)", result.output)[1])
    assert abs(fresh - 0.95) < 0.03


def test_demo_refuses_too_few_observations():
    assert CliRunner().invoke(app, ["demo", "--n", "1"]).exit_code == 2


@pytest.fixture
def no_cache():
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.mark.usefixtures("no_cache")
def test_what_is_compiled_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _keep_what_is_compiled()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "calibayes")


def test_where_the_user_said(monkeypatch, tmp_path):
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _keep_what_is_compiled()
    assert jax.config.jax_compilation_cache_dir == before
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("no_cache")
def test_or_nowhere_if_there_is_no_place(monkeypatch, tmp_path):
    place = tmp_path / "file"
    place.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(place))
    _keep_what_is_compiled()
    assert jax.config.jax_compilation_cache_dir is None
