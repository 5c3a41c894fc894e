r"""SafeBayes: the learning rate whose posterior predicts the next observation best, over the sequence of the data.

For every learning rate of a grid, the posterior $\pi_\eta(\theta \mid z_1, \dots, z_i)$ of the first i observations is
evaluated on the next one. R-log-SafeBayes adds up the posterior expectations of the loss,

$$ S(\eta) = \sum_{i=1}^{n-1} \mathrm{E}_{\pi_\eta(\cdot \mid z_1, \dots, z_i)}\,r_{i+1}(\theta), $$

and I-log-SafeBayes the losses at the posterior means. The learning rate minimizes the sum. The prediction of the first
observation is left out: it is that of the prior, whatever the learning rate.

The posteriors of all prefixes of the data are replicates whose counts are one for the first observations and zero for
the others. One tempering from the prior visits the learning rates of the grid in turn, for all prefixes together.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from calibayes._backend.arguments import display, positive
from calibayes._backend.jit import jit
from calibayes._backend.rng import fold_key, replicate_keys
from calibayes._core.counts import StoredCounts
from calibayes._core.loss import CountsRisk, Generic, LinearLoss
from calibayes._core.particles import Particles
from calibayes._core.status import Diagnostic
from calibayes._core.target import Target
from calibayes.bootstrap import Block, Cluster
from calibayes.methods.base import PlugInMethod
from calibayes.methods.holmes_walker import is_log_likelihood
from calibayes.methods.moments import DrawsOnData, LearningRate, unresolved
from calibayes.samplers.initial import init_at_prior
from calibayes.samplers.mixing import temper_to

_STREAM = 13
VARIANTS = ("R-log", "I-log")


@dataclass(frozen=True)
class SafeBayesConfig:
    """Constants of the computation of the predictive losses."""

    n_particles: int = 1_000
    """Particles of each prefix."""
    max_prefixes: int = 500
    """Largest number of prefixes; of longer data as many are evenly spaced. Each predicts the observation after it."""


CONFIG = SafeBayesConfig()


class SafeBayes(PlugInMethod):
    r"""Learning rate of the best sequential predictions, `method="safe-bayes"`.

    Parameters
    ----------
    variant : {"R-log", "I-log"}
        "R-log": the posterior expectation of the loss of the next observation. "I-log": the loss at the posterior mean
        of the parameters, that is, of a prediction by a single member of the model. Default: "R-log".
    grid : sequence of float, optional
        Learning rates to choose from. Default: powers of the square root of two from 1/64 to 1.

    Notes
    -----
    Targets predictions, and concentration of the posterior around the best parameters of a misspecified model, not
    coverage: it tends to learning rates that are smaller than one, and its sets may cover much more or less than the
    level. Meant for losses that are negative log-likelihoods. The posterior given the
    first i observations is sampled for i = 1, ..., N - 1, or for 500 evenly spaced i of longer data, by tempering from
    the prior, which often costs more than `"gpc"`. The sum of the losses of the predictions depends on the order of the
    observations, and on the prior: with a diffuse prior the first predictions dominate it and are noisy. Observations
    must be independent, so that it is not available for `bootstrap.Cluster` and `bootstrap.Block`. All intervals are at
    the same learning rate. `result.eta_se` is half the difference between the learning rates of two halves of the
    particles; the distance between learning rates of the grid is not included. A diagnostic warns of an optimum at an
    end of the grid, except for an upper end of at least 1 if the loss is a negative log-likelihood, for which learning
    rate 1 is ordinary Bayesian inference.

    References
    ----------
    Grünwald and van Ommen (2017), Inconsistency of Bayesian inference for misspecified linear models, and a proposal
    for repairing it, Bayesian Analysis 12, 1069-1103.
    Grünwald (2012), The safe Bayesian: learning the learning rate via the mixability gap, Algorithmic Learning Theory.

    Examples
    --------
    >>> import calibayes as cb
    >>> cb.methods.SafeBayes("I-log", grid=[0.25, 0.5, 1.0]).grid
    (0.25, 0.5, 1.0)
    """

    name: ClassVar[str] = "safe-bayes"
    uses_moments: ClassVar[bool] = False
    uses_sandwich: ClassVar[bool] = False
    is_global: ClassVar[bool] = True
    variant: str = eqx.field(static=True)
    grid: tuple[float, ...] = eqx.field(static=True)

    def __init__(self, variant: str = "R-log", grid: Any = None):
        if variant not in VARIANTS:
            raise ValueError(f"variant must be one of {', '.join(VARIANTS)}; got {display(variant)}.")
        values = [2 ** (-k / 2) for k in range(13)] if grid is None else grid
        if not np.iterable(values) or isinstance(values, str):
            raise TypeError(f"grid must be a sequence of learning rates; got {display(grid)}.")
        chosen = sorted({positive("grid", value) for value in values})
        if len(chosen) < 2:
            raise ValueError(f"grid must have at least two different learning rates; got {display(grid)}.")
        self.variant, self.grid = variant, tuple(chosen)

    def check(self, model, bootstrap, shape, weights):  # noqa: ARG002
        if isinstance(bootstrap, Cluster | Block):
            raise ValueError(
                'method "safe-bayes" predicts one observation from those before it, which must be independent. It is '
                f"not available for bootstrap.{type(bootstrap).__name__}."
            )
        if isinstance(model.loss, CountsRisk):
            raise ValueError('method "safe-bayes" predicts one observation, whose loss this risk does not define.')
        if weights is not None:
            raise ValueError('method "safe-bayes" is not defined for weighted observations. Use weights=None.')
        if not hasattr(model.prior, "sample"):
            raise ValueError('method "safe-bayes" starts from draws of the prior, which needs a method sample.')

    def learning_rate(self, draws, vector):  # noqa: ARG002
        is_likelihood = is_log_likelihood(draws.target.loss)
        return _best_of(self.grid, self.predictive_losses(draws), is_likelihood)

    def predictive_losses(self, draws: DrawsOnData) -> Float[np.ndarray, "2 G"]:
        """Return the sum of the losses of the next observations at each learning rate, by each half of the particles.

        Parameters
        ----------
        draws : DrawsOnData
            Draws on the data, whose target contains the data.

        Returns
        -------
        ndarray of shape (2, G)
            Sums, in the order of `grid`.
        """
        assert draws.key is not None
        target = draws.target
        if target.mesh is not None:
            raise ValueError('method "safe-bayes" needs a single device.')
        n = int(target.counts.n)
        lengths = np.unique(np.linspace(1, n - 1, min(n - 1, CONFIG.max_prefixes)).round().astype(int))
        return _predictive_losses(fold_key(draws.key, _STREAM), target, lengths, self.grid, self.variant == "I-log")


def _best_of(grid: tuple[float, ...], halves: Float[np.ndarray, "2 G"], is_likelihood: bool) -> LearningRate:
    """Return the learning rate with the smallest sum of predictive losses, from those of two halves of the particles.

    A diagnostic says so if the optimum is at an end of the grid, except for an upper end of at least 1 if the loss is a
    negative log-likelihood, for which learning rate 1 is ordinary Bayesian inference.

    Raises
    ------
    ValueError
        If the sum is infinite at every learning rate.
    """
    etas, sums = np.array(grid), halves.mean(0)
    finite = np.isfinite(sums)
    if not finite.any():
        raise ValueError(
            'method "safe-bayes": the expected loss of the next observation is infinite at every learning rate of the '
            'grid, because the prior is so wide. Use a narrower prior, variant="I-log", or another method.'
        )
    best = int(np.argmin(sums))
    noise, spread = np.ptp(halves[0, finite] - halves[1, finite]), np.ptp(sums[finite])
    findings: tuple[Diagnostic, ...] = ()
    at_likelihood = is_likelihood and grid[best] >= 1
    if best == 0 or (best == len(grid) - 1 and not at_likelihood):
        findings = unresolved(
            f"The predictions are best at an end of the grid, from {grid[0]:.3g} to {grid[-1]:.3g}. Extend grid=."
        )
    elif noise > spread:
        findings = unresolved(
            f"The difference between the predictive losses of two halves of the particles varies by {noise:.2g} over "
            f"the grid, the losses themselves by {spread:.2g} only. Use a narrower prior."
        )
    first, second = etas[np.argmin(halves, 1)]
    return LearningRate(float(etas[best]), float(abs(first - second)) / 2, findings)


def _predictive_losses(
    key: PRNGKeyArray, target: Target, lengths: Int[np.ndarray, " P"], etas: tuple[float, ...], at_mean: bool
) -> Float[np.ndarray, "2 G"]:
    n = int(target.counts.n)
    n_blocks, length = target.reference_loss.shape
    counts = (np.arange(n)[None] < lengths[:, None]).astype(float)
    prefixes = replace(target, counts=StoredCounts.from_array(counts, length, n_blocks))
    temper_key, state = init_at_prior(key, prefixes, CONFIG.n_particles)
    # Replicate 0 is the data, whose next observation does not exist.
    following = np.concatenate([[0], lengths])
    sums = []
    for k, eta in enumerate(etas):
        keys = replicate_keys(fold_key(temper_key, k), prefixes.n_replicates)
        state = temper_to(keys, prefixes, state, eta)
        values = np.asarray(_next_losses(prefixes, state.particles, jnp.asarray(following), at_mean), np.float64)
        sums.append(np.where(np.isnan(values), np.inf, values)[:, 1:].sum(1) * ((n - 1) / len(lengths)))
    return np.array(sums).T


@jit
def _next_losses(target: Target, particles: Particles, indices: Int[Array, " B"], at_mean: bool) -> Float[Array, "2 B"]:
    """Return the loss of one observation per replicate, averaged over each half of the particles.

    With `at_mean` it is the loss at the mean of the half.
    """
    data = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[indices], target.data)
    theta = target.coordinates.constrain(particles.theta)
    n_particles = theta.shape[-1]
    halves = []
    for part in (slice(0, n_particles // 2), slice(n_particles // 2, None)):
        weights = jnp.exp(particles.log_weights[:, part])
        weights = weights / weights.sum(-1, keepdims=True)
        points = theta[:, :, part]
        if at_mean:
            points, weights = (points * weights[None]).sum(-1, keepdims=True), jnp.ones_like(weights[:, :1])
        losses = _losses(target, points, data)
        halves.append(jnp.where(weights > 0, losses * weights, 0.0).sum(-1))
    return jnp.stack(halves)


def _losses(target: Target, theta: Float[Array, "K B M"], data: Any) -> Float[Array, "B M"]:
    """Return the loss of observation b at the particles of replicate b."""
    loss = target.loss
    if isinstance(loss, LinearLoss):
        x, y, offset = data
        prediction = offset[:, None] + jnp.einsum(
            "bk,kbm->bm", x, theta - target.reference[:, None, None], precision=jax.lax.Precision.HIGHEST
        )
        return jax.vmap(jax.vmap(loss.rho, (0, None)))(prediction, y)
    assert isinstance(loss, Generic)
    return jax.vmap(jax.vmap(loss, (1, None)), (1, 0))(theta, data).astype(theta.dtype)
