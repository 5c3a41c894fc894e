"""Coverage that equals the level at more than one learning rate.

Coverage normally falls as the learning rate grows. A prior in conflict with the data, or a posterior with several
modes, can make it fall below the level, rise and fall again. The answer is then the smallest crossing: at every smaller
learning rate that was looked at, the sets cover at least at the level.
"""

from collections.abc import Iterable

import numpy as np

from calibayes._core.curve import CONFIG, Curve
from calibayes._core.status import Code, Diagnostic, Severity
from calibayes.solve.iterate import TraceRecord


def describe_crossings(curve: Curve, eta: float, trace: Iterable[TraceRecord]) -> Diagnostic | None:
    """Return a diagnostic if coverage crosses the level elsewhere too; None if `eta` is the only crossing seen.

    Parameters
    ----------
    curve : Curve
        Coverage curve around the answer.
    eta : float
        The answer.
    trace : iterable of TraceRecord
        Learning rates visited; those inside the range of the curve, which is more accurate, are not used.
    """
    level, error = curve.level, CONFIG.n_errors * curve.coverage_se()
    outside = [record for record in trace if not curve.etas[0] <= record.eta <= curve.etas[-1]]
    etas = np.array([*curve.etas, *(record.eta for record in outside)])
    coverage = np.array([*curve.coverage(), *(record.coverage for record in outside)])
    too_low = etas[(etas < eta) & (coverage < level - error)]
    if len(too_low):
        message = (
            f"Coverage is below {level:g} at smaller learning rates too, at eta = {too_low.min():.3g} for example. "
            "Start the search there (eta_init=), or use search=cb.Bracket()."
        )
        return Diagnostic(Code.SEVERAL_CROSSINGS, Severity.ERROR, 0, message)
    too_high = etas[(etas > eta) & (coverage > level + error)]
    if len(too_high):
        message = (
            f"Coverage crosses {level:g} more than once: it is above it again at eta = {too_high.min():.3g}. The "
            "smallest crossing is reported; at all smaller learning rates tried, coverage is at least the level."
        )
        return Diagnostic(Code.SEVERAL_CROSSINGS, Severity.WARNING, 0, message)
    return None
