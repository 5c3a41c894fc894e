"""The command line: `calibayes demo`, `fit`, `report` and `version`."""

import os
import warnings
from pathlib import Path
from typing import Annotated

import jax
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
    version: Annotated[  # noqa: ARG001
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Choose the learning rate of generalized posteriors such that credible sets have their nominal coverage."""
    enable_compilation_cache()


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(cb.__version__)


def enable_compilation_cache() -> None:
    """Keep compiled programs for the next command in JAX's persistent cache, unless the user has configured one."""
    if jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "calibayes"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        # The default of one second would leave out programs that together take most of the time of a short command.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    # A truncated cache entry is not an error: the program is compiled again.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
