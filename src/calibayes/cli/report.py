"""The command `calibayes report`: write the HTML report of a saved result."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

import typer

import calibayes as cb
from calibayes._backend.distributed import is_main_process
from calibayes._backend.text import printable
from calibayes.compare import Comparison
from calibayes.result import Intervals, Result


def report(
    result: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Result saved by fit --save, .nc.", exists=True, dir_okay=False),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="HTML report to write.", show_default="next to the result"),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
) -> None:
    """Write the HTML report of a saved result."""
    if out is None and result.with_suffix(".html").exists():
        file = printable(str(result.with_suffix(".html")))
        raise typer.BadParameter(f"{file} exists: write to another file with --out, or replace it with --out {file}.")
    out = result.with_suffix(".html") if out is None else out
    require_writable(out, ".html")
    try:
        loaded = cb.load(result)
    except (ValueError, OSError, ImportError) as error:
        raise typer.BadParameter(str(error)) from None
    if not write_output(out, lambda path: write_report(loaded, path, loaded.computed_intervals, title=title)):
        raise typer.Exit(1)


def write_report(
    result: Result,
    path: Path,
    intervals: Intervals | None,
    comparison: Comparison | None = None,
    title: str | None = None,
) -> None:
    """Write the HTML report with these intervals, or without intervals."""
    from calibayes.report import write

    write(result, path, title=title, intervals=False if intervals is None else intervals, comparison=comparison)


def require_writable(path: Path | None, *suffixes: str) -> None:
    """Raise an error before the calibration if the output file has a wrong suffix or cannot be written."""
    if path is None:
        return
    if path.suffix not in suffixes:
        raise typer.BadParameter(f"{path} must end in {' or '.join(suffixes)}.")
    if not path.parent.is_dir():
        raise typer.BadParameter(f"the folder {path.parent} for {path.name} does not exist.")
    try:
        if path.exists():
            path.open("ab").close()
        else:
            TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be written: {error.strerror}.") from None


def write_output(path: Path, write: Callable[[Path], object], quiet: bool = False) -> bool:
    """Write an output file and say so, unless `quiet`; print an error and return False if it cannot be written."""
    try:
        write(path)
    except OSError as error:
        typer.echo(f"{printable(str(path))} was not written: {printable(error.strerror or str(error))}.", err=True)
        return False
    if is_main_process() and not quiet:
        typer.echo(f"wrote {printable(str(path))}")
    return True
