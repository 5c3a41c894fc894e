"""Ways to set the learning rate, for `calibrate(method=)` and `compare`.

A name stands for a method with its default parameters: "gpc", "gpc-studentized", "gpc-double", "matching",
"lyddon-holmes-walker", "holmes-walker", "safe-bayes", "bayesbag", "posterior-bootstrap", "q-posterior".

In formulas, `H` is the Hessian of the risk at the estimate, computed from draws of the posterior, so that the loss
needs no second derivative; `J` is the covariance of the gradient of the risk over data sets, estimated by the summed
outer products of the gradients of the losses or, with a cluster or block bootstrap, of their sums over clusters or
blocks; the sandwich covariance is `H^-1 J H^-1`.
"""

from collections.abc import Callable

from calibayes._backend.arguments import display
from calibayes.methods.base import Method as Method
from calibayes.methods.base import PlugInMethod as PlugInMethod
from calibayes.methods.bayesbag import BayesBag as BayesBag
from calibayes.methods.double import DoubleGPC as DoubleGPC
from calibayes.methods.gpc import GPC as GPC
from calibayes.methods.holmes_walker import HolmesWalker as HolmesWalker
from calibayes.methods.plug_in import Coarsened as Coarsened
from calibayes.methods.plug_in import Fixed as Fixed
from calibayes.methods.plug_in import LyddonHolmesWalker as LyddonHolmesWalker
from calibayes.methods.plug_in import Matching as Matching
from calibayes.methods.posterior_bootstrap import PosteriorBootstrap as PosteriorBootstrap
from calibayes.methods.q_posterior import QPosterior as QPosterior
from calibayes.methods.reported import DrawsMethod as DrawsMethod
from calibayes.methods.safe_bayes import SafeBayes as SafeBayes
from calibayes.methods.studentized import StudentizedGPC as StudentizedGPC

__all__ = [
    "GPC",
    "BayesBag",
    "Coarsened",
    "DoubleGPC",
    "DrawsMethod",
    "Fixed",
    "HolmesWalker",
    "LyddonHolmesWalker",
    "Matching",
    "Method",
    "PlugInMethod",
    "PosteriorBootstrap",
    "QPosterior",
    "SafeBayes",
    "StudentizedGPC",
]

_WITHOUT_PARAMETERS = (
    GPC,
    StudentizedGPC,
    DoubleGPC,
    Matching,
    LyddonHolmesWalker,
    HolmesWalker,
    SafeBayes,
    BayesBag,
    PosteriorBootstrap,
    QPosterior,
)
METHODS: dict[str, Callable[[], Method]] = {cls.name: cls for cls in _WITHOUT_PARAMETERS}
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


def label(method: Method) -> str:
    """Return the name of a method, with its parameters if they are not the defaults."""
    parameters = vars(method)
    if method.name in METHODS and parameters == vars(METHODS[method.name]()):
        return method.name
    texts = [f"{value:g}" if isinstance(value, float) else str(value) for value in parameters.values()]
    return f"{method.name}({', '.join(texts)})" if texts else method.name
