"""Check that another Python version computes the same results.

    python -m benchmarks.reproduce PYTHON_OTHER

PYTHON_OTHER is an interpreter such as `python3.12`. With the package versions of this environment it must give
identical results, bit for bit. The versions pinned for it may be newer and round differently; with those, eta must
agree within its standard error. Both cases are run in temporary environments, which needs a network or a package cache.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import calibayes as cb
from benchmarks.common import RESULTS, ROOT, machine, write_json
from benchmarks.kills import MEDIAN, PROBLEMS
from calibayes._backend.versions import versions

LOCK = ROOT / "requirements.lock"
MAX_DIFFERENCE = 4
"""Largest difference of two learning rates, in standard errors of the difference."""


def calibrate() -> dict[str, Any]:
    """Return the results of this process, with floats in hexadecimal."""
    data = cb.datasets.median_regression(100, seed=0)
    results = {}
    for problem, options in PROBLEMS.items():
        result = cb.calibrate(MEDIAN, data, seed=0, progress=False, **options)
        results[problem] = {
            "eta": float(result.eta).hex(),
            "eta_se": float(result.eta_se).hex(),
            "draws": np.asarray(result.draws, np.float64).ravel().tolist(),
        }
    return {"versions": versions(), "results": results}


def calibrate_with(python: str) -> dict[str, Any]:
    """Return the results of a process of another interpreter, which has the required packages."""
    command = [python, "-W", "ignore", "-m", "benchmarks.reproduce", "--run"]
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run(command, cwd=ROOT, env=os.environ | paths, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def make_environment(python: str, folder: Path, constraints: Path) -> str:
    """Create an environment with the dependencies of the library in given versions; return its interpreter."""
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    subprocess.run([python, "-m", "venv", folder], check=True)
    interpreter = folder / "bin" / "python"
    pip = [str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-c", str(constraints), *dependencies], check=True)
    return str(interpreter)


def compare(reference: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Compare two sets of results, problem by problem."""
    problems = {}
    for problem, one in reference["results"].items():
        two = other["results"][problem]
        eta, errors = ([float.fromhex(result[name]) for result in (one, two)] for name in ("eta", "eta_se"))
        problems[problem] = {
            "eta": eta,
            "se": math.hypot(*errors),
            "difference_in_se": abs(eta[0] - eta[1]) / math.hypot(*errors),
            "draws": [len(result["draws"]) for result in (one, two)],
            "identical": one == two,
        }
    return {"versions": other["versions"], "problems": problems}


def failures(same_packages: dict[str, Any], pinned: dict[str, Any]) -> list[str]:
    """Return the problems whose results are not reproduced."""
    changed = [name for name, one in same_packages["problems"].items() if not one["identical"]]
    # An infinite or undefined standard error would accept any difference.
    different = [name for name, one in pinned["problems"].items() if not 0 < one["se"] < math.inf]
    different += [name for name, one in pinned["problems"].items() if not one["difference_in_se"] < MAX_DIFFERENCE]
    return [f"{name}: not identical with the same packages" for name in changed] + [
        f"{name}: a different eta" for name in different
    ]


def installed_packages() -> Sequence[str]:
    """Return the packages of this environment with their versions, without the library itself."""
    command = [sys.executable, "-m", "pip", "freeze", "--exclude-editable", "--exclude", "calibayes"]
    listed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [line for line in listed.splitlines() if "==" in line]


def main() -> int:
    """Run the command; return the number of results that are not reproduced."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", nargs="?", help="an interpreter of another version")
    parser.add_argument("--out", type=Path, default=RESULTS / "reproduced.json")
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        print(json.dumps(calibrate()))
        return 0
    if options.other is None:
        parser.error("name another interpreter, for example: make reproduce PYTHON_OTHER=python3.12")
    reference = calibrate_with(sys.executable)
    comparisons = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "installed.txt").write_text("\n".join(installed_packages()))
        for title, constraints in (("same packages", folder / "installed.txt"), ("pinned packages", LOCK)):
            other = calibrate_with(make_environment(options.other, folder / title.replace(" ", "_"), constraints))
            comparisons[title] = compare(reference, other)
    same_version = reference["versions"]["python_version"] == other["versions"]["python_version"]
    assert not same_version, "both interpreters have the same version"
    messages = failures(*comparisons.values())
    header = {"machine": machine(), "versions": reference["versions"], "max_difference_in_se": MAX_DIFFERENCE}
    write_json(options.out, header | comparisons)
    print(json.dumps(comparisons, indent=2), *messages, sep="\n")
    return len(messages)


if __name__ == "__main__":
    sys.exit(main())
