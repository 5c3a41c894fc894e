r"""Holmes and Walker's learning rate: the expected information of one observation is that of the model.

The information in an observation x is the Fisher divergence between prior and posterior,

$$ \Delta(x) = \int \lVert \nabla_\theta \log f(x; \theta) \rVert^2\,p(\theta)\,d\theta, $$

and $\eta^2 \Delta(x)$ if the likelihood is raised to the power $\eta$. If the model were true, its expectation would be
$\int f(x; \hat\theta)\,\Delta(x)\,dx$ at $\eta = 1$; in the data it is $\eta^2$ times the mean of $\Delta(x_i)$. Both
are equal at

$$ \eta = \left\{ \int f(x; \hat\theta)\,\Delta(x)\,dx \Big/ n^{-1} \sum_i \Delta(x_i) \right\}^{1/2}. $$
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from calibayes._backend.arguments import display
from calibayes._backend.functions import host_array, static
from calibayes._backend.jit import jit
from calibayes._backend.rng import fold_key, split_key
from calibayes._core.loss import Generic
from calibayes._core.particles import host_moments
from calibayes._core.scores import observation_scores
from calibayes._core.target import Target
from calibayes.bootstrap import Block, Cluster
from calibayes.losses import Logistic, Poisson, Squared
from calibayes.methods.base import PlugInMethod
from calibayes.methods.moments import DrawsOnData, LearningRate

_STREAM = 14
_KNOWN_LIKELIHOODS = (Squared, Logistic, Poisson)
"""Losses whose model can be simulated from."""


@dataclass(frozen=True)
class HolmesWalkerConfig:
    """Constants of the Monte Carlo integrals."""

    n_prior: int = 1_000
    """Draws of the prior."""
    n_data: int = 20
    """Data sets that are simulated from the model, on the covariates of the data."""
    n_groups: int = 10
    """Groups of prior draws and data sets from which the standard error is computed."""
    max_scores: int = 2**24
    """Gradients that are in memory at the same time."""


CONFIG = HolmesWalkerConfig()


class HolmesWalker(PlugInMethod):
    r"""Match the expected information of the model, `method="holmes-walker"`.

    Let D(z) be the squared norm of the gradient of the log-likelihood of an observation z, averaged over parameters
    drawn from the prior. The learning rate is the square root of a ratio: the expectation of D(z), for z drawn from
    the model at the posterior mean, divided by the mean of D over the data.

    Parameters
    ----------
    simulate : callable, optional
        Function `simulate(key, theta, datum)` that returns an observation drawn from the model, with the covariates of
        `datum`. Default: the model of the loss, for `losses.Squared` (normal errors with unit variance),
        `losses.Logistic` and `losses.Poisson`. Needed for `GibbsModel.from_log_likelihood`.

    Notes
    -----
    Targets the information that an observation is worth, not coverage. Defined for log-likelihoods only, with a proper
    prior that can be sampled; other losses are refused. Costs gradients at 1,000 draws of the prior, for 20 simulated
    data sets. Depends on the units of the parameters, and strongly on the prior: with a diffuse one, both integrals are
    dominated by parameters far from the data, and the learning rate tends to one whatever the misspecification.
    Observations must be independent, so that it is not available for `bootstrap.Cluster` and `bootstrap.Block`. All
    intervals are at the same learning rate.

    References
    ----------
    Holmes and Walker (2017), Assigning a value to a power likelihood in a general Bayesian model, Biometrika 104,
    497-503.

    Examples
    --------
    >>> import calibayes as cb
    >>> cb.methods.HolmesWalker().name
    'holmes-walker'
    """

    name: ClassVar[str] = "holmes-walker"
    uses_moments: ClassVar[bool] = False
    uses_sandwich: ClassVar[bool] = False
    is_global: ClassVar[bool] = True
    simulate: Callable[..., Any] | None

    def __init__(self, simulate: Any = None):
        if simulate is not None and not callable(simulate):
            raise TypeError(f"simulate must be a function (key, theta, datum); got {display(simulate)}.")
        self.simulate = None if simulate is None else static(simulate)

    def check(self, model, bootstrap, shape, weights):  # noqa: ARG002
        loss = model.loss
        known = isinstance(loss, _KNOWN_LIKELIHOODS)
        if not is_log_likelihood(loss):
            raise ValueError(
                f'method "holmes-walker" needs a log-likelihood; {type(loss).__name__} is not one. Use '
                'GibbsModel.from_log_likelihood, or method="matching".'
            )
        if not known and self.simulate is None:
            raise ValueError(
                'method "holmes-walker" simulates from the likelihood: use '
                "cb.methods.HolmesWalker(simulate), with a function simulate(key, theta, datum)."
            )
        if weights is not None:
            raise ValueError('method "holmes-walker" is not defined for weighted observations. Use weights=None.')
        if not hasattr(model.prior, "sample"):
            raise ValueError('method "holmes-walker" averages over the prior, which needs a method sample.')
        if isinstance(bootstrap, Cluster | Block):
            raise ValueError(
                'method "holmes-walker" compares independent observations with the model. It is not available for '
                f"bootstrap.{type(bootstrap).__name__}."
            )

    def learning_rate(self, draws, vector):  # noqa: ARG002
        assert draws.key is not None
        if draws.target.mesh is not None:
            raise ValueError('method "holmes-walker" needs a single device.')
        in_data, in_model = self._information(draws)
        if not (np.isfinite(in_data).all() and np.isfinite(in_model).all()):
            raise ValueError(
                'method "holmes-walker": the squared gradients are infinite at draws of the prior, which is too wide. '
                "Use a narrower one or another method."
            )
        n_groups = CONFIG.n_groups
        # Groups of prior draws (first axis of both) and of simulated data sets (second axis of `in_model`).
        by_group = [
            np.sqrt(np.delete(in_model, k, 0).mean() / np.delete(in_data, k, 0).mean()) for k in range(n_groups)
        ]
        by_data = [np.sqrt(np.delete(in_model, k, 1).mean() / in_data.mean()) for k in range(in_model.shape[1])]
        variances = [(len(values) - 1) * np.var(values) for values in (by_group, by_data)]
        return LearningRate(float(np.sqrt(in_model.mean() / in_data.mean())), float(np.sqrt(sum(variances))))

    def _information(self, draws: DrawsOnData) -> tuple[Float[np.ndarray, " G"], Float[np.ndarray, "G S"]]:
        """Return the mean squared gradients of the data, and of simulated data sets, by group of prior draws."""
        assert draws.key is not None
        target = draws.target
        prior_key, data_key = split_key(fold_key(draws.key, _STREAM))
        theta = target.prior.sample(prior_key, (CONFIG.n_prior, target.dim)).astype(target.reference.dtype).T
        estimate = host_array(host_moments(target.constrained(draws.candidates[0].particles))[0].mean(1))
        groups = np.array_split(np.asarray(theta), CONFIG.n_groups, axis=1)
        simulated = [
            replace(target, data=_simulate(fold_key(data_key, k), target, estimate, self.simulate))
            for k in range(CONFIG.n_data)
        ]
        in_data = np.array([_mean_squared_score(target, group) for group in groups])
        in_model = np.array([[_mean_squared_score(one, group) for one in simulated] for group in groups])
        return in_data, in_model


def is_log_likelihood(loss: object) -> bool:
    """Return whether a loss is known to be the negative logarithm of a likelihood, up to a constant."""
    return isinstance(loss, _KNOWN_LIKELIHOODS) or (isinstance(loss, Generic) and loss.sign == -1)


def _mean_squared_score(target: Target, theta: Float[np.ndarray, "K S"]) -> float:
    """Return the squared norm of the gradient of the loss, averaged over observations and the columns of `theta`."""
    n = int(target.counts.n)
    size = max(1, CONFIG.max_scores // (n * len(theta)))
    total = 0.0
    for part in np.array_split(theta, -(-theta.shape[1] // size), axis=1):
        total += float(_sum_of_squares(target, part))
    return total / (n * theta.shape[1])


@jit
def _sum_of_squares(target: Target, theta: Float[Array | np.ndarray, "K S"]) -> Float[Array, ""]:
    scores = observation_scores(target, theta)
    is_observation = jnp.arange(scores.shape[1]) < target.counts.n
    return jnp.where(is_observation[None], jnp.square(scores).sum(-1), 0.0).sum()


@jit
def _simulate(
    key: PRNGKeyArray, target: Target, theta: Float[Array | np.ndarray, " K"], simulate: Callable[..., Any] | None
) -> PyTree[Array]:
    """Return data simulated from the model, arranged in blocks of observations like `target.data`."""
    if simulate is not None:
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), target.data)
        keys = jax.random.split(key, target.n_stored)
        drawn = jax.vmap(simulate, (0, None, 0))(keys, jnp.asarray(theta), flat)
        return jax.tree.map(lambda new, leaf: new.reshape(leaf.shape).astype(leaf.dtype), drawn, target.data)
    x, y, offset = target.data
    prediction = offset + jnp.tensordot(x, jnp.asarray(theta) - target.reference, 1)
    if isinstance(target.loss, Logistic):
        positive = jax.random.uniform(key, y.shape) < jax.nn.sigmoid(prediction)
        return x, jnp.where(positive, 1.0, -1.0).astype(y.dtype), offset
    if isinstance(target.loss, Poisson):
        return x, jax.random.poisson(key, jnp.exp(prediction), y.shape).astype(y.dtype), offset
    return x, prediction + jax.random.normal(key, y.shape, y.dtype), offset
