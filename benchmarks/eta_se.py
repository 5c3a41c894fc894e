"""Is `eta_se` the error of eta? The calibration repeated over seeds, on the same data.

    python -m benchmarks.eta_se [--seeds 50]

Each seed draws its own bootstrap rows and its own particles; nothing else changes. What eta varies by over seeds is
what its standard error should say.
"""

import argparse
import time

import numpy as np
from rich.console import Console
from rich.table import Table

import calibayes as cb

MEDIAN = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
SVM = cb.GibbsModel(cb.losses.Hinge(), cb.priors.Laplace(scale=10.0))
PROBLEMS = {
    "median regression N 100, hpd": (MEDIAN, cb.datasets.median_regression(100, seed=0), "hpd"),
    "median regression N 100, box": (MEDIAN, cb.datasets.median_regression(100, seed=0), "box"),
    "median regression N 400, ellipsoid": (MEDIAN, cb.datasets.median_regression(400, seed=0), "ellipsoid"),
    "heart disease SVM, box": (SVM, cb.datasets.heart_disease(), "box"),
}


def _once(model, data, region, sampler, seed):
    result = cb.calibrate(model, data, region=region, sampler=sampler, seed=seed, progress=False)
    assert result.converged, result.message
    return result.eta, result.eta_se, float(result.validate())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--sampler", default="auto", choices=["auto", "transport"])
    options = parser.parse_args()
    console = Console()
    table = Table("problem", "mean eta", "sd over seeds", "median eta_se", "ratio", "fresh coverage", "seconds each")
    for name, (model, data, region) in PROBLEMS.items():
        began = time.perf_counter()
        figures = [_once(model, data, region, options.sampler, seed) for seed in range(options.seeds)]
        seconds = (time.perf_counter() - began) / options.seeds
        etas, errors, fresh = np.array(figures).T
        ratio = np.median(errors) / etas.std(ddof=1)
        display = (etas.mean(), etas.std(ddof=1), np.median(errors), ratio, fresh.mean(), seconds)
        table.add_row(name, *(f"{figure:.3g}" for figure in display))
    console.print(table)


if __name__ == "__main__":
    main()
