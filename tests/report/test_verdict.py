"""The verdict of a report follows from numbers, status and diagnostics, not from the text of messages."""

from dataclasses import replace

import numpy as np
import pytest

import calibayes as cb
import example_results
from calibayes._core.curve import Coverage, Curve
from calibayes._core.status import Code, Severity, Status
from calibayes.report.verdict import VERDICTS, Grade, overall_grade, run_checks
from calibayes.result import Intervals

REPORT, CAUTION, FAILED = VERDICTS[Grade.PASSED], VERDICTS[Grade.CAUTION], VERDICTS[Grade.FAILED]
N_REPLICATES = 200


def finding(code, count=0, severity=Severity.WARNING):
    return {"diagnostics": [example_results.make_diagnostic(code, severity, count)]}


@pytest.fixture(scope="module")
def clean_result():
    """A result of the default sampler for which all checks pass."""
    etas = np.linspace(0.7, 0.9, 5)
    levels = np.tile((np.arange(N_REPLICATES) + 0.5) / N_REPLICATES, (5, 1))
    return example_results.make_result(
        coverage=Coverage(190, N_REPLICATES),
        curve=Curve(etas, levels, np.full(5, 500.0), 0.95),
        settings={"seed": 0, "n": 5_000, "sampler": cb.Transport(audit=True), "audited_region": "HPD"},
    )


def verdict_of(result, intervals=None):
    return VERDICTS[overall_grade(run_checks(result, intervals))]


def check_named(result, name, intervals=None):
    (check,) = [check for check in run_checks(result, intervals) if check.name == name]
    return check


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, REPORT),
        ({"status": Status.MAX_ITERATIONS}, FAILED),
        ({"status": Status.NO_CROSSING}, FAILED),
        ({"status": Status.UNRELIABLE}, FAILED),
        ({"status": Status.INTERRUPTED}, FAILED),
        (finding(Code.REPAIRED, 3, Severity.INFO), REPORT),
        (finding(Code.NOT_MIXED, 7), CAUTION),
        (finding(Code.NOT_MIXED, 3), REPORT),
        (finding(Code.ESS_COLLAPSED, 70), FAILED),
        (finding(Code.LEVEL_UNDEFINED, 7), CAUTION),
        (finding(Code.INVALID_LOSS, 7), REPORT),
        (finding(Code.POPULATIONS_DISAGREE), CAUTION),
        (finding(Code.POPULATIONS_DISAGREE, severity=Severity.ERROR), FAILED),
        (finding(Code.NOT_INTERPOLATED), CAUTION),
        (finding(Code.NOT_AUDITED), CAUTION),
        ({"repaired_replicates": np.arange(60)}, REPORT),
        ({"repaired_replicates": np.arange(120)}, CAUTION),
        ({"eta_se": float("nan")}, CAUTION),
        ({"eta_se": float("inf")}, CAUTION),
        (finding(Code.ETA_UNCERTAIN, severity=Severity.INFO), REPORT),
        (finding(Code.ETA_UNCERTAIN), CAUTION),
        (finding(Code.ETA_UNCERTAIN, severity=Severity.ERROR), FAILED),
        (finding(Code.REDUNDANT_COLUMNS), CAUTION),
        ({"coverage": Coverage(150, N_REPLICATES)}, CAUTION),
        ({"settings": {"sampler": cb.Transport()}}, CAUTION),
    ],
)
def test_verdict(clean_result, changes, expected):
    assert verdict_of(replace(clean_result, **changes)) == expected


@pytest.mark.parametrize(
    ("n", "expected", "grade", "meaning"),
    [
        (400, REPORT, Grade.NOTE, "The bootstrap approximates the sampling distribution for large samples"),
        (1600, REPORT, Grade.PASSED, "Enough for the bootstrap approximation"),
    ],
)
def test_observations_per_parameter_are_graded(clean_result, n, expected, grade, meaning):
    result = replace(clean_result, settings=clean_result.settings | {"n": n})
    check = check_named(result, "Observations")
    assert check.value == f"{n:,} for 2 parameters"
    assert check.grade == grade
    assert meaning in check.meaning
    assert verdict_of(result) == expected


def test_few_observations_have_the_grade_of_their_diagnostic(clean_result):
    """Clusters and blocks are counted there, not observations."""
    for severity, grade in ((Severity.INFO, Grade.NOTE), (Severity.WARNING, Grade.CAUTION)):
        changes = finding(Code.FEW_OBSERVATIONS, 12, severity)
        check = check_named(replace(clean_result, **changes), "Observations")
        assert check.grade == grade
        assert check.meaning.startswith(changes["diagnostics"][0].message)


def test_unknown_number_of_observations_is_not_checked():
    names = [check.name for check in run_checks(example_results.make_result(), None)]
    assert "Observations" not in names


def test_small_effective_sample_size_needs_caution(clean_result):
    curve = replace(clean_result.curve, ess=np.full_like(clean_result.curve.ess, 50.0))
    assert verdict_of(replace(clean_result, curve=curve)) == CAUTION


def test_search_that_failed_explains_why(clean_result):
    message = "Coverage stays above 0.95 up to eta = 1000."
    findings = [example_results.make_diagnostic(Code.NO_CROSSING, Severity.ERROR, 0, message)]
    result = replace(clean_result, status=Status.NO_CROSSING, diagnostics=findings)
    check = check_named(result, "Search")
    assert check.value == "not converged"
    assert check.meaning == f"{Status.NO_CROSSING.value} {message} This learning rate is not calibrated."
    assert "Diagnostic" not in [other.name for other in run_checks(result, None)]


@pytest.mark.parametrize(("status", "grade"), [(Status.CONVERGED, Grade.NOTE), (Status.UNRELIABLE, Grade.FAILED)])
def test_fallback_is_reported_with_its_reason(clean_result, status, grade):
    findings = [
        example_results.make_diagnostic(Code.AUDIT_FAILED, Severity.WARNING, 0, "The audit found a bias."),
        example_results.make_diagnostic(Code.FALLBACK, Severity.WARNING, 0, "SMC sampled every replicate."),
    ]
    settings = clean_result.settings | {"sampler": cb.SMC(start="prior")}
    result = replace(clean_result, status=status, diagnostics=findings, settings=settings)
    check = check_named(result, "Sampler")
    assert (check.value, check.grade) == ("fallback used", grade)
    assert check.meaning.startswith("The audit found a bias. SMC sampled every replicate.")
    assert "Diagnostic" not in [other.name for other in run_checks(result, None)]


def test_findings_about_the_replaced_sampler_are_notes(clean_result):
    """The solver lowers the errors of the sampler that was replaced to warnings."""
    findings = [
        example_results.make_diagnostic(Code.NOT_MIXED, Severity.WARNING, 70, "70 replicates have not mixed."),
        example_results.make_diagnostic(Code.NO_CROSSING, Severity.WARNING, 0, "Coverage jumps."),
        example_results.make_diagnostic(Code.FALLBACK, Severity.WARNING, 0, "SMC sampled every replicate."),
    ]
    settings = clean_result.settings | {"sampler": cb.SMC(start="prior")}
    result = replace(clean_result, diagnostics=findings, settings=settings)
    assert check_named(result, "Sampler").meaning.startswith("Coverage jumps. SMC sampled every replicate.")
    assert check_named(result, "Diagnostic").grade == Grade.NOTE
    assert verdict_of(result) == REPORT


def test_audit_of_another_region_is_mentioned(clean_result):
    assert check_named(clean_result, "Audit").value == "passed"
    assert check_named(replace(clean_result, region=cb.regions.Box()), "Audit").value == "passed, for HPD"


def test_diagnostics_are_listed_with_their_code_and_count(clean_result):
    check = check_named(replace(clean_result, **finding(Code.NOT_MIXED, 7)), "Diagnostic")
    assert check.value == "not-mixed (7 of 200 replicates)"
    assert check.meaning == "A finding."


@pytest.mark.parametrize(
    ("status", "errors", "value", "grade"),
    [
        ([Status.CONVERGED, Status.CONVERGED], [0.1, 0.1], "all converged", Grade.PASSED),
        ([Status.CONVERGED, Status.NO_CROSSING], [0.1, 0.1], "1 not converged", Grade.CAUTION),
        ([Status.CONVERGED, Status.CONVERGED], [0.1, np.inf], "1 without a standard error", Grade.CAUTION),
    ],
)
def test_individual_intervals_are_checked(status, errors, value, grade):
    intervals = Intervals(["a", "b"], 0.95, np.zeros((2, 2)), np.ones(2), np.array(errors), status, [[], []])
    check = check_named(example_results.make_result(), "Individual intervals", intervals)
    assert (check.value, check.grade) == (value, grade)
