r"""The point estimate that the credible sets should cover, $\hat\theta(\eta)$, on the data at a learning rate.

The default is the posterior mean. If it lies between two modes, no learning rate may cover it often enough. The
posterior mode and the minimizer of the risk are the other choices in the literature. Both are found by the
cross-entropy method (Rubinstein 1999), which needs no gradient: draw from a normal distribution, keep the best draws,
refit the distribution to them, and repeat.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from calibayes._backend.functions import host_array
from calibayes._backend.jit import jit
from calibayes._backend.linalg import factor
from calibayes._backend.rng import fold_key, replicate_keys, with_unrolled_threefry
from calibayes._core.particles import Particles, covariance, host_means, host_reweight, mean
from calibayes._core.target import Target, log_density

ESTIMATES = ("mean", "mode", "minimizer")

Estimate = str | Callable[..., Any]
"""A name out of `ESTIMATES`, or a function `estimate(draws, weights)` of arrays (M, K) and (M,)."""


@dataclass(frozen=True)
class CrossEntropyConfig:
    """Constants of the cross-entropy method. The optimum is found to float32 accuracy for up to 50 parameters."""

    n_rounds: int = 60
    """Refits of the normal distribution."""
    n_draws: int = 1000
    """Draws per round."""
    n_elite: int = 100
    """Best draws per round, to which the distribution is refitted."""
    initial_spread: float = 2.0
    """Standard deviations of the first distribution, relative to the posterior's."""


CONFIG = CrossEntropyConfig()


def point_estimate(
    estimate: Estimate, key: PRNGKeyArray, target: Target, particles: Particles, eta: float
) -> Float[Array | np.ndarray, " K"]:
    """Return the estimate from the particles on the data."""
    if callable(estimate):
        constrained = target.constrained(particles)
        return jnp.asarray(estimate(constrained.theta[:, 0].T, constrained.weights[0]), float)
    if estimate == "mean":
        return host_array(host_means(target.constrained(particles))[:, 0])
    return _optimum(key, target.replicate(0), particles, host_array([eta]), estimate == "minimizer")


def points_along(
    estimate: Estimate,
    key: PRNGKeyArray,
    target: Target,
    particles: Particles,
    eta: float,
    etas: Float[np.ndarray, " G"],
) -> Float[np.ndarray, "G K"]:
    """Return the estimate at learning rates around `eta`, the particles' own, by reweighting.

    An optimum is computed once, at `eta`: the minimizer of the risk does not depend on eta, and the mode hardly.
    """
    if estimate == "mean":
        return _means_along(target.constrained(particles), etas - eta)
    if callable(estimate):
        shifted = [(host_reweight(particles, other - eta), other) for other in etas]
        return host_array([point_estimate(estimate, key, target, *pair) for pair in shifted])
    point = np.asarray(point_estimate(estimate, key, target, particles, eta))
    return np.broadcast_to(point[None], (len(etas), len(point)))


def _means_along(particles: Particles, steps: Float[np.ndarray, " G"]) -> Float[np.ndarray, "G K"]:
    """Return the posterior mean on the data at learning rates that differ from the particles' by `steps`."""
    return host_array([host_means(host_reweight(particles, step))[:, 0] for step in steps])


@jit
def _optimum(
    key: PRNGKeyArray, target: Target, particles: Particles, eta: Float[Array, " 1"], risk_only: bool
) -> Float[Array, " K"]:
    """Maximize the posterior density, or minimize the risk, by the cross-entropy method."""

    def value(theta: Float[Array, "K 1 M"]) -> Float[Array, " M"]:
        evaluated = target.constrained(target.evaluate(theta))
        score = -evaluated.risk if risk_only else log_density(evaluated, eta)
        return jnp.where(jnp.isnan(score), -jnp.inf, score)[0]

    def fit(elite: Float[Array, "K 1 M"]):
        weights = jnp.full((1, elite.shape[-1]), 1 / elite.shape[-1])
        return mean(elite, weights)[:, 0], factor(covariance(elite, weights))[0]

    def improve(carry, round_key):
        centre, root, best, best_value = carry
        normal = jax.random.normal(with_unrolled_threefry(round_key), (len(centre), CONFIG.n_draws))
        theta = (centre[:, None] + root @ normal)[:, None, :]
        values = value(theta)
        top_values, top = jax.lax.top_k(values, CONFIG.n_elite)
        better = top_values[0] > best_value
        best = jnp.where(better, theta[:, 0, top[0]], best)
        centre, root = fit(theta[:, :, top])
        return (centre, root, best, jnp.maximum(top_values[0], best_value)), None

    centre = mean(particles.theta, particles.weights)[:, 0]
    root = CONFIG.initial_spread * factor(covariance(particles.theta, particles.weights))[0]
    start = (centre, root, centre, value(centre[:, None, None])[0])
    (centre, _, best, best_value), _ = jax.lax.scan(improve, start, replicate_keys(fold_key(key, 1), CONFIG.n_rounds))
    best = jnp.where(value(centre[:, None, None])[0] >= best_value, centre, best)
    return target.coordinates.constrain(best)
