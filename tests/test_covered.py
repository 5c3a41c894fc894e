"""What the commands make of coverage and of another Python's answers."""

import tomllib

import pytest
from benchmarks import covered, reproduce


def counts(**functions):
    missing = [line for lines in functions.values() for line in lines]
    total = {"num_statements": 100, "covered_lines": 100 - len(missing), "num_branches": 40, "covered_branches": 39}
    parts = {name.replace("module", ""): {"missing_lines": lines} for name, lines in functions.items()}
    return {"files": {"src/calibayes/a/b.py": {"functions": parts}}, "totals": total}


def test_lines_are_listed_with_their_reasons():
    reasons = {"a/b.py": {"module": "no such machine"}}
    found = covered.found(counts(module=[3, 5, 6, 7], f=[]), reasons)
    assert [(one["lines"], one["reason"]) for one in found["left"]] == [("3, 5-7", "no such machine")]
    assert covered.shares(found) == (0.96, 39 / 40)
    assert covered.wrong(found, reasons) == []


@pytest.mark.parametrize(
    ("functions", "reasons", "said"),
    [
        ({"f": [8]}, {}, "no reason for a/b.py, f: 8"),
        ({"f": [8]}, {"a/b.py": {"f": "old", "g": "gone"}}, "a reason for a/b.py, g, of which all lines are run"),
        ({"f": [*range(6)]}, {"a/b.py": {"f": "long"}}, "94.0% of lines, less than 95%"),
    ],
)
def test_what_does_not_pass(functions, reasons, said):
    assert covered.wrong(covered.found(counts(**functions), reasons), reasons) == [said]


def test_reasons_are_for_what_is_there():
    for file, functions in tomllib.loads(covered.REASONS.read_text()).items():
        text = (covered.ROOT / covered.SOURCE / file).read_text()
        for function, reason in functions.items():
            assert function == "module" or f"def {function.rpartition('.')[2]}(" in text, (file, function)
            assert len(reason) > 10


def answers(eta, draws):
    return {"versions": {}, "answers": {"smc": {"eta": eta.hex(), "eta_se": (0.01).hex(), "draws": draws}}}


def test_another_python_is_held_to_every_bit_with_the_same_packages():
    here = answers(0.5, [1.0, 2.0])
    same = reproduce.compared(here, answers(0.5, [1.0, 2.0]))
    near = reproduce.compared(here, answers(0.5, [1.0, 2.0000001]))
    far = reproduce.compared(here, answers(0.6, [1.0, 2.0]))
    assert reproduce.wrong(same, near) == []
    assert reproduce.wrong(near, same) == ["smc: other bits by the same packages"]
    assert reproduce.wrong(same, far) == ["smc: another eta"]
    assert far["problems"]["smc"]["errors_apart"] == pytest.approx(0.1 / (0.01 * 2**0.5))
