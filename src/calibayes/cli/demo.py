"""The command `calibayes demo`: calibrate the median regression of Tanaka (2024, section 3.1)."""

import time
import webbrowser
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import calibayes as cb
from calibayes._backend.text import printable


def demo(
    n: Annotated[int, typer.Option(help="Number of observations.", min=10)] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the data and of the calibration.")] = 0,
    report: Annotated[Path, typer.Option(help="HTML report to write.")] = Path("calibayes-demo.html"),
) -> None:
    """Calibrate the median regression of Tanaka (2024), compare it with the uncalibrated posterior, and write a report.

    On a terminal the report is opened in a browser.
    """
    started = time.perf_counter()
    console = Console()
    intercept, slope = cb.datasets.TRUE_THETA
    console.print(f"Median regression, y = {intercept:g} + {slope:g} x + noise, {n} observations.\n")
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    data = cb.datasets.median_regression(n, seed)
    # The first iteration at eta = 1 is the uncalibrated posterior.
    result = cb.calibrate(model, data, eta_init=1.0, seed=seed, names=["intercept", "slope"])
    console.print(_coverage_table(result))
    console.print(_interval_table(result))
    calibrated = time.perf_counter()
    coverage = result.validate()
    validated = time.perf_counter()
    console.print(f"Coverage of the calibrated sets on {coverage.n_replicates:,} new replicates: {coverage!r}.")
    console.print(
        f"[dim]Calibration {calibrated - started:.1f} s, including compilation; validation "
        f"{validated - calibrated:.1f} s.[/dim]"
    )
    console.print(f"Report: {printable(str(result.report(report)))}", markup=False)
    if console.is_terminal:
        webbrowser.open(report.resolve().as_uri())
    if not result.converged:
        raise typer.Exit(1)


def _coverage_table(result: cb.Result) -> Table:
    first, n_replicates = result.trace[0], result.coverage.n_replicates
    table = Table(title=f"Coverage of {result.level:.0%} {result.region.name} sets")
    for column in ("", "learning rate", "standard error", "coverage", "95% interval"):
        table.add_column(column, justify="right" if column else "left")
    before = cb.Coverage(round(first.coverage * n_replicates), n_replicates)
    for name, eta, error, coverage, style in (
        ("uncalibrated", first.eta, "", before, ""),
        ("calibrated", result.eta, f"{result.eta_se:.3f}", result.coverage, "bold"),
    ):
        interval = "{:.3f} to {:.3f}".format(*coverage.interval)
        table.add_row(name, f"{eta:.3f}", error, f"{coverage:.3f}", interval, style=style)
    return table


def _interval_table(result: cb.Result) -> Table:
    table = Table(title=f"{result.level:.0%} credible intervals")
    for column in ("", "true value", "uncalibrated", "calibrated", "relative width"):
        table.add_column(column, justify="right" if column else "left")
    before, after = result.trace[0].intervals, result.marginal_intervals()
    ratios = np.diff(after)[:, 0] / np.diff(before)[:, 0]
    for k, name in enumerate(result.names):
        intervals = ("{:.3f} to {:.3f}".format(*bounds[k]) for bounds in (before, after))
        table.add_row(name, f"{cb.datasets.TRUE_THETA[k]:g}", *intervals, f"{ratios[k]:.2f}")
    return table
