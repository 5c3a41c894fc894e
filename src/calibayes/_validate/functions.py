"""Check of the user's loss and prior density: JAX traces them, which compiles and computes nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from calibayes._backend.functions import Function
from calibayes.losses import CountsRisk, Generic
from calibayes.model import GibbsModel


@dataclass(frozen=True)
class FunctionsConfig:
    """Tuning constants of the function checks."""

    max_remembered: int = 256
    """Number of checked models that are remembered. When it is exceeded, all are forgotten and checked again on their
    next use. Order-of-magnitude choice; it affects the running time only."""


CONFIG = FunctionsConfig()

_passed: set[Any] = set()
"""Signatures of models and data whose functions have passed the check."""


def check_functions(model: GibbsModel, data: PyTree[np.ndarray], dim: int) -> None:
    """Check that the loss and the prior density are real scalars.

    Tracing takes longer than all other checks, so a model that has passed is not traced again for data of the same
    shapes.

    Parameters
    ----------
    model : GibbsModel
        Model whose functions are checked.
    data : pytree of ndarray
        Checked data, with the observations along the first axis.
    dim : int
        Number of parameters.

    Raises
    ------
    TypeError
        If JAX cannot trace a function, or its value is complex.
    ValueError
        If the value of a function is not a scalar.
    """
    theta = jax.ShapeDtypeStruct((dim,), jax.dtypes.canonicalize_dtype(float))
    datum = jax.tree.map(_datum_shape, data)
    signature = signature_of((model, theta, datum))
    if is_remembered(signature):
        return
    if isinstance(model.loss, CountsRisk):
        pass  # `check_counts_risk` traces and evaluates it.
    elif isinstance(model.loss, Generic):
        require_real_scalar("loss(theta, datum)", model.loss, theta, datum)
    else:
        scalar = jax.ShapeDtypeStruct((), theta.dtype)
        require_real_scalar("rho(prediction, y)", model.loss.rho, scalar, scalar)
    require_real_scalar("prior.log_prob(theta)", model.prior.log_prob, theta)
    remember(signature)


def is_remembered(signature: Any) -> bool:
    """Return whether a model and data with this signature have passed."""
    return signature is not None and signature in _passed


def remember(signature: Any) -> None:
    """Remember a signature, unless it is None."""
    if signature is not None:
        if len(_passed) >= CONFIG.max_remembered:
            _passed.clear()
        _passed.add(signature)


def forget_passed_checks() -> None:
    """Forget all signatures, because a user's object has changed in a way that signatures do not show."""
    _passed.clear()


def signature_of(tree: object) -> Any:
    """Return a hashable value that determines the result of tracing.

    It is made of the tree structure, the shapes and dtypes of arrays, and the code and captured values of functions.
    Returns None if the tree holds anything else, such as a callable object whose state may change.
    """
    leaves, structure = jax.tree.flatten(tree)
    parts = [_comparable(leaf) if isinstance(leaf, Function) else _shape_and_dtype(leaf) for leaf in leaves]
    if any(part is None for part in parts):
        return None
    signature = (structure, *parts)
    try:
        hash(signature)
    except TypeError:
        return None
    return signature


def _comparable(function: Function) -> Function | None:
    """Return the function, or None if it captures a mutable value and therefore never equals another function."""
    return function if Function(function.fn) == function else None


def _shape_and_dtype(leaf: object) -> tuple[tuple[int, ...], np.dtype] | None:
    arrays = jax.Array | np.ndarray | jax.ShapeDtypeStruct
    return (leaf.shape, leaf.dtype) if isinstance(leaf, arrays) else None


def _datum_shape(leaf: np.ndarray) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape[1:], jax.dtypes.canonicalize_dtype(leaf.dtype))


def require_real_scalar(name: str, fn: Callable[..., Any], *args: Any) -> None:
    """Raise an error if a function cannot be traced, or its value is not a real scalar."""
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
        at_once = "" if name.startswith("risk") else ", for one observation at a time"
        raise ValueError(f"{name} must be a scalar{at_once}; got shape {shape}.")
    if jnp.issubdtype(out.dtype, jnp.complexfloating):
        raise TypeError(f"{name} must be a real number; got {out.dtype}.")
