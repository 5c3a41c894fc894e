"""Write the HTML report of a calibration: method, results, checks, figures, and the code that repeats it.

The report is one file without references to the network. Its numbers are plain HTML, so that they are readable without
scripts; the figures are drawn in the browser from the numbers of `calibayes.report.figures`.
"""

import base64
import hashlib
import json
from dataclasses import dataclass, replace
from datetime import date
from html import escape as escape_html
from importlib.resources import files
from pathlib import Path
from string import Template

import numpy as np

import calibayes
from calibayes import io
from calibayes._backend.distributed import is_main_process
from calibayes._backend.text import printable
from calibayes.compare import Comparison
from calibayes.report.description import default_title, describe, describe_table, headline
from calibayes.report.figures import figures
from calibayes.report.settings import parse_settings
from calibayes.report.source import calibration_script, python_source
from calibayes.report.verdict import VERDICTS, Check, Grade, overall_grade, run_checks
from calibayes.result import Intervals, Result
from calibayes.result.intervals import format_number, normal_width, percent


@dataclass(frozen=True)
class PageConfig:
    """Limits of the page; display choices."""

    max_trace: int = 200
    """Number of iterations in the table of the search; the last ones."""


CONFIG = PageConfig()

_GRADE_LABELS = {Grade.PASSED: "passed", Grade.NOTE: "note", Grade.CAUTION: "caution", Grade.FAILED: "failed"}


def write(
    result: Result,
    path: str | Path,
    *,
    title: str | None = None,
    call: str | None = None,
    intervals: Intervals | bool | None = None,
    comparison: Comparison | None = None,
) -> Path:
    """Write the HTML report of a result.

    Parameters
    ----------
    result : Result
        The result of a calibration, computed in this process or loaded from a file.
    path : str or Path
        Path of the HTML file.
    title : str, optional
        Title of the page. Default: the kind of model and its target, or "Calibration report".
    call : str, optional
        Code that repeats the calibration. Default: a script made from the settings of the result.
    intervals : Intervals or bool, optional
        The individually calibrated intervals of the parameters, as returned by `result.intervals()`; or whether to
        compute them. Default: include them if they have been computed already, or if the result has particles and at
        most 30 parameters (`calibayes.io.StorageConfig.max_parameters_for_intervals`).
    comparison : Comparison, optional
        Table of methods, as returned by `compare`, to add to the page.

    Returns
    -------
    Path
        The path of the written file.

    Raises
    ------
    RuntimeError
        If `intervals` is True, and the result was loaded without intervals.

    Examples
    --------
    >>> from calibayes.report import write
    >>> str(write(result, "report.html", title="Median wage", intervals=False))
    'report.html'
    """
    if intervals is None:
        few_parameters = len(result.names) <= io.CONFIG.max_parameters_for_intervals
        intervals = result.computed_intervals or (result.calibration is not None and few_parameters)
    if isinstance(intervals, bool):
        intervals = result.intervals() if intervals else None
    result = replace(result, settings=parse_settings(result.settings))
    page = _page(result, intervals, title or default_title(result), call or calibration_script(result), comparison)
    path = Path(path)
    if is_main_process():
        path.write_text(page, encoding="utf-8")
    return path


def _page(result: Result, intervals: Intervals | None, title: str, call: str, comparison: Comparison | None) -> str:
    style = _resource("style.css")
    script = "(() => {\n" + _resource("charts.js") + _resource("page.js") + "})();\n"
    checks = run_checks(result, intervals)
    grade = overall_grade(checks)
    low, high = result.coverage.interval
    level = percent(result.level)
    data = json.dumps(figures(result, intervals), allow_nan=False, separators=(",", ":"))
    return Template(_resource("page.html")).substitute(
        title=_escape(title),
        headline=_escape(headline(result)),
        table_description="".join(f"<p>{_escape(text)}</p>" for text in [describe_table(result)] if text),
        parameters_title=f"{'Coefficients' if result.settings.get('target') else 'Parameters'} and {level} intervals",
        warning='<p class="alert">This result cannot be relied on; see below.</p>' if grade is Grade.FAILED else "",
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        # Without these characters no parameter name can end the script element.
        figures=data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"),
        eta=f"{result.eta:.4g}",
        eta_se=f"{result.eta_se:.2g}" if np.isfinite(result.eta_se) else "unknown",
        level=level,
        coverage=f"{100 * float(result.coverage):.1f}%",
        coverage_low=f"{100 * low:.1f}%",
        coverage_high=f"{100 * high:.1f}%",
        n_replicates=f"{result.coverage.n_replicates:,}",
        grade=_grade_class(grade),
        verdict=VERDICTS[grade],
        reasons=_reasons(checks),
        checks="\n".join(map(_check_row, checks)),
        description="\n".join(f"<p>{_escape(paragraph)}</p>" for paragraph in describe(result)),
        table=_parameter_table(result, intervals),
        table_note=_table_note(result, intervals),
        figure_note=_figure_note(level, intervals),
        joint_table=_joint_table(result),
        comparison="" if comparison is None else _comparison_section(comparison),
        trace=_trace_table(result),
        call=_escape(call),
        versions=_versions(result),
        seed=_escape(python_source(result.settings.get("seed"), "a JAX key")),
        version=calibayes.__version__,
        year=date.today().year,
        today=date.today().isoformat(),
    )


def _reasons(checks: list[Check]) -> str:
    """Return the checks that are not passed, the worst first."""
    open_checks = sorted((check for check in checks if check.grade > Grade.PASSED), key=lambda check: -check.grade)
    if not open_checks:
        return f"<p>All {len(checks)} checks passed. They are listed below.</p>"
    items = (f"<li><b>{_escape(c.name)}:</b> {_escape(c.value)}. {_escape(c.meaning)}</li>" for c in open_checks)
    return f"<ul>{''.join(items)}</ul>"


def _check_row(check: Check) -> str:
    return (
        f'<tr class="{_grade_class(check.grade)}"><th scope="row">{_escape(check.name)}</th>'
        f'<td><span class="mark">{_GRADE_LABELS[check.grade]}</span></td>'
        f"<td>{_escape(check.value)}</td><td>{_escape(check.meaning)}</td></tr>"
    )


def _grade_class(grade: Grade) -> str:
    return f"grade-{grade.name.lower()}"


def _parameter_table(result: Result, intervals: Intervals | None) -> str:
    """Return one interval per parameter: its own, or that at the joint learning rate if there are no others."""
    if intervals is None:
        return _joint_table(result)
    level = percent(result.level)
    _, *rows = replace(intervals, means=result.means).cells(["mean", "se", "low", "high", "eta"])
    table = [["parameter", "mean", "standard error", f"{level} interval", "η"]]
    table += [[name, mean, error, f"{low} to {high}", eta] for name, mean, error, low, high, eta in rows]
    return _html_table(table)


def _joint_table(result: Result) -> str:
    """Return means, standard deviations and intervals of the posterior at the joint learning rate."""
    table = [["parameter", "mean", "standard deviation", f"{percent(result.level)} interval at joint η"]]
    for k, (name, (low, high)) in enumerate(zip(result.names, result.marginal_intervals(), strict=True)):
        numbers = (result.means[k], result.draws[:, k].std(), low, high)
        mean, deviation, low_text, high_text = (format_number(value, high - low) for value in numbers)
        table.append([name, mean, deviation, f"{low_text} to {high_text}"])
    return _html_table(table)


def _html_table(table: list[list[str]]) -> str:
    """Return head and body of a table; narrow screens show the labels of the columns in front of the cells."""
    columns, *rows = ([_escape(cell) for cell in row] for row in table)
    head = "".join(f'<th scope="col">{column}</th>' for column in columns)
    body = "\n".join(
        f'<tr><th scope="row">{name}</th>'
        + "".join(f'<td data-label="{column}">{cell}</td>' for column, cell in zip(columns[1:], cells, strict=True))
        + "</tr>"
        for name, *cells in rows
    )
    return f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>"


def _table_note(result: Result, intervals: Intervals | None) -> str:
    if intervals is None:
        return (
            "All columns describe the posterior at the joint learning rate, which does not calibrate every marginal "
            "interval. <code>result.intervals()</code> calibrates the interval of each parameter individually."
        )
    width = f"{normal_width(result.level):.2f}"
    intercept = ""
    if "intercept" in result.names[:1] and result.settings.get("target"):
        intercept = " The intercept is the prediction where every column is zero."
    return (
        f"The interval of each parameter is calibrated at its own learning rate η. The standard error is the width of "
        f"the interval divided by {width}, the width of a standard normal interval.{intercept}"
    )


def _figure_note(level: str, intervals: Intervals | None) -> str:
    kind = "at the joint learning rate" if intervals is None else "of the table"
    return f"{level} intervals {kind}, and posterior means."


def _comparison_section(comparison: Comparison) -> str:
    table = f'<table class="figures">\n{_html_table(comparison.cells())}\n</table>'
    return (
        '<section aria-labelledby="comparison">\n<h2 id="comparison">Comparison of methods</h2>\n'
        f'<div class="scroll" role="region" aria-labelledby="comparison" tabindex="0">\n{table}\n</div>\n'
        f'<p class="note">{_escape(comparison.note)}</p>\n</section>\n'
    )


def _trace_table(result: Result) -> str:
    rows = [
        [
            str(record.iteration),
            f"{record.eta:.4g}",
            f"{record.coverage:.3f}",
            f"{record.ess:,.0f}",
            f"{record.seconds:.1f}",
        ]
        for record in result.trace[-CONFIG.max_trace :]
    ]
    return _html_table([["iteration", "η", "coverage", "effective sample size", "seconds"], *rows])


def _versions(result: Result) -> str:
    names = {"jax": "JAX", "numpy": "NumPy", "python": "Python"}
    packages = {key.removesuffix("_version"): version for key, version in result.versions.items()}
    return _escape(", ".join(f"{names.get(package, package)} {version}" for package, version in packages.items()))


def _escape(text: str) -> str:
    """Return text as HTML, with control characters and bidirectional overrides written as backslash escapes."""
    return escape_html(printable(text, multiline=True))


def _resource(name: str) -> str:
    return (files(__name__) / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
