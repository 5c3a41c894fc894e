r"""The target density of every replicate, made of a model, data and counts.

$$ \gamma_b(\theta) = \exp\{-\eta R_b(\theta)\}\,p(\theta), \qquad R_b(\theta) = \sum_i c_{bi}\,r_i(\theta). $$
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

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
    n_stored_blocks,
    sum_over_devices,
)
from calibayes._backend.functions import host_array
from calibayes._backend.jit import jit
from calibayes._core.coordinates import Coordinates
from calibayes._core.counts import Counts, DrawnCounts, PoissonSpec, StoredCounts, to_blocks
from calibayes._core.loss import Generic, LinearLoss
from calibayes._core.particles import Particles, uniform_log_weights
from calibayes._core.risk import (
    block_length,
    generic_losses,
    in_replicate_batches,
    linear_losses,
    linear_risk,
    weighted_risk,
)
from calibayes._core.unroll import unroll
from calibayes._core.weights import ObservationWeights, Weights


@dataclass(frozen=True)
class TargetConfig:
    """Tuning constants of the construction of a target."""

    reference_observations: int = 2**16
    """The initial reference, the point that risks are relative to, is fitted by least squares. With at least twice this
    many observations, a subsample of this size is used: the reference only has to be near the posterior, and is
    recentred later. Order-of-magnitude choice; it affects results by rounding only."""


CONFIG = TargetConfig()


@runtime_checkable
class Model(Protocol):
    """Loss and prior, such as a `GibbsModel`."""

    loss: LinearLoss | Generic
    prior: Any


class Target(eqx.Module):
    """Density `exp(-eta * risk) * prior` of B replicates. Replicate 0 is the data, with counts of one, or the weights.

    Observations are stored in G blocks of L. They are padded with observations whose counts are zero, so that data of
    similar size share their compiled programs. `counts.n` is the number of observations without padding.
    Risks are relative to the risk of `reference`, a constant that cancels from all results and keeps them small.
    Particles are in unbounded coordinates, so that moves never meet the bounds of the prior.

    Attributes
    ----------
    loss : LinearLoss or Generic
        Loss of one observation.
    prior : prior
        Prior with a method `log_prob`.
    data : pytree of Array
        Blocks of observations. For losses of a linear prediction `(x, y, offset)`, with the prediction
        `offset + x @ (theta - reference)`.
    counts : Counts
        Counts of the replicates.
    reference : Array of shape (K,)
        Parameters whose risk is subtracted.
    reference_loss : Array of shape (G, L)
        Loss of the reference for every observation.
    coordinates : Coordinates
        Map between parameters and unbounded coordinates.
    mesh : Mesh or None
        Devices between which the observations are divided; None for a single device.
    weights : ObservationWeights or None
        Weights of the observations. Default: None, all one.
    """

    loss: LinearLoss | Generic
    prior: Any
    data: PyTree[Array]
    counts: Counts
    reference: Float[Array, " K"]
    reference_loss: Float[Array, "G L"]
    coordinates: Coordinates
    mesh: Mesh | None = eqx.field(static=True, default=None)
    weights: ObservationWeights | None = None

    @property
    def dim(self) -> int:
        return self.reference.shape[0]

    @property
    def n_replicates(self) -> int:
        return self.counts.n_replicates

    @property
    def n_stored(self) -> int:
        """Number of observations with padding."""
        return self.reference_loss.size

    @property
    def linear(self) -> bool:
        return isinstance(self.loss, LinearLoss)

    @jit
    def replicate(self, index: int) -> "Target":
        """Return the target of one replicate."""
        return self.select(jnp.asarray([index]))

    @jit
    def select(self, indices: Int[Array | np.ndarray, " R"]) -> "Target":
        """Return the target of the replicates at `indices`, which may repeat."""
        return replace(self, counts=self.counts.select(jnp.asarray(indices)))

    def subsample(self, key: PRNGKeyArray, n: int) -> "Target":
        """Return the target of a stratified subsample of the data, without bootstrap replicates.

        Parameters
        ----------
        key : PRNGKeyArray
            Random key.
        n : int
            Number of observations, rounded up to a multiple of the length of the blocks in which the data are stored.
            The data are divided into that many intervals of consecutive observations, and one observation is drawn from
            each.

        Returns
        -------
        Target
            Target that is stored completely on every device. The observations that are drawn do not depend on the
            number of devices.
        """
        length = self.reference_loss.shape[1]
        size = -(-n // length) * length
        edges = np.arange(size + 1) * int(self.counts.n) // size
        uniforms = np.asarray(jax.random.uniform(key, (size,)), np.float64)
        indices = edges[:-1] + (uniforms * np.diff(edges)).astype(np.int64)
        data, reference_loss, weights = _gather_observations(self, jnp.asarray(indices))
        of_data = jnp.ones_like(reference_loss) if weights is None else weights.values
        counts = StoredCounts(jnp.asarray(size), of_data[..., None])
        return replace(self, data=data, reference_loss=reference_loss, counts=counts, mesh=None, weights=weights)

    def risk(self, theta: Float[Array, "K B M"]) -> Float[Array, "B M"]:
        """Return the risk at parameters, relative to the reference.

        Infinity stands for a density of zero, NaN for a loss that failed.
        """
        loss = self.loss
        if isinstance(loss, LinearLoss):
            theta = theta - self.reference[:, None, None]

        def on_device(indices, theta, data, reference_loss, counts):
            if self.mesh is not None:
                theta, counts = theta[:, indices], counts.select(indices)
            of_replicates = lambda theta, counts: risk_of_replicates(theta, counts, data, reference_loss)
            return in_replicate_batches(of_replicates, theta, counts)

        def risk_of_replicates(theta, counts, data, reference_loss):
            if isinstance(loss, LinearLoss):
                return linear_risk(loss, theta, data, reference_loss, counts)
            losses_of = generic_losses(loss, theta)
            return weighted_risk(losses_of, data, reference_loss, counts, theta.shape[-1], finite=False)

        specs = (UNSHARDED, SHARDED, SHARDED, self.counts.partition_specs())
        args = (theta, self.data, self.reference_loss, self.counts)
        risk = sum_over_devices(self.mesh, on_device, specs, *args, n_replicates=self.n_replicates)
        # Minus infinity would win every comparison: it is a failure as well.
        return jnp.where(risk == -jnp.inf, jnp.nan, risk)

    def losses(self, z: Float[Array, "K B M"]) -> Callable[[Any], list[Float[Array, "B M"]]]:
        """Return a function of a block of observations that gives the losses at coordinates for each of them."""
        theta, loss = self.coordinates.constrain(z), self.loss
        if isinstance(loss, LinearLoss):
            return linear_losses(loss.rho, theta - self.reference[:, None, None])
        return generic_losses(loss, theta)

    def log_prior(self, theta: Float[Array, "K B M"]) -> Float[Array, "B M"]:
        """Return the logarithm of the prior density at parameters."""
        log_prob = unroll(self.prior.log_prob, theta[:, 0, 0])
        return jax.vmap(jax.vmap(log_prob, 1), 1)(theta)

    def evaluate(self, z: Float[Array, "K B M"]) -> Particles:
        """Return particles with equal weights at coordinates. Their `log_prior` is the density of the coordinates."""
        theta = self.coordinates.constrain(z)
        log_prior = self.log_prior(theta)
        if not self.coordinates.unbounded:
            log_prior = log_prior + self.coordinates.log_jacobian(z)
        return Particles(z, self.risk(theta), log_prior, uniform_log_weights(z.shape[1:]))

    def constrained(self, particles: Particles) -> Particles:
        """Return particles as parameters instead of coordinates, with the prior density of the parameters."""
        return particles if self.coordinates.unbounded else self._constrained(particles)

    @jit
    def _constrained(self, particles: Particles) -> Particles:
        z = particles.theta
        log_prior = particles.log_prior - self.coordinates.log_jacobian(z)
        return Particles(self.coordinates.constrain(z), particles.risk, log_prior, particles.log_weights)

    def shaped(self, particles: Particles) -> Particles:
        """Return the particles whose distribution is reported; others than these only for a `ShapedTarget`."""
        return particles

    def pull_back(self, points: Float[Array, "G K"]) -> tuple[Float[Array, "K B G"], Float[Array, "B G"] | None]:
        """Return the points at which the density of reported `points` is evaluated, and a correction of its logarithm.

        They are the points themselves, with no correction, for all but a `ShapedTarget`.
        """
        return jnp.broadcast_to(points.T[:, None], (self.dim, self.n_replicates, len(points))), None

    def recentre(self, reference: Float[Array | np.ndarray, " K"]) -> "Target":
        """Return the same target with risks relative to another reference."""
        return recentre(self, reference)


evaluate = jit(Target.evaluate)


def log_density(particles: Particles, eta: Float[Array, " B"]) -> Float[Array, "B M"]:
    r"""Return $\log\gamma(\theta) = -\eta R(\theta) + \log p(\theta)$, minus infinity where the risk is not finite."""
    value = -eta[:, None] * particles.risk + particles.log_prior
    return jnp.where(jnp.isfinite(particles.risk) & ~jnp.isnan(value), value, -jnp.inf)


def is_log_concave(target: Target) -> bool:
    """Return whether the posteriors are known to be log-concave.

    With a bounded prior the posterior need not be log-concave in the unconstrained coordinates of the particles.
    """
    convex_loss = _declares(target.loss, "convex", ("rho", "decompose"))
    log_concave_prior = _declares(target.prior, "log_concave", ("log_prob",))
    return convex_loss and log_concave_prior and target.coordinates.unbounded


def _declares(instance: object, attribute: str, methods: tuple[str, ...]) -> bool:
    """Return the attribute of the class that defines the methods.

    A subclass that overrides a method does not inherit the attribute.
    """
    classes = type(instance).__mro__
    defining = next((cls for cls in classes if any(name in vars(cls) for name in methods)), object)
    return bool(vars(defining).get(attribute, False))


def make_target(
    model: Model,
    data: Any,
    counts: np.ndarray | PoissonSpec,
    dim: int,
    pad: bool = True,
    weights: Weights | None = None,
) -> Target:
    """Make the target of a model.

    Parameters
    ----------
    model : Model
        Loss and prior.
    data : pytree of ndarray
        Checked data; for losses of a linear prediction `(x, y)`.
    counts : ndarray of shape (B, N) or PoissonSpec
        Counts of the bootstrap replicates, without the data.
    dim : int
        Number of parameters.
    pad : bool
        Whether to pad the observations to one of a few sizes, and not to complete blocks only. Default: True.
    weights : Weights or None
        Weights of the observations, which `counts` in an array include. Default: None, all one.

    Returns
    -------
    Target
        Target with the data as replicate 0. The reference of a location loss is the least-squares fit, which is
        subtracted from y in float64, so that a large offset of y costs no precision. It is zero for other losses.
    """
    n = len(jax.tree.leaves(data)[0])
    length = block_length(dim)
    reference = np.zeros(dim)
    if isinstance(model.loss, LinearLoss):
        x, y = data
        if model.loss.location:
            reference = initial_reference(x, y, weights)
            y = y - x @ reference
        data = (x, y, np.zeros(n))
    mesh = choose_mesh(-(-n // length), n, counts.n_replicates if isinstance(counts, PoissonSpec) else len(counts))
    n_blocks = n_stored_blocks(mesh, n, length, pad)
    data, zeros = jax.tree.map(lambda leaf: to_blocks(leaf, length, n_blocks, mesh), (data, np.zeros(n)))
    if mesh is None:
        data, zeros = jax.device_put((data, zeros))
    of_blocks = None
    if weights is not None:
        in_blocks = [to_blocks(leaf, length, n_blocks, mesh) for leaf in (weights.values, weights.per_draw)]
        of_blocks = ObservationWeights(*(in_blocks if mesh is not None else jax.device_put(in_blocks)))
    make_counts = DrawnCounts.from_spec if isinstance(counts, PoissonSpec) else StoredCounts.from_array
    target = Target(
        loss=_in_default_float_type(model.loss),
        prior=_in_default_float_type(model.prior),
        data=data,
        counts=make_counts(counts, length, n_blocks, mesh, weights),  # type: ignore[arg-type]
        reference=jax.device_put(host_array(reference)),
        reference_loss=zeros,
        coordinates=Coordinates.from_prior(model.prior, dim),
        mesh=mesh,
        weights=of_blocks,
    )
    return target.recentre(target.reference)


def _in_default_float_type(module: Any) -> Any:
    """Return a loss or prior whose floating-point arrays are of JAX's default float type."""
    dtype = jax.dtypes.canonicalize_dtype(float)

    def cast(leaf: Any) -> Any:
        is_other_float = eqx.is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype != dtype
        return leaf.astype(dtype) if is_other_float else leaf

    return jax.tree.map(cast, module)


def initial_reference(x: np.ndarray, y: np.ndarray, weights: Weights | None = None) -> Float[np.ndarray, " K"]:
    """Return the weighted least-squares fit, rounded to the default float type.

    Of many observations it is fitted to an evenly spaced subset, if that determines all parameters. It is rounded so
    that exactly the stored reference is subtracted from y.
    """
    if weights is not None:
        root = np.sqrt(weights.values)
        x, y = x * root[:, None], y * root
    every = max(1, len(y) // CONFIG.reference_observations)
    fit, _, rank, _ = np.linalg.lstsq(x[::every], y[::every])
    if every > 1 and rank < x.shape[1]:
        fit = np.linalg.lstsq(x, y)[0]
    return host_array(fit).astype(np.float64)


@jit
def _gather_observations(
    target: Target, indices: Int[Array, " S"]
) -> tuple[PyTree[Array], Float[Array, "G L"], ObservationWeights | None]:
    """Return data, reference loss and weights of some observations in blocks, on every device.

    Each device contributes the observations that it holds, and zeros for the others.
    """
    n_blocks, length = target.reference_loss.shape

    def gather(leaves: PyTree[Array]) -> PyTree[Array]:
        held = len(jax.tree.leaves(leaves)[0]) * length
        first = 0 if held == n_blocks * length else held * jax.lax.axis_index(OBSERVATIONS)
        local = indices - first
        is_held = (local >= 0) & (local < held)

        def gather_leaf(leaf: Array) -> Array:
            values = leaf.reshape(-1, *leaf.shape[2:])[jnp.clip(local, 0, held - 1)]
            masked = jnp.where(is_held.reshape(-1, *(1,) * (values.ndim - 1)), values, 0)
            return masked.reshape(-1, length, *values.shape[1:])

        return jax.tree.map(gather_leaf, leaves)

    leaves = (target.data, target.reference_loss, target.weights)
    gathered = sum_over_devices(target.mesh, gather, (SHARDED,), leaves)
    return jax.tree.map(lambda new, leaf: new.astype(leaf.dtype), gathered, leaves)


@jit
def recentre(target: Target, reference: Float[Array | np.ndarray, " K"]) -> Target:
    """Return the same target with risks relative to another reference."""
    reference = jnp.asarray(reference)
    loss = target.loss
    data = target.data
    if isinstance(loss, LinearLoss):
        x, y, offset = data
        shift = jnp.tensordot(x, reference - target.reference, 1)
        data = (x, y - shift, offset) if loss.location else (x, y, offset + shift)
        losses = jax.vmap(jax.vmap(loss.rho))(data[2], data[1])
    else:
        losses = jax.vmap(jax.vmap(loss, (None, 0)), (None, 0))(reference, data).astype(float)
    losses = jnp.where(jnp.isfinite(losses), losses, 0.0)
    return replace(target, data=data, reference=reference, reference_loss=losses)
