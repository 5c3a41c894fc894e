"""Risk given by a function of the parameters, the data and the counts."""

from collections.abc import Callable
from typing import Any

import equinox as eqx

from calibayes._backend.functions import static
from calibayes._core.loss import CountsRisk


def _optional_static(fn: Callable[..., Any] | None) -> Callable[..., Any] | None:
    return None if fn is None else static(fn)


class FunctionRisk(CountsRisk):
    """Risk given by a function, which `GibbsModel.from_risk` makes.

    Attributes
    ----------
    fn : callable
        The risk, a function of parameters, data and counts, and of the nuisance parameters if there are any.
    prepare_fn : callable or None
        Function that returns the data in the form that `fn` takes.
    nuisance_fn : callable or None
        Function of data and counts that returns the nuisance parameters.
    convex : bool
        Whether the risk is convex and twice differentiable in the parameters.
    nuisance_on_host : bool
        Whether `nuisance_fn` takes NumPy arrays of one replicate at a time. Derivatives in the counts then leave out
        the nuisance parameters.

    Examples
    --------
    >>> import calibayes as cb
    >>> def absolute_deviation(theta, data, counts):
    ...     return counts @ abs(data - theta[0])
    >>> cb.GibbsModel.from_risk(absolute_deviation, cb.priors.Normal(scale=10.0), dim=1).loss
    FunctionRisk(fn=absolute_deviation)
    """

    fn: Callable[..., Any] = eqx.field(converter=static)
    prepare_fn: Callable[..., Any] | None = eqx.field(converter=_optional_static, default=None)
    nuisance_fn: Callable[..., Any] | None = eqx.field(converter=_optional_static, default=None)
    convex: bool = eqx.field(static=True, default=False, kw_only=True)  # type: ignore[misc]
    nuisance_on_host: bool = eqx.field(static=True, default=False, kw_only=True)  # type: ignore[misc]

    def __call__(self, theta, data, counts, nuisance=None):
        return self.fn(theta, data, counts) if self.nuisance_fn is None else self.fn(theta, data, counts, nuisance)

    def prepare(self, data):
        return data if self.prepare_fn is None else self.prepare_fn(data)

    def nuisance(self, data, counts):
        return None if self.nuisance_fn is None else self.nuisance_fn(data, counts)


def as_risk(risk: object, prepare: object, nuisance: object, convex: bool, nuisance_on_host: bool) -> CountsRisk:
    """Return a risk object as it is, and a function with its options as a `FunctionRisk`; see `GibbsModel.from_risk`.

    Parameters
    ----------
    risk, prepare, nuisance, convex, nuisance_on_host
        Arguments of `GibbsModel.from_risk`.

    Returns
    -------
    CountsRisk

    Raises
    ------
    TypeError
        If an argument is not callable.
    """
    if isinstance(risk, CountsRisk):
        if prepare is not None or nuisance is not None:
            raise TypeError("prepare and nuisance are for a function; define them as methods of the CountsRisk.")
        return risk
    for name, fn in (("risk", risk), ("prepare", prepare), ("nuisance", nuisance)):
        if not callable(fn) and (fn is not None or name == "risk"):
            raise TypeError(f"{name} must be a function; got {type(fn).__name__}.")
    functions: Any = (risk, prepare, nuisance)
    on_host = nuisance is not None and bool(nuisance_on_host)
    return FunctionRisk(*functions, convex=bool(convex), nuisance_on_host=on_host)
