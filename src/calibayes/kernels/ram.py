r"""Robust adaptive Metropolis (Vihola 2012, Statistics and Computing 22), the kernel of GPC-MCMC in Tanaka (2024).

The increment of the random walk is $S_n u$ with $u \sim \mathcal N(0, I)$. The factor $S_n$ learns the shape of the
target while it drives the acceptance probability $\alpha_n$ to $\alpha^*$:

$$ S_{n} S_{n}^\top = S_{n-1}\Big(I + \beta_n(\alpha_n - \alpha^*)\frac{u u^\top}{\lVert u\rVert^2}\Big)S_{n-1}^\top,
   \qquad \beta_n = \min(1, K n^{-\gamma}). $$

Any factor of the right-hand side will do, because the distribution of $S u$ depends on $S S^\top$ only. The symmetric
root of the rank-one update is itself a rank-one update, so no Cholesky factor is needed:
$S_n = S_{n-1} + (\sqrt{1 + a} - 1)\,(S_{n-1}u)\,u^\top / \lVert u\rVert^2$ with $a = \beta_n(\alpha_n - \alpha^*)$.
Several chains on one replicate share a factor and average their updates.
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from calibayes._backend.arguments import fraction, positive
from calibayes._backend.linalg import factor
from calibayes._core.particles import Particles, transform
from calibayes._core.target import Target
from calibayes.kernels.base import Kernel, KernelInfo, metropolis, random_walk_noise


class RAMAdaptation(NamedTuple):
    """Adaptation of `RAM`."""

    root: Float[Array, "B K K"]
    """Factor S of the proposal covariance."""
    steps: Int[Array, " B"]
    """Number of updates so far."""


class RAM(Kernel[RAMAdaptation]):
    """Robust adaptive Metropolis: a random walk whose covariance is learned along the chain (Vihola 2012).

    The default kernel of `MCMC`.

    Parameters
    ----------
    target_acceptance : float or None
        Acceptance rate to adapt to, between 0 and 1. Default: 0.234, or 0.44 for a single parameter.
    decay : float
        Exponent of the decreasing adaptation gain `min(1, K * n ** -decay)`. Default: 2/3.

    Raises
    ------
    TypeError, ValueError
        If `target_acceptance` is not between 0 and 1, or `decay` is not positive.

    References
    ----------
    M. Vihola (2012). Robust adaptive Metropolis algorithm with coerced acceptance rate. Statistics and Computing 22,
    997-1008.

    Examples
    --------
    >>> import calibayes as cb
    >>> sampler = cb.MCMC(n_draws=5_000, kernel=cb.kernels.RAM(target_acceptance=0.3))
    >>> sampler.kernel.target_acceptance
    0.3
    """

    target_acceptance: float | None = eqx.field(static=True, default=None)
    decay: float = eqx.field(static=True, default=2 / 3)

    def __check_init__(self):
        if self.target_acceptance is not None:
            fraction("target_acceptance", self.target_acceptance)
        positive("decay", self.decay)

    def init(self, covariance: Float[Array, "B K K"]) -> RAMAdaptation:
        n_replicates, dim, _ = covariance.shape
        # 2.38 / sqrt(K) is optimal for a normal target (Gelman, Roberts and Gilks 1996).
        return RAMAdaptation(2.38 / dim**0.5 * factor(covariance), jnp.zeros(n_replicates, int))

    def step(
        self,
        keys: Key[Array, " B"],
        target: Target,
        eta: Float[Array, " B"],
        particles: Particles,
        adaptation: RAMAdaptation,
        adapt: bool,
    ) -> tuple[Particles, RAMAdaptation, KernelInfo]:
        normal, log_uniforms = random_walk_noise(keys, particles.theta)
        increment = transform(adaptation.root, normal)
        move = metropolis(log_uniforms, target, eta, particles, particles.theta + increment)
        if adapt:
            adaptation = self._adapt(adaptation, normal, increment, move.probability)
        return move.particles, adaptation, move.info

    def _acceptance_goal(self, dim: int) -> float:
        # Asymptotically optimal rates of random walks (Roberts, Gelman and Gilks 1997).
        return self.target_acceptance or (0.44 if dim == 1 else 0.234)

    def _adapt(
        self,
        adaptation: RAMAdaptation,
        normal: Float[Array, "K B M"],
        increment: Float[Array, "K B M"],
        probability: Float[Array, "B M"],
    ) -> RAMAdaptation:
        dim, _, n_chains = normal.shape
        steps = adaptation.steps + 1
        gain = jnp.minimum(1.0, dim * steps.astype(probability.dtype) ** -self.decay)
        a = gain[:, None] * (probability - self._acceptance_goal(dim))
        size = (jnp.sqrt(1 + a) - 1) / jnp.square(normal).sum(0) / n_chains
        change = jnp.einsum("kbm,jbm->bkj", increment * size[None], normal)
        return RAMAdaptation(adaptation.root + change, steps)
