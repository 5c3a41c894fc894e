"""Random numbers for the hot loop: JAX's own generator, laid out for it.

Threefry-2x32 with twenty rounds (Salmon et al. 2011), the block function of `jax.random`, applied to counters
written out particle by particle. Unrolled it is one fused pass over the particles, in the layout they have; on a
CPU `jax.random` walks over whole arrays round after round, at more than twice the time and memory.
"""

import math
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PRNGKeyArray, UInt32

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_WORD = 0xFFFFFFFF


def key_from_seed(seed: int) -> PRNGKeyArray:
    """`jax.random.key`, in one call."""
    upper = seed >> 32 if jax.dtypes.canonicalize_dtype(np.int64) == np.int64 else 0
    return _of_words(np.array([upper & _WORD, seed & _WORD], np.uint32))


@jax.jit
def _of_words(words: UInt32[Array, " 2"]) -> PRNGKeyArray:
    return jax.random.wrap_key_data(words, impl="threefry2x32")


def fold_key(key: PRNGKeyArray, *words: int) -> PRNGKeyArray:
    """`jax.random.fold_in`, one word after another, in one call."""
    return _folded(key, np.array(words).astype(np.uint32))


@jax.jit
def _folded(key: PRNGKeyArray, words: UInt32[Array, " W"]) -> PRNGKeyArray:
    for i in range(len(words)):
        key = jax.random.fold_in(key, words[i])
    return key


@partial(jax.jit, static_argnums=(1, 2))
def split_key(key: PRNGKeyArray, n: int = 2, word: int | None = None) -> tuple[PRNGKeyArray, ...]:
    """`jax.random.split`, after a `fold_in` if told, taken apart in the same call."""
    keys = jax.random.split(key if word is None else jax.random.fold_in(key, word), n)
    return tuple(keys[i] for i in range(n))


@eqx.filter_jit
def replicate_keys(key: PRNGKeyArray, n_replicates: int) -> Key[Array, " B"]:
    """A key for every row, the same whatever the number of rows."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(n_replicates))


def threefry(
    key: tuple[UInt32[Array, "..."], UInt32[Array, "..."]], counter: tuple[UInt32[Array, "..."], UInt32[Array, "..."]]
) -> tuple[UInt32[Array, "..."], UInt32[Array, "..."]]:
    """Two random words for every counter of two words."""
    schedule = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    a, b = counter[0] + schedule[0], counter[1] + schedule[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            a = a + b
            b = a ^ (b << np.uint32(rotation) | b >> np.uint32(32 - rotation))
        a = a + schedule[(group + 1) % 3]
        b = b + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return a, b


def uniforms(keys: Key[Array, " B"], count: int, size: int) -> Float[Array, "count B size"]:
    """`count` uniform numbers for each of `size` particles on every row, inside (0, 1), from the row's key."""
    words = jax.random.key_data(keys)
    pairs = -(-count // 2)
    shape = (pairs, len(words), size)
    key = (jnp.broadcast_to(words[None, :, :1], shape), jnp.broadcast_to(words[None, :, 1:], shape))
    counter = (jax.lax.broadcasted_iota(jnp.uint32, shape, 0), jax.lax.broadcasted_iota(jnp.uint32, shape, 2))
    return as_uniforms(jnp.concatenate(threefry(key, counter))[:count])


def as_uniforms(bits: UInt32[Array, "..."]) -> Float[Array, "..."]:
    """Uniform numbers inside (0, 1) from random words."""
    # The upper 23 bits as the fraction of a number in [1, 2); half a step further keeps it off both ends.
    fraction = jax.lax.bitcast_convert_type(bits >> np.uint32(9) | np.uint32(0x3F800000), jnp.float32) - 1
    return (fraction + np.float32(2**-24)).astype(float)


def normals(uniform: Float[Array, "..."]) -> Float[Array, "..."]:
    """Standard normal numbers from uniform ones."""
    return math.sqrt(2) * jax.lax.erf_inv(2 * uniform - 1)
