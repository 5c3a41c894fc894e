"""From columns as people have them to a linear model that samples well: an intercept, centred columns, a weak prior.

Columns are centred, and of a location loss y is too, at its median: floats then have digits enough, whatever the units.
That takes nothing away. What is reported (`calibayes.reparametrize`) is the line for the table as it was, its intercept where
every column is zero. A prior that is weak in every unit follows the spread of the columns and of y.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from jaxtyping import Float

from calibayes.calibrate import calibrate
from calibayes.losses import LinearLoss
from calibayes.model import GibbsModel
from calibayes.priors import Normal
from calibayes.regions import Region, as_region
from calibayes.reparametrize import Reparametrization
from calibayes.result import Result

_WEAK = 10.0
"""Standard deviations of the prior, in units of y's spread for a column's spread of one."""


@dataclass(frozen=True)
class Design:
    """How a table of columns becomes the matrix of a linear model."""

    means: Float[np.ndarray, " P"]
    spreads: Float[np.ndarray, " P"]
    """About the means; about zero without an intercept, where a column or y may be far from it."""
    intercept: bool

    @staticmethod
    def of(columns: Float[np.ndarray, "N P"], intercept: bool = True) -> "Design":
        centres = columns.mean(0) if intercept else np.zeros(columns.shape[1])
        spreads = np.sqrt(np.square(columns - centres).mean(0))
        varies = np.ptp(columns, 0) > 0 if intercept else spreads > 0
        return Design(centres, np.where(varies, spreads, 1.0), intercept)

    def matrix(self, columns: Float[np.ndarray, "N P"]) -> Float[np.ndarray, "N K"]:
        """The model's matrix, the intercept's column of ones first."""
        centred = columns - self.means
        return np.column_stack([np.ones(len(centred)), centred]) if self.intercept else centred

    def plain(self, columns: Float[np.ndarray, "N P"]) -> Float[np.ndarray, "N K"]:
        """The matrix of what is reported: nothing is centred."""
        return np.column_stack([np.ones(len(columns)), columns]) if self.intercept else columns

    def offset(self, loss: LinearLoss, y: Float[np.ndarray, " N"]) -> float:
        """What is taken off y, and put back into the intercept."""
        return float(np.median(y)) if self.intercept and loss.location else 0.0

    def view(self, offset: float) -> Reparametrization:
        """From what is sampled to what is reported."""
        matrix = np.eye(len(self.means) + self.intercept)
        shift = np.zeros(len(matrix))
        if self.intercept:
            matrix[0, 1:], shift[0] = -self.means, offset
        return Reparametrization(matrix, shift)

    def names(self, columns: Sequence[str]) -> list[str]:
        return ["intercept", *columns] if self.intercept else list(columns)

    def usual_delta(self, columns: Float[np.ndarray, "N P"], y: Float[np.ndarray, " N"]) -> float:
        """Where Huber's loss turns linear: 1.345 standard deviations of the residuals, by their median size."""
        matrix = self.matrix(columns)
        residual = y - matrix @ np.linalg.lstsq(matrix, y)[0]
        spread = np.median(np.abs(residual - np.median(residual))) / NormalDist().inv_cdf(0.75)
        return 1.345 * float(spread or residual.std() or 1.0)

    def prior(self, loss: LinearLoss, y: Float[np.ndarray, " N"]) -> Normal:
        """Weak: ten times the slope that would take y from one end of its spread to the other, or a margin by one."""
        centre = float(np.median(y)) if self.intercept and not loss.margin else 0.0
        unit = 1.0 if loss.margin or np.ptp(y) == 0 else float(np.sqrt(np.square(y - centre).mean()))
        scale = _WEAK * unit / self.spreads
        if not self.intercept:
            return Normal(scale=scale)
        return Normal(loc=np.array([centre, *np.zeros(len(scale))]), scale=np.array([_WEAK * unit, *scale]))

    def calibrate(
        self,
        loss: LinearLoss,
        columns: Float[np.ndarray, "N P"],
        y: Float[np.ndarray, " N"],
        *,
        names: Sequence[str],
        call: str,
        prior: Any = None,
        region: str | Region = "hpd",
        **options: Any,
    ) -> Result:
        """A calibration of the linear model, reported for the table as it was.

        A prior of one's own is for the prediction at the columns' means, followed by the slopes, and y is then left as
        it is. `call` is the code that asks for this.
        """
        offset = self.offset(loss, y) if prior is None else 0.0
        view, region = self.view(offset), as_region(region)
        prior = self.prior(loss, y - offset) if prior is None else prior
        result = calibrate(
            GibbsModel(loss, prior),
            (self.matrix(columns), y - offset),
            region=view.region(region),
            names=self.names(names),
            **options,
        )
        settings = {"call": call, "level": result.level, "region": region.name, "centred": self.intercept}
        data = (self.plain(columns), y)
        calibration = None if result.calibration is None else result.calibration.seen(view, data, settings)
        result = replace(result, data=data, settings=result.settings | settings, calibration=calibration)
        return view.result(result)
