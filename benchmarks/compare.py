"""Compare the speed of two versions of the library, measured in turns in one run.

    python -m benchmarks.compare path/to/old/src [path/to/new/src]

Each version runs in its own process, which is driven over its standard input. The two take turns, so that both meet the
same machine, and the times are those of calibrations without compilation. The ratio is old to new: 2 means that the new
version takes half of the time. The new version is by default that of this repository.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from benchmarks.common import ROOT, Table, write_json

PROBLEMS = (
    "median regression, N 100, K 2, B 2,000",
    "heart disease SVM, N 462, K 8, B 500",
    "logistic regression, N 500, K 20, B 500",
)
_WORKER = """
import json, sys, time, warnings
import numpy as np
import calibayes as cb

warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
x = np.column_stack([np.ones(500), rng.normal(size=(500, 19))])
y = np.where(rng.uniform(size=500) < 1 / (1 + np.exp(-x @ rng.normal(size=20) / 2)), 1.0, -1.0)
problems = [
    (cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0)), cb.datasets.median_regression(100), {}),
    (cb.GibbsModel(cb.losses.Hinge(), cb.priors.Laplace(scale=10.0)), cb.datasets.heart_disease(), {"bootstrap": 500}),
    (cb.GibbsModel(cb.losses.Logistic(), cb.priors.Normal(scale=10.0)), (x, y), {"bootstrap": 500}),
]
print(json.dumps(cb.__file__), flush=True)
for line in sys.stdin:
    problem, seed = json.loads(line)
    model, data, options = problems[problem]
    start = time.perf_counter()
    result = cb.calibrate(model, data, seed=seed, progress=False, **options)
    print(json.dumps([time.perf_counter() - start, float(result.eta)]), flush=True)
"""


class Timing(NamedTuple):
    """Seconds and learning rate of one calibration."""

    seconds: float
    eta: float


class Version:
    """A process that calibrates with the library in a source tree."""

    def __init__(self, source: Path):
        environment = os.environ | {"PYTHONPATH": str(source.resolve())}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        try:
            imported = Path(self._read())
            if not imported.is_relative_to(source.resolve()):
                raise ValueError(f"{source} is not a source tree of calibayes: the process imported {imported}.")
        except BaseException:
            self.close()
            raise

    def _read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended with status {self.process.wait()}.")
        return json.loads(line)

    def calibrate(self, problem: int, seed: int) -> Timing:
        """Run one calibration."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([problem, seed]) + "\n")
        self.process.stdin.flush()
        return Timing(*self._read())

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def measure(versions: Sequence[Version], problem: int, rounds: int) -> tuple[list[Timing], list[list[Timing]]]:
    """Return the first calibration of each version, which may compile, and the later ones, round by round."""
    first = [version.calibrate(problem, 0) for version in versions]
    for seed in range(1, 3):  # Other seeds may take branches that compile once more.
        for version in versions:
            version.calibrate(problem, seed)
    later = []
    for i in range(rounds):
        order = list(enumerate(versions))[:: 1 if i % 2 else -1]
        timings = {k: version.calibrate(problem, i % 3) for k, version in order}
        later.append([timings[k] for k in range(len(versions))])
    return first, later


def summarise(name: str, first: Sequence[Timing], later: Sequence[Sequence[Timing]]) -> dict[str, Any]:
    """Return medians and ratios of one problem; the interval of the ratio covers the quartiles over rounds."""
    old, new = (np.array([timings[k].seconds for timings in later]) for k in range(2))
    return {
        "problem": name,
        "old_seconds": float(np.median(old)),
        "new_seconds": float(np.median(new)),
        "ratio": float(np.median(old) / np.median(new)),
        "ratio_quartiles": [float(q) for q in np.quantile(old / new, [0.25, 0.75])],
        "first_seconds": [timing.seconds for timing in first],
        "same_eta": all(timings[0].eta == timings[1].eta for timings in later),
    }


def table(results: Sequence[dict[str, Any]]) -> Table:
    """Return the comparison as a table."""
    rows = [
        (
            result["problem"],
            f"{result['old_seconds']:.3g}",
            f"{result['new_seconds']:.3g}",
            f"{result['ratio']:.2f} ({result['ratio_quartiles'][0]:.2f}, {result['ratio_quartiles'][1]:.2f})",
            " and ".join(f"{seconds:.3g}" for seconds in result["first_seconds"]),
            "yes" if result["same_eta"] else "no",
        )
        for result in results
    ]
    return Table(("problem", "old, s", "new, s", "old / new (quartiles)", "first calls, s", "same eta"), rows)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="folder that contains the package calibayes of the old version")
    parser.add_argument("new", type=Path, nargs="?", default=ROOT / "src", help="the same for the new version")
    parser.add_argument("--rounds", type=int, default=9, help="calibrations of each version and problem")
    parser.add_argument("--json", type=Path, help="file to store the comparison in")
    options = parser.parse_args()
    console = Console()
    with ExitStack() as stack:
        versions = [stack.enter_context(closing(Version(source))) for source in (options.old, options.new)]
        results = []
        for problem, name in enumerate(PROBLEMS):
            results.append(summarise(name, *measure(versions, problem, options.rounds)))
            console.print(f"{name}: old / new {results[-1]['ratio']:.2f}", highlight=False)
    console.print(table(results).rich())
    if options.json is not None:
        from benchmarks.common import machine

        write_json(options.json, {"machine": machine(), "rounds": options.rounds, "problems": results})


if __name__ == "__main__":
    main()
