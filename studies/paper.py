"""The two applications of the paper: median regression over data sets (table 1, figure 4) and the SVM (figure 5).

Tanaka (arXiv 2404.16528), sections 3.1 and 3.2. All methods use the same bootstrap counts of a data set.
"""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

import calibayes as cb
from calibayes.regions import Region
from studies.names import DRAWS, HEART_DISEASE, MEDIAN_REGRESSION, PARTICLES, REGIONS, REPLICATES
from studies.runner import Case, calibrate_regions, to_lines
from studies.store import Line

MEDIAN = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
SVM = cb.GibbsModel(cb.losses.Hinge(), cb.priors.Laplace(scale=10.0))
KESTEN = cb.RobbinsMonro("kesten", interpolate=False)
"""The search of the paper without refinement: it stops at the first coverage within its tolerance."""


def table1_cases(
    datasets: int, sizes: Sequence[int], samplers: Sequence[str], regions: Sequence[str], first: int
) -> list[Case]:
    """Return the cases of table 1, data set by data set, so that an interrupted study has some of every kind."""
    ordered = tuple(region for region in REGIONS if region in regions)
    numbers = range(first, first + datasets)
    return [
        Case(MEDIAN_REGRESSION, n, number, sampler, ordered) for number, sampler, n in product(numbers, samplers, sizes)
    ]


def figure5_cases(datasets: int, samplers: Sequence[str], first: int) -> list[Case]:
    """Return the cases of figure 5, one per seed and sampler."""
    numbers = range(first, first + datasets)
    return [Case(HEART_DISEASE, 462, number, sampler, ("box",)) for number, sampler in product(numbers, samplers)]


def run_case(case: Case) -> list[Line]:
    """Run a case of either application."""
    regression = case.problem == MEDIAN_REGRESSION
    model = MEDIAN if regression else SVM
    data = cb.datasets.median_regression(case.n, case.dataset) if regression else cb.datasets.heart_disease()
    truth = cb.datasets.TRUE_THETA if regression else None
    calibrated = calibrate_regions(case, _method(case, model, data))
    return to_lines(case, calibrated, truth)


def _method(case: Case, model: cb.GibbsModel, data: tuple[np.ndarray, np.ndarray]) -> Callable[[Region], cb.Result]:
    """Return a calibration with the settings of the paper, on the bootstrap counts of the data set."""
    n = len(data[1])
    # A random stream of its own, so that counts and data are independent.
    counts = np.random.default_rng([case.dataset, 1]).multinomial(n, np.full(n, 1 / n), size=REPLICATES)
    options: dict[str, Any] = {"bootstrap": counts, "seed": case.dataset, "progress": False}
    if case.sampler == "smc":
        size = PARTICLES[case.problem]
        return lambda region: cb.gpc_smc(model, data, region=region, n_particles=size, search=KESTEN, **options)
    if case.sampler == "mcmc":
        kernel = cb.kernels.PolsonScott() if case.problem == HEART_DISEASE else cb.kernels.RAM()
        options |= {"n_draws": DRAWS, "kernel": kernel, "search": KESTEN}
        return lambda region: cb.gpc_mcmc(model, data, region=region, **options)
    return lambda region: cb.calibrate(model, data, region=region, **options)
