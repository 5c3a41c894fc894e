"""Coverage of the methods for the learning rate, with and without the shape of the sandwich covariance.

Median regression and least squares with 50 and 100 observations, homoscedastic and heteroscedastic, and heteroscedastic
least squares with four parameters and 400 observations. All methods are applied to the same bootstrap replicates of a
data set. For least squares the Wald sets from the covariance HC3 of MacKinnon and White (1985), with normal quantiles,
are included.

`python -m studies methods` runs the study; `python -m studies.methods` does so on machines without typer.
"""

import argparse
import math
import os
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from statistics import NormalDist
from typing import Any

import jax
import numpy as np
from scipy import stats

import calibayes as cb
from benchmarks.common import Table, machine
from calibayes.compare import ComparedMethod
from studies import misspecified
from studies.names import METHOD_PROBLEMS, METHOD_SIZES, METHODS_FILE, ONE_THREAD, REPLICATES
from studies.records import ALL, Outcome, Record
from studies.runner import Case

LEVEL = 0.95
METHODS = ("gpc", "gpc-studentized", "matching")
SANDWICH, HC3 = "sandwich, ", "HC3"
"""Prefix of the methods with the shape of the sandwich, and name of the Wald sets."""
WIDE, WIDE_SIZE, WIDE_THETA = METHOD_PROBLEMS[-1], 400, (1.0, 2.0, 0.0, -1.0)
_WIDE_SPREAD = (0.3, 1.5)
"""Standard deviation of the errors at zero of the second column, and its increase with the distance from zero."""


def cases(datasets: int, problems: Sequence[str], sizes: Sequence[int], first: int) -> list[Case]:
    """Return the cases of the study, data set by data set; the wide problem has a size of its own."""
    kinds = [(problem, n) for problem, n in product(problems, sizes) if problem != WIDE]
    kinds += [(WIDE, WIDE_SIZE)] if WIDE in problems else []
    numbers = range(first, first + datasets)
    return [Case(problem, n, number, ALL, (ALL,)) for number, (problem, n) in product(numbers, kinds)]


def draw(problem: str, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw the data of a problem."""
    if problem != WIDE:
        return misspecified.draw(problem.split(", ")[1], n, seed)
    rng = np.random.default_rng([seed, 4])
    x = np.column_stack([np.ones(n), rng.normal(size=(n, 3))])
    return x, x @ WIDE_THETA + rng.normal(size=n) * (_WIDE_SPREAD[0] + _WIDE_SPREAD[1] * np.abs(x[:, 1]))


def truth(problem: str) -> tuple[float, ...]:
    """Return the minimizer of the population risk."""
    return WIDE_THETA if problem == WIDE else cb.datasets.TRUE_THETA


def run_case(case: Case) -> list[Record]:
    """Apply all methods to one data set."""
    data = draw(case.problem, case.n, case.dataset)
    loss = cb.losses.Quantile(0.5) if case.problem.startswith("median") else cb.losses.Squared()
    model = cb.GibbsModel(loss, cb.priors.Normal(scale=100.0))
    options: dict[str, Any] = {
        "region": "ellipsoid" if case.problem == WIDE else "hpd",
        "bootstrap": REPLICATES,
        "seed": case.dataset,
        "progress": False,
    }
    outcomes: dict[str, Outcome] = {}
    for prefix, shape in (("", None), (SANDWICH, "sandwich")):
        try:
            rows = cb.compare(model, data, METHODS, level=LEVEL, shape=shape, **options).rows
        except jax.errors.JaxRuntimeError:
            # For example out of memory.
            raise
        except (ValueError, RuntimeError) as error:
            rows = tuple(ComparedMethod(name, None, None, math.nan, str(error)) for name in METHODS)
        outcomes |= {prefix + row.label: _outcome(row, truth(case.problem)) for row in rows}
    if isinstance(loss, cb.losses.Squared):
        outcomes[HC3] = wald_hc3(*data, truth(case.problem))
    return [Record(case.problem, case.n, case.dataset, outcomes, machine())]


def _outcome(row: ComparedMethod, theta: tuple[float, ...]) -> Outcome:
    if row.result is None or row.intervals is None:
        return Outcome(math.nan, math.inf, [], row.error, row.seconds)
    intervals = [(float(low), float(high)) for low, high in row.intervals.bounds]
    level = row.result.level_of(theta)
    return Outcome(row.result.eta, level, intervals, row.result.status.name, row.seconds)


def wald_hc3(x: np.ndarray, y: np.ndarray, theta: tuple[float, ...]) -> Outcome:
    """Return the Wald sets of least squares with the covariance HC3."""
    bread = np.linalg.inv(x.T @ x)
    fit = bread @ x.T @ y
    scores = x * ((y - x @ fit) / (1 - np.einsum("nk,kj,nj->n", x, bread, x)))[:, None]
    covariance = bread @ scores.T @ scores @ bread
    gap, half = fit - theta, NormalDist().inv_cdf(0.5 + LEVEL / 2) * np.sqrt(np.diag(covariance))
    level = stats.chi2(len(fit)).cdf(gap @ np.linalg.solve(covariance, gap))
    bounds = [(float(low), float(high)) for low, high in zip(fit - half, fit + half, strict=True)]
    return Outcome(math.nan, float(level), bounds, "COMPUTED", 0.0)


def summarise(records: Iterable[Record]) -> Table:
    """Return the coverage of the joint set and of every interval, and the widths relative to plain GPC."""
    groups: dict[tuple[str, int, str], list[Record]] = {}
    for record in records:
        for method in record.methods:
            groups.setdefault((record.problem, record.n, method), []).append(record)
    dim = max((len(truth(problem)) for problem, _, _ in groups), default=0)
    rows, previous = [], ""
    for (problem, n, method), members in sorted(groups.items(), key=lambda item: item[0][:2]):
        theta, outcomes = np.array(truth(problem)), [record.methods[method] for record in members]
        joint = np.mean([outcome.level <= LEVEL for outcome in outcomes])
        pairs = [(record.methods[method].intervals, record.methods["gpc"].intervals) for record in members]
        complete = np.array([pair for pair in pairs if all(pair)]).reshape(-1, 2, len(theta), 2)
        bounds, plain = complete[:, 0], complete[:, 1]
        hits = ((bounds[..., 0] <= theta) & (theta <= bounds[..., 1])).sum(0) / len(members)
        widths = np.ptp(bounds, -1).mean(0) / np.ptp(plain, -1).mean(0) if len(complete) else [np.nan] * len(theta)
        marginal = [f"{100 * hit:.1f} x{width:.2f}" for hit, width in zip(hits, widths, strict=True)]
        title = f"{problem}, N {n}, {len(members)} sets"
        error = 100 * math.sqrt(LEVEL * (1 - LEVEL) / len(members))
        rows += [] if title == previous else [[title, f"(SE {error:.1f})", *[""] * (dim + 2)]]
        previous = title
        n_failed = sum(outcome.status not in ("CONVERGED", "COMPUTED") for outcome in outcomes)
        seconds = f"{np.mean([outcome.seconds for outcome in outcomes]):.1f}"
        cells = [f"  {method}", f"{100 * joint:.1f}", *marginal, *[""] * (dim - len(theta))]
        rows.append([*cells, seconds, f"{n_failed}"])
    columns = ["coverage of 95% sets, and widths relative to gpc", "joint, %", *(f"theta[{k}], %" for k in range(dim))]
    return Table([*columns, "seconds", "failed"], rows)


def main() -> None:
    """Run the study from a command line without typer."""
    from rich.console import Console

    from studies.records import RecordStore
    from studies.runner import run

    os.environ.update(ONE_THREAD)
    parser = argparse.ArgumentParser(prog="python -m studies.methods", description="Coverage of the methods.")
    parser.add_argument("--datasets", type=int, default=2_000)
    parser.add_argument("--problem", action="append", choices=METHOD_PROBLEMS)
    parser.add_argument("--n", type=int, action="append")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results") / METHODS_FILE)
    chosen = parser.parse_args()
    console, store = Console(), RecordStore(chosen.out)
    pending = cases(chosen.datasets, chosen.problem or METHOD_PROBLEMS, chosen.n or METHOD_SIZES, chosen.seed)
    run(pending, run_case, store, console, chosen.processes)
    store.compact()
    console.print(summarise(store.lines).rich())


if __name__ == "__main__":
    # Workers import the functions by the name of this module.
    from studies.methods import main as imported_main

    imported_main()
