"""The generalized (Gibbs) posterior: a loss and a prior."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
from jaxtyping import PyTree

from calibayes._backend.arguments import integer
from calibayes.losses import CountsRisk, FunctionRisk, Generic, LinearLoss
from calibayes.losses.function import as_risk
from calibayes.priors import Prior, as_prior

__all__ = ["GibbsModel"]


class GibbsModel(eqx.Module):
    r"""Generalized posterior with a free learning rate.

    Parameters
    ----------
    loss : LinearLoss, CountsRisk or callable
        One of `calibayes.losses`, or a function `fn(theta, datum) -> scalar` of a parameter vector of shape (K,) and
        one observation.
    prior : Prior
        One of `calibayes.priors`, a NumPyro distribution, or any object with a method `log_prob(theta)` and,
        unless `calibrate(draws=)` is used, `sample(key, shape)`.
    dim : int, optional
        Number of parameters, K. Required if `loss` is a function and the prior does not determine it. For losses
        of a linear prediction it is the number of columns of X.

    Attributes
    ----------
    loss : LinearLoss, Generic or CountsRisk
        The loss; a function is wrapped in `calibayes.losses.Generic`.
    prior : Prior
        The prior; a NumPyro distribution is wrapped.
    dim : int or None
        Number of parameters, or None if it is determined by the data.

    Raises
    ------
    TypeError
        If `loss` or `prior` is not of a supported type.
    ValueError
        If `dim` is missing, or does not agree with the prior.

    Notes
    -----
    For observations $z_1, \dots, z_N$ with losses $r(\theta; z_i)$ the posterior with learning rate $\eta$ is

    $$ p_\eta(\theta) \propto \exp\Bigl\{-\eta \sum_{i=1}^N r(\theta; z_i)\Bigr\}\, p(\theta). $$

    `calibrate` chooses $\eta$.

    Examples
    --------
    Median regression:

    >>> import calibayes as cb
    >>> model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))

    A loss given by a function:

    >>> import jax.numpy as jnp
    >>> model = cb.GibbsModel(lambda theta, y: jnp.abs(y - theta[0]), cb.priors.Normal(scale=10.0), dim=1)
    >>> model.dim
    1
    """

    loss: LinearLoss | Generic | CountsRisk
    prior: Prior
    dim: int | None = eqx.field(static=True)

    def __init__(self, loss: LinearLoss | Callable[..., Any], prior: object, *, dim: int | None = None):
        if isinstance(loss, type):
            raise TypeError(f"loss must be an instance: write {loss.__name__}(...), not {loss.__name__}.")
        if not isinstance(loss, LinearLoss | Generic | CountsRisk):
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
            raise ValueError("prior must be for at least one parameter; its arguments are empty.")
        if dim is not None and size is not None and dim != size:
            raise ValueError(f"dim = {dim}, but the prior is for {size} parameters.")
        self.dim = size if dim is None else dim
        if isinstance(loss, Generic | FunctionRisk) and self.dim is None:
            raise ValueError(
                "dim, the number of parameters, is required if loss is a function: GibbsModel(loss, prior, dim=K)."
            )

    @classmethod
    def from_log_likelihood(cls, fn: Callable[..., Any], prior: object, *, dim: int) -> "GibbsModel":
        """Return the model whose loss is the negative log-likelihood.

        At learning rate 1 it is the ordinary Bayesian posterior.

        Parameters
        ----------
        fn : callable
            Log-likelihood `fn(theta, datum) -> scalar` of one observation.
        prior : Prior
            Prior of the parameters.
        dim : int
            Number of parameters.

        Returns
        -------
        GibbsModel
            The model.

        Examples
        --------
        >>> import jax
        >>> import calibayes as cb
        >>> log_likelihood = lambda theta, y: jax.scipy.stats.norm.logpdf(y, theta[0], 2.0)
        >>> model = cb.GibbsModel.from_log_likelihood(log_likelihood, cb.priors.Normal(scale=10.0), dim=1)
        """
        return cls(Generic(fn, sign=-1), prior, dim=dim)

    @classmethod
    def from_risk(
        cls,
        risk: Any,
        prior: object,
        *,
        dim: int | None = None,
        prepare: Callable[..., Any] | None = None,
        nuisance: Callable[..., Any] | None = None,
        nuisance_on_host: bool = False,
        convex: bool = False,
    ) -> "GibbsModel":
        r"""Return the model of a risk that is a function of the counts of the observations, and need not be a sum.

        Parameters
        ----------
        risk : callable or CountsRisk
            Function `risk(theta, data, counts) -> scalar` of parameters of shape (K,), the data, and one count per
            observation, written with `jax.numpy`. Observations with count zero must contribute nothing, and the order
            of the observations must not matter. Counts are real numbers (weights, or those of the Bayesian bootstrap),
            and the risk must be differentiable in them. It should grow in proportion to the counts.
        prior : Prior
            Prior of the parameters.
        dim : int, optional
            Number of parameters. Required for a function.
        prepare : callable, optional
            Function of the data that is called once, on the host with NumPy arrays, and returns the data that `risk`
            takes, for example the data and the indices that sort them (`numpy.argsort`). The counts keep the original
            order of the observations: a risk of sorted data sorts the counts by these indices.
            The arrays that it receives are already padded at the end with copies of the last observation, which have
            count zero in every replicate. Default: the data as they are.
        nuisance : callable, optional
            Function `nuisance(data, counts)` that returns nuisance parameters, a pytree of arrays. It is called once
            for every bootstrap replicate, before the parameters are sampled, and its value is the fourth argument of
            `risk`. Default: none.
        nuisance_on_host : bool
            Whether `nuisance` is not written with `jax.numpy`, but called with NumPy arrays for one replicate after the
            other. The derivative of the risk in the counts, and with it the sandwich covariance, then leaves out the
            nuisance parameters. That is correct only for orthogonal scores: for other risks use method="gpc", for which
            the derivative affects the speed only. Default: False.
        convex : bool
            Whether the risk is convex and twice differentiable in the parameters, so that faster samplers can be used.
            Default: False.

        Returns
        -------
        GibbsModel
            The model.

        Raises
        ------
        TypeError
            If an argument is not callable.

        Notes
        -----
        The posterior on a bootstrap replicate with counts $c$ is

        $$ p_\eta(\theta) \propto \exp\{-\eta\, R(\theta, c)\}\, p(\theta). $$

        For the sandwich covariance, the derivative of the risk with respect to the count of an observation takes the
        place of the loss of this observation; its gradient in the parameters is the score of the observation. Both are
        computed by automatic differentiation.

        Examples
        --------
        Half the number of observations times the logarithm of the mean squared error, which is not a sum:

        >>> import jax.numpy as jnp
        >>> import calibayes as cb
        >>> def risk(theta, data, counts):
        ...     X, y = data
        ...     return 0.5 * counts.sum() * jnp.log(counts @ (y - X @ theta) ** 2 / counts.sum())
        >>> model = cb.GibbsModel.from_risk(risk, cb.priors.Normal(scale=10.0), dim=2)
        """
        return cls(as_risk(risk, prepare, nuisance, convex, nuisance_on_host), prior, dim=dim)

    @classmethod
    def from_numpyro(cls, fn: Callable[..., Any], data: PyTree) -> "GibbsModel":
        """Return the model of a NumPyro model function.

        The observed sites are the log-likelihood, and the latent sites are the parameters.

        Parameters
        ----------
        fn : callable
            NumPyro model. It is called as `fn(*data)`, `fn(**data)` or `fn(data)` if `data` is a tuple or list, a dict
            or an array. It is called on all observations and on single observations, so that the size of a plate must
            be taken from the data: `numpyro.plate("data", len(y))`. Latent variables of single observations are not
            supported.
        data : pytree of arrays
            Data, with one observation per entry of the first axis.

        Returns
        -------
        GibbsModel
            The model. `model.prior.names` are the names of the parameters, and `model.prior.latents(result.draws)` are
            the draws by site, as `numpyro.infer.Predictive` takes them.

        Raises
        ------
        ValueError
            If the log-likelihood is not a sum over observations, or a latent site is discrete, has one value per
            observation, or has an unsupported support.

        Examples
        --------
        >>> import numpy as np
        >>> import calibayes as cb
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> def location(y):
        ...     mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
        ...     with numpyro.plate("data", len(y)):
        ...         numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)
        >>> model = cb.GibbsModel.from_numpyro(location, np.array([0.5, 1.5, 2.5]))
        >>> model.prior.names
        ['mu']
        """
        from calibayes.interop.numpyro import from_numpyro

        likelihood, prior = from_numpyro(fn, data)
        return cls(Generic(likelihood, sign=-1), prior)
