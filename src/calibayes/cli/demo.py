"""The command `calibayes demo`: calibrate the median regression of Tanaka (2024, section 3.1)."""

import time
import webbrowser
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from jaxtyping import Float
from rich.console import Console
from rich.table import Table

import calibayes as cb
from calibayes._backend.text import printable
from calibayes.result.intervals import format_number


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
    result = calibrate_example(n, seed)
    console.print(_interval_table(result))
    console.print(_coverage_table(result))
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


def calibrate_example(n: int = 100, seed: int = 0) -> cb.Result:
    """Return the calibration of the README's example; the picture of the README shows it, too."""
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    data = cb.datasets.median_regression(n, seed)
    return cb.calibrate(model, data, level=0.95, seed=seed, names=["intercept", "slope"])


def uncalibrated_coverage(result: cb.Result) -> cb.Coverage | None:
    """Return the coverage of the posterior at eta = 1, from the coverage curve; None if 1 is off the curve."""
    etas, n_replicates = result.curve.etas, result.coverage.n_replicates
    if not (len(etas) and etas[0] <= 1 <= etas[-1]):
        return None
    return cb.Coverage(round(float(np.interp(1.0, etas, result.curve.coverage())) * n_replicates), n_replicates)


def uncalibrated_intervals(result: cb.Result) -> Float[np.ndarray, "K 2"]:
    """Return the marginal intervals of the posterior at eta = 1."""
    tail = (1 - result.level) / 2
    return np.quantile(result.posterior(1.0), [tail, 1 - tail], axis=0).T


def _coverage_table(result: cb.Result) -> Table:
    table = Table(title=f"Joint {result.level:.0%} {result.region.name} sets")
    for column in ("", "learning rate", "standard error", "coverage", "95% interval"):
        table.add_column(column, justify="right" if column else "left")
    before = uncalibrated_coverage(result)
    if before is not None:
        table.add_row("uncalibrated", "1", "", f"{before:.3f}", "{:.3f} to {:.3f}".format(*before.interval))
    interval = "{:.3f} to {:.3f}".format(*result.coverage.interval)
    table.add_row(
        "calibrated", f"{result.eta:.4g}", f"{result.eta_se:.2g}", f"{result.coverage:.3f}", interval, style="bold"
    )
    return table


def _interval_table(result: cb.Result) -> Table:
    table = Table(title=f"{result.level:.0%} credible intervals, each calibrated at its own learning rate")
    for column in ("", "true value", "uncalibrated", "calibrated", "relative width"):
        table.add_column(column, justify="right" if column else "left")
    before, after = uncalibrated_intervals(result), result.intervals()
    for k, (name, _, _, low, high, _) in enumerate(after.cells()[1:]):
        width, width_before = np.ptp(after.bounds[k]), np.ptp(before[k])
        uncalibrated = " to ".join(format_number(bound, width) for bound in before[k])
        ratio = f"{width / width_before:.2f}"
        table.add_row(name, f"{cb.datasets.TRUE_THETA[k]:g}", uncalibrated, f"{low} to {high}", ratio)
    return table
