"""A model, data and counts make one density on every row."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from calibayes._backend.devices import (
    OBSERVATIONS,
    SHARDED,
    UNSHARDED,
    choose_mesh,
    padded_blocks,
    place_blocks,
    sum_over_devices,
)
from calibayes._backend.functions import host_array
from calibayes._backend.jit import jit
from calibayes._core.coordinates import Coordinates
from calibayes._core.counts import Counts, DrawnCounts, PoissonSpec, StoredCounts
from calibayes._core.loss import Generic, LinearLoss
from calibayes._core.particles import Particles, uniform_log_weights
from calibayes._core.risk import block_length, generic_losses, in_replicate_batches, linear_losses, weighted_risk
from calibayes._core.risk_gpu import linear_risk
from calibayes._core.unroll import unroll

_TO_BEGIN_WITH = 2**16
"""Observations that a first fit takes of more than twice as many."""


class Model(Protocol):
    """A loss and a prior, such as a `GibbsModel`."""

    loss: LinearLoss | Generic
    prior: Any


class Target(eqx.Module):
    """The density `exp(-eta * risk) * prior` on B rows of counts. Row 0 is the data, counted once each.

    Observations lie in G blocks of L, the last filled up with observations that no row counts.
    Risks are relative to the risk of `reference`, which cancels from everything but their size.
    Particles live in free coordinates: what moves them never meets a wall.
    """

    loss: LinearLoss | Generic
    prior: Any
    data: PyTree[Array]
    """Blocks of observations; for linear losses `(x, y, offset)`, the prediction `offset + x @ (theta - reference)`."""
    counts: Counts
    reference: Float[Array, " K"]
    reference_loss: Float[Array, "G L"]
    """The loss of the reference for every observation."""
    coordinates: Coordinates
    mesh: Mesh | None = eqx.field(static=True, default=None)
    """The devices that the observations are shared out to; None if there is one."""

    @property
    def dim(self) -> int:
        return self.reference.shape[0]

    @property
    def n_replicates(self) -> int:
        return self.counts.n_replicates

    @property
    def linear(self) -> bool:
        return isinstance(self.loss, LinearLoss)

    @eqx.filter_jit
    def replicate(self, index: int) -> "Target":
        """The target of one row alone."""
        return self.select(jnp.asarray([index]))

    @jit
    def select(self, indices: Int[Array, " R"]) -> "Target":
        """The target of some rows, in this order; a row may come again."""
        return replace(self, counts=self.counts.select(indices))

    def subsample(self, key: PRNGKeyArray, n: int) -> "Target":
        """About n of the observations, one of each of as many stretches at random, on the data's row.

        The same on any devices, each of which has all of them.
        """
        length = self.reference_loss.shape[1]
        taken = -(-n // length) * length
        edges = np.arange(taken + 1) * int(self.counts.n) // taken
        inside = np.asarray(jax.random.uniform(key, (taken,)), np.float64)
        at = edges[:-1] + (inside * np.diff(edges)).astype(np.int64)
        data, base = _picked(self, jnp.asarray(at))
        ones = jnp.ones((*base.shape, 1), base.dtype)
        return replace(self, data=data, reference_loss=base, counts=StoredCounts(jnp.asarray(taken), ones), mesh=None)

    def risk(self, theta: Float[Array, "K B M"]) -> Float[Array, "B M"]:
        """Risk relative to the reference. Infinite is a density of zero; NaN, a loss that failed."""
        loss = self.loss
        if isinstance(loss, LinearLoss):
            theta = theta - self.reference[:, None, None]

        def on_rows(own, theta, data, base, counts):
            if self.mesh is not None:
                theta, counts = theta[:, own], counts.select(own)
            return in_replicate_batches(lambda theta, counts: of_rows(theta, counts, data, base), theta, counts)

        def of_rows(theta, counts, data, base):
            if isinstance(loss, LinearLoss):
                return linear_risk(loss, theta, data, base, counts)
            return weighted_risk(generic_losses(loss, theta), data, base, counts, theta.shape[-1], finite=False)

        specs = (UNSHARDED, SHARDED, SHARDED, self.counts.shared())
        args = (theta, self.data, self.reference_loss, self.counts)
        risk = sum_over_devices(self.mesh, on_rows, specs, *args, n_replicates=self.n_replicates)
        return jnp.where(risk == -jnp.inf, jnp.nan, risk)

    def totals(self) -> Float[Array, " B"]:
        """Counts of all observations, row by row."""
        return sum_over_devices(self.mesh, lambda counts: counts.totals(), (self.counts.shared(),), self.counts)

    def losses(self, z: Float[Array, "K B M"]) -> Callable[[Any], list[Float[Array, "B M"]]]:
        """A function of a block of observations: the loss of every particle for each of them."""
        theta, loss = self.coordinates.constrain(z), self.loss
        if isinstance(loss, LinearLoss):
            return linear_losses(loss.rho, theta - self.reference[:, None, None])
        return generic_losses(loss, theta)

    def log_prior(self, theta: Float[Array, "K B M"]) -> Float[Array, "B M"]:
        one = unroll(self.prior.log_prob, theta[:, 0, 0])
        return jax.vmap(jax.vmap(one, 1), 1)(theta)

    def evaluate(self, z: Float[Array, "K B M"]) -> Particles:
        """Particles of equal weight at some coordinates; their `log_prior` is the coordinates' density."""
        theta = self.coordinates.constrain(z)
        log_prior = self.log_prior(theta)
        if not self.coordinates.unbounded:
            log_prior = log_prior + self.coordinates.log_jacobian(z)
        return Particles(z, self.risk(theta), log_prior, uniform_log_weights(z.shape[1:]))

    def constrained(self, particles: Particles) -> Particles:
        """The particles as parameters, with the parameters' prior density."""
        return particles if self.coordinates.unbounded else self._constrained(particles)

    @jit
    def _constrained(self, particles: Particles) -> Particles:
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


def make_target(model: Model, data: Any, counts: np.ndarray | PoissonSpec, dim: int) -> Target:
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
            reference = initial_reference(x, y)
            y = y - x @ reference
        data = (x, y, np.zeros(n))
    mesh = choose_mesh(-(-n // length), n, counts.n_replicates if isinstance(counts, PoissonSpec) else len(counts))
    data, base = jax.tree.map(lambda leaf: _blocks(leaf, length, mesh), (data, np.zeros(n)))
    if mesh is None:
        data, base = jax.device_put((data, base))
    target = Target(
        loss=model.loss,
        prior=model.prior,
        data=data,
        counts=(DrawnCounts.from_spec if isinstance(counts, PoissonSpec) else StoredCounts.from_array)(counts, length, mesh),  # type: ignore[arg-type]
        reference=jax.device_put(host_array(reference)),
        reference_loss=base,
        coordinates=Coordinates.from_prior(model.prior, dim),
        mesh=mesh,
    )
    return target.recentre(target.reference)


def initial_reference(x: np.ndarray, y: np.ndarray) -> Float[np.ndarray, " K"]:
    """The least-squares fit, to some of many observations if these tell all parameters; as it will be stored, so that
    what is taken off y is what it stands for.
    """
    every = max(1, len(y) // _TO_BEGIN_WITH)
    fit, _, rank, _ = np.linalg.lstsq(x[::every], y[::every])
    if every > 1 and rank < x.shape[1]:
        fit = np.linalg.lstsq(x, y)[0]
    return host_array(fit).astype(np.float64)


@eqx.filter_jit
def _picked(target: Target, at: Int[Array, " S"]) -> tuple[PyTree[Array], Float[Array, "G L"]]:
    """Data and base of some observations; from each device those that it has, and nothing for the others."""
    n_blocks, length = target.reference_loss.shape

    def pick(leaves: PyTree[Array]) -> PyTree[Array]:
        own = len(jax.tree.leaves(leaves)[0]) * length
        here = at - (0 if own == n_blocks * length else own * jax.lax.axis_index(OBSERVATIONS))
        there = (here >= 0) & (here < own)

        def of(leaf: Array) -> Array:
            found = leaf.reshape(-1, *leaf.shape[2:])[jnp.clip(here, 0, own - 1)]
            return jnp.where(there.reshape(-1, *(1,) * (found.ndim - 1)), found, 0).reshape(
                -1, length, *found.shape[1:]
            )

        return jax.tree.map(of, leaves)

    leaves = (target.data, target.reference_loss)
    picked = sum_over_devices(target.mesh, pick, (SHARDED,), leaves)
    return jax.tree.map(lambda new, leaf: new.astype(leaf.dtype), picked, leaves)


@jit
def _recentre(target: Target, reference: Float[Array, " K"]) -> Target:
    loss = target.loss
    data = target.data
    if isinstance(loss, LinearLoss):
        x, y, offset = data
        shift = jnp.tensordot(x, reference - target.reference, 1)
        data = (x, y - shift, offset) if loss.location else (x, y, offset + shift)
        base = jax.vmap(jax.vmap(loss.rho))(data[2], data[1])
    else:
        base = jax.vmap(jax.vmap(loss, (None, 0)), (None, 0))(reference, data).astype(float)
    return replace(target, data=data, reference=reference, reference_loss=jnp.where(jnp.isfinite(base), base, 0.0))


def _blocks(leaf: np.ndarray, length: int, mesh: Mesh | None) -> Any:
    """Observations in blocks, filled up with the last of them."""
    n_blocks = padded_blocks(mesh, -(-len(leaf) // length))
    kind = jax.dtypes.canonicalize_dtype(float if np.issubdtype(leaf.dtype, np.floating) else leaf.dtype)

    def part(blocks: slice) -> np.ndarray:
        own = leaf[blocks.start * length : blocks.stop * length]
        fill = (blocks.stop - blocks.start) * length - len(own)
        padding = np.broadcast_to(leaf[-1], (fill, *leaf.shape[1:]))
        return np.concatenate([own, padding]).astype(kind).reshape(-1, length, *leaf.shape[1:])

    return place_blocks(mesh, (n_blocks, length, *leaf.shape[1:]), part)
