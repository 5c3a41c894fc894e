"""Checks of the settings of a calibration: level, bootstrap, number of particles, search, estimate and seed."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from calibayes._backend.arguments import display, fraction, integer, positive
from calibayes._backend.memory import require_memory_for_counts, require_memory_for_particles
from calibayes._backend.rng import key_from_seed
from calibayes._core.weights import Weights
from calibayes._validate.data import as_numeric_array, require_finite
from calibayes.bootstrap import Bootstrap, Multinomial, Poisson
from calibayes.resampling import exceeds_storage
from calibayes.solve.estimate import ESTIMATES


@dataclass(frozen=True)
class SettingsConfig:
    """Smallest sizes that a calibration accepts."""

    min_replicates: int = 20
    """Smallest number of bootstrap replicates. With 20, a coverage of 0.95 has a standard error of 0.05.
    Order-of-magnitude choice; it only decides which calls are rejected."""
    min_replicates_outside: int = 5
    """Recommended number of replicates that the calibrated sets do not cover, in the error message for a level that is
    too close to 0 or 1. Order-of-magnitude choice; it only appears in that message."""
    max_relative_total: float = 1e4
    """Largest factor between the total of a replicate's counts and the number of observations. A bootstrap replicate
    has about as many observations as the data, and an m-out-of-n bootstrap of a million observations a hundredth.
    Order-of-magnitude choice; it only decides which calls are rejected."""
    max_repeated: int = 2**24
    """Largest total of integer weights, for which all repetitions are drawn in each replicate: about half a second per
    replicate. Order-of-magnitude choice; it only decides which calls are rejected."""
    min_particles: int = 100
    """Smallest number of particles or draws per replicate. Order-of-magnitude choice; it only decides which calls are
    rejected."""
    min_particles_per_parameter: int = 10
    """Smallest number of particles per parameter, so that a covariance matrix can be estimated. Order-of-magnitude
    choice; it only decides which calls are rejected."""


CONFIG = SettingsConfig()


def check_weights(weights: object, n: int) -> Weights | None:
    """Check the argument `weights`.

    Parameters
    ----------
    weights : array_like of shape (N,) or None
        One weight per observation.
    n : int
        Number of observations.

    Returns
    -------
    Weights or None
        The weights; None if all of them are one.

    Raises
    ------
    TypeError, ValueError
        If the weights are not N finite numbers from 0 on, or fewer than two of them are positive.
    """
    if weights is None:
        return None
    values = as_numeric_array("weights", weights)
    if values.shape != (n,):
        raise ValueError(f"weights must hold one number for each of {n} observations; got shape {values.shape}.")
    require_finite("weights", values)
    if values.min() < 0:
        raise ValueError(f"weights must not be negative; weight {int(np.argmin(values))} is {values.min():g}.")
    n_positive = int((values > 0).sum())
    if n_positive < 2:
        raise ValueError(f"weights must be positive for at least two observations; {n_positive} of {n} are.")
    if (values == 1).all():
        return None
    repeats = bool((values == np.round(values)).all())
    if repeats and values.sum() > CONFIG.max_repeated:
        raise ValueError(
            f"weights are integers, numbers of repetitions, with a total of {values.sum():.3g}; at most "
            f"{CONFIG.max_repeated:,} are possible. Divide survey weights by their mean."
        )
    return Weights(values, repeats)


def check_bootstrap(
    bootstrap: object, n: int, default: int, weights: Weights | None = None, *, in_parts: bool = False
) -> Bootstrap | Float[np.ndarray, "B N"]:
    """Check the argument `bootstrap`.

    Parameters
    ----------
    bootstrap : int, Bootstrap, array_like of shape (B, N) or None
        Number of replicates, bootstrap scheme or counts. A number stands for the multinomial bootstrap, or for the
        Poisson bootstrap if multinomial counts would be too many to be stored.
    n : int
        Number of observations.
    default : int
        Number of replicates if `bootstrap` is None.
    weights : Weights or None
        Weights of the observations. Default: None, all one.
    in_parts : bool
        Whether the data are in parts, whose counts are never stored. Default: False.

    Returns
    -------
    Bootstrap or ndarray of shape (B, N)
        Bootstrap scheme, or the user's counts.

    Raises
    ------
    TypeError, ValueError
        If the bootstrap is invalid for `n` observations or does not fit into memory.
    """
    if bootstrap is None:
        bootstrap = default
    n_resampled = n if weights is None else weights.n_resampled
    if isinstance(bootstrap, int | np.integer) and not isinstance(bootstrap, bool):
        is_large = in_parts or exceeds_storage(int(bootstrap), n_resampled)
        bootstrap = Poisson(int(bootstrap)) if is_large else Multinomial(int(bootstrap))
    if in_parts:
        if not isinstance(bootstrap, Poisson) or weights is not None:
            raise ValueError(
                "data in parts need a number of replicates or bootstrap.Poisson(B), and no weights; got "
                f"bootstrap={display(bootstrap)}."
            )
        _require_replicates(bootstrap.n_replicates)
        return bootstrap
    if isinstance(bootstrap, Bootstrap):
        _require_replicates(bootstrap.n_replicates)
        repeats = None if weights is None or not weights.repeats else weights.values.astype(np.int64)
        (bootstrap if repeats is None else bootstrap.repeated(repeats)).check(n_resampled)
        is_stored = not (isinstance(bootstrap, Poisson) and exceeds_storage(bootstrap.n_replicates, n))
        if not (is_stored or repeats is None):
            raise ValueError(
                f"weights are integers, numbers of repetitions, which needs stored counts, and {n:,} x "
                f"{bootstrap.n_replicates:,} are too many. Repeat the observations, or use fewer replicates."
            )
        if is_stored:
            require_memory_for_counts(bootstrap.n_replicates, n)
        return bootstrap
    counts = as_numeric_array("bootstrap", bootstrap)
    if counts.ndim != 2 or counts.shape[1] != n:
        raise ValueError(f"bootstrap counts must be (B, {n}), one row per replicate; got shape {counts.shape}.")
    _require_replicates(len(counts))
    require_finite("bootstrap", counts)
    if counts.min() < 0:
        raise ValueError(f"bootstrap counts must not be negative; the smallest is {counts.min():g}.")
    empty = counts.astype(jax.dtypes.canonicalize_dtype(float)).sum(1) == 0
    if empty.any():
        raise ValueError(f"bootstrap counts of replicate {int(np.argmax(empty))} are all zero.")
    total = n if weights is None else weights.values.sum()
    relative = counts.sum(1) / total
    far = (relative > CONFIG.max_relative_total) | (relative < 1 / CONFIG.max_relative_total)
    if far.any():
        b = int(np.argmax(far))
        of_data = f"there are {n} observations, each of which counts once in the data"
        if weights is not None:
            of_data = f"the weights of the data sum to {total:.3g}"
        raise ValueError(
            f"bootstrap counts of replicate {b} sum to {total * relative[b]:.3g}, but {of_data}. Divide the counts so "
            "that each replicate has a total of about that number."
        )
    return counts


def _require_replicates(n_replicates: object) -> None:
    minimum = CONFIG.min_replicates
    if integer("the number of bootstrap replicates", n_replicates, 0) < minimum:
        raise ValueError(f"bootstrap needs at least {minimum} replicates to estimate coverage; got {n_replicates}.")


def check_level(level: float, n_replicates: int) -> None:
    """Raise an error if `level` is not in (0, 1), or too close to its ends for the number of replicates."""
    fraction("level", level, " For 95% write 0.95.")
    alpha = min(level, 1 - level)
    if alpha * n_replicates < 1:
        raise ValueError(
            f"bootstrap: {n_replicates} replicates are too few for level = {level:g}: only "
            f"{alpha * n_replicates:.2g} of them are expected on one side of it. Use at least "
            f"{math.ceil(CONFIG.min_replicates_outside / alpha)}."
        )


def check_search_settings(
    level: float, tolerance: float, eta_init: float | None, max_iterations: int, n_replicates: int, to_tolerance: bool
) -> None:
    """Check the level and the settings of the search.

    Parameters
    ----------
    level : float
        Credible level.
    tolerance : float
        Largest accepted difference between coverage and `level`.
    eta_init : float or None
        Initial learning rate.
    max_iterations : int
        Maximum number of iterations of the search.
    n_replicates : int
        Number of bootstrap replicates.
    to_tolerance : bool
        Whether the search stops when the coverage is within `tolerance` of `level`.

    Raises
    ------
    TypeError, ValueError
        If a setting is invalid, or if no coverage of `n_replicates` replicates is within `tolerance` of `level`.
    """
    check_level(level, n_replicates)
    positive("tolerance", tolerance)
    if eta_init is not None:
        positive("eta_init", eta_init)
    integer("max_iterations", max_iterations, 1)
    if not to_tolerance:
        return
    alpha = min(level, 1 - level)
    if tolerance >= alpha:
        raise ValueError(
            f"tolerance = {tolerance:g} must be below {alpha:g}, or sets that always cover would be accepted."
        )
    gap = abs(round(level * n_replicates) / n_replicates - level)
    if gap >= tolerance:
        raise ValueError(
            f"tolerance = {tolerance:g} cannot be met: with {n_replicates} bootstrap replicates the coverage nearest "
            f"to {level:g} is {gap:.2g} away. Use more replicates, or a larger tolerance."
        )


def check_max_seconds(max_seconds: float | None) -> float | None:
    """Return the time limit as a float; raise an error if it is not positive, or if there are several processes."""
    if max_seconds is None:
        return None
    positive("max_seconds", max_seconds)
    if jax.process_count() > 1:
        raise ValueError("max_seconds is not available for several processes, whose clocks differ. Use max_iterations.")
    return float(max_seconds)


def check_n_particles(n_particles: int, dim: int, n_replicates: int) -> None:
    """Raise an error if there are too few particles per replicate, or more than fit into memory."""
    minimum = max(CONFIG.min_particles, CONFIG.min_particles_per_parameter * dim)
    if n_particles < minimum:
        raise ValueError(
            f"the sampler needs at least {minimum} particles or draws per replicate for {dim} parameters; "
            f"got {n_particles}."
        )
    require_memory_for_particles(n_replicates, n_particles, dim)


def check_estimate(estimate: object) -> None:
    """Raise an error if `estimate` is neither a function nor the name of a point estimate."""
    if not callable(estimate) and not (isinstance(estimate, str) and estimate in ESTIMATES):
        raise ValueError(f"estimate must be one of {', '.join(ESTIMATES)} or a function; got {display(estimate)}.")


def as_key(seed: object) -> PRNGKeyArray:
    """Convert a seed to a JAX key of the generator threefry2x32.

    Parameters
    ----------
    seed : int or key
        Integer of at most 64 bits, typed JAX key, or raw key of shape (2,).

    Returns
    -------
    PRNGKeyArray
        The key of `jax.random.key(seed)` for an integer. A key of another generator seeds threefry2x32.

    Raises
    ------
    TypeError, ValueError
        If `seed` is neither, or is out of range.
    """
    if isinstance(seed, int | np.integer) and not isinstance(seed, bool):
        if not -(2**63) <= seed < 2**63:
            raise ValueError(f"seed must fit into 64 bits; got {seed}.")
        return key_from_seed(int(seed))
    if isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key) and seed.shape == ():
        if jax.random.key_impl(seed) == jax.random.key_impl(key_from_seed(0)):
            return seed
        return jax.random.wrap_key_data(jax.random.bits(seed, (2,), jnp.uint32), impl="threefry2x32")
    if isinstance(seed, jax.Array) and seed.dtype == jnp.uint32 and seed.shape == (2,):
        return jax.random.wrap_key_data(seed, impl="threefry2x32")
    raise TypeError(f"seed must be an int or one JAX key; got {type(seed).__name__}.")
