"""Priors, independent over parameters.

A prior is anything with `log_prob(theta) -> scalar`, summed over the parameters of `theta` (K,), and
`sample(key, shape)`, where `shape` ends in K. Parameters of the priors here are scalars or one value per
parameter. NumPyro's distributions are adapted by `as_prior`. A prior that is zero beyond some bounds says so by a
property `bounds`, `(low, high)`; see `calibayes._core.coordinates`.
"""

from typing import Any, ClassVar, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import stats
from jaxtyping import Array, Float, PRNGKeyArray

from calibayes._backend.arguments import parameters
from calibayes._backend.functions import Numbers


@runtime_checkable
class Prior(Protocol):
    """What a model needs of a prior. `sample` may be missing if `calibrate` is given `draws`."""

    def log_prob(self, theta: Float[Array, " K"]) -> Float[Array, ""]: ...


class _Independent(eqx.Module):
    """K independent parameters; a subclass gives the density and the draws of one.

    It says `log_concave` if its density is, on the whole line.
    """

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
        """The number of parameters the prior was made for, or None for any number."""
        sizes = {value.shape[0] for value in self._parameters().values() if value.ndim == 1}
        if len(sizes) > 1:
            raise ValueError(f"{type(self).__name__} was given parameters of different lengths: {sorted(sizes)}.")
        return sizes.pop() if sizes else None


class Normal(_Independent):
    """Independent normal distributions."""

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
    """Independent Laplace distributions; the paper's SVM prior has `scale = nu * sigma_k`."""

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
    """Independent Student t distributions with `df` degrees of freedom."""

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
    """Independent uniform distributions; the posterior stays between `low` and `high`."""

    low: Float[Array, "..."]
    high: Float[Array, "..."]

    def __init__(self, low: Numbers, high: Numbers):
        self.low, self.high = parameters("low", low), parameters("high", high)
        _ = self.size
        if not (np.asarray(self.low) < np.asarray(self.high)).all():
            raise ValueError(f"low must be below high; got low={self.low}, high={self.high}.")

    @property
    def bounds(self) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        return self.low, self.high

    def log_prob(self, theta: Float[Array, " K"]) -> Float[Array, ""]:
        return stats.uniform.logpdf(theta, self.low, self.high - self.low).sum()

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "..."]:
        return _affine(jax.random.uniform(key, shape), self.low, self.high - self.low)


class _FromNumPyro(eqx.Module):
    """A NumPyro distribution over all parameters, or over one and repeated."""

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
        own = len(self.distribution.shape())
        return self.distribution.sample(key, shape[: len(shape) - own])


def as_prior(prior: Any) -> Any:
    """`prior` as it is, a NumPyro distribution adapted; an error for anything that is no prior."""
    if isinstance(prior, type):
        raise TypeError(f"prior must be an instance: write {prior.__name__}(...), not {prior.__name__}.")
    if hasattr(prior, "batch_shape") and hasattr(prior, "event_shape"):
        return _FromNumPyro(prior)
    if not isinstance(prior, Prior):
        raise TypeError(
            f"prior must have log_prob(theta) and sample(key, shape); got {type(prior).__name__}. "
            "See calibayes.priors for ready ones."
        )
    return prior


def _affine(z: Array, loc: Array, scale: Array) -> Array:
    return jnp.broadcast_to(loc, z.shape) + jnp.broadcast_to(scale, z.shape) * z
