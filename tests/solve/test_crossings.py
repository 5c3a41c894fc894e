"""Coverage that crosses the level at several learning rates."""

import numpy as np
import pytest
from scipy.stats import norm

import calibayes as cb
from calibayes._core.curve import Curve
from calibayes.solve.crossings import describe_crossings
from calibayes.solve.iterate import TraceRecord


@pytest.fixture(scope="module")
def curve():
    """A Gaussian location, whose coverage falls from 0.99 to 0.85 and crosses 0.95 at eta = 1."""
    distance = norm.ppf(0.5 + 0.5 * (np.arange(2000) + 0.5) / 2000)
    etas = np.exp(np.linspace(-0.6, 0.6, 15))
    return Curve(etas, 2 * norm.cdf(distance * np.sqrt(etas)[:, None]) - 1, np.full(15, 1000.0), 0.95)


def record(eta, coverage):
    return TraceRecord(1, eta, coverage, 100.0, 10.0, 1, np.nan, 0.0, np.zeros((1, 2)))


def describe(curve, *trace):
    return describe_crossings(curve, curve.eta_hat(), [record(*entry) for entry in trace])


def test_single_crossing_is_not_reported(curve):
    assert describe(curve) is None
    assert describe(curve, (0.1, 0.999), (10.0, 0.3)) is None


def test_coverage_within_its_error_is_not_reported(curve):
    """Two standard errors of 0.5%."""
    assert describe(curve, (0.3, 0.94), (4.0, 0.96)) is None


def test_records_inside_the_curve_are_not_used(curve):
    assert describe(curve, (0.9, 0.5), (1.1, 0.999)) is None


def test_crossing_at_a_larger_learning_rate_is_a_warning(curve):
    finding = describe(curve, (4.0, 0.97))
    assert (finding.code, finding.severity) == (cb.Code.SEVERAL_CROSSINGS, cb.Severity.WARNING)
    assert "above it again at eta = 4" in finding.message


def test_coverage_below_the_level_at_a_smaller_learning_rate_is_an_error(curve):
    finding = describe(curve, (0.3, 0.9), (4.0, 0.97))
    assert (finding.code, finding.severity) == (cb.Code.SEVERAL_CROSSINGS, cb.Severity.ERROR)
    assert "at eta = 0.3" in finding.message
