r"""Crank-Nicolson proposals that leave a normal approximation of the particles invariant.

Let $\mu$ and $\Sigma = LL^\top$ be the weighted mean and covariance of the particles of a replicate, and
$u = L^{-1}(\theta - \mu)$. The proposal $u' = \sqrt{1 - \beta^2}\,u + \beta\,\xi$ with standard normal $\xi$ leaves the
standard normal distribution $\varphi$ invariant for any step $\beta$ and any number of parameters (Cotter, Roberts,
Stuart and White 2013, with the prior as the normal distribution). It is accepted with probability
$\min\{1, \pi(\theta')\varphi(u) / \pi(\theta)\varphi(u')\}$. Where the posterior is nearly normal, this is close to one
even for $\beta = 1$, so the particles become independent of their start in a few moves, whereas a random walk needs a
number of moves proportional to K.

A particle in a tail heavier than that of the normal approximation would rarely be moved. Therefore each move is a
random walk instead with a fixed probability.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from calibayes._backend.arguments import fraction
from calibayes._backend.functions import host_array
from calibayes._backend.linalg import factor_and_inverse
from calibayes._core.particles import Particles, covariance, mean, transform
from calibayes._core.target import Target
from calibayes.kernels.base import Kernel, KernelInfo, metropolis, normals_and_uniforms


@dataclass(frozen=True)
class CrankNicolsonConfig:
    """Tuning constants of `CrankNicolson`.

    All are order-of-magnitude choices, which change the speed of mixing but not the invariant distribution.
    """

    random_walk_probability: float = 0.25
    """Probability that a move is a random walk. A quarter costs little mixing on normal posteriors and lets particles
    leave heavy tails (`tests/kernels/test_crank_nicolson.py`)."""
    random_walk_acceptance: float = 0.25
    """Acceptance rate that the scale of the random walk adapts to, as for `RWMH`."""
    initial_logit_beta: float = 2.0
    """First value of logit(beta): beta = 0.88, close to an independent draw from the normal approximation."""
    max_logit_beta: float = 8.0
    """Bound on the absolute value of logit(beta): 1 - beta = 3e-4. Beyond it the step changes no acceptance rate, and
    an unbounded value could not adapt back."""
    gain: float = 4.0
    """Factor of the adaptation gain `gain * (t + 1) ** -gain_decay`. Larger than for `RWMH`, because only a few moves
    are made at each target."""
    gain_decay: float = 0.51
    """Exponent of the adaptation gain, as for `RWMH` (Tanaka 2024, section 3.1)."""


CONFIG = CrankNicolsonConfig()


class CrankNicolsonAdaptation(NamedTuple):
    """Adaptation of `CrankNicolson`."""

    logit_beta: Float[Array | np.ndarray, " B"]
    """logit(beta) of the Crank-Nicolson step."""
    log_scale: Float[Array | np.ndarray, " B"]
    """Logarithm of the scale of the random walk, in units of the factor L."""
    steps: Int[Array | np.ndarray, " B"]
    """Number of updates so far."""


class CrankNicolson(Kernel[CrankNicolsonAdaptation]):
    """Crank-Nicolson proposals, which leave the normal approximation of the particles invariant, or a random walk.

    Each move is a random walk with probability 1/4. Accepted or rejected by Metropolis-Hastings; mixes in a few moves
    where the posterior is close to normal. The transport sampler, and the check of its results by an independent
    sampler, use it to rejuvenate particles.

    Parameters
    ----------
    target_acceptance : float
        Acceptance rate that the Crank-Nicolson step adapts to, between 0 and 1. Default: 0.35.

    Raises
    ------
    TypeError, ValueError
        If `target_acceptance` is not a number between 0 and 1.

    References
    ----------
    S. L. Cotter, G. O. Roberts, A. M. Stuart and D. White (2013). MCMC methods for functions: modifying old algorithms
    to make them faster. Statistical Science 28, 424-446.

    Examples
    --------
    >>> import calibayes as cb
    >>> kernel = cb.kernels.CrankNicolson()
    >>> cb.SMC(n_particles=500, ess_target=0.5, n_moves=4, kernel=kernel).kernel
    CrankNicolson()
    """

    needs_particles: ClassVar[bool] = True

    target_acceptance: float = eqx.field(static=True, default=0.35)

    def __check_init__(self):
        fraction("target_acceptance", self.target_acceptance)

    def init(self, covariance: Float[Array, "B K K"]) -> CrankNicolsonAdaptation:
        n_replicates, dim, _ = covariance.shape
        return CrankNicolsonAdaptation(*(jnp.asarray(leaf) for leaf in initial_adaptation(n_replicates, dim)))

    def step(
        self,
        keys: Key[Array, " B"],
        target: Target,
        eta: Float[Array, " B"],
        particles: Particles,
        adaptation: CrankNicolsonAdaptation,
        adapt: bool,
    ) -> tuple[Particles, CrankNicolsonAdaptation, KernelInfo]:
        theta = particles.theta
        normal, uniform = normals_and_uniforms(keys, theta, 2)
        log_uniforms, is_walk = jnp.log(uniform[0]), uniform[1] < CONFIG.random_walk_probability
        centre = mean(theta, particles.weights)[:, :, None]
        root, inverse = factor_and_inverse(covariance(theta, particles.weights))
        u = transform(inverse, theta - centre)
        beta = jax.nn.sigmoid(adaptation.logit_beta)[:, None]
        shrinkage = jnp.where(is_walk, 1.0, jnp.sqrt(1 - jnp.square(beta)))
        noise_scale = jnp.where(is_walk, jnp.exp(adaptation.log_scale)[:, None], beta)
        proposed = shrinkage[None] * u + noise_scale[None] * normal
        # log(phi(u) / phi(u')); the random walk is symmetric.
        log_correction = jnp.where(is_walk, 0.0, 0.5 * (jnp.square(proposed).sum(0) - jnp.square(u).sum(0)))
        move = metropolis(log_uniforms, target, eta, particles, centre + transform(root, proposed), log_correction)
        if adapt:
            crank_nicolson_acceptance = _mean_where(~is_walk, move.probability)
            adaptation = self._adapt(adaptation, crank_nicolson_acceptance, _mean_where(is_walk, move.probability))
        return move.particles, adaptation, move.info

    def _adapt(
        self,
        adaptation: CrankNicolsonAdaptation,
        crank_nicolson_acceptance: Float[Array, " B"],
        walk_acceptance: Float[Array, " B"],
    ) -> CrankNicolsonAdaptation:
        steps = adaptation.steps + 1
        gain = CONFIG.gain * (steps + 1).astype(crank_nicolson_acceptance.dtype) ** -CONFIG.gain_decay
        logit_beta = adaptation.logit_beta + gain * (crank_nicolson_acceptance - self.target_acceptance)
        return CrankNicolsonAdaptation(
            jnp.clip(logit_beta, -CONFIG.max_logit_beta, CONFIG.max_logit_beta),
            adaptation.log_scale + gain * (walk_acceptance - CONFIG.random_walk_acceptance),
            steps,
        )


def initial_adaptation(n_replicates: int, dim: int) -> CrankNicolsonAdaptation:
    """Return the initial adaptation as host arrays, which compiles nothing."""
    logit_beta = host_array(np.full(n_replicates, CONFIG.initial_logit_beta))
    # 2.38 / sqrt(K) is the optimal scale of a random walk on a normal target (Gelman, Roberts and Gilks 1996).
    log_scale = np.full_like(logit_beta, np.log(2.38 / dim**0.5))
    return CrankNicolsonAdaptation(logit_beta, log_scale, np.zeros(n_replicates, int))


def _mean_where(mask: Bool[Array, "B M"], probability: Float[Array, "B M"]) -> Float[Array, " B"]:
    return jnp.where(mask, probability, 0.0).sum(-1) / jnp.maximum(mask.sum(-1, dtype=probability.dtype), 1)
