"""What a kernel is, and the Metropolis step that most of them share.

A kernel of your own is a class with these two methods. It gets the `Target`, so it may use the model's
structure; it knows nothing of bootstraps beyond rows, and nothing of regions or coverage.
"""

from abc import abstractmethod
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from calibayes._backend.rng import normals, uniforms
from calibayes._core.particles import Particles
from calibayes._core.target import Target, log_density


class Info(NamedTuple):
    """What happened on each row: mean acceptance, and proposals at which the loss was NaN."""

    acceptance: Float[Array, " B"]
    invalid: Int[Array, " B"]


class Kernel(eqx.Module):
    """Leaves the target at `eta` invariant."""

    def check(self, target: Target) -> None:
        """Raise if this kernel cannot move on this target."""

    @abstractmethod
    def init(self, covariance: Float[Array, "B K K"]) -> PyTree[Array]:
        """The adaptation to start from, arrays with rows leading, given a guess at the covariance."""

    @abstractmethod
    def step(
        self,
        keys: Key[Array, " B"],
        target: Target,
        eta: Float[Array, " B"],
        particles: Particles,
        adaptation: Any,
        adapt: bool,
    ) -> tuple[Particles, Any, Info]:
        """One move of every particle, with a key for every row. Weights stay as they are."""


class Move(NamedTuple):
    """A Metropolis step as it went."""

    particles: Particles
    probability: Float[Array, "B M"]
    info: Info


def metropolis(
    log_uniforms: Float[Array, "B M"],
    target: Target,
    eta: Float[Array, " B"],
    particles: Particles,
    proposal: Float[Array, "K B M"],
    log_correction: Float[Array, "B M"] | float = 0.0,
) -> Move:
    """Accept proposals with probability `min(1, density ratio)`. A NaN is a rejection.

    `log_correction` is the logarithm of the ratio of proposal densities, back to forth; zero for symmetric ones.
    """
    proposed = target.evaluate(proposal)
    log_ratio = log_density(proposed, eta) - log_density(particles, eta) + log_correction
    log_ratio = jnp.where(jnp.isnan(log_ratio), -jnp.inf, log_ratio)
    accepted = log_uniforms < log_ratio
    moved = Particles(
        jnp.where(accepted[None], proposed.theta, particles.theta),
        jnp.where(accepted, proposed.risk, particles.risk),
        jnp.where(accepted, proposed.log_prior, particles.log_prior),
        particles.log_weights,
    )
    probability = jnp.exp(jnp.minimum(log_ratio, 0.0))
    return Move(moved, probability, Info(probability.mean(-1), jnp.isnan(proposed.risk).sum(-1)))


def random_walk_noise(
    keys: Key[Array, " B"], theta: Float[Array, "K B M"]
) -> tuple[Float[Array, "K B M"], Float[Array, "B M"]]:
    """Standard normal steps and the logarithms of uniforms, row by row from the row's key."""
    dim, _, size = theta.shape
    uniform = uniforms(keys, dim + 1, size)
    # Once for all: what reads the normals must not draw them again.
    normal = jax.lax.optimization_barrier(normals(uniform[:dim]))
    return normal, jnp.log(uniform[dim])
