"""A first guess of the learning rate for a region and a level, without an evaluation of the risk.

If the posterior of every replicate were normal with the covariance of that on the data, inversely proportional to eta,
and with a mean shifted by the infinitesimal jackknife (`calibayes._core.sandwich`), the sets of a level would contain
the point estimate where a norm of the shift is at most a multiple of the posterior's width, and this multiple falls as
one over the square root of eta. The guess is the eta at which that holds on as many replicates as the level requires.
"""

from statistics import NormalDist

import numpy as np
from jaxtyping import Float

from calibayes._core.sandwich import influences, mean_shifts
from calibayes._core.target import Target
from calibayes.regions import HPD, Box, Ellipsoid, Interval, Linear, Region, Simultaneous
from calibayes.samplers.initial import InitialDraws
from calibayes.samplers.transport import config


def initial_eta(target: Target, initial: InitialDraws, region: Region, level: float) -> float:
    """Return the eta at which the approximate sets cover at `level`; that of the draws for regions of other types."""
    influence = influences(target, initial.particles, initial.eta).values
    shifts = np.asarray(mean_shifts(target, influence)[0], np.float64)[:, 1:]
    draws = np.asarray(initial.particles.theta, np.float64).reshape(len(shifts), -1)
    largest = config.CONFIG.initial_eta.max_factor
    factor = _eta_factor(draws - draws.mean(1, keepdims=True), shifts, region, level)
    return initial.eta * float(np.clip(factor, 1 / largest, largest)) if np.isfinite(factor) else initial.eta


def _eta_factor(
    draws: Float[np.ndarray, "K M"], shifts: Float[np.ndarray, "K B"], region: Region, level: float
) -> float:
    """Return the factor of eta by which sets around centred draws would cover shifts at `level`; NaN if unknown."""
    normal_width = NormalDist().inv_cdf(0.5 * (1 + level))
    if isinstance(region, Interval | Linear):
        vector = np.eye(len(draws))[region.index] if isinstance(region, Interval) else np.asarray(region.vector)
        draws, shifts = (vector @ draws)[None], (vector @ shifts)[None]
    sd = draws.std(1, keepdims=True)
    if isinstance(region, HPD | Ellipsoid):
        try:
            whiten = np.linalg.pinv(np.linalg.cholesky(np.atleast_2d(np.cov(draws))))
        except np.linalg.LinAlgError:
            # Singular up to rounding, as where parameters have very different scales.
            return np.nan
        distances = np.linalg.norm(whiten @ shifts, axis=0)
        width = np.quantile(np.linalg.norm(whiten @ draws, axis=0), level)
    elif isinstance(region, Box | Simultaneous | Interval | Linear):
        distances = np.abs(shifts / sd).max(0)
        is_joint = isinstance(region, Simultaneous)
        width = np.quantile(np.abs(draws / sd).max(0), level) if is_joint else normal_width
    else:
        return 1.0
    return float((width / np.quantile(distances, level)) ** 2)
