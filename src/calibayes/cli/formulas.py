"""What a formula makes of a table, by formulaic."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from calibayes._backend.memory import require_memory
from calibayes.cli.tables import Selection, complete, require_columns, varying


def by_formula(frame: Any, target: str | None, formula: str, cluster: str | None, drop_missing: bool) -> Selection:
    try:
        from formulaic import Formula, SimpleFormula, model_matrix
        from formulaic.errors import FormulaicError
    except ImportError as error:
        raise ImportError("--formula needs formulaic: pip install 'calibayes[tables]'.") from error

    def matrix(side: Any) -> Any:
        _require_matrix(side, frame)
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
    return Selection(predicted, y, names, values, intercept, groups, dropped + constant)


def _variables(factors: Sequence[str], columns: Any) -> list[str]:
    """Columns that the factors of a formula are made from."""
    words = {word.strip("`") for factor in factors for word in re.findall(r"`[^`]+`|(?<![\w.])\w+(?!\w*\()", factor)}
    return [name for name in columns if name in words or name in factors]


def _require_matrix(side: Iterable[Any], frame: Any) -> None:
    """Room for the matrix of a side, and for a copy in floats. A category that may be the reference is not counted."""
    n_columns = sum(math.prod(_width(factor.expr, frame) for factor in term.factors) for term in side)
    what = f"a matrix of {len(frame):,} rows and {n_columns:,} columns"
    way_out = "Take columns of fewer categories, or merge the rare ones."
    require_memory("--formula", 2 * 8 * len(frame) * n_columns, what, way_out)


def _width(factor: str, frame: Any) -> int:
    """Columns that a factor becomes, at least: one for each category but the first."""
    categories = re.match(r"C\(\s*(`[^`]+`|\w+)", factor)
    name = (categories[1] if categories else factor).strip("`")
    if name not in frame.columns or (not categories and frame[name].dtype.kind in "biuf"):
        return 1
    return max(frame[name].nunique() - 1, 1)


def _unknown(message: str) -> list[str]:
    """The column that a formula's error is about, if it is about one."""
    return re.findall(r"NameError: (?:`|name ')([^`']+)[`']", message)


def _plain(error: Exception) -> str:
    """An error of formulaic's on one line, without its colours."""
    return " ".join(re.sub(r"\x1b\[[\d;]*m|[⧛⧚]", "", str(error)).split())
