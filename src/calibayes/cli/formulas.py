"""What a formula makes of a table, by formulaic."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from calibayes.cli.tables import Chosen, complete, require_columns, varying


def by_formula(frame: Any, target: str | None, formula: str, cluster: str | None, drop_missing: bool) -> Chosen:
    try:
        from formulaic import Formula, SimpleFormula, model_matrix
        from formulaic.errors import FormulaicError
    except ImportError as error:
        raise ImportError("--formula needs formulaic: pip install 'calibayes[tables]'.") from error

    def matrix(side: Any) -> Any:
        # Without a context a formula would see the variables of this function; infinite values are told of later.
        with np.errstate(all="ignore"):
            return model_matrix(side, frame, context={}, na_action="ignore")

    # What "." stands for.
    others = [name for name in frame.columns if name not in (target, cluster)]
    try:
        parsed = Formula.from_spec(formula, context={"__formulaic_variables_available__": others})
        left, right = getattr(parsed, "lhs", None), getattr(parsed, "rhs", parsed)
        if not (
            isinstance(right, SimpleFormula) and (left is None or (isinstance(left, SimpleFormula) and len(left) == 1))
        ):
            raise ValueError('--formula must predict one column, "y ~ a + b".')
        factors = [factor.expr for side in (left or [], right) for term in side for factor in term.factors]
        used = _variables(factors, frame.columns)
        predicted = target if left is None else str(left)
        if predicted is None:
            raise ValueError("--target, or the left side of the formula, says which column to predict.")
        if target not in (None, predicted):
            raise ValueError(f"--target is {target}, but the formula is for {predicted}: leave --target out.")
        known = [predicted] if predicted in frame.columns else []
        frame, dropped = complete(frame, [*known, *used, *([cluster] if cluster else [])], drop_missing)
        y = frame[predicted] if known else matrix(left).squeeze(axis=1)
        if y.ndim != 1:
            raise ValueError(f"--formula: {predicted} is {y.shape[1]} columns, and must be one.")
        table = matrix(right)
    except FormulaicError as error:
        require_columns(frame, _unknown(str(error)))
        raise ValueError(f"--formula: {_plain(error)}") from None
    names = [str(name) for name in table.columns]
    values = table.to_numpy(float)
    intercept = "Intercept" in names
    if intercept:
        values = np.delete(values, names.index("Intercept"), axis=1)
        names.remove("Intercept")
    names, values, constant = varying(names, values, intercept)
    groups = None if cluster is None else frame[cluster]
    return Chosen(predicted, y, names, values, intercept, groups, dropped + constant)


def _variables(factors: Sequence[str], columns: Any) -> list[str]:
    """Columns that the factors of a formula are made from."""
    words = {word.strip("`") for factor in factors for word in re.findall(r"`[^`]+`|(?<![\w.])\w+(?!\w*\()", factor)}
    return [name for name in columns if name in words or name in factors]


def _unknown(message: str) -> list[str]:
    """The column that a formula's error is about, if it is about one."""
    return re.findall(r"NameError: (?:`|name ')([^`']+)[`']", message)


def _plain(error: Exception) -> str:
    """An error of formulaic's on one line, without its colours."""
    return " ".join(re.sub(r"\x1b\[[\d;]*m|[⧛⧚]", "", str(error)).split())
