"""A small study from the command line, with real calibrations."""

import csv

import numpy as np
import pytest
from typer.testing import CliRunner

import calibayes as cb
from studies import misspecified, open_question, paper
from studies.cli import app
from studies.names import ERRORS, LOSSES
from studies.store import Store

SMALL = [
    "table1",
    "--datasets",
    "2",
    "--n",
    "40",
    "--sampler",
    "transport",
    "--region",
    "box",
    "--region",
    "hpd",
    "--processes",
    "1",
]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    out = tmp_path_factory.mktemp("study") / "table1.csv"
    result = CliRunner().invoke(app, [*SMALL, "--out", str(out)], env={"COLUMNS": "140"})
    assert result.exit_code == 0, result.output
    assert "coverage, % (SE)" in result.output
    return out


def test_one_line_per_calibration(out):
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["dataset"], row["region"]) for row in rows] == [("0", "box"), ("0", "hpd"), ("1", "box"), ("1", "hpd")]
    # The second may have a replicate to repair, and compile for that.
    timings = [row["timing"] for row in rows]
    assert timings in (["cold", "requery", "cold", "requery"], ["cold", "requery", "warm", "requery"])
    for row in rows:
        assert 0.5 < float(row["eta"]) < 10
        assert 0 < float(row["eta_se"]) < float(row["eta"])
        assert 0 <= float(row["truth_level"]) <= 1
        assert row["converged"] == "True"


def test_stored_lines_agree_with_calibrate(out):
    stored = {line.key: line for line in Store(out).lines}["median regression", 40, 1, "transport", "box"]
    data = cb.datasets.median_regression(40, 1)
    counts = np.random.default_rng([1, 1]).multinomial(40, np.full(40, 1 / 40), size=500)
    result = cb.calibrate(paper.MEDIAN, data, region="box", bootstrap=counts, seed=1, progress=False)
    assert stored.eta == pytest.approx(result.eta, rel=1e-4)
    assert stored.truth_level == pytest.approx(result.level_of([2.0, 1.0]), rel=1e-4)


def test_finished_study_runs_nothing(out, monkeypatch):
    def fail(*_, **__):
        raise AssertionError("a stored case was calibrated again")

    monkeypatch.setattr(paper.cb, "calibrate", fail)
    before = out.read_text()
    result = CliRunner().invoke(app, [*SMALL, "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert out.read_text() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["table1", "--sampler", "nuts"], "--sampler must be one of"),
        (["table1", "--region", "ball"], "--region must be one of"),
        (["misspecified", "--error", "cauchy"], "--error must be one of"),
        (["table1", "--n", "3"], "--n"),
    ],
)
def test_invalid_options_are_rejected(options, message, tmp_path):
    result = CliRunner().invoke(app, [*options, "--out", str(tmp_path / "x.csv")], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert message in result.output


def test_other_file_is_not_overwritten(tmp_path):
    other = tmp_path / "mine.csv"
    other.write_text("a,b\n1,2\n")
    result = CliRunner().invoke(app, [*SMALL, "--out", str(other)], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert "not a results file" in result.output
    assert other.read_text() == "a,b\n1,2\n"


def test_cases_of_each_study():
    table = paper.table1_cases(2, [100, 400], ["smc", "mcmc"], ["box"], 5)
    assert len(table) == 8
    assert {case.dataset for case in table} == {5, 6}
    assert len(paper.figure5_cases(3, ["transport"], 0)) == 3
    assert len(misspecified.cases(2, ERRORS, LOSSES, 0)) == 24
    names = {case.problem for case in open_question.cases(4, 0)}
    assert names == {*open_question.SVM_VARIANTS, *open_question.REGRESSION_VARIANTS}


@pytest.mark.slow
def test_misspecified_case_stores_its_comparisons():
    case = misspecified.cases(1, ["normal"], ["quantile"], 0)[0]._replace(n=40)
    lines = misspecified.run_case(case)
    assert [(line.region, line.sampler) for line in lines] == [
        (region, name) for region in ("ellipsoid", "slope") for name in ("eta 1", "sandwich", "transport")
    ]
    assert all(0 <= line.truth_level <= 1 for line in lines)
    # The sets at eta 1 and at the calibrated eta are concentric ellipses; the wider reach the truth at a lower level.
    unit_eta, _, calibrated = lines[:3]
    assert calibrated.eta > 1.2
    assert unit_eta.truth_level < calibrated.truth_level
