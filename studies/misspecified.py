"""Coverage of the calibrated posterior when the model is misspecified.

Linear regression with four error distributions and three losses; the pair of normal errors and squared loss is
correctly specified and serves as a control. The parameter to be covered is the minimiser of the population risk. The
errors are independent of x, or symmetric given x, so it is the line `y = 2 + a + x` with a = 0 for symmetric errors and
otherwise the root of the expected score, computed by quadrature.

The calibrated sets are compared with those of the same posterior at eta = 1 and with Wald sets from the sandwich
covariance (`calibayes._core.sandwich`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np

import calibayes as cb
from calibayes._core.sandwich import influences
from calibayes.samplers.transport.sampler import TransportState
from studies.names import REPLICATES
from studies.runner import Case, calibrate_regions, to_lines
from studies.store import Line

N = 400
HUBER_DELTA = 1.345
REGIONS = ("ellipsoid", "slope")
LOSSES = {"quantile": cb.losses.Quantile(0.5), "huber": cb.losses.Huber(HUBER_DELTA), "squared": cb.losses.Squared()}
SCORES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "quantile": np.sign,
    "huber": lambda e: np.clip(e, -HUBER_DELTA, HUBER_DELTA),
    "squared": lambda e: e,
}
"""Derivatives of the losses, up to a factor."""
_CONTAMINATION, _SHIFT = 0.1, 5.0
"""Share of contaminated errors, and their mean."""


def cases(datasets: int, errors: Sequence[str], losses: Sequence[str], first: int) -> list[Case]:
    """Return the cases of the study, data set by data set."""
    numbers = range(first, first + datasets)
    return [
        Case(f"{error}, {loss}", N, number, "transport", REGIONS)
        for number, error, loss in product(numbers, errors, losses)
    ]


def draw(error: str, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw the regressor of the paper with errors of another distribution."""
    rng = np.random.default_rng([seed, 2])
    x = rng.chisquare(4, n) - 2
    e = rng.normal(size=n)
    if error == "heteroscedastic":
        e = e * (0.5 + 0.5 * np.abs(x))
    elif error == "t3":
        e = rng.standard_t(3, n)
    elif error == "contaminated":
        e = np.where(rng.uniform(size=n) < _CONTAMINATION, _SHIFT + e, e)
    return np.column_stack([np.ones(n), x]), 2 + x + e


@cache
def truth(error: str, loss: str) -> tuple[float, float]:
    """Return the minimiser of the population risk."""
    if error != "contaminated":
        return cb.datasets.TRUE_THETA
    e = np.linspace(-8, 8 + _SHIFT, 200_001)
    density = (1 - _CONTAMINATION) * np.exp(-0.5 * e**2) + _CONTAMINATION * np.exp(-0.5 * (e - _SHIFT) ** 2)
    low, high = 0.0, _SHIFT
    while high - low > 1e-8:
        middle = (low + high) / 2
        low, high = (middle, high) if SCORES[loss](e - middle) @ density > 0 else (low, middle)
    return 2 + low, 1.0


def run_case(case: Case) -> list[Line]:
    """Calibrate, and evaluate the same posterior at eta = 1 and the Wald sets on the same data."""
    error, loss = case.problem.split(", ")
    data, theta = draw(error, case.n, case.dataset), truth(error, loss)
    model = cb.GibbsModel(LOSSES[loss], cb.priors.Normal(scale=100.0))
    options: dict[str, Any] = {"bootstrap": REPLICATES, "seed": case.dataset, "progress": False}
    results = calibrate_regions(case, lambda region: cb.calibrate(model, data, region=region, **options))
    wald = _wald_levels(results[case.regions[0]].result, theta)
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


def _wald_levels(result: cb.Result, theta: tuple[float, float]) -> dict[str, float]:
    """Return the levels at which the Wald ellipse and the Wald interval of the slope reach `theta`.

    The sandwich covariance is computed from the draws of the posterior on the data.
    """
    calibration = result.calibration
    assert calibration is not None
    state = calibration.iterate.state
    assert isinstance(state, TransportState)
    pool = state.pool
    values = influences(calibration.problem.target, pool.particles, pool.eta).values
    observed = np.asarray(values, np.float64)
    covariance = observed @ observed.T
    difference = np.array(theta) - np.asarray(pool.particles.theta, np.float64).mean((1, 2))
    distance = difference @ np.linalg.solve(covariance, difference)
    return {
        "ellipsoid": 1 - math.exp(-distance / 2),
        "slope": math.erf(abs(difference[1]) / math.sqrt(2 * covariance[1, 1])),
    }
