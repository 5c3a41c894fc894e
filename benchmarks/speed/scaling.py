"""How time grows with observations N, bootstrap rows B, particles M and parameters K: slopes of log-log fits."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

import calibayes as cb
from benchmarks.speed.measured import Measured, best_of, slope, timed
from benchmarks.speed.problems import Sizes, median_regression, rows_of
from calibayes._backend.jit import jit
from calibayes._core.target import Target, make_target

WANTED = 1.05
"""At most, in N, B and M."""
_TURNS = 4
"""Times as many as elsewhere: a slope of three points takes its error from each."""
_risk = jit(Target.risk)


def measure(sizes: Sizes) -> Measured:
    """One evaluation of the risk, and a whole calibration by transport, each size doubled by itself."""
    found = Measured(quick=sizes.quick)
    base = {"N": sizes.large, "B": sizes.rows, "M": sizes.particles, "K": 2}
    axes = {axis: [first * 2**i for i in range(sizes.doublings + 1)] for axis, first in base.items()}
    shapes = [base, *(base | {axis: value} for axis, values in axes.items() for value in values[1:])]
    for name, seconds in (
        ("risk", best_of([_risk_of(**shape) for shape in shapes], _TURNS * sizes.repeats)),
        ("calibration", _in_turns([_calibration_of(**shape) for shape in shapes])),
    ):
        later = iter(seconds[1:])
        for axis, values in axes.items():
            own = [seconds[0], *(next(later) for _ in values[1:])]
            wanted = None if axis == "K" else WANTED
            figure = {"sizes": values, "seconds": own, "slope": slope(values, own), "wanted": wanted}
            found.figures[f"{name} in {axis}"] = figure
    return found


def _risk_of(**shape: int) -> Callable[[], Any]:
    data = median_regression(shape["N"], shape["K"])
    counts = rows_of(shape["N"], shape["B"] - 1)
    target = make_target(data.model, (data.x, data.y), counts, shape["K"])
    theta: Any = np.random.default_rng(1).normal(size=(shape["K"], shape["B"], shape["M"]))
    return partial(_risk, target, jnp.asarray(theta, float))


def _calibration_of(**shape: int) -> Callable[..., cb.Result]:
    data = median_regression(shape["N"], shape["K"])
    options: dict[str, Any] = {"bootstrap": shape["B"], "region": "box", "progress": False}
    sampler = cb.Transport(n_particles=shape["M"])
    return partial(cb.calibrate, data.model, (data.x, data.y), sampler=sampler, **options)


def _in_turns(calls: Sequence[Callable[..., cb.Result]]) -> list[float]:
    """Seconds of each, the median over seeds, after one that compiles; all with one seed before the next."""
    rounds = [[timed(partial(call, seed=seed))[1] for call in calls] for seed in range(4)]
    return [float(np.median(own[1:])) for own in zip(*rounds, strict=True)]
