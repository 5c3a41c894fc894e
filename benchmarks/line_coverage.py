"""Measure which lines of the library the test suite runs, and require a reason for every line that it does not.

    python -m benchmarks.line_coverage              # run the suite and store the result; about twenty minutes
    python -m benchmarks.line_coverage --measured   # use the existing measurements

Fails if less than 95% of lines or branches are run, if `uncovered.toml` has no reason for a line that is not run, or if
it has a reason for a function whose lines are all run.
"""

import argparse
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, ROOT, write_json
from calibayes._backend.versions import versions

REASONS = Path(__file__).with_name("uncovered.toml")
SOURCE = "src/calibayes/"
MIN_SHARE = 0.95

Reasons = dict[str, dict[str, str]]
"""Reasons by file and function."""


def measure() -> None:
    """Run the suite, including its workers and the processes that tests start, under coverage.py."""
    for command in (["erase"], ["run", "-m", "pytest"], ["combine", "--quiet"]):
        subprocess.run([sys.executable, "-m", "coverage", *command], cwd=ROOT, check=True)


def read_measurements() -> dict[str, Any]:
    """Return the measurements by file and function, as coverage.py reports them."""
    command = [sys.executable, "-m", "coverage", "json", "--quiet", "-o", "-"]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)


def summarise(measured: dict[str, Any], reasons: Reasons) -> dict[str, Any]:
    """Return totals of lines and branches, and the lines that were not run, with the reason of each function."""
    missing = []
    for path, file in sorted(measured["files"].items()):
        name = path.removeprefix(SOURCE)
        for function, part in file["functions"].items():
            if part["missing_lines"]:
                reason = reasons.get(name, {}).get(function or "module", "")
                lines = line_ranges(part["missing_lines"])
                missing.append({"file": name, "function": function or "module", "lines": lines, "reason": reason})
    totals = measured["totals"]
    return {
        **versions(),
        "files": len(measured["files"]),
        "lines": totals["num_statements"],
        "lines_run": totals["covered_lines"],
        "branches": totals["num_branches"],
        "branches_taken": totals["covered_branches"],
        "missing": missing,
    }


def line_ranges(lines: list[int]) -> str:
    """Return line numbers as ranges, for example `"7, 9-11"`."""
    ranges: list[list[int]] = []
    for line in sorted(lines):
        if ranges and line == ranges[-1][-1] + 1:
            ranges[-1].append(line)
        else:
            ranges.append([line])
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in ranges)


def shares(summary: dict[str, Any]) -> tuple[float, float]:
    """Return the share of lines and of branches that are run."""
    return summary["lines_run"] / summary["lines"], summary["branches_taken"] / summary["branches"]


def failures(summary: dict[str, Any], reasons: Reasons) -> list[str]:
    """Return the requirements that are not met."""
    messages = [
        f"{share:.1%} of {name}, less than {MIN_SHARE:.0%}"
        for share, name in zip(shares(summary), ("lines", "branches"), strict=True)
        if share < MIN_SHARE
    ]
    messages += [
        f"no reason for {entry['file']}, {entry['function']}: {entry['lines']}"
        for entry in summary["missing"]
        if not entry["reason"]
    ]
    missing = {(entry["file"], entry["function"]) for entry in summary["missing"]}
    return messages + [
        f"unnecessary reason for {file}, {function}: all its lines are run"
        for file, functions in reasons.items()
        for function in functions
        if (file, function) not in missing
    ]


def main() -> int:
    """Run the command; return the number of requirements that are not met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", action="store_true", help="use the existing measurements")
    parser.add_argument("--out", type=Path, default=RESULTS / "coverage.json")
    options = parser.parse_args()
    if not options.measured:
        measure()
    reasons = tomllib.loads(REASONS.read_text())
    summary = summarise(read_measurements(), reasons)
    messages = failures(summary, reasons)
    print("{:.1%} of lines, {:.1%} of branches".format(*shares(summary)), *messages, sep="\n")
    if not messages:
        write_json(options.out, summary)
    return len(messages)


if __name__ == "__main__":
    sys.exit(main())
