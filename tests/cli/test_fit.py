"""The command `fit`: options, output, exit status and files; and the command `report`."""

import dataclasses
import json
import shlex
import sys
import warnings
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import calibayes as cb
import example_results
from calibayes import design
from calibayes._core.status import Code, Severity, Status
from calibayes.cli import app, options
from calibayes.cli import fit as fit_command
from calibayes.cli.options import Loss, Region
from calibayes.cli.output import FitSummary, print_summary
from calibayes.compare import ComparedMethod
from calibayes.design import Design
from calibayes.methods import METHODS
from calibayes.result import Intervals
from calibayes.tables.columns import Selection
from calibayes.tables.linear import LinearModel

N = 60


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    a, b = rng.normal(5, 2, N), rng.exponential(100, N)
    c = np.tile(["u", "v", "w"], N // 3)
    y = 3 + 2 * a - 0.01 * b + (c == "v") + rng.normal(size=N)
    return pd.DataFrame({"a": a, "big b": b, "c": c, "y": y, "label": np.where(y > 12, "yes", "no"), "site": c})


@pytest.fixture(scope="module")
def path(frame, tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "data.csv"
    frame.to_csv(path, index=False)
    return path


def invoke(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args], env={"COLUMNS": "80"})


def error_of(*args):
    """Return the error message about invalid input, without its box; nothing may be written to stdout."""
    outcome = invoke(*args)
    assert outcome.exit_code == 2, outcome.output
    assert outcome.stdout == ""
    return " ".join(outcome.stderr.replace("│", " ").split())


# Before the calibration.


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "--target must name the column to predict"),
        (["--target", "y"], "not numeric: c"),
        (["--target", "label"], "'label' must be numeric; it has values such as 'yes', 'no'. For its two classes, use"),
        (["--target", "c"], """with --formula "I(c == 'u') ~ ."."""),
        (["--target", "label", "--columns", "a"], "'label' must be numeric; it has values such as 'yes', 'no'"),
        (["--target", "y", "--columns", "a", "--loss", "hinge"], "must have two classes for this loss; it has 60"),
        (["--target", "y", "--columns", "a", "--positive", "1"], "--positive is for the losses hinge and logistic"),
        (["--target", "y", "--columns", "a", "--formula", "y ~ a"], "use one of them"),
        (["--formula", "y ~ a", "--no-intercept"], '"y ~ 0 + a"'),
        (["--target", "y", "--loss", "squared", "--tau", "0.5"], "--tau is for the losses quantile and expectile"),
        (["--target", "y", "--tau", "1.5"], "tau must be a number between 0 and 1"),
        (["--target", "y", "--delta", "1"], "--delta is for the loss huber"),
        (["--target", "y", "--columns", "a", "--level", "95"], "For 95% write 0.95"),
        (["--target", "y", "--columns", "a", "--bootstrap", "5"], "at least 20"),
        (["--target", "y", "--save", "result.pkl"], "must end in .nc"),
        (["--target", "y", "--report", "no/such/page.html"], "the folder no/such for page.html does not exist"),
        (["--target", "y", "--loss", "huberr"], "Did you mean huber? Choose one of quantile, absolute"),
        (["--target", "y", "--loss", "median"], "'median' is not available. Did you mean quantile?"),
        (["--target", "y", "--loss", "xyz"], "'xyz' is not available. Choose one of quantile, absolute"),
        (["--target", "y", "--region", "boxes"], "Did you mean box? Choose one of hpd, ellipsoid"),
    ],
)
def test_invalid_options_are_rejected(args, message, path):
    assert message in error_of("fit", path, *args)


def test_missing_file_is_rejected():
    assert "does not exist" in error_of("fit", "nowhere.csv", "--target", "y")


@pytest.fixture
def calls(monkeypatch):
    """Record the arguments of `calibrate` instead of running it."""
    calls = []

    def calibrate(model, data, **options):
        calls.append((model, data, options))
        raise ValueError("enough.")

    monkeypatch.setattr(design, "calibrate", calibrate)
    return calls


def test_options_reach_the_calibration(calls, path, frame):
    line = ["--loss", "quantile", "--tau", "0.25", "--level", "0.9", "--region", "box", "--bootstrap", "50"]
    error_of("fit", path, "--target", "y", "--columns", "a,big b", *line, "--seed", "3")
    [(model, (x, y), settings)] = calls
    assert isinstance(model.loss, cb.losses.Quantile)
    assert float(model.loss.tau) == 0.25
    np.testing.assert_allclose(x, np.column_stack([np.ones(N), frame[["a", "big b"]] - frame[["a", "big b"]].mean()]))
    np.testing.assert_allclose(y, frame["y"] - frame["y"].median())
    names = ["intercept", "a", "big b"]
    assert settings.pop("region").name == "Box"
    expected = {"level": 0.9, "bootstrap": 50, "names": names, "seed": 3, "checkpoint": None}
    assert settings == expected | {"method": "gpc", "shape": None}


def test_method_and_shape_reach_the_calibration(calls, path):
    error_of("fit", path, "--target", "y", "--columns", "a", "--method", "matching", "--shape", "sandwich")
    [(_, _, settings)] = calls
    assert (settings["method"], settings["shape"]) == ("matching", "sandwich")
    assert "Did you mean matching" in error_of("fit", path, "--target", "y", "--method", "match")
    assert set(options.Method) == set(METHODS)


@pytest.mark.parametrize("loss", list(Loss))
def test_every_loss_is_available(loss, calls, path):
    target = "label" if loss in ("hinge", "logistic") else "y"
    delta = ["--delta", "2"] if loss == "huber" else []
    error_of("fit", path, "--target", target, "--columns", "a", "--loss", loss, "--no-intercept", *delta)
    [(model, (x, y), _)] = calls
    assert type(model.loss).__name__.lower() == loss
    assert x.shape == (N, 1)
    model.loss.check(y)


def test_positive_class_can_be_chosen(calls, path, frame):
    error_of("fit", path, "--target", "label", "--columns", "a", "--loss", "logistic", "--positive", "no")
    [(_, (_, y), _)] = calls
    np.testing.assert_array_equal(y == 1, frame["label"] == "no")


def test_cluster_option_uses_the_cluster_bootstrap(calls, path, frame):
    error_of("fit", path, "--formula", "y ~ a", "--cluster", "site", "--bootstrap", "30")
    bootstrap = calls[0][2]["bootstrap"]
    assert isinstance(bootstrap, cb.bootstrap.Cluster)
    assert bootstrap.n_replicates == 30
    np.testing.assert_array_equal(np.asarray(bootstrap.groups), pd.factorize(frame["site"])[0])


def test_default_delta_of_huber_is_1345_robust_standard_deviations(calls, tmp_path):
    """One outlier in a hundred changes the estimate by 1.2%; the tolerance is four of its errors, 1.17 / sqrt(n)."""
    rng = np.random.default_rng(0)
    n = 4000
    x = rng.normal(size=(n, 1))
    y = 2 + x[:, 0] + 3.0 * rng.normal(size=n)
    y[:40] += 1e3 * rng.normal(size=40)
    delta = Design.from_columns(x).default_huber_delta(x, y)
    assert delta == pytest.approx(1.345 * 3.0, rel=4 * 1.17 / n**0.5 + 0.02)
    rows = "\n".join(f"{a:.6g},{b:.6g}" for a, b in zip(x[:, 0], y, strict=True))
    (tmp_path / "t.csv").write_text(f"x,y\n{rows}")
    error_of("fit", tmp_path / "t.csv", "--target", "y", "--loss", "huber")
    [(model, _, _)] = calls
    assert float(model.loss.delta) == pytest.approx(delta, rel=1e-3)


def test_classes_are_explained(capsys):
    status = [Status.CONVERGED] * 2
    intervals = Intervals(["a", "b"], 0.95, np.zeros((2, 2)), np.ones(2), np.ones(2), status, [[], []])
    columns = np.random.default_rng(0).normal(size=(30, 2))
    selection = Selection("sick", pd.Series(dtype=float), ["a", "b"], columns, False, None, None, None, [])
    design = Design.from_columns(columns, intercept=False)
    result = example_results.make_result()
    model = LinearModel(selection, cb.losses.Logistic(), np.ones(30), ["no", "yes"], design)
    print_summary(FitSummary(result, intervals, model, []))
    assert "Positive coefficients favour yes, negative ones no." in " ".join(capsys.readouterr().out.split())


def test_every_region_is_available():
    assert list(Region) == list(cb.regions.REGIONS)


@pytest.mark.parametrize(
    ("line", "completion"), [("--target bi", "big b"), ("--loss hi", "hinge"), ("--region sim", "simultaneous")]
)
def test_shell_completion(line, completion, path):
    words = f"calibayes fit {path} {line}"
    env = {"_CALIBAYES_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    assert CliRunner().invoke(app, [], env=env, prog_name="calibayes").stdout.split("\n")[0] == completion


def test_too_few_rows_for_the_coefficients(frame, tmp_path):
    few = tmp_path / "few.csv"
    frame[:4].to_csv(few, index=False)
    message = error_of("fit", few, "--target", "y", "--columns", "a,big b")
    assert "4 rows are too few for 3 coefficients" in message
    assert "Use at least 6 rows" in message


# With a calibration.

LINE = ("--formula", "y ~ a + `big b` + C(c)")


@pytest.fixture(scope="module")
def folder(path):
    return path.parent


@pytest.fixture(scope="module")
def fitted(path, folder):
    """Return the result of one calibration, and the outcomes of the command as text and as JSON."""
    results = []
    calibrate = Design.calibrate

    def calibrate_once(*args, **options):
        if not results:
            results.append(calibrate(*args, **options))
        return results[0]

    line = ["fit", path, *LINE, "--loss", "squared", "--bootstrap", "200"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Design, "calibrate", calibrate_once)
        patch.setattr(sys, "argv", ["calibayes", "fit", "a table.csv"])
        text = invoke(*line, "--save", folder / "r.nc")
        as_json = invoke(*line, "--json")
    return results[0], text, as_json


@pytest.fixture
def result(fitted, monkeypatch):
    """Let the command use the result of the one calibration."""
    monkeypatch.setattr(Design, "calibrate", lambda *args, **options: fitted[0])
    return fitted[0]


def test_text_output(fitted):
    result, text, _ = fitted
    assert text.exit_code == 0, text.output
    assert text.stderr == ""
    lines = text.stdout.splitlines()
    assert lines[0] == "Least squares regression of y on 4 columns, 60 rows of data.csv."
    assert max(map(len, lines[:-1])) <= 80
    assert f"joint eta  {result.eta:.4g}" in text.stdout
    names = [line.split("  ")[0].strip() for line in lines]
    for name in ("intercept", "a", "big b", "C(c)[T.v]", "C(c)[T.w]"):
        assert name in names
    words = " ".join(text.stdout.split())
    assert f"status converged: {result.status.value}" in words
    assert "note categories are compared with: c = u" in words
    assert "note observations are" not in words
    assert all(diagnostic.message in words for diagnostic in result.diagnostics)


def test_json_output(fitted, frame):
    result, _, as_json = fitted
    assert as_json.exit_code == 0, as_json.output
    assert as_json.stderr == ""
    content = json.loads(as_json.stdout)
    assert content["eta"] == result.eta
    assert content["coverage"] == float(result.coverage)
    assert content["converged"] is True
    assert content["status"] == "CONVERGED"
    assert [entry["code"] for entry in content["diagnostics"]] == [d.code.value for d in result.diagnostics]
    assert content["call"] == "calibayes fit 'a table.csv'"
    assert content["loss"] == {"name": "squared"}
    assert content["notes"] == ["categories are compared with: c = u"]
    assert content["versions"]["calibayes_version"] == cb.__version__
    intervals = result.intervals()
    np.testing.assert_allclose([[c["low"], c["high"]] for c in content["coefficients"]], intervals.bounds)
    # Least squares on the original table, within the Monte Carlo error of the posterior mean.
    columns = np.column_stack([frame["a"], frame["big b"], frame["c"] == "v", frame["c"] == "w"])
    x = np.column_stack([np.ones(N), columns])
    best = np.linalg.lstsq(x, frame["y"], rcond=None)[0]
    means, errors = ([c[name] for c in content["coefficients"]] for name in ("mean", "se"))
    np.testing.assert_allclose(errors, result.bse)
    np.testing.assert_array_less(np.abs(np.subtract(means, best)), 0.2 * np.array(errors))


def test_result_is_saved(fitted, folder):
    result, text, _ = fitted
    assert text.stdout.endswith(f"wrote {folder / 'r.nc'}\n")
    loaded = cb.load(folder / "r.nc")
    assert loaded.eta == result.eta
    np.testing.assert_array_equal(loaded.intervals().bounds, result.intervals().bounds)


def test_report_of_a_saved_result(fitted, folder):
    outcome = invoke("report", folder / "r.nc")
    assert outcome.exit_code == 0, outcome.output
    page = folder / "r.html"
    assert outcome.stdout == f"wrote {page}\n"
    assert f"{fitted[0].eta:.4g}" in page.read_text()
    assert "calibrated at its own learning rate" in page.read_text()
    assert "sum over observations of half squared errors; the prior is normal, independent" in page.read_text()
    assert "calibayes fit &#x27;a table.csv&#x27;" in page.read_text()
    assert "it does not end with a checksum" in error_of("report", Path(__file__), "-o", page)
    assert f"{page.name} exists: write to another file with --out" in " ".join(
        error_of("report", folder / "r.nc").split()
    )
    assert invoke("report", folder / "r.nc", "-o", page, "--title", "Fuel").exit_code == 0
    assert "<title>Fuel" in page.read_text()


class Tags(HTMLParser):
    """Names of elements and attributes, the text of scripts, and all visible text."""

    def __init__(self, page):
        super().__init__()
        self.seen, self.scripts, self.visible, self.inside = set(), [], "", None
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag, attributes):
        self.seen |= {tag, *dict(attributes)}
        self.scripts += [""] if tag == "script" else []
        self.inside = tag

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1] += data
        else:
            self.visible += data


def test_markup_in_a_table_is_escaped_in_the_report(fitted, monkeypatch, frame, tmp_path):
    """Markup in column names, in a category, in the file name and in the command."""
    column, label, target = "<script>alert(1)</script>", "z</script><img src=x onerror='alert(2)'>", '<u>"y" & z</u>'
    table = tmp_path / "<s>&.csv"
    frame.replace({"c": {"v": label}}).rename(columns={"c": column, "y": target}).to_csv(table, index=False)

    def calibrate(design, loss, columns, y, *, names, call, **options):
        """Return the result of the one calibration with the names of this table."""
        result, words = fitted[0], design.names(names)
        own = dataclasses.replace(result.intervals(), names=words)
        return dataclasses.replace(
            result, names=words, settings=result.settings | {"call": call}, calibration=None, saved_intervals=own
        )

    monkeypatch.setattr(Design, "calibrate", calibrate)
    line = ["fit", str(table), "--target", target, "--formula", f"a + `big b` + C(`{column}`)"]
    monkeypatch.setattr(sys, "argv", ["calibayes", *line])
    outcome = invoke(*line, "--report", tmp_path / "page.html", "--save", tmp_path / "r.nc")
    assert outcome.exit_code == 0, outcome.output
    assert invoke("report", tmp_path / "r.nc", "-o", tmp_path / "loaded.html").exit_code == 0
    for name in ("page.html", "loaded.html"):
        page = Tags(tmp_path / name)
        assert len(page.scripts) == 2
        assert not {"img", "onerror", "u", "s"} & page.seen
        assert f"{column})[T.{label}]" in page.visible.replace("`", "")
        assert shlex.join(["calibayes", *line]) in page.visible
        assert "<script>alert" not in (tmp_path / name).read_text("utf-8")


@pytest.mark.usefixtures("result")
def test_intercept_far_outside_the_data_is_mentioned(fitted, frame, tmp_path):
    output = " ".join(fitted[1].stdout.split())
    assert "The intercept is the prediction where every column is zero. " in output
    frame.assign(a=frame["a"] + 2000).to_csv(tmp_path / "years.csv")
    text = invoke("fit", tmp_path / "years.csv", *LINE)
    assert "where every column is zero, far outside the range of the data (a)." in " ".join(text.stdout.split())


def test_result_that_did_not_converge_has_exit_status_one(fitted, monkeypatch, path):
    finding = example_results.make_diagnostic(Code.NO_CROSSING, Severity.ERROR, 0, "It went wrong.")

    def calibrate(*args, **options):
        warnings.warn("X: its columns are collinear.", cb.CalibrationWarning, stacklevel=1)
        warnings.warn("calibration: It went wrong.", cb.NotConvergedWarning, stacklevel=1)
        return dataclasses.replace(fitted[0], status=Status.NO_CROSSING, diagnostics=[finding])

    monkeypatch.setattr(Design, "calibrate", calibrate)
    text = invoke("fit", path, *LINE)
    assert text.exit_code == 1
    assert text.stderr == ""
    output = " ".join(text.stdout.split())
    assert f"status NOT CONVERGED: {Status.NO_CROSSING.value}" in output
    assert "error It went wrong." in output
    assert output.count("It went wrong") == 1
    assert "note X: its columns are collinear." in output
    as_json = invoke("fit", path, *LINE, "--json")
    assert as_json.exit_code == 1
    content = json.loads(as_json.stdout)
    assert content["converged"] is False
    assert content["status"] == "NO_CROSSING"
    assert content["diagnostics"] == [
        {"code": "no-crossing", "severity": "ERROR", "count": 0, "message": "It went wrong."}
    ]
    assert "X: its columns are collinear." in content["notes"]


def test_interval_that_did_not_converge_is_named(result, monkeypatch, path):
    finding = example_results.make_diagnostic(Code.NO_CROSSING, Severity.ERROR, 0, "No eta covers.")
    failed = dataclasses.replace(
        result.intervals(),
        status=[Status.CONVERGED, Status.NO_CROSSING, *[Status.CONVERGED] * 3],
        diagnostics=[[], [finding], [], [], []],
        eta_se=np.array([0.1, np.inf, 0.1, 0.1, 0.1]),
    )

    def intervals(self):
        warnings.warn("calibration of a: No eta covers.", cb.NotConvergedWarning, stacklevel=1)
        return failed

    monkeypatch.setattr(cb.Result, "intervals", intervals)
    text = invoke("fit", path, *LINE)
    assert text.exit_code == 1
    output = " ".join(text.stdout.split())
    assert f"NOT CONVERGED: a: {Status.NO_CROSSING.value}" in output
    assert "error a: No eta covers." in output
    assert output.count("No eta covers") == 1
    assert json.loads(invoke("fit", path, *LINE, "--json").stdout)["coefficients"][1]["eta_se"] is None


def test_diagnostic_of_an_interval_is_printed_with_its_name(result, monkeypatch, path):
    finding = example_results.make_diagnostic(Code.ESS_LOW, message="Few particles.")
    noted = dataclasses.replace(result.intervals(), diagnostics=[[], [finding], [], [], []])

    def intervals(self):
        warnings.warn("calibration of a: Few particles.", cb.CalibrationWarning, stacklevel=1)
        return noted

    monkeypatch.setattr(cb.Result, "intervals", intervals)
    text = invoke("fit", path, *LINE)
    assert text.exit_code == 0
    output = " ".join(text.stdout.split())
    assert "warning a: Few particles." in output
    assert output.count("Few particles.") == 1


def test_long_runs_are_announced_at_once(capsys):
    with fit_command._recorded_warnings() as recorded:
        warnings.warn("replicates are sampled", cb.LongRunWarning, stacklevel=1)
        assert "Note: replicates are sampled" in capsys.readouterr().err
        warnings.warn("something is wrong", cb.CalibrationWarning, stacklevel=1)
        assert capsys.readouterr().err == ""
    assert [str(warning) for warning in recorded] == ["something is wrong"]


@pytest.mark.usefixtures("result")
def test_comparison_is_printed_and_added_to_the_report(fitted, path, folder, monkeypatch):
    result = fitted[0]
    failed = ComparedMethod("matching", None, None, 0.5, "No particles.")
    rows = (ComparedMethod("gpc", result, result.intervals(), 1.0), failed)
    comparison = cb.Comparison(rows, result.level, tuple(result.names))
    monkeypatch.setattr(fit_command, "compare_with", lambda *args, **options: comparison)
    text = invoke("fit", path, *LINE, "--compare", "--report", folder / "compared.html")
    assert text.exit_code == 0, text.output
    lines = text.stdout.splitlines()
    assert any(line.startswith("gpc") and "CONVERGED" in line for line in lines)
    assert any(line.startswith("matching") and "FAILED" in line for line in lines)
    assert "Comparison of methods" in (folder / "compared.html").read_text("utf-8")
    content = json.loads(invoke("fit", path, *LINE, "--compare", "--json").stdout)
    assert [row["method"] for row in content["comparison"]] == ["gpc", "matching"]
    assert content["comparison"][1]["eta"] is None
    assert "comparison" not in json.loads(invoke("fit", path, *LINE, "--json").stdout)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a folder in which nobody can make a file")
def test_output_file_that_cannot_be_written_is_an_error_before_the_calibration(path, monkeypatch):
    monkeypatch.setattr(LinearModel, "calibrate", None)
    line = ("fit", path, "--target", "y", "--columns", "a")
    assert "/proc/table.csv cannot be written" in error_of(*line, "--table", "/proc/table.csv")


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_failed_write_loses_neither_the_results_nor_the_other_files(fitted, path, tmp_path, monkeypatch, options):
    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fit_command, "write_report", fail)
    page, table = tmp_path / "page.html", tmp_path / "table.csv"
    outcome = invoke("fit", path, *LINE, "--report", page, "--table", table, *options)
    assert outcome.exit_code == 1
    assert "page.html was not written: No space left on device." in outcome.stderr.replace("\n", "")
    assert table.exists()
    if options:
        assert json.loads(outcome.stdout)["converged"]
    else:
        assert "intercept" in outcome.stdout
        assert f"wrote {table}" in outcome.stdout.replace("\n", "")


@pytest.mark.usefixtures("result")
@pytest.mark.parametrize(
    ("suffix", "first"),
    [
        (".tex", r"\begin{tabular}{lrrrrr}"),
        (".md", "| parameter | mean | se |"),
        (".csv", "parameter,mean,se,low,high,"),
    ],
)
def test_table_of_coefficients_is_written(fitted, path, folder, suffix, first):
    table = folder / f"table{suffix}"
    outcome = invoke("fit", path, *LINE, "--table", table)
    assert outcome.stdout.endswith(f"wrote {table}\n")
    assert table.read_text().startswith(first)
    assert "C(c)[T.v]" in table.read_text().replace("\\", "")
    assert "must end in .tex or .md or .csv" in error_of("fit", path, *LINE, "--table", folder / "table.doc")


def test_strict_fails_if_there_are_warnings(fitted, monkeypatch, path):
    for severity, code in ((Severity.INFO, 0), (Severity.WARNING, 1)):
        finding = example_results.make_diagnostic(Code.FEW_OBSERVATIONS, severity)
        changed = dataclasses.replace(fitted[0], diagnostics=[finding])
        monkeypatch.setattr(Design, "calibrate", lambda *args, changed=changed, **options: changed)
        assert invoke("fit", path, *LINE).exit_code == 0
        assert invoke("fit", path, *LINE, "--strict").exit_code == code


def test_blocks_are_passed_to_the_bootstrap(calls, path):
    error_of("fit", path, "--target", "y", "--columns", "a", "--block", "6", "--bootstrap", "50")
    [(_, _, options)] = calls
    assert options["bootstrap"] == cb.bootstrap.Block(50, 6)
    message = error_of("fit", path, "--target", "y", "--columns", "a", "--block", "6", "--cluster", "site")
    assert "--block cannot be combined with clusters or strata" in message
