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
from calibayes import design
from calibayes.cli import app, tables
from calibayes.cli import fit as fit_cli
from calibayes.design import Design

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
    """What was said of bad input, without the box around it; nothing is to go to a pipe."""
    result = invoke(*args)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    return " ".join(result.stderr.replace("│", " ").split())


# Of a table.


def test_the_same_table_from_every_kind_of_file(frame, tmp_path):
    some = frame[["a", "c"]]
    some.to_csv(tmp_path / "t.csv", index=False)
    some.to_csv(tmp_path / "semi.csv", index=False, sep=";")
    some.to_csv(tmp_path / "t.csv.gz", index=False)
    some.to_csv(tmp_path / "t.tsv", index=False, sep="\t")
    some.to_csv(tmp_path / "with_rows.csv")
    some.to_csv(tmp_path / "bom.csv", index=False, encoding="utf-8-sig")
    some.to_parquet(tmp_path / "t.parquet")
    for name in ("t.csv", "semi.csv", "t.csv.gz", "t.tsv", "with_rows.csv", "bom.csv", "t.parquet"):
        read = tables.read_table(tmp_path / name)
        assert list(read.columns) == ["a", "c"], name
        np.testing.assert_array_equal(read["a"], some["a"])
        assert tables.read_header(tmp_path / name)[-2:] == ["a", "c"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("t.csv", b"", "cannot be read as csv"),
        ("t.csv", b"a,b\n", "has no rows"),
        ("t.csv", "a,b\ncaf\xe9,1\n".encode("latin-1"), "UTF-8"),
        ("t.csv.gz", b"a,b\n1,2\n", "cannot be read as csv.gz"),
        ("t.parquet", b"a,b\n1,2\n", "cannot be read as parquet"),
        ("t.xlsx", b"", "must end in one of .csv"),
    ],
)
def test_what_is_no_table(name, content, said, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=said):
        tables.read_table(tmp_path / name)


def test_names_of_rows_are_not_a_column(tmp_path):
    (tmp_path / "r.csv").write_text('"","mpg","cyl"\n"Mazda RX4",21,6\n"Datsun 710",22.8,4\n')
    assert list(tables.read_table(tmp_path / "r.csv").columns) == ["mpg", "cyl"]


def test_a_sign_for_missing(tmp_path):
    (tmp_path / "t.csv").write_text("y,a\n1,2\n2,?\n3,4\n5,5\n")
    with pytest.raises(ValueError, match=r"a would be numbers, but for '\?'.*--na '\?'"):
        tables.select_columns(tables.read_table(tmp_path / "t.csv"), "y")
    read = tables.read_table(tmp_path / "t.csv", ["?"])
    with pytest.raises(ValueError, match=r"1 of 4 rows have missing values, in a \(1\).*--drop-missing"):
        tables.select_columns(read, "y")
    chosen = tables.select_columns(read, "y", drop_missing=True)
    np.testing.assert_array_equal(chosen.columns, [[2], [4], [5]])
    np.testing.assert_array_equal(chosen.y, [1, 3, 5])
    assert chosen.notes == ["left out: 1 of 4 rows, with missing values in a (1)"]


def test_only_columns_that_are_used_must_be_complete():
    table = pd.DataFrame({"y": [1.0, 2, 3], "a": [1.0, 2, 4], "b": [np.nan, 1, 2]})
    assert len(tables.select_columns(table, "y", columns="a").columns) == 3
    assert len(tables.select_columns(table, None, formula="y ~ a").columns) == 3
    for formula in ("y ~ np.sqrt(b)", "y ~ poly(b, 1)", "b ~ a"):
        with pytest.raises(ValueError, match=r"missing values, in b \(1\)"):
            tables.select_columns(table, None, formula=formula)


def test_text_is_named_with_two_ways_out(frame):
    with pytest.raises(ValueError, match="not numbers: c") as caught:
        tables.select_columns(frame.drop(columns=["label", "site"]), "y")
    assert "--columns 'a,big b'" in str(caught.value)
    assert "--formula 'y ~ a + C(c)'" in str(caught.value)


def test_close_names_are_offered(frame):
    with pytest.raises(ValueError, match=r"no column 'Bigb'. Did you mean 'big b'\?"):
        tables.select_columns(frame, "y", columns="a,Bigb")
    with pytest.raises(ValueError, match=r"no column 'zzz'. There are a, big b, c, y, label, site"):
        tables.select_columns(frame, "zzz")
    with pytest.raises(ValueError, match=r"no column 'lable'. Did you mean 'label'\?"):
        tables.select_columns(frame, None, formula="lable ~ a")
    with pytest.raises(ValueError, match=r"no column 'sites'. Did you mean 'site'\?"):
        tables.select_columns(frame, None, formula="y ~ C(sites)")


def test_columns_of_one_value_are_left_out():
    table = pd.DataFrame({"y": [1.0, 2, 3], "a": [1.0, 2, 4], "one": [1, 1, 1]})
    chosen = tables.select_columns(table, "y")
    assert chosen.names == ["a"]
    assert chosen.notes == ["left out: one, the same in every row"]
    assert tables.select_columns(table, "y", intercept=False).names == ["a", "one"]


def test_formula(frame):
    chosen = tables.select_columns(frame, None, formula="np.exp(y) ~ np.log(`big b`) + C(c)")
    assert chosen.target == "np.exp(y)"
    np.testing.assert_allclose(chosen.y, np.exp(frame["y"]))
    assert chosen.names == ["np.log(`big b`)", "C(c)[T.v]", "C(c)[T.w]"]
    np.testing.assert_allclose(chosen.columns[:, 0], np.log(frame["big b"]))
    np.testing.assert_array_equal(chosen.columns[:, 1], frame["c"] == "v")
    assert chosen.intercept
    assert not tables.select_columns(frame, None, formula="y ~ 0 + a").intercept


def test_a_dot_is_all_the_others(frame):
    chosen = tables.select_columns(frame.drop(columns=["label"]), None, formula="y ~ .", cluster="site")
    assert chosen.names == ["a", "big b", "c[T.v]", "c[T.w]"]
    assert list(chosen.groups) == list(frame["site"])


@pytest.mark.parametrize(
    ("formula", "said"),
    [
        ("y ~ (a", "--formula: Could not find"),
        ("y ~ a ~ c", "--formula"),
        ("a + y ~ c", "must predict one column"),
        ("C(c) ~ a", "3 columns"),
        ("a", "--target, or the left side"),
        ("y ~ np.log(a - 5)", r"finite numbers.*np.log\(a - 5\) \(\d+\)"),
        ("y ~ frame", "no column 'frame'"),
    ],
)
def test_bad_formulas(formula, said, frame):
    with np.errstate(all="raise"), pytest.raises(ValueError, match=said):
        tables.select_columns(frame, None, formula=formula)


@pytest.mark.parametrize(
    ("values", "positive", "classes", "signs"),
    [
        ([0, 1, 1], None, ["0", "1"], [-1, 1, 1]),
        ([2.0, 1.0, 1.0], None, ["1", "2"], [1, -1, -1]),
        ([True, False, True], None, ["False", "True"], [1, -1, 1]),
        (["M", "B", "B"], None, ["B", "M"], [1, -1, -1]),
        (["M", "B", "B"], "B", ["M", "B"], [-1, 1, 1]),
    ],
)
def test_classes(values, positive, classes, signs):
    y, called = tables.class_target(pd.Series(values), "y", positive)
    assert called == classes
    np.testing.assert_array_equal(y, signs)


def test_not_two_classes():
    with pytest.raises(ValueError, match=r'has 3: a, b, c.*--formula "I\(y == \'c\'\) ~ ."'):
        tables.class_target(pd.Series(["a", "b", "c"]), "y", None)
    with pytest.raises(ValueError, match="it is 1 in every row"):
        tables.class_target(pd.Series([1, 1]), "y", None)
    with pytest.raises(ValueError, match="0 or 1; got yes"):
        tables.class_target(pd.Series([0, 1]), "y", "yes")


# Of the command line, up to the calibration.


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "--target says which column to predict"),
        (["--target", "label"], "not numbers: c"),
        (["--target", "label", "--columns", "a"], "'label' is not numbers but such as 'yes', 'no'"),
        (["--target", "y", "--columns", "a", "--loss", "hinge"], "must have two classes for this loss; it has 60"),
        (["--target", "y", "--columns", "a", "--positive", "1"], "--positive is for hinge and logistic"),
        (["--target", "y", "--columns", "a", "--formula", "y ~ a"], "give one of them"),
        (["--formula", "y ~ a", "--no-intercept"], '"y ~ 0 + a"'),
        (["--target", "y", "--loss", "squared", "--tau", "0.5"], "--tau is for quantile and expectile"),
        (["--target", "y", "--tau", "1.5"], "tau must be a number between 0 and 1"),
        (["--target", "y", "--delta", "1"], "--delta is for huber"),
        (["--target", "y", "--columns", "a", "--level", "95"], "For 95% write 0.95"),
        (["--target", "y", "--columns", "a", "--bootstrap", "5"], "at least 20 rows"),
        (["--target", "y", "--save", "result.pkl"], "must end in .nc"),
        (["--target", "y", "--report", "no/such/page.html"], "no folder"),
        (["--target", "y", "--loss", "huberr"], "Did you mean huber? There are quantile, absolute"),
        (["--target", "y", "--loss", "median"], "there is no 'median'. Did you mean quantile?"),
        (["--target", "y", "--loss", "xyz"], "there is no 'xyz'. There are quantile, absolute"),
        (["--target", "y", "--region", "boxes"], "Did you mean box? There are hpd, ellipsoid"),
    ],
)
def test_bad_input(args, said, path):
    assert said in error_of("fit", path, *args)


def test_no_such_file():
    assert "does not exist" in error_of("fit", "nowhere.csv", "--target", "y")


@pytest.fixture
def asked(monkeypatch):
    """What `calibrate` was asked, instead of its doing it."""
    calls = []

    def calibrate(model, data, **options):
        calls.append((model, data, options))
        raise ValueError("enough.")

    monkeypatch.setattr(design, "calibrate", calibrate)
    return calls


def test_a_linear_model_is_asked(asked, path, frame):
    options = ["--loss", "quantile", "--tau", "0.25", "--level", "0.9", "--region", "box", "--bootstrap", "50"]
    error_of("fit", path, "--target", "y", "--columns", "a,big b", *options, "--seed", "3")
    [(model, (x, y), given)] = asked
    assert isinstance(model.loss, cb.losses.Quantile)
    assert float(model.loss.tau) == 0.25
    np.testing.assert_allclose(x, np.column_stack([np.ones(N), frame[["a", "big b"]] - frame[["a", "big b"]].mean()]))
    np.testing.assert_allclose(y, frame["y"] - frame["y"].median())
    names = ["intercept", "a", "big b"]
    assert given.pop("region").name == "Box"
    assert given == {"level": 0.9, "bootstrap": 50, "names": names, "seed": 3, "checkpoint": None}


@pytest.mark.parametrize("loss", list(fit_cli.Loss))
def test_every_loss(loss, asked, path):
    target = "label" if loss in ("hinge", "logistic") else "y"
    delta = ["--delta", "2"] if loss == "huber" else []
    error_of("fit", path, "--target", target, "--columns", "a", "--loss", loss, "--no-intercept", *delta)
    [(model, (x, y), _)] = asked
    assert type(model.loss).__name__.lower() == loss
    assert x.shape == (N, 1)
    model.loss.check(y)


def test_the_positive_class(asked, path, frame):
    error_of("fit", path, "--target", "label", "--columns", "a", "--loss", "logistic", "--positive", "no")
    [(_, (_, y), _)] = asked
    np.testing.assert_array_equal(y == 1, frame["label"] == "no")


def test_clusters_are_drawn_whole(asked, path, frame):
    error_of("fit", path, "--formula", "y ~ a", "--cluster", "site", "--bootstrap", "30")
    rows = asked[0][2]["bootstrap"]
    assert isinstance(rows, cb.bootstrap.Cluster)
    assert rows.n_replicates == 30
    np.testing.assert_array_equal(np.asarray(rows.groups), pd.factorize(frame["site"])[0])


def test_every_region_can_be_asked_for():
    assert list(fit_cli.Region) == list(cb.regions.REGIONS)


@pytest.mark.parametrize(
    ("line", "offered"), [("--target bi", "big b"), ("--loss hi", "hinge"), ("--region sim", "simultaneous")]
)
def test_completion(line, offered, path):
    words = f"calibayes fit {path} {line}"
    env = {"_CALIBAYES_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    assert CliRunner().invoke(app, [], env=env, prog_name="calibayes").stdout.split("\n")[0] == offered


# With a calibration.


@pytest.fixture(scope="module")
def folder(path):
    return path.parent


@pytest.fixture(scope="module")
def fitted(path, folder):
    """The result, and what was printed for it as text and as JSON."""
    results = []
    calibrate = Design.calibrate

    def once(*args, **options):
        if not results:
            results.append(calibrate(*args, **options))
        return results[0]

    line = ["fit", path, "--formula", "y ~ a + `big b` + C(c)", "--loss", "squared", "--bootstrap", "200"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Design, "calibrate", once)
        patch.setattr(sys, "argv", ["calibayes", "fit", "a table.csv"])
        text = invoke(*line, "--save", folder / "r.nc")
        as_json = invoke(*line, "--json")
    return results[0], text, as_json


def test_prints_a_table(fitted):
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
    assert f"status  converged: {result.message}" in text.stdout


def test_json_holds_the_numbers(fitted, frame):
    result, _, as_json = fitted
    assert as_json.exit_code == 0, as_json.output
    assert as_json.stderr == ""
    said = json.loads(as_json.stdout)
    assert said["eta"] == result.eta
    assert said["coverage"] == float(result.coverage)
    assert said["converged"] is True
    assert said["call"] == "calibayes fit 'a table.csv'"
    assert said["loss"] == {"name": "squared"}
    assert said["versions"]["calibayes_version"] == cb.__version__
    own = result.intervals()
    np.testing.assert_allclose([[c["low"], c["high"]] for c in said["coefficients"]], own.bounds)
    # Least squares of the table as it is, its intercept at zero, within the posterior mean's Monte Carlo error.
    columns = np.column_stack([frame["a"], frame["big b"], frame["c"] == "v", frame["c"] == "w"])
    x = np.column_stack([np.ones(N), columns])
    best = np.linalg.lstsq(x, frame["y"], rcond=None)[0]
    means, sds = ([c[name] for c in said["coefficients"]] for name in ("mean", "sd"))
    np.testing.assert_array_less(np.abs(np.subtract(means, best)), 0.2 * np.array(sds))


def test_saves(fitted, folder):
    result, text, _ = fitted
    assert text.stdout.endswith(f"wrote {folder / 'r.nc'}\n")
    loaded = cb.load(folder / "r.nc")
    assert loaded.eta == result.eta
    np.testing.assert_array_equal(loaded.intervals().bounds, result.intervals().bounds)


def test_report_of_a_saved_result(fitted, folder):
    said = invoke("report", folder / "r.nc")
    assert said.exit_code == 0, said.output
    page = folder / "r.html"
    assert said.stdout == f"wrote {page}\n"
    assert f"{fitted[0].eta:.4g}" in page.read_text()
    assert "own 95% interval" in page.read_text()
    assert "calibayes fit &#x27;a table.csv&#x27;" in page.read_text()
    assert "no result that calibayes has saved" in error_of("report", Path(__file__), "-o", page)


class Tags(HTMLParser):
    """Names of elements and attributes, the text of scripts, and all text that is shown."""

    def __init__(self, page):
        super().__init__()
        self.seen, self.scripts, self.display, self.inside = set(), [], "", None
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag, attributes):
        self.seen |= {tag, *dict(attributes)}
        self.scripts += [""] if tag == "script" else []
        self.inside = tag

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1] += data
        else:
            self.display += data


def test_a_table_with_scripts_in_it_makes_a_page_without(fitted, monkeypatch, frame, tmp_path):
    """In the names of columns, in a category, in the name of the file and in the command."""
    column, label, target = "<script>alert(1)</script>", "z</script><img src=x onerror='alert(2)'>", '<u>"y" & z</u>'
    table = tmp_path / "<s>&.csv"
    frame.replace({"c": {"v": label}}).rename(columns={"c": column, "y": target}).to_csv(table, index=False)

    def calibrate(design, loss, columns, y, *, names, call, **options):
        """What was found before, in the words of this table."""
        result, words = fitted[0], design.names(names)
        own = dataclasses.replace(result.intervals(), names=words)
        return dataclasses.replace(
            result, names=words, settings=result.settings | {"call": call}, calibration=None, own=own
        )

    monkeypatch.setattr(Design, "calibrate", calibrate)
    line = ["fit", str(table), "--target", target, "--formula", f"a + `big b` + C(`{column}`)"]
    monkeypatch.setattr(sys, "argv", ["calibayes", *line])
    made = invoke(*line, "--report", tmp_path / "page.html", "--save", tmp_path / "r.nc")
    assert made.exit_code == 0, made.output
    assert invoke("report", tmp_path / "r.nc", "-o", tmp_path / "again.html").exit_code == 0
    for name in ("page.html", "again.html"):
        page = Tags(tmp_path / name)
        assert len(page.scripts) == 2
        assert not {"img", "onerror", "u", "s"} & page.seen
        assert f"{column})[T.{label}]" in page.display.replace("`", "")
        assert shlex.join(["calibayes", *line]) in page.display
        assert "<script>alert" not in (tmp_path / name).read_text("utf-8")


def test_an_intercept_far_outside_of_the_data_says_so(fitted, monkeypatch, frame, tmp_path):
    monkeypatch.setattr(Design, "calibrate", lambda *args, **options: fitted[0])
    said = " ".join(fitted[1].stdout.split())
    assert "The intercept is the prediction where every column is zero. " in said
    frame.assign(a=frame["a"] + 2000).to_csv(tmp_path / "years.csv")
    text = invoke("fit", tmp_path / "years.csv", "--formula", "y ~ a + `big b` + C(c)")
    assert "where every column is zero, far outside of the data (a)." in " ".join(text.stdout.split())


def test_what_did_not_converge_is_shown_and_told_by_the_exit_status(fitted, monkeypatch, path):
    def calibrate(*args, **options):
        warnings.warn("calibration: it went wrong.", cb.CalibrationWarning, stacklevel=1)
        warnings.warn("X: its columns are collinear.", cb.CalibrationWarning, stacklevel=1)
        return dataclasses.replace(fitted[0], converged=False, message="it went wrong")

    monkeypatch.setattr(Design, "calibrate", calibrate)
    line = ["fit", path, "--formula", "y ~ a + `big b` + C(c)"]
    text = invoke(*line)
    assert text.exit_code == 1
    assert text.stderr == ""
    assert "status  NOT CONVERGED: it went wrong" in text.stdout
    assert text.stdout.count("it went wrong") == 1
    assert "note    X: its columns are collinear." in text.stdout
    as_json = invoke(*line, "--json")
    assert as_json.exit_code == 1
    assert json.loads(as_json.stdout)["converged"] is False


def test_an_interval_that_did_not_converge_is_named(fitted, monkeypatch, path):
    result = fitted[0]
    own = result.intervals()
    lost = dataclasses.replace(
        own,
        converged=np.array([True, False, True, True, True]),
        messages=["", "no eta covers", "", "", ""],
        eta_se=np.array([0.1, np.inf, 0.1, 0.1, 0.1]),
    )
    monkeypatch.setattr(Design, "calibrate", lambda *args, **options: result)

    def intervals(self):
        warnings.warn("calibration of a: no eta covers.", cb.CalibrationWarning, stacklevel=1)
        return lost

    monkeypatch.setattr(cb.Result, "intervals", intervals)
    line = ["fit", path, "--formula", "y ~ a + `big b` + C(c)"]
    text = invoke(*line)
    assert text.exit_code == 1
    assert "NOT CONVERGED: a: no eta covers" in text.stdout
    assert text.stdout.count("no eta covers") == 1
    assert json.loads(invoke(*line, "--json").stdout)["coefficients"][1]["eta_se"] is None


def test_a_worry_about_an_interval_is_a_note(fitted, monkeypatch, path):
    own = fitted[0].intervals()

    def intervals(self):
        warnings.warn("calibration of a: it covers; few particles.", cb.CalibrationWarning, stacklevel=1)
        return own

    monkeypatch.setattr(Design, "calibrate", lambda *args, **options: fitted[0])
    monkeypatch.setattr(cb.Result, "intervals", intervals)
    text = invoke("fit", path, "--formula", "y ~ a + `big b` + C(c)")
    assert text.exit_code == 0
    assert "note    calibration of a: it covers; few particles." in text.stdout


def test_too_few_rows_for_the_coefficients(frame, tmp_path):
    few = tmp_path / "few.csv"
    frame[:4].to_csv(few, index=False)
    said = error_of("fit", few, "--target", "y", "--columns", "a,big b")
    assert "4 rows are too few for 3 coefficients" in said
    assert "Take 6 at least" in said


def test_what_takes_long_is_said_at_once(capsys):
    """And not below the numbers, where nobody is who waits for them."""
    with fit_cli._collected() as said:
        warnings.warn("rows are sampled", cb.LongRunWarning, stacklevel=1)
        assert "Note: rows are sampled" in capsys.readouterr().err
        warnings.warn("something is amiss", cb.CalibrationWarning, stacklevel=1)
        assert capsys.readouterr().err == ""
    assert said == ["something is amiss"]
