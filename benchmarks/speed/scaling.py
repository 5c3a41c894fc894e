"""Growth of time with observations N, replicates B, particles M and parameters K: slopes of log-log fits."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import calibayes as cb
from benchmarks.speed.measurement import Measurements, best_of, slope, timed
from benchmarks.speed.problems import Sizes, bootstrap_counts, median_regression
from calibayes._backend.jit import jit
from calibayes._core.target import Target, make_target

GOAL = 1.05
"""Largest slope in N, B and M."""
_REPEAT_FACTOR = 4
"""Repeats relative to other parts: a slope through three points inherits the error of each."""
_risk = jit(Target.risk)


def measure(sizes: Sizes) -> Measurements:
    """Measure one evaluation of the risk and one calibration by transport, doubling one size at a time."""
    measurements = Measurements(quick=sizes.quick)
    base = {"N": sizes.large, "B": sizes.replicates, "M": sizes.particles, "K": 2}
    axes = {axis: [first * 2**i for i in range(sizes.doublings + 1)] for axis, first in base.items()}
    shapes = [base, *(base | {axis: value} for axis, values in axes.items() for value in values[1:])]
    for name, seconds in (
        ("risk", best_of([_risk_call(**shape) for shape in shapes], _REPEAT_FACTOR * sizes.repeats)),
        ("calibration", _median_seconds([_calibration_call(**shape) for shape in shapes])),
    ):
        remaining = iter(seconds[1:])
        for axis, values in axes.items():
            axis_seconds = [seconds[0], *(next(remaining) for _ in values[1:])]
            measurements.figures[f"{name} in {axis}"] = {
                "sizes": values,
                "seconds": axis_seconds,
                "slope": slope(values, axis_seconds),
                "goal": None if axis == "K" else GOAL,
            }
    return measurements


def _risk_call(**shape: int) -> Callable[[], Array]:
    data = median_regression(shape["N"], shape["K"])
    counts = bootstrap_counts(shape["N"], shape["B"] - 1)
    target = make_target(data.model, (data.x, data.y), counts, shape["K"])
    theta: Any = np.random.default_rng(1).normal(size=(shape["K"], shape["B"], shape["M"]))
    return partial(_risk, target, jnp.asarray(theta, float))


def _calibration_call(**shape: int) -> Callable[..., cb.Result]:
    data = median_regression(shape["N"], shape["K"])
    options: dict[str, Any] = {"bootstrap": shape["B"], "region": "box", "progress": False}
    sampler = cb.Transport(n_particles=shape["M"])
    return partial(cb.calibrate, data.model, (data.x, data.y), sampler=sampler, **options)


def _median_seconds(calls: Sequence[Callable[..., cb.Result]]) -> list[float]:
    """Return the median time of each call over seeds, after one call that compiles; the calls take turns."""
    rounds = [[timed(partial(call, seed=seed))[1] for call in calls] for seed in range(4)]
    return [float(np.median(seconds[1:])) for seconds in zip(*rounds, strict=True)]
