"""The attributes of a result, its printed forms and its copies."""

import copy
import pickle
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest

import calibayes as cb
from example_results import make_diagnostic, make_result

ALGORITHMS = {
    "auto": {"bootstrap": 100, "progress": False},
    "smc": {
        "bootstrap": 100,
        "sampler": cb.SMC(n_particles=200, ess_target=0.99),
        "progress": False,
        "tolerance": 0.02,
    },
}


@pytest.fixture(scope="module", params=ALGORITHMS)
def algorithm(request):
    return request.param


@pytest.fixture(scope="module")
def result(algorithm):
    x, y = cb.datasets.median_regression(60, 0)
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    data = (pd.DataFrame(x, columns=["one", "age"]), pd.Series(y))
    return cb.calibrate(model, data, seed=0, **ALGORITHMS[algorithm])


def test_attributes(result, algorithm):
    assert result.status is cb.Status.CONVERGED
    assert result.converged
    assert result.severity is cb.Severity.INFO
    assert 0.5 < result.eta < 6
    assert 0 < result.eta_se < result.eta
    assert result.draws.shape[1] == 2
    assert 200 <= len(result.draws) <= 4000
    assert result.names == ["one", "age"]
    assert result.counts.shape == (100, 60)
    low, high = result.coverage.interval
    assert low < result.coverage < high
    assert abs(result.coverage - 0.95) <= 0.02
    assert [record.iteration for record in result.trace] == list(range(1, len(result.trace) + 1))
    assert (result.trace[0].eta == 1.0) == (algorithm == "smc")
    assert result.curve.coverage().shape == result.curve.etas.shape
    assert (np.diff(result.curve.coverage()) <= 0.01).all()
    assert result.settings["seed"] == 0
    assert isinstance(result.settings["sampler"], cb.Transport if algorithm == "auto" else cb.SMC)
    assert isinstance(result.settings["search"], cb.Bracket if algorithm == "auto" else cb.RobbinsMonro)
    # By chance the weights degenerate on one of several hundred replicates.
    assert len(result.repaired_replicates) <= 1


def test_repr_and_summary(result):
    assert f"{result.eta:.4g}" in repr(result)
    assert "NOT CONVERGED" not in repr(result)
    text = result.summary()
    assert "converged" in text
    assert "age" in text
    assert "95% low" in text
    low, high = result.coverage.interval
    assert f"coverage        {float(result.coverage):.3f} (95% interval {low:.3f} to {high:.3f}): share of" in text
    intervals = result.intervals()
    low, high = intervals.bounds[1]
    line = next(line for line in text.splitlines() if line.startswith("age"))
    printed = [result.means[1], (high - low) / (2 * NormalDist().inv_cdf(0.975)), low, high, intervals.eta[1]]
    np.testing.assert_allclose(list(map(float, line.split()[1:])), printed, atol=0.005 * (high - low), rtol=0.005)
    assert line in repr(result)
    page = result._repr_html_()
    assert f"<td>age</td><td>{line.split()[1]}</td>" in page


def test_intervals_of_the_summary_are_computed_once(result):
    first = result.intervals()
    result.summary()
    assert result.intervals() is first


def test_summary_without_calibrated_intervals_shows_joint_ones(result):
    """After a copy that lost the particles before intervals were computed; the note says so."""
    bare = replace(result, calibration=None, saved_intervals=None)
    low, _ = bare.marginal_intervals()[1]
    text = bare.summary()
    assert f"{low:.3f}" in text
    assert "All intervals are at the one learning rate above" in text
    assert "\nage" not in repr(bare)


@pytest.mark.filterwarnings("ignore::calibayes.CalibrationWarning")
def test_parameters_and_intervals_are_labelled_by_names(result):
    """Pandas objects for named parameters; arrays for others."""
    bounds = result.conf_int()
    assert list(bounds.index) == ["one", "age"]
    np.testing.assert_array_equal(bounds, result.intervals().bounds)
    np.testing.assert_array_equal(result.params.loc["age"], result.means[1])
    np.testing.assert_allclose(result.bse["age"], np.ptp(bounds.loc["age"]) / (2 * NormalDist().inv_cdf(0.975)))
    assert (np.ptp(np.asarray(result.conf_int(alpha=0.5)), 1) < np.ptp(np.asarray(bounds), 1)).all()
    unnamed = replace(result, names=["theta[0]", "theta[1]"])
    assert isinstance(unnamed.conf_int(), np.ndarray)
    assert isinstance(unnamed.params, np.ndarray)


def test_datatree(result):
    tree = result.to_datatree()
    assert tree["posterior"]["age"].shape == (4, len(result.draws) // 4)
    assert list(tree["estimate"]["parameter"].values) == ["one", "age"]
    assert tree["posterior"].attrs["eta"] == result.eta


def test_result_survives_copying_and_pickling(result):
    for copied in (copy.deepcopy(result.coverage), pickle.loads(pickle.dumps(result.coverage))):
        assert copied == result.coverage
        assert copied.interval == result.coverage.interval
    result.intervals()
    for copied in (copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
        assert copied.eta == result.eta
        assert copied.status is result.status
        assert copied.diagnostics == result.diagnostics
        assert copied.summary() == result.summary()
        np.testing.assert_array_equal(copied.curve.coverage(0.9), result.curve.coverage(0.9))


def test_draws_are_hardly_repeated(result):
    """They come from several snapshots of the particles, so that resampling to equal weights repeats few of them."""
    assert len(np.unique(result.draws, axis=0)) > 0.92 * len(result.draws)


def test_summary_states_findings_about_single_intervals():
    """Those that the joint result does not have, with the parameters that they are about."""
    own = make_diagnostic(cb.Code.ETA_SE_UNKNOWN, cb.Severity.WARNING, 0, "The error is unknown.")
    joint = make_diagnostic(cb.Code.ESS_LOW, cb.Severity.WARNING, 0, "A joint finding.")
    note = make_diagnostic(cb.Code.REPAIRED, cb.Severity.INFO, 1, "A note.")
    intervals = replace(make_intervals(cb.Status.UNRELIABLE), diagnostics=[[own, note], [own, joint]])
    lines = make_result(saved_intervals=intervals, diagnostics=[joint]).summary().splitlines()
    assert lines[-1] == "warning         a, b: The error is unknown."
    assert sum("A joint finding." in line for line in lines) == 1
    assert any(line.startswith("b (not converged)") for line in lines)


def test_tables_mark_intervals_that_did_not_converge():
    intervals = make_intervals(cb.Status.TIME_LIMIT)
    assert [line.count("(not converged)") for line in intervals.to_markdown().splitlines()] == [0, 0, 0, 1]
    assert intervals.to_latex().count("(not converged)") == 1
    assert "(not converged)" not in intervals.to_markdown(["low", "high", "converged"])
    with pytest.raises(TypeError, match=r"columns must be a list of names of columns; got 'a\.tex'"):
        intervals.to_latex("a.tex")


@pytest.mark.parametrize(
    ("region", "values"),
    [
        (cb.regions.Interval(1), lambda draws: draws[:, 1]),
        (cb.regions.Linear([1.0, -2.0]), lambda draws: draws @ [1.0, -2.0]),
        (cb.regions.Functional(lambda theta: theta[0] * theta[1]), lambda draws: draws.prod(1)),
    ],
    ids=["interval", "linear", "functional"],
)
def test_summary_states_the_interval_of_a_function_of_the_parameters(region, values):
    result = make_result(region=region)
    expected = np.quantile(values(result.draws), [0.025, 0.975])
    np.testing.assert_allclose(result.region_interval(), expected, rtol=1e-5)
    line = next(line for line in result.summary().splitlines() if line.startswith("interval"))
    low, high = (float(text) for text in line.split(":")[0].removeprefix("interval").split(" to "))
    np.testing.assert_allclose([low, high], expected, atol=0.01)


def test_joint_sets_have_no_interval():
    assert make_result().region_interval() is None
    assert not [line for line in make_result().summary().splitlines() if line.startswith("interval")]


CLUSTERS = np.arange(24) // 2
HEADS = {
    "nothing": ({"weights": None, "bootstrap": 40}, None),
    "counts": ({"weights": None, "bootstrap": np.ones((40, 24))}, None),
    "columns without a role": ({"roles": {"survival": ("died",)}, "bootstrap": cb.bootstrap.Bayesian(40)}, None),
    "survey weights": ({"weights": "survey", "bootstrap": None}, "weighted"),
    "frequency weights": ({"weights": "repetitions"}, "weighted (frequency weights)"),
    "column of weights": ({"weights": "repetitions", "roles": {"weights": "n"}}, "weighted by n (frequency weights)"),
    "blocks": ({"bootstrap": cb.bootstrap.Block(40, 7)}, "resampled in blocks of 7 consecutive observations"),
    "clusters": ({"bootstrap": cb.bootstrap.Cluster(40, CLUSTERS)}, "resampled in 12 clusters"),
    "strata": (
        {"bootstrap": cb.bootstrap.Stratified(40, CLUSTERS // 4), "roles": {"strata": "region"}},
        "resampled within 3 strata of region",
    ),
    "everything": (
        {
            "weights": "survey",
            "bootstrap": cb.bootstrap.Cluster(40, CLUSTERS, CLUSTERS // 4),
            "roles": {"cluster": "firm", "weights": "w", "strata": "region"},
        },
        "weighted by w and resampled in 12 clusters of firm within 3 strata of region",
    ),
}


@pytest.mark.parametrize("case", HEADS)
def test_summary_states_weights_and_resampling(case):
    settings, expected = HEADS[case]
    result = make_result(settings=settings)
    lines = [line for line in result.summary().splitlines() if line.startswith("observations")]
    assert lines == ([] if expected is None else [f"observations    {expected}"])
    assert ("<p>observations" in result._repr_html_()) == (expected is not None)
    assert len(result.summary().splitlines()) == len(make_result().summary().splitlines()) + len(lines)


def test_summary_states_reference_categories():
    result = make_result(settings={"reference_categories": {"group": "a", "region": "north"}})
    assert "categories      compared with: group = a, region = north" in result.summary().splitlines()
    assert "<p>categories      compared with: group = a" in result._repr_html_()
    without = make_result(settings={"reference_categories": {}})
    assert without.summary() == make_result().summary()


def test_names_of_columns_add_no_lines_to_the_summary():
    result = make_result(settings={"weights": "survey", "roles": {"weights": "w\nstatus          converged"}})
    assert "observations    weighted by w\\nstatus" in result.summary()


def test_tables_escape_names():
    """Of columns, which may have characters with a meaning in LaTeX, Markdown or HTML."""
    intervals = replace(make_intervals(cb.Status.CONVERGED), names=["a_b & 50%", "x|<b>"], means=np.array([0.5, 3.0]))
    assert intervals.to_latex().splitlines()[4] == r"a\_b \& 50\% & 0.50 & 0.30 & 0.00 & 1.00 & 0.500 \\"
    assert intervals.to_markdown().splitlines()[3] == r"| x\|<b> | 3.00 | 0.61 | 2.00 | 4.00 | 0.600 |"
    assert "<td>x|&lt;b&gt;</td><td>3.00</td>" in intervals._repr_html_()
    assert list(intervals.to_frame().columns) == ["mean", "se", "low", "high", "eta", "eta_se", "converged"]


def test_tables_have_the_chosen_columns_and_digits():
    intervals = replace(make_intervals(cb.Status.CONVERGED), means=np.array([0.5, 3.0]))
    assert intervals.to_markdown(["low", "high"], digits=1).splitlines()[0::2] == [
        "| parameter | 90% low | 90% high |",
        "| a | 0 | 1 |",
    ]
    with pytest.raises(ValueError, match=r"columns must be some of mean, se, .*; got 'width'"):
        intervals.to_latex(["width"])
    with pytest.raises(ValueError, match="digits must be a positive integer; got 0"):
        intervals.to_latex(digits=0)


def test_values_separated_by_commas_have_all_digits(tmp_path):
    intervals = replace(make_intervals(cb.Status.CONVERGED), names=['a, "b"', "c"], means=np.array([1 / 3, 3.0]))
    text = intervals.to_csv(tmp_path / "table.csv")
    assert (tmp_path / "table.csv").read_text() == text
    frame = pd.read_csv(tmp_path / "table.csv", index_col="parameter")
    assert list(frame.index) == ['a, "b"', "c"]
    pd.testing.assert_frame_equal(frame, intervals.to_frame().rename_axis("parameter"), check_exact=True)


def make_intervals(status, findings=()):
    return cb.Intervals(
        names=["a", "b"],
        level=0.9,
        bounds=np.array([[0.0, 1.0], [2.0, 4.0]]),
        eta=np.array([0.5, 0.6]),
        eta_se=np.array([0.05, 0.06]),
        status=[cb.Status.CONVERGED, status],
        diagnostics=[[], list(findings)],
    )


def test_intervals_convert_to_a_frame():
    frame = make_intervals(cb.Status.UNRELIABLE).to_frame()
    assert list(frame.columns) == ["se", "low", "high", "eta", "eta_se", "converged"]
    assert list(frame.index) == ["a", "b"]
    assert frame.loc["b"].tolist()[1:] == [2.0, 4.0, 0.6, 0.06, False]
    # A standard normal interval of level 0.9 has the width 2 * 1.645.
    assert frame.loc["b", "se"] == pytest.approx(2 / 3.2897, rel=1e-4)


def test_intervals_state_what_did_not_converge():
    finding = make_diagnostic(cb.Code.NOT_MIXED, cb.Severity.ERROR, 3, "3 replicates have not mixed.")
    failed = make_intervals(cb.Status.UNRELIABLE, [finding])
    assert failed.converged.tolist() == [True, False]
    assert failed.messages == [cb.Status.CONVERGED.value, f"{cb.Status.UNRELIABLE.value} {finding.message}"]
    assert repr(failed).splitlines()[-1] == f"NOT CONVERGED: b: {failed.messages[1]}"
    assert "NOT CONVERGED" not in repr(make_intervals(cb.Status.CONVERGED))


def test_status_and_diagnostics_determine_message_and_severity():
    note = make_diagnostic(cb.Code.REPAIRED, cb.Severity.INFO, 1, "A note.")
    finding = make_diagnostic(cb.Code.ESS_LOW, cb.Severity.WARNING, 0, "A warning.")
    assert make_result().severity is cb.Severity.INFO
    both = make_result(diagnostics=[note, finding])
    assert both.severity is cb.Severity.WARNING
    assert both.message == f"{cb.Status.CONVERGED.value} A note. A warning."
    assert both.converged
    assert not make_result(status=cb.Status.INTERRUPTED).converged
