"""Warnings and errors that calibayes raises, in one place so that every layer can use them."""


class CalibrationWarning(UserWarning):
    """A diagnostic of a calibration that its user should know about."""


class NotConvergedWarning(CalibrationWarning):
    """The calibration found no learning rate to rely on; `result.diagnostics` says why."""


class LongRunWarning(CalibrationWarning):
    """The next step of a calibration will take long."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be used: it is damaged, or belongs to another calibration."""
