"""Bootstrap counts: how often each observation occurs in each replicate, by blocks of observations.

A loop over the observations takes the counts of one block at a time, and does not depend on whether they are stored in
an array or drawn when they are needed. Replicate 0 is the data: every observation counts once, or as often as its
weight.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Key, Num, PRNGKeyArray, PyTree, UInt32

from calibayes._backend.devices import SHARDED, UNSHARDED, place_blocks
from calibayes._backend.rng import replicate_keys, threefry, uniforms_from_bits
from calibayes._core.parts import default_type
from calibayes._core.weights import Weights


@dataclass(frozen=True)
class CountsConfig:
    """Tuning constants of loops over counts."""

    blocks_per_step: int = 64
    """Number of blocks that an accelerator processes in one step of a loop with little work per block, such as a sum of
    counts. Order-of-magnitude choice; it affects the running time, and results by rounding only. A CPU processes one
    block at a time, so that sums do not depend on the padding."""
    max_poisson_count: int = 10
    """Largest count that is drawn from the Poisson(1) distribution. Larger counts have a probability of 1e-8, below the
    resolution 2**-24 = 6e-8 of the uniforms from which counts are drawn."""


CONFIG = CountsConfig()


def fold_blocks(step: Callable[[Any, Any], Any], carry: Any, blocks: PyTree[Array], n_blocks: Int[Array, ""]) -> Any:
    """Update a value with one block after another.

    Parameters
    ----------
    step : callable
        Function `step(carry, block)` that returns the new value.
    carry : pytree
        Initial value.
    blocks : pytree of Array
        Arrays with the blocks along the first axis.
    n_blocks : Array
        Number of blocks to process. A CPU leaves out the blocks after them. An accelerator processes all blocks,
        because it would have to wait for the host to end a loop of unknown length: `step` must not change the value
        for a block of padding.

    Returns
    -------
    pytree
        Final value.
    """
    if jax.default_backend() != "cpu":
        return jax.lax.scan(lambda carry, block: (step(carry, block), None), carry, blocks)[0]
    take = lambda i: jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, i, keepdims=False), blocks)
    return jax.lax.fori_loop(0, n_blocks, lambda i, carry: step(carry, take(i)), carry)


def fold_chunks(
    step: Callable[[Any, Any], Any],
    carry: Any,
    blocks: PyTree[Array],
    n_blocks: Int[Array, ""],
    width: int,
    on_cpu: bool = False,
) -> Any:
    """Update a value with several blocks at a time.

    Parameters
    ----------
    step, carry, blocks, n_blocks
        As for `fold_blocks`, but `step` receives a chunk of at most `width` blocks.
    width : int
        Number of blocks per step on an accelerator. The remaining blocks are processed in a last, shorter step.
    on_cpu : bool
        Whether a CPU processes as many blocks per step. Default: False, one block at a time: it fits into the cache,
        and sums do not depend on the padding.

    Returns
    -------
    pytree
        Final value.
    """
    n_stored = len(jax.tree.leaves(blocks)[0])
    width = 1 if jax.default_backend() == "cpu" and not on_cpu else width
    width = min(width, n_stored)
    whole, rest = divmod(n_stored, width)
    chunks = jax.tree.map(lambda leaf: leaf[: whole * width].reshape(whole, width, *leaf.shape[1:]), blocks)
    carry = fold_blocks(step, carry, chunks, jnp.minimum(divide_up(n_blocks, width), whole))
    return step(carry, jax.tree.map(lambda leaf: leaf[whole * width :], blocks)) if rest else carry


class Counts(eqx.Module):
    """Counts of G blocks of L observations in B replicates.

    The blocks are padded at the end with observations whose counts are zero in all replicates.

    Attributes
    ----------
    n : Array
        Number of observations without padding.
    """

    n: Int[Array, ""]

    @property
    @abstractmethod
    def n_replicates(self) -> int:
        """Number of replicates, including the data."""

    @property
    @abstractmethod
    def block_length(self) -> int:
        """Number of observations per block."""

    @property
    @abstractmethod
    def blocks(self) -> Array:
        """Array to loop over, with one element per block, which `block` takes as its argument."""

    @property
    def n_stored(self) -> int:
        """Number of observations with padding; on several devices, those that a device holds."""
        return len(self.blocks) * self.block_length

    @property
    def n_blocks(self) -> Int[Array, ""]:
        """Number of blocks that are not only padding; on several devices, at most the number that a device holds."""
        return jnp.minimum(divide_up(self.n, self.block_length), len(self.blocks))

    @abstractmethod
    def block(self, element: Array) -> Float[Array, "L B"]:
        """Return the counts of one block, given its element of `blocks`."""

    @abstractmethod
    def select(self, indices: Int[Array, " R"]) -> "Counts":
        """Return the counts of the replicates at `indices`, which may repeat."""

    def slice_replicates(self, first: Int[Array, ""], n: int) -> "Counts":
        """Return the counts of `n` consecutive replicates from `first`."""
        return self.select(first + jnp.arange(n))

    @abstractmethod
    def partition_specs(self) -> "Counts":
        """Return how the arrays are divided between devices: counts with a partition spec in place of each array."""

    def to_array(self) -> Float[Array, "N B"]:
        """Return all counts, including the padding."""
        return jax.lax.map(self.block, self.blocks).reshape(-1, self.n_replicates)

    def weighted_sums(self, values: Float[Array, "G L K"]) -> Float[Array, "K B"]:
        """Return the sums over observations of their values times their counts."""

        def add(total, chunk):
            values, elements = chunk
            counts = jax.vmap(self.block)(elements)
            return total + jnp.tensordot(values, counts, ((0, 1), (0, 1)), precision=jax.lax.Precision.HIGHEST)

        zeros = jnp.zeros((values.shape[-1], self.n_replicates))
        return fold_chunks(add, zeros, (values, self.blocks), self.n_blocks, CONFIG.blocks_per_step)


class StoredCounts(Counts):
    """Counts in an array.

    Attributes
    ----------
    array : Array of shape (G, L, B)
        The counts.
    """

    array: Float[Array, "G L B"]

    @staticmethod
    def from_array(
        counts: Num[np.ndarray, "B N"],
        length: int,
        n_blocks: int | None = None,
        mesh: Mesh | None = None,
        weights: Weights | None = None,
    ) -> "StoredCounts":
        """Store counts of bootstrap replicates, with the data as replicate 0.

        Parameters
        ----------
        counts : ndarray of shape (B, N)
            Counts of the replicates, multiplied by the weights; without those of the observed data.
        length : int
            Number of observations per block.
        n_blocks : int or None
            Number of blocks, including padding. Default: None, as many as the observations fill.
        mesh : Mesh or None
            Devices. Default: None, a single device.
        weights : Weights or None
            Weights of the observations, used as the counts of the observed data. Default: None, all one.

        Returns
        -------
        StoredCounts
        """
        n_replicates, n = counts.shape
        n_blocks = n_blocks or -(-n // length)

        def make_part(blocks: slice) -> np.ndarray:
            part = counts[:, blocks.start * length : blocks.stop * length].T
            array = np.zeros(((blocks.stop - blocks.start) * length, n_replicates + 1), _float())
            array[: len(part), 0] = 1 if weights is None else weights.values[blocks.start * length :][: len(part)]
            array[: len(part), 1:] = part
            return array.reshape(-1, length, n_replicates + 1)

        array = place_blocks(mesh, (n_blocks, length, n_replicates + 1), make_part)
        number = np.asarray(n, np.int32)
        return StoredCounts(*(jax.device_put((number, array)) if mesh is None else (jax.device_put(number), array)))

    @property
    def n_replicates(self) -> int:
        return self.array.shape[-1]

    @property
    def block_length(self) -> int:
        return self.array.shape[1]

    @property
    def blocks(self) -> Array:
        return self.array

    def block(self, element):
        return element

    def select(self, indices):
        return StoredCounts(self.n, self.array[:, :, indices])

    def slice_replicates(self, first, n):
        # Copying a slice is much faster than gathering replicates by index.
        return StoredCounts(self.n, jax.lax.dynamic_slice_in_dim(self.array, first, n, 2))

    def partition_specs(self):
        return _with_specs(self, UNSHARDED, SHARDED)


class PoissonSpec(NamedTuple):
    """Specification of Poisson counts that are drawn when they are needed.

    Attributes
    ----------
    key : PRNGKeyArray
        Key of the bootstrap.
    n_replicates : int
        Number of replicates, without the data.
    n : int
        Number of observations.
    """

    key: PRNGKeyArray
    n_replicates: int
    n: int


class DrawnCounts(Counts):
    """Poisson counts, drawn from the key of the replicate and the index of the observation when they are needed.

    No array of size B x N is stored, and a device that holds some of the observations draws their counts without
    communication.

    Attributes
    ----------
    keys : keys of shape (B,)
        Key of each replicate.
    is_data : Array of shape (B,)
        Whether a replicate is the data, whose counts are one.
    firsts : Array of shape (G,)
        Index of the first observation of each block.
    length : int
        Number of observations per block.
    weights : Array of shape (G, L) or None
        Weights of the observations, by which drawn counts are multiplied. Default: None, all one.
    """

    keys: Key[Array, " B"]
    is_data: Bool[Array, " B"]
    firsts: Int[Array, " G"]
    length: int = eqx.field(static=True)
    weights: Float[Array, "G L"] | None = None

    @staticmethod
    def from_spec(
        spec: PoissonSpec,
        length: int,
        n_blocks: int | None = None,
        mesh: Mesh | None = None,
        weights: Weights | None = None,
    ) -> "DrawnCounts":
        """Return the counts of a specification, with the data as replicate 0.

        Parameters
        ----------
        spec : PoissonSpec
            The specification.
        length, n_blocks, mesh, weights
            As for `StoredCounts.from_array`. Here the counts do not include the weights, which must not be numbers of
            repetitions.

        Returns
        -------
        DrawnCounts
        """
        key, n_replicates, n = spec
        keys = replicate_keys(key, n_replicates)
        n_blocks = n_blocks or -(-n // length)
        firsts = place_blocks(mesh, (n_blocks,), lambda blocks: np.arange(blocks.start, blocks.stop) * length)
        firsts = jnp.asarray(firsts) if mesh is None else firsts
        is_data = jnp.arange(n_replicates + 1) == 0
        of_blocks = None if weights is None else to_blocks(weights.values, length, n_blocks, mesh)
        of_blocks = jnp.asarray(of_blocks) if weights is not None and mesh is None else of_blocks
        return DrawnCounts(jnp.asarray(n), jnp.concatenate([keys[:1], keys]), is_data, firsts, length, of_blocks)

    @property
    def n_replicates(self) -> int:
        return self.keys.shape[0]

    @property
    def block_length(self) -> int:
        return self.length

    @property
    def blocks(self) -> Array:
        return self.firsts

    def block(self, element):
        drawn = poisson_counts(self.keys, element, self.length)
        counts = jnp.where(self.is_data[None], 1.0, drawn)
        if self.weights is not None:
            # A device holds consecutive blocks.
            index = (element - self.firsts[0]) // self.length
            counts = counts * jax.lax.dynamic_index_in_dim(self.weights, index, keepdims=False)[:, None]
        return jnp.where((element + jnp.arange(self.length) < self.n)[:, None], counts, 0.0)

    def select(self, indices):
        keys, is_data = self.keys[indices], self.is_data[indices]
        return DrawnCounts(self.n, keys, is_data, self.firsts, self.length, self.weights)

    def partition_specs(self):
        weights = () if self.weights is None else (SHARDED,)
        return _with_specs(self, UNSHARDED, UNSHARDED, UNSHARDED, SHARDED, *weights)


def poisson_counts(keys: Key[Array, " B"], first: Int[Array, ""], length: int) -> Float[Array, "L B"]:
    """Draw Poisson(1) counts of consecutive observations.

    Parameters
    ----------
    keys : keys of shape (B,)
        Key of each replicate.
    first : Array
        Index of the first observation, an even number.
    length : int
        Number of observations, an even number.

    Returns
    -------
    Array of shape (length, B)
        Counts, by inversion of the distribution function. The count of an observation depends on its index and the key
        of the replicate alone.
    """
    words = jax.random.key_data(keys)
    shape = (length // 2, len(words))
    key = (jnp.broadcast_to(words[None, :, 0], shape), jnp.broadcast_to(words[None, :, 1], shape))
    pair = (first // 2).astype(jnp.uint32) + jax.lax.broadcasted_iota(jnp.uint32, shape, 0)
    bits: UInt32[Array, "P 2 B"] = jnp.stack(threefry(key, (jnp.zeros(shape, jnp.uint32), pair)), 1)
    uniform = uniforms_from_bits(bits.reshape(length, -1))
    thresholds = _poisson_cdf(CONFIG.max_poisson_count - 1)
    return sum(((uniform > threshold).astype(float) for threshold in thresholds), jnp.zeros_like(uniform))


def _poisson_cdf(largest: int) -> list[float]:
    """Return the distribution function of Poisson(1) at 0, 1, ..., `largest`."""
    probabilities = np.exp(-1) / np.cumprod(np.maximum(np.arange(largest + 1), 1.0))
    return [float(p) for p in np.cumsum(probabilities)]


def to_blocks(leaf: np.ndarray, length: int, n_blocks: int, mesh: Mesh | None) -> Any:
    """Return observations in blocks, padded with the last observation."""

    def make_part(blocks: slice) -> np.ndarray:
        part = leaf[blocks.start * length : blocks.stop * length]
        fill = (blocks.stop - blocks.start) * length - len(part)
        padding = np.broadcast_to(leaf[-1], (fill, *leaf.shape[1:]))
        return canonical(np.concatenate([part, padding])).reshape(-1, length, *leaf.shape[1:])

    return place_blocks(mesh, (n_blocks, length, *leaf.shape[1:]), make_part)


def canonical(leaf: np.ndarray) -> np.ndarray:
    """Return an array of JAX's default float type, or of its type of the same integers."""
    return leaf.astype(default_type(leaf))


def divide_up(number: Int[Array, ""], divisor: int) -> Int[Array, ""]:
    """Divide a number that is not negative, and round up."""
    return jax.lax.div(number + (divisor - 1), jnp.asarray(divisor, number.dtype))


def _with_specs(counts: Counts, *specs: PartitionSpec) -> Any:
    """Replace the arrays of counts by partition specs, without the type checks of the constructor."""
    return jax.tree.unflatten(jax.tree.structure(counts), specs)


def _float() -> Any:
    return jax.dtypes.canonicalize_dtype(float)
