"""Variants that might explain the paper's eta of 1.1 at N 1,600, and of 0.09 for the SVM.

The paper does not state its credible region. Each variant differs from our reading of the paper in the way that its
name states: another region, another point estimate, other data, or a misprinted formula taken literally.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import calibayes as cb
from studies.names import REPLICATES
from studies.paper import KESTEN, MEDIAN, SVM
from studies.runner import Case, calibrate_regions, to_lines
from studies.store import Line


class Variant(NamedTuple):
    """A setting to try."""

    regions: tuple[str, ...]
    options: dict[str, Any] = {}
    """Arguments of `calibrate`."""
    sampler: str = "transport"
    max_seeds: int | None = None
    data: Callable[[], tuple[np.ndarray, np.ndarray]] | None = None


def _gpc_smc(**changes: Any) -> dict[str, Any]:
    """Return the algorithm of the paper, from eta 1; with 1,000 particles for the SVM, too, to save time."""
    return {"sampler": cb.SMC(n_particles=1000, **changes), "search": KESTEN, "eta_init": 1.0}


_REGIONS = ("box", "ellipsoid", "hpd", "simultaneous")
_SVM_SEEDS, _SMC_SEEDS = 3, 10

SVM_VARIANTS = {
    "SVM": Variant(_REGIONS, max_seeds=_SVM_SEEDS),
    "SVM, minimiser to be covered": Variant(("box",), {"estimate": "minimizer"}, max_seeds=_SVM_SEEDS),
    "SVM, mode to be covered": Variant(("box",), {"estimate": "mode"}, max_seeds=_SVM_SEEDS),
    "SVM, Bayesian bootstrap": Variant(
        ("box",), {"bootstrap": cb.bootstrap.Bayesian(REPLICATES)}, max_seeds=_SVM_SEEDS
    ),
    "SVM, nine predictors": Variant(("box",), max_seeds=_SVM_SEEDS, data=lambda: cb.datasets.heart_disease("all")),
    "SVM, predictors not centred": Variant(
        ("box",), max_seeds=_SVM_SEEDS, data=lambda: cb.datasets.heart_disease(centre=False)
    ),
    "SVM, GPC-SMC with 1,000 particles": Variant(("box",), _gpc_smc(), "smc", _SVM_SEEDS),
    "SVM, GPC-SMC with 1,000 particles, first weights as printed": Variant(
        ("box",), _gpc_smc(initial_weights="density"), "smc", _SVM_SEEDS
    ),
    "SVM, GPC-SMC with 1,000 particles, kernel as printed": Variant(
        ("box",), _gpc_smc(kernel=cb.kernels.RWMH(as_printed=True)), "smc", _SVM_SEEDS
    ),
}
REGRESSION_VARIANTS = {
    "N 1,600": Variant((*_REGIONS, "intercept", "slope")),
    "N 1,600, minimiser to be covered": Variant(("box",), {"estimate": "minimizer"}),
    "N 1,600, GPC-SMC": Variant(("box",), _gpc_smc(), "smc", _SMC_SEEDS),
    "N 1,600, GPC-SMC, first weights as printed": Variant(
        ("box",), _gpc_smc(initial_weights="density"), "smc", _SMC_SEEDS
    ),
    "N 1,600, GPC-SMC, kernel as printed": Variant(
        ("box",), _gpc_smc(kernel=cb.kernels.RWMH(as_printed=True)), "smc", _SMC_SEEDS
    ),
}


def cases(datasets: int, first: int) -> list[Case]:
    """Return the cases of all variants."""
    return [
        Case(name, n, number, variant.sampler, variant.regions)
        for variants, n in ((SVM_VARIANTS, 462), (REGRESSION_VARIANTS, 1600))
        for name, variant in variants.items()
        for number in range(first, first + min(datasets, variant.max_seeds or datasets))
    ]


def run_case(case: Case) -> list[Line]:
    """Calibrate a variant on one data set."""
    svm = case.problem in SVM_VARIANTS
    variant = (SVM_VARIANTS if svm else REGRESSION_VARIANTS)[case.problem]
    if variant.data is not None:
        data = variant.data()
    else:
        data = cb.datasets.heart_disease() if svm else cb.datasets.median_regression(case.n, case.dataset)
    options: dict[str, Any] = {"bootstrap": REPLICATES, "seed": case.dataset, "progress": False} | variant.options
    model, truth = (SVM, None) if svm else (MEDIAN, cb.datasets.TRUE_THETA)
    calibrated = calibrate_regions(case, lambda region: cb.calibrate(model, data, region=region, **options))
    return to_lines(case, calibrated, truth)
