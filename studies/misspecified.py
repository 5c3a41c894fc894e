"""Does the calibrated posterior cover when the model is really wrong?

Linear regression with four kinds of errors and three losses, one pair of which (normal, squared) is the model that is
right, as a control. What is to be covered is the
minimiser of the population risk: the errors are independent of x or symmetric given x, so it is the line
`y = 2 + a + x`, with a = 0 under symmetric errors and otherwise the root of the expected score, by quadrature.
Against it: the same posterior at eta = 1, and Wald sets by the sandwich (`calibayes._core.sandwich`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np

import calibayes as cb
from calibayes._backend.functions import as_float
from calibayes._core.sandwich import influences
from studies.names import ROWS
from studies.runner import Case, in_regions, lines_of
from studies.store import Line

N = 400
HUBER = 1.345
REGIONS = ("ellipsoid", "slope")
MODELS = {"quantile": cb.losses.Quantile(0.5), "huber": cb.losses.Huber(HUBER), "squared": cb.losses.Squared()}
SCORES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "quantile": np.sign,
    "huber": lambda e: np.clip(e, -HUBER, HUBER),
    "squared": lambda e: e,
}
"""The losses' derivatives, up to a factor."""
_SHARE, _FAR = 0.1, 5.0


def cases(datasets: int, errors: Sequence[str], losses: Sequence[str], first: int) -> list[Case]:
    numbers = range(first, first + datasets)
    return [
        Case(f"{error}, {loss}", N, number, "transport", REGIONS)
        for number, error, loss in product(numbers, errors, losses)
    ]


def draw(error: str, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The paper's regressor with other errors."""
    rng = np.random.default_rng([seed, 2])
    x = rng.chisquare(4, n) - 2
    e = rng.normal(size=n)
    if error == "heteroscedastic":
        e = e * (0.5 + 0.5 * np.abs(x))
    elif error == "t3":
        e = rng.standard_t(3, n)
    elif error == "contaminated":
        e = np.where(rng.uniform(size=n) < _SHARE, _FAR + e, e)
    return np.column_stack([np.ones(n), x]), 2 + x + e


@cache
def truth(error: str, loss: str) -> tuple[float, float]:
    """The minimiser of the population risk."""
    if error != "contaminated":
        return cb.datasets.TRUE_THETA
    e = np.linspace(-8, 8 + _FAR, 200_001)
    density = (1 - _SHARE) * np.exp(-0.5 * e**2) + _SHARE * np.exp(-0.5 * (e - _FAR) ** 2)
    low, high = 0.0, _FAR
    while high - low > 1e-8:
        middle = (low + high) / 2
        low, high = (middle, high) if SCORES[loss](e - middle) @ density > 0 else (low, middle)
    return 2 + low, 1.0


def work(case: Case) -> list[Line]:
    error, loss = case.problem.split(", ")
    data, theta = draw(error, case.n, case.dataset), truth(error, loss)
    model = cb.GibbsModel(MODELS[loss], cb.priors.Normal(scale=100.0))
    options: dict[str, Any] = {"bootstrap": ROWS, "seed": case.dataset, "progress": False}
    found = in_regions(case, lambda region: cb.calibrate(model, data, region=region, **options))
    wald = _wald_levels(found[case.regions[0]].result, theta)
    lines = []
    for calibrated in lines_of(case, found, theta):
        at_one = found[calibrated.region].result.level_of(theta, eta=1.0)
        beside = replace(calibrated, iterations=0, converged=True, seconds=math.nan, how="", note="", machine="")
        plain = replace(beside, sampler="eta 1", eta=1.0, eta_se=0.0, truth=at_one)
        sandwich = replace(beside, sampler="sandwich", eta=math.nan, eta_se=math.nan, truth=wald[calibrated.region])
        # The one whose presence says that the case is done comes last.
        lines += [plain, sandwich, calibrated]
    return lines


def _wald_levels(result: cb.Result, theta: tuple[float, float]) -> dict[str, float]:
    """The level at which Wald's ellipse, and the slope's interval, by the sandwich from the draws, reach theta."""
    loop, pool = result.calibration.loop, result.calibration.found.state.pool
    of_each = np.asarray(
        influences(loop.target, pool.particles, as_float(np.full(pool.particles.risk.shape[0], pool.eta))), np.float64
    )
    covariance = of_each @ of_each.T
    away = np.array(theta) - np.asarray(pool.particles.theta, np.float64).mean((1, 2))
    distance = away @ np.linalg.solve(covariance, away)
    return {"ellipsoid": 1 - math.exp(-distance / 2), "slope": math.erf(abs(away[1]) / math.sqrt(2 * covariance[1, 1]))}
