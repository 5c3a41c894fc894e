"""The commands `fit` and `report`: from a table in a file to calibrated intervals, without Python."""

import math
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer
from rich.console import Console

import calibayes as cb
from calibayes._backend.distributed import join, leads
from calibayes.cli import tables
from calibayes.cli.output import Fitted, as_json, show
from calibayes.design import Design
from calibayes.losses import LinearLoss
from calibayes.result import Intervals, Result

app = typer.Typer()


class Loss(StrEnum):
    quantile = "quantile"
    absolute = "absolute"
    squared = "squared"
    huber = "huber"
    expectile = "expectile"
    hinge = "hinge"
    logistic = "logistic"


class Region(StrEnum):
    hpd = "hpd"
    ellipsoid = "ellipsoid"
    box = "box"
    simultaneous = "simultaneous"


_PLAIN: dict[Loss, Callable[[], LinearLoss]] = {
    Loss.absolute: cb.losses.Absolute,
    Loss.squared: cb.losses.Squared,
    Loss.hinge: cb.losses.Hinge,
    Loss.logistic: cb.losses.Logistic,
}
_ALSO_CALLED = {
    "median": Loss.quantile,
    "pinball": Loss.quantile,
    "check": Loss.quantile,
    "mae": Loss.absolute,
    "l1": Loss.absolute,
    "mean": Loss.squared,
    "mse": Loss.squared,
    "ols": Loss.squared,
    "l2": Loss.squared,
    "robust": Loss.huber,
    "svm": Loss.hinge,
    "logit": Loss.logistic,
    "binomial": Loss.logistic,
}
"""Words that people may try; `--tau` is 0.5 unless told, so that quantile is the median."""
_TABLE, _CALIBRATION, _OUTPUT = "Which columns", "Calibration", "Output"


def _one_of(names: type[StrEnum], also: Mapping[str, StrEnum]) -> dict[str, Any]:
    """How an option takes one of some names; a near miss is told which was meant."""

    def parse(text: str) -> StrEnum:
        given = str(text).lower()
        if given in list(names):
            return names(given)
        close = [also[given]] if given in also else get_close_matches(given, names, n=1)
        hint = f"Did you mean {close[0]}? " if close else ""
        raise typer.BadParameter(f"there is no {text!r}. {hint}There are {', '.join(names)}.")

    return {"parser": parse, "autocompletion": lambda incomplete: [n for n in names if n.startswith(incomplete)]}


def _columns(ctx: Any, incomplete: str) -> list[str]:
    """Names to complete from the header of the file on the line, which a line cut short leaves among the rest."""
    for path in [ctx.params.get("data"), *ctx.args]:
        try:
            return [name for name in tables.header(Path(path)) if name.startswith(incomplete)]
        except (TypeError, ValueError, OSError, ImportError):
            continue
    return []


@app.command(no_args_is_help=True)
def fit(
    data: Annotated[
        Path,
        typer.Argument(metavar="FILE", help=f"The table: {', '.join(tables.SUFFIXES)}.", exists=True, dir_okay=False),
    ],
    target: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="What to predict.", autocompletion=_columns, rich_help_panel=_TABLE),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(metavar="A,B,C", help="What to predict from.", show_default="all others", rich_help_panel=_TABLE),
    ] = None,
    formula: Annotated[
        str | None,
        typer.Option(
            metavar="FORMULA",
            help='Instead of these: "y ~ a + np.log(b) + C(c)". Names with spaces in `backticks`.',
            rich_help_panel=_TABLE,
        ),
    ] = None,
    no_intercept: Annotated[
        bool, typer.Option("--no-intercept", help="Leave the intercept out.", rich_help_panel=_TABLE)
    ] = False,
    positive: Annotated[
        str | None,
        typer.Option(
            metavar="LABEL",
            help="Class that is 1, for hinge and logistic.",
            show_default="the larger",
            rich_help_panel=_TABLE,
        ),
    ] = None,
    na: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT", help='Is a missing value too, as "?", besides NA; may be repeated.', rich_help_panel=_TABLE
        ),
    ] = None,
    drop_missing: Annotated[
        bool, typer.Option("--drop-missing", help="Leave out rows with missing values.", rich_help_panel=_TABLE)
    ] = False,
    loss: Annotated[
        Loss,
        typer.Option(
            metavar="LOSS",
            help=f"One of {', '.join(Loss)}.",
            rich_help_panel=_CALIBRATION,
            **_one_of(Loss, _ALSO_CALLED),
        ),
    ] = Loss.quantile,
    tau: Annotated[
        float | None,
        typer.Option(
            metavar="TAU", help="Which quantile or expectile.", show_default="0.5", rich_help_panel=_CALIBRATION
        ),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(
            metavar="DELTA",
            help="Residual from which Huber's loss is linear, in the target's units.",
            show_default="1.345 robust standard deviations of the residuals",
            rich_help_panel=_CALIBRATION,
        ),
    ] = None,
    level: Annotated[
        float, typer.Option(metavar="LEVEL", help="How often to cover.", rich_help_panel=_CALIBRATION)
    ] = 0.95,
    region: Annotated[
        Region,
        typer.Option(
            metavar="REGION",
            help=f"Joint set that the joint eta is for: one of {', '.join(Region)}.",
            rich_help_panel=_CALIBRATION,
            **_one_of(Region, {}),
        ),
    ] = Region.hpd,
    bootstrap: Annotated[
        int, typer.Option(metavar="N", help="Bootstrap samples.", rich_help_panel=_CALIBRATION)
    ] = 2_000,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Groups of rows that depend on each other, to be drawn whole.",
            autocompletion=_columns,
            rich_help_panel=_CALIBRATION,
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="N", help="The same seed gives the same answer.", rich_help_panel=_CALIBRATION)
    ] = 0,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.", rich_help_panel=_OUTPUT)
    ] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="HTML page to write.", dir_okay=False, rich_help_panel=_OUTPUT)
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="To save the result to, .nc.", dir_okay=False, rich_help_panel=_OUTPUT),
    ] = None,
    alone: Annotated[
        bool,
        typer.Option("--alone", help="Not together with other processes of srun or mpirun.", rich_help_panel=_OUTPUT),
    ] = False,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="To save to on the way: the same command, run again after it was killed, goes on from there.",
            dir_okay=False,
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
) -> None:
    """Fit a linear model to a table, with an interval for each coefficient that covers as often as it says.

    Nothing but the loss is assumed of the errors: intervals are calibrated on bootstrap samples of the rows.

    All devices are used where it is worth it. Started by srun or mpirun, its processes work as one.

    Exit status: 0 all is well; 1 not converged (printed and saved all the same, if there is anything);
    2 bad input.
    """
    if not alone:
        join()
    asked = _loss(loss, tau, delta)
    _writable(save, ".nc")
    _writable(report, ".html")
    if save is not None and find_spec("arviz_base") is None:
        raise typer.BadParameter("--save needs ArviZ: pip install 'calibayes[arviz]'.")
    with _bad_input():
        chosen = tables.choose(
            tables.read(data, na or []),
            target,
            columns=columns,
            formula=formula,
            intercept=not no_intercept,
            cluster=cluster,
            drop_missing=drop_missing,
        )
        y, classes = _target(asked, chosen, positive)
        _require_rows(len(y), chosen.columns.shape[1] + chosen.intercept)
    design = Design.of(chosen.columns, chosen.intercept)
    if loss == Loss.huber and delta is None:
        asked = cb.losses.Huber(design.usual_delta(chosen.columns, y))
    with _collected() as warned:
        with _bad_input():
            result = design.calibrate(
                asked,
                chosen.columns,
                y,
                level=level,
                region=region.value,
                bootstrap=bootstrap if chosen.groups is None else cb.bootstrap.Cluster(bootstrap, chosen.groups),
                names=chosen.names,
                call=shlex.join(["calibayes", *sys.argv[1:]]),
                seed=seed,
                checkpoint=checkpoint,
            )
        with Console(stderr=True, quiet=not leads()).status("calibrating each coefficient's interval"):
            own = result.intervals()
        if save is not None:
            result.save(save)
        if report is not None:
            _write_report(result, report, own)
    fitted = Fitted(result, own, asked, chosen, design, data.name, classes, warned)
    if not leads():
        raise typer.Exit(0 if fitted.converged else 1)
    if json:
        typer.echo(as_json(fitted))
    else:
        show(fitted)
        for path in (save, report):
            if path is not None:
                typer.echo(f"wrote {path}")
    if not fitted.converged:
        raise typer.Exit(1)


@app.command(no_args_is_help=True)
def report(
    result: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A result that fit --save has saved, .nc.", exists=True, dir_okay=False),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="HTML page.", show_default="next to the result")
    ] = None,
) -> None:
    """Write the HTML page of a saved result."""
    out = result.with_suffix(".html") if out is None else out
    _writable(out, ".html")
    try:
        loaded = cb.load(result)
    except ImportError as error:
        raise typer.BadParameter(str(error)) from None
    except (ValueError, KeyError, OSError):
        raise typer.BadParameter(f"{result} is no result that calibayes has saved.") from None
    _write_report(loaded, out, loaded.kept)
    typer.echo(f"wrote {out}")


def _loss(name: Loss, tau: float | None, delta: float | None) -> LinearLoss:
    if tau is not None and name not in (Loss.quantile, Loss.expectile):
        raise typer.BadParameter(f"--tau is for quantile and expectile; the loss is {name}.")
    if delta is not None and name != Loss.huber:
        raise typer.BadParameter(f"--delta is for huber; the loss is {name}.")
    with _bad_input():
        if name == Loss.huber:
            # Without a delta, a place for one: it is chosen when the residuals are known.
            return cb.losses.Huber(1.0 if delta is None else delta)
        if name == Loss.expectile:
            return cb.losses.Expectile(0.5 if tau is None else tau)
        if name == Loss.quantile:
            return cb.losses.Quantile(0.5 if tau is None else tau)
    return _PLAIN[name]()


def _target(loss: LinearLoss, chosen: tables.Chosen, positive: str | None) -> tuple[np.ndarray, list[str] | None]:
    """Numbers; or -1 and 1, and which class is which."""
    if loss.margin:
        return tables.signs(chosen.y, chosen.target, positive)
    if positive is not None:
        raise ValueError("--positive is for hinge and logistic, whose target has two classes.")
    return tables.numbers(chosen.y, chosen.target), None


def _require_rows(rows: int, coefficients: int) -> None:
    """A bootstrap sample holds 63% of the rows: these must be more than the coefficients."""
    needed = math.ceil(coefficients / (1 - math.exp(-1))) + 1
    if rows < needed:
        raise ValueError(
            f"{rows} rows are too few for {coefficients} coefficients: bootstrap samples would leave some open. "
            f"Take {needed} at least, or choose fewer columns with --columns."
        )


def _write_report(result: Result, path: Path, own: Intervals | None) -> None:
    from calibayes.report import write

    write(result, path, intervals=own or False)


def _writable(path: Path | None, suffix: str) -> None:
    """Before the work, not after it."""
    if path is None:
        return
    if path.suffix != suffix:
        raise typer.BadParameter(f"{path} must end in {suffix}.")
    if not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent} to write {path.name} to.")


@contextmanager
def _bad_input() -> Iterator[None]:
    """What is wrong with the input is said in a sentence, without a traceback."""
    try:
        yield
    except (ValueError, TypeError, ImportError) as error:
        raise typer.BadParameter(str(error)) from None
    except RuntimeError as error:
        if isinstance(error, jax.errors.JaxRuntimeError):
            raise
        # The data are in order, and there is no answer.
        typer.echo(f"Not calibrated: {error}", err=True)
        raise typer.Exit(1) from None


@contextmanager
def _collected() -> Iterator[list[str]]:
    """Warnings about the calibration, to be said once, below the numbers; others are passed on.

    What takes long is said at once.
    """
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", cb.CalibrationWarning)
        keep = warnings.showwarning

        def show(message: Any, category: Any, *rest: Any, **options: Any) -> None:
            if issubclass(category, cb.LongRunWarning):
                typer.echo(f"Note: {message}", err=True)
            else:
                keep(message, category, *rest, **options)

        warnings.showwarning = show
        yield said
    for warning in caught:
        if not issubclass(warning.category, cb.CalibrationWarning):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        # The result says its own.
        elif not str(warning.message).startswith("calibration:"):
            said.append(str(warning.message))
