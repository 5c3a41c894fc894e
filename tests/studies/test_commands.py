"""The commands of studies, without the calibrations: which cases are run, by which method, and what is stored."""

from types import SimpleNamespace

import pytest
from studies.store import Line, Store
from typer.testing import CliRunner

import calibayes as cb
import example_results
from calibayes.cli import app
from studies import misspecified, open_question, paper


def lines(case, truth=0.5):
    common = {"eta": 0.8, "eta_se": 0.1, "truth": truth, "iterations": 3, "converged": True, "seconds": 1.0}
    beside = ("eta 1", "sandwich") if ", " in case.problem and case.n == misspecified.N else ()
    return [
        Line(*case[:3], sampler, region, **common, how="warm", note="", machine="here")
        for region in case.regions
        for sampler in (*beside, case.sampler)
    ]


@pytest.mark.parametrize(
    ("command", "module", "expected"),
    [
        (["figure4", "--datasets", "2", "--n", "40", "--sampler", "smc"], paper, 2),
        (["figure5", "--datasets", "1"], paper, 3),
        (["misspecified", "--datasets", "1", "--error", "t3", "--loss", "huber"], misspecified, 6),
        (["open", "--datasets", "1"], open_question, 22),
    ],
    ids=["figure4", "figure5", "misspecified", "open"],
)
def test_a_study_is_stored_and_shown(command, module, expected, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "work", lines)
    out = tmp_path / "study.csv"
    ran = CliRunner().invoke(app, ["study", *command, "--out", str(out)], env={"COLUMNS": "160"})
    assert ran.exit_code == 0, ran.output
    stored = Store(out).lines
    assert len(stored) == expected
    assert all(line.eta == 0.8 for line in stored)
    rows = [line for line in ran.output.splitlines() if any(letter.isdigit() for letter in line)]
    assert rows, ran.output


def test_interrupted_it_says_so_and_keeps_what_it_has(monkeypatch, tmp_path):
    def work(case):
        if case.dataset == 1:
            raise KeyboardInterrupt
        return lines(case)

    monkeypatch.setattr(paper, "work", work)
    out = tmp_path / "study.csv"
    ran = CliRunner().invoke(app, ["study", "figure5", "--datasets", "2", "--sampler", "smc", "--out", str(out)])
    assert ran.exit_code == 130
    assert "goes on from there" in " ".join(ran.output.split())
    assert [line.dataset for line in Store(out).lines] == [0]


def test_a_page_of_nothing_is_refused(tmp_path):
    ran = CliRunner().invoke(app, ["study", "page", "--results", str(tmp_path), "--docs", str(tmp_path)])
    assert ran.exit_code == 2


def calibration(level):
    """What a result asks when the level of a point is wanted."""
    loop = SimpleNamespace(interrupted=False)
    return SimpleNamespace(loop=loop, found=SimpleNamespace(concerns=[]), level_of=lambda theta, eta: level(eta or 1.0))


@pytest.fixture
def asked(monkeypatch):
    """Which function of the library was called, with which options."""
    calls = []

    def method(name):
        def call(model, data, **options):
            calls.append((name, model, len(data[1]), options))
            return example_results.make_result(calibration=calibration(lambda eta: 0.9 * eta), region=options["region"])

        return call

    for name in ("calibrate", "gpc_smc", "gpc_mcmc"):
        monkeypatch.setattr(cb, name, method(name))
    return calls


@pytest.mark.parametrize(
    ("sampler", "problem", "name"),
    [
        ("smc", "median regression", "gpc_smc"),
        ("mcmc", "median regression", "gpc_mcmc"),
        ("mcmc", "heart disease SVM", "gpc_mcmc"),
        ("transport", "heart disease SVM", "calibrate"),
    ],
)
def test_methods_have_the_settings_of_the_paper(asked, sampler, problem, name):
    regression = problem == "median regression"
    find = paper.table1_cases(1, [40], [sampler], ["box"], 3) if regression else paper.figure5_cases(1, [sampler], 3)
    (line,) = paper.work(find[0])
    ((called, model, n, options),) = asked
    assert (called, n) == (name, 40 if regression else 462)
    assert model is (paper.MEDIAN if regression else paper.SVM)
    assert options["bootstrap"].shape == (500, n)
    assert options["seed"] == 3
    assert line.eta == 0.8
    assert (line.truth == line.truth) == regression
    if sampler == "mcmc":
        assert type(options["kernel"]) is (cb.kernels.RAM if regression else cb.kernels.PolsonScott)
        assert options["n_draws"] == 20_000
    if sampler == "smc":
        assert options["n_particles"] == 1000


def test_the_eta_that_the_truth_asks_for(asked):
    """The level of the truth is 0.9 eta: it is 0.95 at 1.056, to a thousandth of a factor of a hundred."""
    (line,) = paper.work(paper.table1_cases(1, [40], ["known"], ["box"], 0)[0])
    assert asked[0][3]["bootstrap"] == 50
    assert line.eta == pytest.approx(0.95 / 0.9, rel=100 ** (1 / 1024) - 1)
    assert (line.truth, line.iterations, line.how) == (0.95, 0, "")


@pytest.mark.parametrize("problem", ["SVM, nine predictors", "N 1,600, minimiser to be covered"])
def test_variants_of_the_open_question(asked, problem):
    case = next(case for case in open_question.cases(1, 0) if case.problem == problem)
    (line,) = open_question.work(case)
    ((called, _, n, options),) = asked
    assert (called, n) == ("calibrate", 462 if "SVM" in problem else 1600)
    assert options.get("estimate") == (None if "SVM" in problem else "minimizer")
    assert (line.truth == line.truth) == ("SVM" not in problem)


def test_without_a_set_the_truth_is_never_covered(monkeypatch):
    none = example_results.make_result(calibration=calibration(lambda _: float("nan")))
    monkeypatch.setattr(cb, "calibrate", lambda *_, **__: none)
    case = next(case for case in open_question.cases(1, 0) if case.problem == "N 1,600, minimiser to be covered")
    (line,) = open_question.work(case)
    assert line.truth == float("inf")
    assert line.covered == 0


def test_beside_a_calibration_are_eta_one_and_the_sandwich(asked, monkeypatch):
    monkeypatch.setattr(misspecified, "_wald_levels", lambda *_: {"ellipsoid": 0.3, "slope": 0.4})
    monkeypatch.setattr(cb.Result, "at", lambda result, region: result)
    found = misspecified.work(misspecified.cases(1, ["contaminated"], ["squared"], 0)[0])
    assert [(line.sampler, line.region, line.truth) for line in found] == [
        ("eta 1", "ellipsoid", 0.9),
        ("sandwich", "ellipsoid", 0.3),
        ("transport", "ellipsoid", 0.9),
        ("eta 1", "slope", 0.9),
        ("sandwich", "slope", 0.4),
        ("transport", "slope", 0.9),
    ]
