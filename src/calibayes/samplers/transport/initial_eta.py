"""A first guess of the learning rate for a region and a level, without an evaluation of the risk.

If the posterior of every replicate were normal with the covariance of that on the data, inversely proportional to eta,
and with a mean shifted by the infinitesimal jackknife (`calibayes._core.sandwich`), the sets of a level would contain
the point estimate where a norm of the shift is at most a multiple of the posterior's width, and this multiple falls as
one over the square root of eta. The guess is the eta at which that holds on as many replicates as the level requires.
Where there are normal approximations of the posteriors (`calibayes.samplers.normal`), an ellipsoid has their means and
covariances: in many dimensions those of the replicates differ noticeably from that on the data.
"""

from contextlib import suppress
from statistics import NormalDist

import numpy as np
from jaxtyping import Float

from calibayes._backend.linalg import host_inverse_factor
from calibayes._core.particles import host_moments
from calibayes._core.sandwich import influences, mean_shifts
from calibayes._core.target import Target
from calibayes.regions import HPD, Box, Ellipsoid, Interval, Linear, Region, Simultaneous
from calibayes.samplers.initial import InitialDraws
from calibayes.samplers.normal import NotNormalError, can_fit_normal, fit_to_data, fit_to_replicates
from calibayes.samplers.transport import config


def initial_eta(target: Target, initial: InitialDraws, region: Region, level: float) -> float:
    """Return the eta at which the approximate sets cover at `level`; that of the draws for regions of other types."""
    draws = np.asarray(initial.particles.theta, np.float64).reshape(target.dim, -1)
    draws, factor = draws - draws.mean(1, keepdims=True), np.nan
    if isinstance(region, HPD | Ellipsoid) and can_fit_normal(target):
        with suppress(NotNormalError):
            factor = _eta_factor_of_normal_fits(target, initial, draws, level)
    else:
        influence = influences(target, initial.particles, initial.eta).values
        factor = _eta_factor(draws, np.asarray(mean_shifts(target, influence)[0], np.float64)[:, 1:], region, level)
    largest = config.CONFIG.initial_eta.max_factor
    return initial.eta * float(np.clip(factor, 1 / largest, largest)) if np.isfinite(factor) else initial.eta


def _eta_factor_of_normal_fits(
    target: Target, initial: InitialDraws, draws: Float[np.ndarray, "K M"], level: float
) -> float:
    """Return the factor of eta by which ellipsoids of the replicates would cover the mean on the data."""
    centre, covariance = host_moments(initial.particles.merge_replicates())
    data_fit = fit_to_data(target, centre[:, 0], covariance[0], initial.eta)
    fits = fit_to_replicates(target, data_fit)
    shifts = (fits.centre[:, 1:] - fits.centre[:, :1]).T[:, :, None]
    distances = np.linalg.norm(np.linalg.solve(fits.root[1:].astype(np.float64), shifts)[:, :, 0], axis=1)
    width = np.quantile(np.linalg.norm(host_inverse_factor(covariance)[0] @ draws, axis=0), level)
    # The distances are zero if no replicate differs from the data, as with separable classes.
    with np.errstate(divide="ignore"):
        return float((width / np.quantile(distances, level)) ** 2)


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
    # The distances are zero if no replicate differs from the data, as with separable classes.
    with np.errstate(divide="ignore"):
        return float((width / np.quantile(distances, level)) ** 2)
