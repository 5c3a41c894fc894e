"""Coverage of the calibrated posterior of Cox's partial likelihood, with and without proportional hazards.

Two covariates, a normal one and a treatment; without proportional hazards the treatment has no effect any more after
time one half. The parameter to be covered is the limit of the maximum partial likelihood estimate, which then depends
on the censoring and is computed from a sample of 400,000. The calibrated sets are compared with those of the same
posterior at eta = 1 and with the Wald sets of Lin and Wei (1989).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from statistics import NormalDist
from typing import Any

import numpy as np

import calibayes as cb
from studies.runner import Case, calibrate_regions, to_lines
from studies.store import Line

N = 200
B = 300
REGIONS = ("ellipsoid", "slope")
"""The second parameter is the effect of the treatment."""
_EFFECTS = (0.5, 1.0)
"""Logarithms of the hazard ratios of the covariate and of the treatment, before its effect ends."""
_CENSORING, _END = 0.4, 0.5
"""Rate of the exponential censoring times; time at which the effect of the treatment ends."""
_N_LIMIT = 400_000


def cases(datasets: int, hazards: Sequence[str], first: int) -> list[Case]:
    """Return the cases of the study, data set by data set."""
    return [
        Case(f"{hazard}, Cox", N, number, "transport", REGIONS)
        for number, hazard in product(range(first, first + datasets), hazards)
    ]


def draw(hazard: str, n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw covariates, times and events. The cumulative hazard at the time of an event is a unit exponential."""
    rng = np.random.default_rng([seed, 3])
    x = np.column_stack([rng.normal(size=n), np.arange(n) % 2])
    cumulative = rng.exponential(size=n) / np.exp(_EFFECTS[0] * x[:, 0])
    rate = np.exp(_EFFECTS[1] * x[:, 1])
    time = cumulative / rate
    if hazard == "not proportional":
        time = np.where(time > _END, _END + cumulative - rate * _END, time)
    censored = rng.exponential(1 / _CENSORING, size=n)
    return x, np.minimum(time, censored), (time <= censored) * 1.0


@cache
def truth(hazard: str) -> tuple[float, float]:
    """Return the limit of the maximum partial likelihood estimate."""
    if hazard == "proportional":
        return _EFFECTS
    theta = fit(*draw(hazard, _N_LIMIT, 10**6))[0]
    return float(theta[0]), float(theta[1])


def fit(x: np.ndarray, time: np.ndarray, event: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the maximum partial likelihood estimate without ties, and its robust covariance (Lin and Wei 1989)."""
    order = np.argsort(-time)
    x, event, theta = x[order] - x.mean(0), event[order], np.zeros(x.shape[1])
    for _ in range(20):
        hazard = np.exp(x @ theta)
        total = np.cumsum(hazard)
        means = np.cumsum(hazard[:, None] * x, 0) / total[:, None]
        squares = np.cumsum(hazard[:, None, None] * x[:, :, None] * x[:, None], 0) / total[:, None, None]
        hessian = (event[:, None, None] * (squares - means[:, :, None] * means[:, None])).sum(0)
        step = np.linalg.solve(hessian, (event[:, None] * (x - means)).sum(0))
        theta = theta + step
        if np.abs(step).max() < 1e-10:
            break
    # Sums over the events up to the time of an observation; times decrease.
    increments = event / total
    up_to = np.cumsum(increments[::-1])[::-1]
    weighted = np.cumsum((increments[:, None] * means)[::-1], 0)[::-1]
    scores = event[:, None] * (x - means) - hazard[:, None] * (x * up_to[:, None] - weighted)
    inverse = np.linalg.inv(hessian)
    return theta, inverse @ scores.T @ scores @ inverse


def run_case(case: Case) -> list[Line]:
    """Calibrate, and evaluate the same posterior at eta = 1 and the Wald sets on the same data."""
    hazard = case.problem.removesuffix(", Cox")
    data, theta = draw(hazard, case.n, case.dataset), truth(hazard)
    model = cb.GibbsModel(cb.losses.Cox("breslow"), cb.priors.Normal(scale=10.0))
    options: dict[str, Any] = {"bootstrap": B, "seed": case.dataset, "progress": False, "sampler": "transport"}
    results = calibrate_regions(case, lambda region: cb.calibrate(model, data, region=region, **options))
    wald = wald_levels(data, theta)
    lines = []
    for calibrated in to_lines(case, results, theta):
        level = results[calibrated.region].result.level_of(theta, eta=1.0)
        other = replace(calibrated, iterations=0, converged=True, seconds=math.nan, timing="", note="", machine="")
        unit_eta = replace(other, sampler="eta 1", eta=1.0, eta_se=0.0, truth_level=level)
        sandwich = replace(
            other, sampler="sandwich", eta=math.nan, eta_se=math.nan, truth_level=wald[calibrated.region]
        )
        # The calibrated line comes last: a study that continues takes its presence as a sign that the case is complete.
        lines += [unit_eta, sandwich, calibrated]
    return lines


def wald_levels(data: tuple[np.ndarray, np.ndarray, np.ndarray], theta: tuple[float, float]) -> dict[str, float]:
    """Return the levels at which the robust Wald ellipse and the Wald interval of the treatment reach `theta`."""
    estimate, covariance = fit(*data)
    difference = np.array(theta) - estimate
    distance = difference @ np.linalg.solve(covariance, difference)
    return {
        "ellipsoid": 1 - math.exp(-distance / 2),
        "slope": 2 * NormalDist().cdf(abs(difference[1]) / covariance[1, 1] ** 0.5) - 1,
    }
