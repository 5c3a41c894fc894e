"""The report on lines that the test suite runs."""

import tomllib

import pytest

from benchmarks import line_coverage
from benchmarks.common import ROOT


def measured(**functions):
    missing = [line for lines in functions.values() for line in lines]
    totals = {"num_statements": 100, "covered_lines": 100 - len(missing), "num_branches": 40, "covered_branches": 39}
    parts = {name.replace("module", ""): {"missing_lines": lines} for name, lines in functions.items()}
    return {"files": {"src/calibayes/a/b.py": {"functions": parts}}, "totals": totals}


def test_missing_lines_are_listed_with_their_reasons():
    reasons = {"a/b.py": {"module": "no such machine"}}
    summary = line_coverage.summarise(measured(module=[3, 5, 6, 7], f=[]), reasons)
    assert [(entry["lines"], entry["reason"]) for entry in summary["missing"]] == [("3, 5-7", "no such machine")]
    assert line_coverage.shares(summary) == (0.96, 39 / 40)
    assert line_coverage.failures(summary, reasons) == []


@pytest.mark.parametrize(
    ("functions", "reasons", "message"),
    [
        ({"f": [8]}, {}, "no reason for a/b.py, f: 8"),
        ({"f": [8]}, {"a/b.py": {"f": "old", "g": "gone"}}, "unnecessary reason for a/b.py, g: all its lines are run"),
        ({"f": [*range(6)]}, {"a/b.py": {"f": "long"}}, "94.0% of lines, less than 95%"),
    ],
)
def test_requirements_that_are_not_met(functions, reasons, message):
    assert line_coverage.failures(line_coverage.summarise(measured(**functions), reasons), reasons) == [message]


def test_reasons_are_for_existing_functions():
    for file, functions in tomllib.loads(line_coverage.REASONS.read_text()).items():
        text = (ROOT / line_coverage.SOURCE / file).read_text()
        for function, reason in functions.items():
            assert function == "module" or f"def {function.rpartition('.')[2]}(" in text, (file, function)
            assert len(reason) > 10
