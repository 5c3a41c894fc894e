"""Cox's model of columns with a weakly informative prior, for the estimator and for formulas."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float

from calibayes import design
from calibayes.calibrate import calibrate
from calibayes.losses import Cox
from calibayes.model import GibbsModel
from calibayes.priors import Normal
from calibayes.result import Result

__all__ = ["calibrate_survival"]


def calibrate_survival(
    risk: Cox,
    columns: Float[np.ndarray, "N P"],
    survival: tuple[Float[np.ndarray, " N"], ...],
    *,
    names: Sequence[str],
    call: str,
    about: dict[str, Any] | None = None,
    prior: object = None,
    weights: Float[np.ndarray, " N"] | None = None,
    **options: Any,
) -> Result:
    """Calibrate Cox's model of columns, which needs neither an intercept nor centring.

    Parameters
    ----------
    risk : Cox
        The risk.
    columns : ndarray of shape (N, P)
        Columns.
    survival : tuple of ndarray
        Times and events, followed by times of entry if there are any.
    names : sequence of str
        Names of the columns.
    call : str
        Source code of the call that led here, for the report.
    about : dict, optional
        Further settings of the result.
    prior : Prior, optional
        Prior of the coefficients. Default: normal, with a standard deviation of `calibayes.design.CONFIG.prior_scale`
        divided by the spread of the column.
    weights : ndarray of shape (N,), optional
        Weights of the observations.
    **options
        Further arguments of `calibayes.calibrate`.

    Returns
    -------
    Result
        The calibration.
    """
    if prior is None:
        prior = Normal(scale=design.CONFIG.prior_scale / design.Design.from_columns(columns, True, weights).spreads)
    if weights is not None:
        options["weights"] = weights
    result = calibrate(GibbsModel(risk, prior), (columns, *survival), names=names, **options)
    own = {"call": call, "level": result.level, "region": result.region.name}
    return replace(result, settings=result.settings | own | (about or {}))
