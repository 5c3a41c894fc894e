r"""The target density of every replicate, made of a model, data and counts.

$$ \gamma_b(\theta) = \exp\{-\eta R_b(\theta)\}\,p(\theta), \qquad R_b(\theta) = \sum_i c_{bi}\,r_i(\theta), $$

or another function $R(\theta, c_b)$ of the counts (`calibayes._core.counts_risk`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
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
    finely_padded_size,
    n_stored_blocks,
    on_all_devices,
    place_blocks,
    sum_over_devices,
)
from calibayes._backend.functions import host_array
from calibayes._backend.jit import jit
from calibayes._core.coordinates import Coordinates
from calibayes._core.counts import Counts, DrawnCounts, PoissonSpec, StoredCounts, canonical, to_blocks
from calibayes._core.counts_risk import CountsData, fit_nuisance, relative_risk
from calibayes._core.loss import CountsRisk, Generic, LinearLoss
from calibayes._core.particles import Particles, uniform_log_weights
from calibayes._core.parts import CheckedParts, n_observations, sample_of
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

    loss: LinearLoss | Generic | CountsRisk
    prior: Any


class Target(eqx.Module):
    """Density `exp(-eta * risk) * prior` of B replicates. Replicate 0 is the data, with counts of one, or the weights.

    Observations are stored in G blocks of L. They are padded with observations whose counts are zero, so that data of
    similar size share their compiled programs. `counts.n` is the number of observations without padding.
    Risks are relative to the risk of `reference`, a constant that cancels from all results and keeps them small.
    Particles are in unbounded coordinates, so that moves never meet the bounds of the prior.

    Attributes
    ----------
    loss : LinearLoss, Generic or CountsRisk
        Loss of one observation, or risk.
    prior : prior
        Prior with a method `log_prob`.
    data : pytree of Array
        Blocks of observations. For losses of a linear prediction `(x, y, offset)`, with the prediction
        `offset + x @ (theta - reference)`. For a `CountsRisk` prepared arrays of any shapes.
    counts : Counts
        Counts of the replicates.
    reference : Array of shape (K,)
        Parameters whose risk is subtracted.
    reference_loss : Array of shape (G, L)
        Loss of the reference for every observation; zero for a `CountsRisk`.
    coordinates : Coordinates
        Map between parameters and unbounded coordinates.
    mesh : Mesh or None
        Devices between which the observations are divided; None for a single device.
    weights : ObservationWeights or None
        Weights of the observations. Default: None, all one.
    nuisance : pytree of Array
        Nuisance parameters of a `CountsRisk`, with the replicates along the first axis. Default: None.
    """

    loss: LinearLoss | Generic | CountsRisk
    prior: Any
    data: PyTree[Array]
    counts: Counts
    reference: Float[Array, " K"]
    reference_loss: Float[Array, "G L"]
    coordinates: Coordinates
    mesh: Mesh | None = eqx.field(static=True, default=None)
    weights: ObservationWeights | None = None
    nuisance: PyTree[Array] = None

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

    @property
    def additive(self) -> bool:
        """Whether the risk is a sum of losses."""
        return not isinstance(self.loss, CountsRisk)

    @property
    def counts_data(self) -> CountsData:
        """Arguments of a `CountsRisk`."""
        return CountsData(self.data, self.counts, self.nuisance)

    @jit
    def replicate(self, index: int) -> "Target":
        """Return the target of one replicate."""
        return self.select(jnp.asarray([index]))

    @jit
    def select(self, indices: Int[Array | np.ndarray, " R"]) -> "Target":
        """Return the target of the replicates at `indices`, which may repeat."""
        chosen = jnp.asarray(indices)
        nuisance = jax.tree.map(lambda leaf: leaf[chosen], self.nuisance)
        return replace(self, counts=self.counts.select(chosen), nuisance=nuisance)

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

        def on_device(indices, theta, data, reference_loss, counts, nuisance):
            if self.mesh is not None:
                theta, counts = theta[:, indices], counts.select(indices)
                nuisance = jax.tree.map(lambda leaf: leaf[indices], nuisance)
            if isinstance(loss, CountsRisk):
                return relative_risk(loss, theta, self.reference, CountsData(data, counts, nuisance))
            of_replicates = lambda theta, counts: risk_of_replicates(theta, counts, data, reference_loss)
            return in_replicate_batches(of_replicates, theta, counts)

        def risk_of_replicates(theta, counts, data, reference_loss):
            if isinstance(loss, LinearLoss):
                return linear_risk(loss, theta, data, reference_loss, counts)
            losses_of = generic_losses(loss, theta)
            return weighted_risk(losses_of, data, reference_loss, counts, theta.shape[-1], finite=False)

        data_spec = SHARDED if self.additive else UNSHARDED
        specs = (UNSHARDED, data_spec, SHARDED, self.counts.partition_specs(), UNSHARDED)
        args = (theta, self.data, self.reference_loss, self.counts, self.nuisance)
        risk = sum_over_devices(self.mesh, on_device, specs, *args, n_replicates=self.n_replicates)
        # Minus infinity would win every comparison: it is a failure as well.
        return jnp.where(risk == -jnp.inf, jnp.nan, risk)

    def losses(self, z: Float[Array, "K B M"]) -> Callable[[Any], list[Float[Array, "B M"]]]:
        """Return a function of a block of observations that gives the losses at coordinates for each of them."""
        theta, loss = self.coordinates.constrain(z), self.loss
        if isinstance(loss, LinearLoss):
            return linear_losses(loss.rho, theta - self.reference[:, None, None])
        assert isinstance(loss, Generic)
        return generic_losses(loss, theta)

    def log_prior(self, theta: Float[Array, "K B M"]) -> Float[Array, "B M"]:
        """Return the logarithm of the prior density at parameters."""
        log_prob = unroll(self.prior.log_prob, theta[:, 0, 0])
        return jax.vmap(jax.vmap(log_prob, 1), 1)(theta)

    def evaluate(self, z: Float[Array, "K B M"]) -> Particles:
        """Return equally weighted particles at coordinates; their `log_prior` is the log density of the coordinates."""
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
        """Return the particles to report: these, unless the target is a `ShapedTarget`, which transforms them."""
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
    return has_log_concave_density(target) and target.coordinates.unbounded


def has_log_concave_density(model: Model) -> bool:
    """Return whether the loss is known to be convex, and the prior density to be log-concave."""
    return has_convex_loss(model) and _declares(model.prior, "log_concave", ("log_prob",))


def has_convex_loss(model: Model) -> bool:
    """Return whether the loss is known to be convex."""
    return _declares(model.loss, "convex", ("rho", "decompose", "__call__"))


def _declares(instance: object, attribute: str, methods: tuple[str, ...]) -> bool:
    """Return the attribute of the class that defines the methods.

    A subclass that overrides a method does not inherit the attribute. An instance may have an attribute of its own.
    """
    if attribute in vars(instance):
        return bool(vars(instance)[attribute])
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
    data : pytree of ndarray or CheckedParts
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
    n = n_observations(data)
    length = block_length(dim)
    reference = np.zeros(dim)
    if isinstance(model.loss, LinearLoss) and model.loss.location:
        x, y = sample_of(data)
        reference = initial_reference(x, y, weights)
    additive = not isinstance(model.loss, CountsRisk)
    n_replicates = counts.n_replicates if isinstance(counts, PoissonSpec) else len(counts)
    mesh = choose_mesh(-(-n // length), n, n_replicates, divisible=additive)
    n_blocks = n_stored_blocks(mesh, n, length, pad)
    prepare = partial(_with_offset, reference) if isinstance(model.loss, LinearLoss) else lambda data: data
    if isinstance(model.loss, CountsRisk):
        n_blocks = -(-(finely_padded_size(n) if pad and mesh is None else n) // length)
        data = _prepare(model.loss, data, n_blocks * length, mesh)
    elif isinstance(data, CheckedParts):
        data = data.to_blocks(prepare, length, n_blocks, mesh)
    else:
        data = jax.tree.map(lambda leaf: to_blocks(leaf, length, n_blocks, mesh), prepare(data))
    float_type = jax.dtypes.canonicalize_dtype(float)
    zeros = place_blocks(
        mesh, (n_blocks, length), lambda blocks: np.zeros((blocks.stop - blocks.start, length), float_type)
    )
    if mesh is None:
        data, zeros = jax.device_put((data, zeros))
    of_blocks = None
    if weights is not None:
        in_blocks = [to_blocks(leaf, length, n_blocks, mesh) for leaf in (weights.values, weights.per_draw)]
        of_blocks = ObservationWeights(*(in_blocks if mesh is not None else jax.device_put(in_blocks)))
    make_counts = DrawnCounts.from_spec if isinstance(counts, PoissonSpec) else StoredCounts.from_array
    target = Target(
        loss=in_default_float_type(model.loss),
        prior=in_default_float_type(model.prior),
        data=data,
        counts=make_counts(counts, length, n_blocks, mesh, weights),  # type: ignore[arg-type]
        reference=jax.device_put(host_array(reference)),
        reference_loss=zeros,
        coordinates=Coordinates.from_prior(model.prior, dim),
        mesh=mesh,
        weights=of_blocks,
    )
    target = replace(target, nuisance=_nuisance(target))
    return target.recentre(target.reference)


def _with_offset(
    reference: Float[np.ndarray, " K"], data: tuple[Float[np.ndarray, "N K"], Float[np.ndarray, " N"]]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return X, the response relative to a reference, and offsets of zero."""
    x, y = data
    return x, y - x @ reference if reference.any() else y, np.zeros(len(y))


def _prepare(loss: CountsRisk, data: PyTree[np.ndarray], n_stored: int, mesh: Mesh | None) -> PyTree[Any]:
    """Return the prepared data of a risk, with copies of the last observation up to `n_stored`, on every device."""
    padded = jax.tree.map(lambda leaf: leaf[np.minimum(np.arange(n_stored), len(leaf) - 1)], data)
    return jax.tree.map(lambda leaf: on_all_devices(mesh, canonical(np.asarray(leaf))), loss.prepare(padded))


def _nuisance(target: Target) -> PyTree[Array]:
    """Return the nuisance parameters of every replicate; None for a loss, and for a risk without any."""
    loss = target.loss
    if not isinstance(loss, CountsRisk):
        return None
    if not loss.nuisance_on_host:
        return _nuisance_by_jax(target)
    data, rows = jax.device_get((target.data, target.counts.to_array().T))
    values = [loss.nuisance(data, row) for row in rows]
    stacked = jax.tree.map(lambda *leaves: on_all_devices(target.mesh, canonical(np.stack(leaves))), *values)
    return stacked if target.mesh is not None else jax.device_put(stacked)


@jit
def _nuisance_by_jax(target: Target) -> PyTree[Array]:
    assert isinstance(target.loss, CountsRisk)
    return fit_nuisance(target.loss, target.data, target.counts)


def in_default_float_type(module: Any) -> Any:
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
    elif isinstance(loss, CountsRisk):
        return replace(target, reference=reference)
    else:
        losses = jax.vmap(jax.vmap(loss, (None, 0)), (None, 0))(reference, data).astype(float)
    losses = jnp.where(jnp.isfinite(losses), losses, 0.0)
    return replace(target, data=data, reference=reference, reference_loss=losses)
