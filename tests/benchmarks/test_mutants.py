"""Mutants apply to the present source code, and the mechanism that applies them works."""

import ast
import importlib
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from benchmarks.common import ROOT
from benchmarks.validate import mutation, mutation_run, store
from benchmarks.validate.mutants import MUTANTS
from benchmarks.validate.mutation import Mutant, MutantError, Rewrite


def rewritten(code, pattern, replacement, occurrence=None):
    tree = ast.parse(code)
    Rewrite(pattern, replacement, occurrence).apply(tree)
    return ast.unparse(tree)


def test_there_are_enough_mutants():
    assert len(MUTANTS) >= 97
    assert all(mutant.description.endswith(".") and mutant.tests for mutant in MUTANTS.values())


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_applies_to_the_present_source(name):
    """Otherwise its function was renamed or rewritten: adapt the target or the pattern."""
    mutant = MUTANTS[name]
    mutant.check()
    assert ast.dump(ast.parse(mutant.source())) != ast.dump(ast.parse(mutant.path.read_text()))
    if not isinstance(mutant.change, Rewrite):
        original = importlib.import_module(mutant.module)
        for part in mutant.qualified_name.split("."):
            original = vars(original)[part]
        assert mutant.change(original) is not original


def test_pattern_matches_other_names_and_formatting():
    code = "f(new,\n  rate) - f(old, rate) + correction"
    assert rewritten(code, "_f(_a, _e) - _f(_b, _e)", "_f(_b, _e) - _f(_a, _e)") == (
        "f(old, rate) - f(new, rate) + correction"
    )


def test_repeated_wildcard_matches_only_the_same_expression():
    with pytest.raises(MutantError, match="0 times"):
        rewritten("f(a, x) - f(b, y)", "_f(_a, _e) - _f(_b, _e)", "0")


def test_statements_can_be_replaced():
    assert rewritten("def g():\n    weights = f(x)\n    return weights", "return _a", "return 0 * _a").endswith(
        "return 0 * weights"
    )


def test_ambiguous_pattern_needs_an_occurrence():
    with pytest.raises(MutantError, match="2 times instead of once"):
        rewritten("f(a) + f(b)", "f(_a)", "_a")
    assert rewritten("f(a) + f(b)", "f(_a)", "_a", occurrence=1) == "f(a) + b"
    with pytest.raises(MutantError, match="only 2 times"):
        rewritten("f(a) + f(b)", "f(_a)", "_a", occurrence=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": "calibayes.nothing:f"}, "there is no module calibayes.nothing"),
        ({"target": "calibayes.losses:Nothing.f"}, r"has no Nothing\.f"),
        ({"change": Rewrite("_a ** 77", "_a")}, "matches 0 times"),
        ({"tests": ("test_nothing.py",)}, r"there is no tests/test_nothing\.py"),
    ],
)
def test_mutant_that_does_not_apply_is_reported(changes, message):
    mutant = replace(next(iter(MUTANTS.values())), **changes)
    with pytest.raises(MutantError, match=message):
        mutant.check()


def test_replacement_that_changes_nothing_is_reported():
    one = first_rewrite()
    with pytest.raises(MutantError, match="already computes"):
        replace(one, change=replace(one.change, replacement=one.change.pattern)).check()


def first_rewrite():
    return next(mutant for mutant in MUTANTS.values() if isinstance(mutant.change, Rewrite))


PROGRAM = """
import jax.numpy as jnp
{imports}
import calibayes as cb
print(cb.losses.Quantile(0.25).rho(jnp.float32(1.0), jnp.float32(3.0)))
"""


@pytest.mark.parametrize("typed", [False, True], ids=["plain", "with type checks"])
@pytest.mark.parametrize(("mutant", "expected"), [("", "0.5"), ("quantile_loss_of_the_other_side", "1.5")])
def test_mutant_of_the_environment_is_imported(mutant, expected, typed):
    """In a fresh interpreter, with and without the import hook of jaxtyping."""
    hook = "from jaxtyping import install_import_hook; install_import_hook('calibayes', 'beartype.beartype')"
    paths = os.pathsep.join([str(ROOT / "benchmarks" / "validate" / "site"), str(ROOT)])
    environment = os.environ | {"PYTHONPATH": paths, mutation.VARIABLE: mutant}
    program = PROGRAM.format(imports=hook if typed else "")
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected


def test_results_are_stored_and_not_computed_again(monkeypatch, tmp_path):
    """A result is computed again if the mutant, its module or its tests changed."""
    calls = []

    def first_failure(tests, mutant):
        calls.append(mutant)
        return f"{tests[0]}::test" if mutant else None

    one = first_rewrite()
    monkeypatch.setattr(mutation_run, "MUTANTS", {one.name: one})
    monkeypatch.setattr(mutation_run, "_first_failure", first_failure)
    path = tmp_path / "validation.json"
    (line,) = mutation_run.run(path)
    assert line["noticed_by"] == f"{one.tests[0]}::test"
    assert mutation_run.run(path) == store.load(path)["mutants"]["lines"] == [line]
    assert calls == [one.name, ""]
    assert mutation_run.digest(one) != mutation_run.digest(replace(one, tests=("conftest.py",)))
    mutation_run.run(path, only=one.name)
    assert calls == [one.name, "", one.name, ""]


def test_comments_and_docstrings_do_not_change_a_digest():
    code = 'def f(x):\n    """Double."""  # fast\n    return 2 * x\n'
    assert mutation_run._code(code) == mutation_run._code(code.replace("Double", "Twice").replace("fast", "exact"))
    assert mutation_run._code(code) != mutation_run._code(code.replace("2", "3"))


def test_test_that_always_fails_cannot_notice_a_mutant(monkeypatch, tmp_path):
    one = first_rewrite()
    monkeypatch.setattr(mutation_run, "MUTANTS", {one.name: one})
    monkeypatch.setattr(mutation_run, "_first_failure", lambda *_: "test_a.py::test_b")
    with pytest.raises(RuntimeError, match="fails without a mutant"):
        mutation_run.run(tmp_path / "validation.json")


def test_names_are_unique(monkeypatch):
    monkeypatch.setattr(mutation, "REGISTRY", {})
    mutation.rewrite("a", "m:f", "_a", "_b", "Do it.", [])
    with pytest.raises(ValueError, match="two mutants named a"):
        mutation.rewrite("a", "m:f", "_a", "_b", "Do it.", [])
    assert isinstance(mutation.REGISTRY["a"], Mutant)
