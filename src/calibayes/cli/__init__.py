"""The command line: `calibayes demo`, `fit`, `report` and `version`."""

from typing import Annotated

import typer

import calibayes as cb
from calibayes.cli import demo, fit, report

app = typer.Typer(add_completion=True, no_args_is_help=True, pretty_exceptions_enable=False)

app.command(no_args_is_help=True)(fit.fit)
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
