r"""Robust adaptive Metropolis (Vihola 2012, Statistics and Computing 22), the paper's kernel for GPC-MCMC.

The walk is $S_n u$, $u \sim \mathcal N(0, I)$, and the factor learns the target's shape while it coerces
the acceptance probability $\alpha_n$ to $\alpha^*$:

$$ S_{n} S_{n}^\top = S_{n-1}\Big(I + \beta_n(\alpha_n - \alpha^*)\frac{u u^\top}{\lVert u\rVert^2}\Big)S_{n-1}^\top,
   \qquad \beta_n = \min(1, K n^{-\gamma}). $$

Any factor of the right-hand side will do, since $S u$ depends on $S S^\top$ only through its law. The
symmetric root of a rank-one update is rank-one, so there is no Cholesky factor to update:
$S_n = S_{n-1} + (\sqrt{1 + a} - 1)\,(S_{n-1}u)\,u^\top / \lVert u\rVert^2$ with $a = \beta_n(\alpha_n - \alpha^*)$.
Several chains on a row share one factor and average their updates.
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from calibayes._backend.arguments import fraction, positive
from calibayes._core.particles import factor, transform
from calibayes.kernels.base import Kernel, metropolis, random_walk_noise


class _Adaptation(NamedTuple):
    root: Float[Array, "B K K"]
    steps: Int[Array, " B"]


class RAM(Kernel):
    """Random walk whose covariance is learned along the chain."""

    target_acceptance: float | None = eqx.field(static=True, default=None)
    """Unless told, 0.234; 0.44 for a single parameter."""
    decay: float = eqx.field(static=True, default=2 / 3)

    def __check_init__(self):
        if self.target_acceptance is not None:
            fraction("target_acceptance", self.target_acceptance)
        positive("decay", self.decay)

    def init(self, covariance):
        n_replicates, dim, _ = covariance.shape
        return _Adaptation(2.38 / dim**0.5 * factor(covariance), jnp.zeros(n_replicates, int))

    def step(self, keys, target, eta, particles, adaptation, adapt):
        normal, log_uniforms = random_walk_noise(keys, particles.theta)
        walk = transform(adaptation.root, normal)
        move = metropolis(log_uniforms, target, eta, particles, particles.theta + walk)
        if adapt:
            adaptation = self._adapt(adaptation, normal, walk, move.probability)
        return move.particles, adaptation, move.info

    def acceptance(self, dim: int) -> float:
        """The acceptance probability that is aimed at."""
        return self.target_acceptance or (0.44 if dim == 1 else 0.234)

    def _adapt(self, adaptation, normal, walk, probability):
        dim, _, n_chains = normal.shape
        steps = adaptation.steps + 1
        gain = jnp.minimum(1.0, dim * steps.astype(probability.dtype) ** -self.decay)
        a = gain[:, None] * (probability - self.acceptance(dim))
        size = (jnp.sqrt(1 + a) - 1) / jnp.square(normal).sum(0) / n_chains
        change = jnp.einsum("kbm,jbm->bkj", walk * size[None], normal)
        return _Adaptation(adaptation.root + change, steps)
