"""The results page, generated from the stored results of the studies and the paper's numbers in `tables.py`."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.common import Marks
from studies import exact, figures, tables
from studies.head_to_head import page as head_to_head
from studies.names import DRAWS, HEART_DISEASE, MEDIAN_REGRESSION, PARTICLES, REPLICATES
from studies.store import Line, Store
from studies.survival import N as N_SURVIVAL
from studies.tables import NAMES, PAPER_ETA, PAPER_SVM_ETA, cells

MARKS = Marks.named("results")
_FILES = ("median_regression.csv.gz", "heart_disease.csv", "misspecified.csv.gz", "open_question.csv")


def write(results: Path, docs: Path, readme: Path | None) -> list[Path]:
    """Write the page with its figures, and the short table of the readme.

    Parameters
    ----------
    results : Path
        Folder of the stored results.
    docs : Path
        Folder of the page and its figures.
    readme : Path or None
        File that contains the short table between two marks.

    Returns
    -------
    list of Path
        The files written, without the figures.
    """
    regression, svm, misspecified, variants = (Store(results / name).lines for name in _FILES)
    if not (regression or svm or misspecified or variants):
        raise ValueError(f"there are no results in {results}. Run python -m studies table1 first, or pass --results.")
    short = None if readme is None else MARKS.replace(readme, f"\n{_short(regression, results)}\n")
    docs.mkdir(parents=True, exist_ok=True)
    times, seeds = _by_machine(results, "figure4"), _by_machine(results, "figure5", svm)
    all_svm = list({line.key: line for lines in (*seeds, svm) for line in lines}.values())
    if times:
        figures.figure4(tables.timed(times[0]), docs / "figure4.png")
    if seeds:
        figures.figure5(tables.timed(seeds[0]), tables.cells(all_svm), docs / "figure5.png")
    sections = [
        _INTRODUCTION,
        _table1(regression, results) if regression else "",
        _figure4(times) if times else "",
        _figure5(seeds, all_svm) if seeds else "",
        _open_question(variants) if variants else "",
        _misspecified(misspecified) if misspecified else "",
        _survival(Store(results / "survival.csv.gz").lines),
    ]
    page = docs / "results.md"
    page.write_text("\n\n".join(section for section in sections if section) + "\n")
    pages = [page, *head_to_head.write(results, docs)]
    if readme is None or short is None:
        return pages
    readme.write_text(short)
    return [*pages, readme]


def _short(regression: Sequence[Line], results: Path) -> str:
    """Return the table of the readme and the machine of its times."""
    times = _by_machine(results, "figure4")
    table = tables.short_table1(regression, times[0] if times else ()).markdown()
    parts = [
        table,
        f"Seconds on {_machine(times[0])}." if times else "",
        head_to_head.short_summary(results),
    ]
    return "\n\n".join(part for part in parts if part)


def _by_machine(results: Path, figure: str, lines: Sequence[Line] = ()) -> list[Sequence[Line]]:
    """Return the timed lines of each machine, the machine with most cells first."""
    stored = [lines, *(Store(path).lines for path in sorted(results.glob(f"{figure}_*.csv")))]
    timed = [machine_lines for machine_lines in stored if tables.timed(machine_lines)]
    return sorted(timed, key=lambda machine_lines: -len(tables.timed(machine_lines)))


def _other_machines(others: Sequence[Sequence[Line]]) -> str:
    return "".join(f"\n\nThe same on {_machine(lines)}:\n\n{tables.times(lines).markdown()}" for lines in others)


_INTRODUCTION = """# Results of the paper, reproduced

This page reproduces Tanaka, *Generalized posterior calibration via sequential Monte Carlo sampler* (arXiv 2404.16528),
and extends it. Our numbers are read from the files in `results/`, which have one line per calibration, by
`make results`; each section names the command that fills its file. "SE" is the standard error of a coverage,
that of a proportion. GPC-MCMC takes minutes per calibration and was run on fewer data sets.
Calibrations that did not converge are included and counted; "warned" calibrations converged with diagnostics."""


def _table1(lines: Sequence[Line], results: Path) -> str:
    return f"""## Table 1: median regression

`python -m studies table1`: y = 2 + x + e, {REPLICATES} bootstrap replicates, the same for all methods. GPC-SMC has
{PARTICLES[MEDIAN_REGRESSION]:,} particles and GPC-MCMC {DRAWS:,} draws. For the box, both use the search of the paper,
which stops at the first coverage within 0.005 of 0.95; for the other regions, eta is solved for on the resulting
particles. Transport is the default of `calibrate`. Larger data sets start with the regressors of the smaller ones.

**The credible region determines eta**, and the paper does not state its region. {_nearest_region(lines)}
{_early_stopping(lines)}

{tables.table1(lines).markdown()}

{_beyond_three_se(lines)} {_exact(results)}{_paired(lines)}"""


def _nearest_region(lines: Sequence[Line]) -> str:
    """Name the region whose median etas are nearest to the paper's."""
    gaps: dict[str, list[float]] = {}
    for cell in cells(line for line in lines if line.sampler == "transport" and line.n in PAPER_ETA):
        gaps.setdefault(cell.region, []).append(abs(float(np.log(np.median(cell.etas) / PAPER_ETA[cell.n]))))
    if len(gaps) < 2:
        return "Its numbers are shown beside those of the box, the product of the marginal intervals."
    nearest = min(gaps, key=lambda region: float(np.mean(gaps[region])))
    shown = "" if nearest == "box" else ", but its numbers are shown beside those of the box"
    return f"Of these regions, the {nearest} has the etas nearest to the paper's{shown}."


def _beyond_three_se(lines: Sequence[Line]) -> str:
    beyond = [cell for cell in cells(lines) if cell.differs]
    precision = (
        "All rows of one N use the same sequence of data sets, so that their errors are not independent. The share of "
        "replicates is the share of the variance of a coverage that comes from the bootstrap replicates; the rest "
        "comes from the data sets."
    )
    if not beyond:
        return f"{precision} All cells are within three standard errors of 95%."
    named = "; ".join(f"N {c.n:,}, {c.region}, {NAMES[c.sampler]}: {100 * c.coverage:.1f}" for c in beyond)
    return f"{precision} More than three standard errors from 95%: {named}."


def _early_stopping(lines: Sequence[Line]) -> str:
    """Compare the search of the paper, which stops at the first coverage near the level, with solving for eta."""
    etas = {(line.sampler, line.n, line.dataset): line.eta for line in lines if line.region == "box"}
    ratios: dict[int, list[float]] = {}
    for (sampler, n, dataset), eta in etas.items():
        if sampler == "smc" and ("transport", n, dataset) in etas:
            ratios.setdefault(n, []).append(eta / etas["transport", n, dataset])
    if not ratios:
        return ""
    medians = ", ".join(f"{np.median(ratios[n]):.2f} at N {n:,}" for n in sorted(ratios))
    return (
        f"On the same replicates, eta of GPC-SMC for the box is {medians} times that of transport (medians). The "
        "search of the paper starts at eta 1 and stops at the first coverage that is near 0.95 by chance, before it "
        "reaches the solution."
    )


def _exact(results: Path) -> str:
    path = results / "exact.json"
    return exact.sentence(json.loads(path.read_text())) if path.exists() else ""


def _paired(lines: Sequence[Line]) -> str:
    table = tables.paired_coverage(lines, "smc", "transport")
    if not table.rows:
        return ""
    return f"""

GPC-SMC minus transport, on the data sets that both calibrated:

{table.markdown()}"""


def _figure4(times: Sequence[Sequence[Line]]) -> str:
    return f"""## Figure 4: computation time

`python -m studies figure4`, on another machine with `--out results/figure4_NAME.csv`: calibrations of the box without
compilation, one at a time, on {_machine(times[0])}. Times of transport include its audit. "At most" is the time of a
calibration that had to compile, where there is no other. Table 1 itself ran on a machine that was shared.

![Seconds by method and N](figure4.png)

{tables.times(times[0]).markdown()}{_other_machines(times[1:])}"""


def _figure5(seeds: Sequence[Sequence[Line]], lines: Sequence[Line]) -> str:
    return f"""## Figure 5: the heart disease SVM

`python -m studies figure5`, on another machine with `--out results/figure5_NAME.csv`: the box; one data set, with other
bootstrap replicates for each seed; GPC-SMC with {PARTICLES[HEART_DISEASE]:,} particles, GPC-MCMC with the Gibbs sampler
of Polson and Scott. Times are medians of calibrations without compilation, with their coefficient of variation; "<"
precedes the time of a calibration that had to compile, where there is no other. Ours were measured on
{_machine(seeds[0])}, the paper's in MATLAB on 64 cores: compare methods within a column only.

![Seconds and eta by method](figure5.png)

{tables.figure5(lines, seeds[0]).markdown()}{_other_machines(seeds[1:])}"""


def _open_question(lines: Sequence[Line]) -> str:
    return f"""## The open question

Which setting gives the paper's eta of {PAPER_ETA[1600]} at N 1,600 and {PAPER_SVM_ETA} for the SVM?
`python -m studies open` varies the region, the point estimate, the data and the bootstrap, and uses the misprinted
formulas literally.

{tables.by_variant(lines).markdown()}

{_nearest_variants(lines)}

*The misprints.* As printed, the initial particles are weighted by their density once more, which squares the posterior,
and the scale of the kernel moves away from its target acceptance rate, with a covariance that is neither centred nor
normalised. The other misprints (the exponent missing from the effective sample size, the reversed direction, the eta
missing from the first display) cannot be run as printed."""


def _nearest_variants(lines: Sequence[Line]) -> str:
    """Name the variants nearest to the paper's etas, by their ratio to the box on the same data."""
    parts = []
    for paper_eta, n in ((PAPER_SVM_ETA, 462), (PAPER_ETA[1600], 1600)):
        candidates = [(ratio * box_eta, cell) for ratio, box_eta, cell in tables.ratios(lines) if cell.n == n]
        for failed in (False, True):
            selected = [pair for pair in candidates if any(not line.converged for line in pair[1].lines) == failed]
            if selected:
                eta, cell = min(selected, key=lambda pair: abs(np.log(pair[0] / paper_eta)))
                name = (
                    "The nearest variant with failed calibrations" if failed else f"The variant nearest to {paper_eta}"
                )
                notes = sorted({line.note for line in cell.lines if not line.converged})
                parts.append(
                    f"{name} is {cell.problem} ({cell.region}, {cell.number} runs): its ratio to the box corresponds "
                    f"to an eta of {eta:.3f}, which differs by {100 * np.expm1(abs(np.log(eta / paper_eta))):.0f}%."
                    + "".join(f' One of its calibrations reported: "{note}".' for note in notes)
                )
    return " ".join(parts)


def _misspecified(lines: Sequence[Line]) -> str:
    return f"""## Beyond the paper: misspecified models

`python -m studies misspecified`: the same regression, N 400, with errors that are normal; normal with standard
deviation 0.5 + 0.5 |x|; t with 3 degrees of freedom; or normal with one in ten shifted by 5. Squared loss with normal
errors is the control, because there eta = 1 gives the likelihood. The parameter to be covered is the minimiser of the
population risk. The calibrated sets are compared with those of the same posterior at eta = 1 and with Wald sets around
the posterior mean with the sandwich covariance; both are computed from the draws of the posterior
(`calibayes._core.sandwich`), not from a separate fit. Lines with the same errors use the same data.

{_ranges(lines)}

{tables.misspecified(lines).markdown()}"""


def _ranges(lines: Sequence[Line]) -> str:
    """Return the lowest and highest coverage of each method."""
    coverages: dict[str, list[float]] = {}
    for cell in tables.cells(lines):
        coverages.setdefault(cell.sampler, []).append(100 * cell.coverage)
    names = {"transport": "calibrated sets", "eta 1": "sets at eta = 1", "sandwich": "Wald sets"}
    ranges = [
        f"{name} {min(coverages[key]):.1f} to {max(coverages[key]):.1f}%"
        for key, name in names.items()
        if key in coverages
    ]
    beyond = [
        f"{cell.problem}, {cell.region}, {names[cell.sampler]}: {100 * cell.coverage:.1f}"
        for cell in tables.cells(lines)
        if cell.sampler in ("transport", "sandwich") and cell.differs
    ]
    suffix = f" More than three standard errors from 95%, eta = 1 aside: {'; '.join(beyond)}." if beyond else ""
    return f"Range of the coverage over all rows of the table: {', '.join(ranges)}.{suffix}"


def _machine(lines: Sequence[Line]) -> str:
    return tables.timed(lines)[0].lines[0].machine


def _survival(lines: Sequence[Line]) -> str:
    """Return the section about Cox's model; empty if there are no results."""
    if not lines:
        return ""
    return f"""## Beyond the paper: Cox's model

`python -m studies survival`: {N_SURVIVAL} observations with a normal covariate and a treatment, a quarter of them
censored. Without proportional hazards the treatment has no effect any more after time one half; the parameter to be
covered is then the limit of the maximum partial likelihood estimate. "slope" is the log hazard ratio of the treatment.
The sandwich sets are those of Lin and Wei (1989).

{tables.misspecified(lines, "hazards").markdown()}"""
