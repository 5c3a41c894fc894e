"""A result that nothing was calibrated for."""

from dataclasses import replace

import numpy as np

import calibayes as cb
from calibayes.result import Curve, Record


def make_result(**changes) -> cb.Result:
    """Of two parameters; 40 bootstrap rows."""
    draws = np.random.default_rng(0).normal(size=(100, 2))
    record = Record(3, 0.8, 0.95, 200.0, 150.0, 4, 0.3, 1.5, np.zeros((2, 2)))
    plain = cb.Result(
        eta=0.8,
        eta_se=0.02,
        coverage=cb.Coverage(38, 40),
        converged=True,
        message="the 0.95 sets cover at 0.95",
        concerns=[],
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
    return replace(plain, **changes)
