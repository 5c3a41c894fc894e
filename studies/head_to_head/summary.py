"""Sentences about the head-to-head, with numbers from the stored results, for its page and the readme."""

from collections.abc import Sequence

from studies.head_to_head.cells import OURS, Cell, difference, having
from studies.head_to_head.names import AR1, CLUSTERS, HETEROSCEDASTIC, UNIT
from studies.head_to_head.tables import average_coverage

STUDENTIZED, MATCHING = OURS[1:3]
LEAST_SQUARES, MEDIAN = "squared", "median"
HC3, QUANTREG = "OLS HC3, t", "statsmodels QuantReg"
RANK = "quantreg rank inversion, iid=FALSE"
SIZES = (50, 100)
LABELS = {name: f"`{name}`" for name in OURS} | {
    HC3: "HC3 with t quantiles",
    RANK: 'rank inversion of quantreg (`se="rank", iid=FALSE`)',
    QUANTREG: "statsmodels `QuantReg`",
    "quantreg nid": '`se="nid"` of quantreg',
    "quantreg wild bootstrap": "wild bootstrap",
    "arch bootstrap, studentized": "studentized bootstrap",
    "OLS cluster, t": "cluster-robust with t quantiles",
    "OLS HAC": "Newey-West",
    "arch block bootstrap, percentile": "block bootstrap",
}


def independent(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells of designs with independent observations."""
    return [cell for cell in cells if cell.design not in (CLUSTERS, AR1)]


def pairs(cells: Sequence[Cell], names: Sequence[str], loss: str, design: str | None = None) -> str:
    """Return the mean coverages of methods at N 50 and N 100, over all cells of a loss or those of one design."""
    texts = []
    for name in names:
        values = []
        for n in SIZES:
            members = [cell for cell in cells if (cell.loss, cell.n) == (loss, n) and design in (None, cell.design)]
            average = average_coverage(members, name)
            values += [] if average is None else [f"{100 * average[0]:.1f} ({100 * average[1]:.1f})"]
        if values:
            texts.append(f"{LABELS.get(name, name)} {' and '.join(values)}")
    return ", ".join(texts)


def coverage_range(cells: Sequence[Cell], name: str) -> str:
    """Return the lowest and highest coverage of a method over cells, in percent."""
    coverages = [100 * float(column.coverage[0]) for _, column in having(cells, name)]
    return f"{min(coverages):.0f} to {max(coverages):.0f}%" if coverages else "unknown"


def verdicts(cells: Sequence[Cell], name: str) -> tuple[int, int, int]:
    """Compare the interval score of a method with those of all other software, cell by cell.

    Parameters
    ----------
    cells : sequence of Cell
        Cells.
    name : str
        Method of calibayes.

    Returns
    -------
    tuple of int
        Number of cells in which the method is clearly better than every other program, in which it is clearly worse
        than some program, and in which neither holds.
    """
    better = worse = neither = 0
    for cell, column in having(cells, name):
        others = [other for label, other in cell.columns.items() if label not in OURS]
        gaps = [difference(column, other, "scores") for other in others]
        if not gaps:
            continue
        is_worse = any(gap.is_clear and gap.mean > 0 for gap in gaps)
        is_better = all(gap.is_clear and gap.mean < 0 for gap in gaps)
        worse, better, neither = worse + is_worse, better + is_better, neither + (not is_worse and not is_better)
    return better, worse, neither


def number_of_datasets(cells: Sequence[Cell]) -> str:
    """Return the range of the numbers of data sets of the cells."""
    numbers = [cell.number for cell in cells]
    return f"{min(numbers):,}" if min(numbers) == max(numbers) else f"{min(numbers):,} to {max(numbers):,}"


def short(cells: Sequence[Cell]) -> str:
    """Return the summary of the readme."""
    chosen = [cell for cell in independent(cells) if cell.loss in (LEAST_SQUARES, MEDIAN)]
    squares = pairs(chosen, (UNIT, "gpc", STUDENTIZED, HC3), LEAST_SQUARES)
    medians = pairs(chosen, (UNIT, "gpc", MATCHING, RANK), MEDIAN)
    number = number_of_datasets(chosen)
    others = min(column.number for cell in chosen for name, column in cell.columns.items() if name in (HC3, RANK))
    units = min(cell.columns[UNIT].number for cell in chosen)
    return f"""Head to head, 95% intervals for a slope: mean coverage in percent (SE) at N 50 and N 100 over five
designs with independent observations. calibayes was run on {number} data sets of each design, other
software on at least {others:,}. `eta 1` is the posterior without calibration (on {units} data sets); its width depends
on the scale of the loss.

- Least squares: {squares}.
- Median regression: {medians}.
- HC3 and rank inversion take milliseconds and cover as well as `gpc` or better: calibayes is for problems without
  such standard intervals, such as other losses, informative priors and joint sets.
  [docs/head_to_head.md](docs/head_to_head.md) has all methods and designs."""


def conclusions(cells: Sequence[Cell]) -> str:
    """Return the conclusions of the page, with the numbers they rest on."""
    chosen = [cell for cell in independent(cells) if cell.loss in (LEAST_SQUARES, MEDIAN)]
    classical = (HC3, "arch bootstrap, studentized")
    quantiles = (RANK, "quantreg nid", "quantreg wild bootstrap", QUANTREG)
    clusters, series = ([cell for cell in cells if cell.design == design] for design in (CLUSTERS, AR1))
    robust = ("gpc", STUDENTIZED, "OLS cluster, t", "wild cluster bootstrap")
    serial = ("gpc", MATCHING, "OLS HAC", "arch block bootstrap, percentile")
    better, worse, neither = verdicts(independent(cells), STUDENTIZED)
    return f"""## Summary

Coverage in percent (SE) at N 50 and at N 100, averaged over the five designs with independent observations unless a
design is named.

1. **Calibration matters.** The posterior at learning rate one covers {coverage_range(chosen, UNIT)}, depending on the
   cell, because its width depends on the scale of the loss relative to that of the errors. Least squares,
   heteroscedastic:
   {pairs(chosen, (UNIT, "gpc"), LEAST_SQUARES, HETEROSCEDASTIC)}.
2. **`gpc`, the default, is too narrow for few observations.** Least squares: {pairs(chosen, ("gpc",), LEAST_SQUARES)};
   median regression: {pairs(chosen, ("gpc",), MEDIAN)}. It is worst for least squares with heteroscedastic errors.
3. **`gpc-studentized`** corrects this for least squares: {pairs(chosen, (STUDENTIZED,), LEAST_SQUARES)};
   heteroscedastic: {pairs(chosen, (STUDENTIZED,), LEAST_SQUARES, HETEROSCEDASTIC)}. For median regression it changes
   less: {pairs(chosen, (STUDENTIZED,), MEDIAN)}.
4. **`matching`**, a formula, suffices for median regression: {pairs(chosen, (MATCHING,), MEDIAN)}. For least squares it
   is as narrow as `gpc`: {pairs(chosen, (MATCHING,), LEAST_SQUARES)}.
5. **Other software** does as well or better where it has a method for the model, in milliseconds. Least squares:
   {pairs(chosen, classical, LEAST_SQUARES)}. Median regression: {pairs(chosen, quantiles, MEDIAN)}.
   The default of statsmodels (`vcov="robust"`) uses one density of the errors for all x; heteroscedastic:
   {pairs(chosen, (QUANTREG, RANK), MEDIAN, HETEROSCEDASTIC)}.
   The interval score of `gpc-studentized` is clearly better than that of every other program in {better} cells, clearly
   worse than that of some program in {worse}, and neither in {neither}.
6. **Clusters** (10 at N 50, 20 at N 100), least squares: {pairs(clusters, robust, LEAST_SQUARES)}.
7. **Time series** with autocorrelation 0.5, least squares: {pairs(series, serial, LEAST_SQUARES)}."""
