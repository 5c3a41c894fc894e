"""Draw the picture of the README (`make picture`): intervals over simulated data sets, before and after calibration.

The data sets and intervals are those of the head-to-head (`python -m studies head-to-head`): least squares with errors
whose standard deviation grows with the regressor, N 100.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from studies.head_to_head.cells import Column, cells  # noqa: E402
from studies.head_to_head.names import FOLDER, HETEROSCEDASTIC, OURS, UNIT  # noqa: E402
from studies.records import RecordFolder  # noqa: E402

LOSS, N, SHOWN = "squared", 100, 100
COVERS, MISSES, INK = "#20639b", "#d1495b", "#333333"


def main(path: str = "docs/picture.png") -> None:
    records = [record for record in RecordFolder(ROOT / "results" / FOLDER).lines if record.source == OURS]
    (cell,) = (cell for cell in cells(records) if (cell.loss, cell.design, cell.n) == (LOSS, HETEROSCEDASTIC, N))
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(2, 1, figsize=(8.2, 4.2), sharex=True, sharey=True, layout="constrained")
    draw_intervals(axes[0], cell.columns[UNIT], "posterior at learning rate 1")
    draw_intervals(axes[1], cell.columns["gpc"], "calibrated by cb.calibrate")
    axes[1].set_xlabel("simulated data set")
    figure.supylabel("95% interval minus true slope", fontsize=10)
    figure.savefig(path, dpi=160)


def draw_intervals(axes: Axes, column: Column, title: str) -> None:
    """Draw the intervals of the first data sets; the title has the coverage over all."""
    gaps, covered = column.bounds[:, 0] - column.theta[0], column.covered[:, 0]
    for k, ((low, high), hit) in enumerate(zip(gaps[:SHOWN], covered[:SHOWN], strict=True)):
        axes.plot([k + 1] * 2, [low, high], color=COVERS if hit else MISSES, lw=2.2, solid_capstyle="butt")
    axes.axhline(0, color=INK, lw=0.8)
    axes.set_xlim(0, SHOWN + 1)
    text = f"{title}: {100 * covered.mean():.0f}% of {column.number:,} intervals contain the true slope"
    axes.set_title(text, loc="left", fontsize=10)


if __name__ == "__main__":
    main()
