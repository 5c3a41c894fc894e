"""Expressions in formulas, such as `log(a + 1)` and `C(b, Treatment("x"))`, without running them as Python.

An expression is parsed by `ast` and compiled to nested functions of a table. The compiler has a rule for each allowed
form and rejects every other form before anything is computed, so that a formula can only read columns and call the
functions that are listed here. Arithmetic is in double precision, also with integers: a power cannot exhaust memory.
"""

import ast
import keyword
import operator
import re
import unicodedata
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from calibayes.tables.files import DataFrame
from calibayes.tables.wording import option


@dataclass(frozen=True)
class ExpressionConfig:
    """Limits of an expression. Expressions in practice are far below them; order-of-magnitude choices."""

    max_length: int = 1_000
    """Number of characters."""
    max_depth: int = 30
    """Depth of nested operators and calls."""
    max_columns: int = 50
    """Largest degree of a polynomial, and largest number of degrees of freedom of a spline."""
    max_displayed: int = 60
    """Number of characters of an expression that an error message quotes."""


CONFIG = ExpressionConfig()

Evaluate = Callable[[DataFrame], object]
"""Function that computes the value of a part of an expression from the table."""

_UNARY = (
    *("abs", "exp", "exp2", "expm1", "log", "log10", "log1p", "log2", "sqrt", "cbrt", "square", "sign"),
    *("sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "floor", "ceil"),
)
_ELEMENTWISE = dict.fromkeys(_UNARY, 1) | {"maximum": 2, "minimum": 2, "power": 2}
"""Functions of NumPy with the number of their arguments; also written as `np.log`."""
_SPLINE = ("df", "knots", "lower_bound", "upper_bound", "constraints")
_TRANSFORMS = {
    "I": (),
    "center": (),
    "scale": ("center", "scale", "ddof"),
    "standardize": ("center", "rescale", "ddof"),
    "poly": ("degree", "raw"),
    "bs": ("df", "knots", "degree", "include_intercept", "lower_bound", "upper_bound", "extrapolation"),
    "cr": _SPLINE,
    "cs": _SPLINE,
    "cc": _SPLINE,
}
"""Transforms of formulaic with their options, which must be literals."""
_CATEGORICAL = ("contrasts", "levels", "spans_intercept")
"""Options of `C`."""
_CONTRASTS = {
    "Treatment": ("reference",),
    "Sum": (),
    "Helmert": ("reverse", "scale"),
    "Diff": ("backward",),
    "Poly": ("scores",),
    "contr.treatment": ("base",),
    "contr.SAS": ("base",),
    "contr.sum": (),
    "contr.helmert": ("reverse", "scale"),
    "contr.diff": ("backward",),
    "contr.poly": ("scores",),
}
"""Contrasts of formulaic with their options."""
_SIZES = ("df", "degree")
"""Options that determine a number of columns."""

_ARITHMETIC: dict[type[ast.AST], Callable[..., object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_LOGICAL: dict[type[ast.AST], Callable[..., object]] = {
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.Invert: operator.invert,
}
_COMPARISONS: dict[type[ast.AST], Callable[..., object]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_LITERAL_NODES = (ast.Constant, ast.List, ast.Tuple, ast.UnaryOp, ast.USub, ast.UAdd, ast.Load)


def allowed() -> str:
    """Return the sentences of the error message about an expression that is not allowed."""
    return (
        "A formula may contain column names, numbers, the formula operators, C(column), I(...) of arithmetic and "
        f"comparisons, and the functions {', '.join([*_ELEMENTWISE, *list(_TRANSFORMS)[1:]])}. To run any Python "
        f"expression, add {option('--allow-python')}; do so only for a formula that you trust."
    )


@dataclass(frozen=True)
class Expression:
    """A part of a formula that is computed from columns.

    Attributes
    ----------
    text : str
        The expression in a normal form, as formulaic writes it.
    columns : frozenset of str
        Names in the expression that must be columns of the table.
    evaluate : callable
        Function from the table to the values of the expression.
    """

    text: str
    columns: frozenset[str]
    evaluate: Evaluate


def parse_expression(text: str) -> Expression:
    """Parse an expression.

    Parameters
    ----------
    text : str
        Call of a function, such as `log(a)`. Column names may be quoted in backticks.

    Returns
    -------
    Expression

    Raises
    ------
    ValueError
        If the expression is not valid or not allowed.
    """
    if len(text) > CONFIG.max_length:
        raise ValueError(f"{option('--formula')}: {shorten(text)} is longer than {CONFIG.max_length:,} characters.")
    code, aliases = _replace_quoted_names(text)
    if unicodedata.normalize("NFKC", code) != code:
        # Python would normalize the names, and could so refer to another column.
        raise ValueError(
            f"{option('--formula')}: {shorten(text)} contains characters, such as ligatures, that Python replaces "
            "by others in names (Unicode NFKC). Put the names of columns in backticks."
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else "it is not valid"
        raise ValueError(f"{option('--formula')}: {shorten(text)} cannot be parsed: {reason}.") from None
    compiler = _Compiler(aliases)
    evaluate = compiler.compile_factor(tree)
    if not compiler.columns:
        raise ValueError(f"{option('--formula')}: {shorten(text)} has no column.")
    return Expression(compiler.source(tree), frozenset(compiler.columns), evaluate)


def shorten(text: str) -> str:
    """Return an expression as an error message quotes it, on one line."""
    text = " ".join(text.split())
    return text if len(text) <= CONFIG.max_displayed else f"{text[: CONFIG.max_displayed]}..."


def _replace_quoted_names(text: str) -> tuple[str, dict[str, str]]:
    """Replace names in backticks by Python identifiers; return the text and the names by identifier."""
    stem = "quoted"
    while stem in text:
        stem += "_"
    aliases: dict[str, str] = {}

    def replace(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None:
            return match[0]
        if name.isidentifier() and not keyword.iskeyword(name) and unicodedata.normalize("NFKC", name) == name:
            return f" {name} "
        alias = f"{stem}{len(aliases)}"
        aliases[alias] = name
        return f" {alias} "

    string = r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\""
    return re.sub(rf"{string}|`(?P<name>[^`]+)`", replace, text), aliases


class _Compiler:
    """Compile a parsed expression, and record the names of its columns.

    Parameters
    ----------
    aliases : mapping of str to str
        Column names by the identifiers that replace them.
    """

    def __init__(self, aliases: Mapping[str, str]):
        self.aliases = aliases
        self.columns: set[str] = set()

    def source(self, node: ast.AST) -> str:
        """Return a part of the expression as text."""
        text = ast.unparse(node).replace("\n", " ")
        for alias, name in reversed([*self.aliases.items()]):
            text = text.replace(alias, f"`{name}`")
        return text

    def compile_factor(self, node: ast.expr) -> Evaluate:
        """Compile the outermost node of a factor. It must be a call; only here may it be `C(...)`."""
        if not isinstance(node, ast.Call):
            raise self._rejection(node)
        if _dotted_name(node.func) == "C":
            return self._categorical(node)
        return self._compile(node, 0)

    def _rejection(self, node: ast.AST) -> ValueError:
        try:
            text = shorten(self.source(node))
        except (RecursionError, ValueError):
            text = "a part of the formula"
        return ValueError(f"{option('--formula')}: {text} is not allowed. {allowed()}")

    def _compile(self, node: ast.expr, depth: int) -> Evaluate:
        if depth > CONFIG.max_depth:
            raise ValueError(f"{option('--formula')}: an expression is nested more than {CONFIG.max_depth} deep.")
        match node:
            case ast.Constant():
                return self._number(node)
            case ast.Name():
                return self._column(self.aliases.get(node.id, node.id))
            case ast.UnaryOp():
                return self._operation(node, node.op, [node.operand], depth)
            case ast.BinOp():
                return self._operation(node, node.op, [node.left, node.right], depth)
            case ast.Compare(ops=[comparison], comparators=[right]) if type(comparison) in _COMPARISONS:
                compare = _COMPARISONS[type(comparison)]
                a, b = (self._comparand(side, depth + 1) for side in (node.left, right))
                return lambda frame: compare(a(frame), b(frame))
            case ast.Call():
                return self._call(node, depth)
        raise self._rejection(node)

    def _number(self, node: ast.Constant) -> Evaluate:
        if type(node.value) not in (int, float):
            raise self._rejection(node)
        try:
            number = float(node.value)  # type: ignore[arg-type]
        except OverflowError:
            number = np.inf
        if not np.isfinite(number) or number != node.value:
            raise ValueError(f"{option('--formula')}: the number {shorten(self.source(node))} is too large.")
        return lambda _: number

    def _column(self, name: str) -> Evaluate:
        self.columns.add(name)
        return lambda frame: frame[name]

    def _operation(self, node: ast.expr, symbol: ast.AST, operands: list[ast.expr], depth: int) -> Evaluate:
        parts = [self._compile(operand, depth + 1) for operand in operands]
        if type(symbol) in _LOGICAL:
            combine = _LOGICAL[type(symbol)]
            return lambda frame: combine(*(part(frame) for part in parts))
        if type(symbol) not in _ARITHMETIC:
            raise self._rejection(node)
        calculate = _ARITHMETIC[type(symbol)]
        return lambda frame: calculate(*(_as_float(part(frame)) for part in parts))

    def _comparand(self, node: ast.expr, depth: int) -> Evaluate:
        """Compile one side of a comparison, which may be a string."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            return lambda _: text
        return self._compile(node, depth)

    def _call(self, node: ast.Call, depth: int) -> Evaluate:
        name = _dotted_name(node.func)
        if name == "Q":
            return self._quoted_column(node)
        module, _, function = name.rpartition(".")
        if function in _ELEMENTWISE and module in ("", "np", "numpy"):
            if node.keywords or len(node.args) != _ELEMENTWISE[function]:
                raise self._rejection(node)
            parts = [self._compile(argument, depth + 1) for argument in node.args]
            ufunc = getattr(np, function)
            return lambda frame: ufunc(*(_as_float(part(frame)) for part in parts))
        if name not in _TRANSFORMS or not node.args:
            raise self._rejection(node)
        data = self._compile(node.args[0], depth + 1)
        options = self._options(node, node.args[1:], _TRANSFORMS[name])
        return lambda frame: _transform(name)(data(frame), **options)

    def _quoted_column(self, node: ast.Call) -> Evaluate:
        """Compile `Q("name")`, the column of that name."""
        match node:
            case ast.Call(args=[ast.Constant(value=str(name))], keywords=[]):
                return self._column(name)
        raise self._rejection(node)

    def _categorical(self, node: ast.Call) -> Evaluate:
        if not node.args:
            raise self._rejection(node)
        data = self._compile(node.args[0], 1)
        contrasts = None
        options = self._bind(node, node.args[1:], _CATEGORICAL)
        if "contrasts" in options:
            contrasts = self._contrasts(options.pop("contrasts"))
        literals = {name: self._literal(value) for name, value in options.items()}
        levels = literals.get("levels")

        def evaluate(frame: DataFrame) -> object:
            values = data(frame)
            if isinstance(levels, list | tuple):
                _require_levels(values, levels)
            return _transform("C")(values, None if contrasts is None else contrasts(), **literals)

        return evaluate

    def _contrasts(self, node: ast.expr) -> Callable[[], object]:
        function = node.func if isinstance(node, ast.Call) else node
        name = _dotted_name(function)
        if name not in _CONTRASTS:
            raise self._rejection(node)
        options = self._options(node, node.args, _CONTRASTS[name]) if isinstance(node, ast.Call) else {}
        return lambda: _transform(name)(**options)

    def _options(self, node: ast.Call, positional: list[ast.expr], names: tuple[str, ...]) -> dict[str, object]:
        """Return the options of a call as literals by name."""
        options = {name: self._literal(value) for name, value in self._bind(node, positional, names).items()}
        for name in _SIZES:
            size = options.get(name)
            if size is not None and not (type(size) is int and size <= CONFIG.max_columns):
                raise ValueError(
                    f"{option('--formula')}: {name} in {shorten(self.source(node))} must be at most "
                    f"{CONFIG.max_columns}."
                )
        return options

    def _bind(self, node: ast.Call, positional: list[ast.expr], names: tuple[str, ...]) -> dict[str, ast.expr]:
        """Return the arguments of a call by name."""
        keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None}
        bound = dict(zip(names, positional, strict=False))
        if len(positional) > len(names) or len(keywords) < len(node.keywords) or keywords.keys() & bound:
            raise self._rejection(node)
        if not keywords.keys() <= {*names}:
            raise self._rejection(node)
        return bound | keywords

    def _literal(self, node: ast.expr) -> object:
        for part in ast.walk(node):
            if not isinstance(part, _LITERAL_NODES):
                raise self._rejection(node)
            if isinstance(part, ast.Constant) and not isinstance(part.value, str | int | float | None):
                raise self._rejection(node)
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError):
            raise self._rejection(node) from None


def _dotted_name(node: ast.expr) -> str:
    """Return `a` or `a.b` for such a node, and an empty text for any other."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=module), attr=name):
            return f"{module}.{name}"
    return ""


def _transform(name: str) -> Callable[..., object]:
    """Return a transform or a class of contrasts of formulaic."""
    from formulaic.transforms import TRANSFORMS

    module, _, attribute = name.rpartition(".")
    return getattr(TRANSFORMS[module], attribute) if module else TRANSFORMS[name]


def _as_float(value: object) -> object:
    """Convert numbers and booleans to double precision; integers would overflow silently."""
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    return value.astype(float) if kind in ("b", "i", "u", "f") else value  # type: ignore[attr-defined]


def _require_levels(values: object, levels: Sequence[object]) -> None:
    """Raise an error if a category is not among the levels; formulaic would take it for the reference category."""
    missing = [str(value) for value in dict.fromkeys(np.asarray(values).tolist()) if value not in levels]
    if missing:
        raise ValueError(f"levels={list(levels)} of C(...) lacks {', '.join(missing[:3])}.")
