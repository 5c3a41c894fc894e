r"""Crank-Nicolson proposals towards the population's own normal approximation.

With $\mu$ and $\Sigma = LL^\top$ the weighted mean and covariance of a row's particles, and $u = L^{-1}(\theta - \mu)$,
the proposal $u' = \sqrt{1 - \beta^2}\,u + \beta\,\xi$ leaves a standard normal invariant, whatever the step $\beta$
and the number of parameters. So it is accepted with probability
$\min\{1, \pi(\theta')\varphi(u) / \pi(\theta)\varphi(u')\}$: almost always, up to $\beta = 1$, where the posterior is
nearly normal, and particles forget their place in a few moves where a random walk needs some number times K (Cotter,
Roberts, Stuart and White 2013 take the prior for the normal).

A particle in a tail heavier than the normal's would hardly ever be let go. So each move is a random walk instead with
probability 1/4.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from calibayes._backend.arguments import fraction
from calibayes._backend.linalg import lower_inverse
from calibayes._backend.rng import normals, uniforms
from calibayes._core.particles import covariance, factor, mean, transform
from calibayes.kernels.base import Info, Kernel, metropolis

_WALK = 0.25


class _Adaptation(NamedTuple):
    logit_step: Float[Array, " B"]
    log_scale: Float[Array, " B"]
    steps: Int[Array, " B"]


class CrankNicolson(Kernel):
    """For populations of particles whose posterior is not far from normal; right for any."""

    target_acceptance: float = eqx.field(static=True, default=0.35)

    def __check_init__(self):
        fraction("target_acceptance", self.target_acceptance)

    def init(self, covariance):
        n_replicates, dim, _ = covariance.shape
        logit_step = jnp.full(n_replicates, 2.0, covariance.dtype)
        return _Adaptation(
            logit_step, jnp.full_like(logit_step, jnp.log(2.38 / dim**0.5)), jnp.zeros(n_replicates, int)
        )

    def step(self, keys, target, eta, particles, adaptation, adapt):
        theta = particles.theta
        dim, _, size = theta.shape
        uniform = uniforms(keys, dim + 2, size)
        # Once for all: what reads the normals must not draw them again.
        normal = jax.lax.optimization_barrier(normals(uniform[:dim]))
        log_uniforms, walks = jnp.log(uniform[dim]), uniform[dim + 1] < _WALK
        centre = mean(theta, particles.weights)[:, :, None]
        root = factor(covariance(theta, particles.weights))
        u = transform(lower_inverse(root), theta - centre)
        step = jax.nn.sigmoid(adaptation.logit_step)[:, None]
        keep = jnp.where(walks, 1.0, jnp.sqrt(1 - jnp.square(step)))
        add = jnp.where(walks, jnp.exp(adaptation.log_scale)[:, None], step)
        proposed = keep[None] * u + add[None] * normal
        gain = jnp.where(walks, 0.0, 0.5 * (jnp.square(proposed).sum(0) - jnp.square(u).sum(0)))
        move = metropolis(log_uniforms, target, eta, particles, centre + transform(root, proposed), gain)
        if adapt:
            adaptation = self._adapt(adaptation, _share(move.probability, ~walks), _share(move.probability, walks))
        return move.particles, adaptation, Info(move.info.acceptance, move.info.invalid)

    def _adapt(self, adaptation, of_steps, of_walks):
        steps = adaptation.steps + 1
        rate = 4 * (steps + 1).astype(of_steps.dtype) ** -0.51
        return _Adaptation(
            jnp.clip(adaptation.logit_step + rate * (of_steps - self.target_acceptance), -8.0, 8.0),
            adaptation.log_scale + rate * (of_walks - 0.25),
            steps,
        )


def _share(probability: Float[Array, "B M"], where: Array) -> Float[Array, " B"]:
    return jnp.where(where, probability, 0.0).sum(-1) / jnp.maximum(where.sum(-1, dtype=probability.dtype), 1)
