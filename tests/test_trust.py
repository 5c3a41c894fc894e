"""The page about trust is what is stored, and nothing stored has failed."""

import json
from pathlib import Path

import pytest
from benchmarks.validate import page, stored
from benchmarks.validate.mutants import MUTANTS

ROOT = Path(__file__).parents[1]


def test_the_smallest_p_value_is_judged_by_their_number():
    lines = [{"p": p} for p in (0.5, 0.002, 0.9)]
    assert stored.smallest(lines).chance == pytest.approx(1 - 0.998**3)
    assert not stored.passed("sbc", lines)
    assert stored.passed("sbc", [{"p": 0.002}, *({"p": 0.5} for _ in range(20))])


def test_the_page_is_what_is_stored():
    text = (ROOT / "docs" / "trust.md").read_text()
    assert page.tables(ROOT / "results" / "validation.json", ROOT / "results") in text


def test_all_that_is_stored_passed():
    parts = stored.load(ROOT / "results" / "validation.json")
    assert {*page.P_VALUES, "known", "mutations"} == set(parts)
    assert [name for name, part in parts.items() if not stored.passed(name, part["lines"])] == []
    assert {line["name"] for line in parts["mutations"]["lines"]} == {mutant.name for mutant in MUTANTS}


def test_survivors_and_failures_are_on_the_page(tmp_path):
    path, where = tmp_path / "validation.json", tmp_path / "trust.md"
    where.write_text(f"Before.\n\n{page.BEGIN}\n{page.END}\nAfter.\n")
    with pytest.raises(ValueError, match="there is nothing in"):
        page.write(path, tmp_path, where)
    stored.add(path, "geweke", [{"kernel": "RAM", "model": "a", "what": "risk", "p": 1e-9, "n": 7}], 60.0)
    stored.add(path, "mutations", [{"name": "a: b", "file": "x.py", "caught": None, "digest": ""}], 1.0)
    page.write(path, tmp_path, where)
    text = where.read_text()
    assert text.startswith("Before.")
    assert text.endswith("After.\n")
    assert "1e-09 **failed**" in text
    assert "- not noticed: a: b" in text
    assert json.loads(path.read_text())["geweke"]["seconds"] == 60
    where.write_text("No marks.")
    with pytest.raises(ValueError, match=page.BEGIN):
        page.write(path, tmp_path, where)
