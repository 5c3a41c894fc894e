"""Convert the settings of a loaded result, which a file stores as source text, back to objects."""

import ast
from typing import Any

from calibayes import bootstrap, kernels, methods, samplers
from calibayes.io import StoredSetting
from calibayes.solve.bracket import Bracket
from calibayes.solve.robbins_monro import RobbinsMonro

_CLASSES: dict[str, type] = {
    name: cls
    for module in (bootstrap, kernels, methods, samplers)
    for name, cls in vars(module).items()
    if isinstance(cls, type) and cls.__module__.startswith("calibayes.")
} | {"Bracket": Bracket, "RobbinsMonro": RobbinsMonro}


def parse_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with stored text replaced by the object that it constructs.

    Only literals and constructor calls of classes of this library are evaluated; any other text stays text.
    """
    return {name: _parse(value) if isinstance(value, StoredSetting) else value for name, value in settings.items()}


def _parse(text: StoredSetting) -> Any:
    try:
        return _evaluate(ast.parse(text, mode="eval").body)
    except Exception:
        # The text may come from an edited file: constructors raise errors of many types, and the parser if it is deep.
        return text


def _evaluate(node: ast.expr) -> Any:
    if not isinstance(node, ast.Call):
        return ast.literal_eval(node)
    if not isinstance(node.func, ast.Name):
        raise ValueError("not a class of the library")
    arguments = {keyword.arg: _evaluate(keyword.value) for keyword in node.keywords if keyword.arg is not None}
    return _CLASSES[node.func.id](*map(_evaluate, node.args), **arguments)
