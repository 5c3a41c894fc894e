"""Options of `calibayes fit`: their names, help texts, parsers and shell completion."""

from collections.abc import Mapping
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from calibayes._backend.text import printable
from calibayes.tables import files


class Loss(StrEnum):
    """Losses that `--loss` accepts."""

    quantile = "quantile"
    absolute = "absolute"
    squared = "squared"
    huber = "huber"
    expectile = "expectile"
    hinge = "hinge"
    logistic = "logistic"
    poisson = "poisson"


class Region(StrEnum):
    """Joint credible regions that `--region` accepts."""

    hpd = "hpd"
    ellipsoid = "ellipsoid"
    box = "box"
    simultaneous = "simultaneous"


class Method(StrEnum):
    """Methods for the learning rate that `--method` accepts."""

    gpc = "gpc"
    gpc_studentized = "gpc-studentized"
    gpc_double = "gpc-double"
    matching = "matching"
    lyddon_holmes_walker = "lyddon-holmes-walker"
    holmes_walker = "holmes-walker"
    safe_bayes = "safe-bayes"
    bayesbag = "bayesbag"
    posterior_bootstrap = "posterior-bootstrap"
    q_posterior = "q-posterior"


class Shape(StrEnum):
    """Shapes of the posterior that `--shape` accepts."""

    sandwich = "sandwich"


LOSS_SYNONYMS = {
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
"""Common names of losses, for which an error message suggests the accepted name."""

_DATA_PANEL, _CALIBRATION_PANEL, _OUTPUT_PANEL = "Data", "Calibration", "Output"


def _choice(choices: type[StrEnum], synonyms: Mapping[str, StrEnum]) -> dict[str, Any]:
    """Return parser and completion of an option that accepts one of several names, with hints for other names."""

    def parse(text: str) -> StrEnum:
        name = str(text).lower()
        if name in list(choices):
            return choices(name)
        close = [synonyms[name]] if name in synonyms else get_close_matches(name, choices, n=1)
        hint = f"Did you mean {close[0]}? " if close else ""
        raise typer.BadParameter(f"{text!r} is not available. {hint}Choose one of {', '.join(choices)}.")

    def complete(incomplete: str) -> list[str]:
        return [name for name in choices if name.startswith(incomplete)]

    return {"parser": parse, "autocompletion": complete}


def complete_column(ctx: Any, incomplete: str) -> list[str]:
    """Return the columns of the data file on an unfinished command line that start with `incomplete`."""
    # Click leaves the file among the other arguments while the command line is unfinished.
    for path in [ctx.params.get("data"), *ctx.args]:
        try:
            names = files.read_header(Path(path))
            return [name for name in names if name.startswith(incomplete) and name == printable(name)]
        except (TypeError, ValueError, OSError, ImportError):
            continue
    return []


DataArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help=f"Table with a header: {', '.join(files.SUFFIXES)}.", exists=True, dir_okay=False
    ),
]
TargetOption = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN", help="Column to predict.", autocompletion=complete_column, rich_help_panel=_DATA_PANEL
    ),
]
ColumnsOption = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,C",
        help="Columns to predict from, separated by commas.",
        show_default="all others",
        rich_help_panel=_DATA_PANEL,
    ),
]
FormulaOption = Annotated[
    str | None,
    typer.Option(
        metavar="FORMULA",
        help='Formula instead of target and columns: "y ~ a + log(b) + C(c)"; C() makes categories. Put names with '
        "spaces in `backticks`.",
        rich_help_panel=_DATA_PANEL,
    ),
]
AllowPythonOption = Annotated[
    bool,
    typer.Option(
        "--allow-python",
        metavar="",
        help="Run expressions of the formula as Python instead of allowing a list of functions. A formula can then do "
        "anything on this computer: use it only with formulas that you trust.",
        rich_help_panel=_DATA_PANEL,
    ),
]
NoInterceptOption = Annotated[
    bool, typer.Option("--no-intercept", metavar="", help="Fit without an intercept.", rich_help_panel=_DATA_PANEL)
]
PositiveOption = Annotated[
    str | None,
    typer.Option(
        metavar="LABEL",
        help="Label of the positive class, for the losses hinge and logistic.",
        show_default="the larger label",
        rich_help_panel=_DATA_PANEL,
    ),
]
NaOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT", help='Further text for a missing value, such as "?"; repeatable.', rich_help_panel=_DATA_PANEL
    ),
]
DropMissingOption = Annotated[
    bool, typer.Option("--drop-missing", metavar="", help="Drop rows with missing values.", rich_help_panel=_DATA_PANEL)
]
LossOption = Annotated[
    Loss,
    typer.Option(
        metavar="LOSS",
        help=f"One of {', '.join(Loss)}.",
        rich_help_panel=_CALIBRATION_PANEL,
        **_choice(Loss, LOSS_SYNONYMS),
    ),
]
TauOption = Annotated[
    float | None,
    typer.Option(
        metavar="TAU",
        help="Level of the quantile or expectile.",
        show_default="0.5",
        rich_help_panel=_CALIBRATION_PANEL,
    ),
]
DeltaOption = Annotated[
    float | None,
    typer.Option(
        metavar="DELTA",
        help="Residual beyond which Huber's loss is linear, in units of the target.",
        show_default="1.345 robust standard deviations of the residuals",
        rich_help_panel=_CALIBRATION_PANEL,
    ),
]
LevelOption = Annotated[
    float,
    typer.Option(metavar="LEVEL", help="Level of the credible intervals.", rich_help_panel=_CALIBRATION_PANEL),
]
RegionOption = Annotated[
    Region,
    typer.Option(
        metavar="REGION",
        help=f"Region for the joint learning rate: one of {', '.join(Region)}.",
        rich_help_panel=_CALIBRATION_PANEL,
        **_choice(Region, {}),
    ),
]
MethodOption = Annotated[
    Method,
    typer.Option(
        metavar="METHOD",
        help=f"How the learning rate is set: one of {', '.join(Method)}.",
        rich_help_panel=_CALIBRATION_PANEL,
        **_choice(Method, {}),
    ),
]
ShapeOption = Annotated[
    Shape | None,
    typer.Option(
        metavar="SHAPE",
        help="Shape of the posterior: sandwich, so that one learning rate calibrates all intervals.",
        show_default="that of the loss and the prior",
        rich_help_panel=_CALIBRATION_PANEL,
        **_choice(Shape, {}),
    ),
]
CompareOption = Annotated[
    bool,
    typer.Option(
        "--compare",
        metavar="",
        help="Compare the methods for the learning rate, on the same replicates.",
        rich_help_panel=_OUTPUT_PANEL,
    ),
]
BootstrapOption = Annotated[
    int, typer.Option(metavar="N", help="Number of bootstrap replicates.", rich_help_panel=_CALIBRATION_PANEL)
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Column with groups of dependent rows, which the bootstrap resamples as a whole.",
        autocompletion=complete_column,
        rich_help_panel=_CALIBRATION_PANEL,
    ),
]
StrataOption = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Column with strata, within which the bootstrap resamples rows or clusters.",
        autocompletion=complete_column,
        rich_help_panel=_CALIBRATION_PANEL,
    ),
]
BlockOption = Annotated[
    int | None,
    typer.Option(
        metavar="LENGTH",
        help="Resample blocks of this many consecutive rows, for serially dependent rows in order of time.",
        show_default="independent rows",
        rich_help_panel=_CALIBRATION_PANEL,
    ),
]
WeightsOption = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Column with weights of the rows: numbers of repetitions if all are integers, survey weights otherwise.",
        autocompletion=complete_column,
        rich_help_panel=_CALIBRATION_PANEL,
    ),
]
SeedOption = Annotated[
    int, typer.Option(metavar="N", help="Seed of the random numbers.", rich_help_panel=_CALIBRATION_PANEL)
]
JsonOption = Annotated[
    bool,
    typer.Option("--json", metavar="", help="Print one JSON object instead of text.", rich_help_panel=_OUTPUT_PANEL),
]
ReportOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="HTML report to write.", dir_okay=False, rich_help_panel=_OUTPUT_PANEL),
]
TableOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Table of coefficients to write, by its suffix as LaTeX (.tex), Markdown (.md) or CSV (.csv).",
        dir_okay=False,
        rich_help_panel=_OUTPUT_PANEL,
    ),
]
StrictOption = Annotated[
    bool,
    typer.Option(
        "--strict", metavar="", help="Exit with status 1 also if there are warnings.", rich_help_panel=_OUTPUT_PANEL
    ),
]
SaveOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="File for the result, ending in .nc.", dir_okay=False, rich_help_panel=_OUTPUT_PANEL
    ),
]
AloneOption = Annotated[
    bool,
    typer.Option(
        "--alone",
        metavar="",
        help="Run without the other processes started by srun or mpirun.",
        rich_help_panel=_OUTPUT_PANEL,
    ),
]
CheckpointOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File for intermediate results. After an interruption, the same command continues from there.",
        dir_okay=False,
        rich_help_panel=_OUTPUT_PANEL,
    ),
]
