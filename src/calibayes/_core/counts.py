"""How often each observation counts on each row, block by block.

Whoever goes over the observations asks for one block of counts at a time, and need not know whether they lie in an
array or are drawn as they are needed. Row 0 is the data: every observation once.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Key, Num, PRNGKeyArray, PyTree, UInt32

from calibayes._backend.devices import SHARDED, UNSHARDED, padded_blocks, place_blocks
from calibayes._backend.rng import replicate_keys, threefry, uniforms_from_bits

WIDE = 64
"""Blocks taken at a time where little is done for each."""


def scan_chunks(
    step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, blocks: PyTree[Array], width: int
) -> tuple[Any, Any]:
    """`jax.lax.scan` over so many blocks at a time, what is left over in a last, shorter step."""
    whole, rest = divmod(len(jax.tree.leaves(blocks)[0]), width)
    chunks = jax.tree.map(lambda leaf: leaf[: whole * width].reshape(whole, width, *leaf.shape[1:]), blocks)
    carry, found = jax.lax.scan(step, carry, chunks)
    found = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), found)
    if rest:
        carry, last = step(carry, jax.tree.map(lambda leaf: leaf[whole * width :], blocks))
        found = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), found, last)
    return carry, found


class Counts(eqx.Module):
    """Counts of G blocks of L observations on B rows. Observations that only fill up the last blocks count nowhere."""

    n: Int[Array, ""]
    """Observations that are none of those."""

    @property
    @abstractmethod
    def n_replicates(self) -> int: ...

    @property
    @abstractmethod
    def blocks(self) -> Array:
        """What to scan over."""

    @abstractmethod
    def block(self, at: Array) -> Float[Array, "L B"]:
        """The counts of one block, given its element of `blocks`."""

    @abstractmethod
    def select(self, indices: Int[Array, " R"]) -> "Counts":
        """Some rows, in this order; a row may come again."""

    def stretch(self, first: Int[Array, ""], n: int) -> "Counts":
        """So many rows that lie together, all of them among these."""
        return self.select(first + jnp.arange(n))

    @abstractmethod
    def shared(self) -> "Counts":
        """How they are shared out to devices, a spec in the place of each array; every device has all rows."""

    def to_array(self) -> Float[Array, "N B"]:
        """All of them at once."""
        return jax.lax.map(self.block, self.blocks).reshape(-1, self.n_replicates)

    def totals(self) -> Float[Array, " B"]:
        """Of all observations, row by row."""
        add = lambda total, at: (total + jax.vmap(self.block)(at).sum((0, 1)), None)
        return scan_chunks(add, jnp.zeros(self.n_replicates), self.blocks, WIDE)[0]

    def sums(self, values: Float[Array, "G L K"]) -> Float[Array, "K B"]:
        """Of values that each observation has, as often as it counts."""

        def add(total, chunk):
            values, at = chunk
            counted = jax.vmap(self.block)(at)
            return total + jnp.tensordot(values, counted, ((0, 1), (0, 1)), precision=jax.lax.Precision.HIGHEST), None

        return scan_chunks(add, jnp.zeros((values.shape[-1], self.n_replicates)), (values, self.blocks), WIDE)[0]


class StoredCounts(Counts):
    """Counts in an array."""

    array: Float[Array, "G L B"]

    @staticmethod
    def from_array(counts: Num[np.ndarray, "B N"], length: int, mesh: Mesh | None = None) -> "Stored":
        """Given rows, after the data's own."""
        n_replicates, n = counts.shape
        n_blocks = padded_blocks(mesh, -(-n // length))

        def part(blocks: slice) -> np.ndarray:
            own = counts[:, blocks.start * length : blocks.stop * length].T
            array = np.zeros(((blocks.stop - blocks.start) * length, n_replicates + 1), _float())
            array[: len(own), 0] = 1
            array[: len(own), 1:] = own
            return array.reshape(-1, length, n_replicates + 1)

        array = place_blocks(mesh, (n_blocks, length, n_replicates + 1), part)
        number = np.asarray(n, np.int32)
        return StoredCounts(*(jax.device_put((number, array)) if mesh is None else (jax.device_put(number), array)))

    @property
    def n_replicates(self) -> int:
        return self.array.shape[-1]

    @property
    def blocks(self) -> Array:
        return self.array

    def block(self, at):
        return at

    def select(self, indices):
        return StoredCounts(self.n, self.array[:, :, indices])

    def stretch(self, first, n):
        # A copy, which is so much faster than a choice of rows.
        return StoredCounts(self.n, jax.lax.dynamic_slice_in_dim(self.array, first, n, 2))

    def shared(self):
        return _specs(self, UNSHARDED, SHARDED)


class PoissonSpec(NamedTuple):
    """Rows of Poisson counts that are yet to be drawn, as `bootstrap.Poisson` has them."""

    key: PRNGKeyArray
    n_replicates: int
    n: int


class DrawnCounts(Counts):
    """Poisson counts drawn from the row's key and the observation's number whenever they are asked for.

    Nothing of size B x N is ever stored, and whoever holds some of the observations needs nothing from the others.
    """

    keys: Key[Array, " B"]
    is_data: Bool[Array, " B"]
    """The data's row draws nothing."""
    firsts: Int[Array, " G"]
    """The number of the first observation of each block."""
    length: int = eqx.field(static=True)

    @staticmethod
    def from_spec(poissons: PoissonSpec, length: int, mesh: Mesh | None = None) -> "Drawn":
        """The rows, after the data's own."""
        key, n_replicates, n = poissons
        keys = replicate_keys(key, n_replicates)
        n_blocks = padded_blocks(mesh, -(-n // length))
        firsts = place_blocks(mesh, (n_blocks,), lambda blocks: np.arange(blocks.start, blocks.stop) * length)
        firsts = jnp.asarray(firsts) if mesh is None else firsts
        is_data = jnp.arange(n_replicates + 1) == 0
        return DrawnCounts(jnp.asarray(n), jnp.concatenate([keys[:1], keys]), is_data, firsts, length)

    @property
    def n_replicates(self) -> int:
        return self.keys.shape[0]

    @property
    def blocks(self) -> Array:
        return self.firsts

    def block(self, at):
        drawn = poisson_counts(self.keys, at, self.length)
        counts = jnp.where(self.is_data[None], 1.0, drawn)
        return jnp.where((at + jnp.arange(self.length) < self.n)[:, None], counts, 0.0)

    def select(self, indices):
        return DrawnCounts(self.n, self.keys[indices], self.is_data[indices], self.firsts, self.length)

    def shared(self):
        return _specs(self, UNSHARDED, UNSHARDED, UNSHARDED, SHARDED)


def _specs(counts: Counts, *specs: PartitionSpec) -> Any:
    """Specs in the places of arrays; past the checks of a constructor, which would ask for arrays."""
    return jax.tree.unflatten(jax.tree.structure(counts), specs)


def _float() -> Any:
    return jax.dtypes.canonicalize_dtype(float)


def poisson_counts(keys: Key[Array, " B"], first: Int[Array, ""], length: int) -> Float[Array, "L B"]:
    """Poisson(1) counts of an even number of observations from an even one on, from each row's key."""
    words = jax.random.key_data(keys)
    shape = (length // 2, len(words))
    key = (jnp.broadcast_to(words[None, :, 0], shape), jnp.broadcast_to(words[None, :, 1], shape))
    pair = (first // 2).astype(jnp.uint32) + jax.lax.broadcasted_iota(jnp.uint32, shape, 0)
    bits: UInt32[Array, "P 2 B"] = jnp.stack(threefry(key, (jnp.zeros(shape, jnp.uint32), pair)), 1)
    uniform = uniforms_from_bits(bits.reshape(length, -1))
    return sum(((uniform > below).astype(float) for below in _POISSON), jnp.zeros_like(uniform))


def _poisson(most: int) -> list[float]:
    """The distribution function of Poisson(1) at 0, 1, ...: beyond `most` there is less than float32 can tell."""
    probabilities = np.exp(-1) / np.cumprod(np.maximum(np.arange(most + 1), 1.0))
    return [float(p) for p in np.cumsum(probabilities)]


_POISSON = _poisson(9)
