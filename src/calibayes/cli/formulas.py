"""Select target and predictors from a table by a formula, with the package formulaic."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from calibayes._backend.memory import require_memory
from calibayes.cli.columns import Selection, drop_constant_columns, drop_incomplete_rows, require_columns
from calibayes.cli.tables import DataFrame


def select_by_formula(
    frame: DataFrame, target: str | None, formula: str, cluster: str | None, drop_missing: bool
) -> Selection:
    """Return the target and the predictors of a formula; see `columns.select_columns`."""
    try:
        from formulaic.errors import FormulaicError
    except ImportError as error:
        raise ImportError("--formula needs formulaic: pip install 'calibayes[tables]'.") from error
    try:
        left, right = _parse(formula, [name for name in frame.columns if name not in (target, cluster)])
        predicted = _target_name(target, left)
        is_column = predicted in frame.columns
        factors = [factor.expr for side in (left or [], right) for term in side for factor in term.factors]
        used = [*([predicted] if is_column else []), *_variables(factors, frame.columns)]
        frame, row_notes = drop_incomplete_rows(frame, [*used, *([cluster] if cluster else [])], drop_missing)
        y = frame[predicted] if is_column else _model_matrix(left, frame).squeeze(axis=1)
        if y.ndim != 1:
            raise ValueError(f"--formula: the target {predicted} has {y.shape[1]} columns; it must have one.")
        matrix = _model_matrix(right, frame)
    except FormulaicError as error:
        require_columns(frame, _undefined_names(str(error)))
        raise ValueError(f"--formula: {_one_line(error)}") from None
    names = [str(name) for name in matrix.columns]
    values = matrix.to_numpy(float)
    intercept = "Intercept" in names
    if intercept:
        values = np.delete(values, names.index("Intercept"), axis=1)
        names.remove("Intercept")
    names, values, column_notes = drop_constant_columns(names, values, intercept)
    groups = None if cluster is None else frame[cluster]
    return Selection(predicted, y, names, values, intercept, groups, row_notes + column_notes)


def _parse(formula: str, others: list[str]) -> tuple[Any, Any]:
    """Return the left side, None without one, and the right side, in which "." means all `others`."""
    from formulaic import Formula, SimpleFormula

    parsed = Formula.from_spec(formula, context={"__formulaic_variables_available__": others})
    left, right = getattr(parsed, "lhs", None), getattr(parsed, "rhs", parsed)
    has_one_target = left is None or (isinstance(left, SimpleFormula) and len(left) == 1)
    if not (isinstance(right, SimpleFormula) and has_one_target):
        raise ValueError('--formula must predict one column, as in "y ~ a + b".')
    return left, right


def _target_name(target: str | None, left: object) -> str:
    if left is None:
        if target is None:
            raise ValueError("--target, or the left side of the formula, must name the column to predict.")
        return target
    if target not in (None, str(left)):
        raise ValueError(f"--target is {target}, but the formula predicts {left}: remove --target.")
    return str(left)


def _model_matrix(side: Iterable[Any], frame: DataFrame) -> DataFrame:
    from formulaic import model_matrix

    _require_memory_for_matrix(side, frame)
    # Without a context the formula could use the variables of this function. Infinite values are reported later.
    with np.errstate(all="ignore"):
        return model_matrix(side, frame, context={}, na_action="ignore")


def _variables(factors: Sequence[str], columns: Iterable[str]) -> list[str]:
    """Return the columns that appear in the factors of a formula."""
    words = {word.strip("`") for factor in factors for word in re.findall(r"`[^`]+`|(?<![\w.])\w+(?!\w*\()", factor)}
    return [name for name in columns if name in words or name in factors]


def _require_memory_for_matrix(side: Iterable[Any], frame: DataFrame) -> None:
    """Raise an error if the matrix of one side, and its copy as floats, do not fit into memory."""
    n_columns = sum(math.prod(_min_width(factor.expr, frame) for factor in term.factors) for term in side)
    description = f"a matrix of {len(frame):,} rows and {n_columns:,} columns"
    remedy = "Use columns with fewer categories, or merge rare categories."
    require_memory("--formula", 2 * 8 * len(frame) * n_columns, description, remedy)


def _min_width(factor: str, frame: DataFrame) -> int:
    """Return a lower bound of the number of columns of a factor: one per category except the reference category."""
    categorical = re.match(r"C\(\s*(`[^`]+`|\w+)", factor)
    name = (categorical[1] if categorical else factor).strip("`")
    if name not in frame.columns or (not categorical and frame[name].dtype.kind in "biuf"):
        return 1
    return max(frame[name].nunique() - 1, 1)


def _undefined_names(message: str) -> list[str]:
    """Return the undefined variable in an error message of formulaic, which has no other account of it."""
    return re.findall(r"NameError: (?:`|name ')([^`']+)[`']", message)


def _one_line(error: Exception) -> str:
    """Return an error message of formulaic on one line, without its colours and markers."""
    return " ".join(re.sub(r"\x1b\[[\d;]*m|[⧛⧚]", "", str(error)).split())
