"""The risk engine, against a handwritten loop, the peak of the machine, and a loss without known structure."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import calibayes as cb
from benchmarks.speed.measurement import Measurements, Ratio, best_of
from benchmarks.speed.peak import Chains, bandwidth, chains
from benchmarks.speed.problems import Data, Sizes, bootstrap_counts, heart_disease, median_regression
from calibayes._backend.jit import jit
from calibayes._core.target import Target, make_target

_GOAL_LOOP, _GOAL_GENERIC_CPU, _GOAL_PEAK_GPU = 0.6, 0.25, 0.3
_risk = jit(Target.risk)

GenericLoss = Callable[[Array, tuple[Array, Array]], Array]


def median_loss(theta: Array, datum: tuple[Array, Array]) -> Array:
    """Check loss, written without the knowledge that it is linear in the prediction."""
    x, y = datum
    residual = y - x @ theta
    return jnp.maximum(0.5 * residual, -0.5 * residual)


def hinge_loss(theta: Array, datum: tuple[Array, Array]) -> Array:
    """Hinge loss, written likewise."""
    x, y = datum
    return 2 * jnp.maximum(0, 1 - y * (x @ theta))


def measure(sizes: Sizes) -> Measurements:
    """Measure one evaluation of the risk of all particles on all replicates."""
    measurements = Measurements(quick=sizes.quick)
    peaks = chains(measurements)
    measurements.figures["roofline"] = {"bandwidth": bandwidth(sizes.repeats), "shapes": []}
    for data, generic in ((median_regression(sizes.large), median_loss), (heart_disease(), hinge_loss)):
        _measure_problem(data, generic, sizes, peaks, measurements)
    if jax.default_backend() != "cpu":
        # As many particles as in the paper, which fill an accelerator.
        large = sizes._replace(particles=4 * sizes.particles)
        _measure_problem(heart_disease(), hinge_loss, large, peaks, measurements)
    return measurements


def _measure_problem(
    data: Data, generic: GenericLoss, sizes: Sizes, peaks: list[Chains], measurements: Measurements
) -> None:
    (n, dim), shape = data.x.shape, (sizes.replicates, sizes.particles)
    counts = bootstrap_counts(n, sizes.replicates - 1)
    theta = np.random.default_rng(1).normal(size=(dim, *shape)).astype(np.float32)
    theta_on_device = jnp.asarray(theta)
    target = make_target(data.model, (data.x, data.y), counts, dim)
    ours = partial(_risk, target, theta_on_device)
    generic_model = cb.GibbsModel(generic, data.model.prior, dim=dim)
    generic_target = make_target(generic_model, (data.x, data.y), counts, dim)
    calls: list[Callable[[], Any]] = [
        ours,
        partial(_risk, generic_target, theta_on_device),
        *(peak.call for peak in peaks),
    ]
    loop = _handwritten_loop(data, counts, theta, measurements)
    if loop is not None:
        _require_equal(np.asarray(ours()), loop())
        calls.append(loop)
    seconds, generic_seconds, *others = best_of(calls, sizes.repeats)
    peak = max(chain.operations / chain_seconds for chain, chain_seconds in zip(peaks, others, strict=False))
    case = f"risk engine, {data.description}, K {dim}, M {sizes.particles:,}"
    operations = (2 * dim + 4) * n * sizes.replicates * sizes.particles
    # Particles and their risks, counts and data, each moved once.
    n_numbers = (dim + 1) * sizes.replicates * sizes.particles + n * (sizes.replicates + dim + 3)
    roof = {"case": case, "operations": operations, "bytes": 4 * n_numbers, "peak": peak, "seconds": seconds}
    measurements.figures["roofline"]["shapes"].append(roof)
    on_cpu = jax.default_backend() == "cpu"
    note = (
        f"{2 * dim + 4} operations per observation and particle, {operations / seconds / 1e9:.0f} of "
        f"{peak / 1e9:.0f} GFLOP/s"
    )
    peak_goal = None if on_cpu or generic is not hinge_loss else _GOAL_PEAK_GPU
    measurements.ratios += [
        Ratio(case, "measured peak", seconds, operations / peak, peak_goal, note),
        *(Ratio(case, "handwritten loop (numba)", seconds, theirs, _GOAL_LOOP) for theirs in others[len(peaks) :]),
        Ratio(
            f"fn(theta, datum), {data.description}, M {sizes.particles:,}",
            "same loss as a linear loss",
            generic_seconds,
            seconds,
            _GOAL_GENERIC_CPU if on_cpu else None,
        ),
    ]


def _require_equal(risk: np.ndarray, expected: np.ndarray) -> None:
    """Raise an error if two risks differ by more than rounding and a constant per replicate."""
    difference = risk - expected
    if np.ptp(difference, axis=1).max() > 1e-3 * np.ptp(expected):
        raise AssertionError("the engine and the handwritten loop do not compute the same risk.")


def _handwritten_loop(
    data: Data, counts: np.ndarray, theta: np.ndarray, measurements: Measurements
) -> Callable[[], np.ndarray] | None:
    if jax.default_backend() != "cpu":
        _skip(measurements, "the handwritten loop runs on CPUs only.")
        return None
    try:
        from benchmarks.speed import handwritten
    except ImportError:
        _skip(measurements, "the handwritten loop, because numba is not installed.")
        return None
    n, dim = data.x.shape
    all_counts = np.concatenate([np.ones((1, n)), counts])
    x, y, all_counts = (np.asarray(array, np.float32) for array in (data.x, data.y, all_counts))
    out = np.zeros(theta.shape[1:], np.float32)
    loop = partial(handwritten.quantile_2, tau=np.float32(0.5)) if dim == 2 else handwritten.hinge_8

    def call() -> np.ndarray:
        loop(theta, x, y, all_counts, out=out)
        return out

    return call


def _skip(measurements: Measurements, reason: str) -> None:
    if reason not in measurements.skipped:
        measurements.skipped.append(reason)
