"""One page for a co-author or a referee: what was done, what came out, whether to trust it, how to run it again.

The page is one file that asks nothing of the network. Its numbers are plain HTML, so that they are there without
scripts; the plots are drawn in the browser from what `figures` leaves in it.
"""

import base64
import hashlib
import json
from dataclasses import replace
from datetime import date
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

import numpy as np

import calibayes
from calibayes._backend.distributed import leads
from calibayes.report import words
from calibayes.report.figures import figures
from calibayes.report.settings import revived
from calibayes.report.source import call_of, source
from calibayes.report.verdict import VERDICTS, Check, Grade, checks, verdict
from calibayes.result import Intervals, Result

_QUICK = 10
"""Parameters up to which each one's own calibration is done without being asked for: about a second each."""
_SHOWN = 200
"""Records of the trace."""


def write(
    result: Result,
    path: str | Path,
    *,
    title: str | None = None,
    call: str | None = None,
    intervals: Intervals | bool | None = None,
) -> Path:
    """Write the page to `path`.

    Args:
        result: a calibration, or one that was loaded.
        path: of the HTML file.
        title: of the page.
        call: the code that gave the result; put together from its settings unless told.
        intervals: each parameter's own, as `result.intervals()` gives them; or whether to ask for them. Unless told,
            if they are there, or the result can be asked and has ten parameters or fewer.
    """
    if intervals is None:
        intervals = result.kept or (result.calibration is not None and len(result.names) <= _QUICK)
    own = intervals if isinstance(intervals, Intervals) else result.intervals() if intervals else None
    result = replace(result, settings=revived(result.settings))
    path = Path(path)
    page = _page(result, own, title or "Calibration report", call or call_of(result))
    if leads():
        path.write_text(page, encoding="utf-8")
    return path


def _page(result: Result, own: Intervals | None, title: str, call: str) -> str:
    style = _read("style.css")
    script = "(() => {\n" + _read("charts.js") + _read("page.js") + "})();\n"
    found = checks(result, own)
    grade = verdict(found)
    low, high = result.coverage.interval
    drawn = json.dumps(figures(result, own), allow_nan=False, separators=(",", ":"))
    return Template(_read("page.html")).substitute(
        title=escape(title),
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        # No tag can end the block, whatever the names are.
        figures=drawn.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"),
        eta=f"{result.eta:.4g}",
        eta_se=f"{result.eta_se:.2g}" if np.isfinite(result.eta_se) else "unknown",
        level=words.level(result.level),
        coverage=f"{100 * float(result.coverage):.1f}%",
        coverage_low=f"{100 * low:.1f}%",
        coverage_high=f"{100 * high:.1f}%",
        n_replicates=f"{result.coverage.n_replicates:,}",
        grade=grade.name.lower(),
        verdict=VERDICTS[grade],
        reasons=_reasons(found),
        checks="\n".join(map(_check, found)),
        done="\n".join(f"<p>{escape(text)}</p>" for text in words.done(result)),
        table=_table(result, own),
        own_note=_own_note(own),
        trace=_trace(result),
        call=escape(call),
        versions=_versions(result),
        seed=escape(source(result.settings.get("seed"), "a JAX key")),
        version=calibayes.__version__,
        year=date.today().year,
        today=date.today().isoformat(),
    )


def _reasons(found: list[Check]) -> str:
    """Why the verdict is not better."""
    worse = [check for check in found if check.grade > Grade.GOOD]
    if not worse:
        return f"<p>All {len(found)} checks are passed; they are listed below.</p>"
    worse.sort(key=lambda check: -check.grade)
    lines = (f"<li><b>{escape(check.name)}:</b> {escape(check.value)}. {escape(check.meaning)}</li>" for check in worse)
    return f"<ul>{''.join(lines)}</ul>"


def _check(check: Check) -> str:
    said = {Grade.GOOD: "good", Grade.NOTED: "noted", Grade.CARE: "with care", Grade.BAD: "bad"}[check.grade]
    return (
        f'<tr class="{check.grade.name.lower()}"><th scope="row">{escape(check.name)}</th>'
        f'<td><span class="mark">{said}</span></td><td>{escape(check.value)}</td><td>{escape(check.meaning)}</td></tr>'
    )


def _table(result: Result, own: Intervals | None) -> str:
    percent = words.level(result.level)
    heads = ["mean", "sd", f"{percent} interval", *([f"own {percent} interval", "own η"] if own is not None else [])]
    rows = []
    for k, (name, (low, high)) in enumerate(zip(result.names, result.marginal_intervals(), strict=True)):
        cells = [f"{result.means[k]:.4g}", f"{result.draws[:, k].std():.4g}", f"{low:.4g} to {high:.4g}"]
        if own is not None:
            lost = "" if own.converged[k] else " (not converged)"
            cells += ["{:.4g} to {:.4g}".format(*own.bounds[k]) + lost, f"{own.eta[k]:.4g} ± {own.eta_se[k]:.2g}"]
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>')
    head = "".join(f'<th scope="col">{cell}</th>' for cell in ["parameter", *heads])
    return f"<thead><tr>{head}</tr></thead>\n<tbody>\n" + "\n".join(rows) + "\n</tbody>"


def _own_note(own: Intervals | None) -> str:
    joint = "Mean, sd and interval are of the posterior at the one η above, which need not calibrate every interval. "
    if own is None:
        return joint + "<code>result.intervals()</code> gives each parameter an interval that is calibrated by itself."
    return joint + "A parameter’s own interval is of the posterior at the η that calibrates this interval by itself."


def _trace(result: Result) -> str:
    rows = [
        [record.iteration, f"{record.eta:.4g}", f"{record.coverage:.3f}", f"{record.ess:,.0f}", f"{record.seconds:.1f}"]
        for record in result.trace[-_SHOWN:]
    ]
    return "\n".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)


def _versions(result: Result) -> str:
    usual = {"jax": "JAX", "numpy": "NumPy", "python": "Python"}
    numbers = {name.removesuffix("_version"): number for name, number in result.versions.items()}
    return escape(", ".join(f"{usual.get(name, name)} {number}" for name, number in numbers.items()))


def _read(name: str) -> str:
    return (files(__name__) / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
