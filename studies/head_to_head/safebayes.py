"""SafeBayes by calibayes, by the R package of de Heide, and by the conjugate posterior.

The model is a ridge regression with known variance of the errors, for which the package has I-square-SafeBayes: the
squared error of the prediction at the posterior mean. It is I-log-SafeBayes with the squared loss, up to a factor. The
first problem is the example of the package's documentation, the second has the data of Grünwald and van Ommen (2017):
half of the observations lie at zero, without error.

`python -m studies.head_to_head.safebayes` runs all three and stores the sums. The package is on CRAN; R_LIBS names the
library in which it is installed.
"""

import argparse
import csv
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Table, write_json

FILE = "safebayes.json"
ETAS = (1.0, 0.5, 0.25)
"""Learning rates of the example of the package."""
FIRST = 2
"""Number of observations before the first prediction of the package."""
INTERCEPT_SCALE = 100.0
SCRIPT = Path(__file__).with_suffix(".R")


def documentation_example(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw the data of the package's example, in units of the standard deviation of the errors."""
    rng = np.random.default_rng([seed, 28])
    return rng.uniform(-1, 1, 10), rng.normal(size=10)


def half_at_zero(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw data half of which lie at zero without error."""
    rng = np.random.default_rng([seed, 29])
    x, e = rng.normal(size=(2, 30))
    is_ordinary = rng.uniform(size=30) < 0.5
    # The package fails if x is constant among the first observations.
    is_ordinary[:FIRST] = True
    return x * is_ordinary, (0.3 * x + e) * is_ordinary


PROBLEMS: dict[str, tuple[Callable[[int], tuple[np.ndarray, np.ndarray]], float]] = {
    "example of the package": (documentation_example, 16.0),
    "half of the data at zero": (half_at_zero, 1.0),
}
"""Data, and prior variance of the slope, by the name of the problem."""


def conjugate_sums(x: np.ndarray, y: np.ndarray, variance: float) -> np.ndarray:
    """Return the sums of the squared errors of prediction, by the closed form of the posterior mean."""
    design, precision = np.column_stack([np.ones(len(x)), x]), np.diag([INTERCEPT_SCALE**-2, 1 / variance])
    sums = []
    for eta in ETAS:
        errors = []
        for i in range(FIRST, len(y)):
            before = design[:i]
            mean = np.linalg.solve(eta * before.T @ before + precision, eta * before.T @ y[:i])
            errors.append((y[i] - design[i] @ mean) ** 2)
        sums.append(sum(errors))
    return np.array(sums)


def our_sums(x: np.ndarray, y: np.ndarray, variance: float, seed: int) -> np.ndarray:
    """Return the sums by calibayes, from the same first prediction."""
    import jax

    import calibayes as cb
    from calibayes.methods.safe_bayes import _predictive_losses

    prior = cb.priors.Normal(scale=np.array([INTERCEPT_SCALE, variance**0.5]))
    design = np.column_stack([np.ones(len(x)), x])
    model = cb.GibbsModel(cb.losses.Squared(), prior)
    result = cb.calibrate(model, (design, y), sampler="transport", bootstrap=50, seed=seed, progress=False)
    assert result.calibration is not None
    lengths, etas = np.arange(FIRST, len(y)), sorted(ETAS)
    losses = _predictive_losses(jax.random.key(seed), result.calibration.draws.target, lengths, tuple(etas), True)
    sums = 2 * losses.mean(0) * len(lengths) / len(y)
    return np.array([sums[etas.index(eta)] for eta in ETAS])


def package_sums(datasets: dict[int, tuple[np.ndarray, np.ndarray]], variance: float) -> tuple[dict[int, Any], str]:
    """Return the sums by the R package, and its version."""
    with tempfile.TemporaryDirectory() as folder:
        data, results = Path(folder) / "data.csv", Path(folder) / "results.csv"
        with data.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["set", "x", "y"])
            for number, (x, y) in datasets.items():
                writer.writerows(zip([number] * len(y), x.tolist(), y.tolist(), strict=True))
        arguments = [data, ",".join(map(str, ETAS)), variance, results]
        subprocess.run(["Rscript", SCRIPT, *map(str, arguments)], check=True)
        sums: dict[int, list[float]] = {}
        with results.open(newline="") as file:
            for row in csv.DictReader(file):
                sums.setdefault(int(row["set"]), []).append(float(row["sum"]))
                package = row["version"]
    return sums, package


def main() -> None:
    """Run the comparison from the command line."""
    parser = argparse.ArgumentParser(prog="python -m studies.head_to_head.safebayes", description="SafeBayes.")
    parser.add_argument("--datasets", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("results") / FILE)
    chosen = parser.parse_args()
    if shutil.which("Rscript") is None:
        sys.exit(
            "Rscript not found: SafeBayes is not compared. apt-get install r-base-core, and install SafeBayes in it."
        )
    problems: dict[str, Any] = {}
    for name, (draw, variance) in PROBLEMS.items():
        datasets = {seed: draw(seed) for seed in range(chosen.datasets)}
        package, version = package_sums(datasets, variance)
        problems[name] = {
            "package": [package[seed] for seed in datasets],
            "calibayes": [our_sums(*data, variance, seed).tolist() for seed, data in datasets.items()],
            "conjugate": [conjugate_sums(*data, variance).tolist() for data in datasets.values()],
        }
        write_json(chosen.out, {"version": version, "etas": ETAS, "problems": problems})


def section(results: Path) -> str:
    """Return the section of the page; empty if there are no results."""
    path = results / FILE
    if not path.exists():
        return ""
    content = json.loads(path.read_text())
    rows = []
    for name, sums in content["problems"].items():
        exact = np.array(sums["conjugate"])
        for program in ("package", "calibayes"):
            values = np.array(sums[program])
            gaps = np.abs((values[:, 1:] - values[:, :1]) - (exact[:, 1:] - exact[:, :1]))
            same = int((values.argmin(1) == exact.argmin(1)).sum())
            spread = np.abs(exact[:, 1:] - exact[:, :1]).mean()
            label = f"R package {content['version']}" if program == "package" else "calibayes"
            rows.append([name, label, f"{len(values)}", f"{same}", f"{gaps.mean():.3f}", f"{spread:.3f}"])
    columns = ["problem", "program", "data sets", "same eta as the closed form", "mean error of S(eta) - S(1)"]
    table = Table([*columns, "mean of |S(eta) - S(1)|"], rows)
    etas = ", ".join(f"{eta:g}" for eta in content["etas"])
    return f"""## SafeBayes

`cb.methods.SafeBayes("I-log")` and the R package SafeBayes of de Heide, against the closed form of a ridge regression
with known variance (`python -m studies.head_to_head.safebayes`): S is the sum of the squared errors of prediction,
which the learning rate, one of {etas}, minimizes. The errors of both programs are Monte Carlo errors. The package does
not temper the intercept, which does not affect posterior means. Its R-square variant leaves out the posterior variance
of the intercept, so that it is not comparable with `"R-log"`. The model averaging of Grünwald and van Ommen (2017) is
outside the scope of calibayes.

{table.markdown()}"""


if __name__ == "__main__":
    main()
