"""What was measured, as tables for a terminal or a page."""

from collections.abc import Sequence

from studies.tables import Table

from benchmarks.speed.measured import Measured, Ratio


def ratios(measured: Sequence[Ratio]) -> Table:
    """One comparison a row; what was measured is of this run alone."""
    return Table(("what", "against", "ratio", "aim", "ours and theirs"), [_row(ratio) for ratio in measured])


def _row(ratio: Ratio) -> tuple[str, ...]:
    amounts = f"{ratio.ours:.3g} and {ratio.theirs:.3g} {ratio.unit}"
    return (ratio.what, ratio.against, f"{ratio.ratio:.3g}", _aim(ratio.wanted, ratio.met), amounts)


def slopes(measured: Measured) -> Table:
    """The powers that time grows with."""
    rows = []
    for name, figure in measured.figures.items():
        if "slope" in figure:
            wanted, value = figure["wanted"], figure["slope"]
            met = None if wanted is None else value <= wanted
            sizes = f"{figure['sizes'][0]:,} to {figure['sizes'][-1]:,}"
            rows.append((name, sizes, f"{value:.2f}", _aim(wanted, met)))
    return Table(("time of", "sizes", "slope", "aim"), rows)


def roofline(measured: Measured) -> Table:
    """The least time by operations at the peak and by bytes from memory, and the larger in that which it took."""
    rows, found = [], measured.figures.get("roofline", {"shapes": ()})
    for roof in found["shapes"]:
        least = roof["operations"] / roof["peak"], roof["bytes"] / found["bandwidth"]
        amounts = (f"{roof['operations'] / 1e9:.3g} G", f"{roof['bytes'] / 1e6:.3g} MB")
        floors = " and ".join(f"{1e3 * seconds:.2g}" for seconds in least) + " ms"
        took, reached = f"{1e3 * roof['seconds']:.3g} ms", f"{max(least) / roof['seconds']:.0%}"
        rows.append((roof["what"], *amounts, floors, took, reached))
    return Table(("what", "operations", "bytes", "least by either", "took", "reached"), rows)


def notes(measured: Measured) -> list[str]:
    """How ratios came about, where there is more to say."""
    said = [f"{ratio.what}, against {ratio.against}: {ratio.note}." for ratio in measured.ratios if ratio.note]
    if "roofline" in measured.figures:
        said.append(f"bytes from memory: {measured.figures['roofline']['bandwidth'] / 1e9:,.0f} GB/s, measured.")
    return said


def _aim(wanted: float | None, met: bool | None) -> str:
    return "" if wanted is None else f"{wanted:g}, {'met' if met else 'missed'}"
