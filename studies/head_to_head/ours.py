"""calibayes in the head-to-head: several methods for the learning rate on the same draws and bootstrap replicates.

The interval of the slope is that of `calibrate(region=Interval(1))`, to which `Result.intervals` is equal up to Monte
Carlo error. The sampler is transport without the audit of the default sampler, which takes a third of the time of a
calibration and changes a result only if it fails.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from time import process_time
from typing import Any

import jax
import numpy as np

import calibayes as cb
from benchmarks.common import machine
from calibayes._core.status import Status
from calibayes.losses import LinearLoss
from calibayes.methods import as_method
from calibayes.regions import Interval
from studies.head_to_head import designs
from studies.head_to_head.names import (
    AR1,
    HETEROSCEDASTIC,
    LEVEL,
    OURS,
    REPLICATES,
    SANDWICH,
    SLOPE,
    UNIT,
    UNIT_DATASETS,
    WIDE,
    WIDE_SIZE,
    block_length,
    is_joint,
)
from studies.records import ALL, Outcome, Record, failure
from studies.runner import Case

METHODS = ("gpc", "gpc-studentized", "matching")
LOSSES: dict[str, Callable[[], LinearLoss]] = {
    "median": lambda: cb.losses.Quantile(0.5),
    "squared": cb.losses.Squared,
    "tau 0.9": lambda: cb.losses.Quantile(designs.TAU),
    "huber": lambda: cb.losses.Huber(designs.HUBER_DELTA),
    "logistic": cb.losses.Logistic,
    "hinge": cb.losses.Hinge,
    WIDE: cb.losses.Squared,
}


def cases(
    numbers: Sequence[int], losses: Sequence[str], chosen_designs: Sequence[str], sizes: Sequence[int]
) -> list[Case]:
    """Return the cases of the study, data set by data set, so that an interrupted study has as many of every kind."""
    kinds = [(f"{loss}, {design}", n) for n, loss, design in product(sizes, losses, chosen_designs) if loss != WIDE]
    kinds += [(f"{WIDE}, {HETEROSCEDASTIC}", WIDE_SIZE)] if WIDE in losses else []
    return [Case(problem, n, number, OURS, (ALL,)) for number, (problem, n) in product(numbers, kinds)]


def run_case(case: Case) -> list[Record]:
    """Apply all methods to one data set."""
    loss, design = case.problem.split(", ")
    data, theta = designs.draw(loss, design, case.n, case.dataset), np.array(designs.truth(loss, design))
    options: dict[str, Any] = {
        "model": cb.GibbsModel(LOSSES[loss](), cb.priors.Normal(scale=100.0)),
        "data": (data.x, data.y),
        "level": LEVEL,
        "bootstrap": bootstrap(data, design),
        "sampler": "transport",
        "seed": case.dataset,
        "progress": False,
    }
    apply = _shapes if loss == WIDE else _joint_and_slope if is_joint(loss, design, case.n) else _slope
    try:
        outcomes = apply(options, theta)
    except jax.errors.JaxRuntimeError:
        # For example out of memory.
        raise
    except (ValueError, RuntimeError) as error:
        outcomes = {name: failure(str(error), math.nan) for name in METHODS}
    return [Record(case.problem, case.n, case.dataset, OURS, outcomes, machine())]


def bootstrap(data: designs.Data, design: str) -> int | cb.bootstrap.Bootstrap:
    """Return the bootstrap that the dependence of the data asks for."""
    if data.groups is not None:
        return cb.bootstrap.Cluster(REPLICATES, data.groups)
    return cb.bootstrap.Block(REPLICATES, length=block_length(len(data.y))) if design == AR1 else REPLICATES


def _slope(options: dict[str, Any], theta: np.ndarray) -> dict[str, Outcome]:
    """Calibrate the interval of the slope."""
    start = process_time()
    base = _require_finished(cb.calibrate(region=Interval(SLOPE), **options))
    outcomes = {"gpc": _outcome(base, theta, [SLOPE], process_time() - start)}
    for name in METHODS[1:]:
        start = process_time()
        result = _other_method(base, name)
        if isinstance(result, str):
            outcomes[name] = failure(result, process_time() - start)
        else:
            outcomes[name] = _outcome(result, theta, [SLOPE], process_time() - start)
    return outcomes | _at_eta_one(base, theta)


def _joint_and_slope(options: dict[str, Any], theta: np.ndarray) -> dict[str, Outcome]:
    """Calibrate the credible set of both parameters, and the interval of the slope."""
    start = process_time()
    joint = _require_finished(cb.calibrate(region="hpd", **options))
    slope = joint.at(region=Interval(SLOPE))
    outcomes = {}
    for name in METHODS:
        pair = (joint, slope) if name == "gpc" else (_other_method(joint, name), _other_method(slope, name))
        seconds = process_time() - start
        if isinstance(pair[0], str) or isinstance(pair[1], str):
            outcomes[name] = failure(" ".join(part for part in pair if isinstance(part, str)), seconds)
        else:
            interval = _outcome(pair[1], theta, [SLOPE], seconds)
            outcomes[name] = _outcome(pair[0], theta, [], seconds)._replace(intervals=interval.intervals)
        start = process_time()
    return outcomes | _at_eta_one(joint, theta)


def _shapes(options: dict[str, Any], theta: np.ndarray) -> dict[str, Outcome]:
    """Calibrate the ellipsoid of all parameters; the intervals are those of the one calibrated posterior."""
    outcomes = {}
    for prefix, shape in (("", None), (SANDWICH, "sandwich")):
        start = process_time()
        result = _require_finished(cb.calibrate(region="ellipsoid", shape=shape, **options))
        outcomes[f"{prefix}gpc"] = _outcome(result, theta, range(len(theta)), process_time() - start)
    return outcomes


def _other_method(base: cb.Result, name: str) -> cb.Result | str:
    """Return the result of another method on the same draws and replicates, or the reason why there is none."""
    method, calibration = as_method(name), base.calibration
    assert calibration is not None
    try:
        inputs = calibration.inputs
        method.check(inputs.model, inputs.bootstrap, inputs.settings["shape"], inputs.weights)
        return calibration.with_method(method).result()
    except jax.errors.JaxRuntimeError:
        raise
    except (ValueError, RuntimeError) as error:
        return str(error)


def _at_eta_one(base: cb.Result, theta: np.ndarray) -> dict[str, Outcome]:
    """Return the interval of the slope by the posterior at learning rate one, for the first data sets."""
    if base.settings["seed"] >= UNIT_DATASETS:
        return {}
    start = process_time()
    bounds = np.quantile(base.posterior(1.0)[:, SLOPE], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    level = base.level_of(theta, eta=1.0)
    interval = (float(bounds[0]), float(bounds[1]))
    return {UNIT: Outcome(1.0, level, [interval], "COMPUTED", process_time() - start)}


def _outcome(result: cb.Result, theta: np.ndarray, parameters: Iterable[int], seconds: float) -> Outcome:
    bounds = result.marginal_intervals()
    intervals = [(float(bounds[k, 0]), float(bounds[k, 1])) for k in parameters]
    return Outcome(result.eta, result.level_of(theta), intervals, result.status.name, seconds)


def _require_finished(result: cb.Result) -> cb.Result:
    """Return the result. A calibration turns an interrupt into a partial result; here it ends the study."""
    if result.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    return result
