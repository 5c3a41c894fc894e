"""What came out of a calibration."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from calibayes._core.curve import Coverage as Coverage
from calibayes._core.curve import Curve
from calibayes.model import GibbsModel
from calibayes.regions import Region

_LOST = "this result was copied or loaded, without its particles"
_AGAIN = (
    "calibrate again, as the end of its report says, and ask before you save. Its draws, curve, intervals at one eta "
    "and report are there."
)


@dataclass(frozen=True)
class Record:
    """One iteration: where the search was and what it found there."""

    iteration: int
    eta: float
    coverage: float
    ess: float
    """Median over rows of the effective number of particles (for chains, of draws)."""
    ess_min: float
    steps: int
    acceptance: float
    seconds: float
    """Since the calibration began, compilation included."""
    intervals: Float[np.ndarray, "K 2"] = field(repr=False)
    """Marginal credible intervals on the data at this eta, at the level asked for; NaN for what was not sampled itself,
    an estimator's intercept."""


@dataclass(frozen=True, repr=False)
class Intervals:
    """Marginal intervals, each calibrated by itself. `numpy.asarray` of them is (K, 2)."""

    names: list[str]
    level: float
    bounds: Float[np.ndarray, "K 2"]
    eta: Float[np.ndarray, " K"]
    eta_se: Float[np.ndarray, " K"]
    converged: Bool[np.ndarray, " K"]
    messages: list[str]
    """What was found for each, in words."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.bounds, dtype=dtype)

    def __repr__(self) -> str:
        percent = _percent(self.level)
        table = [["", f"{percent} low", f"{percent} high", "eta", "se"]]
        for name, bounds, eta, error in zip(self.names, self.bounds, self.eta, self.eta_se, strict=True):
            table.append([name, *(f"{v:.4g}" for v in (*bounds, eta)), f"{error:.2g}"])
        lost = [f"NOT CONVERGED: {self.names[k]}: {self.messages[k]}" for k in np.flatnonzero(~self.converged)]
        return "\n".join([*_aligned(table), *lost])


@dataclass(frozen=True, repr=False)
class Result:
    """A calibrated posterior, and how sure we are of its learning rate."""

    eta: float
    eta_se: float
    """Simulation error of eta from finitely many bootstrap rows, each with its own particles' error; not the
    variation of eta over datasets."""
    coverage: Coverage
    """Share of bootstrap rows whose set at `level` covers the estimate at eta. Eta is chosen on these rows, so once
    refined this is as near to `level` as their number allows; the interval says how far off the probability may be."""
    converged: bool
    message: str
    """How the search ended, and the concerns, in one line."""
    concerns: list[str]
    """What a user should worry about, one thing each; empty is good."""
    trace: list[Record]
    draws: Float[np.ndarray, "M K"]
    """Equally weighted draws of the calibrated posterior on the data."""
    risk: Float[np.ndarray, " M"]
    """Of each draw, relative to a reference that is the same for all: at another learning rate nearby a draw weighs
    `exp(-(other - eta) * risk)`."""
    curve: Curve
    estimate: Float[np.ndarray, " K"]
    """The point the sets were asked to cover."""
    level: float
    names: list[str]
    repaired_replicates: Int[np.ndarray, " R"]
    """Bootstrap rows, counted from 0, whose weights had failed and which were sampled instead."""
    region: Region = field(repr=False)
    settings: dict[str, Any] = field(repr=False)
    versions: dict[str, str] = field(repr=False)
    """Of what computed it, also where a file is read by another."""
    model: GibbsModel | None = field(repr=False, default=None)
    data: Any = field(repr=False, default=None)
    counts: Float[np.ndarray, "B N"] | None = field(repr=False, default=None)
    """These are not kept in a file."""
    calibration: Any = field(repr=False, compare=False, default=None)
    """What answers when the result is asked again; not kept when it is pickled."""
    own: "Intervals | None" = field(repr=False, compare=False, default=None)
    """What `intervals()` had answered when it was saved or pickled."""

    def at(self, level: float | None = None, region: str | Region | None = None) -> "Result":
        """The calibration for another level or another region, from the particles that are there.

        The audit of `sampler="auto"` is not repeated: what it found of the particles was found for this region.
        """
        return self._calibration().at(level, region)

    def intervals(self, level: float | None = None, of: Any = None) -> "Intervals":
        """Each parameter's interval, from the posterior at a learning rate of its own.

        One joint eta does not calibrate every marginal interval: `marginal_intervals` are the joint posterior's.
        `of` holds rows of numbers, one per parameter: intervals of those linear combinations, such as predictions.
        """
        kept = self.kept
        if of is None and kept is not None and level in (None, kept.level):
            return kept
        if self.calibration is None:
            has = "none were kept" if kept is None else f"only the parameters' at level {kept.level:g} were kept"
            raise RuntimeError(f"{_LOST}, and of its intervals {has}: {_AGAIN}")
        return self.calibration.intervals(level, of)

    @property
    def kept(self) -> "Intervals | None":
        """What `intervals()` has answered at the result's own level, if it has been asked."""
        return self.own if self.calibration is None else self.calibration.asked.get(self.level)

    def posterior(self, eta: float) -> Float[np.ndarray, "M K"]:
        """Equally weighted draws of the posterior on the data at any learning rate, to compare with."""
        return self._calibration().posterior(eta)

    def level_of(self, theta: Any, eta: float | None = None) -> float:
        """The smallest level at which the set on the data holds `theta`, at the calibrated learning rate or another.

        The set at `level` holds it if that is at most `level`.
        """
        return self._calibration().level_of(theta, eta)

    def validate(self, bootstrap: Any = None, seed: Any = None) -> Coverage:
        """Coverage of the sets at eta on fresh bootstrap rows; on its own rows it is `level` by construction."""
        return self._calibration().validate(bootstrap, seed)

    def _calibration(self) -> Any:
        if self.calibration is None:
            raise RuntimeError(f"{_LOST}: {_AGAIN}")
        return self.calibration

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"calibration": None, "own": self.kept}

    def __repr__(self) -> str:
        state = f"\n  NOT CONVERGED: {self.message}"
        if self.converged:
            state = "".join(f"\n  note: {concern}" for concern in self.concerns)
        return (
            f"Result(eta = {self.eta:.4g} +- {self.eta_se:.2g}, coverage = {self.coverage!r} "
            f"of {self.level:g} {self.region.name} sets, {len(self.trace)} iterations){state}"
        )

    @property
    def means(self) -> Float[np.ndarray, " K"]:
        """Of the calibrated posterior: from all its particles where that is the estimate, else from the draws."""
        if str(self.settings.get("estimate")).strip("'") == "mean":
            return np.asarray(self.estimate, np.float64)
        return self.draws.mean(0)

    def marginal_intervals(self) -> Float[np.ndarray, "K 2"]:
        """Equal-tailed marginal intervals of the calibrated posterior, all at the one eta."""
        tail = (1 - self.level) / 2
        return np.quantile(self.draws, [tail, 1 - tail], axis=0).T

    def summary(self) -> str:
        """A table of the calibration and of the calibrated posterior, as text."""
        percent = _percent(self.level)
        table = [["", "mean", "sd", f"{percent} low", f"{percent} high"]]
        intervals = self.marginal_intervals()
        for k, name in enumerate(self.names):
            table.append([name, *(f"{v:.4g}" for v in (self.means[k], self.draws[:, k].std(), *intervals[k]))])
        head = [
            f"learning rate   {self.eta:.4g} (standard error {self.eta_se:.2g})",
            f"coverage        {self.coverage!r} for {percent} {self.region.name} sets",
            f"status          {'converged' if self.converged else 'NOT CONVERGED'}: {self.message}",
            "",
        ]
        note = "All intervals are at this one learning rate; result.intervals() calibrates each by itself."
        return "\n".join([*head, *_aligned(table), "", note])

    def to_datatree(self) -> Any:
        """An ArviZ DataTree: the calibrated posterior, the risk of its draws, the rows' critical levels, the trace.

        The learning rate and all else that is one number or a word is in the attributes of the posterior.
        """
        from calibayes.io import to_datatree

        return to_datatree(self)

    def save(self, path: str | Path) -> Path:
        """Write it as NetCDF (`.nc`), to be read by `calibayes.load` or by ArviZ."""
        from calibayes.io import save

        return save(self, path)

    def report(self, path: str | Path, title: str | None = None) -> Path:
        """Write one page, complete in itself, for a co-author or a referee, and say where it is."""
        from calibayes.report import write

        return write(self, path, title=title)


def _percent(level: float) -> str:
    return f"{level:.0%}" if round(level * 100) == level * 100 else f"{level:.1%}"


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in table
    ]
