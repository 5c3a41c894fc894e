"""The attributes of a result, its printed forms and its copies."""

import copy
import pickle

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
    low, high = result.marginal_intervals()[1]
    assert f"{low:.4g}" in text
    assert f"{high:.4g}" in text


def test_datatree(result):
    tree = result.to_datatree()
    assert tree["posterior"]["theta"].shape == (1, *result.draws.shape)
    assert list(tree["posterior"]["parameter"].values) == ["one", "age"]
    assert tree["posterior"].attrs["eta"] == result.eta


def test_result_survives_copying_and_pickling(result):
    for copied in (copy.deepcopy(result.coverage), pickle.loads(pickle.dumps(result.coverage))):
        assert copied == result.coverage
        assert copied.interval == result.coverage.interval
    for copied in (copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
        assert copied.eta == result.eta
        assert copied.status is result.status
        assert copied.diagnostics == result.diagnostics
        assert copied.summary() == result.summary()
        np.testing.assert_array_equal(copied.curve.coverage(0.9), result.curve.coverage(0.9))


def test_draws_are_hardly_repeated(result):
    """They come from several snapshots of the particles, so that resampling to equal weights repeats few of them."""
    assert len(np.unique(result.draws, axis=0)) > 0.92 * len(result.draws)


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
    assert list(frame.columns) == ["low", "high", "eta", "eta_se", "converged"]
    assert list(frame.index) == ["a", "b"]
    assert frame.loc["b"].tolist() == [2.0, 4.0, 0.6, 0.06, False]


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
