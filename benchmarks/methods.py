"""Time of a comparison of methods, relative to generalized posterior calibration alone.

`python -m benchmarks.methods` calibrates data sets of the same size by `method="gpc"`, with its intervals, and compares
the default methods on each, one after the other in one process, so that both see the same load. The first data set is
left out: it compiles. Prints medians and their ratio; the time of each method alone is its row in the comparison.
"""

import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

import calibayes as cb
from benchmarks.common import Table, machine
from calibayes.compare import DEFAULT_METHODS


def least_squares(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw heteroscedastic least squares with four parameters."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(n), rng.normal(size=(n, 3))])
    return x, x.sum(1) + rng.normal(size=n) * (0.5 + np.abs(x[:, 1]))


PROBLEMS: dict[str, tuple[Any, Callable[[int, int], tuple[np.ndarray, np.ndarray]]]] = {
    "median regression, K 2": (cb.losses.Quantile(0.5), cb.datasets.median_regression),
    "least squares, K 4": (cb.losses.Squared(), least_squares),
}


def seconds_of(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the time of a call, and its result."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def measure(problem: str, n: int, datasets: int) -> list[list[str]]:
    """Return the rows of a problem: GPC alone, all methods together, and each method in the comparison."""
    loss, draw = PROBLEMS[problem]
    model = cb.GibbsModel(loss, cb.priors.Normal(scale=100.0))
    alone, together, rows = list[float](), list[float](), {method: list[float]() for method in DEFAULT_METHODS}
    for seed in range(datasets + 1):
        data = draw(n, seed)
        options: dict[str, Any] = {"seed": seed, "progress": False}
        gpc, _ = seconds_of(lambda: cb.calibrate(model, data, **options).intervals())  # noqa: B023
        both, comparison = seconds_of(lambda: cb.compare(model, data, **options))  # noqa: B023
        if seed:
            alone.append(gpc)
            together.append(both)
            for row in comparison.rows:
                rows[row.label].append(row.seconds)
    ratio = median(b / a for a, b in zip(alone, together, strict=True))
    title = f"{problem}, N {n}"
    cells = [
        [title, "gpc alone", f"{median(alone):.2f}", "1.0"],
        ["", "all methods", f"{median(together):.2f}", f"{ratio:.2f}"],
    ]
    return cells + [["", f"  {method}", f"{median(times):.2f}", ""] for method, times in rows.items()]


def main(
    datasets: Annotated[int, typer.Option(help="Number of data sets.", min=1)] = 5,
    n: Annotated[int, typer.Option("--n", help="Number of observations.", min=20)] = 100,
) -> None:
    """Time of all default methods together, relative to GPC alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cb.CalibrationWarning)
        rows = [row for problem in PROBLEMS for row in measure(problem, n, datasets)]
    console = Console()
    console.print(Table(["problem", "method", "seconds (median)", "ratio (median)"], rows).rich())
    console.print(machine())


if __name__ == "__main__":
    typer.run(main)
