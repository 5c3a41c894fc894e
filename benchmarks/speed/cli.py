"""The command `calibayes bench`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from benchmarks.speed import PARTS, chosen, measure

if TYPE_CHECKING:
    from benchmarks.speed.measured import Measured

app = typer.Typer()


@app.command()
def bench(
    json: Annotated[
        Path | None, typer.Option(help="File to keep the figures in; parts that are in it already are replaced.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, and the short parts unless told.")] = False,
    only: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(PARTS)}; may be repeated.")] = None,
    page: Annotated[
        bool, typer.Option("--page", help="Measure nothing: write the page from the stored bench_*.json.")
    ] = False,
    results: Annotated[Path, typer.Option(help="Folder of the stored figures, for the page.")] = Path("results"),
    docs: Annotated[Path, typer.Option(help="Folder to write the page and its plot to.")] = Path("docs"),
) -> None:
    """Speed, as ratios measured side by side: against loops by hand, the paper's algorithms, BlackJAX and NumPyro."""
    try:
        if page:
            _page(results, docs)
        else:
            _measure(json, quick, only or [])
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _page(results: Path, docs: Path) -> None:
    try:
        from benchmarks.speed.page import write
    except ImportError as error:
        raise typer.BadParameter("the page needs matplotlib: pip install 'calibayes[plots]'.") from error
    for path in write(results, docs):
        typer.echo(path)


def _measure(json: Path | None, quick: bool, only: list[str]) -> None:
    names = chosen(only, quick)
    # Nothing that computes is imported before it is asked for, so that help comes at once.
    from benchmarks.speed import problems
    from benchmarks.speed.measured import Report

    console = Console()
    report = Report.here(json)
    console.print(f"{report.machine}\n", highlight=False)

    for name in names:
        with console.status(f"{PARTS[name].title}, {'minutes' if PARTS[name].long and not quick else 'seconds'}"):
            measured = measure(name, problems.QUICK if quick else problems.Sizes())
        report.add(name, measured)
        _show(console, name, measured)


def _show(console: Console, name: str, measured: "Measured") -> None:
    from benchmarks.speed import tables

    console.print(f"[bold]{PARTS[name].title}[/bold] ({name})")
    for table in (tables.ratios(measured.ratios), tables.slopes(measured), tables.roofline(measured)):
        if table.rows:
            console.print(table.rich())
    for line in tables.notes(measured):
        console.print(f"- {line}", style="dim", highlight=False)
    for line in measured.skipped:
        console.print(f"Not measured: {line}", style="dim")
    console.print()
