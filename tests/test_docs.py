"""Statements of the documentation about the code are true. Its code cells are run by the build itself, `make docs`."""

import ast
import importlib
import re
from pathlib import Path

import pytest

import calibayes as cb

ROOT = Path(__file__).parents[1]
DOCS, SOURCE = ROOT / "docs", ROOT / "src" / "calibayes"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)
TEXT = {page: page.read_text() for page in PAGES}
FENCE = re.compile(r"^```(\S*)(?: ([^\n]*))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DIAGNOSTICS = TEXT[DOCS / "diagnostics.md"]
MODULES = (
    "bootstrap",
    "datasets",
    "diagnostics",
    "estimators",
    "interop",
    "kernels",
    "losses",
    "methods",
    "plots",
    "priors",
    "regions",
    "samplers",
)

for_each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())


def fences(page, name):
    return [(argument, body) for kind, argument, body in FENCE.findall(TEXT[page]) if kind == name]


@pytest.fixture(scope="module")
def documented():
    """Names with a directive of their own on one of the two API pages."""
    api = "".join(body for page in ("api.md", "api_extensions.md") for _, body in fences(DOCS / page, "{eval-rst}"))
    return set(re.findall(r"^\.\. auto\w+:: calibayes\.([\w.]+)", api, re.MULTILINE))


def public_names(module):
    names = getattr(module, "__all__", None)
    if names is None:
        text = Path(module.__file__).read_text()
        names = re.findall(r"^from \S+ import (\w+) as \1$", text, re.MULTILINE)
    assert names
    return names


def test_public_names_of_the_package_are_on_an_api_page(documented):
    assert "calibrate" in cb.__all__
    assert [name for name in cb.__all__ if name not in documented] == []


@pytest.mark.parametrize("module", MODULES)
def test_public_names_of_modules_are_on_an_api_page(documented, module):
    """A name that the package itself exports is documented there."""
    missing = [
        name
        for name in public_names(importlib.import_module(f"calibayes.{module}"))
        if f"{module}.{name}" not in documented and name not in cb.__all__
    ]
    assert missing == []


@for_each_page
def test_python_code_is_run_or_included(page):
    """Code that is never run becomes outdated."""
    kinds = {kind for kind, _, _ in FENCE.findall(TEXT[page])}
    assert kinds <= {"{code-cell}", "{toctree}", "{literalinclude}", "{eval-rst}", "{glossary}", "text", "console"}
    cells = fences(page, "{code-cell}")
    assert {language for language, _ in cells} <= {"python3"}
    assert bool(cells) == TEXT[page].startswith("---\nfile_format: mystnb\nkernelspec:\n  name: python3\n---\n")


def test_every_page_is_in_a_toctree():
    listed = {DOCS / "index.md"}
    for page in PAGES:
        for _, body in fences(page, "{toctree}"):
            names = [line for line in body.split("\n") if line and not line.startswith(":")]
            listed |= {page.parent / f"{name}.md" for name in names}
    assert listed == set(PAGES)


@for_each_page
def test_linked_files_exist(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", TEXT[page]):
        if not target.startswith(("http", "#")):
            assert (page.parent / target.split("#")[0]).exists(), target


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_files_linked_from_the_repository_exist(name):
    for target in re.findall(r"\]\(([^)\s]+)\)", (ROOT / name).read_text()):
        if not target.startswith(("http", "#")):
            assert (ROOT / target.split("#")[0]).exists(), target


@for_each_page
def test_included_code_exists(page):
    for path, body in fences(page, "{literalinclude}"):
        file = page.parent / path
        assert file.exists(), path
        (name,) = re.findall(r"^:pyobject: (\S+)$", body, re.MULTILINE) or [None]
        if name is not None:
            assert name in defined_objects(file), f"{name} in {path}"


def defined_objects(file):
    """Return the qualified names of functions and classes."""
    names = set()

    def walk(node, prefix):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                names.add(prefix + child.name)
                walk(child, f"{prefix}{child.name}.")

    walk(ast.parse(file.read_text()), "")
    return names


@for_each_page
def test_modules_named_in_the_text_exist(page):
    """Dotted names of the package, such as `calibayes._core.risk`."""
    for name in re.findall(r"`(calibayes(?:\.\w+)+)`", TEXT[page]):
        parts = name.split(".")
        for length in range(len(parts), 0, -1):
            try:
                value = importlib.import_module(".".join(parts[:length]))
                break
            except ModuleNotFoundError:
                continue
        for attribute in parts[length:]:
            value = getattr(value, attribute)


@pytest.mark.parametrize("enum", [cb.Status, cb.Code], ids=lambda enum: enum.__name__)
def test_diagnostics_page_lists_every_member_with_meaning_and_remedy(enum):
    rows = re.findall(rf"^\| `{enum.__name__}\.(\w+)` \|(.*)\|$", DIAGNOSTICS, re.MULTILINE)
    assert [name for name, _ in rows] == [member.name for member in enum]
    assert all(cell.strip() for _, cells in rows for cell in cells.split(" | "))


def test_diagnostics_page_states_the_message_of_every_status():
    for status in cb.Status:
        assert f"| `Status.{status.name}` | {status.value} |" in DIAGNOSTICS


def test_codes_of_the_diagnostics_page_are_used():
    """Every code is set by some module of the package."""
    used = {code for text in map(Path.read_text, SOURCE.rglob("*.py")) for code in re.findall(r"\bCode\.(\w+)", text)}
    assert {code.name for code in cb.Code} <= used


def test_error_messages_of_the_diagnostics_page_are_those_of_the_code():
    """Each message in the tables occurs in the source, where `...` stands for a value."""
    texts = "\n".join(strings([ast.parse(file.read_text()) for file in SOURCE.rglob("*.py")]))
    messages = re.findall(r"^\| `(?!Status\.|Code\.)([^`]+)` \|", DIAGNOSTICS, re.MULTILINE)
    assert len(messages) >= 5
    for message in messages:
        pattern = r"[^\n]*".join(re.escape(part) for part in message.split("..."))
        assert re.search(pattern, texts), message


def strings(trees):
    """Yield all string literals; f-strings with the constants that have names, and without the values."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    assigned = [node for node in nodes if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)]
    constants = {ast.unparse(node.targets[0]): str(node.value.value) for node in assigned}

    def text(part):
        return part.value if isinstance(part, ast.Constant) else constants.get(ast.unparse(part.value), "")

    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield "".join(text(part) for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
