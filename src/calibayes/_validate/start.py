"""Checks of the start of a calibration: the user's draws, or the prior at draws of its own."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from calibayes._backend.jit import jit, light_jit
from calibayes._core.particles import Particles
from calibayes._core.target import Target
from calibayes._validate import settings
from calibayes._validate.data import as_numeric_array, require_finite
from calibayes.priors import Laplace, Normal, StudentT, Uniform
from calibayes.samplers import initial


@dataclass(frozen=True)
class StartConfig:
    """Constants of the checks of a user's prior."""

    n_prior_draws: int = 64
    """Draws of the prior at which its density is evaluated. Order-of-magnitude choice."""
    max_invalid_share: float = 0.5
    """Largest share of these draws at which the density may be zero, infinite or NaN. Draws on a bound of the prior may
    have such a density, but they are few."""


CONFIG = StartConfig()

_VALID_PRIORS = (Laplace, Normal, StudentT, Uniform)
"""Priors whose density is known to be finite at their draws."""


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
        shape = (settings.CONFIG.min_particles, dim)
        sampled = jax.eval_shape(lambda: jnp.asarray(prior.sample(jax.random.key(0), shape)))
        if sampled.shape != shape:
            raise ValueError(f"prior.sample(key, {shape}) must return an array of that shape; got {sampled.shape}.")
        if type(prior) not in _VALID_PRIORS:
            _require_density_at_draws(prior, dim)
        return None
    array = as_numeric_array("draws", draws)
    minimum = settings.CONFIG.min_particles
    if array.ndim != 2 or array.shape[1] != dim or len(array) < minimum:
        raise ValueError(f"draws must be (D, {dim}) with D at least {minimum}; got shape {array.shape}.")
    require_finite("draws", array)
    return array


def _require_density_at_draws(prior: object, dim: int) -> None:
    """Raise an error if the density of a user's prior is zero or undefined at most of its own draws."""
    log_prob = np.asarray(_log_prob_at_draws(prior, dim))
    n_invalid = int((~np.isfinite(log_prob)).sum())
    if n_invalid > CONFIG.max_invalid_share * log_prob.size:
        raise ValueError(
            f"prior.log_prob(theta) is {log_prob[~np.isfinite(log_prob)][0]:g} at {n_invalid} of {log_prob.size} draws "
            "of prior.sample(key, shape). Both must be of the same distribution; evaluate log_prob at a draw."
        )


@light_jit
def _log_prob_at_draws(prior: Any, dim: int) -> Float[Array, " M"]:
    draws = prior.sample(jax.random.key(0), (CONFIG.n_prior_draws, dim)).astype(float)
    return jax.vmap(lambda theta: jnp.asarray(prior.log_prob(theta), float))(draws)


def check_initial_risk(target: Target, draws: Float[np.ndarray, "M K"]) -> tuple[Target, Float[Array, "M K"]]:
    """Check the loss at the user's draws, and recentre the target if its reference is far from the data.

    Parameters
    ----------
    target : Target
        Posteriors of all replicates: model, data and counts.
    draws : ndarray of shape (M, K)
        The user's draws.

    Returns
    -------
    target : Target
        The target; if its risks were large, with the best of the draws as reference.
    draws : Array of shape (M, K)
        The draws on the device.

    Raises
    ------
    ValueError
        If the loss is not finite at one of the draws, or if one of these is outside the prior's bounds.
    """
    on_device = jnp.asarray(draws, float)
    _require_within_bounds(target, np.asarray(on_device))
    evaluated = _evaluate(target, on_device)
    risk, log_prior = np.asarray(evaluated.risk), np.asarray(evaluated.log_prior)
    if np.isnan(risk).all():
        raise ValueError(
            f"the loss is NaN at all of {len(draws)} initial draws. Evaluate loss(theta, datum) at one of them."
        )
    if not np.isfinite(risk).all():
        raise ValueError(
            f"the loss is infinite or NaN at {(~np.isfinite(risk)).sum()} of {len(draws)} draws, which therefore are "
            "not draws of the posterior: remove them."
        )
    if not np.isfinite(log_prior).all():
        raise ValueError(
            f"prior.log_prob(theta) is infinite or NaN at {(~np.isfinite(log_prior)).sum()} of {len(draws)} draws, "
            "which therefore are not draws of the posterior: remove them, or correct the prior."
        )
    best = int(np.argmin(risk))
    return (target.recentre(on_device[best]) if risk[0, best] < initial.CONFIG.recentre_below else target), on_device


def _require_within_bounds(target: Target, draws: Float[np.ndarray, "M K"]) -> None:
    low, high = np.asarray(target.coordinates.low), np.asarray(target.coordinates.high)
    outside = ((draws < low) | (draws > high)).any(0)
    if outside.any():
        k = int(np.argmax(outside))
        raise ValueError(f"draws of parameter {k} must lie within the prior's bounds, {low[k]:g} to {high[k]:g}.")


@jit
def _evaluate(target: Target, theta: Float[Array, "M K"]) -> Particles:
    """Return draws of the parameters with their risk and prior density on the data."""
    return target.replicate(0).evaluate(target.coordinates.unconstrain(theta.T[:, None, :]))
