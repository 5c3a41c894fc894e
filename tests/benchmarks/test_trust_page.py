"""The page about validation is up to date, and no stored result failed."""

import json

import pytest

from benchmarks.common import RESULTS, ROOT
from benchmarks.validate import page, store
from benchmarks.validate.mutants import MUTANTS


def test_smallest_p_value_is_judged_by_their_number():
    lines = [{"p": p} for p in (0.5, 0.002, 0.9)]
    assert store.smallest_p(lines).probability == pytest.approx(1 - 0.998**3)
    assert not store.passed("sbc", lines)
    assert store.passed("sbc", [{"p": 0.002}, *({"p": 0.5} for _ in range(20))])


def test_page_is_up_to_date():
    text = (ROOT / "docs" / "trust.md").read_text()
    assert page.tables(RESULTS / "validation.json", RESULTS) in text, "run python -m benchmarks.validate --page"


def test_all_stored_results_passed():
    parts = store.load(RESULTS / "validation.json")
    required = {*page.P_VALUES, "known", "adversarial"}
    assert required <= set(parts) <= {*required, "mutants"}
    assert [name for name, part in parts.items() if not store.passed(name, part["lines"])] == []


def test_stored_mutants_exist():
    """Mutants run for hours; those that have not been run on the present code are not on the page."""
    lines = store.load(RESULTS / "validation.json").get("mutants", {"lines": []})["lines"]
    assert {line["name"] for line in lines} <= set(MUTANTS)


def test_unnoticed_mutants_and_failures_are_on_the_page(tmp_path):
    path, document = tmp_path / "validation.json", tmp_path / "trust.md"
    document.write_text(f"Before.\n\n{page.MARKS.begin}\n{page.MARKS.end}\nAfter.\n")
    with pytest.raises(ValueError, match="contains no results"):
        page.write(path, tmp_path, document)
    store.add(path, "geweke", [{"kernel": "RAM", "model": "a", "quantity": "risk", "p": 1e-9, "n": 7}], 60.0)
    line = {"name": "a", "description": "Forget b.", "target": "x:f", "noticed_by": None, "digest": ""}
    store.add(path, "mutants", [line], 1.0)
    difficult = {
        "set": "drawn",
        "seed": 7,
        "name": "Two modes",
        "level": 0.9,
        "eta": 1.0,
        "coverage": 0.9,
        "exact": 0.5,
    }
    difficult |= {
        "status": "CONVERGED",
        "codes": [],
        "seconds": 61.0,
        "cpu_seconds": 90.0,
        "verdict": "wrong",
        "has_answer": True,
    }
    store.add(path, "adversarial", [difficult | {"easy_seconds": 2.0}], 1.0)
    page.write(path, tmp_path, document)
    text = document.read_text()
    assert text.startswith("Before.")
    assert text.endswith("After.\n")
    assert "1e-09 **failed**" in text
    assert "- not noticed: Forget b. (`x:f`)" in text
    assert "(seed 7)" in text
    assert "| Two modes | 0.9 | 1 | 0.900 | 0.500 | converged **wrong** | 61 |" in text
    assert "1 took longer than 60 s" in text
    assert json.loads(path.read_text())["geweke"]["seconds"] == 60
    document.write_text("No marks.")
    with pytest.raises(ValueError, match=page.MARKS.begin):
        page.write(path, tmp_path, document)
