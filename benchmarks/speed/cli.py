"""The command line of the speed benchmark: `python -m benchmarks.speed`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from benchmarks.speed import PARTS, measure, select_parts

if TYPE_CHECKING:
    from benchmarks.speed.measurement import Measurements

app = typer.Typer()


@app.command()
def main(
    json: Annotated[
        Path | None, typer.Option(help="File to store the measurements in; parts that it already has are replaced.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes; by default only the short parts.")] = False,
    only: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(PARTS)}; may be repeated.")] = None,
    page: Annotated[
        bool, typer.Option("--page", help="Write the page from the stored bench_*.json files; measure nothing.")
    ] = False,
    results: Annotated[Path, typer.Option(help="Folder of the stored measurements, for the page.")] = Path("results"),
    docs: Annotated[Path, typer.Option(help="Folder to write the page and its plot to.")] = Path("docs"),
) -> None:
    """Measure speed as ratios: against handwritten loops, the paper's algorithms, BlackJAX and NumPyro."""
    try:
        if page:
            _write_page(results, docs)
        else:
            _measure(json, quick, only or [])
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _write_page(results: Path, docs: Path) -> None:
    try:
        from benchmarks.speed.page import write
    except ImportError as error:
        raise typer.BadParameter("The page needs matplotlib: pip install 'calibayes[plots]'.") from error
    for path in write(results, docs):
        typer.echo(path)


def _measure(json: Path | None, quick: bool, only: list[str]) -> None:
    names = select_parts(only, quick)
    # Modules that import jax are imported here, so that --help is printed without delay.
    from benchmarks.speed import problems
    from benchmarks.speed.measurement import Report

    console = Console()
    report = Report.for_this_machine(json)
    console.print(f"{report.machine}\n", highlight=False)

    for name in names:
        with console.status(f"{PARTS[name].title}, {'minutes' if PARTS[name].long and not quick else 'seconds'}"):
            measurements = measure(name, problems.QUICK if quick else problems.Sizes())
        report.add(name, measurements)
        _print(console, name, measurements)


def _print(console: Console, name: str, measurements: "Measurements") -> None:
    from benchmarks.speed import tables

    console.print(f"[bold]{PARTS[name].title}[/bold] ({name})")
    for table in (tables.ratios(measurements.ratios), tables.slopes(measurements), tables.roofline(measurements)):
        if table.rows:
            console.print(table.rich())
    for line in tables.notes(measurements):
        console.print(f"- {line}", style="dim", highlight=False)
    for line in measurements.skipped:
        console.print(f"Not measured: {line}", style="dim")
    console.print()
