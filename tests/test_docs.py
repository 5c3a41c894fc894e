"""What the pages say of the code is there. Their code cells are run by the build itself, `make docs`."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS, SOURCE = ROOT / "docs", ROOT / "src" / "calibayes"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)
TEXT = {page: page.read_text() for page in PAGES}
FENCE = re.compile(r"^```(\S*)(?: ([^\n]*))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)

named = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())


def fences(page, name):
    return [(argument, body) for kind, argument, body in FENCE.findall(TEXT[page]) if kind == name]


def test_every_public_name_is_in_the_api():
    """By a directive of its own, or of what is in it if it is a module."""
    api = "".join(body for _, body in fences(DOCS / "api.md", "{eval-rst}"))
    documented = re.findall(r"^\.\. auto\w+:: calibayes\.(\w+)", api, re.MULTILINE)
    public = re.findall(r"^from \S+ import (\w+) as \1$", (SOURCE / "__init__.py").read_text(), re.MULTILINE)
    assert "calibrate" in public
    assert [name for name in public if name not in documented] == []


@named
def test_python_is_run_or_read_from_a_file(page):
    """A block that nobody runs would rot."""
    kinds = {kind for kind, _, _ in FENCE.findall(TEXT[page])}
    assert kinds <= {"{code-cell}", "{toctree}", "{literalinclude}", "{eval-rst}", "text", "console"}
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


@named
def test_what_is_linked_exists(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", TEXT[page]):
        if not target.startswith(("http", "#")):
            assert (page.parent / target.split("#")[0]).exists(), target


@named
def test_included_code_exists(page):
    for path, body in fences(page, "{literalinclude}"):
        file = page.parent / path
        assert file.exists(), path
        (wanted,) = re.findall(r"^:pyobject: (\S+)$", body, re.MULTILINE) or [None]
        if wanted is not None:
            assert wanted in objects(file), f"{wanted} in {path}"


def objects(file):
    """Names of functions and classes, and of what classes hold."""
    found = set()

    def walk(node, prefix):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                found.add(prefix + child.name)
                walk(child, f"{prefix}{child.name}.")

    walk(ast.parse(file.read_text()), "")
    return found


def test_messages_are_those_of_the_code():
    """Each in the tables, as in the source where it has `...` for a value."""
    said = "\n".join(strings([ast.parse(file.read_text()) for file in SOURCE.rglob("*.py")]))
    messages = re.findall(r"^\| `([^`]+)` \|", TEXT[DOCS / "diagnostics.md"], re.MULTILINE)
    assert len(messages) > 20
    for message in messages:
        pattern = r"[^\n]*".join(re.escape(part) for part in message.split("..."))
        assert re.search(pattern, said), message


def strings(trees):
    """All that are written down; f-strings with the words that have names, and without the values."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    assigned = [node for node in nodes if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)]
    words = {ast.unparse(node.targets[0]): str(node.value.value) for node in assigned}

    def text(part):
        return part.value if isinstance(part, ast.Constant) else words.get(ast.unparse(part.value), "")

    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield "".join(text(part) for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
