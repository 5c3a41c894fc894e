"""Tables are read from every supported format, and errors name the columns and the remedy."""

import numpy as np
import pandas as pd
import pytest

from calibayes.bootstrap import Cluster
from calibayes.tables.columns import Roles, class_target, numeric_target, select_columns
from calibayes.tables.files import read_header, read_table

N = 60


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    a, b = rng.normal(5, 2, N), rng.exponential(100, N)
    c = np.tile(["u", "v", "w"], N // 3)
    y = 3 + 2 * a - 0.01 * b + (c == "v") + rng.normal(size=N)
    return pd.DataFrame({"a": a, "big b": b, "c": c, "y": y, "label": np.where(y > 12, "yes", "no"), "site": c})


def test_all_formats_give_the_same_table(frame, tmp_path):
    table = frame[["a", "c"]]
    table.to_csv(tmp_path / "t.csv", index=False)
    table.to_csv(tmp_path / "semi.csv", index=False, sep=";")
    table.to_csv(tmp_path / "t.csv.gz", index=False)
    table.to_csv(tmp_path / "t.tsv", index=False, sep="\t")
    table.to_csv(tmp_path / "with_index.csv")
    table.to_csv(tmp_path / "bom.csv", index=False, encoding="utf-8-sig")
    table.to_parquet(tmp_path / "t.parquet")
    for name in ("t.csv", "semi.csv", "t.csv.gz", "t.tsv", "with_index.csv", "bom.csv", "t.parquet"):
        read = read_table(tmp_path / name)
        assert list(read.columns) == ["a", "c"], name
        np.testing.assert_array_equal(read["a"], table["a"])
        assert read_header(tmp_path / name)[-2:] == ["a", "c"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"", "cannot be read as csv"),
        ("t.csv", b"a,b\n", "has no rows"),
        ("t.csv", "a,b\ncaf\xe9,1\n".encode("latin-1"), "UTF-8"),
        ("t.csv", b"a,b\n1,2,\n3,4,\n", "the rows end in the delimiter ',', and the header does not"),
        ("t.csv", b"a;b\n1,234;2\n3,456;4\n", "column 'a' has values such as '1,234', whose comma can be"),
        ("t.csv.gz", b"a,b\n1,2\n", "cannot be read as csv.gz"),
        ("t.parquet", b"a,b\n1,2\n", "cannot be read as parquet"),
        ("t.xlsx", b"", "must end in one of .csv"),
    ],
)
def test_invalid_files_are_rejected(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_table(tmp_path / name)


def test_row_names_are_not_a_column(tmp_path):
    (tmp_path / "r.csv").write_text('"","mpg","cyl"\n"Mazda RX4",21,6\n"Datsun 710",22.8,4\n')
    assert list(read_table(tmp_path / "r.csv").columns) == ["mpg", "cyl"]


def test_row_names_that_the_header_does_not_count_are_not_a_column(tmp_path):
    """As R's write.table writes them."""
    (tmp_path / "r.tsv").write_text("mpg\tcyl\nMazda\t21\t6\nDatsun\t22.8\t4\n")
    np.testing.assert_array_equal(read_table(tmp_path / "r.tsv"), [[21, 6], [22.8, 4]])


@pytest.mark.parametrize("first", ["0,500", "1234,500", "1,5"])
def test_decimal_commas_are_noted(tmp_path, first):
    """Each of these values shows that its comma is a decimal point, also in another column."""
    (tmp_path / "t.csv").write_text(f"x;z;y\n{first};1,234;1\n1,250;2,345;2\n1,750;3,456;3\n")
    selection = select_columns(read_table(tmp_path / "t.csv"), "y", columns="z")
    np.testing.assert_array_equal(selection.columns[:, 0], [1.234, 2.345, 3.456])
    assert selection.notes == ["read the commas in x, z as decimal points"]


@pytest.mark.parametrize("positive", [1, True, 1.0, "1", "True"])
@pytest.mark.parametrize("y", [[0, 1, 1], [False, True, True], [0.0, 1.0, 1.0]], ids=["integers", "booleans", "floats"])
def test_positive_class_can_be_a_number_or_a_boolean(y, positive):
    signs, labels = class_target(pd.Series(y), "y", positive)
    np.testing.assert_array_equal(signs, [-1, 1, 1])
    assert labels[1] in ("1", "True")


def test_text_for_missing_values(tmp_path):
    (tmp_path / "t.csv").write_text("y,a\n1,2\n2,?\n3,4\n5,5\n")
    with pytest.raises(ValueError, match=r"a is numeric except for '\?'.*--na '\?'"):
        select_columns(read_table(tmp_path / "t.csv"), "y")
    table = read_table(tmp_path / "t.csv", ["?"])
    with pytest.raises(ValueError, match=r"1 of 4 rows have missing values, in a \(1\).*--drop-missing"):
        select_columns(table, "y")
    selection = select_columns(table, "y", drop_missing=True)
    np.testing.assert_array_equal(selection.columns, [[2], [4], [5]])
    np.testing.assert_array_equal(selection.y, [1, 3, 5])
    assert selection.notes == ["dropped 1 of 4 rows, with missing values in a (1)"]


@pytest.mark.parametrize("kind", ["datetime64[ns]", object])
@pytest.mark.parametrize("options", [{"target": "y", "columns": "a"}, {"target": None, "formula": "y ~ a"}])
def test_missing_dates_are_not_a_cluster(kind, options):
    dates = pd.Series(pd.to_datetime(["2020-01-01", None, "2020-01-02", "2020-01-01", None])).astype(kind)
    table = pd.DataFrame({"y": [1.0, 2, 3, 5, 4], "a": [1.0, 2, 4, 3, 5], "day": dates})
    with pytest.raises(ValueError, match=r"2 of 5 rows have missing values, in day \(2\)"):
        select_columns(table, roles=Roles("day"), **options)
    groups = select_columns(table, roles=Roles("day"), drop_missing=True, **options).groups
    assert Cluster(20, groups).n_groups == 2


def test_unused_columns_may_have_missing_values():
    table = pd.DataFrame({"y": [1.0, 2, 3], "a": [1.0, 2, 4], "b": [np.nan, 1, 2]})
    assert len(select_columns(table, "y", columns="a").columns) == 3
    assert len(select_columns(table, None, formula="y ~ a").columns) == 3
    for formula in ("y ~ np.sqrt(b)", "y ~ poly(b, 1)", "b ~ a"):
        with pytest.raises(ValueError, match=r"missing values, in b \(1\)"):
            select_columns(table, None, formula=formula)


def test_text_columns_are_rejected_with_two_remedies(frame):
    with pytest.raises(ValueError, match="not numeric: c") as caught:
        select_columns(frame.drop(columns=["label", "site"]), "y")
    assert "--columns 'a,big b'" in str(caught.value)
    assert "--formula 'y ~ a + `big b` + C(c)'" in str(caught.value)


def test_all_columns_of_text_are_in_the_suggested_formula():
    """Names are quoted as formulas and lists require; texts with many values are left out."""
    table = pd.DataFrame(
        {"y": np.arange(60.0), "pay, net": np.arange(60.0), "a b": ["u", "v"] * 30, 'c"': ["x", "y"] * 30}
    )
    table["id"] = [f"person {k}" for k in range(60)]
    with pytest.raises(ValueError, match="not numeric: a b") as caught:
        select_columns(table, "y")
    message = str(caught.value)
    assert """--formula 'y ~ `pay, net` + C(`a b`) + C(`c"`)'""" in message
    assert """--columns '"pay, net"'""" in message
    with pytest.raises(ValueError, match="too many different values to be categories"):
        select_columns(table[["y", "id"]], "y")


@pytest.mark.parametrize("text", ['"pay, net",a', "pay, net, a", '"pay, net","a"'])
def test_names_with_commas_are_recognized(text):
    table = pd.DataFrame({"y": [1.0, 2, 4], "pay, net": [1.0, 2, 5], "a": [1.0, 3, 2]})
    assert select_columns(table, "y", columns=text).names == ["pay, net", "a"]


def test_text_target_is_named_before_the_predictors(frame):
    table = frame.assign(three=["u", "v", "w"] * (len(frame) // 3))
    with pytest.raises(
        ValueError, match=r"the target 'label' must be numeric.* For its two classes, use --loss logistic"
    ):
        select_columns(table, "label", classes=False)
    with pytest.raises(ValueError, match=r"""the target 'three' .*with --formula "I\(three == 'u'\) ~ ."."""):
        select_columns(table, "three", classes=False)
    almost = table.assign(y=[*map(str, table["y"][1:]), "?"])
    with pytest.raises(ValueError, match=r"the target 'y' is numeric except for '\?'.*use --na '\?'"):
        select_columns(almost, "y", classes=False)


def test_unknown_columns_are_rejected_with_suggestions(frame):
    with pytest.raises(ValueError, match=r"no column 'Bigb'. Did you mean 'big b'\?"):
        select_columns(frame, "y", columns="a,Bigb")
    with pytest.raises(ValueError, match=r"no column 'zzz'. The columns are a, big b, c, y, label, site"):
        select_columns(frame, "zzz")
    with pytest.raises(ValueError, match=r"no column 'lable'. Did you mean 'label'\?"):
        select_columns(frame, None, formula="lable ~ a")
    with pytest.raises(ValueError, match=r"no column 'sites'. Did you mean 'site'\?"):
        select_columns(frame, None, formula="y ~ C(sites)")


def test_constant_columns_are_dropped_with_an_intercept():
    table = pd.DataFrame({"y": [1.0, 2, 3], "a": [1.0, 2, 4], "one": [1, 1, 1]})
    selection = select_columns(table, "y")
    assert selection.names == ["a"]
    assert selection.notes == ["dropped one: constant"]
    assert select_columns(table, "y", intercept=False).names == ["a", "one"]


def test_formula(frame):
    selection = select_columns(frame, None, formula="np.exp(y) ~ np.log(`big b`) + C(c)")
    assert selection.target == "np.exp(y)"
    np.testing.assert_allclose(selection.y, np.exp(frame["y"]))
    assert selection.names == ["np.log(`big b`)", "C(c)[T.v]", "C(c)[T.w]"]
    np.testing.assert_allclose(selection.columns[:, 0], np.log(frame["big b"]))
    np.testing.assert_array_equal(selection.columns[:, 1], frame["c"] == "v")
    assert selection.intercept
    assert not select_columns(frame, None, formula="y ~ 0 + a").intercept


def test_dot_in_a_formula_means_all_other_columns(frame):
    selection = select_columns(frame.drop(columns=["label"]), None, formula="y ~ .", roles=Roles("site"))
    assert selection.names == ["a", "big b", "c[T.v]", "c[T.w]"]
    assert list(selection.groups) == list(frame["site"])


@pytest.mark.parametrize(
    ("formula", "message"),
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
def test_invalid_formulas_are_rejected(formula, message, frame):
    with np.errstate(all="raise"), pytest.raises(ValueError, match=message):
        select_columns(frame, None, formula=formula)


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
def test_classes_become_signs(values, positive, classes, signs):
    y, labels = class_target(pd.Series(values), "y", positive)
    assert labels == classes
    np.testing.assert_array_equal(y, signs)


def test_infinite_targets_are_rejected():
    with pytest.raises(ValueError, match="the target 'y' is infinite in 1 rows"):
        numeric_target(pd.Series([1.0, np.inf, 2.0]), "y")


def test_targets_without_two_classes_are_rejected():
    with pytest.raises(ValueError, match=r'has 3: a, b, c.*--formula "I\(y == \'c\'\) ~ ."'):
        class_target(pd.Series(["a", "b", "c"]), "y", None)
    with pytest.raises(ValueError, match="it is 1 in every row"):
        class_target(pd.Series([1, 1]), "y", None)
    with pytest.raises(ValueError, match="0 or 1; got yes"):
        class_target(pd.Series([0, 1]), "y", "yes")
