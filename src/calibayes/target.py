"""A model, data and counts make one density on every row."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from calibayes.coordinates import Coordinates
from calibayes.losses import LinearLoss
from calibayes.model import GibbsModel
from calibayes.particles import Particles, uniform_log_weights
from calibayes.risk import BLOCK, generic_losses, linear_losses, weighted_risk
from calibayes.together import jit


class Target(eqx.Module):
    """The density `exp(-eta * risk) * prior` on B rows of counts. Row 0 is the data, counted once each.

    Observations lie in G blocks of L, the last filled up with observations that no row counts.
    Risks are relative to the risk of `reference`, which cancels from everything but their size.
    Particles live in free coordinates: what moves them never meets a wall.
    """

    model: GibbsModel
    data: PyTree[Array]
    """Blocks of observations; for linear losses `(x, y, offset)`, the prediction `offset + x @ (theta - reference)`."""
    counts: Float[Array, "G L B"]
    reference: Float[Array, " K"]
    base: Float[Array, "G B"]
    """The risk of the reference on every block, row by row."""
    coordinates: Coordinates

    @property
    def dim(self) -> int:
        return self.reference.shape[0]

    @property
    def n_rows(self) -> int:
        return self.counts.shape[-1]

    @property
    def linear(self) -> bool:
        return isinstance(self.model.loss, LinearLoss)

    @eqx.filter_jit
    def row(self, index: int) -> "Target":
        """The target of one row alone."""
        at = slice(index, index + 1)
        return replace(self, counts=self.counts[:, :, at], base=self.base[:, at])

    @eqx.filter_jit
    def rows(self, indices: Int[Array, " R"]) -> "Target":
        """The target of some rows, in this order; a row may come again."""
        return replace(self, counts=self.counts[:, :, indices], base=self.base[:, indices])

    def risk(self, theta: Float[Array, "K B M"]) -> Float[Array, "B M"]:
        """Risk relative to the reference. Infinite is a density of zero; NaN, a loss that failed."""
        loss = self.model.loss
        finite = isinstance(loss, LinearLoss) and loss.finite
        risk = weighted_risk(self._losses(theta), self.data, self.base, self.counts, theta.shape[-1], finite)
        return jnp.where(risk == -jnp.inf, jnp.nan, risk)

    def losses(self, z: Float[Array, "K B M"]) -> Callable[[Any], list[Float[Array, "B M"]]]:
        """A function of a block of observations: the loss of every particle for each of them."""
        return self._losses(self.coordinates.constrain(z))

    def _losses(self, theta):
        loss = self.model.loss
        if isinstance(loss, LinearLoss):
            return linear_losses(loss.rho, theta - self.reference[:, None, None])
        return generic_losses(loss, theta)

    def log_prior(self, theta: Float[Array, "K B M"]) -> Float[Array, "B M"]:
        return jax.vmap(jax.vmap(self.model.prior.log_prob, 1), 1)(theta)

    def evaluate(self, z: Float[Array, "K B M"]) -> Particles:
        """Particles of equal weight at some coordinates; their `log_prior` is the coordinates' density."""
        theta = self.coordinates.constrain(z)
        log_prior = self.log_prior(theta)
        if not self.coordinates.free:
            log_prior = log_prior + self.coordinates.log_jacobian(z)
        return Particles(z, self.risk(theta), log_prior, uniform_log_weights(z.shape[1:]))

    @eqx.filter_jit
    def constrained(self, particles: Particles) -> Particles:
        """The particles as parameters, with the parameters' prior density."""
        if self.coordinates.free:
            return particles
        z = particles.theta
        log_prior = particles.log_prior - self.coordinates.log_jacobian(z)
        return Particles(self.coordinates.constrain(z), particles.risk, log_prior, particles.log_weights)

    def recentre(self, reference: Float[Array, " K"]) -> "Target":
        """The same target with risks relative to another reference."""
        return _recentre(self, reference)


def log_density(particles: Particles, eta: Float[Array, " B"]) -> Float[Array, "B M"]:
    r"""$\log\gamma(\theta) = -\eta R(\theta) + \log p(\theta)$; minus infinity where a loss is no number."""
    value = -eta[:, None] * particles.risk + particles.log_prior
    return jnp.where(jnp.isfinite(particles.risk) & ~jnp.isnan(value), value, -jnp.inf)


evaluate = jit(Target.evaluate)


def make_target(model: GibbsModel, data: Any, counts: np.ndarray, dim: int) -> Target:
    """The target of checked data (arrays on the host) and bootstrap counts (B, N), the data put first.

    The first reference of a location loss is the least-squares fit, taken off y in float64, so that y loses no
    digits to a large offset. Any other loss starts from zero.
    """
    n = len(jax.tree.leaves(data)[0])
    rows = np.concatenate([np.ones((1, n), np.float32), np.asarray(counts, np.float32)])
    reference = np.zeros(dim)
    if isinstance(model.loss, LinearLoss):
        x, y = data
        if model.loss.location:
            # As it will be stored, so that what is taken off y is what the reference stands for.
            reference = np.asarray(jnp.asarray(np.linalg.lstsq(x, y)[0], float), np.float64)
            y = y - x @ reference
        data = (x, y, np.zeros(n))
    target = Target(
        model=model,
        data=jax.tree.map(lambda leaf: _blocks(leaf, fill=leaf[-1]), data),
        counts=_blocks(rows.T, fill=np.zeros(len(rows), np.float32)),
        reference=jnp.asarray(reference, float),
        base=jnp.zeros((-(-n // BLOCK), len(rows))),
        coordinates=Coordinates.of(model.prior, dim),
    )
    return target.recentre(target.reference)


@eqx.filter_jit
def _recentre(target: Target, reference: Float[Array, " K"]) -> Target:
    loss = target.model.loss
    data = target.data
    if isinstance(loss, LinearLoss):
        x, y, offset = data
        shift = jnp.tensordot(x, reference - target.reference, 1)
        data = (x, y - shift, offset) if loss.location else (x, y, offset + shift)
        base = jax.vmap(jax.vmap(loss.rho))(data[2], data[1])
    else:
        base = jax.vmap(jax.vmap(loss, (None, 0)), (None, 0))(reference, data).astype(float)
    base = jnp.einsum("gl,glb->gb", jnp.where(jnp.isfinite(base), base, 0.0), target.counts)
    return replace(target, data=data, reference=reference, base=base)


def _blocks(leaf: np.ndarray, fill: Any) -> Array:
    padding = np.broadcast_to(fill, (-len(leaf) % BLOCK, *leaf.shape[1:]))
    blocks = np.concatenate([leaf, padding]).reshape(-1, BLOCK, *leaf.shape[1:])
    is_float = np.issubdtype(leaf.dtype, np.floating)
    return jnp.asarray(blocks, float if is_float else None)
