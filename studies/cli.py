"""The command line of the studies: `python -m studies COMMAND`."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from studies.head_to_head import names
from studies.names import (
    ERRORS,
    HAZARDS,
    LOSSES,
    MANY_FOLDER,
    MANY_SIZES,
    ONE_THREAD,
    REGIONS,
    SAMPLERS,
    SIZES,
)

if TYPE_CHECKING:
    from benchmarks.common import Table
    from studies.runner import Case, ResultsFile, RunCase
    from studies.store import Line

app = typer.Typer(
    no_args_is_help=True,
    help="Simulation studies over many data sets. Each stores one line per calibration, continues where it was "
    "interrupted, and prints a summary of the stored lines.",
)

RESULTS = Path("results")
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

Datasets = Annotated[int, typer.Option(help="Number of data sets or seeds.", min=1)]
FirstSeed = Annotated[int, typer.Option("--seed", help="Seed of the first data set.", min=0)]
Samplers = Annotated[list[str], typer.Option("--sampler", help="transport, smc or mcmc; may be repeated.")]
Regions = Annotated[list[str], typer.Option("--region", help="box, ellipsoid, hpd or slope; may be repeated.")]
Sizes = Annotated[list[int], typer.Option("--n", help="Number of observations; may be repeated.", min=10)]
Processes = Annotated[
    int,
    typer.Option(
        help="Number of processes. Results do not depend on it, but only the times of one process are comparable.",
        min=1,
    ),
]
Out = Annotated[Path, typer.Option(help="CSV file of results; lines are read from it and appended to it.")]


@app.command()
def table1(
    datasets: Datasets = 200,
    sampler: Samplers = list(SAMPLERS),  # noqa: B006
    region: Regions = list(REGIONS),  # noqa: B006
    n: Sizes = list(SIZES),  # noqa: B006
    seed: FirstSeed = 0,
    processes: Processes = CORES,
    out: Out = RESULTS / "median_regression.csv.gz",
) -> None:
    """Median regression: coverage of the true parameter and eta, over data sets."""
    _require_choices("--sampler", sampler, SAMPLERS)
    _require_choices("--region", region, REGIONS)
    from studies import paper, tables

    cases = paper.table1_cases(datasets, n, sampler, region, seed)
    _run(cases, paper.run_case, out, tables.table1, processes)


@app.command()
def figure4(
    datasets: Datasets = 20,
    sampler: Samplers = list(SAMPLERS),  # noqa: B006
    n: Sizes = list(SIZES),  # noqa: B006
    seed: FirstSeed = 0,
    out: Out = RESULTS / "figure4_here.csv",
) -> None:
    """Median regression: computation time of the three methods, one calibration at a time."""
    _require_choices("--sampler", sampler, SAMPLERS)
    from studies import paper, tables

    _run(paper.table1_cases(datasets, n, sampler, ["box"], seed), paper.run_case, out, tables.times)


@app.command()
def figure5(
    datasets: Datasets = 20,
    sampler: Samplers = list(SAMPLERS),  # noqa: B006
    seed: FirstSeed = 0,
    out: Out = RESULTS / "heart_disease.csv",
) -> None:
    """Heart disease SVM over seeds: computation time and eta, one calibration at a time."""
    _require_choices("--sampler", sampler, SAMPLERS)
    from studies import paper, tables

    _run(paper.figure5_cases(datasets, sampler, seed), paper.run_case, out, tables.figure5)


@app.command(name="misspecified")
def misspecified_(
    datasets: Datasets = 200,
    error: Annotated[list[str], typer.Option(help=f"{', '.join(ERRORS)}; may be repeated.")] = list(ERRORS),  # noqa: B006
    loss: Annotated[list[str], typer.Option(help=f"{', '.join(LOSSES)}; may be repeated.")] = list(LOSSES),  # noqa: B006
    seed: FirstSeed = 0,
    processes: Processes = CORES,
    out: Out = RESULTS / "misspecified.csv.gz",
) -> None:
    """Coverage of the minimiser of the population risk, for three losses and four error distributions."""
    _require_choices("--error", error, ERRORS)
    _require_choices("--loss", loss, LOSSES)
    from studies import misspecified, tables

    cases = misspecified.cases(datasets, error, loss, seed)
    _run(cases, misspecified.run_case, out, tables.misspecified, processes)


@app.command(name="survival")
def survival_(
    datasets: Datasets = 1_000,
    hazard: Annotated[list[str], typer.Option(help=f"{'; '.join(HAZARDS)}; may be repeated.")] = list(HAZARDS),  # noqa: B006
    seed: FirstSeed = 0,
    processes: Processes = CORES,
    out: Out = RESULTS / "survival.csv.gz",
) -> None:
    """Coverage of the log hazard ratios of Cox's model, with and without proportional hazards."""
    _require_choices("--hazard", hazard, HAZARDS)
    from studies import survival, tables

    summarise = partial(tables.misspecified, problems="hazards")
    _run(survival.cases(datasets, hazard, seed), survival.run_case, out, summarise, processes)


@app.command(name="open")
def open_(
    datasets: Datasets = 20,
    seed: FirstSeed = 0,
    processes: Processes = CORES,
    out: Out = RESULTS / "open_question.csv",
) -> None:
    """Variants that might explain the paper's eta of 1.1 at N 1,600, and of 0.09 for the SVM."""
    from studies import open_question, tables

    _run(open_question.cases(datasets, seed), open_question.run_case, out, tables.by_variant, processes)


@app.command(name="head-to-head")
def head_to_head_(
    datasets: Datasets = 500,
    loss: Annotated[list[str], typer.Option(help=f"{', '.join((*names.LOSSES, names.WIDE))}; may be repeated.")] = [  # noqa: B006
        *names.LOSSES,
        names.WIDE,
    ],
    design: Annotated[list[str], typer.Option(help=f"{', '.join(names.DESIGNS)}; may be repeated.")] = [  # noqa: B006
        *names.DESIGNS
    ],
    n: Sizes = list(names.SIZES),  # noqa: B006
    seed: FirstSeed = 0,
    processes: Processes = CORES,
    out: Annotated[Path, typer.Option(help="Folder of results.")] = RESULTS / names.FOLDER,
) -> None:
    """Intervals of a slope by several methods for the learning rate, in many designs. One thread a process.

    Other software is run by python -m studies.head_to_head.rivals, in an environment of its own.
    """
    _require_choices("--loss", loss, (*names.LOSSES, names.WIDE))
    _require_choices("--design", design, names.DESIGNS)
    _require_choices("--n", n, names.SIZES)
    os.environ.update(ONE_THREAD)
    from studies.head_to_head import cells, ours, tables
    from studies.records import RecordFolder

    with _bad_file():
        folder = RecordFolder(out)
    cases = ours.cases(range(seed, seed + datasets), loss, design, n)
    finished = _run_cases(
        cases, ours.run_case, folder, lambda records: tables.scoreboard(cells.cells(records), cells.OURS), processes
    )
    folder.compact()
    if not finished:
        raise typer.Exit(130)


@app.command(name="many")
def many_(
    datasets: Datasets = 200,
    parameters: Annotated[list[int], typer.Option("--k", help="Number of parameters; may be repeated.", min=3)] = list(  # noqa: B006
        MANY_SIZES
    ),
    seed: FirstSeed = 0,
    processes: Processes = 1,
    out: Annotated[Path, typer.Option(help="Folder of results.")] = RESULTS / MANY_FOLDER,
) -> None:
    """Coverage of the ellipsoid with many parameters, for median regression. One thread a process."""
    os.environ.update(ONE_THREAD)
    from studies import many_parameters
    from studies.records import RecordFolder

    with _bad_file():
        folder = RecordFolder(out)
    cases = many_parameters.cases(datasets, parameters, seed)
    finished = _run_cases(cases, many_parameters.run_case, folder, many_parameters.summarise, processes)
    folder.compact()
    if not finished:
        raise typer.Exit(130)


@app.command()
def exact(
    n: Annotated[int, typer.Option(help="Number of observations.", min=10)] = 100,
    table: Annotated[Path, typer.Option(help="Results of table 1.")] = RESULTS / "median_regression.csv.gz",
    out: Annotated[Path, typer.Option(help="JSON file of results.")] = RESULTS / "exact.json",
) -> None:
    """Table 1 by exact integration: whether the HPD sets of transport contain the true parameter."""
    from studies import exact as exact_
    from studies.store import Store

    with _bad_file():
        lines = Store(table).lines
    Console().print(exact_.run(lines, n, out))


@app.command()
def page(
    results: Annotated[Path, typer.Option(help="Folder of the stored results.")] = RESULTS,
    docs: Annotated[Path, typer.Option(help="Folder to write the page and its figures to.")] = Path("docs"),
    readme: Annotated[Path | None, typer.Option(help="File to write the short table into.")] = None,
) -> None:
    """Write the results page and its figures from the stored results."""
    try:
        from studies.page import write
    except ImportError as error:
        raise typer.BadParameter("The page needs matplotlib: pip install 'calibayes[plots]'.") from error
    try:
        for path in write(results, docs, readme):
            typer.echo(path)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _run(
    cases: "Sequence[Case]",
    run_case: "RunCase",
    out: Path,
    summarise: "Callable[[Sequence[Line]], Table]",
    processes: int = 1,
) -> None:
    # Modules that import jax are imported here, so that --help is printed without delay.
    from studies.store import Store

    with _bad_file():
        store = Store(out)
    finished = _run_cases(cases, run_case, store, summarise, processes)
    if out.suffix == ".gz":
        store.compact()
    if not finished:
        raise typer.Exit(130)


def _run_cases(
    cases: "Sequence[Case]",
    run_case: "RunCase",
    store: "ResultsFile",
    summarise: "Callable[[Sequence[Any]], Table]",
    processes: int,
) -> bool:
    """Run the cases that are not stored yet and print the summary; return whether the study was not interrupted."""
    from studies.runner import run

    console = Console()
    finished = run(cases, run_case, store, console, processes)
    console.print(summarise(store.lines).rich())
    return finished


@contextmanager
def _bad_file() -> Iterator[None]:
    """Turn the error of an invalid results file into an error of the command line."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _require_choices(option: str, values: Sequence[object], choices: Sequence[object]) -> None:
    for value in values:
        if value not in choices:
            raise typer.BadParameter(f"{option} must be one of {', '.join(map(str, choices))}; got {value!r}.")
