"""The paper's two applications, as cases: median regression over datasets (table 1, figure 4), the SVM over seeds
(figure 5). All methods see the same bootstrap rows of a dataset.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

import calibayes as cb
from calibayes.regions import Region
from studies.names import DRAWS, HEART_DISEASE, KNOWN, MEDIAN_REGRESSION, PARTICLES, REGIONS, ROWS
from studies.runner import Case, in_regions, lines_of
from studies.store import Line

MEDIAN = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
SVM = cb.GibbsModel(cb.losses.Hinge(), cb.priors.Laplace(scale=10.0))
KESTEN = cb.RobbinsMonro("kesten", refine=False)
"""The paper's search as it is: it stops at the first coverage within its tolerance."""
_FEW_ROWS = 50


def table1_cases(
    datasets: int, sizes: Sequence[int], samplers: Sequence[str], regions: Sequence[str], first: int
) -> list[Case]:
    """Dataset by dataset, so that a study that was stopped has some of everything."""
    ordered = tuple(region for region in REGIONS if region in regions)
    numbers = range(first, first + datasets)
    return [
        Case(MEDIAN_REGRESSION, n, number, sampler, ordered) for number, sampler, n in product(numbers, samplers, sizes)
    ]


def figure5_cases(datasets: int, samplers: Sequence[str], first: int) -> list[Case]:
    numbers = range(first, first + datasets)
    return [Case(HEART_DISEASE, 462, number, sampler, ("box",)) for number, sampler in product(numbers, samplers)]


def work(case: Case) -> list[Line]:
    """A case of either application."""
    regression = case.problem == MEDIAN_REGRESSION
    model = MEDIAN if regression else SVM
    data = cb.datasets.median_regression(case.n, case.dataset) if regression else cb.datasets.heart_disease()
    truth = cb.datasets.TRUE_THETA if regression else None
    found = in_regions(case, _method(case, model, data))
    lines = lines_of(case, found, truth)
    return lines if case.sampler != KNOWN else [_asked(line, found[line.region].result) for line in lines]


def _asked(line: Line, result: cb.Result) -> Line:
    """The largest eta at which the set on the data holds the truth, of those between 0.1 and 10."""
    low, high = math.log(0.1), math.log(10.0)
    for _ in range(10):
        middle = (low + high) / 2
        holds = result.level_of(cb.datasets.TRUE_THETA, math.exp(middle)) <= 0.95
        low, high = (middle, high) if holds else (low, middle)
    return replace(
        line, eta=math.exp(low), eta_se=math.nan, truth=0.95, iterations=0, seconds=math.nan, how="", note=""
    )


def _method(case: Case, model: cb.GibbsModel, data: tuple[np.ndarray, np.ndarray]) -> Callable[[Region], cb.Result]:
    """A method with the paper's settings, on the dataset's bootstrap rows."""
    n = len(data[1])
    # Rows of their own for every dataset, and not the random numbers that the data came from.
    counts = np.random.default_rng([case.dataset, 1]).multinomial(n, np.full(n, 1 / n), size=ROWS)
    common: dict[str, Any] = {"bootstrap": counts, "seed": case.dataset, "progress": False}
    if case.sampler == "smc":
        size = PARTICLES[case.problem]
        return lambda region: cb.gpc_smc(model, data, region=region, n_particles=size, search=KESTEN, **common)
    if case.sampler == "mcmc":
        kernel = cb.kernels.PolsonScott() if case.problem == HEART_DISEASE else cb.kernels.RAM()
        options = common | {"n_draws": DRAWS, "kernel": kernel, "search": KESTEN}
        return lambda region: cb.gpc_mcmc(model, data, region=region, **options)
    if case.sampler == KNOWN:
        # The data's own posterior is all that is wanted of it.
        common["bootstrap"] = _FEW_ROWS
    return lambda region: cb.calibrate(model, data, region=region, **common)
