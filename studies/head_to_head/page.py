"""The pages of the head-to-head, generated from the stored results."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from studies.head_to_head import figures, safebayes, summary, tables
from studies.head_to_head.cells import PRELIMINARY, Cell, cells
from studies.head_to_head.names import AR1, CLUSTERS, FOLDER, LOSSES, REPLICATES, SIZES, WIDE
from studies.records import RecordFolder

DETAILS = "head_to_head_cells.md"


def write(results: Path, docs: Path) -> list[Path]:
    """Write the two pages and the figures.

    Parameters
    ----------
    results : Path
        Folder of the stored results.
    docs : Path
        Folder to write to.

    Returns
    -------
    list of Path
        The pages; empty if there are no results.
    """
    records = RecordFolder(results / FOLDER).lines
    all_cells = cells(records)
    if not all_cells:
        return []
    docs.mkdir(parents=True, exist_ok=True)
    ordinary = [cell for cell in all_cells if cell.loss != WIDE]
    machines = sorted({record.machine for record in records})
    sections = [
        _INTRODUCTION.format(replicates=REPLICATES, preliminary=PRELIMINARY, machines="; ".join(machines)),
        summary.conclusions(ordinary),
        _pooled(ordinary),
        _figures(ordinary, docs),
        *_scoreboards(ordinary),
        *_by_loss(ordinary),
        _joint(ordinary),
        _shapes(all_cells),
        safebayes.section(results),
        _not_compared(ordinary),
    ]
    page, details = docs / "head_to_head.md", docs / DETAILS
    page.write_text("\n\n".join(section for section in sections if section) + "\n")
    details.write_text(_details(ordinary))
    return [page, details]


def short_summary(results: Path) -> str:
    """Return the summary of the readme; empty if there are no results."""
    ordinary = [cell for cell in cells(RecordFolder(results / FOLDER).lines) if cell.loss != WIDE]
    return summary.short(ordinary) if ordinary else ""


_INTRODUCTION = """# Head to head

This page compares 95% intervals for the slope of a regression line by calibayes with those of other software, on the
same simulated data sets. It is generated from `results/head_to_head/` by `make results`; every number is reproducible:

    python -m studies head-to-head                                    # calibayes
    python -m studies.head_to_head.rivals python                      # statsmodels, arch, scikit-learn
    python -m studies.head_to_head.rivals r                           # the R package quantreg

**Data.** `y = 2 + x + e` in seven designs. *normal*: x and e standard normal. *skewed regressor*: x chi-squared
with 4 degrees of freedom minus 2, as in Tanaka (2024). *heteroscedastic*: the same x, standard deviation 0.5 + 0.5 |x|.
*t3*: e from a t distribution with 3 degrees of freedom. *outliers*: one error in twenty shifted by 10. *clusters*: x
and e have correlation 0.5 within clusters (10, 20 and 50 clusters at N = 50, 100 and 400). *AR(1)*: x and e are time
series with autocorrelation 0.5. The parameter to be covered is the minimizer of the population risk
(`studies/head_to_head/designs.py`). In most designs the likelihood that corresponds to the loss is misspecified.

**calibayes.** Prior N(0, 100^2), {replicates} bootstrap replicates, transport without the check by an independent
sampler. `gpc` is the default of `calibrate`, `gpc-studentized` and `matching` are other methods for the learning rate
([](methods.md)), `eta 1` is the posterior without calibration. Clusters use `bootstrap.Cluster` and series
`bootstrap.Block` with blocks of 2 N^(1/3) observations, for which `gpc-studentized` is not available.

**Other software**, with its defaults unless a name says otherwise: statsmodels (OLS with classical, HC3, cluster and
Newey-West covariances; QuantReg; RLM, which estimates the scale that the Huber loss of calibayes takes as known), arch
(percentile, BCa and studentized bootstrap; circular blocks), quantreg in R (rank inversion, nid, wild, cluster and
pairs bootstrap), and a wild cluster bootstrap with the null imposed. Bootstraps have 1,000 replicates.

**Errors.** "SE" is the standard error of a coverage, that of a proportion. Coverages in bold differ from 95% by more
than three of the standard errors that they would have if the true coverage were 95%. A cell is the combination of a
loss, a design and N; cells with fewer than {preliminary} data sets of calibayes are preliminary, marked by an
asterisk. Scores are interval scores (Gneiting and Raftery 2007: width plus 40 times the distance of the true value to
the interval), compared on the same data sets; a difference counts if it exceeds three standard errors. Processor
times were measured while other programs used the machine; they show orders of magnitude. The first calibration of a
model in a process also compiles ([](performance.md)). Hardware and software: {machines}."""


def _not_compared(ordinary: Sequence[Cell]) -> str:
    """Return what the page leaves out: the cells without results, and other work."""
    present = {(cell.loss, cell.n) for cell in ordinary}
    missing = [f"{loss} at N {n}" for n in SIZES for loss in LOSSES if (loss, n) not in present]
    left_out = f"- *{', '.join(missing)}*: the commands include them; they were not run.\n" if missing else ""
    return f"## Not compared\n\n{left_out}{_NOT_COMPARED}"


_NOT_COMPARED = """- *NumPyro at eta 1*: it would sample the same posterior as `eta 1`; the tests compare the sampler of
  calibayes with exact integration, and its intervals with those of NumPyro.
- *Wu and Martin* (arXiv 2012.11349) compare several methods for the learning rate by simulation, and conclude that GPC
  tends to outperform the others in coverage. Only its abstract and introduction were available to us, so that their
  simulations are not repeated here."""


def _pooled(ordinary: Sequence[Cell]) -> str:
    chosen = summary.independent(ordinary)
    names = list(dict.fromkeys(name for cell in chosen for name in cell.columns))
    return f"{_POOLED}\n\n{tables.pooled(chosen, names).markdown()}"


_POOLED = """## Averages over the designs with independent observations

Mean coverage in percent (SE), and mean width relative to `gpc`. Averages are more precise than single cells, but a
method whose errors differ in sign between designs looks better than it is."""


def _figures(ordinary: Sequence[Cell], docs: Path) -> str:
    """Draw coverage against width for every loss at N 100, and return the section that shows the figures."""
    lines = []
    for loss, group in groupby((cell for cell in ordinary if cell.n == 100), key=lambda cell: cell.loss):
        name = f"head_to_head_{loss.replace(' ', '_').replace('.', '')}.png"
        figures.coverage_against_width(list(group), docs / name)
        lines.append(f"![Coverage against width, {loss}, N 100]({name})\n\n*Loss: {loss}, N 100.*")
    return "\n\n".join([_FIGURES, *lines])


_FIGURES = """## Coverage against width

A good method lies on the dotted line, as far left as possible. The grey band is 95% plus or minus three standard
errors. Coverages below 70% are drawn at the bottom edge with their number."""


def _scoreboards(ordinary: Sequence[Cell]) -> list[str]:
    names = list(dict.fromkeys(name for cell in ordinary for name in cell.columns))
    parts = {
        "independent observations": summary.independent(ordinary),
        "clusters": [cell for cell in ordinary if cell.design == CLUSTERS],
        "AR(1)": [cell for cell in ordinary if cell.design == AR1],
    }
    return [
        f"## All methods, {title}\n\n{tables.scoreboard(chosen, names).markdown()}"
        for title, chosen in parts.items()
        if chosen
    ]


def _by_loss(ordinary: Sequence[Cell]) -> list[str]:
    sections = []
    for (loss, n), group in groupby(ordinary, key=lambda cell: (cell.loss, cell.n)):
        table = tables.by_design(list(group)).markdown()
        sections.append(f"## {loss}, N {n}\n\n{_BY_LOSS}\n\n{table}")
    return sections


_BY_LOSS = (
    "Coverage in percent and mean width relative to `gpc`, by design, with the number of data sets of calibayes. "
    f"[All columns]({DETAILS})."
)


def _joint(ordinary: Sequence[Cell]) -> str:
    table = tables.joint(ordinary)
    if not table.rows:
        return ""
    return f"""## Joint sets

Highest posterior density sets of both parameters by calibayes, Wald ellipses by statsmodels; the coverage of the
slope interval is shown for comparison.

{table.markdown()}"""


def _shapes(all_cells: Sequence[Cell]) -> str:
    table = tables.shapes(all_cells)
    if not table.rows:
        return ""
    return f"""## One posterior for all parameters

Least squares with four parameters, N 400; the standard deviation of the errors grows with the distance of the second
regressor from zero. `gpc` calibrates the ellipsoid of all parameters; the columns show the coverage of the four
marginal intervals of that one posterior, with `shape=None` and with `shape="sandwich"`.

{table.markdown()}"""


def _details(ordinary: Sequence[Cell]) -> str:
    parts = ["# Head to head: all cells", _DETAILS]
    parts += [f"## {title}\n\n{table.markdown()}" for title, table in tables.details(ordinary)]
    return "\n\n".join(parts) + "\n"


_DETAILS = """Every method in every cell of [](head_to_head.md). "Too high" and "too low" are the shares of intervals
above and below the true value. Means are over the data sets with an interval. Times are processor times on a shared
machine."""
