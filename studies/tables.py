"""Summaries of stored results: cells of comparable calibrations, and tables of them for a terminal or a page."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import chi2, norm

from benchmarks.common import Table
from studies.names import REGIONS
from studies.records import proportion_se
from studies.store import Line

NAMES = {"mcmc": "GPC-MCMC", "smc": "GPC-SMC", "transport": "transport"}
ORDER = ("mcmc", "smc", "transport", "eta 1", "sandwich")
PAPER_COVERAGE = {("mcmc", 100): 97.0, ("mcmc", 400): 93.5, ("mcmc", 1600): 95.0}
PAPER_COVERAGE |= {("smc", 100): 96.0, ("smc", 400): 94.0, ("smc", 1600): 94.5}
"""Table 1 of the paper."""
PAPER_ETA = {100: 1.6, 400: 1.4, 1600: 1.1}
PAPER_SVM_ETA = 0.09
PAPER_SVM_TIMES = {"mcmc": (18.0, 0.335), "smc": (10.7, 0.017)}
"""Median minutes and coefficient of variation, on 64 cores in MATLAB (section 3.2 of the paper)."""

_REFERENCE_VARIANTS = ("SVM", "N 1,600")
"""Variants of the open question that differ from our reading of the paper in nothing."""
_MIN_DATASETS = 20
"""Number of data sets below which a coverage is not shown in the short table."""
_DEGREES = {"hpd": 2, "ellipsoid": 2}
"""Degrees of freedom of the distance that decides whether a set contains the true parameter; others have one."""
_MIN_RUNS = 5
"""Number of runs below which a coefficient of variation is not shown."""


@dataclass(frozen=True)
class Cell:
    """All data sets of one problem, size, sampler and region."""

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
        """Share of data sets whose 95% set contains the true parameter."""
        return float(np.mean([line.covered for line in self.lines]))

    @property
    def coverage_se(self) -> float:
        """Standard error of the coverage."""
        return proportion_se(self.coverage, self.number)

    @property
    def differs(self) -> bool:
        """Whether the coverage differs from 95% by more than three of the standard errors that it has at 95%."""
        return not abs(self.coverage - 0.95) <= 3 * float(np.sqrt(0.95 * 0.05 / self.number))

    @property
    def replicate_share(self) -> float:
        """Share of the variance of the coverage that is due to the random bootstrap replicates, not to the data.

        With other replicates, eta would change by about its standard error. The set of a near-normal posterior contains
        the true parameter if eta times a chi-squared distance is at most a quantile, so that the probability that a
        data set is covered with other replicates follows from the stored level and error.
        """
        degrees = _DEGREES.get(self.region, 1)
        lines = [line for line in self.lines if 0 < line.truth_level < 1 and line.eta_se > 0]
        levels = np.array([line.truth_level for line in lines])
        errors = np.array([line.eta_se / line.eta for line in lines])
        margin = (chi2.ppf(0.95, degrees) / chi2.ppf(levels, degrees) - 1) / errors
        probabilities = norm.cdf(margin)
        total = self.coverage * (1 - self.coverage)
        return float(np.mean(probabilities * (1 - probabilities)) / total) if lines and total else float("nan")

    @property
    def etas(self) -> np.ndarray:
        etas = np.array([line.eta for line in self.lines])
        return etas[np.isfinite(etas)]

    @property
    def seconds(self) -> np.ndarray:
        """Times of calibrations from scratch without compilation."""
        return np.array([line.seconds for line in self.lines if line.timing == "warm"])

    @property
    def variation(self) -> float:
        """Coefficient of variation of the times."""
        return float(self.seconds.std(ddof=1) / self.seconds.mean()) if len(self.seconds) > 1 else float("nan")

    @property
    def warnings(self) -> str:
        """Number of calibrations that did not converge, and of those that converged with diagnostics."""
        failed = sum(not line.converged for line in self.lines)
        return f"{failed}, {sum(bool(line.note) for line in self.lines) - failed}"

    @property
    def coverage_text(self) -> str:
        return f"{100 * self.coverage:.1f} ({100 * self.coverage_se:.1f})"


def cells(lines: Iterable[Line]) -> list[Cell]:
    """Group lines into cells, ordered by problem, N, region and sampler.

    Problems, and regions other than those of the paper, keep the order of their first line.
    """
    groups: dict[tuple[str, int, str, str], list[Line]] = {}
    for line in lines:
        groups.setdefault((line.problem, line.n, line.region, line.sampler), []).append(line)
    problems = [*dict.fromkeys(key[0] for key in groups)]
    regions = [*dict.fromkeys((*REGIONS, *(key[2] for key in groups)))]
    ordered = sorted(
        groups, key=lambda key: (problems.index(key[0]), key[1], regions.index(key[2]), ORDER.index(key[3]))
    )
    return [
        Cell(problem, n, sampler, region, tuple(groups[problem, n, region, sampler]))
        for problem, n, region, sampler in ordered
    ]


def timed(lines: Sequence[Line]) -> list[Cell]:
    """Return cells of the box on the machine with most timed calibrations; times of several do not compare."""
    return cells(line for line in _main_machine(lines) if line.timing == "warm")


def compiled_only(lines: Sequence[Line]) -> dict[tuple[int, str], float]:
    """Return the shortest time by N and method, for methods whose every timed calibration had to compile."""
    warm = {(cell.n, cell.sampler) for cell in timed(lines)}
    cold = cells(line for line in _main_machine(lines) if line.timing == "cold" and line.sampler in NAMES)
    shortest = {(cell.n, cell.sampler): min(line.seconds for line in cell.lines) for cell in cold}
    return {key: seconds for key, seconds in shortest.items() if key not in warm}


def _main_machine(lines: Sequence[Line]) -> list[Line]:
    box = [line for line in lines if line.region == "box"]
    machines = Counter(line.machine for line in box if line.timing == "warm").most_common(1)
    return [line for line in box if machines and line.machine == machines[0][0]]


def table1(lines: Sequence[Line]) -> Table:
    """Return coverage and eta of every cell beside the numbers of the paper."""
    rows = []
    for cell in cells(lines):
        paper = PAPER_COVERAGE.get((cell.sampler, cell.n)) if cell.region == "box" else None
        rows.append(
            [
                f"{cell.n:,}",
                cell.region,
                NAMES[cell.sampler],
                f"{cell.number:,}",
                "" if paper is None else f"{paper:.1f}",
                cell.coverage_text,
                f"{100 * cell.replicate_share:.0f}" if cell.number >= _MIN_DATASETS else "",
                "" if paper is None else f"{PAPER_ETA[cell.n]:.1f}",
                _quartiles(cell.etas, ".2f"),
                cell.warnings,
            ]
        )
    columns = ["N", "region", "algorithm", "data sets", "paper: coverage, %", "coverage, % (SE)"]
    return Table(
        [*columns, "share of replicates, %", "paper: eta", "eta: median (quartiles)", "not converged, warned"], rows
    )


def paired_coverage(lines: Sequence[Line], first: str, second: str) -> Table:
    """Compare the coverage of two samplers on the data sets that both have."""
    covered = {(line.sampler, line.n, line.region, line.dataset): line.covered for line in lines}
    gaps: dict[tuple[int, str], list[float]] = {}
    for (sampler, n, region, dataset), value in covered.items():
        if sampler == first and (second, n, region, dataset) in covered:
            gaps.setdefault((n, region), []).append(value - covered[second, n, region, dataset])
    rows = []
    for (n, region), values in sorted(gaps.items()):
        if len(values) >= _MIN_DATASETS:
            se = np.std(values, ddof=1) / np.sqrt(len(values))
            different = str(int(np.count_nonzero(values)))
            rows.append(
                [f"{n:,}", region, f"{len(values):,}", different, f"{100 * np.mean(values):+.1f} ({100 * se:.1f})"]
            )
    return Table(["N", "region", "data sets", "covered by one only", "difference, points (SE)"], rows)


def short_table1(lines: Sequence[Line], machine_lines: Sequence[Line]) -> Table:
    """Return coverage and eta of the box, with the times of the lines of one machine."""
    seconds = {(cell.n, cell.sampler): np.median(cell.seconds) for cell in timed(machine_lines)}
    rows = []
    for cell in cells(line for line in lines if line.region == "box"):
        paper, median_seconds = PAPER_COVERAGE.get((cell.sampler, cell.n)), seconds.get((cell.n, cell.sampler))
        rows.append(
            [
                f"{cell.n:,}",
                NAMES[cell.sampler],
                "" if paper is None else f"{paper:.1f}",
                cell.coverage_text if cell.number >= _MIN_DATASETS else "-",
                f"{cell.number:,}",
                f"{np.median(cell.etas):.2f}",
                "" if median_seconds is None else f"{median_seconds:.1f}",
            ]
        )
    columns = ["N", "algorithm", "paper: coverage, %", "coverage, % (SE)", "data sets", "median eta", "seconds"]
    return Table(columns, rows)


def times(lines: Sequence[Line]) -> Table:
    """Return computation times by N and method, relative to transport."""
    warm = timed(lines)
    transport = {cell.n: np.median(cell.seconds) for cell in warm if cell.sampler == "transport"}
    rows = []
    for cell in warm:
        ratio = f"{np.median(cell.seconds) / transport[cell.n]:.1f}" if cell.n in transport else ""
        seconds = _quartiles(cell.seconds, ".2f")
        variation = f"{cell.variation:.2f}" if len(cell.seconds) >= _MIN_RUNS else ""
        rows.append([f"{cell.n:,}", NAMES[cell.sampler], str(len(cell.seconds)), seconds, variation, ratio])
    bounds = compiled_only(lines).items()
    rows += [[f"{n:,}", NAMES[sampler], "0", f"at most {bound:.2f}", "", ""] for (n, sampler), bound in bounds]
    rows.sort(key=lambda row: (int(row[0].replace(",", "")), row[1]))
    columns = ["N", "algorithm", "runs", "seconds: median (quartiles)", "coefficient of variation"]
    return Table([*columns, "relative to transport"], rows)


def figure5(lines: Sequence[Line], machine_lines: Sequence[Line] | None = None) -> Table:
    """Return etas of all lines, and times of the lines of one machine (default: of the same lines)."""
    machine_lines = lines if machine_lines is None else machine_lines
    warm = {cell.sampler: cell for cell in timed(machine_lines)}
    bounds = {sampler: f"< {seconds:.0f}" for (_, sampler), seconds in compiled_only(machine_lines).items()}
    rows = []
    for cell in cells(lines):
        minutes, variation = PAPER_SVM_TIMES.get(cell.sampler, (None, None))
        times_cell = warm.get(cell.sampler)
        median_eta, low, high = np.quantile(cell.etas, [0.5, 0, 1])
        rows.append(
            [
                NAMES[cell.sampler],
                "0" if times_cell is None else str(len(times_cell.seconds)),
                bounds.get(cell.sampler, "") if times_cell is None else f"{np.median(times_cell.seconds):.2g}",
                "" if times_cell is None or len(times_cell.seconds) < _MIN_RUNS else f"{times_cell.variation:.3f}",
                "" if minutes is None else f"{60 * minutes:.0f}",
                "" if variation is None else f"{variation:.3f}",
                str(len(cell.etas)),
                f"{median_eta:.3f}",
                f"{low:.3f}, {high:.3f}",
                "" if minutes is None else f"{PAPER_SVM_ETA}",
            ]
        )
    columns = ["algorithm", "timed runs", "seconds", "variation", "paper: seconds", "paper: variation"]
    return Table([*columns, "seeds", "eta", "range", "paper: eta"], rows)


def misspecified(lines: Sequence[Line], problems: str = "errors, loss") -> Table:
    """Return the coverage of the calibrated sets, of those at eta = 1 and of the Wald sets."""
    by_key = {(cell.problem, cell.region, cell.sampler): cell for cell in cells(lines)}
    rows = []
    for (problem, region, sampler), cell in by_key.items():
        if sampler == "transport":
            others = [by_key[problem, region, other] for other in ("eta 1", "sandwich")]
            coverages = [f"{100 * other.coverage:.1f}" for other in others]
            median_eta = f"{np.median(cell.etas):.2f}"
            rows.append([problem, region, str(cell.number), cell.coverage_text, *coverages, median_eta, cell.warnings])
    columns = [problems, "region", "data sets", "calibrated, % (SE)", "eta = 1, %", "sandwich, %", "median eta"]
    return Table([*columns, "not converged, warned"], rows)


def by_variant(lines: Sequence[Line]) -> Table:
    """Return eta and coverage of every variant of the open question."""
    ratio_texts = {cell: f"{ratio:.2f}" for ratio, _, cell in ratios(lines)}
    rows = []
    for cell in cells(lines):
        coverage = "" if np.isnan(cell.coverage) else cell.coverage_text
        median_eta = f"{np.median(cell.etas):.3f}" if len(cell.etas) else ""
        ratio = ratio_texts.get(cell, "")
        rows.append([cell.problem, cell.region, str(cell.number), median_eta, ratio, coverage, cell.warnings])
    columns = ["variant", "region", "runs", "median eta", "median ratio to the box on the same data"]
    return Table([*columns, "coverage, % (SE)", "not converged, warned"], rows)


def ratios(lines: Sequence[Line]) -> list[tuple[float, float, Cell]]:
    """Return the median ratio of each variant's etas to the box on the same data, and the median eta of the box."""
    reference = {
        (line.n, line.dataset): line.eta
        for line in lines
        if line.problem in _REFERENCE_VARIANTS and line.region == "box"
    }
    matches = []
    for cell in cells(lines):
        values = [
            line.eta / reference[line.n, line.dataset] for line in cell.lines if (line.n, line.dataset) in reference
        ]
        if np.isfinite(values).any():
            median_eta = float(np.median([eta for (n, _), eta in reference.items() if n == cell.n]))
            matches.append((float(np.nanmedian(values)), median_eta, cell))
    return matches


def _quartiles(values: np.ndarray, form: str) -> str:
    low, middle, high = (format(q, form) for q in np.quantile(values, [0.25, 0.5, 0.75]))
    return f"{middle} ({low}, {high})"
