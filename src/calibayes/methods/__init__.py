"""Ways to set the learning rate, for `calibrate(method=)` and `compare`.

A name stands for a method without parameters: "gpc", "gpc-studentized", "matching", "lyddon-holmes-walker".
"""

from collections.abc import Callable

from calibayes._backend.arguments import display
from calibayes.methods.base import Formula as Formula
from calibayes.methods.base import Method as Method
from calibayes.methods.formulas import Coarsened as Coarsened
from calibayes.methods.formulas import Fixed as Fixed
from calibayes.methods.formulas import LyddonHolmesWalker as LyddonHolmesWalker
from calibayes.methods.formulas import Matching as Matching
from calibayes.methods.gpc import GPC as GPC
from calibayes.methods.studentized import StudentizedGPC as StudentizedGPC

__all__ = ["GPC", "Coarsened", "Fixed", "Formula", "LyddonHolmesWalker", "Matching", "Method", "StudentizedGPC"]

METHODS: dict[str, Callable[[], Method]] = {
    cls.name: cls for cls in (GPC, StudentizedGPC, Matching, LyddonHolmesWalker)
}
"""Methods that can be requested by name."""
_WITH_PARAMETERS = {"coarsened": "cb.methods.Coarsened(alpha)", "fixed": "cb.methods.Fixed(eta)"}


def as_method(method: str | Method) -> Method:
    """Return the method of a name; a `Method` is returned unchanged."""
    if isinstance(method, Method):
        return method
    if isinstance(method, str) and method in METHODS:
        return METHODS[method]()
    if isinstance(method, str) and method in _WITH_PARAMETERS:
        raise ValueError(f'method "{method}" needs a number: use {_WITH_PARAMETERS[method]}.')
    raise ValueError(
        f"method must be one of {', '.join(METHODS)}, or an object such as {_WITH_PARAMETERS['fixed']}; "
        f"got {display(method)}."
    )
