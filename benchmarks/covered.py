"""Which lines of the library does no test run? The whole suite under coverage, and why each of them is left.

    python -m benchmarks.covered              # run the suite, and store what was found: twenty minutes
    python -m benchmarks.covered --measured   # of the measurements that are there

Fails below 95% of lines and branches, for a line that has no reason in `uncovered.toml`, and for a reason without one.
"""

import argparse
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from benchmarks.kills import store
from calibayes.io import versions

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "coverage.json"
REASONS = Path(__file__).with_name("uncovered.toml")
SOURCE = "src/calibayes/"
LEAST = 0.95


def measure() -> None:
    """The suite, its workers and the processes it starts."""
    for command in (["erase"], ["run", "-m", "pytest"], ["combine", "--quiet"]):
        subprocess.run([sys.executable, "-m", "coverage", *command], cwd=ROOT, check=True)


def counted() -> dict[str, Any]:
    """What was measured, file by file and function by function."""
    command = [sys.executable, "-m", "coverage", "json", "--quiet", "-o", "-"]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)


def found(counts: dict[str, Any], reasons: dict[str, dict[str, str]]) -> dict[str, Any]:
    """Shares of lines and branches, and the lines that were not run, with the reason for each function's."""
    left = []
    for path, file in sorted(counts["files"].items()):
        name = path.removeprefix(SOURCE)
        for function, part in file["functions"].items():
            if part["missing_lines"]:
                reason = reasons.get(name, {}).get(function or "module", "")
                lines = ranges(part["missing_lines"])
                left.append({"file": name, "function": function or "module", "lines": lines, "reason": reason})
    total = counts["totals"]
    return {
        **versions(),
        "files": len(counts["files"]),
        "lines": total["num_statements"],
        "lines_run": total["covered_lines"],
        "branches": total["num_branches"],
        "branches_taken": total["covered_branches"],
        "left": left,
    }


def ranges(lines: list[int]) -> str:
    """7, 9-11."""
    runs: list[list[int]] = []
    for line in sorted(lines):
        if runs and line == runs[-1][-1] + 1:
            runs[-1].append(line)
        else:
            runs.append([line])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def shares(counts: dict[str, Any]) -> tuple[float, float]:
    """Of lines, and of branches."""
    return counts["lines_run"] / counts["lines"], counts["branches_taken"] / counts["branches"]


def wrong(counts: dict[str, Any], reasons: dict[str, dict[str, str]]) -> list[str]:
    """Why it does not pass."""
    said = [
        f"{share:.1%} of {what}, less than {LEAST:.0%}"
        for share, what in zip(shares(counts), ("lines", "branches"), strict=True)
        if share < LEAST
    ]
    said += [
        f"no reason for {one['file']}, {one['function']}: {one['lines']}" for one in counts["left"] if not one["reason"]
    ]
    left = {(one["file"], one["function"]) for one in counts["left"]}
    return said + [
        f"a reason for {file}, {function}, of which all lines are run"
        for file, functions in reasons.items()
        for function in functions
        if (file, function) not in left
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", action="store_true", help="run nothing")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if not options.measured:
        measure()
    reasons = tomllib.loads(REASONS.read_text())
    counts = found(counted(), reasons)
    said = wrong(counts, reasons)
    print("{:.1%} of lines, {:.1%} of branches".format(*shares(counts)), *said, sep="\n")
    if not said:
        store(options.out, counts)
    return len(said)


if __name__ == "__main__":
    sys.exit(main())
