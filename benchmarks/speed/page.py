"""Tables and plots of docs/performance.md, generated from stored measurements. The text around them is kept."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.common import Marks
from benchmarks.speed import PARTS, projection, tables
from benchmarks.speed.measurement import Measurements, Report, load
from studies.figures import save, use_log_scale

MARKS = Marks.named("bench")
COLOURS = {"N": "#d6604d", "B": "#4c78a8", "M": "#59a14f", "K": "#8c8c8c"}


def write(results: Path, docs: Path) -> list[Path]:
    """Write the page and the plots of scaling; return their paths."""
    reports = {path.stem: load(path) for path in sorted(results.glob("bench_*.json"))}
    if not reports:
        command = f"python -m benchmarks.speed --json {results}/bench_cpu.json"
        raise ValueError(f"there is no bench_*.json in {results}. Run {command} first.")
    docs.mkdir(parents=True, exist_ok=True)
    page = docs / "performance.md"
    if not page.exists():
        page.write_text(f"{_INTRODUCTION}{MARKS.begin}{MARKS.end}\n")
    sections = [_report(name, report, docs) for name, report in reports.items()]
    sections += _projection(reports)
    page.write_text(MARKS.replace(page, "\n\n" + "\n\n".join(sections) + "\n\n"))
    return [page, *(docs / _plot_name(name) for name, report in reports.items() if "scaling" in report.parts)]


_INTRODUCTION = """# Performance

Times are compared side by side in one run on one machine. The ratio is the time of the baseline divided by ours, so 10
means that ours takes a tenth of the time. Some baselines are a fixed second, minute or size of memory. A goal is the
smallest ratio, or the largest slope, that we aim at. Compilation is excluded, except in "Cold start".

```console
$ python -m benchmarks.speed                                # minutes; --quick takes less
$ python -m benchmarks.speed --only engine                  # one part
$ python -m benchmarks.speed --only large                   # a million observations
$ python -m benchmarks.speed --json results/bench_cpu.json  # store the measurements
$ make bench-page                                           # write the tables below
```

"""


def _report(name: str, report: Report, docs: Path) -> str:
    versions = ", ".join(f"{package} {number}" for package, number in report.versions.items())
    parts = [f"## On {report.device}\n\nPython packages: {versions}."]
    for part, description in _DESCRIPTIONS.items():
        if part in report.parts:
            parts.append(_part(description, report.parts[part]))
        if part == "scaling" and part in report.parts:
            _plot(report.parts[part], docs / _plot_name(name))
            parts.append(f"![Seconds by size, logarithmic axes]({_plot_name(name)})")
    missing = [PARTS[part].title.lower() for part in _DESCRIPTIONS if part not in report.parts]
    parts += [f"Not measured on this machine: {', '.join(missing)}."] if missing else []
    return "\n\n".join(parts)


def _projection(reports: dict[str, Report]) -> list[str]:
    """Return the projection to many devices, if the measurements that it needs are stored."""
    counted = next((report for report in reports.values() if "passes" in report.parts), None)
    # The second of two runs is without compilation.
    usable = [
        report
        for report in reports.values()
        if {"large", "algorithms"} <= set(report.parts) and len(report.parts["large"].figures["large"]["seconds"]) > 1
    ]
    if counted is None or not usable:
        return []
    report, passes = usable[0], counted.parts["passes"].figures["passes"]
    large = report.parts["large"].figures["large"]
    small = min(ratio.ours for ratio in report.parts["algorithms"].ratios)
    speed = projection.device(passes, large["N"], large["seconds"][-1], small)
    host = f"{counted.device}, {counted.parts['passes'].date}"
    return projection.section(report.device, host, speed, passes, large["N"])


def _part(description: str, measurements: Measurements) -> str:
    candidates = (tables.ratios(measurements.ratios), tables.slopes(measurements), tables.roofline(measurements))
    paragraphs = [description, *(table.markdown() for table in candidates if table.rows)]
    paragraphs += ["\n".join(f"- {line}" for line in notes)] if (notes := tables.notes(measurements)) else []
    if "imports" in measurements.figures:
        seconds = measurements.figures["imports"]
        total = sum(seconds.values())
        shares = ", ".join(f"{package} {part / total:.0%}" for package, part in seconds.items())
        paragraphs.append(f"Share of the import time by package: {shares}.")
    if measurements.date:
        paragraphs.append(f"Measured {measurements.date}.")
    if measurements.quick:
        paragraphs.append("From a quick run with small sizes.")
    return "\n\n".join([*paragraphs, *(f"Not measured: {line}" for line in measurements.skipped)])


_DESCRIPTIONS = {
    "engine": """### Risk engine

One evaluation of the risk of all particles on all replicates. The handwritten loop over particles is compiled by numba,
runs on all cores, has the number of parameters unrolled, and skips observations with count zero (about a third of
them), which the engine cannot. The peak is the measured rate of float32 multiply-adds; the last four operations of the
engine per observation are not such pairs. A loss passed as `fn(theta, datum)` computes the same without known
structure.

The roofline table gives two lower bounds on the time: the operations at the measured peak, and the memory traffic if
every array (particles, counts, data, risks) is read or written once. Arrays that fit into a cache need no memory
traffic, so the second is not a bound for small problems; and the scan of a CPU moves more data within its caches, see
below. Efficiency is the larger bound relative to the measured time.""",
    "algorithms": """### Transport and the paper's algorithms

Whole calibrations of the box, on the same bootstrap replicates and with the same number of particles (the paper uses
4,000 for the SVM). The kernel of GPC-MCMC is `RAM`; two of its iterations are timed, and multiplied by the number of
iterations of GPC-SMC.""",
    "peers": """### Transport and general-purpose samplers

Calibration with a general-purpose sampler runs a chain on every bootstrap replicate, vmapped over replicates, at each
learning rate that the search tries. For a comparison at equal effective sample size, the time of a peer is *learning
rates tried x (warm-up + time of the draws x required effective sample size / effective sample size of the draws)*, and
that of transport is all of its time, including the search. The learning rates tried are those of the search of the
paper on this problem (median over seeds). The required effective sample size is that of the particles from which
transport computes the critical level of a replicate, over all populations that it carries there (by weights or by
`multi_ess`, whichever is smaller); for chains it is `multi_ess`; all are medians over replicates.

In favour of the peers: compilation is not counted, nor are the credible sets and their coverage; chains start inside
the posterior and use its covariance. Against them: their search could try its first learning rates with fewer draws, as
transport does and the paper does not.""",
    "scaling": """### Scaling

Time of one evaluation of the risk, and of a whole calibration by transport, when one size is doubled and the others are
fixed. The slope is that of a log-log fit: 1 if time is proportional to the size.""",
    "start": """### Cold start

In fresh processes. The compilation cache of this measurement was that of JAX. `make bench-cold` measures the programs
that calibayes keeps itself.""",
    "large": """### A million observations

Poisson counts are drawn block by block when they are needed and never stored, so that memory holds the data and the
particles only.""",
    "memory": """### Memory

Peak memory of a process, against the float32 array of every loss of every particle on every replicate, which the engine
never stores.""",
}


def _plot_name(name: str) -> str:
    return f"{name.removeprefix('bench_')}_scaling.png"


def _plot(measurements: Measurements, path: Path) -> None:
    """Plot seconds against multiples of the smallest size, one line per axis, with a line of slope 1."""
    figure, axes = plt.subplots(1, 2, figsize=(7.0, 3.0))
    for axis, kind, title in zip(axes, ("risk", "calibration"), ("one evaluation", "calibration"), strict=True):
        lines = [(key[-1], value) for key, value in measurements.figures.items() if key.startswith(f"{kind} in ")]
        _draw_lines(axis, lines)
        axis.set_title(title, fontsize=9)
    axes[0].set_ylabel("seconds")
    save(figure, path)


def _draw_lines(axis: Axes, lines: Sequence[tuple[str, dict[str, Any]]]) -> None:
    for name, line in lines:
        multiples = [size / line["sizes"][0] for size in line["sizes"]]
        style: dict[str, Any] = {"marker": "o", "markersize": 3.5, "linewidth": 1.2, "color": COLOURS[name]}
        axis.plot(multiples, line["seconds"], label=f"{name}: {line['slope']:.2f}", **style)
    first, doublings = lines[0][1]["seconds"][0], max(len(line["sizes"]) for _, line in lines) - 1
    reference = [first, first * 2**doublings]
    axis.plot([1, 2**doublings], reference, color="black", linewidth=0.8, linestyle=":", label="1, for reference")
    axis.set_xscale("log", base=2)
    use_log_scale(axis)
    axis.set_xticks([2**i for i in range(doublings + 1)], [f"x {2**i}" for i in range(doublings + 1)])
    axis.grid(linewidth=0.4, alpha=0.5)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=7, frameon=False, title="slope", title_fontsize=7)
