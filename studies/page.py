"""The results page: every result on it is read from what the studies stored, the paper's numbers from `tables.py`."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from studies import figures, tables
from studies.names import DRAWS, HEART_DISEASE, KNOWN, MEDIAN_REGRESSION, PARTICLES, ROWS
from studies.store import Line, Store
from studies.tables import NAMES, PAPER_ETA, PAPER_SVM_ETA, cells

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
_FILES = ("median_regression", "heart_disease", "misspecified", "open_question")


def write(results: Path, docs: Path, readme: Path | None) -> list[Path]:
    """The page, its figures, and the short table in the readme."""
    regression, svm, wrong, variants = (Store(results / f"{name}.csv").lines for name in _FILES)
    if not (regression or svm or wrong or variants):
        raise ValueError(f"there are no results in {results}: run calibayes study table1 first, or pass --results.")
    short = None if readme is None else _filled(readme, _short(regression, results))
    docs.mkdir(parents=True, exist_ok=True)
    times, seeds = _by_machine(results, "figure4", regression), _by_machine(results, "figure5", svm)
    everything = list({line.key: line for lines in (*seeds, svm) for line in lines}.values())
    if times:
        figures.figure4(tables.timed(times[0]), docs / "figure4.png")
    if seeds:
        figures.figure5(tables.timed(seeds[0]), tables.cells(everything), docs / "figure5.png")
    sections = [
        _HEAD,
        _table1(regression) if regression else "",
        _figure4(times, regression) if times else "",
        _figure5(seeds, everything) if seeds else "",
        _open_question(variants) if variants else "",
        _misspecified(wrong) if wrong else "",
    ]
    page = docs / "results.md"
    page.write_text("\n\n".join(section for section in sections if section) + "\n")
    if readme is None or short is None:
        return [page]
    readme.write_text(short)
    return [page, readme]


def _short(regression: Sequence[Line], results: Path) -> str:
    """The readme's table, and the machine its seconds are of."""
    times = _by_machine(results, "figure4", regression)
    table = tables.short_table1(regression, times[0] if times else regression).markdown()
    return f"{table}\n\nSeconds on {_machine(times[0])}." if times else table


def _by_machine(results: Path, figure: str, here: Sequence[Line]) -> list[Sequence[Line]]:
    """What was timed on each machine, first the one where most of the figure was."""
    stored = [here, *(Store(path).lines for path in sorted(results.glob(f"{figure}_*.csv")))]
    found = [lines for lines in stored if tables.timed(lines)]
    return sorted(found, key=lambda lines: -len(tables.timed(lines)))


def _elsewhere(others: Sequence[Sequence[Line]]) -> str:
    return "".join(f"\n\nThe same on {_machine(lines)}:\n\n{tables.times(lines).markdown()}" for lines in others)


def _filled(readme: Path, table: str) -> str:
    before, begun, rest = readme.read_text().partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not begun or not ended:
        raise ValueError(f"{readme} has no place for the table: a line {BEGIN} and a line {END}.")
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


_HEAD = """# The paper's results, and ours

Tanaka, *Generalized posterior calibration via sequential Monte Carlo sampler* (arXiv 2404.16528), rerun. Our numbers
are read from the files in `results/`, one line per calibration, by `make results`; the commands that fill them stand
with each table. "Error" is what the standard error of a share of so many datasets would be were it 95%,
`sqrt(0.95 x 0.05 / datasets)`. GPC-MCMC is there for as many datasets as minutes a piece allowed.
Calibrations that did not converge are counted in, and numbered; those "warned" converged, but said that something was
amiss on the way."""


def _table1(lines: Sequence[Line]) -> str:
    return f"""## Table 1: median regression

`calibayes study table1`: y = 2 + x + e, {ROWS} bootstrap rows, the same for all methods. GPC-SMC has
{PARTICLES[MEDIAN_REGRESSION]:,} particles and GPC-MCMC {DRAWS:,} draws; for the box both run the paper's search as it
is, which stops at the first coverage within 0.005 of 0.95, and for the other sets eta is solved for on the particles
of that. Transport is what `calibrate` does unless told otherwise. Larger datasets begin with the regressors of smaller
ones.

**The credible set decides eta**, and the paper does not say which it took. {_nearest(lines)}
{_stopping(lines)}

{tables.table1(lines).markdown()}

{_judgement(lines)}{_why(lines)}"""


def _nearest(lines: Sequence[Line]) -> str:
    """The set whose median etas are nearest to the paper's."""
    gaps: dict[str, list[float]] = {}
    for cell in cells(line for line in lines if line.sampler == "transport" and line.n in PAPER_ETA):
        gaps.setdefault(cell.region, []).append(abs(float(np.log(np.median(cell.etas) / PAPER_ETA[cell.n]))))
    if len(gaps) < 2:
        return "Its numbers stand beside the box's, the product of the marginal intervals."
    nearest = min(gaps, key=lambda region: float(np.mean(gaps[region])))
    beside = "" if nearest == "box" else ", but its numbers stand beside the box's"
    return f"Of these, the etas of the {nearest} are nearest to the paper's{beside}."


def _judgement(lines: Sequence[Line]) -> str:
    """Which cells are beyond three errors from 95%, said in so many words."""
    judged = [line for line in lines if line.sampler != KNOWN]
    beyond = [cell for cell in cells(judged) if not abs(cell.coverage - 0.95) <= 3 * cell.coverage_se]
    if not beyond:
        return "No cell is beyond three errors from 95%."
    named = "; ".join(f"N {c.n:,}, {c.region}, {NAMES[c.sampler]}: {100 * c.coverage:.1f}" for c in beyond)
    return f"Beyond three errors from 95%: {named}."


def _stopping(lines: Sequence[Line]) -> str:
    """What stopping at the first coverage near the level does to eta, on the same bootstrap rows."""
    eta = {(line.sampler, line.n, line.dataset): line.eta for line in lines if line.region == "box"}
    ratios: dict[int, list[float]] = {}
    for (sampler, n, dataset), value in eta.items():
        if sampler == "smc" and ("transport", n, dataset) in eta:
            ratios.setdefault(n, []).append(value / eta["transport", n, dataset])
    if not ratios:
        return ""
    told = ", ".join(f"{np.median(ratios[n]):.2f} at N {n:,}" for n in sorted(ratios))
    return (
        f"On the same rows GPC-SMC's eta for the box is {told} times transport's (medians): coming from eta 1, the "
        "paper's search stops at the first coverage that chance brings near 0.95, short of the answer. A smaller eta "
        "makes larger sets, which cover more. Where eta is solved for, in the other sets, the two agree."
    )


def _why(lines: Sequence[Line]) -> str:
    table = tables.asked(lines)
    if not table.rows:
        return ""
    return f"""

*Why sets on few observations cover less.* `--sampler known` finds, on every dataset, the largest eta at which the set
holds the truth. One eta for all datasets covers 95% if 95% of them allow as much or more. Calibration asks the same of
bootstrap rows and their estimate. Where its median is higher than that one eta, the bootstrap is too hopeful. Where the
sets cover less as calibrated than with the median for all, eta is right in the middle, but varies from dataset to
dataset, and is large where it should be small. Both samplers answer to the same rows, so this holds for either.
{_shortfalls(table)}

{table.markdown()}"""


def _shortfalls(table: tables.Table) -> str:
    """Where sets cover too little by more than three errors: how much of it is for which reason."""
    parts = []
    for n, region, datasets, *_, with_median, calibrated in table.rows:
        short = 95 - float(calibrated)
        if short > 300 * np.sqrt(0.95 * 0.05 / float(datasets)):
            varies = float(with_median) - float(calibrated)
            parts.append(
                f"N {n}, {region}: {short:.1f} points short, {varies:.1f} because eta varies, {short - varies:.1f} "
                "because its median is high"
            )
    return f"Of transport's cells beyond three errors, {'; '.join(parts)}." if parts else ""


def _figure4(times: Sequence[Sequence[Line]], lines: Sequence[Line]) -> str:
    busy = sum(line.how == "busy" for line in lines)
    left_out = (
        f" {busy:,} calibrations of table 1, which ran beside others, are marked by hand as `busy` and left out."
        if busy
        else ""
    )
    return f"""## Figure 4: computation time

`calibayes study figure4`, on another machine with `--out results/figure4_NAME.csv`: the box; calibrations in which
nothing was compiled, one at a time, on
{_machine(times[0])}: so many cores each, if others were at work on the rest. Transport's include its audit. "At most"
is what one took that had to be compiled, where there is no other.{left_out}

![Seconds by method and N](figure4.png)

{tables.times(times[0]).markdown()}{_elsewhere(times[1:])}"""


def _figure5(seeds: Sequence[Sequence[Line]], lines: Sequence[Line]) -> str:
    return f"""## Figure 5: the heart disease SVM

`calibayes study figure5`, on another machine with `--out results/figure5_NAME.csv`: the box; one dataset, each seed its
own bootstrap rows; GPC-SMC with
{PARTICLES[HEART_DISEASE]:,} particles, GPC-MCMC with Polson and Scott's sampler. Times are medians, of calibrations in
which nothing was compiled, beside their coefficient of variation; "<" stands before what one took that had to be
compiled, where there is no other. Ours are of {_machine(seeds[0])}, the paper's were measured in MATLAB on 64 cores:
compare methods within a column only.

![Seconds and eta by method](figure5.png)

{tables.figure5(lines, seeds[0]).markdown()}{_elsewhere(seeds[1:])}"""


def _open_question(lines: Sequence[Line]) -> str:
    return f"""## The open question

What gives the paper's eta of {PAPER_ETA[1600]} at N 1,600 and {PAPER_SVM_ETA} for the SVM? `calibayes study open`
varies the set, the point to be covered, the data and the bootstrap, and runs the misprinted formulas literally.

{tables.by_variant(lines).markdown()}

{_found(lines)}

*The misprints.* As printed, the first particles are weighted by their density once more, which squares the posterior;
and the kernel's scale runs away from the acceptance rate it is after, with a covariance that is neither centred nor
normalised. The others (the exponent missing from the effective size, the reversed direction, the eta missing from the
first display) cannot be run as printed."""


def _found(variants: Sequence[Line]) -> str:
    """Which variants come near to the paper's numbers, if any does: by their ratio to the box on the same data."""
    parts = []
    for wanted, n in ((PAPER_SVM_ETA, 462), (PAPER_ETA[1600], 1600)):
        found = [(ratio * usual, cell) for ratio, usual, cell in tables.ratios(variants) if cell.n == n]
        for lost in (False, True):
            some = [pair for pair in found if any(not line.converged for line in pair[1].lines) == lost]
            if some:
                eta, cell = min(some, key=lambda pair: abs(np.log(pair[0] / wanted)))
                which = "Of those of which some did not converge, nearest" if lost else f"Nearest to {wanted}"
                notes = sorted({line.note for line in cell.lines if not line.converged})
                parts.append(
                    f"{which} is {cell.problem} ({cell.region}; {cell.number} of them): its ratio to the box stands "
                    f"for {eta:.3f}, {100 * np.expm1(abs(np.log(eta / wanted))):.0f}% off."
                    + "".join(f" It {note}." for note in notes)
                )
    return " ".join(parts)


def _misspecified(lines: Sequence[Line]) -> str:
    return f"""## Past the paper: when the model is wrong

`calibayes study misspecified`: the same regression, N 400, with errors that are normal; normal with a standard
deviation of 0.5 + 0.5 |x|; t with 3 degrees of freedom; normal with one in ten shifted by 5. Squared loss with normal
errors is the control: there eta = 1 is the likelihood. To be covered is the minimiser of the population's risk. Beside
the calibrated sets: the same posterior at eta = 1, and Wald's sets around the posterior mean by the sandwich
covariance, both had from the posterior's draws (`calibayes._core.sandwich`) and not from a fit of its own. Lines with the
same errors share their data.

{_ranges(lines)}

{tables.misspecified(lines).markdown()}"""


def _ranges(lines: Sequence[Line]) -> str:
    """From the worst to the best coverage, method by method."""
    shares: dict[str, list[float]] = {}
    for cell in tables.cells(lines):
        shares.setdefault(cell.sampler, []).append(100 * cell.coverage)
    told = {"transport": "calibrated sets", "eta 1": "those at eta = 1", "sandwich": "Wald's"}
    ranges = [
        f"{name} {min(shares[key]):.1f} to {max(shares[key]):.1f}%" for key, name in told.items() if key in shares
    ]
    missed = [
        f"{cell.problem}, {cell.region}, {told[cell.sampler]}: {100 * cell.coverage:.1f}"
        for cell in tables.cells(lines)
        if cell.sampler in ("transport", "sandwich") and abs(cell.coverage - 0.95) > 3 * cell.coverage_se
    ]
    beyond = f" Beyond three errors from 95%, those at eta = 1 aside: {'; '.join(missed)}." if missed else ""
    return f"Over all lines of the table, {', '.join(ranges)}.{beyond}"


def _machine(lines: Sequence[Line]) -> str:
    return tables.timed(lines)[0].lines[0].machine
