"""A generalized posterior is a loss and a prior."""

from collections.abc import Callable
from typing import Any

import equinox as eqx

from calibayes._backend.arguments import integer
from calibayes.losses import Generic, LinearLoss
from calibayes.priors import as_prior


class GibbsModel(eqx.Module):
    """The posterior `exp(-eta * sum of losses) * prior`, for any learning rate eta.

    `loss` is one of `calibayes.losses`, or any function `fn(theta, datum) -> scalar` of a parameter
    vector and one observation; then `dim`, the number of parameters, is needed too. For linear losses
    it is the number of columns of X.
    """

    loss: LinearLoss | Generic
    prior: Any
    dim: int | None = eqx.field(static=True)

    def __init__(self, loss: LinearLoss | Callable[..., Any], prior: Any, *, dim: int | None = None):
        if isinstance(loss, type):
            raise TypeError(f"loss must be an instance: write {loss.__name__}(...), not {loss.__name__}.")
        if not isinstance(loss, LinearLoss | Generic):
            if not callable(loss):
                raise TypeError(
                    f"loss must be one of calibayes.losses or a function of (theta, datum); got {type(loss).__name__}."
                )
            loss = Generic(loss)
        self.loss = loss
        self.prior = as_prior(prior)
        size = getattr(self.prior, "size", None)
        dim = None if dim is None else integer("dim", dim, 1)
        if size == 0:
            raise ValueError("prior is for no parameter at all: its numbers are an empty list.")
        if dim is not None and size is not None and dim != size:
            raise ValueError(f"dim = {dim}, but the prior is for {size} parameters.")
        self.dim = size if dim is None else dim
        if isinstance(loss, Generic) and self.dim is None:
            raise ValueError(
                "dim, the number of parameters, is needed with a loss of your own: GibbsModel(loss, prior, dim=K)."
            )

    @classmethod
    def from_log_likelihood(cls, fn: Callable[..., Any], prior: Any, *, dim: int) -> "GibbsModel":
        """The model whose loss is minus `fn(theta, datum)`, the log-likelihood of one observation."""
        return cls(Generic(fn, sign=-1), prior, dim=dim)

    @classmethod
    def from_numpyro(cls, fn: Callable[..., Any], data: Any) -> "GibbsModel":
        """The model of a NumPyro model function: its observed sites are the log-likelihood, the others the parameters.

        `fn` is called as `fn(*data)`, `fn(**data)` or `fn(data)`, by what `data` is, with arrays that have one
        observation along the first axis, or more: size plates by them, and leave out latents of single observations.
        Parameters are named in `prior.names`; `prior.latents(result.draws)` has draws by site, as `Predictive` takes.
        """
        from calibayes.interop.numpyro import from_numpyro

        likelihood, prior = from_numpyro(fn, data)
        return cls(Generic(likelihood, sign=-1), prior)
