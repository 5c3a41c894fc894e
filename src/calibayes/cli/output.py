"""Output of `calibayes fit`: a table for people and a JSON object for programs."""

import json
import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from calibayes._backend.text import printable
from calibayes._backend.warnings import NotConvergedWarning
from calibayes._core.status import Diagnostic, Severity, Status, worst
from calibayes.compare import Comparison
from calibayes.io import encode_diagnostics
from calibayes.losses import Cox
from calibayes.report.description import headline
from calibayes.result import Intervals, Result
from calibayes.result.intervals import normal_width
from calibayes.result.wording import describe_data
from calibayes.tables.linear import LinearModel


@dataclass(frozen=True)
class OutputConfig:
    """Thresholds of the printed notes; display choices."""

    far_from_zero: float = 5.0
    """Mean of a column in units of its standard deviation from which zero counts as far outside the data, so that the
    intercept is an extrapolation."""


CONFIG = OutputConfig()

_FAILED = "bold red"
_LABELS = {Severity.INFO: "note", Severity.WARNING: "warning", Severity.ERROR: "error"}


class Fact(NamedTuple):
    """A labelled line of the output."""

    label: str
    text: str
    style: str = ""


@dataclass(frozen=True)
class FitSummary:
    """Everything that `calibayes fit` prints."""

    result: Result
    intervals: Intervals
    model: LinearModel
    warnings: list[Warning]
    """Warnings that were raised during the calibration."""
    comparison: Comparison | None = None
    """The methods that were compared, if this was requested."""
    strict: bool = False
    """Whether warnings make the command fail."""

    @property
    def converged(self) -> bool:
        """Whether the joint learning rate and the learning rates of all intervals converged."""
        return all(status.is_success for status in (self.result.status, *self.intervals.status))

    @property
    def exit_code(self) -> int:
        """Exit status of the command."""
        warned = worst(self.diagnostics) >= Severity.WARNING
        return 0 if self.converged and not (self.strict and warned) else 1

    @property
    def diagnostics(self) -> dict[Diagnostic, list[str]]:
        """All diagnostics, with the names of the intervals that they concern; no names for the joint result."""
        findings: dict[Diagnostic, list[str]] = {diagnostic: [] for diagnostic in self.result.diagnostics}
        for name, diagnostics in zip(self.intervals.names, self.intervals.diagnostics, strict=True):
            for diagnostic in diagnostics:
                if diagnostic not in self.result.diagnostics:
                    findings.setdefault(diagnostic, []).append(name)
        return findings

    @property
    def notes(self) -> list[str]:
        """Remarks about the data, and warnings that are not about the status or a diagnostic."""
        described = describe_data(self.result.settings)
        notes = [*self.model.selection.notes, *(f"{label} are {text}" for label, text in described.items())]
        messages = [diagnostic.message for diagnostic in self.diagnostics]
        for warning in self.warnings:
            text = str(warning)
            repeated = isinstance(warning, NotConvergedWarning) or any(message in text for message in messages)
            if not repeated and text not in notes:
                notes.append(text)
        return notes

    @property
    def title(self) -> str:
        """Model, target and data in one line."""
        return headline(self.result)


def to_json(summary: FitSummary) -> str:
    """Return the summary as JSON; numbers that are not finite are null."""
    result, intervals, loss = summary.result, summary.intervals, summary.model.loss
    coefficients = [
        {
            "name": name,
            "mean": _finite(result.means[k]),
            "se": _finite(intervals.standard_errors[k]),
            "low": _finite(intervals.bounds[k, 0]),
            "high": _finite(intervals.bounds[k, 1]),
            "eta": _finite(intervals.eta[k]),
            "eta_se": _finite(intervals.eta_se[k]),
            "converged": bool(intervals.converged[k]),
            "status": intervals.status[k].name,
            "diagnostics": encode_diagnostics(intervals.diagnostics[k]),
            "message": intervals.messages[k],
        }
        for k, name in enumerate(result.names)
    ]
    content = {
        "call": result.settings["call"],
        "title": summary.title,
        "target": summary.model.selection.target,
        "classes": summary.model.classes,
        "n": summary.model.n_rows,
        "loss": {"name": type(loss).__name__.lower()}
        | {name: value if isinstance(value, str) else float(value) for name, value in vars(loss).items()},
        "level": result.level,
        "region": result.region.name,
        "method": result.settings["method"].name,
        "shape": result.settings["shape"],
        "eta": _finite(result.eta),
        "eta_se": _finite(result.eta_se),
        "coverage": float(result.coverage),
        "coverage_interval": [float(bound) for bound in result.coverage.interval],
        "bootstrap": result.coverage.n_replicates,
        "seed": result.settings["seed"],
        "converged": summary.converged,
        "status": result.status.name,
        "diagnostics": encode_diagnostics(result.diagnostics),
        "message": result.message,
        "notes": summary.notes,
        "coefficients": coefficients,
        "versions": result.versions,
    }
    if summary.comparison is not None:
        content["comparison"] = [
            {name: value if isinstance(value, str) else _finite(value) for name, value in record.items()}
            for record in summary.comparison.records()
        ]
    # Other control characters are escaped by JSON.
    return json.dumps(content, indent=2, allow_nan=False).replace("\x7f", "\\u007f")


def _finite(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def print_summary(summary: FitSummary) -> None:
    """Print the summary as text."""
    result = summary.result
    console = Console(highlight=False)
    level, region = f"{100 * result.level:g}%", result.region.name
    low, high = result.coverage.interval
    error = f"{result.eta_se:.2g}" if math.isfinite(result.eta_se) else "unknown"
    console.print(Text(printable(summary.title), "bold"))
    console.print()
    _print_facts(
        console,
        Fact("joint eta", f"{result.eta:.4g} (standard error {error}), learning rate for {region} sets"),
        Fact("coverage", f"{result.coverage:.3f} ({low:.3f} to {high:.3f}) of {level} {region} sets"),
    )
    console.print(_coefficient_table(summary))
    console.print(printable(" ".join(_explanations(summary))), style="dim", markup=False)
    console.print()
    if summary.comparison is not None:
        console.print(repr(summary.comparison), markup=False, soft_wrap=True)
        console.print()
    _print_facts(console, *_status_facts(summary))


def _explanations(summary: FitSummary) -> list[str]:
    """Return sentences that explain the table of coefficients."""
    width = normal_width(summary.intervals.level)
    sentences = [f"Each interval is calibrated individually, at the eta in its row; se is its width over {width:.2f}."]
    if isinstance(summary.model.loss, Cox):
        sentences.append("Coefficients are logarithms of hazard ratios.")
    if summary.model.classes is not None:
        sentences.append("Positive coefficients favour {1}, negative ones {0}.".format(*summary.model.classes))
    if summary.model.selection.intercept and summary.model.selection.names:
        sentences.append(f"The intercept is the prediction where every column is zero{_extrapolation(summary)}.")
    return sentences


def _extrapolation(summary: FitSummary) -> str:
    """Return a remark with the column whose values are farthest from zero, if they are far from zero."""
    distances = np.abs(summary.model.design.means) / summary.model.design.spreads
    farthest = int(np.argmax(distances))
    if distances[farthest] <= CONFIG.far_from_zero:
        return ""
    return f", far outside the range of the data ({summary.model.selection.names[farthest]})"


def _status_facts(summary: FitSummary) -> list[Fact]:
    """Return status, diagnostics and notes as labelled lines."""
    result, intervals = summary.result, summary.intervals
    if result.converged:
        facts = [Fact("status", f"converged: {result.status.value}")]
    else:
        facts = [Fact("status", f"NOT CONVERGED: {result.status.value}", _FAILED)]
    failed: dict[Status, list[str]] = {}
    for k in np.flatnonzero(~intervals.converged):
        failed.setdefault(intervals.status[k], []).append(intervals.names[k])
    for status, names in failed.items():
        facts.append(Fact("status", f"NOT CONVERGED: {', '.join(names)}: {status.value}", _FAILED))
    for diagnostic, names in summary.diagnostics.items():
        prefix = f"{', '.join(names)}: " if names else ""
        facts.append(Fact(_LABELS[diagnostic.severity], f"{prefix}{diagnostic.message}"))
    return facts + [Fact("note", note) for note in summary.notes]


def _coefficient_table(summary: FitSummary) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", overflow="fold")
    intervals = replace(summary.intervals, means=summary.result.means)
    head, *rows = intervals.cells()
    for column in head[1:]:
        table.add_column(column, justify="right", no_wrap=True)
    for k, (name, *cells) in enumerate(rows):
        table.add_row(Text(printable(name)), *cells, style="" if intervals.converged[k] else "red")
    return table


def _print_facts(console: Console, *facts: Fact) -> None:
    grid = Table.grid(padding=(0, 2))
    for fact in facts:
        grid.add_row(fact.label, Text(printable(fact.text), fact.style))
    console.print(grid)
