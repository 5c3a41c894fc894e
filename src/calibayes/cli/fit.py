"""The command `calibayes fit`: from a table in a file to calibrated intervals."""

import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import typer
from rich.console import Console

import calibayes as cb
from calibayes._backend.distributed import is_main_process, join_processes
from calibayes._backend.text import printable
from calibayes.cli import options
from calibayes.cli.output import FitSummary, print_summary, to_json
from calibayes.cli.report import require_writable, write_output, write_report
from calibayes.compare import compare_with
from calibayes.losses import LinearLoss
from calibayes.tables.columns import Roles, is_survival, select_columns
from calibayes.tables.files import read_table
from calibayes.tables.linear import LinearModel
from calibayes.tables.parts import linear_model_in_parts

EXAMPLES = """Examples:

calibayes fit wages.csv --target wage --tau 0.9 --report wages.html

calibayes fit survey.csv --formula "income ~ age + C(region)" --weights w --cluster household --table income.tex

calibayes fit trial.parquet --target cured --loss logistic --columns dose,age --method matching --compare
"""
"""Commands that `calibayes fit --help` shows."""


def fit(
    data: options.DataArgument,
    target: options.TargetOption = None,
    columns: options.ColumnsOption = None,
    formula: options.FormulaOption = None,
    allow_python: options.AllowPythonOption = False,
    no_intercept: options.NoInterceptOption = False,
    positive: options.PositiveOption = None,
    na: options.NaOption = None,
    drop_missing: options.DropMissingOption = False,
    loss: options.LossOption = options.Loss.quantile,
    tau: options.TauOption = None,
    delta: options.DeltaOption = None,
    level: options.LevelOption = 0.95,
    region: options.RegionOption = options.Region.hpd,
    method: options.MethodOption = options.Method.gpc,
    shape: options.ShapeOption = None,
    bootstrap: options.BootstrapOption = 2_000,
    cluster: options.ClusterOption = None,
    strata: options.StrataOption = None,
    block: options.BlockOption = None,
    weights: options.WeightsOption = None,
    seed: options.SeedOption = 0,
    compare: options.CompareOption = False,
    json: options.JsonOption = False,
    report: options.ReportOption = None,
    table: options.TableOption = None,
    save: options.SaveOption = None,
    strict: options.StrictOption = False,
    alone: options.AloneOption = False,
    checkpoint: options.CheckpointOption = None,
) -> None:
    """Fit a linear model to a table, with a calibrated credible interval for each coefficient.

    No distribution of the errors is assumed: intervals are calibrated on bootstrap replicates of the rows or clusters.

    Several devices are used if the problem is large enough. Processes started by srun or mpirun share the work.

    Exit status: 0 if everything converged; 1 if not, if there is no result, or if a file cannot be written; 2 for
    invalid input. With --strict, 1 also if there are warnings.
    """
    if not alone:
        join_processes()
    survival = formula is not None and is_survival(formula)
    if survival and not (loss == options.Loss.quantile and tau is delta is positive is None):
        raise typer.BadParameter("Surv(...) ~ is Cox's model: leave out --loss, --tau, --delta and --positive.")
    linear_loss = _make_loss(loss, tau, delta)
    _require_writable(save, report, table)
    default_delta, roles = loss == options.Loss.huber and delta is None, Roles(cluster, weights, strata)
    with _input_errors():
        model: LinearModel | None = None
        if formula is None and not roles.names and not survival and block is None:
            model = linear_model_in_parts(
                data, target, columns, not no_intercept, linear_loss, positive, default_delta, bootstrap
            )
        if model is None:
            selection = select_columns(
                read_table(data, na or []),
                target,
                columns=columns,
                formula=formula,
                intercept=not no_intercept,
                roles=roles,
                drop_missing=drop_missing,
                allow_python=allow_python,
                classes=linear_loss.margin,
            )
            if survival:
                model = LinearModel.of_survival(selection)
            else:
                model = LinearModel.of(selection, linear_loss, positive, default_delta)
    settings: dict[str, Any] = {
        "level": level,
        "region": region.value,
        "method": method.value,
        "shape": None if shape is None else shape.value,
        "bootstrap": bootstrap,
        "block": block,
        "call": shlex.join(["calibayes", *sys.argv[1:]]),
        "file": data.name,
        "seed": seed,
        "checkpoint": checkpoint,
    }
    started = time.perf_counter()
    with _recorded_warnings() as recorded:
        with _input_errors():
            result = model.calibrate(**settings)
        with Console(stderr=True, quiet=not is_main_process()).status("calibrating the interval of each coefficient"):
            intervals = result.intervals()
        comparison = compare_with(result, seconds=time.perf_counter() - started) if compare else None
    summary = FitSummary(result, intervals, model, recorded, comparison, strict)
    if is_main_process():
        # Before the files are written, which may fail.
        if json:
            typer.echo(to_json(summary))
        else:
            print_summary(summary)
    outputs: list[tuple[Path | None, Callable[[Path], object]]] = [
        (save, result.save),
        (report, lambda path: write_report(result, path, intervals, comparison)),
        (table, lambda path: _write_table(intervals, path)),
    ]
    is_written = [write_output(path, write, quiet=json) for path, write in outputs if path is not None]
    raise typer.Exit(summary.exit_code if all(is_written) else 1)


def _require_writable(save: Path | None, report: Path | None, table: Path | None) -> None:
    """Raise an error before the calibration if an output file cannot be written."""
    require_writable(save, ".nc")
    require_writable(report, ".html")
    require_writable(table, *_TABLES)
    if save is not None and find_spec("arviz_base") is None:
        raise typer.BadParameter("--save needs ArviZ: pip install 'calibayes[arviz]'.")


def _write_table(intervals: cb.Intervals, path: Path) -> None:
    """Write the table of coefficients in the format of the suffix."""
    if is_main_process():
        path.write_text(_TABLES[path.suffix](intervals).rstrip("\n") + "\n", encoding="utf-8")


_TABLES: dict[str, Callable[[cb.Intervals], str]] = {
    ".tex": cb.Intervals.to_latex,
    ".md": cb.Intervals.to_markdown,
    ".csv": cb.Intervals.to_csv,
}
"""Functions that write the table of coefficients, by the suffix of the file."""


def _make_loss(name: options.Loss, tau: float | None, delta: float | None) -> LinearLoss:
    if tau is not None and name not in (options.Loss.quantile, options.Loss.expectile):
        raise typer.BadParameter(f"--tau is for the losses quantile and expectile; the loss is {name}.")
    if delta is not None and name != options.Loss.huber:
        raise typer.BadParameter(f"--delta is for the loss huber; the loss is {name}.")
    with _input_errors():
        return cb.losses.from_name(name.value, tau=tau, delta=delta)


@contextmanager
def _input_errors() -> Iterator[None]:
    """Turn errors about the input into an error of the command line, without a traceback."""
    try:
        yield
    except (ValueError, TypeError, ImportError) as error:
        raise typer.BadParameter(str(error)) from None
    except RuntimeError as error:
        if isinstance(error, jax.errors.JaxRuntimeError):
            raise
        # The input is valid, but the calibration has no result.
        typer.echo(f"Not calibrated: {printable(str(error))}", err=True)
        raise typer.Exit(1) from None


@contextmanager
def _recorded_warnings() -> Iterator[list[Warning]]:
    """Record warnings about the calibration, which are printed below the results; pass other warnings on.

    A `LongRunWarning` is printed at once, because the user is waiting.
    """
    recorded: list[Warning] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", cb.CalibrationWarning)
        record = warnings.showwarning

        def show(message: Any, category: Any, *args: Any, **kwargs: Any) -> None:
            if issubclass(category, cb.LongRunWarning):
                typer.echo(f"Note: {printable(str(message))}", err=True)
            else:
                record(message, category, *args, **kwargs)

        warnings.showwarning = show
        yield recorded
    for warning in caught:
        if isinstance(warning.message, cb.CalibrationWarning):
            recorded.append(warning.message)
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
