"""`compare`: several methods for the learning rate on the same data, draws and bootstrap replicates, in one table."""

import html
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calibayes._backend.arguments import display
from calibayes._backend.distributed import processes_out_of_sync
from calibayes._backend.text import align, printable
from calibayes._backend.warnings import CalibrationWarning
from calibayes.calibrate import calibrate
from calibayes.methods import GPC, Method, as_method, label
from calibayes.model import GibbsModel
from calibayes.result import Intervals, Result

DEFAULT_METHODS = ("gpc", "gpc-studentized", "matching", "lyddon-holmes-walker")


@dataclass(frozen=True)
class ComparedMethod:
    """One method of a comparison.

    Attributes
    ----------
    label : str
        Name of the method, with its parameters.
    result : Result or None
        Result of the method; None if it failed.
    intervals : Intervals or None
        Intervals of the parameters, each at the method's learning rate for it.
    seconds : float
        Seconds that the method took in addition to those before it in the table.
    error : str
        Why the method failed; empty if it did not.
    """

    label: str
    result: Result | None
    intervals: Intervals | None
    seconds: float
    error: str = ""


@dataclass(frozen=True, repr=False)
class Comparison:
    """Table of methods that `compare` returns.

    Attributes
    ----------
    rows : tuple of ComparedMethod
        The methods, in the order of the call.
    level : float
        Level of the sets and intervals.
    names : tuple of str
        Names of the parameters.

    Examples
    --------
    >>> comparison = cb.compare(
    ...     model, data, methods=["gpc", "matching"], bootstrap=100, sampler="transport", progress=False
    ... )
    >>> list(comparison)
    ['gpc', 'matching']
    >>> comparison["matching"].status.name
    'COMPUTED'
    """

    rows: tuple[ComparedMethod, ...]
    level: float
    names: tuple[str, ...]

    def __iter__(self) -> Iterator[str]:
        return (row.label for row in self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> Result:
        for row in self.rows:
            if row.label == name:
                if row.result is None:
                    raise ValueError(f"method {name} has no result: {row.error}")
                return row.result
        raise KeyError(name)

    def to_frame(self) -> Any:
        """Convert to a pandas data frame.

        Returns
        -------
        pandas.DataFrame
            One row per method with the columns eta, eta_se, coverage, the width of each parameter's interval, seconds,
            status and diagnostics.

        Examples
        --------
        >>> comparison = cb.compare(
        ...     model, data, methods=["gpc", "matching"], bootstrap=100, sampler="transport", progress=False
        ... )
        >>> list(comparison.to_frame().columns[:3])
        ['eta', 'eta_se', 'coverage']
        """
        import pandas as pd

        return pd.DataFrame(self.records()).set_index("method")

    def records(self) -> list[dict[str, Any]]:
        """Return the rows of the table.

        Returns
        -------
        list of dict
            The columns of `to_frame`, preceded by the name of the method.

        Examples
        --------
        >>> comparison = cb.compare(
        ...     model, data, methods=["gpc", "matching"], bootstrap=100, sampler="transport", progress=False
        ... )
        >>> [record["method"] for record in comparison.records()]
        ['gpc', 'matching']
        """
        return [self._record(row) for row in self.rows]

    def _record(self, row: ComparedMethod) -> dict[str, Any]:
        result, nothing = row.result, np.nan
        widths = np.full(len(self.names), np.nan) if row.intervals is None else np.ptp(row.intervals.bounds, 1)
        findings = [] if result is None else [finding.code.value for finding in result.diagnostics]
        if row.intervals is not None and not row.intervals.converged.all():
            failed = [name for name, ok in zip(row.intervals.names, row.intervals.converged, strict=True) if not ok]
            findings.append(f"intervals not converged: {' '.join(failed)}")
        return {
            "method": row.label,
            "eta": nothing if result is None else result.eta,
            "eta_se": nothing if result is None else result.eta_se,
            "coverage": nothing if result is None else float(result.coverage),
            **{f"width {name}": float(width) for name, width in zip(self.names, widths, strict=True)},
            "seconds": row.seconds,
            "status": "FAILED" if result is None else result.status.name,
            "diagnostics": row.error if result is None else ", ".join(findings),
        }

    def cells(self) -> list[list[str]]:
        """Return the table as text.

        Returns
        -------
        list of list of str
            The head, and one row for each method.

        Examples
        --------
        >>> comparison = cb.compare(
        ...     model, data, methods=["gpc", "matching"], bootstrap=100, sampler="transport", progress=False
        ... )
        >>> [row[0] for row in comparison.cells()]
        ['method', 'gpc', 'matching']
        """
        records = self.records()
        texts = [[value if isinstance(value, str) else f"{value:.4g}" for value in row.values()] for row in records]
        return [list(records[0]), *texts]

    @property
    def note(self) -> str:
        """Explanation of the columns."""
        return f"Coverage of {self.level:g} sets on the bootstrap replicates; widths of {self.level:g} intervals."

    def __repr__(self) -> str:
        return printable("\n".join([*align(self.cells()), "", self.note]), multiline=True)

    def _repr_html_(self) -> str:
        head, *rows = self.cells()
        cells = lambda tag, texts: "".join(f"<{tag}>{html.escape(printable(text))}</{tag}>" for text in texts)
        body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
        return f"<table><thead><tr>{cells('th', head)}</tr></thead><tbody>{body}</tbody></table>"


def compare(
    model: GibbsModel,
    data: object,
    methods: Sequence[str | Method] | None = None,
    **options: Any,
) -> Comparison:
    """Set the learning rate by several methods, on the same draws and bootstrap replicates.

    Parameters
    ----------
    model : GibbsModel
        Loss and prior.
    data : (X, y) or pytree of arrays
        As for `calibrate`.
    methods : sequence of str or Method, optional
        Methods, as for `calibrate`. Default: "gpc", "gpc-studentized", "matching" and "lyddon-holmes-walker".
    **options
        Further arguments of `calibrate`, such as `level`, `region`, `bootstrap`, `sampler` and `seed`. A time limit
        (`max_seconds`) applies only to the method that is run in full; the others reuse its draws and replicates.

    Returns
    -------
    Comparison
        A table; `comparison["matching"]` is the result of a method. A method that fails or is not available has a row
        with the reason instead of a result.

    Notes
    -----
    One method is run in full, as by `calibrate`: "gpc" if it is among the methods, otherwise the first of them. The
    others start from its particles: they cost the move of all particles to another learning rate if it is far away, and
    little otherwise.

    Examples
    --------
    >>> comparison = cb.compare(
    ...     model, data, methods=["gpc", "matching"], bootstrap=100, sampler="transport", progress=False
    ... )
    >>> len(comparison)
    2
    """
    chosen = _check_methods(DEFAULT_METHODS if methods is None else methods)
    if "method" in options:
        raise TypeError("compare takes methods=, a list of methods; got method=.")
    failed: dict[str, ComparedMethod] = {}
    errors: list[Exception] = []
    for method in sorted(chosen, key=lambda method: not isinstance(method, GPC)):
        started = time.perf_counter()
        try:
            with warnings.catch_warnings():
                # The table shows status and diagnostics.
                warnings.simplefilter("ignore", CalibrationWarning)
                base = calibrate(model, data, method=method, **options)
        except (ValueError, RuntimeError) as error:
            if processes_out_of_sync(error):
                raise
            errors.append(error)
            failed[label(method)] = _failure(method, error, started)
            continue
        others = [method for method in chosen if label(method) not in failed]
        comparison = compare_with(base, others, seconds=time.perf_counter() - started)
        rows = failed | {row.label: row for row in comparison.rows}
        return replace(comparison, rows=tuple(rows[label(method)] for method in chosen))
    raise errors[0]


def compare_with(
    result: Result, methods: Sequence[str | Method] | None = None, *, seconds: float = math.nan
) -> Comparison:
    """Compare the method of a finished calibration with others, on its draws and bootstrap replicates.

    Parameters
    ----------
    result : Result
        Result of `calibrate` that was computed in this process.
    methods : sequence of str or Method, optional
        Methods, as for `compare`. The method of the result is put first if it is not among them.
    seconds : float
        Seconds that the calibration took, for the table. Default: unknown.

    Returns
    -------
    Comparison

    Raises
    ------
    RuntimeError
        If the result was loaded from a file and therefore has no particles.

    Examples
    --------
    >>> from calibayes.compare import compare_with
    >>> list(compare_with(result, ["matching"]))
    ['gpc', 'matching']
    """
    calibration = result.calibration
    if calibration is None:
        raise RuntimeError("methods can be compared only with a result of this process: this one has no particles.")
    chosen = _check_methods(DEFAULT_METHODS if methods is None else methods)
    own = label(calibration.method)
    if own not in map(label, chosen):
        chosen = [calibration.method, *chosen]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        # The seconds of this row include those of the intervals of the result.
        known = _row(calibration.method, result, time.perf_counter() - seconds)
        rows = [known if label(method) == own else _follow(method, result) for method in chosen]
    return Comparison(tuple(rows), result.level, tuple(result.names))


def _check_methods(methods: object) -> list[Method]:
    if isinstance(methods, str | Method) or not isinstance(methods, Sequence) or not len(methods):
        raise TypeError(f"methods must be a list of methods; got {display(methods)}.")
    chosen = [as_method(method) for method in methods]
    labels = [label(method) for method in chosen]
    if len(set(labels)) < len(labels):
        raise ValueError(f"methods must be different from each other; got {', '.join(labels)}.")
    return chosen


def _row(method: Method, result: Result, started: float) -> ComparedMethod:
    intervals = result.intervals()
    return ComparedMethod(label(method), result, intervals, time.perf_counter() - started)


def _follow(method: Method, base: Result) -> ComparedMethod:
    """Apply a method to the particles of the first one."""
    started = time.perf_counter()
    calibration = base.calibration
    assert calibration is not None
    try:
        inputs = calibration.inputs
        method.check(inputs.model, inputs.bootstrap, inputs.settings["shape"], inputs.weights)
        return _row(method, calibration.with_method(method).result(), started)
    except (ValueError, RuntimeError) as error:
        return _failure(method, error, started)


def _failure(method: Method, error: Exception, started: float) -> ComparedMethod:
    return ComparedMethod(label(method), None, None, time.perf_counter() - started, str(error))
