"""Priors of the parameters.

The priors of this module are products of one distribution per parameter; their arguments are scalars, or arrays with
one value per parameter. Any object with a method `log_prob`, and `sample` unless draws are passed, is a prior (see
`Prior`), and NumPyro distributions are accepted as they are.
"""

from abc import abstractmethod
from typing import Any, ClassVar, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import stats
from jaxtyping import Array, Float, PRNGKeyArray

from calibayes._backend.arguments import parameters
from calibayes._backend.functions import Numbers

__all__ = ["Laplace", "Normal", "Prior", "StudentT", "Uniform"]


@runtime_checkable
class Prior(Protocol):
    """Interface of a prior.

    Only `log_prob` is required. The optional members below are used if they exist.

    Attributes
    ----------
    sample : callable, optional
        `sample(key, shape)` returns draws; the last axis of `shape` has one entry per parameter. Without it,
        `calibrate` needs draws of the posterior (`draws=`).
    size : int or None, optional
        Number of parameters, or None if the prior applies to any number of parameters.
    bounds : tuple of (low, high), optional
        Support of the prior: scalars or arrays with one value per parameter, infinite where there is no bound. Samplers
        then work in unconstrained coordinates.
    log_concave : bool, optional
        Whether the density is log-concave on the whole real line. The value is only used if it is set by the class that
        defines `log_prob`.

    Examples
    --------
    >>> import jax
    >>> import calibayes as cb
    >>> class Logistic:
    ...     def log_prob(self, theta):
    ...         return jax.scipy.stats.logistic.logpdf(theta).sum()
    ...     def sample(self, key, shape):
    ...         return jax.random.logistic(key, shape)
    >>> isinstance(Logistic(), cb.priors.Prior)
    True
    """

    def log_prob(self, theta: Float[Array, " K"]) -> Float[Array, ""]:
        """Return the log-density of one parameter vector.

        Parameters
        ----------
        theta : Array of shape (K,)
            Parameters.

        Returns
        -------
        Array
            Log-density, a scalar; a constant may be missing.
        """


class _Independent(eqx.Module):
    """Base class of priors under which the parameters are independent."""

    def __check_init__(self):
        for name, value in self._parameters().items():
            if value.ndim > 1 or not np.isfinite(np.asarray(value)).all():
                raise ValueError(f"{name} must be a finite scalar or one value per parameter; got {value}.")
        _ = self.size
        for name in ("scale", "df"):
            value = getattr(self, name, jnp.ones(()))
            if not (np.asarray(value) > 0).all():
                raise ValueError(f"{name} must be positive; got {value}.")

    def _parameters(self) -> dict[str, Array]:
        return {name: value for name, value in vars(self).items() if isinstance(value, jax.Array)}

    @property
    def size(self) -> int | None:
        """Number of parameters, or None if the prior applies to any number of parameters."""
        sizes = {value.shape[0] for value in self._parameters().values() if value.ndim == 1}
        if len(sizes) > 1:
            raise ValueError(f"{type(self).__name__} was given parameters of different lengths: {sorted(sizes)}.")
        return sizes.pop() if sizes else None

    @abstractmethod
    def log_prob(self, theta: Float[Array, " K"]) -> Float[Array, ""]:
        """Return the log-density of one parameter vector.

        Parameters
        ----------
        theta : Array of shape (K,)
            Parameters.

        Returns
        -------
        Array
            Log-density, a scalar.
        """

    @abstractmethod
    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Draw parameter vectors.

        Parameters
        ----------
        key : PRNGKeyArray
            JAX random key.
        shape : tuple of int
            Shape of the draws. The last axis has one entry per parameter.

        Returns
        -------
        Array
            Draws, of shape `shape`.
        """


class Normal(_Independent):
    """Independent normal distributions.

    Parameters
    ----------
    loc : float or array-like of shape (K,)
        Means. Default: 0.
    scale : float or array-like of shape (K,)
        Standard deviations. Default: 1.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import calibayes as cb
    >>> prior = cb.priors.Normal(scale=100.0)
    >>> round(float(prior.log_prob(jnp.array([2.0, 1.0]))), 4)
    -11.0485
    """

    log_concave: ClassVar[bool] = True
    loc: Float[Array, "..."]
    scale: Float[Array, "..."]

    def __init__(self, loc: Numbers = 0.0, scale: Numbers = 1.0):
        self.loc, self.scale = parameters("loc", loc), parameters("scale", scale)

    def log_prob(self, theta: Float[Array, " K"]) -> Float[Array, ""]:
        return stats.norm.logpdf(theta, self.loc, self.scale).sum()

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        return _affine(jax.random.normal(key, shape), self.loc, self.scale)


class Laplace(_Independent):
    r"""Independent Laplace distributions.

    Parameters
    ----------
    loc : float or array-like of shape (K,)
        Medians. Default: 0.
    scale : float or array-like of shape (K,)
        Mean absolute deviations from the medians. Default: 1.

    Notes
    -----
    The prior of the support vector machine of Tanaka (2024, section 3.2), $\exp(-\sum_k |\theta_k / \sigma_k| / \nu)$,
    has `scale` $\nu \sigma_k$.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import calibayes as cb
    >>> prior = cb.priors.Laplace(scale=0.5)
    >>> float(prior.log_prob(jnp.array([1.0])))
    -2.0
    """

    log_concave: ClassVar[bool] = True
    loc: Float[Array, "..."]
    scale: Float[Array, "..."]

    def __init__(self, loc: Numbers = 0.0, scale: Numbers = 1.0):
        self.loc, self.scale = parameters("loc", loc), parameters("scale", scale)

    def log_prob(self, theta: Float[Array, " K"]) -> Float[Array, ""]:
        return stats.laplace.logpdf(theta, self.loc, self.scale).sum()

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        return _affine(jax.random.laplace(key, shape), self.loc, self.scale)


class StudentT(_Independent):
    """Independent Student t distributions.

    Parameters
    ----------
    df : float or array-like of shape (K,)
        Degrees of freedom.
    loc : float or array-like of shape (K,)
        Medians. Default: 0.
    scale : float or array-like of shape (K,)
        Scales. Default: 1.

    Examples
    --------
    >>> import jax
    >>> import calibayes as cb
    >>> prior = cb.priors.StudentT(4.0, scale=[2.5, 10.0])
    >>> prior.size
    2
    >>> prior.sample(jax.random.key(0), (1000, 2)).shape
    (1000, 2)
    """

    df: Float[Array, "..."]
    loc: Float[Array, "..."]
    scale: Float[Array, "..."]

    def __init__(self, df: Numbers, loc: Numbers = 0.0, scale: Numbers = 1.0):
        self.df, self.loc, self.scale = parameters("df", df), parameters("loc", loc), parameters("scale", scale)

    def log_prob(self, theta: Float[Array, " K"]) -> Float[Array, ""]:
        return stats.t.logpdf(theta, self.df, self.loc, self.scale).sum()

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        return _affine(jax.random.t(key, jnp.broadcast_to(self.df, shape), shape), self.loc, self.scale)


class Uniform(_Independent):
    """Independent uniform distributions, which bound the posterior too.

    Parameters
    ----------
    low : float or array-like of shape (K,)
        Lower bounds.
    high : float or array-like of shape (K,)
        Upper bounds.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import calibayes as cb
    >>> prior = cb.priors.Uniform(0.0, 1.0)
    >>> float(prior.log_prob(jnp.array([2.0])))
    -inf
    """

    low: Float[Array, "..."]
    high: Float[Array, "..."]

    def __init__(self, low: Numbers, high: Numbers):
        self.low, self.high = parameters("low", low), parameters("high", high)
        _ = self.size
        if not (np.asarray(self.low) < np.asarray(self.high)).all():
            raise ValueError(f"low must be below high; got low={self.low}, high={self.high}.")

    @property
    def bounds(self) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """Lower and upper bounds."""
        return self.low, self.high

    def log_prob(self, theta: Float[Array, " K"]) -> Float[Array, ""]:
        return stats.uniform.logpdf(theta, self.low, self.high - self.low).sum()

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        return _affine(jax.random.uniform(key, shape), self.low, self.high - self.low)


class _NumPyroDistribution(eqx.Module):
    """Adapter of a NumPyro distribution over the parameter vector, or over one parameter and repeated."""

    distribution: Any

    @property
    def size(self) -> int | None:
        shape = self.distribution.shape()
        if len(shape) > 1:
            raise ValueError(f"prior must be over one vector of parameters; its draws have shape {shape}.")
        return shape[0] if shape else None

    @property
    def bounds(self) -> tuple[Any, Any]:
        support = self.distribution.support
        while hasattr(support, "base_constraint"):
            support = support.base_constraint
        return getattr(support, "lower_bound", -np.inf), getattr(support, "upper_bound", np.inf)

    def log_prob(self, theta: Float[Array, " K"]) -> Float[Array, ""]:
        return self.distribution.log_prob(theta).sum()

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        n_axes = len(self.distribution.shape())
        return self.distribution.sample(key, shape[: len(shape) - n_axes])


def as_prior(prior: object) -> Prior:
    """Return `prior` as a `Prior`; a NumPyro distribution is wrapped.

    Raises
    ------
    TypeError
        If `prior` is a class or has no `log_prob`.
    """
    if isinstance(prior, type):
        raise TypeError(f"prior must be an instance: write {prior.__name__}(...), not {prior.__name__}.")
    if hasattr(prior, "batch_shape") and hasattr(prior, "event_shape"):
        return _NumPyroDistribution(prior)
    if not isinstance(prior, Prior):
        raise TypeError(
            f"prior must have log_prob(theta) and sample(key, shape); got {type(prior).__name__}. "
            "Use one of calibayes.priors."
        )
    return prior


def _affine(z: Array, loc: Array, scale: Array) -> Array:
    return jnp.broadcast_to(loc, z.shape) + jnp.broadcast_to(scale, z.shape) * z
