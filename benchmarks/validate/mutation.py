"""Deliberate errors ("mutants") in the library, applied while a module is imported.

A mutant names a function by module and qualified name and changes it in one of two ways:

- `rewrite` replaces an expression or statement inside the function. It is found by its shape: a pattern is Python code
  in which `_` matches any expression and a name such as `_a` matches any expression and the same one wherever it is
  repeated. Local variables can be renamed and code can be reformatted without breaking a pattern.
- `mutant` decorates a function that receives the original and returns the broken replacement.

Both are applied to the syntax tree of the module before it is executed, so that decorators, other functions of the
module and `from module import function` elsewhere all see the broken version. `install` does this in a process whose
environment variable `CALIBAYES_MUTANT` names a mutant; see `site/sitecustomize.py`.

This module and the registry import only the standard library: they are loaded when an interpreter starts.
"""

import ast
import copy
import inspect
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
VARIABLE = "CALIBAYES_MUTANT"
_WILDCARD = re.compile(r"_[a-z]?")
_IGNORED_FIELDS = {"ctx", "kind", "type_comment"}

Replacement = Callable[[Any], Any]
"""Receives a function of the library and returns a broken version of it."""


class MutantError(ValueError):
    """A mutant that cannot be applied to the present source code."""


@dataclass(frozen=True)
class Rewrite:
    """Replace one expression or statement, found by its shape."""

    pattern: str
    replacement: str
    occurrence: int | None = None
    """Index of the match to replace; None requires that there is exactly one."""

    def apply(self, function: ast.AST) -> None:
        """Change the syntax tree of a function in place."""
        pattern, replacement = _parsed(self.pattern), _parsed(self.replacement)
        places = [place for place in _children(function) if _matches(pattern, place.node, {})]
        if self.occurrence is None and len(places) != 1:
            raise MutantError(f"the pattern matches {len(places)} times instead of once: {self.pattern}")
        if self.occurrence is not None and len(places) <= self.occurrence:
            raise MutantError(f"the pattern matches only {len(places)} times: {self.pattern}")
        place = places[self.occurrence or 0]
        bound: dict[str, ast.AST] = {}
        _matches(pattern, place.node, bound)
        place.replace(_Substitute(bound).visit(replacement))


@dataclass(frozen=True)
class Mutant:
    """One deliberate error.

    Attributes
    ----------
    name : str
        Identifier, unique in the registry.
    description : str
        The error as a sentence.
    target : str
        The function or class to change, as `"module:qualified.name"`.
    tests : tuple of str
        Files below `tests/` that should notice it, quick ones first.
    change : Rewrite or callable
        A rewrite of the function's source, or a function from the original to the broken version.
    """

    name: str
    description: str
    target: str
    tests: tuple[str, ...]
    change: Rewrite | Replacement

    @property
    def module(self) -> str:
        """Dotted name of the module to change."""
        return self.target.partition(":")[0]

    @property
    def qualified_name(self) -> str:
        """Name of the function inside its module, with the classes or functions around it."""
        return self.target.partition(":")[2]

    @cached_property
    def path(self) -> Path:
        """Source file of the module."""
        stem = ROOT / "src" / Path(*self.module.split("."))
        return stem / "__init__.py" if stem.is_dir() else stem.with_suffix(".py")

    def check(self) -> None:
        """Raise `MutantError` if the mutant does not change the present source, or names tests that do not exist."""
        self.source()
        for test in self.tests:
            if not (ROOT / "tests" / test).is_file():
                raise MutantError(f"{self.name}: there is no tests/{test}.")

    def source(self) -> str:
        """Return the source code of the module with the error in it."""
        if not self.path.is_file():
            raise MutantError(f"{self.name}: there is no module {self.module}.")
        tree = ast.parse(self.path.read_text())
        place = _find(tree, self.qualified_name.split("."))
        if place is None:
            raise MutantError(f"{self.name}: {self.module} has no {self.qualified_name}.")
        if isinstance(self.change, Rewrite):
            before = ast.dump(place.node)
            try:
                self.change.apply(place.node)
            except MutantError as error:
                raise MutantError(f"{self.name}, in {self.target}: {error}") from None
            if ast.dump(place.node) == before:
                raise MutantError(f"{self.name}: the replacement is what {self.target} already computes.")
        else:
            name = self.qualified_name.rpartition(".")[2]
            place.insert_after(ast.parse(f"{name} = __import__('{__name__}', fromlist=['x']).broken({name})").body[0])
        source = ast.unparse(ast.fix_missing_locations(tree))
        compile(source, str(self.path), "exec")
        return source

    @property
    def definition(self) -> str:
        """Text that changes whenever the mutant itself is changed."""
        change = self.change if isinstance(self.change, Rewrite) else inspect.getsource(self.change)
        return f"{self.target} {change}"


REGISTRY: dict[str, Mutant] = {}
"""All mutants by name, filled by the modules of `benchmarks.validate.mutants`."""


def rewrite(
    name: str,
    target: str,
    pattern: str,
    replacement: str,
    description: str,
    tests: Sequence[str],
    occurrence: int | None = None,
) -> None:
    """Register a mutant that replaces one expression or statement."""
    _register(Mutant(name, description, target, tuple(tests), Rewrite(pattern, replacement, occurrence)))


def mutant(target: str, tests: Sequence[str]) -> Callable[[Replacement], Replacement]:
    """Register the decorated function as a mutant; its docstring is the description."""

    def register(change: Replacement) -> Replacement:
        _register(Mutant(change.__name__, inspect.cleandoc(change.__doc__ or ""), target, tuple(tests), change))
        return change

    return register


def _register(new: Mutant) -> None:
    if new.name in REGISTRY:
        raise ValueError(f"there are two mutants named {new.name}.")
    REGISTRY[new.name] = new


def broken(original: Any) -> Any:
    """Return the replacement of a function by the mutant that the environment names."""
    change = REGISTRY[os.environ[VARIABLE]].change
    assert not isinstance(change, Rewrite)
    return change(original)


def install(selected: Mutant) -> None:
    """Let the import system see the changed source of the mutant's module.

    Replaces two methods of `SourceFileLoader`, from which the loader of jaxtyping's import hook inherits: mutants work
    with and without run-time type checks, in whichever order the hooks are installed.
    """
    path, source = selected.path.resolve(), selected.source().encode()
    get_data, path_stats = SourceFileLoader.get_data, SourceFileLoader.path_stats

    def is_target(other: str) -> bool:
        return Path(other).name == path.name and Path(other).resolve() == path

    def changed_data(self: SourceFileLoader, other: str) -> bytes:
        return source if is_target(other) else get_data(self, other)

    def no_stats(self: SourceFileLoader, other: str) -> Any:
        if is_target(other):
            raise OSError("no bytecode of a changed module is read or written")
        return path_stats(self, other)

    SourceFileLoader.get_data = changed_data  # type: ignore[method-assign, assignment]
    SourceFileLoader.path_stats = no_stats  # type: ignore[method-assign, assignment]


@dataclass
class _Place:
    """A node of a syntax tree and where it stands in its parent."""

    node: ast.AST
    parent: ast.AST
    field: str
    index: int | None

    def replace(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node

    def insert_after(self, node: ast.stmt) -> None:
        assert self.index is not None
        getattr(self.parent, self.field).insert(self.index + 1, node)


def _children(node: ast.AST) -> Iterator[_Place]:
    """Yield every node below a node, parents first."""
    for field, value in ast.iter_fields(node):
        entries = list(enumerate(value)) if isinstance(value, list) else [(None, value)]
        for index, child in entries:
            if isinstance(child, ast.AST):
                yield _Place(child, node, field, index)
                yield from _children(child)


def _find(tree: ast.AST, names: Sequence[str]) -> _Place | None:
    """Return the definition with a qualified name; the last one, as for overloads."""
    located = None
    for place in _children(tree):
        is_definition = isinstance(place.node, ast.FunctionDef | ast.ClassDef)
        if is_definition and place.node.name == names[0]:  # type: ignore[attr-defined]
            located = place if len(names) == 1 else _find(place.node, names[1:]) or located
    return located


def _parsed(code: str) -> ast.AST:
    statement = ast.parse(code).body[0]
    return statement.value if isinstance(statement, ast.Expr) else statement


def _matches(pattern: Any, node: Any, bound: dict[str, ast.AST]) -> bool:
    """Return whether a node has the shape of a pattern; wildcards are added to `bound`."""
    if isinstance(pattern, ast.Name) and _WILDCARD.fullmatch(pattern.id):
        if not isinstance(node, ast.expr):
            return False
        return pattern.id == "_" or _matches(bound.setdefault(pattern.id, node), node, {})
    if isinstance(pattern, ast.AST):
        fields = [field for field in pattern._fields if field not in _IGNORED_FIELDS]
        return type(pattern) is type(node) and all(
            _matches(getattr(pattern, field, None), getattr(node, field, None), bound) for field in fields
        )
    if isinstance(pattern, list):
        return (
            isinstance(node, list)
            and len(pattern) == len(node)
            and all(_matches(one, other, bound) for one, other in zip(pattern, node, strict=True))
        )
    return type(pattern) is type(node) and pattern == node


class _Substitute(ast.NodeTransformer):
    def __init__(self, bound: dict[str, ast.AST]):
        self.bound = bound

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return copy.deepcopy(self.bound[node.id]) if node.id in self.bound else node
