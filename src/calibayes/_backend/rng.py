"""Random keys and random numbers.

All of them use Threefry-2x32 with twenty rounds (Salmon, Moraes, Dror and Shaw, SC'11, 2011), the generator of
`jax.random`. Unrolled, it is one fused pass over an array. On a CPU `jax.random` instead loops over the rounds and
passes over whole arrays in each of them: this takes longer to compile, and more than twice the time and memory
(`docs/performance.md`).

- Keys are those of `jax.random.split` and `jax.random.fold_in`. Outside of compiled functions NumPy computes them,
  which compiles nothing.
- `with_unrolled_threefry` gives the numbers of `jax.random` by an unrolled generator.
- `uniforms` and `normals` are the random numbers of the inner loop, with one counter per particle.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray, UInt32

Words = UInt32[Array | np.ndarray, "..."]
"""Random words, or the words of keys and counters."""

# Rotation distances and key-schedule parity of Threefry-2x32, from Salmon et al. (2011).
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_WORD = 0xFFFFFFFF
_ZERO = np.zeros((), np.uint32)


def key_from_seed(seed: int) -> PRNGKeyArray:
    """Return `jax.random.key(seed)`."""
    upper = seed >> 32 if jax.dtypes.canonicalize_dtype(np.int64) == np.int64 else 0
    return _wrap(np.array([upper & _WORD, seed & _WORD], np.uint32))


def fold_key(key: PRNGKeyArray, *words: int) -> PRNGKeyArray:
    """Apply `jax.random.fold_in` for each word (modulo 2**32) in turn."""
    for word in words:
        key = fold_in(key, np.array(word & _WORD, np.uint32))
    return key


def split_key(key: PRNGKeyArray, n: int = 2, word: int | None = None) -> tuple[PRNGKeyArray, ...]:
    """Split a key into a tuple of keys.

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
    key = key if word is None else fold_key(key, word)
    return tuple(fold_key(key, i) for i in range(n))


def replicate_keys(key: PRNGKeyArray, n_replicates: int) -> Key[Array, " B"]:
    """Return one key per replicate. The key of a replicate does not depend on the number of replicates."""
    return fold_in(key, np.arange(n_replicates, dtype=np.uint32))


def fold_in(keys: Key[Array, "..."], data: Int[Array, "..."] | Words) -> Key[Array, "..."]:
    """Apply `jax.random.fold_in` to keys and integers of equal shape; either of them may be a scalar."""
    words: Any = jax.random.key_data(keys)
    if not isinstance(words, jax.core.Tracer) and not isinstance(data, jax.core.Tracer):
        words, data = np.asarray(words), np.asarray(data)
    if words.shape[-1] != 2:  # a key of another generator
        shape = jnp.broadcast_shapes(keys.shape, data.shape)
        flat = jnp.broadcast_to(keys, shape).reshape(-1), jnp.broadcast_to(data, shape).reshape(-1)
        return jax.vmap(jax.random.fold_in)(*flat).reshape(shape)
    return _wrap(_folded_words(words, data))


def with_unrolled_threefry(keys: Key[Array, "..."]) -> Key[Array, "..."]:
    """Return keys with which the functions of `jax.random` give the same numbers, in less time to compile and run."""
    words = jax.random.key_data(keys)
    return keys if words.shape[-1] != 2 else jax.random.wrap_key_data(words, impl=_UNROLLED)


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


def threefry(key: tuple[Any, Any], counter: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return the two random words of each counter of two words, by Threefry-2x32 with twenty rounds.

    Parameters
    ----------
    key, counter : tuple of two arrays of uint32
        The words of the keys and of the counters, all from NumPy or all from JAX; scalars or arrays of one shape.
    """
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


def _folded_words(words: Any, data: Any) -> Any:
    """Return the words of keys into which integers are folded."""
    with np.errstate(over="ignore"):
        pair = threefry((words[..., 0], words[..., 1]), (_ZERO, data.astype(np.uint32)))
    return (np if isinstance(pair[0], np.ndarray | np.generic) else jnp).stack(pair, -1)


def _random_bits(words: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    counter = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    first, second = threefry((words[0], words[1]), (_ZERO, counter))
    if bit_width == 64:
        return first.astype(jnp.uint64) << jnp.uint64(32) | second.astype(jnp.uint64)
    return (first ^ second).astype(f"uint{bit_width}")


def _split(words: Array, shape: tuple[int, ...]) -> Array:
    return _folded_words(words, jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape))


def _wrap(words: Any) -> Key[Array, "..."]:
    return jax.random.wrap_key_data(words, impl="threefry2x32")


_UNROLLED = define_prng_impl(
    key_shape=(2,),
    seed=lambda seed: jax.random.key_data(jax.random.key(seed, impl="threefry2x32")),
    split=_split,
    random_bits=_random_bits,
    fold_in=lambda words, data: _folded_words(words, jnp.asarray(data)),
    name="unrolled_threefry2x32",
    tag="ufry",
)
