r"""Models whose generalized posterior is an ordinary posterior, so that parameters and data can be drawn jointly.

With counts c the posterior of a replicate is $\exp\{-\eta \sum_i c_i r_i(\theta)\}\,p(\theta)$. Where $\exp(-\eta r)$
is a density in y up to a constant, observation i is drawn at the learning rate $\eta c_i$, that is, with $c_i$ times
the precision. A binary y permits only the counts 0 and 1.

The hinge loss is not a negative log-likelihood: its sum over y = -1 and 1 leaves a normaliser $z_i(\theta)$. But if the
parameters are drawn from $p(\theta)\prod_i z_i(\theta)$ and the labels with probabilities $e^{-\eta c_i r_i} / z_i$,
their joint density is $p(\theta)\prod_i e^{-\eta c_i r_i}$, which has the required posterior.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

import calibayes as cb
from calibayes._core.target import Target, make_target

_MAX_TRIES = 512
"""Proposals of the rejection sampler per data set."""


@runtime_checkable
class SampledPrior(Protocol):
    """A prior that can be drawn from."""

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Array: ...


class Model(NamedTuple):
    """A generalized posterior together with the distribution of its data."""

    name: str
    gibbs: cb.GibbsModel
    dim: int
    eta: float
    observe: Callable[[PRNGKeyArray, Array, Array], Array]
    """Draws y from a key, the linear predictions `x @ theta` and the learning rate of each observation."""
    binary: bool = False
    positive: bool = False
    """Whether x must be positive, so that predictions are."""
    normaliser: Callable[[Array, Array], tuple[Array, Array]] | None = None
    """log z of predictions and learning rates, and its maximum; None if z does not depend on the parameters."""

    @property
    def prior(self) -> SampledPrior:
        """The prior, with a method to draw from it."""
        prior = self.gibbs.prior
        assert isinstance(prior, SampledPrior)
        return prior

    def design(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Draw a design matrix: an intercept and correlated normal columns."""
        x = rng.normal(size=(n, self.dim)) + 0.5 * rng.normal(size=(n, 1))
        x[:, 0] = 1
        return np.exp(0.5 * x) if self.positive else x

    def counts(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Draw bootstrap counts, capped at 1 for binary data."""
        drawn = rng.multinomial(n, np.full(n, 1 / n))
        return (np.minimum(drawn, 1) if self.binary else drawn).astype(float)

    def parameters(self, key: PRNGKeyArray, x: Array, counts: Array) -> Array:
        """Draw the parameters of one data set: from the prior, by rejection sampling if there is a normaliser."""
        if self.normaliser is None:
            return self.prior.sample(key, (self.dim,))
        tries, accept = jax.random.split(key)
        theta = self.prior.sample(tries, (_MAX_TRIES, self.dim))
        log_z, max_log_z = self.normaliser(theta @ x.T, jnp.broadcast_to(self.eta * counts, (_MAX_TRIES, len(counts))))
        accepted = jnp.log(jax.random.uniform(accept, (_MAX_TRIES,))) < (log_z - max_log_z).sum(-1)
        return jnp.where(accepted.any(), theta[jnp.argmax(accepted)], jnp.nan)

    def data(self, key: PRNGKeyArray, x: Array, theta: Array, counts: Array) -> Array:
        """Draw y of one data set; observations with count 0 are drawn as with count 1."""
        return self.observe(key, x @ theta, self.eta * jnp.where(counts > 0, counts, 1.0))


class Stack(NamedTuple):
    """L data sets as replicates of one target; each replicate counts only its own observations."""

    target: Target
    theta: jax.Array
    """True parameters of each data set, shape (L, K)."""
    x: np.ndarray
    """Shape (L, n, K)."""
    y: jax.Array
    counts: np.ndarray
    """Shape (L, n)."""


def stack(model: Model, seed: int, n_sets: int, n: int) -> Stack:
    """Draw `n_sets` data sets of `n` observations with their parameters."""
    rng = np.random.default_rng(seed)
    x = np.stack([model.design(rng, n) for _ in range(n_sets)])
    counts = np.stack([model.counts(rng, n) for _ in range(n_sets)])
    theta, y = joint(model, jax.random.key(seed), jnp.asarray(x, float), jnp.asarray(counts, float))
    blocks = np.einsum("ij,jn->ijn", np.eye(n_sets), counts).reshape(n_sets, n_sets * n)
    flat = (x.reshape(n_sets * n, -1), np.asarray(y, np.float64).reshape(-1))
    target = make_target(model.gibbs, flat, blocks, model.dim)
    return Stack(target.select(jnp.arange(1, n_sets + 1)), theta, x, y, counts)


def joint(model: Model, key: PRNGKeyArray, x: Array, counts: Array) -> tuple[Array, Array]:
    """Draw parameters and data of each data set."""
    theta, y = _joint(model, key, x, counts)
    if not np.isfinite(theta).all():
        raise RuntimeError(f"{model.name}: the rejection sampler accepted no parameters in {_MAX_TRIES} tries.")
    return theta, y


@eqx.filter_jit
def _joint(model: Model, key: PRNGKeyArray, x: Array, counts: Array) -> tuple[Array, Array]:
    keys = jax.random.split(key, (2, len(x)))
    theta = jax.vmap(model.parameters)(keys[0], x, counts)
    return theta, jax.vmap(model.data)(keys[1], x, theta, counts)


def _normal(key, prediction, eta):
    return prediction + jax.random.normal(key, eta.shape) / jnp.sqrt(eta)


def _asymmetric_laplace(tau):
    def observe(key, prediction, eta):
        above, below = jax.random.exponential(key, (2, *eta.shape))
        return prediction + (above / tau - below / (1 - tau)) / eta

    return observe


def _gamma(key, rate, eta):
    return jax.random.gamma(key, eta) / (eta * rate)


def _sign(key, log_odds):
    return jnp.where(jnp.log(jax.random.uniform(key, log_odds.shape)) < jax.nn.log_sigmoid(log_odds), 1.0, -1.0)


def _hinge(prediction):
    return 2 * jnp.maximum(0, 1 - prediction)


def _hinge_normaliser(prediction, eta):
    log_z = jnp.logaddexp(-eta * _hinge(prediction), -eta * _hinge(-prediction))
    # The maximum is at a prediction of 1, where one loss is 0 and the other 4.
    return log_z, jnp.log1p(jnp.exp(-4 * eta))


def _exponential_loss(theta, datum):
    x, y = datum
    rate = x @ theta
    return rate * y - jnp.log(rate)


MODELS = {
    model.name: model
    for model in (
        Model("normal mean", cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(1.0, 0.8)), 1, 0.4, _normal),
        Model(
            "linear regression",
            cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal([0.5, -1.0, 0.0], [1.0, 2.0, 0.5])),
            3,
            2.0,
            _normal,
        ),
        Model(
            "quantile regression",
            cb.GibbsModel(cb.losses.Quantile(0.3), cb.priors.Laplace([0.5, 0.0], [1.0, 0.5])),
            2,
            3.0,
            _asymmetric_laplace(0.3),
        ),
        Model(
            "logistic regression",
            cb.GibbsModel(cb.losses.Logistic(), cb.priors.StudentT(5.0, 0.5, 1.5)),
            2,
            1.0,
            lambda key, prediction, eta: _sign(key, prediction),  # noqa: ARG005
            binary=True,
        ),
        Model(
            "bounded rates",
            cb.GibbsModel(_exponential_loss, cb.priors.Uniform([0.2, 0.1], [2.0, 1.5]), dim=2),
            2,
            1.0,
            _gamma,
            positive=True,
        ),
        Model(
            "support vector machine",
            cb.GibbsModel(cb.losses.Hinge(), cb.priors.Laplace([0.5, -0.5], [1.0, 2.0])),
            2,
            0.4,
            lambda key, prediction, eta: _sign(key, eta * (_hinge(-prediction) - _hinge(prediction))),
            normaliser=_hinge_normaliser,
        ),
    )
}
