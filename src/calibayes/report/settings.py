"""Settings of a loaded result, which are kept in a file as text, made into what they were."""

import ast
from typing import Any

from calibayes import bootstrap, kernels, samplers
from calibayes.io import Written
from calibayes.solve import search

_KNOWN = {name: cls for room in (bootstrap, kernels, samplers, search) for name, cls in vars(room).items()}


def revived(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings as they were, where their text says all of it."""
    return {name: _revive(value) if isinstance(value, Written) else value for name, value in settings.items()}


def _revive(text: Written) -> Any:
    try:
        return _made(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, KeyError, TypeError):
        return text


def _made(node: ast.expr) -> Any:
    """A literal, or one of the library's own objects."""
    if not isinstance(node, ast.Call):
        return ast.literal_eval(node)
    if not isinstance(node.func, ast.Name) or not isinstance(_KNOWN[node.func.id], type):
        raise ValueError("not a class of the library")
    named = {word.arg: _made(word.value) for word in node.keywords if word.arg is not None}
    return _KNOWN[node.func.id](*map(_made, node.args), **named)
