r"""Adaptive random-walk Metropolis-Hastings for populations of particles (paper, section 3.1).

Proposals are $\mathcal N(\theta, \zeta_t \Sigma_t)$. $\Sigma_t$ is the weighted covariance of the particles;
the paper takes it before they are reweighted from $\eta_t$ to $\eta_{t+1}$ and multiplies it by $\eta_t /
\eta_{t+1}$, while here they are reweighted already, so no factor is needed. The scale follows

$$ \log\zeta_{t+1} = \log\zeta_t + \varphi_t\,(\varrho_t - \varrho^*), \qquad \varphi_t = (t+1)^{-0.51}, $$

row by row, with the acceptance rate $\varrho_t$ over particles. In print the sign of the bracket is
reversed and the covariance neither centred nor normalised: `as_printed=True` runs that.
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from calibayes._backend.arguments import fraction
from calibayes._core.particles import covariance, factor, transform
from calibayes.kernels.base import Kernel, metropolis, random_walk_noise


class _Adaptation(NamedTuple):
    log_scale: Float[Array, " B"]
    steps: Int[Array, " B"]


class RWMH(Kernel):
    """Random walk with the particles' own covariance and a scale that keeps the acceptance rate."""

    target_acceptance: float = eqx.field(static=True, default=0.25)
    as_printed: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        fraction("target_acceptance", self.target_acceptance)

    def init(self, covariance):
        n_replicates, dim, _ = covariance.shape
        start = jnp.full(n_replicates, jnp.log(2.38**2 / dim), covariance.dtype)
        return _Adaptation(start, jnp.zeros(n_replicates, int))

    def step(self, keys, target, eta, particles, adaptation, adapt):
        normal, log_uniforms = random_walk_noise(keys, particles.theta)
        walk = transform(factor(self._covariance(particles)), normal)
        scale = jnp.exp(0.5 * adaptation.log_scale)[None, :, None]
        move = metropolis(log_uniforms, target, eta, particles, particles.theta + scale * walk)
        if adapt:
            adaptation = self._adapt(adaptation, move.info.acceptance)
        return move.particles, adaptation, move.info

    def _covariance(self, particles):
        if not self.as_printed:
            return covariance(particles.theta, particles.weights)
        weighted = particles.theta * particles.weights[None]
        return jnp.einsum("kbm,jbm->bkj", weighted, particles.theta) / particles.theta.shape[-1]

    def _adapt(self, adaptation, acceptance):
        steps = adaptation.steps + 1
        gain = (steps + 1).astype(acceptance.dtype) ** -0.51
        error = acceptance - self.target_acceptance
        change = -error if self.as_printed else error
        return _Adaptation(adaptation.log_scale + gain * change, steps)
