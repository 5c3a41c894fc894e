"""Names of options in error messages: flags on the command line, arguments in Python."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_PYTHON = {
    "--formula": "formula",
    "--target": "the left side of the formula",
    "--target, or the left side of the formula,": "the left side of the formula",
    "--drop-missing": 'missing="drop"',
    "--positive": "positive",
    "--weights": "weights",
    "--cluster": "cluster",
    "--block": "block",
    "--allow-python": "allow_python=True",
    "--loss": "loss",
    "--loss logistic": 'loss="logistic"',
    "--loss hinge": 'loss="hinge"',
}
"""Arguments of `calibayes.fit` by the flag of the command line that they correspond to."""

_in_python: ContextVar[bool] = ContextVar("in_python", default=False)


@contextmanager
def python_wording() -> Iterator[None]:
    """Name arguments of `calibayes.fit` in the messages of errors that are raised inside the `with` block."""
    token = _in_python.set(True)
    try:
        yield
    finally:
        _in_python.reset(token)


def option(flag: str) -> str:
    """Return the name of an option, given its flag on the command line."""
    return _PYTHON[flag] if _in_python.get() else flag
