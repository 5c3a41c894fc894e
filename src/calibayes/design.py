"""From columns as people have them to a linear model that samples well: an intercept, centred columns, a weak prior.

Centring takes nothing away: the slopes are those of the columns as they were, and the intercept is the prediction at
the columns' means. A prior that is weak in every unit follows the spread of the columns and of y.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from jaxtyping import Float

from calibayes.losses import LinearLoss
from calibayes.priors import Normal

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
