"""Whether a user's functions are what they should be: traced, and nothing compiled."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from calibayes._backend.functions import Function
from calibayes.losses import Generic
from calibayes.model import GibbsModel

_SOUND: set[Any] = set()
"""Models, with data of some shape, whose functions were found to be so."""
_MOST = 256


def check_functions(model: GibbsModel, data: PyTree[np.ndarray], dim: int) -> None:
    """Loss and prior density must be real numbers, of one observation of these data and so many parameters."""
    theta = jax.ShapeDtypeStruct((dim,), jax.dtypes.canonicalize_dtype(float))
    datum = jax.tree.map(_one, data)
    # Tracing a function takes longer than all other checks together: once for each.
    kind = _kind((model, theta, datum))
    if kind is not None and kind in _SOUND:
        return
    if isinstance(model.loss, Generic):
        _require_scalar("loss(theta, datum)", model.loss, theta, datum)
    else:
        one = jax.ShapeDtypeStruct((), theta.dtype)
        _require_scalar("rho(prediction, y)", model.loss.rho, one, one)
    _require_scalar("prior.log_prob(theta)", model.prior.log_prob, theta)
    if kind is not None:
        if len(_SOUND) >= _MOST:
            _SOUND.clear()
        _SOUND.add(kind)


def _kind(tree: Any) -> Any:
    """What says all that tracing could see; None if there is something whose insides could change."""
    leaves, structure = jax.tree.flatten(tree)
    noted = [_known(leaf) if isinstance(leaf, Function) else _shape(leaf) for leaf in leaves]
    if any(note is None for note in noted):
        return None
    kind = (structure, *noted)
    try:
        hash(kind)
    except TypeError:
        return None
    return kind


def _known(function: Function) -> Function | None:
    """None if what it saw is equal to nothing, so that to remember it would be of no use."""
    return function if Function(function.fn) == function else None


def _shape(leaf: Any) -> tuple[tuple[int, ...], np.dtype] | None:
    arrays = jax.Array | np.ndarray | jax.ShapeDtypeStruct
    return (leaf.shape, leaf.dtype) if isinstance(leaf, arrays) else None


def _one(leaf: np.ndarray) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape[1:], jax.dtypes.canonicalize_dtype(leaf.dtype))


def _require_scalar(name: str, fn: Callable[..., Any], *args: Any) -> None:
    try:
        out = jax.eval_shape(fn, *args)
    except Exception as error:
        shapes = ", ".join(str(jax.tree.map(lambda leaf: leaf.shape, arg)) for arg in args)
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TypeError(
            f"{name} failed on arguments of shapes {shapes}: {reason} It is compiled by JAX: use jax.numpy instead of "
            "numpy, jnp.where instead of if, and check dim."
        ) from error
    if getattr(out, "shape", None) != ():
        shape = getattr(out, "shape", type(out).__name__)
        raise ValueError(f"{name} must be a scalar, for one observation at a time; got shape {shape}.")
    if jnp.issubdtype(out.dtype, jnp.complexfloating):
        raise TypeError(f"{name} must be a real number; got {out.dtype}.")
