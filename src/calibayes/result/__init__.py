"""The result of a calibration."""

import warnings
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from calibayes._backend.fork import is_forked_after_start
from calibayes._backend.text import align, html_table, printable
from calibayes._backend.warnings import CalibrationWarning
from calibayes._core.curve import Coverage as Coverage
from calibayes._core.curve import Curve
from calibayes._core.status import Diagnostic, Severity, Status, worst
from calibayes.model import GibbsModel
from calibayes.regions import Region
from calibayes.result.intervals import Intervals as Intervals
from calibayes.result.intervals import describe as describe
from calibayes.result.intervals import format_number, normal_width, percent
from calibayes.result.wording import describe_data
from calibayes.solve.iterate import TraceRecord as TraceRecord

if TYPE_CHECKING:
    from calibayes.requery import Calibration

_NO_PARTICLES = "this result was copied or loaded, without its particles"
_RECALIBRATE = (
    "Run `calibrate` again (the call is at the end of the HTML report) and call this method before saving the result."
)


@dataclass(frozen=True, repr=False)
class Result:
    """A calibrated posterior and its learning rate.

    Attributes
    ----------
    eta : float
        Learning rate that the method chose; for methods that report another distribution, that of the generalized
        posterior of about the same width. For "gpc" the credible sets computed on the bootstrap replicates contain
        the estimate in a share `level` of the replicates.
    eta_se : float
        Simulation standard error of eta from the finite numbers of replicates and particles; not the variation of eta
        over data sets.
    coverage : Coverage
        Share of bootstrap replicates whose credible set at eta contains the estimate. For "gpc" it is as near to
        `level` as the number of replicates allows, because eta is chosen on them. `coverage.interval` is a 95%
        confidence interval for the share of infinitely many replicates.
    status : Status
        How the calibration ended.
    diagnostics : list of Diagnostic
        What a user should know about the run; empty if there is nothing.
    trace : list of TraceRecord
        Learning rates that the search visited.
    draws : ndarray of shape (D, K)
        Equally weighted draws of the calibrated posterior given the observed data, or of the distribution that the
        method reports in its place. D is at most 4,000, and about a quarter of the particles given the observed data
        (20 times those of a replicate for transport) if that is less.
    risk : ndarray of shape (D,)
        Risk of each draw, relative to a common reference: at another learning rate nearby a draw has the weight
        `exp(-(other - eta) * risk)`.
    curve : Curve
        Coverage against the learning rate around eta.
    estimate : ndarray of shape (K,)
        The point estimate that the sets should cover.
    level : float
        Requested level.
    names : list of str
        Names of the parameters.
    repaired_replicates : ndarray of int
        Replicates with degenerate importance weights, whose posterior was sampled again by a slower sampler (the
        bootstrap counts are unchanged). Index 0 is the first bootstrap replicate, not the data.
    region : Region
        Credible set that was calibrated.
    settings : dict
        Arguments of the call, and notes on the data and the run, such as the rows that were dropped.
    versions : dict
        Versions of the software that computed the result.
    model : GibbsModel or None
        The model. Not saved to files.
    data : pytree of arrays
        The data: as they were passed to `calibrate`, or the pair of X and y of `fit` and estimators. Not saved to
        files.
    counts : ndarray of shape (B, N) or None
        The bootstrap counts, if they were stored. Not saved to files.
    calibration : Calibration or None
        The particles, which answer further questions; dropped when the result is copied, pickled or saved.
    saved_intervals : Intervals or None
        The answer of `intervals()` when the result was saved or pickled.

    Examples
    --------
    >>> result.converged
    True
    >>> result.draws.shape[1]
    2
    """

    eta: float
    eta_se: float
    coverage: Coverage
    status: Status
    diagnostics: list[Diagnostic]
    trace: list[TraceRecord]
    draws: Float[np.ndarray, "D K"]
    risk: Float[np.ndarray, " D"]
    curve: Curve
    estimate: Float[np.ndarray, " K"]
    level: float
    names: list[str]
    repaired_replicates: Int[np.ndarray, " R"]
    region: Region = field(repr=False)
    settings: dict[str, Any] = field(repr=False)
    versions: dict[str, str] = field(repr=False)
    model: GibbsModel | None = field(repr=False, default=None)
    data: object = field(repr=False, default=None)
    counts: Float[np.ndarray, "B N"] | None = field(repr=False, default=None)
    calibration: "Calibration | None" = field(repr=False, compare=False, default=None)
    saved_intervals: "Intervals | None" = field(repr=False, compare=False, default=None)

    @property
    def converged(self) -> bool:
        """Whether the status is `CONVERGED` or `COMPUTED`, so that the learning rate can be relied on."""
        return self.status.is_success

    @property
    def message(self) -> str:
        """Status and diagnostics as text."""
        return describe(self.status, self.diagnostics)

    @property
    def severity(self) -> Severity:
        """Largest severity of the diagnostics."""
        return worst(self.diagnostics)

    def at(self, level: float | None = None, region: str | Region | None = None) -> "Result":
        """Calibrate for another level or another region, from the same particles.

        The check of `sampler="auto"` against an independent sampler (the audit) is not repeated.

        Parameters
        ----------
        level : float or None
            Level. Default: the level of this result.
        region : str, Region or None
            Credible set. Default: the region of this result.

        Returns
        -------
        Result

        Examples
        --------
        >>> result.at(level=0.9).level
        0.9
        """
        return self._require_calibration().at(level, region)

    def intervals(self, level: float | None = None, of: object = None) -> "Intervals":
        """Return the interval of each parameter, calibrated at its own learning rate.

        For "bayesbag", "posterior-bootstrap" and "q-posterior" it is the equal-tailed interval of their draws. One
        joint eta does not calibrate every marginal interval: `marginal_intervals` are computed from the posterior at
        the joint eta.

        The time limit is `max_seconds` of `calibrate`, if that was set, and otherwise 20 times the time of the
        calibration, or three minutes if that is longer. Intervals that are not calibrated within it are those at the
        joint eta, with `Status.TIME_LIMIT`.

        Parameters
        ----------
        level : float or None
            Level. Default: the level of this result.
        of : array_like of shape (R, K) or None
            Coefficients of linear combinations of the parameters, such as predictions. Default: each parameter.

        Returns
        -------
        Intervals

        Examples
        --------
        >>> np.asarray(result.intervals(of=[[1.0, 2.0]])).shape
        (1, 2)
        """
        computed = self.computed_intervals
        if of is None and computed is not None and level in (None, computed.level):
            return computed
        if self.calibration is None:
            has = "none were kept"
            if computed is not None:
                has = f"only the parameters' at level {computed.level:g} were kept"
            raise RuntimeError(f"{_NO_PARTICLES}, and of its intervals {has}. {_RECALIBRATE}")
        return self.calibration.intervals(level, of)

    @property
    def computed_intervals(self) -> "Intervals | None":
        """Intervals that `intervals()` has already computed at the level of this result, or None."""
        return self.saved_intervals if self.calibration is None else self.calibration.computed_intervals.get(self.level)

    def posterior(self, eta: float) -> Float[np.ndarray, "D K"]:
        """Return equally weighted draws of the posterior given the observed data at any learning rate, for comparison.

        Parameters
        ----------
        eta : float
            Learning rate.

        Returns
        -------
        ndarray of shape (D, K)

        Examples
        --------
        >>> result.posterior(1.0).shape[1]
        2
        """
        return self._require_calibration().posterior(eta)

    def level_of(self, theta: object, eta: float | None = None) -> float:
        """Return the smallest level at which the credible set on the data contains `theta`.

        The set at `level` contains it if this is at most `level`.

        Parameters
        ----------
        theta : array_like of shape (K,)
            Parameters.
        eta : float or None
            Learning rate. Default: the calibrated one.

        Returns
        -------
        float

        Examples
        --------
        >>> 0 <= result.level_of(result.estimate) <= 1
        True
        """
        return self._require_calibration().level_of(theta, eta)

    def validate(self, bootstrap: object = None, seed: object = None) -> Coverage:
        """Return the coverage of the sets at eta on fresh bootstrap replicates.

        On the replicates that "gpc" chose eta on, coverage is close to `level` by construction.

        Parameters
        ----------
        bootstrap : optional
            As for `calibrate`; a number is the number of replicates of the same bootstrap. Default: as many fresh
            replicates of the same bootstrap.
        seed : int, key or None
            Seed. Default: derived from the seed of the calibration.

        Returns
        -------
        Coverage

        Examples
        --------
        >>> 0.8 < result.validate() <= 1
        True
        """
        return self._require_calibration().validate(bootstrap, seed)

    def _require_calibration(self) -> "Calibration":
        if self.calibration is None:
            raise RuntimeError(f"{_NO_PARTICLES}. {_RECALIBRATE}")
        return self.calibration

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"calibration": None, "saved_intervals": self.computed_intervals}

    def __repr__(self) -> str:
        state = f"\n  NOT CONVERGED: {self.message}"
        if self.converged:
            state = "".join(f"\n  {finding.severity.name.lower()}: {finding.message}" for finding in self.diagnostics)
        text = (
            f"Result(joint eta = {self.eta:.4g} (standard error {self.eta_se:.2g}), coverage = {self.coverage!r} "
            f"of {percent(self.level)} {self.region.name} sets, iterations = {len(self.trace)}){state}"
        )
        if self.computed_intervals is not None:
            table = "\n".join(align(self._table(self.computed_intervals)))
            text = f"{table}\n{text}"
        return printable(text, multiline=True)

    def _repr_html_(self) -> str:
        intervals = self._displayed_intervals()
        return html_table(self._table(intervals), "", *self._head(), *self._notes(intervals))

    @property
    def means(self) -> Float[np.ndarray, " K"]:
        """Posterior means.

        With `estimate="mean"` they are the point estimate, computed from all particles; otherwise they are the means of
        `draws`.
        """
        if str(self.settings.get("estimate")).strip("'") == "mean":
            return np.asarray(self.estimate, np.float64)
        return self.draws.mean(0)

    def marginal_intervals(self) -> Float[np.ndarray, "K 2"]:
        """Return the equal-tailed marginal intervals of the posterior at the joint eta, which does not calibrate each.

        For intervals that are calibrated one by one, see `intervals`.

        Returns
        -------
        ndarray of shape (K, 2)
        """
        tail = (1 - self.level) / 2
        return np.quantile(self.draws, [tail, 1 - tail], axis=0).T

    @property
    def params(self) -> Any:
        """Posterior means, a pandas series if the parameters were named and pandas is installed, else an array."""
        return self._labelled(self.means)

    @property
    def bse(self) -> Any:
        """Calibrated standard errors, the widths of `conf_int()` divided by the width of a standard normal interval.

        They are a pandas series if the parameters were named and pandas is installed, else an array.
        """
        return self._labelled(self.intervals().standard_errors)

    def conf_int(self, alpha: float | None = None) -> Any:
        """Return the interval of each parameter, calibrated at its own learning rate: the bounds of `intervals()`.

        Parameters
        ----------
        alpha : float or None
            One minus the level. Default: that of this result.

        Returns
        -------
        pandas.DataFrame or ndarray of shape (K, 2)
            A data frame with the columns low and high if the parameters were named and pandas is installed, else an
            array. `numpy.asarray` of both has shape (K, 2).

        Examples
        --------
        >>> np.asarray(result.conf_int()).shape
        (2, 2)
        """
        return self._labelled(self.intervals(None if alpha is None else 1 - alpha).bounds)

    def _labelled(self, values: np.ndarray) -> Any:
        """Return one value, or one pair of bounds, per parameter as a pandas object if the parameters have names."""
        if self.names == [f"theta[{k}]" for k in range(len(self.names))] or find_spec("pandas") is None:
            return values
        import pandas as pd

        if values.ndim == 1:
            return pd.Series(values, index=self.names)
        return pd.DataFrame(values, index=self.names, columns=["low", "high"])

    def summary(self) -> str:
        """Return a table of the calibration, with the interval of each parameter at its own learning rate, as text.

        The intervals are computed at the first call. A result that did not converge, or that lost its particles before
        they were computed, shows the intervals at the joint learning rate.

        Returns
        -------
        str

        Examples
        --------
        >>> print(result.summary().splitlines()[0].split()[0])
        learning
        """
        intervals = self._displayed_intervals()
        lines = [*self._head(), "", *align(self._table(intervals)), "", *self._notes(intervals)]
        return printable("\n".join(lines), multiline=True)

    def _displayed_intervals(self) -> "Intervals | None":
        """Return the calibrated intervals; None if the result did not converge or cannot compute them."""
        if self.calibration is None or not self.converged or is_forked_after_start():
            return self.computed_intervals
        with warnings.catch_warnings():
            # The findings are displayed with the table.
            warnings.simplefilter("ignore", CalibrationWarning)
            return self.intervals()

    def _head(self) -> list[str]:
        level, region = percent(self.level), self.region.name
        low, high = self.coverage.interval
        return [
            f"learning rate   {self.eta:.4g} (standard error {self.eta_se:.2g}) for joint {level} {region} sets",
            f"coverage        {float(self.coverage):.3f} (95% interval {low:.3f} to {high:.3f}): share of replicates "
            "whose set contains the estimate",
            *self._region_interval(),
            *(f"{label:<15} {printable(text)}" for label, text in describe_data(self.settings).items()),
            f"status          {'converged' if self.converged else 'NOT CONVERGED'}. {self.status.value}",
            *(f"{finding.severity.name.lower():<15} {finding.message}" for finding in self.diagnostics),
        ]

    def region_interval(self) -> tuple[float, float] | None:
        """Return the interval that was calibrated, if the region is that of a function of the parameters.

        Returns
        -------
        tuple of float or None
            Equal-tailed interval of `regions.Functional`, `Linear` or `Interval`, from the draws at eta. None for a
            joint set, and if the function is unknown, as for a `Functional` of a loaded result.

        Examples
        --------
        >>> low, high = result.at(region=cb.regions.Linear([1.0, 2.0])).region_interval()
        >>> low < high
        True
        """
        values = self.region.values(self.draws.T)
        tail = (1 - self.level) / 2
        return None if values is None else (float(np.quantile(values, tail)), float(np.quantile(values, 1 - tail)))

    def _region_interval(self) -> list[str]:
        bounds = self.region_interval()
        if bounds is None:
            return []
        low, high = (format_number(bound, bounds[1] - bounds[0]) for bound in bounds)
        return [f"interval        {low} to {high}: the calibrated {percent(self.level)} {self.region.name} interval"]

    def _table(self, intervals: "Intervals | None") -> list[list[str]]:
        """Return the rows of the summary; with joint intervals if there are no calibrated ones."""
        columns = None
        if intervals is None:
            columns, known = ["mean", "se", "low", "high"], np.full(len(self.names), np.nan)
            # The status of the joint learning rate is stated above the table.
            status, bounds = [Status.CONVERGED] * len(self.names), self.marginal_intervals()
            intervals = Intervals(list(self.names), self.level, bounds, known, known, status, [])
        head, *rows = replace(intervals, means=self.means).cells(columns)
        return [["", *head[1:]], *rows]

    def _notes(self, intervals: "Intervals | None") -> list[str]:
        """Return sentences about the table, and the findings about single intervals."""
        if intervals is None:
            return ["All intervals are at the one learning rate above, which does not calibrate each of them."]
        notes = [
            "eta: the learning rate at which the interval in its row is calibrated.",
            f"se: width of the interval divided by {normal_width(self.level):.2f}, the width of the central "
            f"{percent(self.level)} interval of a standard normal distribution.",
        ]
        names_of: dict[Diagnostic, list[str]] = {}
        for name, findings in zip(intervals.names, intervals.diagnostics, strict=True):
            for finding in findings:
                if finding.severity >= Severity.WARNING and finding not in self.diagnostics:
                    names_of.setdefault(finding, []).append(name)
        about = (
            f"{one.severity.name.lower():<15} {', '.join(names)}: {one.message}" for one, names in names_of.items()
        )
        return [*notes, *about]

    def to_datatree(self) -> Any:
        """Convert to an ArviZ DataTree: posterior, risk of the draws, critical level of each replicate, trace.

        The critical level is the smallest level at which the set of the replicate contains the estimate.
        The learning rate and all other scalars are attributes of the posterior group.

        Returns
        -------
        xarray.DataTree
        """
        from calibayes.io import to_datatree

        return to_datatree(self)

    def save(self, path: str | Path) -> Path:
        """Write the result as NetCDF (`.nc`), for `calibayes.load` or ArviZ.

        Parameters
        ----------
        path : str or Path
            File to write.

        Returns
        -------
        Path
        """
        from calibayes.io import save

        return save(self, path)

    def report(self, path: str | Path, title: str | None = None) -> Path:
        """Write a self-contained HTML page for a co-author or a referee.

        Parameters
        ----------
        path : str or Path
            File to write.
        title : str or None
            Title of the page.

        Returns
        -------
        Path
        """
        from calibayes.report import write

        return write(self, path, title=title)
