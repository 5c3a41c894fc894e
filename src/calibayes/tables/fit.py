"""`fit`: a linear model of a data frame, given by a formula."""

import inspect
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any

from calibayes import losses
from calibayes._backend.arguments import display
from calibayes.calibrate import calibrate
from calibayes.losses import LinearLoss
from calibayes.result import Result
from calibayes.tables.columns import Roles, is_survival, select_columns
from calibayes.tables.files import DataFrame, read_table
from calibayes.tables.linear import LinearModel
from calibayes.tables.wording import python_wording


def fit(
    formula: str,
    frame: DataFrame | str | PathLike[str],
    *,
    loss: object = "quantile",
    tau: float | None = None,
    delta: float | None = None,
    positive: str | float | None = None,
    prior: object = None,
    missing: str = "raise",
    weights: object = None,
    cluster: object = None,
    strata: object = None,
    block: int | None = None,
    bootstrap: object = None,
    allow_python: bool = False,
    **options: Any,
) -> Result:
    """Fit a linear model to a data frame, with calibrated intervals of its coefficients.

    The numbers are those of `calibayes fit` on the command line for the same table, options and seed.

    Parameters
    ----------
    formula : str
        Target and predictors, such as "y ~ x1 + C(group)". Columns of text are categories; "." means all other columns.
        "Surv(time, event) ~ x1", or "Surv(entry, time, event) ~ x1" for delayed entry, is Cox's proportional hazards
        model, for which `loss` is not used; ties are those of Efron, or of Breslow if `weights` are not integers.
    frame : pandas.DataFrame, str or path
        The table. Polars frames are converted; files are read as by `calibayes fit` (CSV, TSV or Parquet).
    loss : str or LinearLoss
        One of `calibayes.losses.names()`, or a loss of `calibayes.losses`. Default: "quantile".
    tau : float, optional
        Level of the quantile or expectile. Default: 0.5.
    delta : float, optional
        Residual size beyond which Huber's loss is linear. Default: 1.345 robust standard deviations of the
        least-squares residuals.
    positive : str, number or bool, optional
        Label of the positive class, for the losses "hinge" and "logistic". Default: the larger label.
    prior : Prior, optional
        Prior of the linear prediction at the means of the columns, if there is an intercept, followed by the slopes,
        in the order of `Result.names`. Default: normal, and weak compared with the spread of the data.
    missing : str
        "raise" raises an error if a column of the model has missing values, "drop" leaves these rows out.
        Default: "raise".
    weights : str or array_like of shape (N,), optional
        Weights of the rows, or the name of their column; see `calibayes.calibrate`. Default: all one.
    cluster : str, optional
        Column with groups of dependent rows, which the bootstrap resamples as a whole. Default: independent rows.
    strata : str, optional
        Column with strata, within which the bootstrap resamples rows or clusters. Default: none.
    block : int, optional
        Length of the blocks of consecutive rows that the bootstrap resamples, for serially dependent rows.
        Default: independent rows.
    bootstrap : optional
        As for `calibayes.calibrate`; with clusters, strata or blocks the number of replicates.
    allow_python : bool
        Whether expressions of the formula are run as Python, instead of allowing a list of functions. A formula can
        then do anything on this computer. Default: False.
    **options
        Further arguments of `calibayes.calibrate`, such as `level`, `region`, `seed` and `progress`.

    Returns
    -------
    Result
        The calibration. Its parameters are the coefficients of the columns as given, not of the centred columns that
        are used for sampling. `result.settings["notes"]` says which rows and columns were dropped.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, values are missing, or the target does not suit the loss.
    ImportError
        If pandas or formulaic is not installed (`pip install 'calibayes[tables]'`).

    Examples
    --------
    >>> import calibayes as cb
    >>> import pandas as pd
    >>> X, y = cb.datasets.median_regression(n=60)
    >>> frame = pd.DataFrame({"x": X[:, 1], "y": y})
    >>> cb.fit("y ~ x", frame, bootstrap=100, sampler="transport", progress=False).names
    ['intercept', 'x']
    """
    _require_known(options)
    if missing not in ("drop", "raise"):
        raise ValueError(f'missing must be "drop" or "raise"; got {display(missing)}.')
    if isinstance(loss, LinearLoss) and (tau is not None or delta is not None):
        raise ValueError("tau and delta are for losses by name; set them in the loss object.")
    with python_wording():
        survival = isinstance(formula, str) and is_survival(formula)
        if survival and not (loss == "quantile" and tau is delta is positive is None):
            raise ValueError("Surv(...) ~ is Cox's model: leave out loss, tau, delta and positive.")
        linear_loss = losses.from_name(loss, tau=tau, delta=delta) if not isinstance(loss, LinearLoss) else loss
        file = None if hasattr(frame, "columns") else _path(frame)
        frame, weight_column = _with_weights(_as_pandas(frame) if file is None else read_table(file), weights)
        roles = Roles(_column_name("cluster", cluster), weight_column, _column_name("strata", strata))
        selection = select_columns(
            frame, None, formula=formula, roles=roles, drop_missing=missing == "drop", allow_python=allow_python
        )
        default_delta = isinstance(loss, str) and loss == "huber" and delta is None
        if survival:
            model = LinearModel.of_survival(selection)
        else:
            model = LinearModel.of(selection, linear_loss, positive, default_delta)
    given: dict[str, Any] = {"loss": loss, "tau": tau, "delta": delta, "positive": positive, "prior": prior}
    given |= {"missing": missing, "weights": weights, "cluster": cluster, "strata": strata, "block": block}
    call = _source(formula, file, given | {"bootstrap": bootstrap, "allow_python": allow_python} | options)
    name = None if file is None else file.name
    return model.calibrate(bootstrap=bootstrap, block=block, prior=prior, call=call, file=name, **options)


def _require_known(options: dict[str, Any]) -> None:
    """Raise an error for arguments that neither `fit` nor `calibrate` has, and those that `fit` sets itself."""
    own, further = (set(inspect.signature(fn).parameters) for fn in (fit, calibrate))
    known = (own - {"options"}) | (further - {"model", "data", "names"})
    for name in options:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise TypeError(f"fit has no argument {name!r}.{hint}")


def _column_name(argument: str, value: object) -> str | None:
    """Return the name of the column of clusters or strata, after checking that it is a string or None."""
    if not isinstance(value, str | None):
        raise TypeError(f"{argument} must be the name of a column of frame; got {display(value)}.")
    return value


def _source(formula: str, file: Path | None, arguments: dict[str, Any]) -> str:
    """Return the source of the call, with the arguments that differ from their defaults."""
    from calibayes.report.source import python_source

    defaults = {name: parameter.default for name, parameter in inspect.signature(fit).parameters.items()}
    changed = [
        f"{name}={python_source(value, name)}"
        for name, value in arguments.items()
        if name != "progress" and value is not defaults.get(name, inspect.Parameter.empty)
    ]
    data = "frame" if file is None else python_source(str(file))
    call = f"result = cb.fit({', '.join([python_source(formula), data, *changed])})"
    return f"import calibayes as cb\n\n{call}"


def _path(value: object) -> Path:
    """Return the path of a table."""
    if not isinstance(value, str | PathLike):
        raise TypeError(f"frame must be a pandas or polars data frame, or a file; got {type(value).__name__}.")
    return Path(value)


def _as_pandas(frame: Any) -> DataFrame:
    """Return a copy of the table as a pandas data frame whose column names are strings."""
    if hasattr(frame, "to_pandas"):
        frame = frame.to_pandas()
    if not (hasattr(frame, "columns") and hasattr(frame, "isna")):
        raise TypeError(f"frame must be a pandas or polars data frame; got {type(frame).__name__}.")
    frame = frame.copy(deep=False)
    frame.columns = [str(name) for name in frame.columns]
    repeated = frame.columns[frame.columns.duplicated()]
    if len(repeated):
        raise ValueError(f"frame has more than one column {repeated[0]!r}: rename them.")
    return frame


def _with_weights(frame: DataFrame, weights: Any) -> tuple[DataFrame, str | None]:
    """Return the table with the weights in a column, and the name of that column."""
    if weights is None or isinstance(weights, str):
        return frame, weights
    if len(weights) != len(frame):
        raise ValueError(f"weights must hold one number for each of {len(frame)} rows; got {len(weights)}.")
    name = "weights"
    while name in frame.columns:
        name += "_"
    return frame.assign(**{name: list(weights)}), name
