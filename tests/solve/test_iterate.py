"""Diagnostics of an iterate: which findings of the sampler are reported, and how severe they are."""

import numpy as np
import pytest

import calibayes as cb
from calibayes._core.status import worst
from calibayes.samplers.base import SamplerInfo
from calibayes.solve.iterate import diagnose

INFO, WARNING, ERROR = cb.Severity.INFO, cb.Severity.WARNING, cb.Severity.ERROR
B = 100


def make_info(**changes):
    """Return the info of a sampler with the data and 100 replicates, on which nothing is wrong."""
    n = B + 1
    info = SamplerInfo(np.zeros(n, bool), np.zeros(n, bool), 0, 1, 0.3, np.full(n, 500.0))
    return info._replace(**changes)


def first(n):
    return np.arange(B + 1) < n


def test_flawless_sampling_has_no_diagnostics():
    assert diagnose(make_info(), 0, 0.95) == ()
    assert worst(()) is INFO


@pytest.mark.parametrize(
    ("changes", "n_undefined", "code", "severity", "count", "words"),
    [
        ({"repaired": first(1)}, 0, "REPAIRED", INFO, 1, "1 of 100 replicates had degenerate importance weights"),
        ({"repaired": first(2)}, 0, "REPAIRED", INFO, 2, "2 of 100 replicates had degenerate importance weights"),
        ({"ess": np.where(first(1), 3.0, 500.0)}, 0, "ESS_COLLAPSED", WARNING, 1, "below 10 on 1 replicates"),
        ({"ess": np.where(first(2), 3.0, 500.0)}, 0, "ESS_COLLAPSED", ERROR, 2, "below 10 on 2 replicates"),
        ({"ess": np.full(B + 1, 99.0)}, 0, "ESS_LOW", WARNING, 0, "only 99, which biases eta low"),
        ({"not_mixed": first(1)}, 0, "NOT_MIXED", WARNING, 1, "still depend on where they started"),
        ({"not_mixed": first(B + 1)}, 0, "NOT_MIXED", ERROR, 101, "still depend on where they started"),
        ({"invalid": 7}, 0, "INVALID_LOSS", WARNING, 7, "NaN at 7 proposed particles"),
        ({}, 1, "LEVEL_UNDEFINED", WARNING, 1, "NaN on 1 replicates"),
        ({}, 5, "LEVEL_UNDEFINED", ERROR, 5, "NaN on 5 replicates"),
    ],
)
def test_finding_is_reported(changes, n_undefined, code, severity, count, words):
    """Failed replicates are an error if they are more than a quarter of 1 - level: 1.25 of 100 at 0.95."""
    (finding,) = diagnose(make_info(**changes), n_undefined, 0.95)
    assert (finding.code, finding.severity, finding.count) == (cb.Code[code], severity, count)
    assert words in finding.message
    assert str(finding) == finding.message


@pytest.mark.parametrize(("level", "severity"), [(0.8, WARNING), (0.95, ERROR)])
def test_severity_depends_on_the_level(level, severity):
    """Two failed replicates are 2% of 100: less than a quarter of 0.2, and more than a quarter of 0.05."""
    (finding,) = diagnose(make_info(not_mixed=first(2)), 0, level)
    assert finding.severity is severity


def test_findings_of_the_sampler_come_first():
    own = cb.Diagnostic(cb.Code.POPULATIONS_DISAGREE, WARNING, 3, "Populations disagree.")
    findings = diagnose(make_info(diagnostics=(own,), invalid=1), 1, 0.95)
    assert [finding.code for finding in findings] == [
        cb.Code.POPULATIONS_DISAGREE,
        cb.Code.LEVEL_UNDEFINED,
        cb.Code.INVALID_LOSS,
    ]
    assert worst(findings) is WARNING


def test_all_replicates_with_few_particles_have_two_findings():
    findings = diagnose(make_info(ess=np.full(B + 1, 3.0)), 0, 0.95)
    assert [(finding.code, finding.severity) for finding in findings] == [
        (cb.Code.ESS_COLLAPSED, ERROR),
        (cb.Code.ESS_LOW, WARNING),
    ]
