"""Tables and the page, from lines whose summary is known."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from studies.page import BEGIN, END, write
from studies.store import Line, Store

from studies import tables

ETAS = [1.0, 1.2, 1.4, 1.6]


def lines(
    n=100,
    sampler="smc",
    region="box",
    truths=(0.5, 0.94, 0.951, 0.2),
    problem="median regression",
    seconds=1.0,
    machine="chip",
):
    notes = ["lost", "", "unmixed", ""]
    return [
        Line(problem, n, i, sampler, region, eta, 0.05, truth, 5, i > 0, seconds * (i + 1), how, notes[i], machine)
        for i, (eta, truth, how) in enumerate(zip(ETAS, truths, ["cold", "warm", "warm", "at"], strict=True))
    ]


@pytest.fixture
def folder(tmp_path):
    regression = [*lines(), *lines(sampler="transport", seconds=0.1), *lines(region="hpd"), *lines(n=400)]
    Store(tmp_path / "median_regression.csv").add(regression)
    Store(tmp_path / "heart_disease.csv").add(lines(462, "transport", truths=(np.nan,) * 4, problem="SVM"))
    wrong = [
        line for name in ("transport", "eta 1", "sandwich") for line in lines(400, name, "slope", problem="t3, huber")
    ]
    Store(tmp_path / "misspecified.csv").add(wrong)
    Store(tmp_path / "open_question.csv").add(lines(462, truths=(np.nan,) * 4, problem="SVM, nine predictors"))
    return tmp_path


def test_cells():
    (cell,) = tables.cells(lines())
    assert cell.coverage == 0.75
    assert cell.coverage_se == pytest.approx((0.95 * 0.05 / 4) ** 0.5)
    np.testing.assert_array_equal(cell.etas, ETAS)
    np.testing.assert_array_equal(cell.seconds, [2.0, 3.0])
    assert cell.variation == pytest.approx(np.std([2, 3], ddof=1) / 2.5)
    assert cell.warned == "1, 1"


def test_seconds_of_several_machines_are_not_mixed():
    mixed = [*lines(), *lines(n=400), *lines(sampler="transport", machine="other")]
    assert {cell.sampler for cell in tables.timed(mixed)} == {"smc"}
    assert {cell.n for cell in tables.timed(mixed)} == {100, 400}
    assert tables.timed([]) == []


def test_cells_come_in_the_order_of_the_paper():
    mixed = [*lines(n=400, sampler="transport"), *lines(n=400, sampler="mcmc"), *lines(n=100)]
    assert [(cell.n, cell.sampler) for cell in tables.cells(mixed)] == [(100, "smc"), (400, "mcmc"), (400, "transport")]


def test_what_the_truth_asks_for_explains_coverage(folder):
    """A set at eta holds the truth in the datasets that ask for as much: at 2, here, in 120 of 200."""
    (known,) = lines(sampler="known")[:1]
    etas = np.repeat([0.5, 1.0, 1.5, 3.0], [8, 4, 68, 120])
    asked = [replace(known, dataset=i, eta=eta) for i, eta in enumerate(etas)]
    found = [replace(line, sampler="transport", eta=2.0, truth=0.9) for line in asked]
    ((*_, right, middle, with_it, as_it_is),) = tables.asked([*asked, *found]).rows
    assert right == "1.00 (0.50, 1.50)"
    assert (middle, with_it, as_it_is) == ("2.00", "60.0", "100.0")
    assert tables.table1(asked).rows == []
    Store(folder / "median_regression.csv").add([*asked, *found])
    (page,) = write(folder, folder / "docs", None)
    assert "known" not in page.read_text().replace("--sampler known", "")
    assert "| 100 | box | 200 | 1.00 (0.50, 1.50) |" in page.read_text()


def test_page_has_the_times_of_other_machines(folder):
    Store(folder / "figure4_gpu.csv").add([*lines(machine="gpu"), *lines(sampler="transport", machine="gpu")])
    (page,) = write(folder, folder / "docs", None)
    assert "The same on gpu:" in page.read_text()


def test_page_has_every_number(folder):
    written = write(folder, folder / "docs", None)
    assert written == [folder / "docs" / "results.md"]
    page = written[0].read_text()
    # Paper's coverage and ours, the paper's eta and ours.
    assert "| 100 | box | GPC-SMC | 4 | 96.0 | 75.0 (10.9) | 1.6 | 1.30 (1.15, 1.45) | 1, 1 |" in page
    assert "| 100 | hpd | GPC-SMC | 4 |  | 75.0 (10.9) |  | 1.30 (1.15, 1.45) | 1, 1 |" in page
    assert "| 100 | GPC-SMC | 2 | 2.50 (2.25, 2.75) |  | 10.0 |" in page
    assert "| SVM, nine predictors | box | 4 | 1.300 |  |  | 1, 1 |" in page
    assert "| t3, huber | slope | 4 | 75.0 (10.9) | 75.0 | 75.0 | 1.30 | 1, 1 |" in page
    assert "No cell is beyond three errors" in page
    for figure in ("figure4.png", "figure5.png"):
        assert (folder / "docs" / figure).stat().st_size > 5_000
        assert figure in page


def test_page_names_cells_that_miss(folder):
    missing = [replace(line, dataset=i, truth=0.99) for i in range(40) for line in lines(1600)[:1]]
    Store(folder / "median_regression.csv").add(missing)
    page = write(folder, folder / "docs", None)[0].read_text()
    assert "Beyond three errors from 95%: N 1,600, box, GPC-SMC: 0.0." in page


def test_the_page_is_of_the_results(tmp_path):
    """Those that are in the repository."""
    root = Path(__file__).parents[2]
    shutil.copy(root / "README.md", tmp_path)
    write(root / "results", tmp_path / "docs", tmp_path / "README.md")
    for name in ("README.md", "docs/results.md"):
        assert (tmp_path / name).read_text() == (root / name).read_text(), "run make results"


def test_slower_searches_are_compared_on_the_same_rows(folder):
    """GPC-SMC's etas are 0.9 of transport's, dataset by dataset, and the page says so."""
    some = lines(sampler="transport", n=1600)
    Store(folder / "median_regression.csv").add(
        [*some, *(replace(line, sampler="smc", eta=0.9 * line.eta) for line in some)]
    )
    assert "0.90 at N 1,600" in write(folder, folder / "docs", None)[0].read_text()


def test_no_results_overwrite_nothing(tmp_path):
    page = tmp_path / "results.md"
    page.write_text("good")
    with pytest.raises(ValueError, match="no results in"):
        write(tmp_path / "mistyped", tmp_path, None)
    assert page.read_text() == "good"


def test_short_table_goes_to_its_place(folder):
    readme = folder / "README.md"
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write(folder, folder, readme)
    once = readme.read_text()
    assert once.startswith(f"before\n{BEGIN}\n| N |")
    assert once.endswith(f"|\n\nSeconds on chip.\n{END}\nafter\n")
    assert "old" not in once
    # No share of four datasets.
    assert "| 100 | transport |  | - | 4 | 1.30 | 0.2 |" in once
    write(folder, folder, readme)
    assert readme.read_text() == once
    readme.write_text("no place")
    with pytest.raises(ValueError, match="no place for the table"):
        write(folder, folder, readme)


@pytest.mark.parametrize("show", [tables.table1, tables.times, tables.by_variant, tables.figure5])
def test_terminal_tables(show):
    table = show([*lines(), *lines(sampler="transport")]).rich()
    assert table.row_count == 2
