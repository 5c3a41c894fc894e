"""A small result for tests that need one, without a calibration."""

from dataclasses import replace

import numpy as np

import calibayes as cb
from calibayes._backend.versions import versions
from calibayes._core.status import Code, Diagnostic, Severity, Status
from calibayes.result import Curve, Intervals, TraceRecord

SAMPLE_CODES = {Code.FEW_OBSERVATIONS, Code.ETA_UNCERTAIN}
"""Findings about the size of the sample and the number of replicates, which are small in tests."""


def run_findings(result: cb.Result) -> list[Diagnostic]:
    """Return the diagnostics of a result that concern the run, not the size of the sample."""
    return [finding for finding in result.diagnostics if finding.code not in SAMPLE_CODES]


def make_result(**changes) -> cb.Result:
    """Return a result with two parameters and 40 replicates, with some of its attributes replaced."""
    draws = np.random.default_rng(0).normal(size=(100, 2))
    record = TraceRecord(3, 0.8, 0.95, 200.0, 150.0, 4, 0.3, 1.5, np.zeros((2, 2)))
    result = cb.Result(
        eta=0.8,
        eta_se=0.02,
        coverage=cb.Coverage(38, 40),
        status=Status.CONVERGED,
        diagnostics=[],
        trace=[record],
        draws=draws,
        risk=np.zeros(100),
        curve=Curve.empty(40, 0.95),
        estimate=draws.mean(0),
        level=0.95,
        names=["a", "b"],
        repaired_replicates=np.zeros(0, int),
        region=cb.regions.HPD(),
        settings={"seed": 0},
        versions={},
    )
    return replace(result, **changes)


def make_stored_result(**changes) -> cb.Result:
    """Return a result like that of `make_result`, with a curve and intervals, which can be saved and loaded."""
    rng = np.random.default_rng(1)
    curve = Curve(np.array([0.5, 0.8, 1.0]), rng.random((3, 40)), np.array([90.0, 80.0, 70.0]), 0.95, 4, rng.random(40))
    bounds, etas, errors = np.array([[0.0, 1.0], [1.0, 2.0]]), np.array([0.7, 0.9]), np.array([0.1, 0.2])
    intervals = Intervals(["a", "b"], 0.95, bounds, etas, errors, [Status.CONVERGED] * 2, [[], []])
    finding = make_diagnostic(Code.REPAIRED, Severity.INFO, 3, "3 of 40 replicates were repaired.")
    settings = {"seed": 0, "estimate": "mean", "bootstrap": 40, "n": 100, "sampler": cb.Transport()}
    stored = {"curve": curve, "saved_intervals": intervals, "diagnostics": [finding], "settings": settings}
    return make_result(**stored | {"versions": versions()} | changes)


def make_diagnostic(
    code: Code, severity: Severity = Severity.WARNING, count: int = 0, message: str = "A finding."
) -> Diagnostic:
    """Return a diagnostic with a default severity and message."""
    return Diagnostic(code, severity, count, message)
