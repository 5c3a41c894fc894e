"""The study of the methods: its data, the Wald sets, the table, and the compressed file of results."""

import math

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from studies import methods as study
from studies.cli import app
from studies.records import Outcome, Record, RecordStore


def make_record(dataset, level=0.5, problem="squared, normal", n=50):
    theta = study.truth(problem)
    outcomes = {
        name: Outcome(1.5, level, [(value - width, value + width) for value in theta], "CONVERGED", 0.25)
        for name, width in (("gpc", 1.0), ("matching", 1.25))
    }
    outcomes["failed"] = Outcome(math.nan, math.inf, [], "It went wrong.", 0.5)
    return Record(problem, n, dataset, outcomes, "2 x chip")


def test_cases_are_ordered_by_data_set():
    cases = study.cases(2, study.METHOD_PROBLEMS, (50, 100), 3)
    assert len(cases) == len(set(cases)) == 2 * (4 * 2 + 1)
    assert [case.dataset for case in cases] == [3] * 9 + [4] * 9
    assert {case.n for case in cases if case.problem == study.WIDE} == {400}


def test_wald_sets_cover_normal_data_with_many_observations():
    """The levels are uniform; the Kolmogorov-Smirnov distance of 500 data sets is below 0.09 in 99.9% of cases."""
    outcomes = []
    for seed in range(500):
        x, y = study.draw("squared, heteroscedastic", 400, seed)
        outcomes.append(study.wald_hc3(x, y, study.truth("squared, heteroscedastic")))
    assert stats.kstest([outcome.level for outcome in outcomes], "uniform").statistic < 0.09
    covered = np.mean([outcome.intervals[1][0] < 1.0 < outcome.intervals[1][1] for outcome in outcomes])
    assert abs(covered - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 500)


def test_hc3_leaves_one_observation_out():
    """The covariance HC3 is that of the leave-one-out estimates around the estimate (MacKinnon and White 1985)."""
    x, y = study.draw("squared, normal", 20, 0)
    fit = np.linalg.lstsq(x, y)[0]
    others = np.array([np.linalg.lstsq(np.delete(x, i, 0), np.delete(y, i))[0] for i in range(20)]) - fit
    half = 1.959964 * np.sqrt(np.square(others).sum(0))
    np.testing.assert_allclose(np.array(study.wald_hc3(x, y, (2.0, 1.0)).intervals).T, [fit - half, fit + half])


def test_slope_of_the_wide_problem_is_that_of_its_truth():
    x, y = study.draw(study.WIDE, 100_000, 0)
    np.testing.assert_allclose(np.linalg.lstsq(x, y)[0], study.truth(study.WIDE), atol=0.05)


def test_table_counts_sets_that_contain_the_truth():
    table = study.summarise([make_record(0), make_record(1, level=0.97)])
    rows = {row[0].strip(): row[1:] for row in table.rows}
    assert rows["gpc"][:3] == ["50.0", "100.0 x1.00", "100.0 x1.00"]
    assert rows["matching"][1] == "100.0 x1.25"
    assert rows["failed"][0] == "0.0"
    assert rows["failed"][-1] == "2"


def test_command_stores_and_prints(monkeypatch, tmp_path):
    monkeypatch.setattr(study, "run_case", lambda case: [make_record(case.dataset, 0.5, case.problem, case.n)])
    monkeypatch.setattr("studies.cli.ONE_THREAD", {})
    out = tmp_path / "study.jsonl.gz"
    line = ["methods", "--datasets", "3", "--problem", "squared, normal", "--n", "50", "--processes", "1"]
    done = CliRunner().invoke(app, [*line, "--out", str(out)], env={"COLUMNS": "160"})
    assert done.exit_code == 0, done.output
    assert "squared, normal, N 50, 3 sets" in done.output
    assert [record.dataset for record in RecordStore(out).lines] == [0, 1, 2]


def test_records_are_read_back(tmp_path):
    path = tmp_path / "new" / "study.jsonl.gz"
    RecordStore(path).add([make_record(1), make_record(0)])
    store = RecordStore(path)
    assert store.lines[0].methods["gpc"] == make_record(1).methods["gpc"]
    assert math.isinf(store.lines[0].methods["failed"].level)
    assert make_record(0).key in store
    store.compact()
    assert [record.dataset for record in RecordStore(path).lines] == [0, 1]
    store.add([make_record(2)])
    assert len(RecordStore(path).lines) == 3


@pytest.mark.parametrize("cut", [1, 9, 60])
def test_record_that_was_cut_short_is_dropped(tmp_path, cut):
    path = tmp_path / "study.jsonl.gz"
    store = RecordStore(path)
    store.add([make_record(0)])
    store.add([make_record(1)])
    path.write_bytes(path.read_bytes()[:-cut])
    store = RecordStore(path)
    assert [record.dataset for record in store.lines] == [0]
    store.add([make_record(2)])
    assert [record.dataset for record in RecordStore(path).lines] == [0, 2]
