"""Does another Python find the same? Small calibrations by this one and by another.

    python -m benchmarks.reproduce PYTHON_OTHER

The other is an interpreter, as `python3.12`. With the packages of this one it must find the same to the bit. What is
pinned for it may be later versions, whose compiled programs round otherwise: with those, eta must be the same within
its error. Both get environments of their own, for as long as this takes; that needs a network, or a cache of pip's.
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
from studies.runner import machine

import calibayes as cb
from benchmarks.kills import MEDIAN, PROBLEMS, store
from calibayes.io import versions

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "reproduced.json"
LOCK = ROOT / "requirements.lock"
ERRORS = 4
"""By which two learning rates may differ, of both together."""


def found() -> dict[str, Any]:
    """What this process finds; floats as they are in memory."""
    data = cb.datasets.median_regression(100, seed=0)
    answers = {}
    for problem, options in PROBLEMS.items():
        result = cb.calibrate(MEDIAN, data, seed=0, progress=False, **options)
        answers[problem] = {
            "eta": float(result.eta).hex(),
            "eta_se": float(result.eta_se).hex(),
            "draws": np.asarray(result.draws, np.float64).ravel().tolist(),
        }
    return {"versions": versions(), "answers": answers}


def found_by(python: str) -> dict[str, Any]:
    """What a process of an interpreter finds that has the packages."""
    command = [python, "-W", "ignore", "-m", "benchmarks.reproduce", "--run"]
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    ran = subprocess.run(command, cwd=ROOT, env=os.environ | paths, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(ran.stdout.splitlines()[-1])


def with_packages(python: str, place: Path, constraints: Path) -> str:
    """An interpreter of that version, with what the library needs, in the versions that are asked for."""
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    subprocess.run([python, "-m", "venv", place], check=True)
    own = place / "bin" / "python"
    pip = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", constraints, *needed]
    subprocess.run(pip, check=True)
    return str(own)


def compared(here: dict[str, Any], there: dict[str, Any]) -> dict[str, Any]:
    """Problem by problem: whether every bit is the same, and how far apart the learning rates are, in errors."""
    problems = {}
    for problem, one in here["answers"].items():
        other = there["answers"][problem]
        eta, error = ([float.fromhex(answer[name]) for answer in (one, other)] for name in ("eta", "eta_se"))
        problems[problem] = {
            "eta": eta,
            "error": math.hypot(*error),
            "errors_apart": abs(eta[0] - eta[1]) / math.hypot(*error),
            "draws": [len(answer["draws"]) for answer in (one, other)],
            "same": one == other,
        }
    return {"versions": there["versions"], "problems": problems}


def wrong(same_packages: dict[str, Any], as_pinned: dict[str, Any]) -> list[str]:
    """What is not reproduced."""
    lost = [name for name, one in same_packages["problems"].items() if not one["same"]]
    # No number is no answer: an error that is not known makes zero of any distance.
    far = [name for name, one in as_pinned["problems"].items() if not 0 < one["error"] < math.inf]
    far += [name for name, one in as_pinned["problems"].items() if not one["errors_apart"] < ERRORS]
    return [f"{name}: other bits by the same packages" for name in lost] + [f"{name}: another eta" for name in far]


def own_packages() -> Sequence[str]:
    """Of this environment, with their versions; the library itself is run from here."""
    command = [sys.executable, "-m", "pip", "freeze", "--exclude-editable", "--exclude", "calibayes"]
    listed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [line for line in listed.splitlines() if "==" in line]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", nargs="?", help="an interpreter of another version")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        print(json.dumps(found()))
        return 0
    if options.other is None:
        parser.error("which other Python? make reproduce PYTHON_OTHER=python3.12, say")
    here = found_by(sys.executable)
    answers = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "own.txt").write_text("\n".join(own_packages()))
        for name, constraints in (("same packages", place / "own.txt"), ("as pinned", LOCK)):
            there = found_by(with_packages(options.other, place / name.replace(" ", "_"), constraints))
            answers[name] = compared(here, there)
    assert here["versions"]["python_version"] != there["versions"]["python_version"], "this is no other Python"
    said = wrong(*answers.values())
    store(options.out, {"machine": machine(), "versions": here["versions"], "errors_allowed": ERRORS, **answers})
    print(json.dumps(answers, indent=2), *said, sep="\n")
    return len(said)


if __name__ == "__main__":
    sys.exit(main())
