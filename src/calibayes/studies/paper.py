"""The paper's two applications, as cases: median regression over datasets (table 1, figure 4), the SVM over seeds
(figure 5). All methods see the same bootstrap rows of a dataset.
"""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

import calibayes as cb
from calibayes.regions import Region
from calibayes.studies.names import DRAWS, HEART_DISEASE, MEDIAN_REGRESSION, PARTICLES, REGIONS, ROWS
from calibayes.studies.runner import Case, in_regions, lines_of
from calibayes.studies.store import Line

MEDIAN = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
SVM = cb.GibbsModel(cb.losses.Hinge(), cb.priors.Laplace(scale=10.0))
KESTEN = cb.RobbinsMonro("kesten", refine=False)
"""The paper's search as it is: it stops at the first coverage within its tolerance."""


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
    return lines_of(case, in_regions(case, _method(case, model, data)), truth)


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
    return lambda region: cb.calibrate(model, data, region=region, **common)
