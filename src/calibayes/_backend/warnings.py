"""Warnings and errors that calibayes raises, in one place so that every layer can use them."""

import sys
import warnings

_LIBRARIES = ("beartype", "calibayes", "contextlib", "functools", "jaxtyping", "joblib", "sklearn")
"""Packages whose frames are skipped to find the line of the user's code."""


class CalibrationWarning(UserWarning):
    """A diagnostic of a calibration that the user should know about."""


class NotConvergedWarning(CalibrationWarning):
    """The calibration found no learning rate to rely on; `result.diagnostics` says why."""


class LongRunWarning(CalibrationWarning):
    """The next step of a calibration will take long."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be used: it is damaged, in use by another process, or of another calibration."""


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn at the line of the user's code that called this package, directly or through scikit-learn."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in _LIBRARIES:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
