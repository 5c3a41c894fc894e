"""Linear models of raw columns: an intercept, centred columns and a weakly informative prior.

Columns are centred, and for a location loss y is centred at its median, so that floats have enough digits in any units.
The result is reported for the original columns and y, with the intercept at zero of all columns
(`calibayes.reparametrize`). The scale of the default prior follows the spread of the columns and of y, so that it is
weak in any units.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from jaxtyping import Float

from calibayes._validate.settings import check_weights
from calibayes.calibrate import calibrate
from calibayes.losses import LinearLoss
from calibayes.model import GibbsModel
from calibayes.priors import Normal
from calibayes.regions import Region, as_region
from calibayes.reparametrize import Reparametrization
from calibayes.result import Result


@dataclass(frozen=True)
class DesignConfig:
    """Tuning constants of the default prior."""

    prior_scale: float = 10.0
    """Standard deviation of the prior of a slope, in units of (standard deviation of y) / (standard deviation of the
    column);
    for labels the former is replaced by one, the margin of the hinge loss. Ten is weak compared with any plausible
    slope, which is of order one in these units; an order-of-magnitude choice."""


CONFIG = DesignConfig()


@dataclass(frozen=True)
class Design:
    """Centring and scaling of the columns of a linear model with P columns and K parameters.

    Attributes
    ----------
    means : ndarray of shape (P,)
        Values that are subtracted from the columns: their means, or zero without an intercept.
    spreads : ndarray of shape (P,)
        Root mean squares of the centred columns; 1 for a constant column.
    intercept : bool
        Whether the model has an intercept, which is then the first parameter.
    weights : ndarray of shape (N,) or None
        Weights of the observations. Default: None, all one.
    """

    means: Float[np.ndarray, " P"]
    spreads: Float[np.ndarray, " P"]
    intercept: bool
    weights: Float[np.ndarray, " N"] | None = None

    @staticmethod
    def from_columns(columns: Float[np.ndarray, "N P"], intercept: bool = True, weights: object = None) -> "Design":
        """Return the design of a table of columns, whose rows may have weights."""
        checked = check_weights(weights, len(columns))
        values = None if checked is None else checked.values
        if columns.shape[1] == 0:  # NumPy has no weighted average of no columns.
            return Design(np.zeros(0), np.zeros(0), intercept, values)
        centres = np.average(columns, 0, values) if intercept else np.zeros(columns.shape[1])
        spreads = np.sqrt(np.average(np.square(columns - centres), 0, values))
        counted = columns if values is None else columns[values > 0]
        varies = np.ptp(counted, 0) > 0 if intercept else spreads > 0
        return Design(centres, np.where(varies, spreads, 1.0), intercept, values)

    def matrix(self, columns: Float[np.ndarray, "N P"]) -> Float[np.ndarray, "N K"]:
        """Return the design matrix that is sampled with: centred columns, after a column of ones."""
        centred = columns - self.means
        return np.column_stack([np.ones(len(centred)), centred]) if self.intercept else centred

    def uncentred_matrix(self, columns: Float[np.ndarray, "N P"]) -> Float[np.ndarray, "N K"]:
        """Return the design matrix of the reported parameters: the original columns, after a column of ones."""
        return np.column_stack([np.ones(len(columns)), columns]) if self.intercept else columns

    def offset(self, loss: LinearLoss, y: Float[np.ndarray, " N"]) -> float:
        """Return the value that is subtracted from y and added to the reported intercept."""
        return self._median(y) if self.intercept and loss.location else 0.0

    def _median(self, values: Float[np.ndarray, " N"]) -> float:
        """Return the weighted median, the mean of the lower and the upper one."""
        if self.weights is None:
            return float(np.median(values))
        lower, upper = (
            sign * np.quantile(sign * values, 0.5, weights=self.weights, method="inverted_cdf") for sign in (1, -1)
        )
        return float((lower + upper) / 2)

    def reparametrization(self, offset: float) -> Reparametrization:
        """Return the map from sampled parameters to reported ones."""
        matrix = np.eye(len(self.means) + self.intercept)
        shift = np.zeros(len(matrix))
        if self.intercept:
            matrix[0, 1:], shift[0] = -self.means, offset
        return Reparametrization(matrix, shift)

    def names(self, columns: Sequence[str]) -> list[str]:
        """Return the names of the parameters.

        Raises
        ------
        ValueError
            If a column has the name of the intercept.
        """
        if self.intercept and "intercept" in columns:
            raise ValueError(
                "a column is called 'intercept', which is the name of the model's own intercept. Rename the column, or "
                "fit without an intercept (fit_intercept=False in estimators)."
            )
        return ["intercept", *columns] if self.intercept else list(columns)

    def default_huber_delta(self, columns: Float[np.ndarray, "N P"], y: Float[np.ndarray, " N"]) -> float:
        """Return 1.345 robust standard deviations of the least-squares residuals.

        With this threshold Huber's loss has 95% efficiency at normal errors. The standard deviation is the median
        absolute deviation, scaled to be consistent at the normal distribution.
        """
        matrix = self.matrix(columns)
        root = np.sqrt(np.ones(len(y)) if self.weights is None else self.weights)
        residual = y - matrix @ np.linalg.lstsq(matrix * root[:, None], y * root)[0]
        return self.huber_delta_of(residual, self._median, lambda values: np.average(values, weights=self.weights))

    @staticmethod
    def huber_delta_of(
        residual: Float[np.ndarray, " N"],
        median: Callable[[np.ndarray], Any],
        mean: Callable[[np.ndarray], Any],
    ) -> float:
        """Return 1.345 robust standard deviations of residuals, given functions for the median and the mean."""
        spread = median(np.abs(residual - median(residual))) / NormalDist().inv_cdf(0.75)
        return 1.345 * float(spread or mean(np.square(residual - mean(residual))) ** 0.5 or 1.0)

    def prior(self, loss: LinearLoss, y: Float[np.ndarray, " N"]) -> Normal:
        """Return the default prior of the sampled parameters.

        The prior standard deviation of a coefficient is `CONFIG.prior_scale` times the spread of y (one for labels and
        for the logarithm of a mean) divided by the spread of its column.
        """
        if loss.log_link:
            return self.prior_of_spread(loss, float(np.average(y, weights=self.weights)), 1.0)
        centre = self._median(y) if self.intercept and not loss.margin else 0.0
        spread = float(np.sqrt(np.average(np.square(y - centre), weights=self.weights)))
        varies = np.ptp(y if self.weights is None else y[self.weights > 0]) > 0
        return self.prior_of_spread(loss, centre, spread if varies else 1.0)

    def prior_of_spread(self, loss: LinearLoss, location: float, spread: float) -> Normal:
        """Return the default prior, given the mean of y for a loss with a logarithmic link, or else its median and
        the spread around it.
        """
        centre, unit = (location, spread) if self.intercept and not loss.margin else (0.0, spread)
        if loss.log_link:
            centre, unit = float(np.log(location)) if self.intercept else 0.0, 1.0
        elif loss.margin:
            unit = 1.0
        scale = CONFIG.prior_scale * unit / self.spreads
        if not self.intercept:
            return Normal(scale=scale)
        return Normal(
            loc=np.array([centre, *np.zeros(len(scale))]), scale=np.array([CONFIG.prior_scale * unit, *scale])
        )

    def calibrate(
        self,
        loss: LinearLoss,
        columns: Float[np.ndarray, "N P"],
        y: Float[np.ndarray, " N"],
        *,
        names: Sequence[str],
        call: str,
        about: dict[str, Any],
        prior: object = None,
        region: str | Region = "hpd",
        **options: Any,
    ) -> Result:
        """Calibrate the linear model and report it for the original columns.

        Parameters
        ----------
        loss : LinearLoss
            Loss of the linear prediction.
        columns : ndarray of shape (N, P)
            Original columns.
        y : ndarray of shape (N,)
            Response.
        names : sequence of str
            Names of the columns.
        call : str
            Source code of the call that led here, for the report.
        about : dict
            What the report says about model and data, such as the name of the target; added to the settings.
        prior : Prior, optional
            Prior of the prediction at the means of the columns, followed by the slopes; y is then not centred.
            Default: `Design.prior`.
        region : str or Region
            Region of the reported parameters. Default: "hpd".
        **options
            Further arguments of `calibayes.calibrate`.

        Returns
        -------
        Result
            The calibration of the reported parameters.
        """
        loss.check(y if self.weights is None else y[self.weights > 0])
        if self.weights is not None:
            options["weights"] = self.weights
        offset = self.offset(loss, y) if prior is None else 0.0
        prior = self.prior(loss, y - offset) if prior is None else prior
        data, original = (self.matrix(columns), y - offset), (self.uncentred_matrix(columns), y)
        return self.calibrate_centred(
            loss, prior, data, offset, original, names=names, call=call, about=about, region=region, **options
        )

    def calibrate_centred(
        self,
        loss: LinearLoss,
        prior: object,
        data: object,
        offset: float,
        original: object,
        *,
        names: Sequence[str],
        call: str,
        about: dict[str, Any],
        region: str | Region = "hpd",
        **options: Any,
    ) -> Result:
        """Calibrate centred data, and report the result for the original ones; the other parameters as above."""
        view, region = self.reparametrization(offset), as_region(region)
        result = calibrate(
            GibbsModel(loss, prior),
            data,
            region=view.transform_region(region),
            names=self.names(names),
            **options,
        )
        settings = {"call": call, "level": result.level, "region": region.name, "centred": self.intercept} | about
        calibration = (
            None if result.calibration is None else result.calibration.with_reparametrization(view, original, settings)
        )
        result = replace(result, data=original, settings=result.settings | settings, calibration=calibration)
        return view.transform_result(result)
