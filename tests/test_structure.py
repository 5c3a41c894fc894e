"""Limits on the size and shape of the package, so that it stays readable."""

import ast
from pathlib import Path

import calibayes

PACKAGE = Path(calibayes.__file__).parent
APPLICATIONS = (
    "causal.py",
    "cli",
    "datasets",
    "estimators",
    "interop",
    "io",
    "plots",
    "report",
    "survival.py",
    "tables",
)
METHODS = ("methods", "compare.py")
RISKS = ("counts_risk.py", "cox.py", "discrepancy.py", "function.py", "moments.py", "pairs.py", "ranking.py", "tail.py")
"""Risks that are functions of the counts: their evaluation and their check, and the built-in ones."""
PARTS = "parts.py"
"""Data that are read in parts by several processes."""
MAX_CORE_LINES, MAX_METHODS_LINES, MAX_RISKS_LINES, MAX_PARTS_LINES = 10_700, 1_520, 740, 300
MAX_TOP_LEVEL_MODULES = 16
MAX_FUNCTION_LINES = 60
MAX_ANY_SHARE = 0.03


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path, ast.parse(path.read_text())


def functions(tree):
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def is_docstring(node):
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def code_lines(text, node):
    """Lines of a module or function that are code: no docstring, comment or blank line."""
    documentation = {
        line for child in ast.walk(node) if is_docstring(child) for line in range(child.lineno, child.end_lineno + 1)
    }
    first, last = getattr(node, "lineno", 1), getattr(node, "end_lineno", len(text))
    lines = (line for line in range(first, last + 1) if line not in documentation)
    return sum(1 for line in lines if text[line - 1].strip() and not text[line - 1].lstrip().startswith("#"))


def annotations(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            yield node.annotation
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
            yield node.returns


def test_core_methods_and_risks_are_small():
    core = methods = risks = in_parts = 0
    for path, tree in modules():
        part, lines = path.relative_to(PACKAGE).parts[0], code_lines(path.read_text().splitlines(), tree)
        is_risk = path.name in RISKS and part in ("_core", "_validate", "losses")
        methods += lines * (part in METHODS)
        risks += lines * is_risk
        is_part = path.name == PARTS and part in ("_core", "_validate")
        in_parts += lines * is_part
        core += lines * (part not in (*METHODS, *APPLICATIONS) and not is_risk and not is_part)
    assert core <= MAX_CORE_LINES
    assert methods <= MAX_METHODS_LINES
    assert risks <= MAX_RISKS_LINES
    assert in_parts <= MAX_PARTS_LINES


def test_few_modules_lie_at_the_top_level():
    assert len(list(PACKAGE.glob("*.py"))) <= MAX_TOP_LEVEL_MODULES


def test_functions_are_short():
    allowed = {("calibrate.py", "calibrate"), ("fit.py", "fit")}
    long = [
        f"{path.relative_to(PACKAGE)}:{node.name}"
        for path, tree in modules()
        for node in functions(tree)
        if code_lines(path.read_text().splitlines(), node) > MAX_FUNCTION_LINES
        and (path.name, node.name) not in allowed
    ]
    assert not long


def test_any_is_rare():
    used = [annotation for _, tree in modules() for annotation in annotations(tree)]
    vague = [annotation for annotation in used if isinstance(annotation, ast.Name) and annotation.id == "Any"]
    assert len(vague) <= MAX_ANY_SHARE * len(used)


def test_dir_is_the_table_of_contents():
    assert dir(calibayes) == sorted({*calibayes.__all__, "__version__"})
    assert all(hasattr(calibayes, name) for name in calibayes.__all__)
    assert not [name for name in calibayes.__all__ if name.startswith("_") and name != "__version__"]
