"""A prior from a log-density function."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import numpy as np

from calibayes._backend.functions import as_float, static


class LogDensity(eqx.Module):
    """Prior given by its log-density.

    Parameters
    ----------
    fn : callable
        Function `fn(theta) -> scalar` of a parameter vector of shape (K,), written with `jax.numpy`. The density need
        not be normalised.
    sample : callable, optional
        Function `sample(key, shape)` that returns draws of the prior; the last axis of `shape` has length K. Without it
        `calibrate` needs draws of the posterior (`draws=`), and the audit of `sampler="auto"` is skipped.
    bounds : tuple of (low, high)
        Support of the prior: scalars or arrays with one value per parameter. Default: no bounds.

    Attributes
    ----------
    log_prob : callable
        The log-density `fn`.
    bounds : tuple of (Array, Array)
        Lower and upper bounds.

    Examples
    --------
    A Gamma(3) prior:

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import calibayes as cb
    >>> prior = cb.interop.LogDensity(
    ...     lambda theta: (2 * jnp.log(theta) - theta).sum(),
    ...     sample=lambda key, shape: jax.random.gamma(key, 3.0, shape),
    ...     bounds=(0.0, jnp.inf),
    ... )
    >>> float(prior.log_prob(jnp.array([1.0])))
    -1.0
    """

    log_prob: Callable[..., Any] = eqx.field(converter=static)
    bounds: tuple[Any, Any]
    sample_fn: Callable[..., Any] | None

    def __init__(
        self,
        fn: Callable[..., Any],
        sample: Callable[..., Any] | None = None,
        bounds: tuple[Any, Any] = (-np.inf, np.inf),
    ):
        self.log_prob = fn
        self.sample_fn = None if sample is None else static(sample)
        self.bounds = (as_float(bounds[0]), as_float(bounds[1]))

    @property
    def sample(self) -> Callable[..., Any]:
        """Function `sample(key, shape)` that returns draws of the prior."""
        if self.sample_fn is None:
            raise AttributeError("this LogDensity has no sample(key, shape): pass sample= to its constructor.")
        return self.sample_fn
