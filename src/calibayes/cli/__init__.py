"""The command line: `calibayes demo`, `fit`, `report` and `version`."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from typer.core import TyperGroup

import calibayes as cb
from calibayes._backend.text import printable
from calibayes.cli import demo, fit, report


class Commands(TyperGroup):
    """All commands; their errors and warnings are printed without control characters."""

    def make_context(self, info_name, args, parent=None, **extra):
        with _printable_messages():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx):
        with _printable_messages():
            return super().invoke(ctx)


@contextmanager
def _printable_messages() -> Iterator[None]:
    """Escape control characters, for example from names of columns or files, in warnings and in errors of Typer."""
    format_warning = warnings.formatwarning

    def format_printable(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        return printable(format_warning(message, category, filename, lineno, line), multiline=True)

    warnings.formatwarning = format_printable
    try:
        yield
    except Exception as error:
        message = getattr(error, "message", None)
        if hasattr(error, "format_message") and isinstance(message, str):
            error.message = printable(message, multiline=True)  # type: ignore[attr-defined]
        raise
    finally:
        warnings.formatwarning = format_warning


app = typer.Typer(cls=Commands, add_completion=True, no_args_is_help=True, pretty_exceptions_enable=False)

app.command(no_args_is_help=True, epilog=fit.EXAMPLES)(fit.fit)
app.command(no_args_is_help=True)(report.report)
app.command()(demo.demo)


def _print_version(requested: bool) -> bool:
    if requested:
        typer.echo(cb.__version__)
        raise typer.Exit
    return requested


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Choose the learning rate of generalized posteriors such that credible sets have their nominal coverage."""


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(cb.__version__)
