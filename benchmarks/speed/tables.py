"""Tables of the measurements, for a terminal or a page."""

from collections.abc import Sequence

from benchmarks.common import Table
from benchmarks.speed.measurement import Measurements, Ratio


def ratios(measured: Sequence[Ratio]) -> Table:
    """Return one row per comparison."""
    return Table(("case", "baseline", "ratio", "goal", "ours and baseline"), [_row(ratio) for ratio in measured])


def _row(ratio: Ratio) -> tuple[str, ...]:
    amounts = f"{ratio.ours:.3g} and {ratio.theirs:.3g} {ratio.unit}"
    return (ratio.case, ratio.baseline, f"{ratio.ratio:.3g}", _goal(ratio.goal, ratio.met), amounts)


def slopes(measurements: Measurements) -> Table:
    """Return the exponents of time as a power of size."""
    rows = []
    for name, figure in measurements.figures.items():
        if "slope" in figure:
            goal, value = figure["goal"], figure["slope"]
            met = None if goal is None else value <= goal
            sizes = f"{figure['sizes'][0]:,} to {figure['sizes'][-1]:,}"
            rows.append((name, sizes, f"{value:.2f}", _goal(goal, met)))
    return Table(("time of", "sizes", "slope", "goal"), rows)


def roofline(measurements: Measurements) -> Table:
    """Return the lower bounds on time by operations and by memory traffic, and how near the measured time comes."""
    rows, figure = [], measurements.figures.get("roofline", {"shapes": ()})
    for shape in figure["shapes"]:
        bounds = shape["operations"] / shape["peak"], shape["bytes"] / figure["bandwidth"]
        amounts = (f"{shape['operations'] / 1e9:.3g} G", f"{shape['bytes'] / 1e6:.3g} MB")
        bound_texts = " and ".join(f"{1e3 * seconds:.2g}" for seconds in bounds) + " ms"
        measured, efficiency = f"{1e3 * shape['seconds']:.3g} ms", f"{max(bounds) / shape['seconds']:.0%}"
        rows.append((shape["case"], *amounts, bound_texts, measured, efficiency))
    return Table(("case", "operations", "memory traffic", "lower bounds by each", "measured", "efficiency"), rows)


def notes(measurements: Measurements) -> list[str]:
    """Return how the ratios were obtained, where a note says more than the table."""
    lines = [
        f"{ratio.case}, relative to {ratio.baseline}: {ratio.note}." for ratio in measurements.ratios if ratio.note
    ]
    if "roofline" in measurements.figures:
        lines.append(f"Measured memory bandwidth: {measurements.figures['roofline']['bandwidth'] / 1e9:,.0f} GB/s.")
    return lines


def _goal(goal: float | None, met: bool | None) -> str:
    return "" if goal is None else f"{goal:g}, {'met' if met else 'missed'}"
