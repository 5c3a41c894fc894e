r"""Adaptive random-walk Metropolis-Hastings for populations of particles (Tanaka 2024, section 3.1).

Proposals are $\mathcal N(\theta, \zeta_t \Sigma_t)$, where $\Sigma_t$ is the weighted covariance of the particles of a
replicate. Tanaka computes $\Sigma_t$ before the particles are reweighted from $\eta_t$ to $\eta_{t+1}$ and multiplies
it by $\eta_t / \eta_{t+1}$; here the particles are reweighted first, so no factor is needed. The scale follows

$$ \log\zeta_{t+1} = \log\zeta_t + \varphi_t\,(\varrho_t - \varrho^*), \qquad \varphi_t = (t+1)^{-0.51}, $$

separately on every replicate, where $\varrho_t$ is the acceptance rate averaged over particles and $\varrho^*$ is
`target_acceptance`. The paper prints the
bracket with the opposite sign and a covariance that is neither centred nor normalised; `as_printed=True` runs that
version.
"""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from calibayes._backend.arguments import fraction
from calibayes._backend.linalg import factor
from calibayes._core.particles import Particles, covariance, transform
from calibayes._core.target import Target
from calibayes.kernels.base import Kernel, KernelInfo, metropolis, random_walk_noise


class RWMHAdaptation(NamedTuple):
    """Adaptation of `RWMH`."""

    log_scale: Float[Array, " B"]
    """Logarithm of $\\zeta$, by which the covariance of the particles is multiplied."""
    steps: Int[Array, " B"]
    """Number of updates so far."""


class RWMH(Kernel[RWMHAdaptation]):
    """Random-walk Metropolis-Hastings with the covariance of the particles (Tanaka 2024, section 3.1).

    The default kernel of `SMC`. The proposal covariance is the weighted covariance of the particles of a replicate
    times a scale, which adapts until the acceptance rate is `target_acceptance`.

    Parameters
    ----------
    target_acceptance : float
        Acceptance rate to adapt to, between 0 and 1. Default: 0.25, as in Tanaka (2024).
    as_printed : bool
        Whether to run the update as printed in Tanaka (2024), for comparison: the scale adapts in the wrong direction,
        and the covariance is neither centred nor normalised. Default: False.

    Raises
    ------
    TypeError, ValueError
        If `target_acceptance` is not a number between 0 and 1.

    Examples
    --------
    >>> import calibayes as cb
    >>> sampler = cb.SMC(n_particles=500, kernel=cb.kernels.RWMH(target_acceptance=0.3))
    >>> sampler.kernel
    RWMH(target_acceptance=0.3)
    """

    needs_particles: ClassVar[bool] = True

    target_acceptance: float = eqx.field(static=True, default=0.25)
    as_printed: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        fraction("target_acceptance", self.target_acceptance)

    def init(self, covariance: Float[Array, "B K K"]) -> RWMHAdaptation:
        n_replicates, dim, _ = covariance.shape
        # 2.38^2 / K is optimal for a normal target (Gelman, Roberts and Gilks 1996).
        log_scale = jnp.full(n_replicates, jnp.log(2.38**2 / dim), covariance.dtype)
        return RWMHAdaptation(log_scale, jnp.zeros(n_replicates, int))

    def step(
        self,
        keys: Key[Array, " B"],
        target: Target,
        eta: Float[Array, " B"],
        particles: Particles,
        adaptation: RWMHAdaptation,
        adapt: bool,
    ) -> tuple[Particles, RWMHAdaptation, KernelInfo]:
        normal, log_uniforms = random_walk_noise(keys, particles.theta)
        increment = transform(factor(self._covariance(particles)), normal)
        scale = jnp.exp(0.5 * adaptation.log_scale)[None, :, None]
        move = metropolis(log_uniforms, target, eta, particles, particles.theta + scale * increment)
        if adapt:
            adaptation = self._adapt(adaptation, move.info.acceptance)
        return move.particles, adaptation, move.info

    def _covariance(self, particles: Particles) -> Float[Array, "B K K"]:
        if not self.as_printed:
            return covariance(particles.theta, particles.weights)
        weighted = particles.theta * particles.weights[None]
        return jnp.einsum("kbm,jbm->bkj", weighted, particles.theta) / particles.theta.shape[-1]

    def _adapt(self, adaptation: RWMHAdaptation, acceptance: Float[Array, " B"]) -> RWMHAdaptation:
        steps = adaptation.steps + 1
        gain = (steps + 1).astype(acceptance.dtype) ** -0.51
        error = acceptance - self.target_acceptance
        change = -error if self.as_printed else error
        return RWMHAdaptation(adaptation.log_scale + gain * change, steps)
