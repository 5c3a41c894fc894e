"""The commands of `calibayes study`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from studies.names import ERRORS, KNOWN, LOSSES, REGIONS, SAMPLERS, SIZES

app = typer.Typer(
    no_args_is_help=True,
    help="Studies over many datasets: the paper's, and past it. Each stores one line a calibration, goes on where it "
    "was stopped, and prints what is stored.",
)

RESULTS = Path("results")

Datasets = Annotated[int, typer.Option(help="How many datasets, or seeds.", min=1)]
First = Annotated[int, typer.Option("--seed", help="Number of the first dataset, which is its seed.", min=0)]
Samplers = Annotated[list[str], typer.Option("--sampler", help="One of transport, smc, mcmc; may be repeated.")]
Regions = Annotated[list[str], typer.Option("--region", help="One of box, ellipsoid, hpd, slope; may be repeated.")]
Sizes = Annotated[list[int], typer.Option("--n", help="Observations; may be repeated.", min=10)]
AtOnce = Annotated[
    int, typer.Option(help="Calibrations of a kind run as one computation; for accelerators. Not timed.", min=1)
]
Out = Annotated[Path, typer.Option(help="CSV file of results, read and appended to.")]


@app.command()
def table1(
    datasets: Datasets = 200,
    sampler: Annotated[
        list[str],
        typer.Option(help="One of transport, smc, mcmc, known (the eta that the truth asks for); may be repeated."),
    ] = [*SAMPLERS, KNOWN],  # noqa: B006
    region: Regions = list(REGIONS),  # noqa: B006
    n: Sizes = list(SIZES),  # noqa: B006
    seed: First = 0,
    at_once: AtOnce = 1,
    out: Out = RESULTS / "median_regression.csv",
) -> None:
    """Median regression: coverage of the true parameter, and eta, over datasets."""
    _among("--sampler", sampler, (*SAMPLERS, KNOWN))
    _among("--region", region, REGIONS)
    from studies import paper, tables

    cases = paper.table1_cases(datasets, n, sampler, region, seed)
    _study(cases, paper.work, out, tables.table1, at_once)


@app.command()
def figure4(
    datasets: Datasets = 20,
    sampler: Samplers = list(SAMPLERS),  # noqa: B006
    n: Sizes = list(SIZES),  # noqa: B006
    seed: First = 0,
    out: Out = RESULTS / "figure4_here.csv",
) -> None:
    """Median regression: seconds of the three methods, side by side."""
    _among("--sampler", sampler, SAMPLERS)
    from studies import paper, tables

    _study(paper.table1_cases(datasets, n, sampler, ["box"], seed), paper.work, out, tables.times)


@app.command()
def figure5(
    datasets: Datasets = 20,
    sampler: Samplers = list(SAMPLERS),  # noqa: B006
    seed: First = 0,
    out: Out = RESULTS / "heart_disease.csv",
) -> None:
    """The heart disease SVM over seeds: seconds and eta."""
    _among("--sampler", sampler, SAMPLERS)
    from studies import paper, tables

    _study(paper.figure5_cases(datasets, sampler, seed), paper.work, out, tables.figure5)


@app.command(name="misspecified")
def misspecified_(
    datasets: Datasets = 200,
    error: Annotated[list[str], typer.Option(help="; ".join(ERRORS))] = list(ERRORS),  # noqa: B006
    loss: Annotated[list[str], typer.Option(help="; ".join(LOSSES))] = list(LOSSES),  # noqa: B006
    seed: First = 0,
    at_once: AtOnce = 1,
    out: Out = RESULTS / "misspecified.csv",
) -> None:
    """Coverage of the population's minimiser, by three losses, under four kinds of errors."""
    _among("--error", error, ERRORS)
    _among("--loss", loss, LOSSES)
    from studies import misspecified, tables

    _study(misspecified.cases(datasets, error, loss, seed), misspecified.work, out, tables.misspecified, at_once)


@app.command(name="open")
def open_(
    datasets: Datasets = 20,
    seed: First = 0,
    out: Out = RESULTS / "open_question.csv",
) -> None:
    """Which set, point, data or misprint gives the paper's eta of 1.1 at N 1,600, and 0.09 for the SVM?"""
    from studies import open_question, tables

    _study(open_question.cases(datasets, seed), open_question.work, out, tables.by_variant)


@app.command()
def page(
    results: Annotated[Path, typer.Option(help="Folder of the stored results.")] = RESULTS,
    docs: Annotated[Path, typer.Option(help="Folder to write the page and its figures to.")] = Path("docs"),
    readme: Annotated[Path | None, typer.Option(help="File to put the short table into.")] = None,
) -> None:
    """Write the results page and its figures from what is stored."""
    try:
        from studies.page import write
    except ImportError as error:
        raise typer.BadParameter("the page needs matplotlib: pip install 'calibayes[plots]'.") from error
    try:
        for path in write(results, docs, readme):
            typer.echo(path)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _study(
    cases: Sequence[Any], work: Callable[..., Any], out: Path, show: Callable[..., Any], at_once: int = 1
) -> None:
    # Nothing that computes is imported before a study begins, so that help comes at once.
    from studies.runner import run
    from studies.store import Store

    console = Console()
    try:
        store = Store(out)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    done = run(cases, work, store, console, at_once)
    console.print(show(store.lines).rich())
    if not done:
        raise typer.Exit(130)


def _among(option: str, given: Sequence[str], known: Sequence[str]) -> None:
    for value in given:
        if value not in known:
            raise typer.BadParameter(f"{option} must be among {', '.join(known)}; got {value!r}.")
