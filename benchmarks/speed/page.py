"""The page about speed: its tables and its plot are rebuilt from what `calibayes bench --json` stored.

Only what stands between two marks is rebuilt; what is written around it stays.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from studies.figures import logarithmic, save

from benchmarks.speed import PARTS, at_scale, tables
from benchmarks.speed.measured import Measured, Report, load

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
COLOURS = {"N": "#d6604d", "B": "#4c78a8", "M": "#59a14f", "K": "#8c8c8c"}


def write(results: Path, docs: Path) -> list[Path]:
    """The page, and the plots of how time grows."""
    reports = {path.stem: load(path) for path in sorted(results.glob("bench_*.json"))}
    if not reports:
        raise ValueError(f"there is no bench_*.json in {results}: run calibayes bench --json {results}/bench_cpu.json.")
    docs.mkdir(parents=True, exist_ok=True)
    page = docs / "performance.md"
    before, after = _around(page)
    sections = [_report(name, report, docs) for name, report in reports.items()]
    sections += _on_paper(reports)
    page.write_text("\n\n".join([f"{before}{BEGIN}", *sections, f"{END}{after}"]))
    return [page, *(docs / _plot_of(name) for name, report in reports.items() if "scaling" in report.parts)]


def _around(page: Path) -> tuple[str, str]:
    if not page.exists():
        return _HEAD, "\n"
    before, begun, rest = page.read_text().partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not begun or not ended:
        raise ValueError(f"{page} has no place for the tables: a line {BEGIN} and a line {END}.")
    return before, after


_HEAD = """# Speed

Every number here is a ratio of two things measured in one run, in turns, on one machine, unless it is to a second, a
minute or a size of memory: times alone say more of the machine. The ratio is theirs to ours, so 10 means that ours
takes a tenth; an aim is the least that we want of it, or the most of a slope. Compilation is counted nowhere but under
"Cold start". Seconds stand beside, for scale.

    calibayes bench                                    # minutes; --quick for less, --only engine for one part
    calibayes bench --json results/bench_cpu.json      # keep what was measured
    calibayes bench --only large                       # a million observations, which no other run includes
    make bench-page                                    # rebuild the tables and plots below from what is kept

"""


def _report(name: str, report: Report, docs: Path) -> str:
    versions = ", ".join(f"{package} {number}" for package, number in report.versions.items())
    parts = [f"## On {report.place}\n\nPython packages: {versions}."]
    for part, words in _WORDS.items():
        if part in report.parts:
            parts.append(_part(words, report.parts[part]))
        if part == "scaling" and part in report.parts:
            _plot(report.parts[part], docs / _plot_of(name))
            parts.append(f"![Seconds by size, in logarithms]({_plot_of(name)})")
    without = [PARTS[part].title.lower() for part in _WORDS if part not in report.parts]
    parts += [f"Not measured there: {', '.join(without)}."] if without else []
    return "\n\n".join(parts)


def _on_paper(reports: dict[str, Report]) -> list[str]:
    """What many devices would take, from what one of them took; nothing, if that was not measured."""
    counted = next((report for report in reports.values() if "passes" in report.parts), None)
    # Where it was run twice, the second time is without compiling.
    able = [
        report
        for report in reports.values()
        if {"large", "algorithms"} <= set(report.parts) and len(report.parts["large"].figures["large"]["seconds"]) > 1
    ]
    if counted is None or not able:
        return []
    report, passes = able[0], counted.parts["passes"].figures["passes"]
    large = report.parts["large"].figures["large"]
    small = min(ratio.ours for ratio in report.parts["algorithms"].ratios)
    own = at_scale.machine(passes, large["N"], large["seconds"][-1], small)
    return at_scale.section(report.place, f"{counted.place}, {counted.parts['passes'].made}", own, passes, large["N"])


def _part(words: str, measured: Measured) -> str:
    every = (tables.ratios(measured.ratios), tables.slopes(measured), tables.roofline(measured))
    said = [words, *(table.markdown() for table in every if table.rows)]
    said += ["\n".join(f"- {line}" for line in notes)] if (notes := tables.notes(measured)) else []
    if "imports" in measured.figures:
        took = measured.figures["imports"]
        whole = sum(took.values())
        shares = ", ".join(f"{package} {seconds / whole:.0%}" for package, seconds in took.items())
        said.append(f"Of the import's time, by package: {shares}.")
    if measured.made:
        said.append(f"Measured {measured.made}.")
    if measured.quick:
        said.append("From a quick run, at small sizes.")
    return "\n\n".join([*said, *(f"Not measured: {line}" for line in measured.skipped)])


_WORDS = {
    "engine": """### Risk engine

One evaluation of the risk of all particles on all rows. By hand: a loop over particles compiled by numba, on all
cores, with the number of parameters written out, which skips observations that a row does not hold (a third of them;
the engine cannot). The peak is of multiply-adds in float32, measured; of the engine's operations the last four are no
such pair. A loss given as `fn(theta, datum)` is the same one, about which nothing is known.

Then the roofline: the least time that the operations take at that peak, and the bytes from memory, if every array is
read or written once (particles, counts, data, risks). What fits into a cache need not come from there at all, so the
second is no floor for small ones; and a processor's scan moves more, within its caches: see below. What is reached is
the larger of the two in what it took.""",
    "algorithms": """### Transport and the paper's algorithms

Whole calibrations of the box, on the same bootstrap rows, with as many particles (the paper has 4,000 for the SVM).
GPC-MCMC's kernel is `RAM`; two of its iterations are timed, and counted as often as GPC-SMC's search took.""",
    "peers": """### Transport and what one would otherwise write

Calibration with a general sampler: a chain on every bootstrap row, all rows vmapped, at each learning rate that the
search tries. To be compared at equal effective size, so the peer's time is *learning rates tried x (warm-up + time of
the draws x effective size wanted / effective size of the draws)*, and transport's is all of its time, search included.
Learning rates tried are those of the paper's search on this problem (median over seeds), and the effective size
wanted is that of the particles from which a row's level is read at the end of transport, all populations that are
carried there (by weights or by `multi_ess`, the smaller); for chains it is `multi_ess`; all are medians over rows. What
can be said for the peers is: nothing compiled is counted, nor the sets and their coverage; chains start inside the
posterior and are given its covariance. What can be said against: a search of theirs could try its first learning rates
with fewer draws, as transport's does, and the paper's does not.""",
    "scaling": """### Scaling

Time of one evaluation of the risk, and of a whole calibration by transport, as one size is doubled and the others
stay; the slope is that of a log-log fit, 1 if time is proportional.""",
    "start": """### Cold start

In fresh processes. Compiled programs are kept by JAX's own cache; the command line turns it on by itself.""",
    "large": """### A million observations

Poisson counts, drawn block by block as they are needed and never stored, so that memory is that of the data and the
particles.""",
    "memory": """### Memory

The most a process ever held, against the float32 array of every loss of every particle on every row, which the engine
never makes.""",
}


def _plot_of(name: str) -> str:
    return f"{name.removeprefix('bench_')}_scaling.png"


def _plot(measured: Measured, path: Path) -> None:
    """Seconds against multiples of the first size, a line an axis, with the slope of 1 to compare."""
    figure, axes = plt.subplots(1, 2, figsize=(7.0, 3.0))
    for axis, kind, title in zip(axes, ("risk", "calibration"), ("one evaluation", "calibration"), strict=True):
        lines = [(key[-1], value) for key, value in measured.figures.items() if key.startswith(f"{kind} in ")]
        _lines(axis, lines)
        axis.set_title(title, fontsize=9)
    axes[0].set_ylabel("seconds")
    save(figure, path)


def _lines(axis: Any, lines: Sequence[tuple[str, dict[str, Any]]]) -> None:
    for name, line in lines:
        times = [size / line["sizes"][0] for size in line["sizes"]]
        label = f"{name}: {line['slope']:.2f}"
        axis.plot(times, line["seconds"], marker="o", markersize=3.5, linewidth=1.2, color=COLOURS[name], label=label)
    first, most = lines[0][1]["seconds"][0], max(len(line["sizes"]) for _, line in lines) - 1
    axis.plot(
        [1, 2**most], [first, first * 2**most], color="black", linewidth=0.8, linestyle=":", label="1, to compare"
    )
    axis.set_xscale("log", base=2)
    logarithmic(axis)
    axis.set_xticks([2**i for i in range(most + 1)], [f"x {2**i}" for i in range(most + 1)])
    axis.grid(linewidth=0.4, alpha=0.5)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=7, frameon=False, title="slope", title_fontsize=7)
