"""Commands of the studies without calibrations: the cases, the settings of each method, and the stored lines."""

from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import calibayes as cb
from example_results import make_result
from studies import misspecified, open_question, paper
from studies.cli import app
from studies.store import Line, Store


def make_lines(case, truth_level=0.5):
    common = {"eta": 0.8, "eta_se": 0.1, "truth_level": truth_level, "iterations": 3, "converged": True, "seconds": 1.0}
    compared = ("eta 1", "sandwich") if ", " in case.problem and case.n == misspecified.N else ()
    return [
        Line(*case[:3], sampler, region, **common, timing="warm", note="", machine="here")
        for region in case.regions
        for sampler in (*compared, case.sampler)
    ]


@pytest.mark.parametrize(
    ("command", "module", "expected"),
    [
        (["figure4", "--datasets", "2", "--n", "40", "--sampler", "smc"], paper, 2),
        (["figure5", "--datasets", "1"], paper, 3),
        (["misspecified", "--datasets", "1", "--error", "t3", "--loss", "huber", "--processes", "1"], misspecified, 6),
        (["open", "--datasets", "1", "--processes", "1"], open_question, 22),
    ],
    ids=["figure4", "figure5", "misspecified", "open"],
)
def test_study_is_stored_and_printed(command, module, expected, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "run_case", make_lines)
    out = tmp_path / "study.csv"
    done = CliRunner().invoke(app, [*command, "--out", str(out)], env={"COLUMNS": "160"})
    assert done.exit_code == 0, done.output
    stored = Store(out).lines
    assert len(stored) == expected
    assert all(line.eta == 0.8 for line in stored)
    rows = [line for line in done.output.splitlines() if any(letter.isdigit() for letter in line)]
    assert rows, done.output


def test_interrupted_study_keeps_finished_cases(monkeypatch, tmp_path):
    def run_case(case):
        if case.dataset == 1:
            raise KeyboardInterrupt
        return make_lines(case)

    monkeypatch.setattr(paper, "run_case", run_case)
    out = tmp_path / "study.csv"
    done = CliRunner().invoke(app, ["figure5", "--datasets", "2", "--sampler", "smc", "--out", str(out)])
    assert done.exit_code == 130
    assert "continues from there" in " ".join(done.output.split())
    assert [line.dataset for line in Store(out).lines] == [0]


def test_page_without_results_is_rejected(tmp_path):
    done = CliRunner().invoke(app, ["page", "--results", str(tmp_path), "--docs", str(tmp_path)])
    assert done.exit_code == 2


def make_calibration(level_of):
    """A calibration that only answers `level_of`."""
    return SimpleNamespace(level_of=lambda theta, eta: level_of(eta or 1.0))


@pytest.fixture
def calls(monkeypatch):
    """Calls of the library's functions: name, model, number of observations and options."""
    recorded = []

    def replacement(name):
        def call(model, data, **options):
            recorded.append((name, model, len(data[1]), options))
            return make_result(calibration=make_calibration(lambda eta: 0.9 * eta), region=options["region"])

        return call

    for name in ("calibrate", "gpc_smc", "gpc_mcmc"):
        monkeypatch.setattr(cb, name, replacement(name))
    return recorded


@pytest.mark.parametrize(
    ("sampler", "problem", "name"),
    [
        ("smc", "median regression", "gpc_smc"),
        ("mcmc", "median regression", "gpc_mcmc"),
        ("mcmc", "heart disease SVM", "gpc_mcmc"),
        ("transport", "heart disease SVM", "calibrate"),
    ],
)
def test_methods_have_the_settings_of_the_paper(calls, sampler, problem, name):
    regression = problem == "median regression"
    cases = paper.table1_cases(1, [40], [sampler], ["box"], 3) if regression else paper.figure5_cases(1, [sampler], 3)
    (line,) = paper.run_case(cases[0])
    ((called, model, n, options),) = calls
    assert (called, n) == (name, 40 if regression else 462)
    assert model is (paper.MEDIAN if regression else paper.SVM)
    assert options["bootstrap"].shape == (500, n)
    assert options["seed"] == 3
    assert line.eta == 0.8
    assert (line.truth_level == line.truth_level) == regression
    if sampler == "mcmc":
        assert type(options["kernel"]) is (cb.kernels.RAM if regression else cb.kernels.PolsonScott)
        assert options["n_draws"] == 20_000
    if sampler == "smc":
        assert options["n_particles"] == 1000


@pytest.mark.parametrize("problem", ["SVM, nine predictors", "N 1,600, minimiser to be covered"])
def test_variants_of_the_open_question(calls, problem):
    case = next(case for case in open_question.cases(1, 0) if case.problem == problem)
    (line,) = open_question.run_case(case)
    ((called, _, n, options),) = calls
    assert (called, n) == ("calibrate", 462 if "SVM" in problem else 1600)
    assert options.get("estimate") == (None if "SVM" in problem else "minimizer")
    assert (line.truth_level == line.truth_level) == ("SVM" not in problem)


def test_truth_is_not_covered_without_a_set(monkeypatch):
    result = make_result(calibration=make_calibration(lambda _: float("nan")))
    monkeypatch.setattr(cb, "calibrate", lambda *_, **__: result)
    case = next(case for case in open_question.cases(1, 0) if case.problem == "N 1,600, minimiser to be covered")
    (line,) = open_question.run_case(case)
    assert line.truth_level == float("inf")
    assert line.covered == 0


def test_misspecified_case_stores_eta_one_and_sandwich(calls, monkeypatch):
    monkeypatch.setattr(misspecified, "_wald_levels", lambda *_: {"ellipsoid": 0.3, "slope": 0.4})
    monkeypatch.setattr(cb.Result, "at", lambda result, region: result)
    lines = misspecified.run_case(misspecified.cases(1, ["contaminated"], ["squared"], 0)[0])
    assert [(line.sampler, line.region, line.truth_level) for line in lines] == [
        ("eta 1", "ellipsoid", 0.9),
        ("sandwich", "ellipsoid", 0.3),
        ("transport", "ellipsoid", 0.9),
        ("eta 1", "slope", 0.9),
        ("sandwich", "slope", 0.4),
        ("transport", "slope", 0.9),
    ]
