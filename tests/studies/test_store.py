"""Results files of studies."""

import math
from dataclasses import replace

import pytest

from studies.store import Line, Store

LINE = Line("p", 100, 0, "smc", "box", 1.5, 0.05, 0.93, 7, True, 2.5, "warm", "", "2 x chip; jax 1")


def test_lines_are_read_back(tmp_path):
    path = tmp_path / "new" / "study.csv"
    lines = [LINE, replace(LINE, dataset=1, converged=False, truth_level=math.nan, machine='a "quoted", name')]
    Store(path).add(lines)
    reopened = Store(path)
    assert reopened.lines[0] == lines[0]
    assert not reopened.lines[1].converged
    assert math.isnan(reopened.lines[1].truth_level)
    assert reopened.lines[1].machine == lines[1].machine
    assert LINE.key in reopened
    assert ("p", 100, 2, "smc", "box") not in reopened


def test_lines_are_appended(tmp_path):
    path = tmp_path / "study.csv"
    Store(path).add([LINE])
    Store(path).add([replace(LINE, dataset=1)])
    assert [line.dataset for line in Store(path).lines] == [0, 1]
    assert path.read_text().count("problem") == 1


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_incomplete_last_line_is_dropped(tmp_path, cut):
    path = tmp_path / "study.csv"
    Store(path).add([LINE, replace(LINE, dataset=1)])
    path.write_text(path.read_text()[:-cut])
    store = Store(path)
    assert [line.dataset for line in store.lines] == [0]
    store.add([replace(LINE, dataset=2)])
    assert [line.dataset for line in Store(path).lines] == [0, 2]


def test_incomplete_header_is_replaced(tmp_path):
    path = tmp_path / "study.csv"
    path.write_text("problem,n,data")
    store = Store(path)
    assert store.lines == []
    store.add([LINE])
    assert Store(path).lines == [LINE]


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "problem,n\np,1\n"])
def test_other_file_is_rejected(tmp_path, text):
    path = tmp_path / "other.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"other\.csv is not a results file of a study"):
        Store(path)
    assert path.read_text() == text


def test_first_line_of_a_calibration_is_kept(tmp_path):
    """Two commands write to one file."""
    path = tmp_path / "study.csv"
    first, second = Store(path), Store(path)
    first.add([LINE])
    second.add([replace(LINE, eta=9.0)])
    first.add([replace(LINE, eta=7.0), replace(LINE, dataset=1)])
    assert [(line.dataset, line.eta) for line in Store(path).lines] == [(0, 1.5), (1, 1.5)]


def test_reading_does_not_change_the_file(tmp_path):
    path = tmp_path / "study.csv"
    path.write_text("problem,n,data")
    Store(path)
    assert path.read_text() == "problem,n,data"


def test_covered():
    assert LINE.covered == 1.0
    assert replace(LINE, truth_level=0.96).covered == 0.0
    assert replace(LINE, truth_level=math.inf).covered == 0.0
    assert math.isnan(replace(LINE, truth_level=math.nan).covered)


def test_compressed_file_is_read_back(tmp_path):
    path = tmp_path / "study.csv.gz"
    Store(path).add([replace(LINE, dataset=1)])
    store = Store(path)
    store.add([LINE])
    assert [line.dataset for line in Store(path).lines] == [1, 0]
    size = path.stat().st_size
    store.compact()
    assert [line.dataset for line in Store(path).lines] == [0, 1]
    assert path.stat().st_size < size
    store.add([replace(LINE, dataset=2)])
    assert [line.dataset for line in Store(path).lines] == [0, 1, 2]


@pytest.mark.parametrize("cut", [1, 9, 60])
def test_compressed_line_that_was_cut_short_is_dropped(tmp_path, cut):
    path = tmp_path / "study.csv.gz"
    store = Store(path)
    store.add([LINE])
    store.add([replace(LINE, dataset=1)])
    path.write_bytes(path.read_bytes()[:-cut])
    store = Store(path)
    assert [line.dataset for line in store.lines] == [0]
    store.add([replace(LINE, dataset=2)])
    assert [line.dataset for line in Store(path).lines] == [0, 2]
