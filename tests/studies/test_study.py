"""The commands, on the smallest study there is."""

import csv

import numpy as np
import pytest
from studies.names import ERRORS, LOSSES
from studies.store import Store
from typer.testing import CliRunner

import calibayes as cb
from calibayes.cli import app
from studies import misspecified, open_question, paper

SMALL = [
    "study",
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
]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    out = tmp_path_factory.mktemp("study") / "table1.csv"
    result = CliRunner().invoke(app, [*SMALL, "--out", str(out)], env={"COLUMNS": "140"})
    assert result.exit_code == 0, result.output
    assert "covered, % (error)" in result.output
    return out


def test_one_line_a_calibration(out):
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["dataset"], row["region"]) for row in rows] == [("0", "box"), ("0", "hpd"), ("1", "box"), ("1", "hpd")]
    # The second may meet a row to repair, and compile for that.
    assert [row["how"] for row in rows] in (["cold", "at", "cold", "at"], ["cold", "at", "warm", "at"])
    for row in rows:
        assert 0.5 < float(row["eta"]) < 10
        assert 0 < float(row["eta_se"]) < float(row["eta"])
        assert 0 <= float(row["truth"]) <= 1
        assert row["converged"] == "True"


def test_lines_are_what_a_user_would_get(out):
    stored = {line.key: line for line in Store(out).lines}["median regression", 40, 1, "transport", "box"]
    data = cb.datasets.median_regression(40, 1)
    counts = np.random.default_rng([1, 1]).multinomial(40, np.full(40, 1 / 40), size=500)
    result = cb.calibrate(paper.MEDIAN, data, region="box", bootstrap=counts, seed=1, progress=False)
    assert stored.eta == pytest.approx(result.eta, rel=1e-4)
    assert stored.truth == pytest.approx(result.level_of([2.0, 1.0]), rel=1e-4)


def test_it_goes_on_where_it_stopped(out, monkeypatch):
    def fail(*_, **__):
        raise AssertionError("calibrated what was stored")

    monkeypatch.setattr(paper.cb, "calibrate", fail)
    before = out.read_text()
    result = CliRunner().invoke(app, [*SMALL, "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert out.read_text() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["table1", "--sampler", "nuts"], "--sampler must be among"),
        (["table1", "--region", "ball"], "--region must be among"),
        (["misspecified", "--error", "cauchy"], "--error must be among"),
        (["table1", "--n", "3"], "--n"),
    ],
)
def test_nonsense_is_refused(options, message, tmp_path):
    result = CliRunner().invoke(app, ["study", *options, "--out", str(tmp_path / "x.csv")], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert message in result.output


def test_another_file_is_not_overwritten(tmp_path):
    other = tmp_path / "mine.csv"
    other.write_text("a,b\n1,2\n")
    result = CliRunner().invoke(app, [*SMALL, "--out", str(other)], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert "not the results file" in result.output
    assert other.read_text() == "a,b\n1,2\n"


def test_cases():
    table = paper.table1_cases(2, [100, 400], ["smc", "mcmc"], ["box"], 5)
    assert len(table) == 8
    assert {case.dataset for case in table} == {5, 6}
    assert len(paper.figure5_cases(3, ["transport"], 0)) == 3
    assert len(misspecified.cases(2, ERRORS, LOSSES, 0)) == 24
    names = {case.problem for case in open_question.cases(4, 0)}
    assert names == {*open_question.SVM_VARIANTS, *open_question.REGRESSION_VARIANTS}


@pytest.mark.slow
def test_misspecified_stores_what_it_is_compared_with():
    case = misspecified.cases(1, ["normal"], ["quantile"], 0)[0]._replace(n=40)
    lines = misspecified.work(case)
    assert [(line.region, line.sampler) for line in lines] == [
        (region, name) for region in ("ellipsoid", "slope") for name in ("eta 1", "sandwich", "transport")
    ]
    assert all(0 <= line.truth <= 1 for line in lines)
    # The sets at eta 1 and at the calibrated eta are ellipses about one centre: the wider reach the truth earlier.
    plain, _, calibrated = lines[:3]
    assert calibrated.eta > 1.2
    assert plain.truth < calibrated.truth


@pytest.mark.slow
def test_what_the_truth_asks_for():
    """At that eta the level of the truth is 0.95, to four errors of a level from 1,000 draws, twice."""
    case = paper.table1_cases(1, [40], ["known"], ["box"], 0)[0]
    (line,) = paper.work(case)
    assert 0.1 < line.eta < 10
    data = cb.datasets.median_regression(40, 0)
    result = cb.calibrate(paper.MEDIAN, data, region="box", bootstrap=50, seed=7, progress=False)
    assert result.level_of([2.0, 1.0], eta=line.eta) == pytest.approx(0.95, abs=4 * (2 * 0.95 * 0.05 / 1000) ** 0.5)
