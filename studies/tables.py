"""What is stored, summed up: cells, and tables of them for a terminal or a page."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from rich import box
from rich.table import Table as RichTable

from studies.names import KNOWN, REGIONS
from studies.store import Line

NAMES = {"mcmc": "GPC-MCMC", "smc": "GPC-SMC", "transport": "transport"}
ORDER = ("mcmc", "smc", "transport", "eta 1", "sandwich", KNOWN)
PAPER_COVERAGE = {("mcmc", 100): 97.0, ("mcmc", 400): 93.5, ("mcmc", 1600): 95.0}
PAPER_COVERAGE |= {("smc", 100): 96.0, ("smc", 400): 94.0, ("smc", 1600): 94.5}
"""Table 1 of the paper."""
PAPER_ETA = {100: 1.6, 400: 1.4, 1600: 1.1}
PAPER_SVM_ETA = 0.09
PAPER_SVM_TIMES = {"mcmc": (18.0, 0.335), "smc": (10.7, 0.017)}
"""Median minutes and their coefficient of variation, on 64 cores in MATLAB (section 3.2)."""


_WIDEST = 20
"""Columns narrower than this are not broken."""


_USUAL = ("SVM", "N 1,600")
_FEW = 20
"""Datasets, below which a share says nothing."""
_SOME = 5
"""Runs, below which a coefficient of variation says nothing."""
"""Variants that differ from nothing."""


class Table(NamedTuple):
    """Columns and rows of text."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)

    def rich(self) -> RichTable:
        table = RichTable(box=box.SIMPLE_HEAD, padding=(0, 0), show_edge=False)
        for at, name in enumerate(self.columns):
            number = any(row[at][:1].isdigit() for row in self.rows) and not any(
                row[at][:1].isalpha() for row in self.rows
            )
            # Names may be broken into lines; numbers may not.
            widest = max((len(row[at]) for row in self.rows), default=0)
            table.add_column(
                name, justify="right" if number else "left", min_width=min(widest, _WIDEST), overflow="fold"
            )
        for row in self.rows:
            table.add_row(*row)
        return table


@dataclass(frozen=True)
class Cell:
    """All datasets of one problem, size, sampler and region."""

    problem: str
    n: int
    sampler: str
    region: str
    lines: tuple[Line, ...]

    @property
    def number(self) -> int:
        return len(self.lines)

    @property
    def coverage(self) -> float:
        """Share of datasets whose 95% set holds the true parameter."""
        return float(np.mean([line.covered for line in self.lines]))

    @property
    def coverage_se(self) -> float:
        """Its Monte Carlo error, were the true coverage 95%."""
        return float(np.sqrt(0.95 * 0.05 / self.number))

    @property
    def etas(self) -> np.ndarray:
        etas = np.array([line.eta for line in self.lines])
        return etas[np.isfinite(etas)]

    @property
    def seconds(self) -> np.ndarray:
        """Of calibrations from nothing in which nothing was compiled."""
        return np.array([line.seconds for line in self.lines if line.how == "warm"])

    @property
    def variation(self) -> float:
        """Coefficient of variation of the seconds."""
        return float(self.seconds.std(ddof=1) / self.seconds.mean()) if len(self.seconds) > 1 else float("nan")

    @property
    def warned(self) -> str:
        """How many did not converge, and how many did so with a warning."""
        lost = sum(not line.converged for line in self.lines)
        return f"{lost}, {sum(bool(line.note) for line in self.lines) - lost}"

    @property
    def share(self) -> str:
        return f"{100 * self.coverage:.1f} ({100 * self.coverage_se:.1f})"


def cells(lines: Iterable[Line]) -> list[Cell]:
    """By problem and region as they came, N and sampler in order; the paper's regions in theirs."""
    groups: dict[tuple[str, int, str, str], list[Line]] = {}
    for line in lines:
        groups.setdefault((line.problem, line.n, line.region, line.sampler), []).append(line)
    problems, regions = (
        [*dict.fromkeys(key[0] for key in groups)],
        [*dict.fromkeys((*REGIONS, *(k[2] for k in groups)))],
    )
    ranked = sorted(
        groups, key=lambda key: (problems.index(key[0]), key[1], regions.index(key[2]), ORDER.index(key[3]))
    )
    return [
        Cell(problem, n, sampler, region, tuple(groups[problem, n, region, sampler]))
        for problem, n, region, sampler in ranked
    ]


def timed(lines: Sequence[Line]) -> list[Cell]:
    """The box, on the machine where most calibrations were timed: seconds of several do not compare."""
    return cells(line for line in _of_one_machine(lines) if line.how == "warm")


def jit(lines: Sequence[Line]) -> dict[tuple[int, str], float]:
    """The shortest seconds by N and method, of those of which there are only such as had to be compiled first."""
    known = {(cell.n, cell.sampler) for cell in timed(lines)}
    cold = cells(line for line in _of_one_machine(lines) if line.how == "cold" and line.sampler in NAMES)
    shortest = {(cell.n, cell.sampler): min(line.seconds for line in cell.lines) for cell in cold}
    return {which: seconds for which, seconds in shortest.items() if which not in known}


def _of_one_machine(lines: Sequence[Line]) -> list[Line]:
    box = [line for line in lines if line.region == "box"]
    machines = Counter(line.machine for line in box if line.how == "warm").most_common(1)
    return [line for line in box if machines and line.machine == machines[0][0]]


def table1(lines: Sequence[Line]) -> Table:
    rows = []
    for cell in cells(line for line in lines if line.sampler != KNOWN):
        paper = PAPER_COVERAGE.get((cell.sampler, cell.n)) if cell.region == "box" else None
        rows.append(
            [
                f"{cell.n:,}",
                cell.region,
                NAMES[cell.sampler],
                f"{cell.number}",
                "" if paper is None else f"{paper:.1f}",
                cell.share,
                "" if paper is None else f"{PAPER_ETA[cell.n]:.1f}",
                _quartiles(cell.etas, ".2f"),
                cell.warned,
            ]
        )
    columns = ["N", "set", "method", "datasets", "paper, %", "covered, % (error)", "paper's eta"]
    return Table([*columns, "eta: median (quartiles)", "not converged, warned"], rows)


def short_table1(lines: Sequence[Line], of_one_machine: Sequence[Line]) -> Table:
    """The box alone, with the seconds of some lines; no share of a few datasets."""
    seconds = {(cell.n, cell.sampler): np.median(cell.seconds) for cell in timed(of_one_machine)}
    rows = []
    for cell in cells(line for line in lines if line.region == "box" and line.sampler != KNOWN):
        paper, took = PAPER_COVERAGE.get((cell.sampler, cell.n)), seconds.get((cell.n, cell.sampler))
        rows.append(
            [
                f"{cell.n:,}",
                NAMES[cell.sampler],
                "" if paper is None else f"{paper:.1f}",
                cell.share if cell.number >= _FEW else "-",
                f"{cell.number}",
                f"{np.median(cell.etas):.2f}",
                "" if took is None else f"{took:.1f}",
            ]
        )
    return Table(["N", "method", "paper, %", "covered, % (error)", "datasets", "median eta", "seconds"], rows)


def asked(lines: Sequence[Line]) -> Table:
    """What transport found, beside the one eta whose sets would have held the truth in 95% of the datasets.

    A set holds the truth if eta is at most what the truth asks for there, so that eta is a quantile of those.
    """
    both = {line.key[:3] + line.key[4:] for line in lines if line.sampler == KNOWN}
    lines = [line for line in lines if line.key[:3] + line.key[4:] in both]
    by_key = {(cell.n, cell.region, cell.sampler): cell for cell in cells(lines)}
    rows = []
    for (n, region, sampler), cell in by_key.items():
        if sampler == KNOWN and (found := by_key.get((n, region, "transport"))):
            spread = np.sqrt(0.95 * 0.05 / cell.number)
            low, right, high = np.quantile(cell.etas, np.clip([0.05 - spread, 0.05, 0.05 + spread], 0, 1))
            middle = np.median(found.etas)
            rows.append(
                [
                    f"{n:,}",
                    region,
                    f"{cell.number}",
                    f"{right:.2f} ({low:.2f}, {high:.2f})",
                    f"{middle:.2f}",
                    f"{100 * np.mean(cell.etas >= middle):.1f}",
                    f"{100 * found.coverage:.1f}",
                ]
            )
    columns = ["N", "set", "datasets", "one eta that covers 95% (error)", "median calibrated eta"]
    return Table([*columns, "covered with that for all, %", "covered as calibrated, %"], rows)


def times(lines: Sequence[Line]) -> Table:
    found = timed(lines)
    fastest = {cell.n: np.median(cell.seconds) for cell in found if cell.sampler == "transport"}
    rows = []
    for cell in found:
        ratio = f"{np.median(cell.seconds) / fastest[cell.n]:.1f}" if cell.n in fastest else ""
        seconds = _quartiles(cell.seconds, ".2f")
        variation = f"{cell.variation:.2f}" if len(cell.seconds) >= _SOME else ""
        rows.append([f"{cell.n:,}", NAMES[cell.sampler], str(len(cell.seconds)), seconds, variation, ratio])
    bounds = jit(lines).items()
    rows += [[f"{n:,}", NAMES[sampler], "0", f"at most {bound:.2f}", "", ""] for (n, sampler), bound in bounds]
    rows.sort(key=lambda row: (int(row[0].replace(",", "")), row[1]))
    columns = ["N", "method", "runs", "seconds: median (quartiles)", "coefficient of variation"]
    return Table([*columns, "relative to transport"], rows)


def figure5(lines: Sequence[Line], of_one_machine: Sequence[Line] | None = None) -> Table:
    """Etas of all, and seconds of some, unless told of the same."""
    own_lines = lines if of_one_machine is None else of_one_machine
    times = {cell.sampler: cell for cell in timed(own_lines)}
    bounds = {sampler: f"< {seconds:.0f}" for (_, sampler), seconds in jit(own_lines).items()}
    rows = []
    for cell in cells(lines):
        minutes, variation = PAPER_SVM_TIMES.get(cell.sampler, (None, None))
        own = times.get(cell.sampler)
        middle, low, high = np.quantile(cell.etas, [0.5, 0, 1])
        rows.append(
            [
                NAMES[cell.sampler],
                "0" if own is None else str(len(own.seconds)),
                bounds.get(cell.sampler, "") if own is None else f"{np.median(own.seconds):.2g}",
                "" if own is None or len(own.seconds) < _SOME else f"{own.variation:.3f}",
                "" if minutes is None else f"{60 * minutes:.0f}",
                "" if variation is None else f"{variation:.3f}",
                str(len(cell.etas)),
                f"{middle:.3f}",
                f"{low:.3f}, {high:.3f}",
                "" if minutes is None else f"{PAPER_SVM_ETA}",
            ]
        )
    columns = ["method", "timed", "s", "variation", "paper: s", "variation"]
    return Table([*columns, "seeds", "eta", "range", "paper"], rows)


def misspecified(lines: Sequence[Line]) -> Table:
    by_key = {(cell.problem, cell.region, cell.sampler): cell for cell in cells(lines)}
    rows = []
    for (problem, region, sampler), cell in by_key.items():
        if sampler == "transport":
            beside = [by_key[problem, region, other] for other in ("eta 1", "sandwich")]
            shares = [f"{100 * other.coverage:.1f}" for other in beside]
            rows.append(
                [problem, region, str(cell.number), cell.share, *shares, f"{np.median(cell.etas):.2f}", cell.warned]
            )
    columns = ["errors, loss", "set", "datasets", "calibrated, % (error)", "eta = 1", "sandwich", "median eta"]
    return Table([*columns, "not converged, warned"], rows)


def by_variant(lines: Sequence[Line]) -> Table:
    known = {cell: f"{ratio:.2f}" for ratio, _, cell in ratios(lines)}
    rows = []
    for cell in cells(lines):
        covered = "" if np.isnan(cell.coverage) else cell.share
        middle = f"{np.median(cell.etas):.3f}" if len(cell.etas) else ""
        rows.append([cell.problem, cell.region, str(cell.number), middle, known.get(cell, ""), covered, cell.warned])
    columns = ["variant", "set", "runs", "median eta", "median ratio to the box, same data"]
    columns += ["covered, % (error)", "not converged, warned"]
    return Table(columns, rows)


def ratios(lines: Sequence[Line]) -> list[tuple[float, float, Cell]]:
    """Of every variant: the median ratio of its etas to the box's on the same data, and the box's own median."""
    usual = {(line.n, line.dataset): line.eta for line in lines if line.problem in _USUAL and line.region == "box"}
    found = []
    for cell in cells(lines):
        own = [line.eta / usual[line.n, line.dataset] for line in cell.lines if (line.n, line.dataset) in usual]
        if np.isfinite(own).any():
            middle = float(np.median([eta for (n, _), eta in usual.items() if n == cell.n]))
            found.append((float(np.nanmedian(own)), middle, cell))
    return found


def _quartiles(values: np.ndarray, form: str) -> str:
    low, middle, high = (format(q, form) for q in np.quantile(values, [0.25, 0.5, 0.75]))
    return f"{middle} ({low}, {high})"
