"""Random keys and random numbers.

`uniforms` and `normals` are the random numbers of the inner loop. They use Threefry-2x32 with twenty rounds (Salmon,
Moraes, Dror and Shaw, SC'11, 2011), the generator of `jax.random`, on one counter per particle. Unrolled, it is one
fused pass over the particles in their own layout. On a CPU `jax.random` instead passes over whole arrays in each
round, which takes more than twice the time and memory (`docs/performance.md`).
"""

import math
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PRNGKeyArray, UInt32

# Rotation distances and key-schedule parity of Threefry-2x32, from Salmon et al. (2011).
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_WORD = 0xFFFFFFFF


def key_from_seed(seed: int) -> PRNGKeyArray:
    """Return `jax.random.key(seed)`, by a single compiled call."""
    upper = seed >> 32 if jax.dtypes.canonicalize_dtype(np.int64) == np.int64 else 0
    return _wrap_words(np.array([upper & _WORD, seed & _WORD], np.uint32))


def fold_key(key: PRNGKeyArray, *words: int) -> PRNGKeyArray:
    """Apply `jax.random.fold_in` for each word (modulo 2**32) in turn, by a single compiled call."""
    return _fold_words(key, np.array(words).astype(np.uint32))


@partial(jax.jit, static_argnums=(1, 2))
def split_key(key: PRNGKeyArray, n: int = 2, word: int | None = None) -> tuple[PRNGKeyArray, ...]:
    """Split a key into a tuple of keys, by a single compiled call.

    Parameters
    ----------
    key : PRNGKeyArray
        Key to split.
    n : int
        Number of keys. Default: 2.
    word : int or None
        Word that is folded into the key first. Default: None, which folds nothing.

    Returns
    -------
    tuple of PRNGKeyArray
        The keys of `jax.random.split`.
    """
    keys = jax.random.split(key if word is None else jax.random.fold_in(key, word), n)
    return tuple(keys[i] for i in range(n))


@eqx.filter_jit
def replicate_keys(key: PRNGKeyArray, n_replicates: int) -> Key[Array, " B"]:
    """Return one key per replicate. The key of a replicate does not depend on the number of replicates."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(n_replicates))


def uniforms(keys: Key[Array, " B"], count: int, size: int) -> Float[Array, "count B size"]:
    """Draw uniform numbers in (0, 1), both ends excluded.

    Parameters
    ----------
    keys : keys of shape (B,)
        One key per replicate.
    count : int
        Number of uniforms per particle.
    size : int
        Number of particles per replicate.

    Returns
    -------
    Array of shape (count, B, size)
        The numbers of a replicate depend on its key alone.
    """
    words = jax.random.key_data(keys)
    pairs = -(-count // 2)
    shape = (pairs, len(words), size)
    key = (jnp.broadcast_to(words[None, :, :1], shape), jnp.broadcast_to(words[None, :, 1:], shape))
    counter = (jax.lax.broadcasted_iota(jnp.uint32, shape, 0), jax.lax.broadcasted_iota(jnp.uint32, shape, 2))
    return uniforms_from_bits(jnp.concatenate(threefry(key, counter))[:count])


def normals(uniform: Float[Array, "..."]) -> Float[Array, "..."]:
    """Transform uniform numbers to standard normal ones, by the inverse distribution function."""
    return math.sqrt(2) * jax.lax.erf_inv(2 * uniform - 1)


def threefry(
    key: tuple[UInt32[Array, "..."], UInt32[Array, "..."]], counter: tuple[UInt32[Array, "..."], UInt32[Array, "..."]]
) -> tuple[UInt32[Array, "..."], UInt32[Array, "..."]]:
    """Return the two random words of each counter of two words, by Threefry-2x32 with twenty rounds."""
    schedule = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    a, b = counter[0] + schedule[0], counter[1] + schedule[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            a = a + b
            b = a ^ (b << np.uint32(rotation) | b >> np.uint32(32 - rotation))
        a = a + schedule[(group + 1) % 3]
        b = b + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return a, b


def uniforms_from_bits(bits: UInt32[Array, "..."]) -> Float[Array, "..."]:
    """Convert random words to uniform numbers in (0, 1), both ends excluded."""
    # The upper 23 bits are the mantissa of a number in [1, 2); half a step more keeps the result away from both ends.
    mantissa = jax.lax.bitcast_convert_type(bits >> np.uint32(9) | np.uint32(0x3F800000), jnp.float32) - 1
    return (mantissa + np.float32(2**-24)).astype(float)


@jax.jit
def _wrap_words(words: UInt32[Array, " 2"]) -> PRNGKeyArray:
    return jax.random.wrap_key_data(words, impl="threefry2x32")


@jax.jit
def _fold_words(key: PRNGKeyArray, words: UInt32[Array, " W"]) -> PRNGKeyArray:
    for i in range(len(words)):
        key = jax.random.fold_in(key, words[i])
    return key
