"""The command line."""

import os
import time
import warnings
import webbrowser
from pathlib import Path
from typing import Annotated

import jax
import numpy as np
import typer
from benchmarks.speed.cli import app as bench_app
from rich.console import Console
from rich.table import Table
from studies.cli import app as study

import calibayes as cb
from calibayes.cli.fit import app as fit_app

app = typer.Typer(add_completion=True, no_args_is_help=True, help=cb.__doc__, pretty_exceptions_enable=False)

app.add_typer(fit_app)
app.add_typer(bench_app)
app.add_typer(study, name="study")


def _version(asked: bool) -> bool:
    if asked:
        typer.echo(cb.__version__)
        raise typer.Exit
    return asked


@app.callback()
def main(
    version: Annotated[  # noqa: ARG001
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Learning rates for generalized posteriors whose credible sets cover as often as they say."""
    _keep_what_is_compiled()


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(cb.__version__)


@app.command()
def demo(
    n: Annotated[int, typer.Option(help="Observations.", min=10)] = 100,
    seed: Annotated[int, typer.Option(help="Of the data and of the calibration.")] = 0,
    report: Annotated[Path, typer.Option(help="Where to write the report.")] = Path("calibayes-demo.html"),
) -> None:
    """The paper's median regression, calibrated: before and after; and a report, opened in a browser on a terminal."""
    began = time.perf_counter()
    console = Console()
    console.print(
        f"Median regression, y = {cb.datasets.TRUE_THETA[0]:g} + {cb.datasets.TRUE_THETA[1]:g} x + noise, "
        f"{n} observations.\n"
    )
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    data = cb.datasets.median_regression(n, seed)
    # From eta 1, so that the trace begins with the uncalibrated posterior.
    result = cb.calibrate(model, data, eta_init=1.0, seed=seed, names=["intercept", "slope"])
    console.print(_learning_rate(result))
    console.print(_intervals(result))
    seconds = time.perf_counter() - began
    again = time.perf_counter()
    fresh = result.validate()
    again = time.perf_counter() - again
    console.print(f"On {fresh.n_replicates:,} fresh bootstrap samples the calibrated sets cover {fresh!r}.")
    console.print(f"[dim]{seconds:.1f} s, compilation included; {again:.1f} s for the fresh samples.[/dim]")
    console.print(f"The report, with a slider over the learning rate: {result.report(report)}")
    if console.is_terminal:
        webbrowser.open(report.resolve().as_uri())
    if not result.converged:
        raise typer.Exit(1)


def _keep_what_is_compiled() -> None:
    """JAX's own cache of compiled programs, for the next command; unless the user has set one, or has no place."""
    if jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    try:
        place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "calibayes"
        place.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return
    jax.config.update("jax_compilation_cache_dir", str(place))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    # An entry that was cut short is compiled again.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")


def _learning_rate(result: cb.Result) -> Table:
    low, high = result.coverage.interval
    before = result.trace[0]
    table = Table(title=f"Coverage of {result.level:.0%} {result.region.name.lower()} sets")
    for column in ("", "learning rate", "standard error", "coverage", "95% interval of it"):
        table.add_column(column, justify="right" if column else "left")
    was = cb.Coverage(round(before.coverage * result.coverage.n_replicates), result.coverage.n_replicates)
    table.add_row("before", f"{before.eta:.3f}", "", f"{was:.3f}", "{:.3f} to {:.3f}".format(*was.interval))
    table.add_row(
        "calibrated",
        f"{result.eta:.3f}",
        f"{result.eta_se:.3f}",
        f"{result.coverage:.3f}",
        f"{low:.3f} to {high:.3f}",
        style="bold",
    )
    return table


def _intervals(result: cb.Result) -> Table:
    table = Table(title=f"{result.level:.0%} credible intervals")
    for column in ("", "true", "before", "calibrated", "width"):
        table.add_column(column, justify="right" if column else "left")
    before, after = result.trace[0].intervals, result.marginal_intervals()
    ratio = np.diff(after)[:, 0] / np.diff(before)[:, 0]
    for k, name in enumerate(result.names):
        old, new = ("{:.3f} to {:.3f}".format(*interval[k]) for interval in (before, after))
        table.add_row(name, f"{cb.datasets.TRUE_THETA[k]:g}", old, new, f"x {ratio[k]:.2f}")
    return table
