r"""The point to be covered, $\hat\theta(\eta)$: an estimate on the data at the present learning rate.

The posterior mean by default. Between two modes it may be covered at no eta; the mode and the minimiser of the
risk are the other choices in the literature, both found by the cross-entropy method, which asks for no gradient:
draw from a normal, keep the best, fit the normal to them, repeat.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from calibayes._backend.functions import host_array
from calibayes._core.particles import Particles, covariance, factor, mean, shift, weights_after
from calibayes._core.target import Target, log_density

ESTIMATES = ("mean", "mode", "minimizer")
_ROUNDS = 60
_DRAWS = 1000
_ELITE = 100


def point_estimate(
    estimate: str | Callable[..., Any], key: PRNGKeyArray, target: Target, particles: Particles, eta: float
) -> Float[Array, " K"]:
    """The estimate from the particles of the data's row.

    A function is called as `estimate(draws, weights)` with arrays (M, K) and (M,).
    """
    if callable(estimate):
        drawn = target.constrained(particles)
        return jnp.asarray(estimate(drawn.theta[:, 0].T, drawn.weights[0]), float)
    if estimate == "mean":
        return posterior_mean(target.constrained(particles))
    return _optimum(key, target.replicate(0), particles, host_array([eta]), estimate == "minimizer")


def points_along(
    estimate: str | Callable[..., Any],
    key: PRNGKeyArray,
    target: Target,
    particles: Particles,
    eta: float,
    etas: Float[np.ndarray, " G"],
) -> Float[Array, "G K"]:
    """The estimate at learning rates around `eta`, where the particles are, by reweighting them.

    An optimum is found once, at `eta`: that of the risk does not move, and a mode hardly.
    """
    if estimate == "mean":
        return means_along(target.constrained(particles), host_array(etas - eta))
    if callable(estimate):
        return jnp.stack(
            [point_estimate(estimate, key, target, shift(particles, host_array(e - eta)), e) for e in etas]
        )
    point = point_estimate(estimate, key, target, particles, eta)
    return jnp.broadcast_to(point[None], (len(etas), len(point)))


@jax.jit
def means_along(particles: Particles, steps: Float[Array, " G"]) -> Float[Array, "G K"]:
    """Of the particles on the data, at learning rates by so much larger."""
    log_weights, risk = particles.log_weights[0], particles.risk[0]
    shape = (len(steps), len(risk))
    weights, _ = weights_after(jnp.broadcast_to(log_weights, shape), jnp.broadcast_to(risk, shape), steps)
    return jnp.matmul(weights, particles.theta[:, 0].T, precision="highest")


@jax.jit
def posterior_mean(particles: Particles) -> Float[Array, " K"]:
    return mean(particles.theta, particles.weights)[:, 0]


@eqx.filter_jit
def _optimum(
    key: PRNGKeyArray, target: Target, particles: Particles, eta: Float[Array, " 1"], risk_only: bool
) -> Float[Array, " K"]:
    def value(theta: Float[Array, "K 1 M"]) -> Float[Array, " M"]:
        at = target.constrained(target.evaluate(theta))
        score = -at.risk if risk_only else log_density(at, eta)
        return jnp.where(jnp.isnan(score), -jnp.inf, score)[0]

    def fit(chosen: Float[Array, "K 1 M"]):
        weights = jnp.full((1, chosen.shape[-1]), 1 / chosen.shape[-1])
        return mean(chosen, weights)[:, 0], factor(covariance(chosen, weights))[0]

    def improve(carry, round_key):
        centre, root, best, best_value = carry
        normal = jax.random.normal(round_key, (len(centre), _DRAWS))
        theta = (centre[:, None] + root @ normal)[:, None, :]
        values = value(theta)
        top_values, top = jax.lax.top_k(values, _ELITE)
        better = top_values[0] > best_value
        best = jnp.where(better, theta[:, 0, top[0]], best)
        centre, root = fit(theta[:, :, top])
        return (centre, root, best, jnp.maximum(top_values[0], best_value)), None

    centre = mean(particles.theta, particles.weights)[:, 0]
    root = 2 * factor(covariance(particles.theta, particles.weights))[0]
    start = (centre, root, centre, value(centre[:, None, None])[0])
    (centre, _, best, best_value), _ = jax.lax.scan(
        improve, start, jax.random.split(jax.random.fold_in(key, 1), _ROUNDS)
    )
    best = jnp.where(value(centre[:, None, None])[0] >= best_value, centre, best)
    return target.coordinates.constrain(best)
