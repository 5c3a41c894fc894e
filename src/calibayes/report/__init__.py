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
from calibayes.report.description import describe, percent
from calibayes.report.figures import figures
from calibayes.report.settings import parse_settings
from calibayes.report.source import calibration_script, python_source
from calibayes.report.verdict import VERDICTS, Check, Grade, overall_grade, run_checks
from calibayes.result import Intervals, Result


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
        Title of the page. Default: "Calibration report".
    call : str, optional
        Code that repeats the calibration. Default: a script made from the settings of the result.
    intervals : Intervals or bool, optional
        The individually calibrated intervals of the parameters, as returned by `result.intervals()`; or whether to
        compute them. Default: include them if they have been computed already, or if the result has particles and at
        most ten parameters (`calibayes.io.StorageConfig.max_parameters_for_intervals`).
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
    page = _page(result, intervals, title or "Calibration report", call or calibration_script(result), comparison)
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
    data = json.dumps(figures(result, intervals), allow_nan=False, separators=(",", ":"))
    return Template(_resource("page.html")).substitute(
        title=_escape(title),
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        # Without these characters no parameter name can end the script element.
        figures=data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"),
        eta=f"{result.eta:.4g}",
        eta_se=f"{result.eta_se:.2g}" if np.isfinite(result.eta_se) else "unknown",
        level=percent(result.level),
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
        table_note=_table_note(intervals),
        comparison="" if comparison is None else _comparison_section(comparison),
        trace=_trace_rows(result),
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
    level = percent(result.level)
    columns = ["parameter", "mean"]
    if intervals is not None:
        columns += [f"{level} interval", "standard error", "η of the interval"]
    columns += ["sd at joint η", f"{level} interval at joint η"]
    rows = []
    for k, (name, (low, high)) in enumerate(zip(result.names, result.marginal_intervals(), strict=True)):
        cells = [f"{result.means[k]:.4g}"]
        if intervals is not None:
            note = "" if intervals.converged[k] else " (not converged)"
            cells.append("{:.4g} to {:.4g}".format(*intervals.bounds[k]) + note)
            cells.append(f"{intervals.standard_errors[k]:.4g}")
            cells.append(f"{intervals.eta[k]:.4g} ± {intervals.eta_se[k]:.2g}")
        cells += [f"{result.draws[:, k].std():.4g}", f"{low:.4g} to {high:.4g}"]
        rows.append(f'<tr><th scope="row">{_escape(name)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>')
    head = "".join(f'<th scope="col">{column}</th>' for column in columns)
    return f"<thead><tr>{head}</tr></thead>\n<tbody>\n" + "\n".join(rows) + "\n</tbody>"


def _table_note(intervals: Intervals | None) -> str:
    if intervals is None:
        return (
            "All columns describe the posterior at the learning rate above, which does not calibrate every marginal "
            "interval. <code>result.intervals()</code> calibrates the interval of each parameter individually."
        )
    return (
        "The interval of each parameter is calibrated individually, at the η in its row; the standard error is its "
        "width divided by that of a standard normal interval. Columns at joint η describe the posterior at the "
        "learning rate above, which does not calibrate every marginal interval."
    )


def _comparison_section(comparison: Comparison) -> str:
    head, *rows = comparison.cells()
    columns = "".join(f'<th scope="col">{_escape(column)}</th>' for column in head)
    body = "\n".join(
        f'<tr><th scope="row">{_escape(name)}</th>{"".join(f"<td>{_escape(text)}</td>" for text in texts)}</tr>'
        for name, *texts in rows
    )
    table = f'<table class="figures">\n<thead><tr>{columns}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>'
    return (
        '<section aria-labelledby="comparison">\n<h2 id="comparison">Comparison of methods</h2>\n'
        f'<div class="scroll" role="region" aria-labelledby="comparison" tabindex="0">\n{table}\n</div>\n'
        f'<p class="note">{_escape(comparison.note)}</p>\n</section>\n'
    )


def _trace_rows(result: Result) -> str:
    rows = [
        [record.iteration, f"{record.eta:.4g}", f"{record.coverage:.3f}", f"{record.ess:,.0f}", f"{record.seconds:.1f}"]
        for record in result.trace[-CONFIG.max_trace :]
    ]
    return "\n".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)


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
