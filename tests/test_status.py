"""How a calibration ended is stated by a warning, in print, in the report and by the exit code of the command line."""

import dataclasses
import warnings
from html import unescape

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import calibayes as cb
from calibayes.cli import app
from calibayes.design import Design
from calibayes.report import write
from calibayes.solve.iterate import diagnose
from calibayes.solve.solver import check_reliability

MODEL = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
DATA = cb.datasets.median_regression(60, 0)


@pytest.fixture(scope="module")
def result():
    return cb.calibrate(MODEL, DATA, bootstrap=100, sampler=cb.SMC(200, 0.99), tolerance=0.02, seed=0, progress=False)


def result_with(result, **changes):
    """Return the result of a calibration whose iterate has these changes, and its warnings."""
    calibration = result.calibration
    calibration = dataclasses.replace(calibration, inputs=dataclasses.replace(calibration.inputs, findings=()))
    changes = {"eta_se_of_method": 0.05 * result.eta} | changes
    iterate = check_reliability(dataclasses.replace(calibration.iterate, **changes))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        return dataclasses.replace(calibration, iterate=iterate).result(), caught


def make_finding(code, severity, message="A finding about the run."):
    return cb.Diagnostic(code, severity, 3, message)


FAILURES = {
    cb.Status.MAX_ITERATIONS: make_finding(cb.Code.MAX_ITERATIONS, cb.Severity.ERROR, "It stopped after 4 iterations."),
    cb.Status.NO_CROSSING: make_finding(cb.Code.NO_CROSSING, cb.Severity.ERROR, "No learning rate covers at 0.95."),
    cb.Status.NOT_REACHED: make_finding(cb.Code.NOT_REACHED, cb.Severity.ERROR, "3 replicates did not reach eta = 2."),
    cb.Status.UNRELIABLE: make_finding(cb.Code.NOT_MIXED, cb.Severity.ERROR, "3 replicates have not mixed."),
    cb.Status.INTERRUPTED: None,
}


@pytest.mark.parametrize("status", FAILURES, ids=lambda status: status.name)
def test_failure_is_stated_everywhere(result, status, tmp_path):
    finding = FAILURES[status]
    diagnostics = () if finding is None else (finding,)
    # An unreliable answer is one that converged, with a finding of severity ERROR.
    ended_with = cb.Status.CONVERGED if status is cb.Status.UNRELIABLE else status
    failed, caught = result_with(result, status=ended_with, diagnostics=diagnostics)
    assert failed.status is status
    assert not failed.converged
    assert failed.diagnostics == list(diagnostics)
    assert failed.severity is (cb.Severity.INFO if finding is None else cb.Severity.ERROR)
    assert [warning.category for warning in caught] == [cb.NotConvergedWarning]
    page = unescape(write(failed, tmp_path / "a.html", intervals=False).read_text())
    texts = (str(caught[0].message), failed.message, repr(failed), failed.summary(), page)
    for text in texts:
        assert status.value in text
        assert finding is None or finding.message in text
    assert "NOT CONVERGED" in repr(failed)
    assert "NOT CONVERGED" in failed.summary()


FINDINGS = {
    "weights collapsed": ({"ess": np.where(np.arange(101) < 1, 3.0, 500.0)}, 0, cb.Code.ESS_COLLAPSED),
    "weights low": ({"ess": np.full(101, 50.0)}, 0, cb.Code.ESS_LOW),
    "not mixed": ({"not_mixed": np.arange(101) < 1}, 0, cb.Code.NOT_MIXED),
    "invalid loss": ({"invalid": 7}, 0, cb.Code.INVALID_LOSS),
    "level undefined": ({}, 1, cb.Code.LEVEL_UNDEFINED),
}


@pytest.mark.parametrize("case", FINDINGS)
def test_warnings_are_stated_everywhere(result, case, tmp_path):
    changes, n_undefined, code = FINDINGS[case]
    clean = result.calibration.iterate.info._replace(ess=np.full(101, 500.0), not_mixed=np.zeros(101, bool), invalid=0)
    diagnostics = diagnose(clean._replace(**changes), n_undefined, 0.95)
    doubtful, caught = result_with(result, diagnostics=diagnostics)
    assert doubtful.converged
    assert doubtful.severity is cb.Severity.WARNING
    (finding,) = doubtful.diagnostics
    assert finding.code is code
    assert [warning.category for warning in caught] == [cb.CalibrationWarning]
    texts = [str(caught[0].message), doubtful.message, repr(doubtful), doubtful.summary()]
    if code is not cb.Code.ESS_LOW:  # The report has a check of its own for it.
        texts.append(unescape(write(doubtful, tmp_path / "a.html", intervals=False).read_text()))
    for text in texts:
        assert finding.message in text
    assert "NOT CONVERGED" not in repr(doubtful)


def test_notes_are_stated_without_a_warning(result):
    note = make_finding(cb.Code.REPAIRED, cb.Severity.INFO, "3 of 100 replicates were resampled.")
    repaired, caught = result_with(result, diagnostics=(note,))
    assert repaired.converged
    assert not caught
    for text in (repaired.message, repr(repaired), repaired.summary()):
        assert note.message in text


def test_notes_are_not_part_of_a_warning(result):
    note = make_finding(cb.Code.REPAIRED, cb.Severity.INFO, "3 of 100 replicates were resampled.")
    finding = make_finding(cb.Code.INVALID_LOSS, cb.Severity.WARNING, "The loss was NaN.")
    _, (warning,) = result_with(result, diagnostics=(note, finding))
    assert str(warning.message) == "calibration: The loss was NaN."


def test_flawless_result_does_not_warn(result):
    flawless, caught = result_with(result, diagnostics=())
    assert not caught
    assert flawless.converged
    assert "\n" not in repr(flawless)
    assert flawless.message == cb.Status.CONVERGED.value


@pytest.mark.parametrize(("relative", "severity"), [(0.09, None), (0.2, cb.Severity.INFO), (0.5, cb.Severity.WARNING)])
def test_uncertain_learning_rate_is_a_diagnostic(result, relative, severity):
    changed, caught = result_with(result, eta_se_of_method=relative * result.eta, diagnostics=())
    assert [(one.code, one.severity) for one in changed.diagnostics] == (
        [] if severity is None else [(cb.Code.ETA_UNCERTAIN, severity)]
    )
    assert changed.converged
    assert [warning.category for warning in caught] == [cb.CalibrationWarning] * (severity is cb.Severity.WARNING)


def test_useless_learning_rate_is_unreliable(result):
    changed, caught = result_with(result, eta_se_of_method=0.8 * result.eta, diagnostics=())
    assert changed.status is cb.Status.UNRELIABLE
    assert [warning.category for warning in caught] == [cb.NotConvergedWarning]


def test_warning_points_to_the_line_of_the_user(result):
    _, (warning,) = result_with(result, status=cb.Status.MAX_ITERATIONS, diagnostics=())
    assert warning.filename == __file__


def test_repaired_replicates_are_reported(result):
    """They are counted from 0 without the data, which are replicate 0 of the target."""
    repaired = np.zeros(101, bool)
    repaired[[3, 8]] = True
    info = result.calibration.iterate.info._replace(repaired=repaired)
    changed, caught = result_with(result, info=info, diagnostics=diagnose(info, 0, 0.95))
    assert changed.repaired_replicates.tolist() == [2, 7]
    (finding,) = [finding for finding in changed.diagnostics if finding.code is cb.Code.REPAIRED]
    assert (finding.severity, finding.count) == (cb.Severity.INFO, 2)
    assert "2 of 100 replicates had degenerate importance weights" in finding.message
    assert not caught


def test_calibration_without_an_answer_has_exit_status_one(tmp_path, monkeypatch):
    def calibrate(*_, **__):
        raise RuntimeError("calibration: 3 replicates did not reach eta = 2.")

    monkeypatch.setattr(Design, "calibrate", calibrate)
    pd.DataFrame({"a": np.arange(20.0), "y": np.arange(20.0) % 7}).to_csv(tmp_path / "t.csv", index=False)
    ended = CliRunner().invoke(app, ["fit", str(tmp_path / "t.csv"), "--target", "y"])
    assert ended.exit_code == 1
    assert isinstance(ended.exception, SystemExit)
    assert "Not calibrated: calibration: 3 replicates did not reach eta = 2." in ended.output
