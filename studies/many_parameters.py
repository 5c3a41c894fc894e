"""Coverage of the calibrated ellipsoid with many parameters: of the true parameter, and on fresh replicates.

Median regression on correlated regressors, with heteroscedastic errors of a t distribution with three degrees of
freedom and 100 observations for each parameter. The data of the first few data sets are also resampled again, to
compare the coverage on replicates that had no part in the calibration with the level.
"""

import math
from collections.abc import Sequence

import numpy as np

import calibayes as cb
from benchmarks.common import Table, machine
from studies.head_to_head.names import OURS
from studies.names import MANY_VALIDATED
from studies.records import ALL, Outcome, Record, proportion_se
from studies.runner import Case

LEVEL, N_PER_PARAMETER, REPLICATES = 0.95, 100, 1000
_CORRELATION = 0.5
"""Correlation of neighbouring regressors."""
TRUTH, FRESH = "true parameter", "fresh replicates"
"""Names of the two coverages in a record. The level of the second is the share of fresh replicates that are covered."""


def cases(datasets: int, sizes: Sequence[int], first: int) -> list[Case]:
    """Return the cases of the study, for every number of parameters."""
    numbers = range(first, first + datasets)
    return [
        Case(f"median, K {dim}", N_PER_PARAMETER * dim, number, OURS, (ALL,)) for dim in sizes for number in numbers
    ]


def draw(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw data whose conditional median has the coefficients one."""
    dim, rng = n // N_PER_PARAMETER, np.random.default_rng([seed, 5])
    x = rng.normal(size=(n, dim))
    for k in range(2, dim):
        x[:, k] = _CORRELATION * x[:, k - 1] + math.sqrt(1 - _CORRELATION**2) * x[:, k]
    x[:, 0] = 1.0
    return x, x.sum(1) + (0.5 + 0.5 * np.abs(x[:, 1])) * rng.standard_t(3, n)


def run_case(case: Case) -> list[Record]:
    """Calibrate on one data set."""
    x, y = draw(case.n, case.dataset)
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    result = cb.calibrate(
        model, (x, y), level=LEVEL, region="ellipsoid", bootstrap=REPLICATES, seed=case.dataset, progress=False
    )
    outcomes = {TRUTH: Outcome(result.eta, result.level_of(np.ones(x.shape[1])), [], result.status.name, math.nan)}
    if case.dataset < MANY_VALIDATED:
        outcomes[FRESH] = Outcome(result.eta, float(result.validate()), [], result.status.name, math.nan)
    return [Record(case.problem, case.n, case.dataset, OURS, outcomes, machine())]


def summarise(records: Sequence[Record]) -> Table:
    """Return both coverages with their standard errors, for every problem."""
    rows = []
    for problem in sorted({record.problem for record in records}, key=lambda name: int(name.split()[-1])):
        members = [record.methods for record in records if record.problem == problem]
        levels = np.array([methods[TRUTH].level for methods in members])
        fresh = np.array([methods[FRESH].level for methods in members if FRESH in methods])
        covered = float(np.mean(levels <= LEVEL))
        failed = sum(methods[TRUTH].status != "CONVERGED" for methods in members)
        etas = [methods[TRUTH].eta for methods in members]
        # Every calibration has the sampling error of its own replicates, and of the fresh ones.
        fresh_error = math.sqrt(2 * LEVEL * (1 - LEVEL) / REPLICATES / max(len(fresh), 1))
        rows.append(
            [
                problem,
                f"{len(members)}",
                f"{100 * covered:.1f} ({100 * proportion_se(covered, len(members)):.1f})",
                f"{100 * fresh.mean():.2f} ({100 * fresh_error:.2f})" if len(fresh) else "",
                f"{len(fresh)}",
                f"{np.median(etas):.3g}",
                f"{failed}",
            ]
        )
    columns = ["problem", "data sets", "coverage of the true parameter, % (SE)", "of fresh replicates, % (SE)"]
    return Table([*columns, "data sets resampled", "median eta", "failed"], rows)
