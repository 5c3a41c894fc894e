"""What gives the paper's eta of 1.1 at N 1,600, and 0.09 for the SVM? Other sets, points, data; and the misprints, run.

A variant differs from the paper's setting, as we read it, in what its name says.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import calibayes as cb
from studies.names import ROWS
from studies.paper import KESTEN, MEDIAN, SVM
from studies.runner import Case, in_regions, lines_of
from studies.store import Line


class Variant(NamedTuple):
    regions: tuple[str, ...]
    options: dict[str, Any] = {}
    """Of `calibrate`."""
    sampler: str = "transport"
    seeds: int | None = None
    """At most so many."""
    data: Callable[[], tuple[np.ndarray, np.ndarray]] | None = None


def _gpc_smc(**changes: Any) -> dict[str, Any]:
    """The paper's algorithm, from eta 1; for the SVM too with 1,000 particles, to have it in a minute."""
    return {"sampler": cb.SMC(n_particles=1000, **changes), "search": KESTEN, "eta_init": 1.0}


_SETS = ("box", "ellipsoid", "hpd", "simultaneous")
_FEW, _SOME = 3, 10

SVM_VARIANTS = {
    "SVM": Variant(_SETS, seeds=_FEW),
    "SVM, minimiser to be covered": Variant(("box",), {"estimate": "minimizer"}, seeds=_FEW),
    "SVM, mode to be covered": Variant(("box",), {"estimate": "mode"}, seeds=_FEW),
    "SVM, Bayesian bootstrap": Variant(("box",), {"bootstrap": cb.bootstrap.Bayesian(ROWS)}, seeds=_FEW),
    "SVM, nine predictors": Variant(("box",), seeds=_FEW, data=lambda: cb.datasets.heart_disease("all")),
    "SVM, predictors not centred": Variant(("box",), seeds=_FEW, data=lambda: cb.datasets.heart_disease(centre=False)),
    "SVM, GPC-SMC with 1,000 particles": Variant(("box",), _gpc_smc(), "smc", _FEW),
    "SVM, GPC-SMC with 1,000 particles, first weights as printed": Variant(
        ("box",), _gpc_smc(initial_weights="density"), "smc", _FEW
    ),
    "SVM, GPC-SMC with 1,000 particles, kernel as printed": Variant(
        ("box",), _gpc_smc(kernel=cb.kernels.RWMH(as_printed=True)), "smc", _FEW
    ),
}
REGRESSION_VARIANTS = {
    "N 1,600": Variant((*_SETS, "intercept", "slope")),
    "N 1,600, minimiser to be covered": Variant(("box",), {"estimate": "minimizer"}),
    "N 1,600, GPC-SMC": Variant(("box",), _gpc_smc(), "smc", _SOME),
    "N 1,600, GPC-SMC, first weights as printed": Variant(("box",), _gpc_smc(initial_weights="density"), "smc", _SOME),
    "N 1,600, GPC-SMC, kernel as printed": Variant(
        ("box",), _gpc_smc(kernel=cb.kernels.RWMH(as_printed=True)), "smc", _SOME
    ),
}


def cases(datasets: int, first: int) -> list[Case]:
    return [
        Case(name, n, number, variant.sampler, variant.regions)
        for variants, n in ((SVM_VARIANTS, 462), (REGRESSION_VARIANTS, 1600))
        for name, variant in variants.items()
        for number in range(first, first + min(datasets, variant.seeds or datasets))
    ]


def work(case: Case) -> list[Line]:
    svm = case.problem in SVM_VARIANTS
    variant = (SVM_VARIANTS if svm else REGRESSION_VARIANTS)[case.problem]
    usual = cb.datasets.heart_disease() if svm else cb.datasets.median_regression(case.n, case.dataset)
    data = usual if variant.data is None else variant.data()
    options: dict[str, Any] = {"bootstrap": ROWS, "seed": case.dataset, "progress": False} | variant.options
    model, truth = (SVM, None) if svm else (MEDIAN, cb.datasets.TRUE_THETA)
    found = in_regions(case, lambda region: cb.calibrate(model, data, region=region, **options))
    return lines_of(case, found, truth)
