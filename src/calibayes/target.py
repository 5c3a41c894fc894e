"""A model, data and counts make one density on every row."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from calibayes.coordinates import Coordinates
from calibayes.counts import Counts, Drawn, Poissons, Stored
from calibayes.devices import ALL, SOME, each, mesh_for, placed, shares, summed
from calibayes.losses import LinearLoss
from calibayes.model import GibbsModel
from calibayes.particles import Particles, uniform_log_weights
from calibayes.risk import block_length, generic_losses, linear_losses, weighted_risk
from calibayes.risk_gpu import linear_risk
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
    counts: Counts
    reference: Float[Array, " K"]
    base: Float[Array, "G L"]
    """The loss of the reference for every observation; for linear ones, of its bent part."""
    coordinates: Coordinates
    mesh: Mesh | None = eqx.field(static=True, default=None)
    """The devices that the observations are shared out to; None if there is one."""

    @property
    def dim(self) -> int:
        return self.reference.shape[0]

    @property
    def n_rows(self) -> int:
        return self.counts.n_rows

    @property
    def linear(self) -> bool:
        return isinstance(self.model.loss, LinearLoss)

    @eqx.filter_jit
    def row(self, index: int) -> "Target":
        """The target of one row alone."""
        return self.rows(jnp.asarray([index]))

    @eqx.filter_jit
    def rows(self, indices: Int[Array, " R"]) -> "Target":
        """The target of some rows, in this order; a row may come again."""
        return replace(self, counts=self.counts.rows(indices))

    @eqx.filter_jit
    def some(self, key: PRNGKeyArray, n: int) -> "Target":
        """About n of the observations, one of each stretch of them at random, on the data's row.

        On several devices each takes some of its own.
        """
        n_blocks, length = self.base.shape
        devices = shares(self.mesh, 1)
        taken = -(-n // (devices * length)) * length
        stretch = n_blocks * length // devices // taken
        at = jnp.arange(taken) * stretch + jax.random.randint(key, (taken,), 0, stretch)

        def pick(leaf: Array) -> Array:
            return leaf.reshape(-1, *leaf.shape[2:])[at].reshape(-1, length, *leaf.shape[2:])

        there = (jnp.arange(n_blocks * length) < self.counts.n).reshape(self.base.shape).astype(self.base.dtype)
        data, base, there = each(self.mesh, lambda leaves: jax.tree.map(pick, leaves), (self.data, self.base, there))
        return replace(self, data=data, base=base, counts=Stored(there.sum(dtype=int), there[:, :, None]))

    def risk(self, theta: Float[Array, "K B M"]) -> Float[Array, "B M"]:
        """Risk relative to the reference. Infinite is a density of zero; NaN, a loss that failed."""
        loss = self.model.loss
        if isinstance(loss, LinearLoss):
            theta = theta - self.reference[:, None, None]

        def on_rows(own, theta, data, base, counts):
            if self.mesh is not None:
                theta, counts = theta[:, own], counts.rows(own)
            if isinstance(loss, LinearLoss):
                return _linear_risk(loss, theta, data, base, counts)
            return weighted_risk(generic_losses(loss, theta), data, base, counts, theta.shape[-1], finite=False)

        specs = (ALL, SOME, SOME, self.counts.shared())
        args = (theta, self.data, self.base, self.counts)
        risk = summed(self.mesh, on_rows, specs, *args, rows=self.n_rows)
        return jnp.where(risk == -jnp.inf, jnp.nan, risk)

    def totals(self) -> Float[Array, " B"]:
        """Counts of all observations, row by row."""
        return summed(self.mesh, lambda counts: counts.totals(), (self.counts.shared(),), self.counts)

    def losses(self, z: Float[Array, "K B M"]) -> Callable[[Any], list[Float[Array, "B M"]]]:
        """A function of a block of observations: the loss of every particle for each of them."""
        theta, loss = self.coordinates.constrain(z), self.model.loss
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


def _linear_risk(
    loss: LinearLoss, theta: Float[Array, "K B M"], data: tuple[Array, Array, Array], base: Array, counts: Counts
) -> Float[Array, "B M"]:
    """By the fewest operations a particle and observation: y is part of the offset where it can be, and what is linear
    in the prediction is summed over observations before it meets a particle.
    """
    x, y, offset = data
    rho: Callable[..., Array] = loss.bent
    if loss.location:
        rho, offset = (lambda beyond, y: loss.bent(beyond, jnp.zeros_like(y))), offset - y
    risk = linear_risk(rho, theta, (x, y, offset), base, counts, loss.finite)
    if loss.tilt is None:
        return risk
    slopes = loss.tilt * counts.sums(x)
    return risk + sum(slopes[k][:, None] * theta[k] for k in range(len(theta)))


def log_density(particles: Particles, eta: Float[Array, " B"]) -> Float[Array, "B M"]:
    r"""$\log\gamma(\theta) = -\eta R(\theta) + \log p(\theta)$; minus infinity where a loss is no number."""
    value = -eta[:, None] * particles.risk + particles.log_prior
    return jnp.where(jnp.isfinite(particles.risk) & ~jnp.isnan(value), value, -jnp.inf)


evaluate = jit(Target.evaluate)


def make_target(model: GibbsModel, data: Any, counts: np.ndarray | Poissons, dim: int) -> Target:
    """The target of checked data (arrays on the host) and bootstrap counts, the data put first.

    The first reference of a location loss is the least-squares fit, taken off y in float64, so that y loses no digits
    to a large offset. Any other loss starts from zero.
    """
    n = len(jax.tree.leaves(data)[0])
    length = block_length(dim)
    reference = np.zeros(dim)
    if isinstance(model.loss, LinearLoss):
        x, y = data
        if model.loss.location:
            # As it will be stored, so that what is taken off y is what the reference stands for.
            reference = np.asarray(jnp.asarray(np.linalg.lstsq(x, y)[0], float), np.float64)
            y = y - x @ reference
        data = (x, y, np.zeros(n))
    mesh = mesh_for(-(-n // length), n, counts.n_rows if isinstance(counts, Poissons) else len(counts))
    data, base = jax.tree.map(lambda leaf: _blocks(leaf, length, mesh), (data, np.zeros(n)))
    target = Target(
        model=model,
        data=data,
        counts=(Drawn.of if isinstance(counts, Poissons) else Stored.of)(counts, length, mesh),  # type: ignore[arg-type]
        reference=jnp.asarray(reference, float),
        base=base,
        coordinates=Coordinates.of(model.prior, dim),
        mesh=mesh,
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
        base = jax.vmap(jax.vmap(loss.bent))(data[2], data[1])
    else:
        base = jax.vmap(jax.vmap(loss, (None, 0)), (None, 0))(reference, data).astype(float)
    return replace(target, data=data, reference=reference, base=jnp.where(jnp.isfinite(base), base, 0.0))


def _blocks(leaf: np.ndarray, length: int, mesh: Mesh | None) -> Array:
    """Observations in blocks, filled up with the last of them."""
    n_blocks = shares(mesh, -(-len(leaf) // length))
    kind = jax.dtypes.canonicalize_dtype(float if np.issubdtype(leaf.dtype, np.floating) else leaf.dtype)

    def part(blocks: slice) -> np.ndarray:
        own = leaf[blocks.start * length : blocks.stop * length]
        fill = (blocks.stop - blocks.start) * length - len(own)
        padding = np.broadcast_to(leaf[-1], (fill, *leaf.shape[1:]))
        return np.concatenate([own, padding]).astype(kind).reshape(-1, length, *leaf.shape[1:])

    return placed(mesh, (n_blocks, length, *leaf.shape[1:]), part)
