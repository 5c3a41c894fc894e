"""Compare `eta_se` with the standard deviation of eta over seeds, on the same data.

    python -m benchmarks.eta_se [--seeds 50]

Each seed draws its own bootstrap replicates and particles. The reported standard error should match the standard
deviation of eta over seeds.
"""

import argparse
import time
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import calibayes as cb

MEDIAN = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
SVM = cb.GibbsModel(cb.losses.Hinge(), cb.priors.Laplace(scale=10.0))
PROBLEMS: dict[str, tuple[cb.GibbsModel, Any, str]] = {
    "median regression N 100, hpd": (MEDIAN, cb.datasets.median_regression(100, seed=0), "hpd"),
    "median regression N 100, box": (MEDIAN, cb.datasets.median_regression(100, seed=0), "box"),
    "median regression N 400, ellipsoid": (MEDIAN, cb.datasets.median_regression(400, seed=0), "ellipsoid"),
    "heart disease SVM, box": (SVM, cb.datasets.heart_disease(), "box"),
}


def _calibrate(model: cb.GibbsModel, data: Any, region: str, sampler: str, seed: int) -> tuple[float, float, float]:
    """Return eta, its standard error and the coverage on fresh replicates."""
    result = cb.calibrate(model, data, region=region, sampler=sampler, seed=seed, progress=False)
    assert result.converged, result.message
    return result.eta, result.eta_se, float(result.validate())


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=50, help="number of seeds per problem")
    parser.add_argument("--sampler", default="auto", choices=["auto", "transport"])
    options = parser.parse_args()
    table = Table("problem", "mean eta", "SD over seeds", "median eta_se", "ratio", "fresh coverage", "seconds each")
    for name, (model, data, region) in PROBLEMS.items():
        start = time.perf_counter()
        results = [_calibrate(model, data, region, options.sampler, seed) for seed in range(options.seeds)]
        seconds = (time.perf_counter() - start) / options.seeds
        etas, errors, coverages = np.array(results).T
        sd = etas.std(ddof=1)
        numbers = (etas.mean(), sd, np.median(errors), np.median(errors) / sd, coverages.mean(), seconds)
        table.add_row(name, *(f"{number:.3g}" for number in numbers))
    Console().print(table)


if __name__ == "__main__":
    main()
