"""Check of a risk that is a function of the counts: it is evaluated on variants of the data with equal risks."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from calibayes._backend.jit import light_jit
from calibayes._core.counts import canonical
from calibayes._core.precision import double_precision
from calibayes._core.target import in_default_float_type
from calibayes._validate.functions import is_remembered, remember, require_real_scalar, signature_of
from calibayes.losses import CountsRisk


@dataclass(frozen=True)
class CountsRiskConfig:
    """Constants of the check."""

    distances: tuple[float, ...] = (0.0, 0.01, 0.1, 1.0, 1.0)
    """The risk is evaluated at one point for each entry: the median of the prior plus this multiple of the deviation of
    a
    draw of its own. Small multiples are included because the risk of a draw from a wide prior may not be finite."""
    tolerance: float = 1e-5
    """Largest relative difference of risks that should be equal. It is above the rounding error of single precision, in
    which a user's function may compute, and below the error of a risk that wrongly includes the observations with count
    zero, a third of those in the check."""


CONFIG = CountsRiskConfig()

_NAME = "risk(theta, data, counts)"


def check_counts_risk(loss: CountsRisk, prior: Any, data: PyTree[np.ndarray], dim: int) -> None:
    """Check that a risk is a finite scalar, uses the counts, and depends on nothing but the observations with counts.

    A model that has passed is not evaluated again for data of the same shapes.

    Parameters
    ----------
    loss : CountsRisk
        The risk.
    prior : prior
        Prior of the parameters.
    data : pytree of ndarray
        Checked data, with the observations along the first axis.
    dim : int
        Number of parameters.

    Raises
    ------
    TypeError
        If JAX cannot trace or differentiate the risk.
    ValueError
        If a property does not hold.
    """
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), data)
    signature = signature_of((loss, prior, shapes))
    if is_remembered(signature):
        return
    points = _points(prior, dim)
    with double_precision(True):
        _require_function_of_counts(in_default_float_type(loss), data, jnp.asarray(points))
    remember(signature)


def _require_function_of_counts(loss: CountsRisk, data: PyTree[np.ndarray], points: Float[Array, "S K"]) -> None:
    n = len(jax.tree.leaves(data)[0])
    rng = np.random.default_rng(0)
    # As in a calibration, the data are padded with copies of the last observation, with count zero.
    rows, ones = np.minimum(np.arange(n + 2), n - 1), np.where(np.arange(n + 2) < n, 1.0, 0.0)
    integers = ones * np.concatenate([rng.permutation(np.arange(n) % 3), [0, 0]])
    fractions = ones * rng.uniform(0.5, 1.5, n + 2)
    prepare = lambda chosen: jax.tree.map(
        lambda leaf: canonical(np.asarray(leaf)), loss.prepare(jax.tree.map(lambda leaf: leaf[chosen], data))
    )
    prepared = prepare(rows)
    nuisance = loss.nuisance(prepared, ones) if loss.nuisance_on_host else None
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (points[0], prepared, ones))
    require_real_scalar(_NAME, lambda theta, data, counts: _evaluate(loss, theta, data, counts, nuisance), *abstract)

    def risks(prepared: PyTree[np.ndarray], counts: np.ndarray) -> Float[np.ndarray, " S"]:
        nuisance = loss.nuisance(prepared, counts) if loss.nuisance_on_host else None
        return np.asarray(_risks(loss, points, prepared, counts, nuisance))

    try:
        derivatives = np.asarray(_count_derivatives(loss, points, prepared, ones, nuisance))
    except (TypeError, ValueError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise TypeError(
            f"{_NAME} must be differentiable in the counts: {reason.rstrip('.')}. Replace while loops by jax.lax.scan, "
            "and accumulate with jnp.sum, jnp.cumsum or jax.ops.segment_sum."
        ) from error
    with_ones, with_integers, with_fractions = (risks(prepared, counts) for counts in (ones, integers, fractions))
    finite = np.isfinite(with_ones)
    if not finite.any():
        raise ValueError(
            f"{_NAME} is {with_ones[0]:g} with counts of one, at the median of the prior and at all of {len(points)} "
            "points near it. Evaluate it at one of them; or choose a prior nearer to where the risk is finite."
        )
    if not np.isfinite(derivatives[finite]).all():
        raise ValueError(
            f"the derivative of {_NAME} in the counts is NaN or infinite. Where jnp.where selects between two values, "
            "both must have finite derivatives; avoid square roots and logarithms of zero."
        )
    finite &= np.isfinite(with_integers) & np.isfinite(with_fractions)
    if finite.any() and (with_integers == with_fractions)[finite].all():
        raise ValueError(f"{_NAME} does not depend on the counts. Multiply the loss of observation i by counts[i].")
    without_counts = np.where(integers > 0, rows, rows[0])
    if _differ(with_integers, risks(prepare(without_counts), integers)):
        raise ValueError(
            f"{_NAME} depends on observations with count zero, which must contribute nothing: with them, the data are "
            "padded, and bootstrap replicates leave observations out. Replace len(data) by counts.sum()."
        )
    order = rng.permutation(n + 2)
    if not loss.nuisance_on_host and _differ(with_integers, risks(prepare(rows[order]), integers[order])):
        raise ValueError(
            f"{_NAME} depends on the order of the observations, which must not matter: count i belongs to row i of the "
            "data that prepare receives, also if prepare sorts them. Use for example data['x'] with "
            "counts[data['order']]."
        )


def _differ(a: Float[np.ndarray, " S"], b: Float[np.ndarray, " S"]) -> bool:
    """Return whether risks differ by more than rounding errors, where they are finite."""
    finite = np.isfinite(a)
    return not np.allclose(a[finite], b[finite], rtol=CONFIG.tolerance, atol=CONFIG.tolerance)


def _points(prior: Any, dim: int) -> Float[np.ndarray, "S K"]:
    """Return the median of the prior, and points between it and draws."""
    if not hasattr(prior, "sample"):
        return np.zeros((1, dim))
    draws = np.asarray(prior.sample(jax.random.key(0), (64, dim)), np.float64)
    centre = np.median(draws, 0)
    return np.stack([centre + scale * (draw - centre) for scale, draw in zip(CONFIG.distances, draws, strict=False)])


def _evaluate(
    loss: CountsRisk,
    theta: Array,
    data: PyTree[Array],
    counts: Array,
    nuisance: PyTree[Array],
    differentiable: bool = False,
) -> Array:
    fitted = nuisance if loss.nuisance_on_host else loss.nuisance(data, counts)
    return (loss.differentiable_risk if differentiable else loss)(theta, data, counts, fitted)


@light_jit
def _risks(
    loss: CountsRisk, points: Array, data: PyTree[Array], counts: Array | np.ndarray, nuisance: PyTree[Array]
) -> Float[Array, " S"]:
    return jax.lax.map(lambda point: _evaluate(loss, point, data, jnp.asarray(counts), nuisance).astype(float), points)


@light_jit
def _count_derivatives(
    loss: CountsRisk, points: Array, data: PyTree[Array], counts: Array | np.ndarray, nuisance: PyTree[Array]
) -> Float[Array, "S N"]:
    derivative = jax.grad(lambda c, point: _evaluate(loss, point, data, c, nuisance, True).astype(float))
    return jax.lax.map(lambda point: derivative(jnp.asarray(counts), point), points)
