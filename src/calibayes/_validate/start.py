"""Checks of the draws from which a calibration starts: the user's, or draws of the prior."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from calibayes._backend.jit import jit
from calibayes._core.target import Target
from calibayes._validate import settings
from calibayes._validate.data import as_numeric_array, require_finite


@dataclass(frozen=True)
class StartConfig:
    """Tuning constants of the checks of initial draws."""

    n_prior_draws: int = 32
    """Number of draws of the prior at which the loss is evaluated. Order-of-magnitude choice: enough to tell a loss
    that is NaN everywhere from one that is NaN in parts of the parameter space."""
    recentre_below: float = -1e4
    """Risk relative to the reference below which the reference is moved to the best draw. Risks of magnitude 1e4 leave
    float32 an absolute precision of about 1e-3, which is still small compared with the differences of order one that a
    posterior resolves."""


CONFIG = StartConfig()


def check_initial_draws(draws: object, prior: object, dim: int) -> Float[np.ndarray, "M K"] | None:
    """Check the argument `draws`.

    Parameters
    ----------
    draws : array_like of shape (M, K) or None
        The user's draws of the posterior at the initial learning rate.
    prior : prior
        Prior of the model; it must have a method `sample` if there are no draws.
    dim : int
        Number of parameters K.

    Returns
    -------
    ndarray of shape (M, K) or None
        The draws in float64. None if the calibration starts from the prior.

    Raises
    ------
    TypeError, ValueError
        If the draws are invalid, or there are none and the prior cannot be sampled.
    """
    if draws is None:
        if not hasattr(prior, "sample"):
            raise TypeError(
                f"prior {type(prior).__name__} has no method sample(key, shape), which is needed to start from the "
                "prior. Add it, or pass draws of the posterior at eta_init (draws=)."
            )
        return None
    array = as_numeric_array("draws", draws)
    minimum = settings.CONFIG.min_particles
    if array.ndim != 2 or array.shape[1] != dim or len(array) < minimum:
        raise ValueError(f"draws must be (M, {dim}) with M at least {minimum}; got shape {array.shape}.")
    require_finite("draws", array)
    return array


def check_initial_risk(
    target: Target, draws: Float[np.ndarray, "M K"] | None, key: PRNGKeyArray
) -> tuple[Target, Float[Array, "M K"] | None]:
    """Check the loss at the initial draws, and recentre the target if its reference is far from the data.

    Parameters
    ----------
    target : Target
        Target of the calibration.
    draws : ndarray of shape (M, K) or None
        The user's draws. If None, the loss is checked at draws of the prior.
    key : PRNGKeyArray
        Key for the draws of the prior.

    Returns
    -------
    target : Target
        The target; if its risks were large, with the best of the draws as reference.
    draws : Array of shape (M, K) or None
        The user's draws on the device.

    Raises
    ------
    ValueError
        If the loss is NaN at all draws, if it is not finite at one of the user's draws, or if one of these is outside
        the prior's bounds.
    """
    if draws is None:
        on_device, points, risks = None, *_risk_at_prior_draws(target, key)
    else:
        on_device = points = jnp.asarray(draws, float)
        _require_within_bounds(target, np.asarray(points))
        risks = _risk(target, points)
    risk = np.asarray(risks)
    if np.isnan(risk).all():
        source = "draws of the prior" if draws is None else "initial draws"
        raise ValueError(
            f"the loss is NaN at all of {len(points)} {source}. Evaluate loss(theta, datum) at one of them."
        )
    if draws is not None and not np.isfinite(risk).all():
        raise ValueError(
            f"the loss is infinite or NaN at {(~np.isfinite(risk)).sum()} of {len(points)} draws, which therefore are "
            "not draws of the posterior: remove them."
        )
    best = int(np.nanargmin(risk))
    return (target.recentre(points[best]) if risk[0, best] < CONFIG.recentre_below else target), on_device


def _require_within_bounds(target: Target, draws: Float[np.ndarray, "M K"]) -> None:
    low, high = np.asarray(target.coordinates.low), np.asarray(target.coordinates.high)
    outside = ((draws < low) | (draws > high)).any(0)
    if outside.any():
        k = int(np.argmax(outside))
        raise ValueError(f"draws of parameter {k} must lie within the prior's bounds, {low[k]:g} to {high[k]:g}.")


@jit
def _risk(target: Target, theta: Float[Array, "M K"]) -> Float[Array, "1 M"]:
    """Return the risk on the data at draws of the parameters."""
    return target.replicate(0).evaluate(target.coordinates.unconstrain(theta.T[:, None, :])).risk


@jit
def _risk_at_prior_draws(target: Target, key: PRNGKeyArray) -> tuple[Float[Array, "M K"], Float[Array, "1 M"]]:
    """Return draws of the prior and their risk on the data."""
    shape = (CONFIG.n_prior_draws, target.dim)
    draws = target.prior.sample(key, shape).astype(float)
    if draws.shape != shape:
        raise ValueError(f"prior.sample(key, {shape}) must return an array of that shape; got {draws.shape}.")
    return draws, _risk(target, draws)
