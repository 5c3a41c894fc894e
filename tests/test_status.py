"""How a calibration ended is said by a warning of its own kind, in print, in the report and by the exit code."""

import dataclasses
import warnings

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import calibayes as cb
from calibayes.cli import app
from calibayes.design import Design
from calibayes.report import write
from calibayes.requery import Calibration
from calibayes.samplers.base import SamplerInfo
from calibayes.solve.found import concerns_of
from calibayes.solve.loop import Loop

MODEL = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
DATA = cb.datasets.median_regression(60, 0)
REACH = SamplerInfo(np.zeros(101, bool), np.zeros(101, bool), 0, 1, 0.3, np.full(101, 500.0))


@pytest.fixture(scope="module")
def result():
    return cb.calibrate(MODEL, DATA, bootstrap=100, sampler=cb.SMC(200, 0.99), tolerance=0.02, seed=0, progress=False)


def ended(result, **changes):
    """What a calibration that ended so would return, and what it would warn of."""
    calibration = result.calibration
    found = dataclasses.replace(calibration.found, **changes)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        return Calibration(calibration.problem, calibration.loop, found).result(), caught


OUTCOMES = {
    "iteration cap": "stopped after 4 iterations, short of the tolerance 0.02",
    "level not reachable": "no learning rate from 1e-05 up covers at 0.95",
    "interrupted": "interrupted after iteration 2; this is the best result so far",
}
CONCERNS = {
    "weights collapsed": (REACH._replace(ess=np.full(101, 3.0)), 0, "the effective size collapsed on 101 rows"),
    "not settled": (REACH._replace(not_mixed=np.ones(101, bool)), 0, "particles had not settled on 101 rows"),
    "losses not finite": (REACH._replace(invalid=7), 0, "the loss was NaN at 7 proposed particles"),
    "level undefined": (REACH, 5, "the region's level is NaN on 5 rows"),
}


@pytest.mark.parametrize("case", OUTCOMES)
def test_what_did_not_converge_is_said_everywhere(result, case, tmp_path):
    lost, caught = ended(result, converged=False, outcome=OUTCOMES[case])
    assert not lost.converged
    assert [warning.category for warning in caught] == [cb.NotConvergedWarning]
    page = write(lost, tmp_path / "a.html", intervals=False).read_text()
    for said in (str(caught[0].message), lost.message, repr(lost), lost.summary(), page):
        assert OUTCOMES[case].split(";")[0].lower() in said.lower()
    assert "NOT CONVERGED" in repr(lost)
    assert "NOT CONVERGED" in lost.summary()


@pytest.mark.parametrize("case", CONCERNS)
def test_concerns_are_said_everywhere(result, case, tmp_path):
    reach, undefined, words = CONCERNS[case]
    vague, caught = ended(result, concerns=concerns_of(reach, undefined))
    assert vague.converged
    assert [warning.category for warning in caught] == [cb.CalibrationWarning]
    for said in (str(caught[0].message), vague.message, repr(vague), vague.summary()):
        assert words in said
    page = write(vague, tmp_path / "a.html", intervals=False).read_text()
    assert words[1:] in page.replace("&#x27;", "'")


def test_what_is_well_is_quiet(result):
    fine, caught = ended(result, concerns=[])
    assert not caught
    assert "\n" not in repr(fine)
    assert fine.message


def test_rows_sampled_again_are_counted(result):
    repaired = np.zeros(101, bool)
    repaired[[3, 8]] = True
    found = result.calibration.found
    mended, _ = ended(result, reach=found.reach._replace(repaired=repaired))
    assert mended.repaired_replicates.tolist() == [2, 7]
    again = dataclasses.replace(found, reach=mended.calibration.found.reach)
    answer = result.calibration.loop.answer(again, found.eta)
    assert "2 rows whose weights had failed were sampled by ASMC*" in answer.outcome


def test_fresh_rows_have_concerns_too(result, monkeypatch):
    fresh = cb.Coverage(94, 100)
    monkeypatch.setattr(Loop, "elsewhere", lambda *_: (fresh, ["the effective size collapsed on 9 rows, to below 10"]))
    with pytest.warns(cb.CalibrationWarning, match="on the fresh rows the effective size collapsed"):
        assert result.validate() == fresh


def test_no_answer_at_all_is_exit_status_one(tmp_path, monkeypatch):
    def calibrate(*_, **__):
        raise RuntimeError("calibration: 3 rows did not reach eta = 2.")

    monkeypatch.setattr(Design, "calibrate", calibrate)
    pd.DataFrame({"a": np.arange(20.0), "y": np.arange(20.0) % 7}).to_csv(tmp_path / "t.csv", index=False)
    ended = CliRunner().invoke(app, ["fit", str(tmp_path / "t.csv"), "--target", "y"])
    assert ended.exit_code == 1
    assert isinstance(ended.exception, SystemExit)
    assert "Not calibrated: calibration: 3 rows did not reach eta = 2." in ended.output
