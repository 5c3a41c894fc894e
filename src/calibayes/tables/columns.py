"""Select target and predictors from a table, and check them.

Every error message names the columns that it is about and an option of the command line that resolves it.
"""

import csv
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

import numpy as np
from jaxtyping import Float

from calibayes.tables.files import NOTES, DataFrame, Series, is_numeric
from calibayes.tables.wording import option


@dataclass(frozen=True)
class MessageConfig:
    """Length of error messages; display choices."""

    max_listed: int = 12
    """Names that a message lists at most: the first ones, and the last two, which are often the targets."""
    max_suggested: int = 8
    """Columns that a suggested command line lists at most."""
    max_categories: int = 20
    """Distinct values up to which a column of text is suggested as a category; more are rather names or dates."""


CONFIG = MessageConfig()


@dataclass(frozen=True)
class Roles:
    """Names of the columns that describe the sampling of the rows, and are not predictors."""

    cluster: str | None = None
    """Column with cluster labels."""
    weights: str | None = None
    """Column with weights."""
    strata: str | None = None
    """Column with stratum labels."""
    survival: tuple[str, ...] = ()
    """Columns with events and, if there are any, times of entry; the target has the times."""

    @property
    def names(self) -> list[str]:
        """Names of these columns."""
        return [*(name for name in (self.cluster, self.weights, self.strata) if name is not None), *self.survival]

    def select(self, frame: DataFrame) -> dict[str, Any]:
        """Return the values of these columns, by the names of the attributes of a `Selection`."""
        return {
            "groups": None if self.cluster is None else frame[self.cluster],
            "strata": None if self.strata is None else frame[self.strata],
            "weights": None if self.weights is None else _weights(frame[self.weights], self.weights),
            "survival": tuple(frame[name] for name in self.survival),
        }


@dataclass(frozen=True)
class Selection:
    """Target, predictors and clusters of a linear model, taken from a table."""

    target: str
    """Name of the target."""
    y: Series
    """Target as a pandas series of numbers or labels."""
    names: list[str]
    """Names of the predictors."""
    columns: Float[np.ndarray, "N P"]
    """Values of the predictors."""
    intercept: bool
    groups: Series | None
    """Cluster labels of the rows as a pandas series; None without clusters."""
    weights: Float[np.ndarray, " N"] | None
    """Weights of the rows; None without weights."""
    strata: Series | None
    """Stratum labels of the rows as a pandas series; None without strata."""
    notes: list[str]
    """Sentences about how the file was read, and about rows and columns that were dropped."""
    survival: tuple[Series, ...] = ()
    """Events and, if there are any, times of entry."""
    roles: Roles = field(default_factory=Roles)
    """Columns that describe the sampling of the rows."""
    formula: str | None = None
    """Formula that selected the columns."""
    reference_categories: dict[str, str] = field(default_factory=dict)
    """Category with which the others are compared, by the name of the categorical column; only of a formula."""

    def description(self) -> dict[str, Any]:
        """Return what a report says about the table, as entries of `Result.settings`."""
        return {
            "target": self.target,
            "formula": self.formula,
            "notes": self.notes,
            "roles": {name: column for name, column in vars(self.roles).items() if column},
            "reference_categories": self.reference_categories,
        }


def select_columns(
    frame: DataFrame,
    target: str | None,
    *,
    columns: str | None = None,
    formula: str | None = None,
    intercept: bool = True,
    roles: Roles | None = None,
    drop_missing: bool = False,
    allow_python: bool = False,
    classes: bool = True,
) -> Selection:
    """Select the target and the predictors: those of a formula, the named ones, or all other columns.

    Parameters
    ----------
    frame : pandas.DataFrame
        The table.
    target : str or None
        Name of the target; None if the formula has a left side.
    columns : str or None
        Names of the predictors, separated by commas. Default: all columns but the target and those of `roles`.
    formula : str or None
        Formula in place of `columns`.
    intercept : bool
        Whether the model has an intercept; with a formula, the formula decides.
    roles : Roles or None
        Columns with clusters, weights and strata. Default: none.
    drop_missing : bool
        Whether to drop rows with missing values instead of raising an error.
    allow_python : bool
        Whether expressions of the formula are run as Python. Default: only a fixed list of functions is allowed.
    classes : bool
        Whether the target may be a column of text, whose values are classes. Default: True.

    Returns
    -------
    Selection

    Raises
    ------
    ValueError
        If options contradict each other, a column does not exist or is not numeric, or values are missing.
    """
    if formula is not None:
        if columns is not None:
            raise ValueError("--columns and --formula both select predictors: use one of them.")
        if not intercept:
            raise ValueError('--no-intercept cannot be combined with --formula: write "y ~ 0 + a".')
    elif allow_python:
        raise ValueError("--allow-python is an option for --formula.")
    roles = Roles() if roles is None else roles
    if formula is not None and is_survival(formula):
        target, formula, roles = _survival_roles(target, formula, roles)
    require_columns(frame, [*([] if target is None else [target]), *roles.names])
    if target is not None and not classes:
        require_numeric_target(frame[target], target)
    if formula is not None:
        from calibayes.tables.formulas import select_by_formula

        selection = select_by_formula(frame, target, formula, roles, drop_missing, allow_python)
    elif target is None:
        raise ValueError(f"--target must name the column to predict: one of {list_names(frame.columns)}.")
    else:
        selection = _select_by_name(frame, target, columns, intercept, roles, drop_missing)
    return replace(selection, notes=[*frame.attrs.get(NOTES, []), *selection.notes])


_NAME = r"\s*(`[^`]+`|[^\W\d]\w*)\s*"
_SURVIVAL = re.compile(rf"\s*Surv\s*\({_NAME},{_NAME}(?:,{_NAME})?\)\s*~(.*)", re.DOTALL)


def is_survival(formula: str) -> bool:
    """Return whether the left side of a formula is meant to be `Surv(...)`."""
    return re.match(r"\s*Surv\s*\(", formula) is not None


def _survival_roles(target: str | None, formula: str, roles: Roles) -> tuple[str, str, Roles]:
    """Return the column of the times, the formula with it as left side, and the roles of the other columns."""
    match = _SURVIVAL.match(formula)
    if match is None:
        raise ValueError(
            f"{option('--formula')}: the left side must be Surv(time, event), or Surv(entry, time, event) for delayed "
            "entry, with names of columns."
        )
    names = [name.strip("`") for name in match.groups()[:3] if name is not None]
    entry, (time, event) = names[:-2], names[-2:]
    if target not in (None, time):
        raise ValueError(f"--target is {target}, but the formula predicts {time}: remove --target.")
    return time, f"{_quote(time)} ~{match[4]}", replace(roles, survival=(event, *entry))


def survival_target(selection: Selection) -> tuple[Float[np.ndarray, " N"], ...]:
    """Return times, events (0 or 1) and times of entry as numbers.

    Raises
    ------
    ValueError
        If a column is not numeric, or events are not 0 or 1, or True or False.
    """
    columns = (selection.y, *selection.survival)
    for column in columns:
        if not (is_numeric(column) or column.dtype.kind == "b"):
            raise ValueError(f"{column.name} must be numeric; it has values such as {_texts(column)[0][0]!r}.")
    return tuple(column.to_numpy(float) for column in columns)


def _select_by_name(
    frame: DataFrame, target: str, columns: str | None, intercept: bool, roles: Roles, drop_missing: bool
) -> Selection:
    if columns is not None:
        names = split_names(columns, frame.columns)
        require_columns(frame, names)
        if target in names:
            raise ValueError(f"--columns contains the target {target!r}, which cannot be a predictor: remove it.")
    else:
        names = [name for name in frame.columns if name not in (target, *roles.names)]
    _require_numeric(frame, target, names)
    frame, row_notes = drop_incomplete_rows(frame, [target, *names, *roles.names], drop_missing)
    values = frame[names].to_numpy(float).reshape(len(frame), len(names))
    names, values, column_notes = drop_constant_columns(names, values, intercept)
    notes = row_notes + column_notes
    return Selection(target, frame[target], names, values, intercept, notes=notes, roles=roles, **roles.select(frame))


def split_names(text: str, columns: Iterable[str]) -> list[str]:
    """Split a list of names at the commas that are not part of a column's name or between double quotes.

    Examples
    --------
    >>> from calibayes.tables.columns import split_names
    >>> split_names("age, income, yearly", ["age", "income, yearly"])
    ['age', 'income, yearly']
    """
    known = {" ".join(name.split()): name for name in columns}
    parts = [part.strip() for part in next(csv.reader([text], skipinitialspace=True), [])]
    names = []
    while parts:
        # The longest name that the next parts spell, or else the next part, which does not exist.
        sizes = range(len(parts), 0, -1)
        joined = [(size, glue.join(parts[:size])) for size in sizes for glue in (", ", ",")]
        size, name = next(((size, known[name]) for size, name in joined if name in known), (1, parts[0]))
        names.append(name)
        parts = parts[size:]
    return names


def drop_incomplete_rows(frame: DataFrame, names: Iterable[str], drop_missing: bool) -> tuple[DataFrame, list[str]]:
    """Return the rows without missing values in the named columns, and notes about the others.

    Raises
    ------
    ValueError
        If values are missing and `drop_missing` is False, or fewer than two rows would remain.
    """
    missing = frame[list(dict.fromkeys(names))].isna()
    counts = {name: int(n) for name, n in missing.sum().items() if n}
    if not counts:
        return frame, []
    n_rows = int(missing.any(axis=1).sum())
    described = list_names([f"{name} ({n})" for name, n in counts.items()])
    if not drop_missing:
        raise ValueError(
            f"{n_rows} of {len(frame)} rows have missing values, in {described}. Drop these rows with "
            f"{option('--drop-missing')}, or impute the values first."
        )
    if n_rows > len(frame) - 2:
        raise ValueError(
            f"{option('--drop-missing')} leaves {len(frame) - n_rows} of {len(frame)} rows; values are missing in "
            f"{described}."
        )
    return frame[~missing.any(axis=1)], [f"dropped {n_rows} of {len(frame)} rows, with missing values in {described}"]


def drop_constant_columns(
    names: list[str], values: Float[np.ndarray, "N P"], intercept: bool
) -> tuple[list[str], Float[np.ndarray, "N Q"], list[str]]:
    """Return the predictors without constant columns, which the intercept replaces, and notes about those.

    Without an intercept only columns of zeros are dropped.
    """
    invalid = ~np.isfinite(values)
    if invalid.any():
        described = list_names([f"{name} ({n})" for name, n in zip(names, invalid.sum(0), strict=True) if n])
        raise ValueError(f"values must be finite numbers; numbers of rows where they are not: {described}.")
    keep = np.ptp(values, axis=0) > 0 if intercept else np.abs(values).max(0, initial=0) > 0
    constant = [name for name, kept in zip(names, keep, strict=True) if not kept]
    if not (intercept or keep.any()):
        raise ValueError("the model has no predictors: neither an intercept nor a column.")
    notes = [f"dropped {list_names(constant)}: constant"] if constant else []
    return [name for name, kept in zip(names, keep, strict=True) if kept], values[:, keep], notes


def numeric_target(y: Series, name: str) -> Float[np.ndarray, " N"]:
    """Return the target of a loss of `y - prediction` as numbers.

    Raises
    ------
    ValueError
        If the target is not numeric, not finite, or constant.
    """
    require_numeric_target(y, name)
    values = y.to_numpy(float)
    if not np.isfinite(values).all():
        raise ValueError(f"the target {name!r} is infinite in {int((~np.isfinite(values)).sum())} rows.")
    if np.ptp(values) == 0:
        raise ValueError(f"the target {name!r} is {values[0]:g} in every row.")
    return values


def require_numeric_target(y: Series, name: str) -> None:
    """Raise an error if the target is a column of text, and say how to model it."""
    if is_numeric(y):
        return
    texts, has_numbers = _texts(y)
    if has_numbers and len(texts) == 1:
        raise ValueError(_almost_numeric(f"the target {name!r}", texts[0]))
    remedy = f"use {option('--loss logistic')} or {option('--loss hinge')}"
    if len(texts) == 2 and not has_numbers:
        remedy = f"For its two classes, {remedy}."
    else:
        comparison = f"I({_quote(name)} == {texts[0]!r}) ~ ."
        remedy = f'To compare one class with the others, {remedy} with {option("--formula")} "{comparison}".'
    examples = ", ".join(map(repr, texts[:2]))
    raise ValueError(f"the target {name!r} must be numeric; it has values such as {examples}. {remedy}")


def class_target(y: Series, name: str, positive: object) -> tuple[Float[np.ndarray, " N"], list[str]]:
    """Return the target of a loss of two classes as -1 and 1, and the labels of these classes.

    The positive class defaults to the larger label: 1 of 0 and 1, True of False and True, the later in the alphabet.

    Raises
    ------
    ValueError
        If the target has not exactly two classes, or `positive` is not one of them.
    """
    values = list(y.unique())
    try:
        values = sorted(values)
    except TypeError:
        values = sorted(values, key=str)
    labels = [_label(value) for value in values]
    if len(values) < 2:
        raise ValueError(f"the target {name!r} must have two classes; it is {labels[0]} in every row.")
    if len(values) > 2:
        raise ValueError(
            f"the target {name!r} must have two classes for this loss; it has {len(values)}: {list_names(labels)}. To "
            f"compare one class with the others, use {option('--formula')} "
            f'"I({_quote(name)} == {_literal(values[-1])}) ~ .".'
        )
    positive = labels[1] if positive is None else _label_of(positive, labels)
    if positive not in labels:
        raise ValueError(
            f"{option('--positive')} must be a class of {name!r}, {labels[0]} or {labels[1]}; got {positive}."
        )
    index = labels.index(positive)
    return np.where((y == values[index]).to_numpy(bool), 1.0, -1.0), [labels[1 - index], positive]


def require_columns(frame: DataFrame, names: Iterable[str]) -> None:
    """Raise an error with a suggestion if a column does not exist."""
    for name in names:
        if name in frame.columns:
            continue
        columns = {column.lower(): column for column in frame.columns}
        close = [columns[match] for match in get_close_matches(name.lower(), columns, n=3)]
        # The first word of a name that was not quoted.
        close = close or [column for column in frame.columns if re.match(rf"{re.escape(name)}\b", column)]
        hint = (
            f"Did you mean {' or '.join(map(repr, close))}?"
            if close
            else f"The columns are {list_names(frame.columns)}."
        )
        if any(_quote(column) != column for column in close):
            hint += " Names with spaces or brackets need backticks in a formula."
        raise ValueError(f"there is no column {name!r}. {hint}")


def _weights(column: Series, name: str) -> Float[np.ndarray, " N"]:
    if not is_numeric(column):
        raise ValueError(f"{option('--weights')}: column {name!r} is not numeric.")
    return column.to_numpy(float)


def _require_numeric(frame: DataFrame, target: str, names: Sequence[str]) -> None:
    texts = {name: _texts(frame[name]) for name in names if not is_numeric(frame[name])}
    for name, (values, has_numbers) in texts.items():
        if has_numbers and len(values) == 1:
            raise ValueError(_almost_numeric(f"column {name}", values[0]))
    if not texts:
        return
    numeric = [name for name in names if name not in texts]
    described = list_names(
        [f"{name} (such as {', '.join(map(repr, values[:2]))})" for name, (values, _) in texts.items()]
    )
    raise ValueError(
        f"these columns are not numeric: {described}. {_encoding(frame, target, numeric, list(texts))} or leave them "
        f"out with --columns{_suggested_columns(numeric)}."
    )


def _almost_numeric(column: str, text: str) -> str:
    """Return the message about a column of numbers with one text, which may mean a missing value."""
    return f"{column} is numeric except for {text!r}. If this means a missing value, use --na {shlex.quote(text)}."


def _encoding(frame: DataFrame, target: str, numeric: Sequence[str], texts: Sequence[str]) -> str:
    """Suggest a formula in which the columns of text are categories, without those that have too many."""
    categories = [name for name in texts if frame[name].nunique() <= CONFIG.max_categories]
    terms = [*map(_quote, numeric), *(f"C({_quote(name)})" for name in categories)]
    if not categories:
        return "They have too many different values to be categories: encode them as numbers,"
    shown = terms if len(terms) <= CONFIG.max_suggested else [*map(_quote, numeric[:1]), terms[len(numeric)]]
    formula = shlex.quote(f"{_quote(target)} ~ {' + '.join(shown)}")
    return f"Use them as categories, as in --formula {formula},"


def _suggested_columns(names: Sequence[str]) -> str:
    """Return names as an argument of `--columns`; nothing if there are none or too many."""
    if not 0 < len(names) <= CONFIG.max_suggested:
        return ""
    quoted = ['"' + name.replace('"', '""') + '"' if "," in name or '"' in name else name for name in names]
    return f" {shlex.quote(','.join(quoted))}"


def _texts(column: Series) -> tuple[list[str], bool]:
    """Return the values of a column that are not numbers, and whether other values are numbers."""
    values = [str(value) for value in column.dropna().unique()]
    texts = [value for value in values if not re.fullmatch(r"\s*[-+]?[\d.]+(e[-+]?\d+)?\s*", value, re.IGNORECASE)]
    return texts or values, 0 < len(texts) < len(values)


def _label(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _label_of(value: object, labels: Sequence[str]) -> str:
    """Return the label of a value: True and False also stand for 1 and 0, and these for True and False."""
    label = _label(value)
    others = {"True": "1", "False": "0", "1": "True", "0": "False"}
    return others[label] if label not in labels and others.get(label) in labels else label


def _literal(value: object) -> str:
    return repr(value) if isinstance(value, str) else _label(value)


def _quote(name: str) -> str:
    """Quote a column name in backticks, as formulas require, unless it is a Python identifier."""
    return name if name.isidentifier() else f"`{name}`"


def list_names(names: Iterable[str]) -> str:
    """Return names as a message lists them."""
    names = list(names)
    if len(names) > CONFIG.max_listed:
        names = [*names[: CONFIG.max_listed - 2], f"... ({len(names)} in total) ...", *names[-2:]]
    return ", ".join(names)
