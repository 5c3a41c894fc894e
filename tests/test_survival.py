"""The survival estimator and survival formulas."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import calibayes as cb
from calibayes.cli import app
from calibayes.estimators import CoxPHSurvivalAnalysis
from calibayes.report.source import model_source
from calibayes.tables.columns import Roles, select_columns, survival_target
from calibayes.tables.linear import LinearModel

X, TIME, EVENT = cb.datasets.remission()
FRAME = pd.DataFrame({"placebo": X[:, 0], "wbc": X[:, 1], "weeks": TIME, "relapse": EVENT.astype(bool)})
Y = np.array(list(zip(EVENT == 1, TIME, strict=True)), dtype=[("event", bool), ("time", float)])
OPTIONS = {"bootstrap": 100, "sampler": "transport"}


@pytest.fixture(scope="module")
def estimator():
    return CoxPHSurvivalAnalysis(**OPTIONS).fit(FRAME[["placebo", "wbc"]], Y)


def test_estimator_has_coefficients_intervals_and_a_concordance(estimator):
    assert list(estimator.feature_names_in_) == ["placebo", "wbc"]
    assert (
        (estimator.coef_interval_[:, 0] < estimator.coef_) & (estimator.coef_ < estimator.coef_interval_[:, 1])
    ).all()
    prediction = estimator.predict(FRAME[["placebo", "wbc"]])
    np.testing.assert_allclose(prediction, X @ estimator.coef_, rtol=1e-5)
    # lifelines 0.30.3: concordance 0.8520 of the maximum partial likelihood fit.
    assert abs(estimator.score(FRAME[["placebo", "wbc"]], Y) - 0.852) < 0.02
    assert "CoxPHSurvivalAnalysis(bootstrap=100" in estimator.result_.settings["call"]


def test_formula_gives_the_numbers_of_the_estimator(estimator):
    result = cb.fit("Surv(weeks, relapse) ~ placebo + wbc", FRAME, progress=False, **OPTIONS)
    assert result.names == ["placebo", "wbc"]
    np.testing.assert_allclose(result.estimate, estimator.coef_, rtol=1e-6)


def test_dot_means_the_columns_that_are_not_part_of_the_response():
    selection = select_columns(FRAME.assign(start=0.0), None, formula="Surv(start, weeks, relapse) ~ .")
    assert selection.names == ["placebo", "wbc"]
    time, event, entry = survival_target(selection)
    np.testing.assert_array_equal(time, TIME)
    np.testing.assert_array_equal(event, EVENT)
    np.testing.assert_array_equal(entry, np.zeros(42))


def test_ties_follow_from_the_kind_of_weights():
    """The estimator has an argument for them, a formula has not."""
    with pytest.raises(ValueError, match='Use ties="breslow"'):
        CoxPHSurvivalAnalysis(**OPTIONS).fit(X, Y, sample_weight=np.full(42, 0.5))
    for weight, ties in ((2.0, "efron"), (0.5, "breslow")):
        frame = FRAME.assign(weight=weight)
        selection = select_columns(frame, None, formula="Surv(weeks, relapse) ~ wbc", roles=Roles(weights="weight"))
        assert LinearModel.of_survival(selection).loss.ties == ties


def test_rows_with_missing_events_are_dropped():
    frame = FRAME.astype({"relapse": float})
    frame.loc[3, "relapse"] = np.nan
    selection = select_columns(frame, None, formula="Surv(weeks, relapse) ~ wbc", drop_missing=True, roles=Roles())
    assert len(selection.y) == len(survival_target(selection)[1]) == 41


@pytest.mark.parametrize(
    ("formula", "options", "message"),
    [
        ("Surv(weeks) ~ wbc", {}, r"the left side must be Surv\(time, event\)"),
        ("Surv(weeks, relapse + 1) ~ wbc", {}, r"the left side must be Surv\(time, event\)"),
        ("Surv(weeks, __import__('os')) ~ wbc", {}, r"the left side must be Surv\(time, event\)"),
        ("Surv(weeks, died) ~ wbc", {}, "there is no column 'died'"),
        ("wbc ~ Surv(weeks, relapse)", {}, "is not allowed"),
        ("Surv(weeks, relapse) ~ 1", {}, "needs a column on the right side"),
        ("Surv(weeks, relapse) ~ wbc", {"loss": "huber"}, "leave out loss"),
        ("Surv(wbc, weeks) ~ placebo", {}, "event must be 0"),
    ],
)
def test_invalid_formulas_are_an_error(formula, options, message):
    with pytest.raises(ValueError, match=message):
        cb.fit(formula, FRAME, progress=False, **options)


def test_response_must_be_a_structured_array():
    with pytest.raises(TypeError, match="y must be a structured array of event"):
        CoxPHSurvivalAnalysis().fit(X, TIME)
    swapped = np.array(list(zip(TIME, EVENT == 1, strict=True)), dtype=[("time", float), ("event", bool)])
    with pytest.raises(TypeError, match="the first field of y must be the boolean event indicator; time is not"):
        CoxPHSurvivalAnalysis().fit(X, swapped)


def test_report_and_source_describe_the_model(estimator, tmp_path):
    page = estimator.result_.report(tmp_path / "report.html").read_text()
    assert "partial likelihood of Cox’s model" in page
    assert model_source(estimator.result_.model, 2).startswith("cb.GibbsModel(cb.losses.Cox(), cb.priors.Normal(")


def test_command_line_fits_survival_formulas(tmp_path):
    path = tmp_path / "remission.csv"
    FRAME.astype({"relapse": int}).to_csv(path, index=False)
    arguments = ["fit", str(path), "--formula", "Surv(weeks, relapse) ~ placebo + wbc", "--bootstrap", "100"]
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    content = json.loads(done.stdout)
    assert content["loss"] == {"name": "cox", "ties": "efron"}
    assert [coefficient["name"] for coefficient in content["coefficients"]] == ["placebo", "wbc"]
    refused = CliRunner().invoke(app, [*arguments, "--loss", "huber"])
    assert refused.exit_code == 2
    assert "leave out --loss" in refused.output.replace("\n", " ")
