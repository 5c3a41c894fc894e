"""The result of a calibration."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import DTypeLike

from calibayes._backend.text import align, printable
from calibayes._core.curve import Coverage as Coverage
from calibayes._core.curve import Curve
from calibayes._core.status import Diagnostic, Severity, Status, worst
from calibayes.model import GibbsModel
from calibayes.regions import Region
from calibayes.solve.iterate import TraceRecord as TraceRecord

if TYPE_CHECKING:
    from calibayes.requery import Calibration

_NO_PARTICLES = "this result was copied or loaded, without its particles"
_RECALIBRATE = (
    "Run `calibrate` again (the call is at the end of the HTML report) and call this method before saving the result."
)


def describe(status: Status, diagnostics: Sequence[Diagnostic]) -> str:
    """Return the status and the diagnostics as one line of sentences."""
    return " ".join([status.value, *(diagnostic.message for diagnostic in diagnostics)])


@dataclass(frozen=True, repr=False)
class Intervals:
    """Marginal credible intervals, each calibrated at its own learning rate.

    `numpy.asarray(intervals)` has shape (K, 2).

    Attributes
    ----------
    names : list of str
        Names of the parameters.
    level : float
        Level of the intervals.
    bounds : ndarray of shape (K, 2)
        Lower and upper bounds.
    eta : ndarray of shape (K,)
        Learning rate at which each interval is calibrated.
    eta_se : ndarray of shape (K,)
        Standard errors of these learning rates.
    status : list of Status
        How the search for each learning rate ended.
    diagnostics : list of list of Diagnostic
        Findings about each of them.

    Examples
    --------
    >>> intervals = result.intervals()
    >>> np.asarray(intervals).shape
    (2, 2)
    """

    names: list[str]
    level: float
    bounds: Float[np.ndarray, "K 2"]
    eta: Float[np.ndarray, " K"]
    eta_se: Float[np.ndarray, " K"]
    status: list[Status]
    diagnostics: list[list[Diagnostic]]

    @property
    def converged(self) -> Bool[np.ndarray, " K"]:
        """Whether each interval can be relied on."""
        return np.array([status.is_success for status in self.status], bool)

    @property
    def messages(self) -> list[str]:
        """Status and diagnostics of each interval as text."""
        return [describe(*pair) for pair in zip(self.status, self.diagnostics, strict=True)]

    def to_frame(self) -> Any:
        """Convert to a pandas data frame.

        Returns
        -------
        pandas.DataFrame
            One row per parameter with the columns low, high, eta, eta_se and converged.

        Examples
        --------
        >>> list(result.intervals().to_frame().columns)
        ['low', 'high', 'eta', 'eta_se', 'converged']
        """
        import pandas as pd

        columns = {"low": self.bounds[:, 0], "high": self.bounds[:, 1], "eta": self.eta, "eta_se": self.eta_se}
        return pd.DataFrame(columns | {"converged": self.converged}, index=pd.Index(self.names, name="parameter"))

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.bounds, dtype=dtype)

    def __repr__(self) -> str:
        percent = _percent(self.level)
        table = [["", f"{percent} low", f"{percent} high", "eta", "se"]]
        for name, bounds, eta, error in zip(self.names, self.bounds, self.eta, self.eta_se, strict=True):
            table.append([name, *(f"{v:.4g}" for v in (*bounds, eta)), f"{error:.2g}"])
        failed = [
            f"NOT CONVERGED: {printable(self.names[k])}: {self.messages[k]}" for k in np.flatnonzero(~self.converged)
        ]
        return printable("\n".join([*align(table), *failed]), multiline=True)


@dataclass(frozen=True, repr=False)
class Result:
    """A calibrated posterior and its learning rate.

    Attributes
    ----------
    eta : float
        Learning rate at which the credible sets cover at `level`.
    eta_se : float
        Simulation standard error of eta from the finite numbers of replicates and particles; not the variation of eta
        over data sets.
    coverage : Coverage
        Share of bootstrap replicates whose set contains the estimate at eta. Eta is chosen on these replicates, so that
        this is as near to `level` as their number allows; its interval shows how far off the probability may be.
    status : Status
        How the calibration ended.
    diagnostics : list of Diagnostic
        What a user should know about the run; empty if there is nothing.
    trace : list of TraceRecord
        Learning rates that the search visited.
    draws : ndarray of shape (M, K)
        Equally weighted draws of the calibrated posterior on the data.
    risk : ndarray of shape (M,)
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
        Replicates with degenerate importance weights, whose posterior was sampled again by SMC (the bootstrap counts
        are unchanged). Index 0 is the first bootstrap replicate, not the data.
    region : Region
        Credible set that was calibrated.
    settings : dict
        Arguments of the call.
    versions : dict
        Versions of the software that computed the result.
    model, data, counts
        The model, the data as the user passed them, and the bootstrap counts where they were stored. Not saved to
        files.
    calibration : Calibration or None
        The particles, which answer further questions; dropped when the result is pickled or saved.
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
    draws: Float[np.ndarray, "M K"]
    risk: Float[np.ndarray, " M"]
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
        """Whether the learning rate can be relied on."""
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

        One joint eta does not calibrate every marginal interval: `marginal_intervals` are computed from the posterior
        at the joint eta.

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

    def posterior(self, eta: float) -> Float[np.ndarray, "M K"]:
        """Return equally weighted draws of the posterior on the data at any learning rate, for comparison.

        Parameters
        ----------
        eta : float
            Learning rate.

        Returns
        -------
        ndarray of shape (M, K)

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

        On the replicates that eta was calibrated on, coverage equals `level` by construction.

        Parameters
        ----------
        bootstrap : optional
            As for `calibrate`. Default: as many fresh replicates of the same bootstrap.
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
            f"Result(eta = {self.eta:.4g} +- {self.eta_se:.2g}, coverage = {self.coverage!r} "
            f"of {self.level:g} {self.region.name} sets, {len(self.trace)} iterations){state}"
        )
        return printable(text, multiline=True)

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
        """Return the equal-tailed marginal intervals of the calibrated posterior, all at the one joint eta.

        Returns
        -------
        ndarray of shape (K, 2)
        """
        tail = (1 - self.level) / 2
        return np.quantile(self.draws, [tail, 1 - tail], axis=0).T

    def summary(self) -> str:
        """Return a table of the calibration and of the calibrated posterior, as text.

        Returns
        -------
        str

        Examples
        --------
        >>> print(result.summary().splitlines()[0].split()[0])
        learning
        """
        percent = _percent(self.level)
        table = [["", "mean", "sd", f"{percent} low", f"{percent} high"]]
        intervals = self.marginal_intervals()
        for k, name in enumerate(self.names):
            table.append([name, *(f"{v:.4g}" for v in (self.means[k], self.draws[:, k].std(), *intervals[k]))])
        head = [
            f"learning rate   {self.eta:.4g} (standard error {self.eta_se:.2g})",
            f"coverage        {self.coverage!r} for {percent} {self.region.name} sets",
            f"status          {'converged' if self.converged else 'NOT CONVERGED'}. {self.status.value}",
            *(f"{finding.severity.name.lower():<15} {finding.message}" for finding in self.diagnostics),
            "",
        ]
        note = "All intervals are at this one learning rate; result.intervals() calibrates each one separately."
        return printable("\n".join([*head, *align(table), "", note]), multiline=True)

    def to_datatree(self) -> Any:
        """Convert to an ArviZ DataTree: posterior, risk of the draws, critical levels of the replicates, trace.

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


def _percent(level: float) -> str:
    return f"{level:.0%}" if round(level * 100) == level * 100 else f"{level:.1%}"
