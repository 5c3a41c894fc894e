"""The head-to-head: its data, the other software, the stored records, tables and pages."""

import importlib.util
import math
import shutil

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from studies.cli import app
from studies.head_to_head import cells, designs, names, ours, page, quantreg, rivals, safebayes, summary, tables
from studies.head_to_head.wild import WildClusterTest
from studies.records import Outcome, Record, RecordFolder

SCORES = {
    "median": lambda e: np.sign(e) / 2,
    "squared": lambda e: e,
    "tau 0.9": lambda e: designs.TAU - (e < 0),
    "huber": lambda e: np.clip(e, -designs.HUBER_DELTA, designs.HUBER_DELTA),
}


# Data


@pytest.mark.parametrize("design", names.DESIGNS)
def test_expected_score_is_zero_at_the_truth(design):
    """The mean scores of 40,000 observations are within 4.5 standard errors of zero.

    Those of clusters and of series have a variance inflation of 1 + 7 * 0.25 = 2.75 and 1 + 2 * 0.25 / 0.75 = 1.67.
    """
    n, inflation = 40_000, {names.CLUSTERS: 2.75, names.AR1: 1.67}.get(design, 1.0) ** 0.5
    part = 400 if design == names.CLUSTERS else n
    for loss in names.LOSSES:
        draws = [designs.draw(loss, design, part, seed) for seed in range(n // part)]
        x, y = np.concatenate([draw.x for draw in draws]), np.concatenate([draw.y for draw in draws])
        prediction = x @ designs.truth(loss, design)
        margin = y * prediction
        score = {
            "logistic": lambda y=y, margin=margin: y / (1 + np.exp(margin)),
            "hinge": lambda y=y, margin=margin: y * (margin < 1),
        }.get(loss, lambda loss=loss, e=y - prediction: SCORES[loss](e))()
        terms = score[:, None] * x
        assert (np.abs(terms.mean(0)) < 4.5 * inflation * terms.std(0) / math.sqrt(n)).all(), loss


def test_truths_in_closed_form():
    assert designs.truth("squared", names.OUTLIERS) == pytest.approx((2.5, 1.0), abs=1e-8)
    assert designs.truth("tau 0.9", names.T3) == pytest.approx((2 + stats.t(3).ppf(0.9), 1.0), abs=1e-8)
    assert designs.truth("huber", names.HETEROSCEDASTIC) == pytest.approx((2.0, 1.0), abs=1e-8)


def test_losses_of_the_library_are_those_of_the_truth():
    """The derivative of each loss is the score, at residuals and margins of both signs."""
    import jax

    for loss, score in SCORES.items():
        rho = ours.LOSSES[loss]().rho
        residuals = np.array([-3.0, -0.4, 0.6, 2.0])
        slopes = [-float(jax.grad(lambda a, e=e, rho=rho: rho(a, jax.numpy.float32(e)))(0.0)) for e in residuals]
        np.testing.assert_allclose(slopes, score(residuals), rtol=1e-5)


def test_dependent_designs_have_the_stated_correlations():
    """Correlations of 40,000 values in clusters and in series have errors below 0.02."""
    clustered = [designs.draw("squared", names.CLUSTERS, 400, seed) for seed in range(100)]
    pairs = np.concatenate([np.column_stack([d.x[::2, 1], d.x[1::2, 1]]) for d in clustered])
    assert np.corrcoef(pairs.T)[0, 1] == pytest.approx(0.5, abs=0.05)
    assert [len(np.unique(designs.draw("median", names.CLUSTERS, n, 0).groups)) for n in names.SIZES] == [10, 20, 50]
    series = designs.draw("squared", names.AR1, 40_000, 0).x[:, 1]
    assert np.corrcoef(series[1:], series[:-1])[0, 1] == pytest.approx(0.5, abs=0.02)


def test_wide_problem_has_its_truth():
    data = designs.draw(names.WIDE, names.HETEROSCEDASTIC, 100_000, 0)
    np.testing.assert_allclose(np.linalg.lstsq(data.x, data.y)[0], designs.WIDE_THETA, atol=0.05)


def test_cases_are_ordered_by_data_set():
    cases = ours.cases([3, 4], ("median", names.WIDE), names.DESIGNS, (50, 100))
    assert len(cases) == len(set(cases)) == 2 * (7 * 2 + 1)
    assert [case.dataset for case in cases] == [3] * 15 + [4] * 15


# calibayes


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::calibayes.CalibrationWarning")
@pytest.mark.parametrize(
    ("problem", "n"), [("median, heteroscedastic", 50), ("squared, AR(1)", 50), ("squared K 4, heteroscedastic", 400)]
)
def test_case_stores_every_method(problem, n):
    (record,) = ours.run_case(ours.cases([0], [problem.split(", ")[0]], [problem.split(", ")[1]], [n])[0])
    assert (record.problem, record.n) == (problem, n)
    if problem.startswith(names.WIDE):
        assert [len(outcome.intervals) for outcome in record.methods.values()] == [4, 4]
        return
    assert list(record.methods) == [*cells.OURS]
    widths = {name: np.ptp(outcome.intervals[0]) for name, outcome in record.methods.items() if outcome.intervals}
    # The methods agree within a factor of 1.5; blocks have no studentized calibration.
    assert 1 / 1.5 < widths["gpc"] / widths["matching"] < 1.5
    assert ("gpc-studentized" in widths) == (problem != "squared, AR(1)")


@pytest.mark.slow
def test_posterior_at_eta_one_is_that_of_numpyro():
    """Quantiles of 4,000 draws have an error of 4% of the standard deviation; NUTS has half as many effective ones."""
    import jax
    import numpyro
    from numpyro.infer import MCMC, NUTS

    data = designs.draw("huber", names.HETEROSCEDASTIC, 50, 0)
    loss = ours.LOSSES["huber"]()

    def model(x, y):
        theta = numpyro.sample("theta", numpyro.distributions.Normal(0, 100).expand([2]))
        numpyro.factor("risk", -jax.vmap(loss.rho)(x @ theta, y).sum())

    chains = MCMC(NUTS(model), num_warmup=500, num_samples=4000, progress_bar=False)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        chains.run(jax.random.key(0), jax.numpy.asarray(data.x), jax.numpy.asarray(data.y))
    draws = np.asarray(chains.get_samples()["theta"])[:, names.SLOPE]
    (record,) = ours.run_case(ours.cases([0], ["huber"], [names.HETEROSCEDASTIC], [50])[0])
    bounds = record.methods[names.UNIT].intervals[0]
    np.testing.assert_allclose(bounds, np.quantile(draws, [0.025, 0.975]), atol=5 * 0.07 * draws.std())


# Other software


def test_wild_cluster_bootstrap_inverts_its_test():
    data = designs.draw("squared", names.CLUSTERS, 100, 0)
    wild = WildClusterTest(data.x, data.y, data.groups, 499, 0)
    low, high = wild.interval(0.95)
    assert low < np.linalg.lstsq(data.x, data.y)[0][1] < high
    for inside, outside in ((low + 0.02, low - 0.02), (high - 0.02, high + 0.02)):
        assert wild.p_value(inside) > 0.05 > wild.p_value(outside)


def test_wild_cluster_statistic_is_the_cluster_robust_one():
    """For the data themselves the statistic is that of Liang and Zeger, up to its factor for small samples."""
    data = designs.draw("squared", names.CLUSTERS, 50, 1)
    fit = np.linalg.lstsq(data.x, data.y)[0]
    bread = np.linalg.inv(data.x.T @ data.x)
    sums = np.array([(data.x * (data.y - data.x @ fit)[:, None])[data.groups == g].sum(0) for g in range(10)])
    covariance = bread @ sums.T @ sums @ bread
    wild = WildClusterTest(data.x, data.y, data.groups, 9, 0)
    assert wild.t_statistics(data.y[None])[0] == pytest.approx(fit[1] / covariance[1, 1] ** 0.5)


@pytest.mark.skipif(importlib.util.find_spec("statsmodels") is None, reason="statsmodels is not installed")
def test_python_software_is_stored(tmp_path):
    folder = RecordFolder(tmp_path)
    rivals.run_python(folder, [("squared", names.HETEROSCEDASTIC, 50), ("median", names.T3, 50)], [0])
    least_squares, median = folder.lines[1], folder.lines[0]
    assert all(outcome.status == "COMPUTED" for outcome in (*least_squares.methods.values(), *median.methods.values()))
    assert 0 < least_squares.methods["OLS HC3"].level < 1


@pytest.mark.skipif(shutil.which("Rscript") is None, reason="R is not installed")
def test_quantreg_is_stored():
    records = list(quantreg.run_batch("median", names.NORMAL, 50, [0, 1]))
    assert [record.dataset for record in records] == [0, 1]
    low, high = records[0].methods["quantreg rank inversion"].intervals[0]
    assert low < high


def test_missing_software_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(SystemExit, match="Rscript not found"):
        quantreg.run(RecordFolder(tmp_path), [("median", names.T3, 50)], [0])
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr("sys.argv", ["rivals", "python", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="statsmodels, arch, sklearn not installed"):
        rivals.main()


def test_safe_bayes_minimizes_the_conjugate_sums():
    """One observation after two: the prediction is a + b x of the posterior mean, by hand for x at zero."""
    x, y = np.array([1.0, -1.0, 0.0]), np.array([1.0, 3.0, 5.0])
    # With x symmetric around zero the intercept is the mean, shrunk by a prior precision of 1e-4.
    means = [eta * 4 / (2 * eta + 1e-4) for eta in safebayes.ETAS]
    np.testing.assert_allclose(safebayes.conjugate_sums(x, y, 1.0), [(5 - mean) ** 2 for mean in means])


# Records, tables and pages


def make_record(dataset, level=0.5, problem="squared, normal", n=50, shift=0.0, source=names.OURS):
    methods = {
        name: Outcome(1.5, level, [(1 - width + shift, 1 + width + shift)], "CONVERGED", 0.25)
        for name, width in (("gpc", 1.0), ("matching", 1.25), ("gpc-studentized", 1.5))
    }
    methods["eta 1"] = Outcome(math.nan, math.inf, [], "It went wrong.", 0.5)
    return Record(problem, n, dataset, source, methods, "2 x chip")


def test_records_are_read_back(tmp_path):
    folder = RecordFolder(tmp_path / "new")
    folder.add([make_record(1), make_record(0), make_record(0, problem="tau 0.9, t3", n=100)])
    folder = RecordFolder(tmp_path / "new")
    assert sorted(path.name for path in folder.path.iterdir()) == [
        "squared_50_calibayes.jsonl.gz",
        "tau-0.9_100_calibayes.jsonl.gz",
    ]
    assert folder.lines[0].methods["gpc"] == make_record(1).methods["gpc"]
    assert math.isinf(folder.lines[0].methods["eta 1"].level)
    assert make_record(0).key in folder
    folder.compact()
    assert [record.dataset for record in RecordFolder(folder.path).lines] == [0, 1, 0]


def test_other_file_is_rejected(tmp_path):
    import gzip

    (tmp_path / "other.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n'))
    with pytest.raises(ValueError, match="is not a results file of this study"):
        RecordFolder(tmp_path)


def test_columns_summarise_intervals():
    """Intervals of half-width 1 around 1 + shift: of the shifts 0, 2 and -1.5 the last two miss."""
    (cell,) = cells.cells([make_record(k, shift=shift) for k, shift in enumerate([0.0, 2.0, -1.5])])
    column = cell.columns["gpc"]
    assert (column.number, column.failures) == (3, 0)
    assert column.coverage[0] == pytest.approx(1 / 3)
    assert (column.too_high.mean(), column.too_low.mean()) == (pytest.approx(1 / 3), pytest.approx(1 / 3))
    np.testing.assert_allclose(column.scores[:, 0], [2.0, 2 + 40 * 1.0, 2 + 40 * 0.5])
    assert "eta 1" not in cell.columns


def test_differences_are_paired():
    records = [make_record(k, shift=1.1) for k in range(8)] + [make_record(k) for k in range(8, 10)]
    (cell,) = cells.cells(records)
    gap = cells.difference(cell.columns["gpc"], cell.columns["matching"], "covered")
    assert gap.mean == pytest.approx(-0.8)
    assert gap.se == pytest.approx(np.std([1] * 8 + [0] * 2, ddof=1) / math.sqrt(10))
    assert gap.is_clear
    width = cells.difference(cell.columns["gpc"], cell.columns["matching"], "widths")
    assert (width.mean, width.se) == (pytest.approx(-0.5), pytest.approx(0.0))


def test_tables_of_known_records():
    records = [make_record(k, problem=f"squared, {names.SKEWED}", shift=1.1 * (k < 5)) for k in range(10)]
    summarised = cells.cells(records)
    rows = {row[0]: row[1] for row in tables.by_design(summarised).rows}
    assert rows == {"gpc": "**50.0** x1.00", "gpc-studentized": "100.0 x1.50", "matching": "100.0 x1.25"}
    board = {row[0]: row[1:5] for row in tables.scoreboard(summarised, cells.OURS).rows}
    assert board["gpc"] == ["1", "1", "0", "50.0 to 50.0"]
    assert tables.joint(summarised).rows[0][3:5] == ["100.0", "**50.0**"]


def test_summary_averages_over_designs():
    """Of ten data sets of two designs, five and none are missed by plain GPC: 75%."""
    records = [
        make_record(k, problem=f"squared, {design}", n=n, shift=1.1 * (k < 5 and design == names.T3))
        for design in (names.T3, names.NORMAL)
        for n in (50, 100)
        for k in range(10)
    ]
    summarised = cells.cells(records)
    # With two successes and two failures added: 7 and 12 of 14.
    se = 100 * math.sqrt((7 * 7 + 12 * 2) / 14**3) / 2
    assert summary.pairs(summarised, ("gpc", "OLS"), "squared") == f"`gpc` 75.0 ({se:.1f}) and 75.0 ({se:.1f})"
    assert summary.pairs(summarised, ("matching",), "squared", names.T3).startswith("`matching` 100.0")
    assert summary.coverage_range(summarised, "gpc") == "50 to 100%"
    assert summary.number_of_datasets(summarised) == "10"


def test_verdicts_compare_scores_with_every_other_program():
    """Half-widths 1.5 of the studentized method against 1 and 2 of others, all of which contain the true value."""
    records = []
    for k in range(10):
        records.append(make_record(k))
        others = {"narrow": 1.0 + k / 1000, "wide": 2.0 + k / 1000}
        for name in others if k % 2 else ["wide"]:
            interval = (1 - others[name], 1 + others[name])
            methods = {name: Outcome(math.nan, math.nan, [interval], "COMPUTED", 0.0)}
            records.append(Record("squared, normal", 50, k, f"{name} program", methods, ""))
    summarised = cells.cells(records)
    assert summary.verdicts(summarised, "gpc-studentized") == (0, 1, 0)
    wide_only = cells.cells([record for record in records if record.source != "narrow program"])
    assert summary.verdicts(wide_only, "gpc-studentized") == (1, 0, 0)
    assert summary.verdicts(cells.cells([make_record(0)]), "gpc-studentized") == (0, 0, 0)


def test_pages_show_the_records(tmp_path):
    records = [make_record(k, problem=f"{loss}, normal", n=100) for k in range(3) for loss in ("median", "squared")]
    wide = Outcome(0.2, 0.5, [(-9.0, 9.0)] * 4, "CONVERGED", 1.0)
    methods = {"gpc": wide, f"{names.SANDWICH}gpc": wide._replace(level=0.97)}
    records += [Record(f"{names.WIDE}, {names.HETEROSCEDASTIC}", 400, 0, names.OURS, methods, "2 x chip")]
    RecordFolder(tmp_path / names.FOLDER).add(records)
    written = page.write(tmp_path, tmp_path / "docs")
    assert [path.name for path in written] == ["head_to_head.md", "head_to_head_cells.md"]
    text = written[0].read_text()
    assert "| sandwich | 1 | **0.0** | 100.0 | 100.0 | 100.0 | 100.0 | 21.8 |" in text
    assert "| normal * | gpc | 3 | 100.0 (17.1) | 0.0 | 0.0 | 2 | 2 | 2 | 250 | 0 |" in written[1].read_text()
    assert (tmp_path / "docs" / "head_to_head_median.png").stat().st_size > 5_000
    assert page.write(tmp_path / "nothing", tmp_path) == []


def test_command_stores_and_prints(monkeypatch, tmp_path):
    monkeypatch.setattr(ours, "run_case", lambda case: [make_record(case.dataset, 0.5, case.problem, case.n)])
    monkeypatch.setattr("studies.cli.ONE_THREAD", {})
    line = ["head-to-head", "--datasets", "3", "--loss", "squared", "--design", "normal", "--n", "50"]
    done = CliRunner().invoke(app, [*line, "--processes", "1", "--out", str(tmp_path)], env={"COLUMNS": "160"})
    assert done.exit_code == 0, done.output
    assert "gpc-studentized" in done.output
    assert [record.dataset for record in RecordFolder(tmp_path).lines] == [0, 1, 2]


def test_failed_case_is_stored(monkeypatch):
    def fail(*_, **__):
        raise ValueError("too few observations")

    monkeypatch.setattr(ours.cb, "calibrate", fail)
    (record,) = ours.run_case(ours.cases([0], ["median"], ["t3"], [50])[0])
    assert {outcome.status for outcome in record.methods.values()} == {"too few observations"}
