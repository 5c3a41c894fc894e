"""Bad input gets an error that names the argument, the value and the way out, before anything is compiled."""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from calibayes._backend.arguments import display, fraction, integer, positive, unique_names
from calibayes._backend.jit import jit
from calibayes._backend.memory import require_array, require_counts, require_particles
from calibayes._backend.rng import key_from_seed
from calibayes._backend.warnings import CalibrationWarning
from calibayes._core.target import Target
from calibayes._validate.functions import check_functions
from calibayes.bootstrap import MANY, Bootstrap, Multinomial, Poisson
from calibayes.losses import LinearLoss
from calibayes.model import GibbsModel
from calibayes.solve.estimate import ESTIMATES

MIN_REPLICATES = 20
MIN_DRAWS = 100
_TELLING = 2**16
_FAR_OFF = -1e4
"""A risk, relative to the reference's, that leaves too few digits for differences that matter."""


class Observations(NamedTuple):
    """Checked data: arrays on the host with N leading, the number of parameters and their names."""

    data: PyTree[np.ndarray]
    n: int
    dim: int
    names: list[str]


def check_data(model: GibbsModel, data: Any, names: Sequence[str] | None) -> Observations:
    if not isinstance(model, GibbsModel):
        raise TypeError(f"model must be a GibbsModel(loss, prior); got {type(model).__name__}.")
    linear = isinstance(model.loss, LinearLoss)
    checked, columns = _linear_data(model, data) if linear else (_generic_data(data), None)
    leaves = jax.tree.leaves(checked)
    n = len(leaves[0])
    dim = leaves[0].shape[1] if linear else model.dim
    assert dim is not None
    if model.dim is not None and model.dim != dim:
        raise ValueError(f"X has {dim} columns, but the model is for {model.dim} parameters (its dim, or its prior's).")
    if names is None:
        names = columns or getattr(model.prior, "names", None) or [f"theta[{k}]" for k in range(dim)]
    else:
        names = unique_names(names, dim)
    check_functions(model, checked, dim)
    return Observations(checked, n, dim, [str(name) for name in names])


def _linear_data(model: GibbsModel, data: Any) -> tuple[tuple[np.ndarray, np.ndarray], list[str] | None]:
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise TypeError(f"data must be a pair (X, y) for {type(model.loss).__name__}; got {type(data).__name__}.")
    columns = _columns(data[0])
    x, y = _numbers("X", data[0], columns), _numbers("y", data[1], None)
    if x.ndim != 2:
        raise ValueError(f"X must have two dimensions, (observations, parameters); got shape {x.shape}.")
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise ValueError(f"y must have one dimension; got shape {y.shape}.")
    if len(x) != len(y):
        raise ValueError(f"X and y must have the same length; got {len(x)} and {len(y)} observations.")
    if x.size == 0:
        raise ValueError(f"X is empty: shape {x.shape}.")
    _require_two(len(x))
    _require_finite("X", x, columns)
    _require_finite("y", y, None)
    assert isinstance(model.loss, LinearLoss)
    model.loss.check(y)
    _warn_of_redundant_columns(x, columns)
    return (x, y), columns


def _columns(table: Any) -> list[str] | None:
    if hasattr(table, "collect"):
        raise TypeError("X is a table that has not been read yet: pass X.collect().")
    if not hasattr(table, "columns"):
        return None
    columns = [str(column) for column in table.columns]
    twice = [column for column in columns if columns.count(column) > 1]
    if twice:
        raise ValueError(f"X has more than one column {twice[0]!r}: rename them.")
    return columns


def _generic_data(data: Any) -> PyTree[np.ndarray]:
    is_frame = lambda leaf: hasattr(leaf, "columns") or hasattr(leaf, "to_numpy")
    leaves, structure = jax.tree.flatten(data, is_leaf=is_frame)
    if not leaves:
        raise ValueError("data is empty: it must hold arrays with a common leading axis.")
    arrays = []
    for i, leaf in enumerate(leaves):
        name = "data" if len(leaves) == 1 else f"array {i} of data"
        array = _numbers(name, leaf, None, keep_kind=True)
        if array.ndim == 0 or array.size == 0:
            raise ValueError(f"{name} must have observations along its first axis; got shape {array.shape}.")
        _require_finite(name, array, None)
        arrays.append(array)
    lengths = sorted({len(array) for array in arrays})
    if len(lengths) > 1:
        raise ValueError(f"data must be arrays of the same length; got {', '.join(map(str, lengths))}.")
    _require_two(lengths[0])
    return jax.tree.unflatten(structure, arrays)


def _require_two(n: int) -> None:
    if n < 2:
        raise ValueError(f"data must hold at least two observations; got {n}.")


def _numbers(name: str, value: Any, columns: list[str] | None, keep_kind: bool = False) -> np.ndarray:
    if columns is not None:
        require_array(name, value.shape, np.dtype(object))
        parts = [_as_float(value[column]) for column in value.columns]
        text = [column for column, part in zip(columns, parts, strict=True) if part is None]
        if text:
            raise TypeError(f"{name} must hold numbers; these columns do not: {', '.join(text)}. Encode or drop them.")
        return np.column_stack([part for part in parts if part is not None]) if parts else np.empty((len(value), 0))
    if hasattr(value, "toarray"):
        raise TypeError(f"{name} is a sparse matrix: pass {name}.toarray().")
    if np.ma.is_masked(value):
        raise ValueError(f"{name} has masked values: drop or impute them, and pass an array without a mask.")
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} must be an array of numbers: {error}") from None
    require_array(name, array.shape, array.dtype)
    if keep_kind and array.dtype.kind in "biu":
        if (array != array.astype(jax.dtypes.canonicalize_dtype(array.dtype))).any():
            raise ValueError(f"{name} holds integers too large for 32 bits. Enable JAX's x64, or pass floats.")
        return array
    number = _as_float(array)
    if number is None:
        raise TypeError(f"{name} must hold numbers; got {array.dtype}.")
    return number


def _as_float(value: Any) -> np.ndarray | None:
    """In float64; None for what is no real number: text, dates, complex numbers, objects."""
    array = np.asarray(value)
    if array.dtype.kind in "USMmc" or (array.dtype.kind == "O" and any(isinstance(v, str) for v in array.flat)):
        return None
    try:
        return np.asarray(value, np.float64)
    except (TypeError, ValueError, OverflowError):
        return None


def _require_finite(name: str, array: np.ndarray, columns: list[str] | None) -> None:
    if array.dtype.kind != "f":
        return
    with np.errstate(over="ignore"):
        finite = np.isfinite(array.astype(jax.dtypes.canonicalize_dtype(array.dtype)))
    if not finite.all():
        bad = np.argwhere(~finite)
        where = f"row {bad[0][0]}"
        if array.ndim > 1:
            where += f", column {columns[bad[0][1]] if columns else bad[0][1]}"
        raise ValueError(
            f"{name} must be finite; {len(bad)} of {array.size} values are NaN, infinite or beyond float32, first in "
            f"{where}. Drop or impute them."
        )


def _warn_of_redundant_columns(x: np.ndarray, columns: list[str] | None) -> None:
    def name(k: int) -> str:
        return columns[k] if columns else f"column {k}"

    # What some of many rows can tell apart, all of them can.
    if len(x) > _TELLING and _of_full_rank(x[:: len(x) // _TELLING]):
        return
    size = np.abs(x).max(0)
    constant = [k for k in range(x.shape[1]) if np.ptp(x[:, k]) == 0]
    zero = [k for k in constant if size[k] == 0]
    if zero or len(constant) > 1:
        suspects = zero or constant[1:]
        _warn(
            f"X: {', '.join(map(name, suspects))} is constant. Only the prior can tell its coefficient from the "
            "intercept's; drop it."
        )
    elif not _of_full_rank(x):
        _warn("X: its columns are collinear. Only the prior can tell their coefficients apart; drop a column.")


def _of_full_rank(x: np.ndarray) -> bool:
    size = np.abs(x).max(0)
    return bool(np.linalg.matrix_rank(x / np.where(size > 0, size, 1)) == x.shape[1])


def _warn(message: str) -> None:
    warnings.warn(message, CalibrationWarning, stacklevel=6)


def check_first(draws: Any, prior: Any, dim: int) -> Float[np.ndarray, "M K"] | None:
    """Draws to start from, if there are any; else the prior must be one to start from."""
    if draws is None:
        if not hasattr(prior, "sample"):
            raise TypeError(
                f"prior {type(prior).__name__} has no sample(key, shape), which the start from the prior "
                "needs. Add it, or pass draws of the posterior at eta_init (draws=)."
            )
        return None
    numbers = _numbers("draws", draws, None)
    if numbers.ndim != 2 or numbers.shape[1] != dim or len(numbers) < MIN_DRAWS:
        raise ValueError(f"draws must be (M, {dim}) with M at least {MIN_DRAWS}; got shape {numbers.shape}.")
    _require_finite("draws", numbers, None)
    return numbers


def check_start(
    target: Target, first: Float[np.ndarray, "M K"] | None, key: PRNGKeyArray
) -> tuple[Target, Float[Array, "M K"] | None]:
    """The loss must be a number at draws to start from, or of the prior; those draws are handed on.

    And the target, its reference at the best of those draws if it was far off: risks must be small numbers.
    """
    draws = None
    if first is None:
        some, risks = _at_the_prior(target, key)
    else:
        draws = some = jnp.asarray(first, float)
        low, high = np.asarray(target.coordinates.low), np.asarray(target.coordinates.high)
        outside = ((np.asarray(draws) < low) | (np.asarray(draws) > high)).any(0)
        if outside.any():
            k = int(np.argmax(outside))
            raise ValueError(f"draws of parameter {k} must lie within the prior's bounds, {low[k]:g} to {high[k]:g}.")
        risks = _risk(target, draws)
    risk = np.asarray(risks)
    if np.isnan(risk).all():
        raise ValueError(
            f"the loss is NaN at every one of {len(some)} draws of the {'prior' if draws is None else 'start'}. "
            "Check it at one: loss(theta, datum)."
        )
    if draws is not None and not np.isfinite(risk).all():
        raise ValueError(
            f"the loss is infinite or NaN at {(~np.isfinite(risk)).sum()} of {len(draws)} draws, which cannot be of "
            "the posterior: leave them out."
        )
    best = int(np.nanargmin(risk))
    return (target.recentre(some[best]) if risk[0, best] < _FAR_OFF else target), draws


@jit
def _risk(target: Target, theta: Float[Array, "M K"]) -> Float[Array, "1 M"]:
    return target.replicate(0).evaluate(target.coordinates.unconstrain(theta.T[:, None, :])).risk


@jit
def _at_the_prior(target: Target, key: PRNGKeyArray) -> tuple[Float[Array, "32 K"], Float[Array, "1 32"]]:
    """Some of its draws, and their risk."""
    some = target.prior.sample(key, (32, target.dim)).astype(float)
    if some.shape != (32, target.dim):
        raise ValueError(f"prior.sample(key, (32, {target.dim})) must have that shape; got {some.shape}.")
    return some, _risk(target, some)


def check_counts(bootstrap: Any, n: int, default: int) -> Bootstrap | Float[np.ndarray, "B N"]:
    """A bootstrap to draw from, or the caller's own counts."""
    if bootstrap is None:
        bootstrap = default
    if isinstance(bootstrap, int | np.integer) and not isinstance(bootstrap, bool):
        # The multinomial's counts must be stored; on so many observations the two are one.
        bootstrap = Poisson(int(bootstrap)) if int(bootstrap) * n > MANY else Multinomial(int(bootstrap))
    if isinstance(bootstrap, Bootstrap):
        _require_rows(bootstrap.n_replicates)
        bootstrap.check(n)
        if not (isinstance(bootstrap, Poisson) and bootstrap.n_replicates * n > MANY):
            require_counts(bootstrap.n_replicates, n)
        return bootstrap
    counts = _numbers("bootstrap", bootstrap, None)
    if counts.ndim != 2 or counts.shape[1] != n:
        raise ValueError(f"bootstrap counts must be (B, {n}), a row a bootstrap sample; got shape {counts.shape}.")
    _require_rows(len(counts))
    _require_finite("bootstrap", counts, None)
    if counts.min() < 0:
        raise ValueError(f"bootstrap counts must not be negative; the smallest is {counts.min():g}.")
    if (counts.astype(jax.dtypes.canonicalize_dtype(float)).sum(1) == 0).any():
        raise ValueError("bootstrap counts of some row are all zero.")
    return counts


def _require_rows(n_replicates: Any) -> None:
    if integer("the number of bootstrap rows", n_replicates, 0) < MIN_REPLICATES:
        raise ValueError(f"bootstrap needs at least {MIN_REPLICATES} rows to tell a coverage; got {n_replicates}.")


def check_numbers(
    level: float, tolerance: float, eta_init: float | None, max_iterations: int, n_replicates: int, to_tolerance: bool
) -> None:
    """`to_tolerance` tells whether the search stops by its tolerance at all."""
    check_level(level, n_replicates)
    positive("tolerance", tolerance)
    if eta_init is not None:
        positive("eta_init", eta_init)
    integer("max_iterations", max_iterations, 1)
    if not to_tolerance:
        return
    alpha = min(level, 1 - level)
    if tolerance >= alpha:
        raise ValueError(f"tolerance = {tolerance:g} must be below {alpha:g}, or sets that always cover would pass.")
    nearest = abs(round(level * n_replicates) / n_replicates - level)
    if nearest >= tolerance:
        raise ValueError(
            f"tolerance = {tolerance:g} cannot be met: with {n_replicates} bootstrap rows the coverage nearest to {level:g} "
            f"is {nearest:.2g} away. Use more rows, or a tolerance above that."
        )


def check_level(level: float, n_replicates: int) -> None:
    fraction("level", level, " For 95% write 0.95.")
    alpha = min(level, 1 - level)
    if alpha * n_replicates < 1:
        raise ValueError(
            f"bootstrap: {n_replicates} rows are too few for level = {level:g}, which leaves {alpha * n_replicates:.2g} of them on "
            f"one side. Use at least {int(np.ceil(5 / alpha))}."
        )


def check_draws(n_draws: int, dim: int, n_replicates: int) -> None:
    needed = max(MIN_DRAWS, 10 * dim)
    if n_draws < needed:
        raise ValueError(
            f"the sampler's particles or draws a row must be at least {needed} for {dim} parameters; got {n_draws}."
        )
    require_particles(n_replicates, n_draws, dim)


def check_estimate(estimate: Any) -> None:
    if not callable(estimate) and not (isinstance(estimate, str) and estimate in ESTIMATES):
        raise ValueError(f"estimate must be one of {', '.join(ESTIMATES)} or a function; got {display(estimate)}.")


def as_key(seed: Any) -> PRNGKeyArray:
    """A JAX key from an int or a key, new style or old."""
    if isinstance(seed, int | np.integer) and not isinstance(seed, bool):
        if not -(2**63) <= seed < 2**63:
            raise ValueError(f"seed must fit into 64 bits; got {seed}.")
        return key_from_seed(int(seed))
    if isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key) and seed.shape == ():
        words = jax.random.bits(seed, (2,), jnp.uint32)
        threefry = jax.random.key_impl(seed) == jax.random.key_impl(jax.random.key(0, impl="threefry2x32"))
        return seed if threefry else jax.random.wrap_key_data(words, impl="threefry2x32")
    if isinstance(seed, jax.Array) and seed.dtype == jnp.uint32 and seed.shape == (2,):
        return jax.random.wrap_key_data(seed, impl="threefry2x32")
    raise TypeError(f"seed must be an int or one JAX key; got {type(seed).__name__}.")
