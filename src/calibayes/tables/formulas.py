"""Select target and predictors from a table by a formula, with the package formulaic.

formulaic runs the Python expressions of a formula by `eval`. A formula may come from someone else, as a table may, so
that its expressions are replaced by names before formulaic parses it, and are computed by
`calibayes.tables.expressions`, which allows a fixed list of functions. Only with `allow_python`, formulaic receives the
formula as it is.
"""

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from calibayes._backend.memory import require_memory
from calibayes.tables.columns import (
    Roles,
    Selection,
    drop_constant_columns,
    drop_incomplete_rows,
    list_names,
    require_columns,
)
from calibayes.tables.expressions import Expression, allowed, parse_expression, shorten
from calibayes.tables.files import DataFrame
from calibayes.tables.wording import option

if TYPE_CHECKING:
    from formulaic import ModelSpec, SimpleFormula
    from formulaic.parser.types import Token
else:
    # formulaic is an optional dependency, so that its types are not available at run time.
    ModelSpec = SimpleFormula = Token = Any


@dataclass(frozen=True)
class FormulaConfig:
    """Limits of a formula. Formulas in practice are far below them; order-of-magnitude choices."""

    max_length: int = 20_000
    """Number of characters."""
    max_terms: int = 100_000
    """Largest number of terms, counted before duplicates are removed: `(a + b + c)**10` counts as 3**10 = 59,049."""


CONFIG = FormulaConfig()


@dataclass(frozen=True)
class ParsedFormula:
    """Both sides of a formula.

    Attributes
    ----------
    left : SimpleFormula or None
        The target; None if the formula has only a right side.
    right : SimpleFormula
        The predictors.
    columns : list of str
        The columns that the formula uses.
    expressions : dict of str to Expression
        The expressions that calibayes evaluates itself, keyed by their text.
    placeholders : dict of str to str
        Names that replace those of columns in both sides, keyed by the names of the columns.
    """

    left: SimpleFormula | None
    right: SimpleFormula
    columns: list[str]
    expressions: dict[str, Expression] = field(default_factory=dict)
    placeholders: dict[str, str] = field(default_factory=dict)

    def restore(self, text: str) -> str:
        """Return a text in which names of columns replace their placeholders."""
        for name, placeholder in self.placeholders.items():
            text = text.replace(placeholder, name)
        return text


def select_by_formula(
    frame: DataFrame, target: str | None, formula: str, roles: Roles, drop_missing: bool, allow_python: bool
) -> Selection:
    """Return the target and the predictors of a formula; see `columns.select_columns`."""
    try:
        import formulaic  # noqa: F401
    except ImportError as error:
        raise ImportError("a formula needs formulaic: pip install 'calibayes[tables]'.") from error
    dot_columns = [name for name in frame.columns if name not in (target, *roles.names)]
    parsed = (_parse_with_python if allow_python else _parse)(formula, frame, dot_columns)
    response = _target_name(target, None if parsed.left is None else parsed.restore(str(parsed.left)))
    is_column = response in frame.columns
    used = [*([response] if is_column else []), *parsed.columns, *roles.names]
    frame, row_notes = drop_incomplete_rows(frame, used, drop_missing)
    frame, level_notes = _drop_unused_categories(frame, [name for name in parsed.columns if name != response])
    y = frame[response] if is_column else _model_matrix(parsed.left or [], frame, parsed).squeeze(axis=1)
    if y.ndim != 1:
        raise ValueError(f"{option('--formula')}: the target {response} has {y.shape[1]} columns; it must have one.")
    matrix = _model_matrix(parsed.right, frame, parsed)
    names = [str(name) for name in matrix.columns]
    with _formulaic_errors(frame):
        values = matrix.to_numpy(float)
    intercept = "Intercept" in names
    if intercept:
        values = np.delete(values, names.index("Intercept"), axis=1)
        names.remove("Intercept")
    names = [parsed.restore(name) for name in names]
    names, values, column_notes = drop_constant_columns(names, values, intercept)
    return Selection(
        response,
        y,
        names,
        values,
        intercept,
        notes=row_notes + level_notes + column_notes,
        roles=roles,
        formula=formula if "~" in formula else f"{response} ~ {formula}",
        reference_categories=_reference_categories(matrix.model_spec, parsed),
        **roles.select(frame),
    )


def _drop_unused_categories(frame: DataFrame, names: Sequence[str]) -> tuple[DataFrame, list[str]]:
    """Return the table without categories that no row has, and notes about them.

    As the reference category, such a category would make the others linearly dependent.
    """
    notes = []
    for name in names:
        column = frame[name]
        if column.dtype.name != "category":
            continue
        used = column.cat.remove_unused_categories()
        unused = [str(value) for value in column.cat.categories if value not in used.cat.categories]
        if unused:
            frame = frame.copy(deep=False)
            frame[name] = used
            notes.append(f"dropped categories of {name} that no row has: {list_names(unused)}")
    return frame, notes


def _reference_categories(spec: ModelSpec, parsed: ParsedFormula) -> dict[str, str]:
    """Return the category with which the others are compared, by the name of the column.

    A column has none if each of its categories has a coefficient of its own, as without an intercept, or if its
    contrasts compare with something else, such as the mean of all categories.
    """
    from formulaic.transforms.contrasts import TreatmentContrasts

    contrasts = {factor.expr: state for factor, state in spec.factor_contrasts.items()}
    scoped_factors = [scoped for term in spec.structure for part in term.scoped_terms for scoped in part.factors]
    references: dict[str, str] = {}
    for expression in dict.fromkeys(scoped.factor.expr for scoped in scoped_factors if scoped.reduced):
        state = contrasts.get(expression)
        if state is not None and isinstance(state.contrasts, TreatmentContrasts) and len(state.levels) > 1:
            text = parsed.restore(expression)
            only_column = re.fullmatch(r"C\((`[^`]+`|\w+)(,.*)?\)", text, re.DOTALL)
            name = text if only_column is None else only_column[1].strip("`")
            category = str(state.contrasts.get_coefficient_row_names(state.levels)[0])
            # A formula may contain a column twice, with different reference categories.
            references[name if references.get(name, category) == category else text] = category
    return references


def _parse(formula: str, frame: DataFrame, dot_columns: Sequence[str]) -> ParsedFormula:
    """Parse a formula whose expressions are all allowed; "." means `dot_columns` without those on the left side."""
    if len(formula) > CONFIG.max_length:
        raise ValueError(
            f"{option('--formula')} is longer than {CONFIG.max_length:,} characters. Use . for all other columns."
        )
    if formula.rstrip().endswith("~"):
        raise ValueError(f'{option("--formula")} has no right side. For a model with only an intercept write "y ~ 1".')
    if "``" in formula or "{}" in formula:
        # formulaic would ignore them.
        raise ValueError(f"{option('--formula')} has empty backticks or braces. Remove them.")
    placeholders = _placeholders(frame)
    text, expressions = _replace_expressions(formula, frame, placeholders)
    names = {placeholders.get(name, name): name for name in frame.columns}
    left, right = _parse_terms(text, frame, [placeholders.get(name, name) for name in dot_columns])
    on_left = _columns(left or [], expressions, names)
    if not on_left.isdisjoint(dot_columns):
        others = [placeholders.get(name, name) for name in dot_columns if name not in on_left]
        left, right = _parse_terms(text, frame, others)
    used = on_left | _columns(right, expressions, names)
    return ParsedFormula(
        None if left is None else _restore(left, expressions),
        _restore(right, expressions),
        [name for name in frame.columns if name in used],
        {expression.text: expression for expression in expressions.values()},
        placeholders,
    )


def _placeholders(frame: DataFrame) -> dict[str, str]:
    """Return names that replace those of columns which formulaic would take for a number or for the intercept.

    formulaic compares the factors of a formula by their text, also if names are in backticks.
    """
    stem = _unused_stem("column", frame)
    ambiguous = [name for name in frame.columns if _is_ambiguous(name)]
    return {name: f"{stem}{i}_" for i, name in enumerate(ambiguous)}


def _is_ambiguous(name: str) -> bool:
    return name == "Intercept" or re.fullmatch(r"[\d.]+", name) is not None


def _unused_stem(stem: str, frame: DataFrame) -> str:
    """Return a beginning of new names that no name of a column contains."""
    while any(stem in name for name in frame.columns):
        stem += "_"
    return stem


def _replace_expressions(
    formula: str, frame: DataFrame, placeholders: dict[str, str]
) -> tuple[str, dict[str, Expression]]:
    """Return a formula of names, numbers and operators only, and the expressions by the names that replace them."""
    from formulaic.parser.algos.tokenize import tokenize

    with _formulaic_errors(frame):
        tokens = list(tokenize(formula))
    stem = _unused_stem("expression", frame)
    names: dict[str, str] = {}
    expressions: dict[str, Expression] = {}
    text, position = "", 0
    for token in tokens:
        expression = _check_token(token, formula, frame)
        name = placeholders.get(token.token) if token.kind.value == "name" else None
        if expression is not None:
            name = names.setdefault(expression.text, f"{stem}{len(names)}")
            expressions[name] = expression
        if name is not None:
            text, position = f"{text}{formula[position : token.source_start]}`{name}`", token.source_end + 1
            # The position of a name does not include its closing backtick.
            position += formula[token.source_start] == "`"
    text += formula[position:]
    if any(token.kind.value == "python" for token in tokenize(text)):
        raise ValueError(f"{option('--formula')}: {shorten(formula)} is not allowed. {allowed()}")
    return text, expressions


def _check_token(token: Token, formula: str, frame: DataFrame) -> Expression | None:
    """Raise an error for a token that is not allowed; return the expression that it holds, if it holds any."""
    kind = token.kind.value
    if kind == "python":
        if formula[token.source_start] == "{":
            raise ValueError(
                f"{option('--formula')}: {{{shorten(token.token)}}} is not allowed: write I(...). {allowed()}"
            )
        expression = parse_expression(token.token)
        require_columns(frame, sorted(expression.columns))
        if expression.text in frame.columns:
            raise ValueError(
                f"{option('--formula')}: {expression.text} is also the name of a column. Rename this column."
            )
        return expression
    if kind == "name":
        require_columns(frame, [token.token])
    elif kind == "value" and not re.fullmatch(r"\.|\d{1,15}(\.\d{0,15})?|\.\d{1,15}", token.token):
        raise ValueError(f"{option('--formula')}: {shorten(token.token)} is not a term. {allowed()}")
    return None


def _parse_terms(
    formula: str, frame: DataFrame, dot_columns: Sequence[str]
) -> tuple[SimpleFormula | None, SimpleFormula]:
    """Return the left side, None without one, and the right side, in which "." means all `dot_columns`."""
    from formulaic import Formula, SimpleFormula
    from formulaic.parser import DefaultFormulaParser

    context = {"__formulaic_variables_available__": dot_columns}
    with _formulaic_errors(frame):
        _require_few_terms(DefaultFormulaParser().get_ast(formula, context=context), len(dot_columns))
        parsed = Formula.from_spec(formula, context=context)
    left, right = getattr(parsed, "lhs", None), getattr(parsed, "rhs", parsed)
    has_one_target = left is None or (isinstance(left, SimpleFormula) and len(left) == 1)
    if not (isinstance(right, SimpleFormula) and has_one_target):
        raise ValueError(f'{option("--formula")} must predict one column, as in "y ~ a + b".')
    return left, right


def _require_few_terms(tree: Any, n_others: int) -> None:
    """Raise an error if the operators of a formula expand to too many terms."""
    nodes = [tree]
    for node in nodes:
        nodes.extend(getattr(node, "args", ()))
    counts: dict[int, int] = {}
    for node in reversed(nodes):
        sizes = [counts[id(part)] for part in getattr(node, "args", ())]
        match str(getattr(node, "operator", "")), sizes:
            case ".", _:
                size = n_others
            case "*", [a, b]:
                size = a + b + a * b
            case ":", [a, b]:
                size = a * b
            case (("**" | "^"), [a, _]):
                exponent = str(node.args[1])
                size = max(a, 2) ** min(int(exponent), 64) if exponent.isdecimal() else a
            case _:
                size = sum(sizes) if sizes else 1
        if size > CONFIG.max_terms:
            raise ValueError(f"its operators expand to more than {CONFIG.max_terms:,} terms.")
        counts[id(node)] = size


def _columns(side: SimpleFormula, expressions: dict[str, Expression], names: dict[str, str]) -> set[str]:
    """Return the columns that one side of a formula uses; `names` are those of columns by what stands for them."""
    columns: set[str] = set()
    for factor in _factors(side):
        if factor in expressions:
            columns |= expressions[factor].columns
        elif factor in names:
            columns.add(names[factor])
    return columns


def _factors(side: SimpleFormula) -> list[str]:
    return [factor.expr for term in side for factor in term.factors]


def _restore(side: SimpleFormula, expressions: dict[str, Expression]) -> SimpleFormula:
    """Return one side of a formula with each placeholder replaced by the text of its expression.

    formulaic then looks this text up like the name of a column.
    """
    from formulaic import SimpleFormula
    from formulaic.parser.types import Factor, Term

    def restore(factor: Factor) -> Factor:
        known = expressions.get(factor.expr)
        return factor if known is None else Factor(known.text, eval_method="lookup")

    return SimpleFormula([Term([restore(factor) for factor in term.factors]) for term in side])


def _parse_with_python(formula: str, frame: DataFrame, dot_columns: Sequence[str]) -> ParsedFormula:
    """Parse a formula whose expressions formulaic runs as Python."""
    for name in filter(_is_ambiguous, frame.columns):
        is_among_all = name in dot_columns and re.search(r"(?<![\w`.])\.(?![\w`.])", formula) is not None
        if f"`{name}`" in formula or is_among_all or (name.isidentifier() and re.search(rf"\b{name}\b", formula)):
            raise ValueError(
                f"{option('--formula')}: with {option('--allow-python')}, column {name!r} is ambiguous: it could be a "
                "number or the intercept. Rename it."
            )
    left, right = _parse_terms(formula, frame, dot_columns)
    factors = [*_factors(left or []), *_factors(right)]
    words = {word.strip("`") for factor in factors for word in re.findall(r"`[^`]+`|(?<![\w.])\w+(?!\w*\()", factor)}
    return ParsedFormula(left, right, [name for name in frame.columns if name in words or name in factors])


def _target_name(target: str | None, left: str | None) -> str:
    if left is None:
        if target is None:
            response = option("--target, or the left side of the formula,")
            raise ValueError(f"{response} must name the column to predict.")
        return target
    if target not in (None, left):
        raise ValueError(f"--target is {target}, but the formula predicts {left}: remove --target.")
    return left


def _model_matrix(side: SimpleFormula, frame: DataFrame, parsed: ParsedFormula) -> DataFrame:
    from formulaic import model_matrix

    _require_memory_for_matrix(side, frame.rename(columns=parsed.placeholders))
    # Infinite values are reported later.
    with _formulaic_errors(frame), np.errstate(all="ignore"):
        known = {factor: parsed.expressions[factor] for factor in _factors(side) if factor in parsed.expressions}
        # Without a context the formula could use the variables of this function.
        context = {text: expression.evaluate(frame) for text, expression in known.items()}
        renamed = frame.rename(columns=parsed.placeholders)
        return model_matrix(side, renamed, context=context, na_action="ignore")


def _require_memory_for_matrix(side: SimpleFormula, frame: DataFrame) -> None:
    """Raise an error if the matrix of one side, and its copy as floats, do not fit into memory."""
    n_columns = sum(math.prod(_min_width(factor.expr, frame) for factor in term.factors) for term in side)
    description = f"a matrix of {len(frame):,} rows and {n_columns:,} columns"
    remedy = "Use columns with fewer categories, or merge rare categories."
    require_memory(option("--formula"), 2 * 8 * len(frame) * n_columns, description, remedy)


def _min_width(factor: str, frame: DataFrame) -> int:
    """Return a lower bound of the number of columns of a factor: one per category except the reference category."""
    categorical = re.match(r"C\(\s*(`[^`]+`|\w+)", factor)
    name = (categorical[1] if categorical else factor).strip("`")
    if name not in frame.columns or (not categorical and frame[name].dtype.kind in "biuf"):
        return 1
    return max(frame[name].nunique() - 1, 1)


@contextmanager
def _formulaic_errors(frame: DataFrame) -> Iterator[None]:
    """Turn any error of formulaic, or of the code that it runs, into an error about the formula on one line."""
    try:
        yield
    except Exception as error:
        # An error message of formulaic is its only account of an undefined variable.
        require_columns(frame, re.findall(r"NameError: (?:`|name ')([^`']+)[`']", str(error)))
        message = " ".join(re.sub(r"\x1b\[[\d;]*m|[⧛⧚]", "", str(error)).split())
        raise ValueError(f"{option('--formula')}: {message or type(error).__name__}") from None
