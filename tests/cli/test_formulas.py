"""Formulas are not run as Python: allowed expressions have the values of formulaic, and others are rejected."""

import random
import time

import numpy as np
import pandas as pd
import pytest
from formulaic import model_matrix
from typer.testing import CliRunner

from calibayes.cli import app
from calibayes.tables.columns import select_columns
from calibayes.tables.expressions import parse_expression

N = 60


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "y": rng.normal(size=N),
            "a": rng.normal(5, 2, N),
            "big b": rng.exponential(100, N),
            "c": np.tile(["u", "v", "w"], N // 3),
            "k": rng.integers(1, 5, N),
            "flag": rng.random(N) > 0.5,
        }
    )


@pytest.fixture
def folder(frame, tmp_path, monkeypatch):
    """An empty working directory, with a table next to it."""
    frame.to_csv(tmp_path / "table.csv", index=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


# Allowed formulas


NUMBERED = pd.DataFrame(np.random.default_rng(0).normal(size=(N, 3)), columns=["0", "1", "2"])


@pytest.mark.parametrize(
    ("formula", "predictors", "intercept"),
    [
        ("`2` ~ .", ["0", "1"], True),
        ("`2` ~ `0` + `1`", ["0", "1"], True),
        ("`2` ~ 0 + `1`", ["1"], False),
        ("`0` ~ 1 + `1`", ["1"], True),
        ("`2` ~ `0`:`1`", ["0:1"], True),
        ("`2` ~ log(`1`**2) + `1`", ["log(`1` ** 2)", "1"], True),
    ],
)
def test_columns_called_like_numbers_are_not_taken_for_numbers(formula, predictors, intercept):
    """The columns of a data frame that was made from an array are "0", "1" and so on."""
    selection = select_columns(NUMBERED, None, formula=formula)
    assert (selection.target, selection.intercept) == (formula[1], intercept)
    assert sorted(selection.names) == sorted(predictors)
    values = NUMBERED.assign(**{"0:1": NUMBERED["0"] * NUMBERED["1"], "log(`1` ** 2)": np.log(NUMBERED["1"] ** 2)})
    np.testing.assert_array_equal(selection.columns, values[selection.names])
    np.testing.assert_array_equal(selection.y, NUMBERED[formula[1]])


def test_column_called_intercept_is_not_the_intercept():
    frame = NUMBERED.set_axis(["Intercept", "x", "y"], axis=1)
    for formula, intercept in (("y ~ .", True), ("y ~ 0 + Intercept + x", False)):
        selection = select_columns(frame, None, formula=formula)
        assert (selection.names, selection.intercept) == (["Intercept", "x"], intercept)


@pytest.mark.parametrize("formula", ["`2` ~ .", "`2` ~ `1`"])
def test_ambiguous_column_is_an_error_in_a_formula_that_runs_as_python(formula):
    with pytest.raises(ValueError, match=r"with --allow-python, column '[01]' is ambiguous.*Rename it"):
        select_columns(NUMBERED, None, formula=formula, allow_python=True)
    plain = NUMBERED.assign(y=1.0 * np.arange(N), x=NUMBERED["0"])
    assert select_columns(plain, None, formula="y ~ np.tanh(x * 1.5)", allow_python=True).intercept


@pytest.mark.parametrize("formula", ["y ~ g", "y ~ C(g)", "y ~ x + g"])
def test_categories_that_no_row_has_are_dropped_with_a_note(formula):
    """As the reference category, "a" would make the columns of "b" and "c" add up to the intercept."""
    g = pd.Categorical(["b", "c"] * (N // 2), categories=["a", "b", "c"])
    frame = pd.DataFrame({"g": g, "y": np.arange(N) ** 2.0, "x": np.arange(N) % 7})
    selection = select_columns(frame, None, formula=formula)
    assert selection.notes == ["dropped categories of g that no row has: a"]
    assert np.linalg.matrix_rank(np.column_stack([np.ones(N), selection.columns])) == selection.columns.shape[1] + 1


@pytest.mark.parametrize(
    ("formula", "references"),
    [
        ("y ~ a + c", {"c": "u"}),
        ("y ~ C(c) + C(k)", {"c": "u", "k": "1"}),
        ("y ~ C(flag) + flag", {"flag": "False"}),
        ("y ~ C(c, Treatment('v'))", {"c": "v"}),
        ("y ~ C(c, contr.SAS)", {"c": "w"}),
        ("y ~ C(c, levels=['w', 'v', 'u'])", {"c": "w"}),
        ("y ~ C(I(k > 2))", {"C(I(k > 2))": "False"}),
        # Every category has a coefficient of its own.
        ("y ~ 0 + c", {}),
        ("y ~ 0 + c:a", {}),
        ("y ~ 0 + c:C(k)", {}),
        # Of two columns without an intercept, the second has a reference category.
        ("y ~ 0 + c + C(k)", {"k": "1"}),
        # Interactions.
        ("y ~ c * C(k)", {"c": "u", "k": "1"}),
        ("y ~ a + c:a", {"c": "u"}),
        ("y ~ c:a", {}),
        ("y ~ 0 + c + C(k):c", {"k": "1"}),
        # Contrasts with the mean of the categories, the previous ones, or a trend.
        ("y ~ C(c, contr.sum) + C(k, contr.helmert)", {}),
        ("y ~ C(c, contr.diff) + C(k, contr.poly)", {}),
        ("y ~ a + C(c) + C(c, Treatment('w')):a", {"c": "u", "C(c, Treatment('w'))": "w"}),
        ("y ~ a + I(c == 'v')", {}),
    ],
)
@pytest.mark.parametrize("allow_python", [False, True])
def test_reference_categories_are_those_without_a_coefficient(formula, references, allow_python, frame):
    selection = select_columns(frame, None, formula=formula, allow_python=allow_python)
    assert selection.reference_categories == references
    assert selection.description()["reference_categories"] == references


def test_reference_categories_of_columns_with_unusual_names():
    numbered = NUMBERED.assign(**{"1": np.tile(["u", "v"], N // 2), "a b": np.tile(["x", "y", "z"], N // 3)})
    for formula in ("`2` ~ `1` + `a b`", "`2` ~ C(`1`) + C(`a b`)"):
        assert select_columns(numbered, None, formula=formula).reference_categories == {"1": "u", "a b": "x"}
    only_one = numbered.assign(**{"1": "u"})
    assert select_columns(only_one, None, formula="`2` ~ `1` + `0`").reference_categories == {}


@pytest.mark.parametrize(
    "formula",
    [
        "y ~ a",
        "y ~ a + `big b`",
        "y ~ np.log(`big b`) * C(c)",
        "y ~ log(a**2) + log10(a**2) + log2(a**2) + exp(a) + exp2(a)",
        "y ~ np.log1p(k) + np.expm1(a) + np.sqrt(`big b`) + np.abs(a) + np.tanh(a) + np.sin(a) + np.cos(a)",
        "y ~ np.maximum(a, 5) + np.minimum(a, k) + np.power(k, 3)",
        "y ~ C(c, Treatment('v'))",
        "y ~ 0 + C(c, Treatment(reference='w'))",
        "y ~ C(c, contr.treatment(base='v'))",
        "y ~ C(c, contr.sum) + C(k, Sum)",
        "y ~ C(c, contr.helmert(reverse=False))",
        "y ~ C(c, levels=['w', 'v', 'u'])",
        "y ~ C(k) + C(flag) + flag",
        "y ~ I(a**2 + k) + I(k / 2) + I(k // 2) + I(k % 2) + I(-a)",
        "y ~ I(c == 'v') + I(a > 5) + I((a > 5) & (k < 3)) + I(~(a > 5) | (k != 2))",
        "y ~ poly(a, 3)",
        "y ~ poly(a, degree=2, raw=True)",
        "y ~ bs(a, df=5) + bs(k, 4, degree=2)",
        "y ~ bs(a, knots=[4, 5.5], lower_bound=-10, upper_bound=20, extrapolation='clip')",
        "y ~ cr(a, df=4) + cc(`big b`, df=4)",
        "y ~ scale(a) + center(k) + standardize(`big b`) + scale(np.log(a**2 + 1), center=False)",
        "y ~ (a + k)**2 - a:k",
        "y ~ a / k",
        "y ~ a %in% k",
        "y ~ 2:a",
        "y ~ C(c):a",
        "y ~ Q('big b')",
        "y ~ log(k) + log( k )",
    ],
)
def test_allowed_formulas_have_the_matrix_of_formulaic(formula, frame):
    selection = select_columns(frame, None, formula=formula)
    expected = model_matrix(formula, frame, context={}).rhs.drop(columns="Intercept", errors="ignore")
    assert selection.names == list(expected.columns)
    np.testing.assert_array_equal(selection.columns, expected.to_numpy(float))
    np.testing.assert_array_equal(selection.y, frame["y"])


@pytest.mark.parametrize(
    ("formula", "target", "predictors"),
    [
        ("np.exp(y) ~ .", "np.exp(y)", ["a", "big b", "c[T.v]", "c[T.w]", "k", "flag"]),
        ("I(c == 'v') ~ . - a", "I(c == 'v')", ["y", "big b", "k", "flag"]),
        ("y ~ . - `big b`", "y", ["a", "c[T.v]", "c[T.w]", "k", "flag"]),
    ],
)
def test_dot_means_all_columns_that_the_left_side_does_not_use(formula, target, predictors, frame):
    selection = select_columns(frame, None, formula=formula)
    assert selection.target == target
    assert selection.names == predictors


def test_target_may_be_an_expression(frame):
    np.testing.assert_allclose(select_columns(frame, None, formula="np.exp(y) ~ a").y, np.exp(frame["y"]))
    is_v = select_columns(frame, None, formula="I(c == 'v') ~ a").y
    np.testing.assert_array_equal(is_v.astype(bool), frame["c"] == "v")


def test_columns_may_have_the_names_of_functions(frame):
    """A name before a bracket is a function, and elsewhere a column."""
    table = frame.rename(columns={"a": "log", "k": "np", "big b": "class"}).assign(I=1.0 + frame["k"])
    table["log"] = table["log"].abs()
    selection = select_columns(table, None, formula="y ~ log + log(log) + np.log(np) + I + I(I * 2) + `class`")
    expected = [table["log"], np.log(table["log"]), np.log(table["np"]), table["I"], 2 * table["I"], table["class"]]
    np.testing.assert_allclose(selection.columns, np.column_stack(expected))


def test_integers_do_not_overflow(frame):
    """Python would compute powers of int64 columns modulo 2**64."""
    table = frame.assign(k=frame["k"] + 1000)
    values = select_columns(table, None, formula="y ~ I(k**7)").columns[:, 0]
    np.testing.assert_allclose(values, table["k"].astype(float) ** 7)


def test_names_in_backticks_are_used_as_they_are(frame):
    """Python normalizes identifiers: the ligature fi would become the name of another column."""
    a = frame["a"]
    table = frame.assign(fit=1.0 * frame["k"], **{"\ufb01t": a, "log(k)": a, "__import__": a})
    for formula in ("y ~ `\ufb01t`", "y ~ \ufb01t", "y ~ I(`\ufb01t`)", "y ~ I(`__import__`)", "y ~ `log(k)`"):
        np.testing.assert_array_equal(select_columns(table, None, formula=formula).columns[:, 0], a)
    with pytest.raises(
        ValueError, match=r"Python replaces by others in names .* Put the names of columns in backticks"
    ):
        select_columns(table, None, formula="y ~ I(\ufb01t)")
    with pytest.raises(ValueError, match=r"log\(k\) is also the name of a column"):
        select_columns(table, None, formula="y ~ log(k)")


def test_levels_must_contain_every_category(frame):
    """formulaic would count the others as the reference category."""
    with pytest.raises(ValueError, match=r"levels=\['u', 'v'\] of C\(\.\.\.\) lacks w"):
        select_columns(frame, None, formula="y ~ C(c, levels=['u', 'v'])")


# Code

MAKE_FILE = '__import__("pathlib").Path("made").touch()'
ESCAPE = '().__class__.__base__.__subclasses__()[0].__init__.__globals__["sys"].modules["os"].mkdir("made")'
INJECTIONS = [
    f"y ~ a + {{{MAKE_FILE}}}",
    f"y ~ a + {{a + ({MAKE_FILE} or 0)}}",
    f"{{{MAKE_FILE}}} ~ a",
    f"y ~ I({MAKE_FILE})",
    f"I({MAKE_FILE}) ~ a",
    f"y ~ I(a + ({MAKE_FILE} or 0))",
    f"y ~ C({MAKE_FILE})",
    f"y ~ C(c, {MAKE_FILE})",
    f"y ~ C(c, levels={MAKE_FILE})",
    f"y ~ C(c, Treatment({MAKE_FILE}))",
    f"y ~ C(c, Treatment(reference={MAKE_FILE}))",
    f"y ~ log({MAKE_FILE})",
    f"y ~ np.log({MAKE_FILE} or 1)",
    f"y ~ poly(a, {MAKE_FILE})",
    f"y ~ poly(a, degree={MAKE_FILE})",
    f"y ~ bs(a, knots=[{MAKE_FILE}])",
    f"y ~ scale(a, _state={MAKE_FILE})",
    f"y ~ scale(a, **{MAKE_FILE})",
    f"y ~ scale(*{MAKE_FILE})",
    f"y ~ ({MAKE_FILE})",
    f"y ~ {MAKE_FILE}",
    f"y ~ a:{MAKE_FILE}",
    f"y ~ a*({MAKE_FILE})",
    f"y ~ (a + {MAKE_FILE})**2",
    f"y ~ `a` + I(`big b` if {MAKE_FILE} else a)",
    f"y ~ [{MAKE_FILE} ~ a]",
    f"y ~ a | {MAKE_FILE}",
    f"{MAKE_FILE} ~ .",
    f"y ~ . + {MAKE_FILE}",
    f"y ~ I({ESCAPE})",
    f"y ~ np.log({ESCAPE})",
    f"y ~ {{{ESCAPE}}}",
    'y ~ I(a.__class__.__mro__[1].__subclasses__()[0]("made"))',
    'y ~ np.save("made.npy", a)',
    "y ~ np.log(np.save('made.npy', a))",
    'y ~ a.to_csv("made")',
    'y ~ I(a.to_csv("made"))',
    'y ~ I(`big b`.to_csv("made"))',
    'y ~ np.savetxt("made", a)',
    'y ~ np.lib.npyio.np.save("made.npy", a)',
    'y ~ a.to_pickle("made")',
    'y ~ I(np.asarray(a).tofile("made"))',
    'y ~ np.memmap("made", mode="w+", shape=10)',
    'y ~ np.log.__class__("made")',
    'y ~ np.log(a, out=np.memmap("made", mode="w+", shape=60))',
    'y ~ open("made", "w")',
    'y ~ I(open("made", "w").write("x"))',
    "y ~ exec(\"open('made', 'w')\")",
    'y ~ I(eval("open(chr(109), chr(119))"))',
    'y ~ I([open("made", "w") for _ in (1,)][0])',
    'y ~ I({open("made", "w") for _ in (1,)})',
    'y ~ I({1: open("made", "w")}[1])',
    'y ~ I(next(open("made", "w") for _ in (1,)))',
    'y ~ I((lambda: open("made", "w"))())',
    'y ~ (lambda: open("made", "w"))()',
    "y ~ I((f := open)('made', 'w'))",
    "y ~ I(a + (b := open('made', 'w')).fileno())",
    'y ~ I(f\'{open("made", "w")}\')',
    "y ~ I('%s' % open('made', 'w'))",
    "y ~ I('{0.__class__}'.format(open('made', 'w')))",
    "y ~ I(a[open('made', 'w')])",
    "y ~ I(a < 3 < open('made', 'w').fileno())",
    "y ~ I(a and open('made', 'w'))",
    "y ~ I(not open('made', 'w'))",
    "y ~ I(a in open('made', 'w'))",
    "y ~ I(a is open('made', 'w'))",
    "y ~ I(a @ open('made', 'w'))",
    "y ~ I(await open('made', 'w'))",
    "y ~ I((yield open('made', 'w')))",
    "y ~ I(a); open('made', 'w')",
    "y ~ I(a)\nimport os; os.mkdir('made')",
    "y ~ I(a)(open('made', 'w'))",
    "y ~ I(a)[open('made', 'w')]",
    "y ~ log(a)(open('made', 'w'))",
    "y ~ np['log'](open('made', 'w'))",
    "y ~ I\uff08open('made', 'w')\uff09",
    "y ~ I(\U0001d428pen('made', 'w'))",
    "y ~ \U0001d428pen('made', 'w')",
    "y ~ `open('made', 'w')`",
    "y ~ I(`open('made', 'w')`)",
    "y ~ I(`a`+open('made', 'w')+`a`)",
    "y ~ I('`'+open('made', 'w')+'`')",
    "y ~ Q(open('made', 'w'))",
    'y ~ Q(\'"] or open("made", "w") or __FORMULAIC_STATE__["\')',
    'y ~ scale(a, center=\'") or open("made", "w") or ("\')',
    'y ~ poly(a == \'"] or open("made", "w") or ["\')',
    "y ~ contr.custom(open('made', 'w'))",
    "y ~ C(c, contr.custom([[1], [open('made', 'w')]]))",
    "y ~ hashed(c, levels=3, hash_func=lambda _: open('made', 'w').fileno())",
    "y ~ lag(a, open('made', 'w'))",
    "y ~ __FORMULAIC_CONTEXT__['open']('made', 'w')",
    "y ~ I(__builtins__['open']('made', 'w'))",
    "y ~ I(globals()['__builtins__'])",
    "y ~ breakpoint()",
    "y ~ exit()",
]


@pytest.mark.parametrize("formula", INJECTIONS)
def test_code_is_rejected_and_not_run(formula, folder):
    before = time.perf_counter()
    outcome = CliRunner().invoke(app, ["fit", str(folder.parent / "table.csv"), "--formula", formula])
    assert not list(folder.iterdir())
    assert outcome.exit_code == 2, outcome.output
    assert outcome.stdout == ""
    assert isinstance(outcome.exception, SystemExit)
    assert "Traceback" not in outcome.output
    assert time.perf_counter() < before + 5


@pytest.mark.parametrize("formula", INJECTIONS[:8] + INJECTIONS[33:37])
def test_error_states_what_was_found_and_what_is_allowed(formula, frame):
    with pytest.raises(ValueError, match=r"--formula: .+ is not allowed.* A formula may contain .*--allow-python"):
        select_columns(frame, None, formula=formula)


@pytest.mark.parametrize("formula", ["y ~ a + {a.to_csv('made') or a}", "y ~ I(a.to_csv('made') or a)"])
def test_python_can_be_allowed(formula, folder, frame):
    with pytest.raises(ValueError, match="is not allowed"):
        select_columns(frame, None, formula=formula)
    assert not list(folder.iterdir())
    assert len(select_columns(frame, None, formula=formula, allow_python=True).columns) == N
    assert (folder / "made").exists()


def test_allow_python_needs_a_formula(folder):
    outcome = CliRunner().invoke(app, ["fit", str(folder.parent / "table.csv"), "--target", "y", "--allow-python"])
    assert outcome.exit_code == 2
    assert "--allow-python is an option for --formula" in " ".join(outcome.output.split())


@pytest.mark.parametrize(
    "formula",
    [
        "y ~ I(9**9**9**9)",
        "y ~ I(a + 9**9**9**9)",
        "y ~ I(a**9**9**9)",
        "y ~ I('a' * 10**10)",
        "y ~ I(c * 10**10)",
        "y ~ I(a << 10**10)",
        "y ~ I(a + " + "9" * 900 + ")",
        "y ~ I(a + 1e999)",
        "y ~ " + "9" * 5000 + ":a",
        "y ~ " + "(" * 3000 + "a" + ")" * 2999,
        "y ~ I(" + "(" * 300 + "a" + ")" * 300 + ")",
        "y ~ I(" + "-" * 900 + "a)",
        "y ~ I(" + "a+" * 450 + "a)",
        "y ~ I(" + "a+" * 10_000 + "a)",
        "y ~ " + "+".join(["a"] * 20_000),
        "y ~ (a + k + `big b`)**9999",
        "y ~ (a + k + `big b`)**40",
        "y ~ (a + k)^(99)",
        "y ~ ((a + k + `big b`)**9)**9",
        "y ~ " + "*".join(f"I(a + {i})" for i in range(40)),
        "y ~ .:.:.:.:.:.:.:.:.:.:.",
        "y ~ poly(a, 10000000)",
        "y ~ bs(a, df=100000000)",
        "y ~ cr(a, df=10**9)",
        "y ~ a ~ k",
        "y ~ ~ a",
        "y ~",
        "~",
        "",
        "y ~ a +",
        "y ~ (a",
        "y ~ a)",
        "y ~ I(a",
        "y ~ I(a))",
        "y ~ I()",
        "y ~ I(1)",
        "y ~ C()",
        "y ~ I(a +)",
        "y ~ log(a, b)",
        "y ~ `a",
        "y ~ ``",
        "y ~ ``(a)",
        "y ~ {}",
        "y ~ {}(a)",
        "y ~ {a",
        "y ~ 'a'",
        "y ~ 3",
        "y ~ ...",
        "y ~ a ! k",
        "y ~ %a%",
        "y ~ I(a\x00)",
        "y ~ I(c)(a)",
        "y ~ I(c + 1)",
        "y ~ log(c)",
        "y ~ nothere",
        "y ~ np",
        "y ~ np.pi",
        "y ~ log",
        "y ~ contr",
        "y | a ~ k",
        "[y ~ a] ~ k",
    ],
)
def test_invalid_and_oversized_formulas_have_an_error_of_one_line(formula, folder):
    before = time.perf_counter()
    outcome = CliRunner().invoke(app, ["fit", str(folder.parent / "table.csv"), "--formula", formula])
    assert outcome.exit_code == 2, outcome.output
    assert isinstance(outcome.exception, SystemExit)
    assert time.perf_counter() < before + 5


def test_random_formulas_are_accepted_or_rejected(frame):
    """No text leads to another error, and no rejected text has a line break in its message."""
    words = ["a", "`big b`", "c", "k", "y", "~", "+", "-", "*", ":", "/", "**", "^", "|", "(", ")", "[", "]", "{", "}"]
    words += ["I(", "C(", "log(", "poly(", "np.log(", "Q(", "'", '"', "`", "1", "2", "0", ".", ",", "=", "==", "\\"]
    words += [" ", "\n", "%", "lambda", ":=", "**", "Treatment", "__x__", "\ufb01", "\x1b", ";", "#", "&", "1e9", "_"]
    rng = random.Random(0)
    messages = []
    for _ in range(3000):
        formula = "y ~ " * rng.randrange(2) + "".join(rng.choice(words) for _ in range(rng.randrange(1, 9)))
        try:
            select_columns(frame, None, formula=formula)
        except ValueError as error:
            messages.append(str(error))
    assert 1500 < len(messages) < 2980
    assert not [message for message in messages if "\n" in message]


@pytest.mark.parametrize("text", ["a", "1", "'a'", "a.b", "a[0]", "(a)"])
def test_expression_is_a_call(text):
    with pytest.raises(ValueError, match="is not allowed"):
        parse_expression(text)
