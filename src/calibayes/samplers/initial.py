"""Initial draws of the posterior on the data.

They come from the prior by tempering from eta = 0 (`calibayes.samplers.tempering`), which needs no starting value, no
gradient and no mode; or from draws that the user passes. Tanaka (2024) starts from MCMC instead: with a sampler such as
`SMC(start="mcmc")`, these draws are the start of Markov chains on all replicates (`calibayes.samplers.mixing`).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PRNGKeyArray

from calibayes._backend.functions import host_array
from calibayes._backend.jit import light_jit
from calibayes._backend.rng import replicate_keys, split_key, with_unrolled_threefry
from calibayes._core.coordinates import Coordinates
from calibayes._core.particles import Particles, host_means
from calibayes._core.precision import PrecisionError, is_double
from calibayes._core.target import Target, evaluate
from calibayes.samplers.mixing import temper_to
from calibayes.samplers.tempering import TemperingState, init_coarse


@dataclass(frozen=True)
class InitialDrawsConfig:
    """Constants of the initial draws."""

    min_draws: int = 1_000
    """Smallest number of initial draws of a sampler without its own rule. Enough to estimate the covariance that a
    Markov kernel starts with; more are drawn if a replicate has more particles."""
    min_finite_draws: int = 10
    """Smallest number of prior draws with a finite loss. With fewer, tempering starts from copies of a few points."""
    recentre_below: float = -1e4
    """Risk relative to the reference below which the reference is moved to the best draw. Risks of magnitude 1e4 leave
    float32 an absolute precision of about 1e-3, which is still small compared with the differences of order one that a
    posterior resolves."""


CONFIG = InitialDrawsConfig()


class InitialDraws(NamedTuple):
    """Draws of the posterior on the data.

    Attributes
    ----------
    target : Target
        The target, with its reference moved to the mean of the draws.
    particles : Particles
        The draws: one replicate, or one replicate per population (`calibayes.samplers.populations`).
    eta : float
        Their learning rate.
    independent : bool
        Whether the draws are independent, and not states of Markov chains. Default: False.
    """

    target: Target
    particles: Particles
    eta: float
    independent: bool = False


def initial_draws(
    key: PRNGKeyArray, target: Target, eta: float, n_particles: int, draws: Float[Array, "M K"] | None
) -> InitialDraws:
    """Draw from the posterior on the data at `eta`.

    Parameters
    ----------
    key : PRNGKeyArray
        Random key.
    target : Target
        The posteriors; replicate 0 is the data.
    eta : float
        The learning rate.
    n_particles : int
        Number of draws.
    draws : array of shape (M, K) or None
        Draws of the posterior at `eta` to choose from. If None, tempering from the prior.
    """
    temper_key, choice_key = split_key(key)
    if draws is None:
        state_key, data, state = start_at_prior(temper_key, target.replicate(0), n_particles)
        particles = temper_to(replicate_keys(state_key, 1), data, state, eta).particles
    else:
        chosen = jax.random.choice(choice_key, draws, (n_particles,), replace=len(draws) < n_particles)
        particles = evaluate(target.replicate(0), target.coordinates.unconstrain(chosen.T[:, None, :]))
    target = target.recentre(posterior_mean(target, particles))
    return InitialDraws(target, evaluate(target.replicate(0), particles.theta), eta)


def n_initial_draws(n_particles: int) -> int:
    """Return the number of initial draws of a sampler with `n_particles` particles per replicate."""
    return max(n_particles, CONFIG.min_draws)


def temper_from_prior(key: PRNGKeyArray, target: Target, eta: float, n_particles: int) -> TemperingState:
    """Return particles at `eta` on every replicate, by tempering from the prior."""
    temper_key, state = init_at_prior(key, target, n_particles)
    return temper_to(replicate_keys(temper_key, target.n_replicates), target, state, eta)


def init_at_prior(key: PRNGKeyArray, target: Target, n_particles: int) -> tuple[PRNGKeyArray, TemperingState]:
    """Return a key for the tempering, and independent draws of the prior on every replicate as a state at eta = 0.

    Raises
    ------
    ValueError
        If the loss is finite at fewer than `CONFIG.min_finite_draws` draws of a replicate, or the same at all draws.
    PrecisionError
        If it is the same at all draws in single precision.
    """
    prior_key, temper_key = split_key(key)
    particles = prior_particles(prior_key, target, n_particles)
    risk = np.asarray(particles.risk)
    n_finite = int(np.isfinite(risk).sum(-1).min())
    if n_finite < CONFIG.min_finite_draws:
        raise ValueError(
            f"the loss is infinite or NaN at all but {n_finite} of {n_particles} draws of the prior. Choose a prior "
            "nearer to where the loss is finite, pass draws of the posterior (draws=), or rewrite a loss whose terms "
            "overflow, such as log(cosh(r)) as logaddexp(r, -r)."
        )
    if np.ptp(risk[np.isfinite(risk)]) == 0:
        if not is_double():
            raise PrecisionError("the loss is the same at all draws of the prior in single precision.")
        reason = "it must depend on the parameters, the first argument of a user-defined loss."
        if target.linear:
            reason = (
                "they differ too little for data of this size, or X is zero. Use a prior that agrees with the data."
            )
        raise ValueError(f"the loss is the same at all of {n_particles} draws of the prior: {reason}")
    return temper_key, init_coarse(particles, 0.0)


def start_at_prior(key: PRNGKeyArray, target: Target, n_particles: int) -> tuple[PRNGKeyArray, Target, TemperingState]:
    """Return a key, the target and a state as `init_at_prior`, for a target whose reference may be far from the data.

    If it is, the best draw becomes the reference, so that float32 resolves the risks.
    """
    temper_key, state = init_at_prior(key, target, n_particles)
    risk = np.asarray(state.particles.risk)
    best = int(np.argmin(np.where(np.isfinite(risk), risk, np.inf)))
    if risk.flat[best] < CONFIG.recentre_below:
        coordinates = np.asarray(state.particles.theta).reshape(target.dim, -1)[:, best]
        target = target.recentre(target.coordinates.constrain(jnp.asarray(coordinates)))
        temper_key, state = init_at_prior(key, target, n_particles)
    return temper_key, target, state


def prior_particles(key: PRNGKeyArray, target: Target, n_particles: int) -> Particles:
    """Return independent draws of the prior on every replicate."""
    keys = replicate_keys(key, target.n_replicates)
    return evaluate(target, sample_prior(keys, target.prior, target.coordinates, target.reference, n_particles))


@light_jit
def sample_prior(
    keys: Key[Array, " B"], prior: Any, coordinates: Coordinates, reference: Float[Array, " K"], n_draws: int
) -> Float[Array, "K B M"]:
    """Return draws of the prior in unbounded coordinates, with the shape and dtype of `reference`."""
    draw = lambda key: prior.sample(with_unrolled_threefry(key), (n_draws, len(reference))).astype(reference.dtype)
    return coordinates.unconstrain(jnp.moveaxis(jax.lax.map(draw, keys), -1, 0))


def first_learning_rate(risk: Float[np.ndarray, "B M"]) -> float:
    """Return a learning rate at which the prior still matters: one over the interquartile range of the risk.

    `risk` is the risk at draws of the prior.
    """
    low, high = np.quantile(risk[np.isfinite(risk)], [0.25, 0.75])
    return 1 / max(float(high - low), 1e-6)


def posterior_mean(target: Target, particles: Particles) -> Float[np.ndarray, " K"]:
    """Return the mean of the parameters over replicates (or populations) that share one posterior."""
    return host_array(host_means(target.constrained(particles)).mean(1))
