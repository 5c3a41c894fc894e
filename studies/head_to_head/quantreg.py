"""Runs `quantreg.R` on batches of data sets."""

import csv
import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from studies.head_to_head import designs
from studies.head_to_head.names import R, block_length
from studies.records import ALL, Outcome, Record, RecordFolder, failure

TAUS = {"median": 0.5, "tau 0.9": designs.TAU}
SCRIPT = Path(__file__).with_name("quantreg.R")
_BATCH = 100
"""Number of data sets of one R process."""


def run(folder: RecordFolder, cells: Sequence[tuple[str, str, int]], numbers: Sequence[int]) -> None:
    """Apply the methods of quantreg to all data sets that are not stored yet."""
    if shutil.which("Rscript") is None:
        sys.exit("Rscript not found: the methods of quantreg are left out. apt-get install r-base-core r-cran-quantreg")
    for start in range(0, len(numbers), _BATCH):
        for loss, design, n in cells:
            problem = f"{loss}, {design}"
            pending = [k for k in numbers[start : start + _BATCH] if (problem, n, k, R, ALL) not in folder]
            if loss in TAUS and pending:
                folder.add(run_batch(loss, design, n, pending))


def run_batch(loss: str, design: str, n: int, numbers: Sequence[int]) -> Iterator[Record]:
    """Apply the methods of quantreg to some data sets."""
    outcomes: dict[int, dict[str, Outcome]] = {}
    with tempfile.TemporaryDirectory() as folder:
        data, results = Path(folder) / "data.csv", Path(folder) / "results.csv"
        with data.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["set", "x", "y", "group"])
            for number in numbers:
                x, y, groups = designs.draw(loss, design, n, number)
                labels = range(n) if groups is None else groups
                writer.writerows(zip([number] * n, map(repr, x[:, 1].tolist()), y.tolist(), labels, strict=True))
        arguments = [data, TAUS[loss], design, block_length(n), results]
        subprocess.run(["Rscript", SCRIPT, *map(str, arguments)], check=True)
        versions = ""
        with results.open(newline="") as file:
            for row in csv.DictReader(file):
                outcomes.setdefault(int(row["set"]), {})[row["method"]] = _outcome(row)
                versions = row["versions"]
    return (Record(f"{loss}, {design}", n, number, R, outcomes[number], versions) for number in numbers)


def _outcome(row: dict[str, str]) -> Outcome:
    """Return the outcome of a line; rank inversion can return infinite or missing bounds."""
    seconds = float(row["seconds"])
    try:
        low, high = float(row["low"]), float(row["high"])
    except ValueError:
        return failure(row["error"] or "the interval is not finite", seconds)
    if not (math.isfinite(low) and math.isfinite(high)) or max(abs(low), abs(high)) > 1e100:
        return failure("the interval is not finite", seconds)
    return Outcome(math.nan, math.nan, [(low, high)], "COMPUTED", seconds)
