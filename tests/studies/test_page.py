"""Tables and the results page, from lines with a known summary."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from studies import tables
from studies.page import MARKS, write
from studies.store import Line, Store

ETAS = [1.0, 1.2, 1.4, 1.6]
TIMINGS = ["cold", "warm", "warm", "requery"]


def make_lines(
    n=100,
    sampler="smc",
    region="box",
    truth_levels=(0.5, 0.94, 0.951, 0.2),
    problem="median regression",
    seconds=1.0,
    machine="chip",
):
    notes = ["no crossing", "", "not mixed", ""]
    return [
        Line(problem, n, i, sampler, region, eta, 0.05, level, 5, i > 0, seconds * (i + 1), timing, notes[i], machine)
        for i, (eta, level, timing) in enumerate(zip(ETAS, truth_levels, TIMINGS, strict=True))
    ]


@pytest.fixture
def folder(tmp_path):
    regression = [
        *make_lines(),
        *make_lines(sampler="transport", seconds=0.1),
        *make_lines(region="hpd"),
        *make_lines(n=400),
    ]
    Store(tmp_path / "median_regression.csv.gz").add(regression)
    Store(tmp_path / "figure4_chip.csv").add(regression)
    Store(tmp_path / "heart_disease.csv").add(make_lines(462, "transport", truth_levels=(np.nan,) * 4, problem="SVM"))
    methods = ("transport", "eta 1", "sandwich")
    misspecified = [line for name in methods for line in make_lines(400, name, "slope", problem="t3, huber")]
    Store(tmp_path / "misspecified.csv.gz").add(misspecified)
    Store(tmp_path / "open_question.csv").add(
        make_lines(462, truth_levels=(np.nan,) * 4, problem="SVM, nine predictors")
    )
    return tmp_path


def test_cell_summarises_its_lines():
    (cell,) = tables.cells(make_lines())
    assert cell.coverage == 0.75
    share = (cell.coverage * 4 + 2) / 8
    assert cell.coverage_se == pytest.approx((share * (1 - share) / 8) ** 0.5)
    np.testing.assert_array_equal(cell.etas, ETAS)
    np.testing.assert_array_equal(cell.seconds, [2.0, 3.0])
    assert cell.variation == pytest.approx(np.std([2, 3], ddof=1) / 2.5)
    assert cell.warnings == "1, 1"


def test_times_of_several_machines_are_not_mixed():
    mixed = [*make_lines(), *make_lines(n=400), *make_lines(sampler="transport", machine="other")]
    assert {cell.sampler for cell in tables.timed(mixed)} == {"smc"}
    assert {cell.n for cell in tables.timed(mixed)} == {100, 400}
    assert tables.timed([]) == []


def test_cells_are_in_the_order_of_the_paper():
    mixed = [*make_lines(n=400, sampler="transport"), *make_lines(n=400, sampler="mcmc"), *make_lines(n=100)]
    assert [(cell.n, cell.sampler) for cell in tables.cells(mixed)] == [(100, "smc"), (400, "mcmc"), (400, "transport")]


def test_replicates_share_the_error_of_a_coverage():
    """With an error of eta of 10% a data set at the boundary is covered half the time, the others always or never."""
    (line,) = make_lines(region="slope")[:1]
    lines = [replace(line, dataset=i, truth_level=level, eta_se=0.1) for i, level in enumerate([0.95, 0.5, 0.3, 0.2])]
    lines += [replace(line, dataset=9, truth_level=0.999999, eta_se=0.1)]
    (cell,) = tables.cells(lines)
    assert cell.replicate_share == pytest.approx(0.25 / 5 / (0.8 * 0.2), rel=1e-3)
    assert np.isnan(tables.cells(lines[1:2])[0].replicate_share)


def test_samplers_are_compared_on_common_data_sets():
    (line,) = make_lines()[:1]
    smc = [replace(line, dataset=i, truth_level=0.99 if i < 3 else 0.9) for i in range(40)]
    transport = [replace(line, dataset=i, sampler="transport", truth_level=0.9) for i in range(5, 100)]
    transport += [replace(line, dataset=i, sampler="transport", truth_level=0.9) for i in range(2)]
    ((*key, different, difference),) = tables.paired_coverage([*smc, *transport], "smc", "transport").rows
    assert (key, different) == (["100", "box", "37"], "2")
    se = 100 * np.std([-1, -1] + [0] * 35, ddof=1) / np.sqrt(37)
    assert difference == f"{-200 / 37:+.1f} ({se:.1f})"


def test_page_has_the_times_of_other_machines(folder):
    Store(folder / "figure4_gpu.csv").add([*make_lines(machine="gpu"), *make_lines(sampler="transport", machine="gpu")])
    (page,) = write(folder, folder / "docs", None)
    assert "The same on gpu:" in page.read_text()


def test_page_has_every_number(folder):
    written = write(folder, folder / "docs", None)
    assert written == [folder / "docs" / "results.md"]
    page = written[0].read_text()
    # Coverage and eta of the paper, and ours.
    assert "| 100 | box | GPC-SMC | 4 | 96.0 | 75.0 (17.1) |  | 1.6 | 1.30 (1.15, 1.45) | 1, 1 |" in page
    assert "| 100 | hpd | GPC-SMC | 4 |  | 75.0 (17.1) |  |  | 1.30 (1.15, 1.45) | 1, 1 |" in page
    assert "| 100 | GPC-SMC | 2 | 2.50 (2.25, 2.75) |  | 10.0 |" in page
    assert "| SVM, nine predictors | box | 4 | 1.300 |  |  | 1, 1 |" in page
    assert "| t3, huber | slope | 4 | 75.0 (17.1) | 75.0 | 75.0 | 1.30 | 1, 1 |" in page
    assert "All cells are within three standard errors" in page
    for figure in ("figure4.png", "figure5.png"):
        assert (folder / "docs" / figure).stat().st_size > 5_000
        assert figure in page


def test_page_names_cells_far_from_the_level(folder):
    uncovered = [replace(line, dataset=i, truth_level=0.99) for i in range(40) for line in make_lines(1600)[:1]]
    Store(folder / "median_regression.csv.gz").add(uncovered)
    page = write(folder, folder / "docs", None)[0].read_text()
    assert "More than three standard errors from 95%: N 1,600, box, GPC-SMC: 0.0." in page


def test_page_in_the_repository_is_up_to_date(tmp_path):
    root = Path(__file__).parents[2]
    shutil.copy(root / "README.md", tmp_path)
    write(root / "results", tmp_path / "docs", tmp_path / "README.md")
    for name in ("README.md", "docs/results.md", "docs/head_to_head.md", "docs/head_to_head_cells.md"):
        assert (tmp_path / name).read_text() == (root / name).read_text(), "run make results"


def test_searches_are_compared_on_the_same_replicates(folder):
    """Each eta of GPC-SMC is 0.9 times that of transport on the same data set."""
    transport = make_lines(sampler="transport", n=1600)
    Store(folder / "median_regression.csv.gz").add(
        [*transport, *(replace(line, sampler="smc", eta=0.9 * line.eta) for line in transport)]
    )
    assert "0.90 at N 1,600" in write(folder, folder / "docs", None)[0].read_text()


def test_missing_results_leave_the_page_unchanged(tmp_path):
    page = tmp_path / "results.md"
    page.write_text("previous")
    with pytest.raises(ValueError, match="no results in"):
        write(tmp_path / "mistyped", tmp_path, None)
    assert page.read_text() == "previous"


def test_short_table_replaces_the_previous_one(folder):
    readme = folder / "README.md"
    readme.write_text(f"before\n{MARKS.begin}\nold\n{MARKS.end}\nafter\n")
    write(folder, folder, readme)
    once = readme.read_text()
    assert once.startswith(f"before\n{MARKS.begin}\n| N |")
    assert once.endswith(f"|\n\nSeconds on chip.\n{MARKS.end}\nafter\n")
    assert "old" not in once
    # Four data sets are too few for a coverage.
    assert "| 100 | transport |  | - | 4 | 1.30 | 0.2 |" in once
    write(folder, folder, readme)
    assert readme.read_text() == once
    readme.write_text("no marks")
    with pytest.raises(ValueError, match="needs a line"):
        write(folder, folder, readme)


@pytest.mark.parametrize("summarise", [tables.table1, tables.times, tables.by_variant, tables.figure5])
def test_terminal_tables(summarise):
    table = summarise([*make_lines(), *make_lines(sampler="transport")]).rich()
    assert table.row_count == 2
