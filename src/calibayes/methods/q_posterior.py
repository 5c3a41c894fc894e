r"""The Q-posterior: a quadratic form of the gradients in place of the risk.

With the gradient $U(\theta) = \sum_i g_i(\theta)$ of the risk and the estimated covariance $J(\theta)$ of $U$,

$$ \pi_Q(\theta) \propto |J(\theta)|^{-1/2} \exp\{-\tfrac12 U(\theta)^\top J(\theta)^{-1} U(\theta)\}\,p(\theta), $$

the normal density of the gradient around zero, as a likelihood. The determinant matters far from the estimate only,
where J grows and the quadratic form stays bounded: without it the tails of the density would be those of the prior.

Near the estimate $U(\theta) \approx H (\theta - \hat\theta)$, so that the covariance is the sandwich
$H^{-1} J H^{-1}$. No learning rate is needed: multiplying the loss by a number changes nothing.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import numpy as np
from jaxtyping import Float

from calibayes._backend.functions import host_array
from calibayes._core.loss import CountsRisk
from calibayes._core.particles import Particles, host_moments
from calibayes._core.scores import data_gradients, observation_scores
from calibayes._core.target import Target
from calibayes._core.weights import Weights
from calibayes.bootstrap import Bootstrap
from calibayes.methods.moments import DrawsOnData, Moments, host_weights, require_full_rank, sum_of_outer_products
from calibayes.methods.reported import DrawsMethod, ReportedDraws, as_particles_on_data, random_generator, unconstrained
from calibayes.methods.studentized import require_derivative

_STREAM = 12


@dataclass(frozen=True)
class QPosteriorConfig:
    """Constants of the importance sampling."""

    n_draws: int = 4_000
    """Number of draws in each round, and number of draws in a result."""
    n_rounds: int = 3
    """Rounds, of which all but the last fit the proposal. The first proposal has the sandwich covariance, from which
    that of the Q-posterior differs because J depends on the parameters."""
    df: float = 5.0
    """Degrees of freedom of the proposal, a t distribution, so that weights are bounded for tails that are lighter."""
    inflation: float = 1.3
    """Factor on the standard deviations of the proposal. Order-of-magnitude choice."""
    max_distance: float = 10.0
    """Largest distance from the estimate in standard deviations of the sandwich. Beyond it J grows with the distance
    and the quadratic form stays bounded, so that the density decreases slowly: in a least squares problem of 96
    observations and four parameters, 0.2% of the draws were beyond, up to 130 standard deviations away, and multiplied
    the variances by ten."""
    n_slope: int = 200
    """Draws at which the gradients are evaluated for the Hessian. It only sets the first proposal and the distance
    above. Order-of-magnitude choice."""
    min_relative_ess: float = 0.05
    """Smallest ratio of effective sample size to number of draws. Below it the method raises an error, because the
    proposal does not cover the distribution."""
    max_scores: int = 2**24
    """Gradients that are in memory at the same time."""


CONFIG = QPosteriorConfig()


class QPosterior(DrawsMethod):
    r"""Quadratic form of the gradients in place of the risk, `method="q-posterior"`.

    Samples $|J(\theta)|^{-1/2} \exp\{-\tfrac12 U(\theta)^\top J(\theta)^{-1} U(\theta)\}\,p(\theta)$ with the gradient
    $U$ of the risk and the estimated covariance $J$ of $U$, the sum of the outer products of the gradients of single
    observations or, for dependent data, of their sums over clusters or blocks.

    Notes
    -----
    Targets the sandwich covariance, with the prior; its sets are first-order correct without a bootstrap and without a
    learning rate. Costs the gradients of all losses at 12,000 draws on the data; the replicates are sampled to report
    the coverage. Needs a loss with a derivative almost everywhere and more independent observations than parameters.
    A stationary point far from the estimate, such as a maximum of the risk, has as high a density as the minimum, and
    with a diffuse prior the density hardly falls far from the estimate: draws are restricted to ten standard deviations
    of the sandwich. With few observations per parameter the variances are larger than those of the sandwich, because J
    grows away from the estimate. Needs a single device. `result.eta` is the learning rate of a posterior that is as
    wide on average.

    References
    ----------
    Frazier, Kohn, Drovandi and Gunawan (2023), Reliable Bayesian inference in misspecified models, arXiv:2302.06031.
    Frazier, Drovandi and Kohn (2023), Calibrated generalized Bayesian inference, arXiv:2311.15485.

    Examples
    --------
    >>> import calibayes as cb
    >>> cb.methods.QPosterior().name
    'q-posterior'
    """

    name: ClassVar[str] = "q-posterior"
    uses_sandwich: ClassVar[bool] = True

    def draw(self, problem, iterate, draws):  # noqa: ARG002
        target = problem.target
        if target.mesh is not None:
            raise ValueError('method "q-posterior" needs a single device.')
        require_derivative(self.name, draws)
        moments = draws.moments.moments
        require_full_rank(moments)
        on_data = target.constrained(draws.candidates[0].particles)
        centre, covariance = host_moments(on_data)[0].mean(1), _sandwich(target, on_data, moments)
        theta, weights, ess = _sample(target, draws, centre, covariance)
        if ess < CONFIG.min_relative_ess * CONFIG.n_draws:
            raise ValueError(
                f"the Q-posterior is far from normal: {ess:.0f} of {CONFIG.n_draws:,} draws are effective. Use another "
                "method."
            )
        rng = random_generator(draws, _STREAM + 1)
        points = (np.arange(CONFIG.n_draws) + rng.uniform(size=CONFIG.n_draws)) / CONFIG.n_draws
        chosen = np.minimum(np.searchsorted(np.cumsum(weights), points), CONFIG.n_draws - 1)
        return ReportedDraws(as_particles_on_data(target, unconstrained(target, theta[chosen].T)), ess)


def _sandwich(target: Target, on_data: Particles, moments: Moments) -> Float[np.ndarray, "K K"]:
    """Return the sandwich covariance, with the Hessian as the slope of the gradients of the risk at some of the draws.

    Unlike the covariance of the draws, it is not changed by bounds of the prior.
    """
    theta = np.asarray(on_data.theta, np.float64).reshape(target.dim, -1)
    theta = theta[:, :: max(1, theta.shape[1] // CONFIG.n_slope)]
    weights = host_weights(target)
    totals = _gradients_of_risk(target, theta, _scores(target, theta), weights)
    hessian = np.linalg.lstsq((theta - theta.mean(1, keepdims=True)).T, totals - totals.mean(0))[0]
    ratio = np.linalg.solve(hessian @ moments.inverse_hessian, np.eye(target.dim)).T
    return ratio @ moments.sandwich @ ratio.T


def _sample(
    target: Target, draws: DrawsOnData, centre: Float[np.ndarray, " K"], covariance: Float[np.ndarray, "K K"]
) -> tuple[Float[np.ndarray, "M K"], Float[np.ndarray, " M"], float]:
    """Return draws, their importance weights, and the effective sample size."""
    rng, dim, n_draws = random_generator(draws, _STREAM), len(centre), CONFIG.n_draws
    estimate, precision = centre, np.linalg.inv(covariance)
    for _ in range(CONFIG.n_rounds):
        root = CONFIG.inflation * np.linalg.cholesky(covariance)
        chi = rng.chisquare(CONFIG.df, n_draws) / CONFIG.df
        white = rng.normal(size=(n_draws, dim)) / np.sqrt(chi)[:, None]
        log_proposal = -0.5 * (CONFIG.df + dim) * np.log1p(np.square(white).sum(1) / CONFIG.df)
        theta = centre + white @ root.T
        gaps = theta - estimate
        near = np.einsum("ik,kj,ij->i", gaps, precision, gaps) <= CONFIG.max_distance**2
        log_weights = np.where(near, _log_density(target, theta, draws.bootstrap) - log_proposal, -np.inf)
        weights = np.exp(log_weights - max(log_weights.max(), -1e300))
        weights /= max(weights.sum(), 1.0)
        ess = float(weights.sum() / max(np.square(weights).sum(), 1e-300))
        if ess <= dim:
            break
        centre = weights @ theta
        covariance = ((theta - centre).T * weights) @ (theta - centre)
    return theta, weights, ess


def _log_density(
    target: Target, theta: Float[np.ndarray, "M K"], bootstrap: Bootstrap | None
) -> Float[np.ndarray, " M"]:
    """Return the logarithm of the density of the Q-posterior, up to a constant.

    It is minus infinity beyond the bounds of the prior, and where the risk is not finite.
    """
    n, weights = int(target.counts.n), host_weights(target)
    points = host_array(theta.T)
    z = unconstrained(target, points)
    inside = np.isfinite(z).all(0)
    evaluated = target.constrained(as_particles_on_data(target, np.where(inside, z, 0)))
    log_prior = np.asarray(evaluated.log_prior, np.float64)[0]
    inside &= np.isfinite(log_prior) & np.isfinite(np.asarray(evaluated.risk)[0])
    values = np.full(len(theta), -np.inf)
    size = max(1, CONFIG.max_scores // (n * theta.shape[1]))
    chosen = np.flatnonzero(inside)
    for part in np.split(chosen, range(size, len(chosen), size)) if len(chosen) else ():
        scores = _scores(target, points[:, part])
        gradients = _gradients_of_risk(target, points[:, part], scores, weights)
        for index, score, gradient in zip(part, scores, gradients, strict=True):
            values[index] = log_prior[index] + log_normal_density(score, bootstrap, weights, gradient)
    return values


def _scores(target: Target, theta: Float[np.ndarray, "K S"]) -> Float[np.ndarray, "S N K"]:
    """Return the gradients of the losses of all observations, or what takes their place."""
    scores = jax.device_get(observation_scores(target, host_array(theta)))
    return np.asarray(scores, np.float64)[:, : int(target.counts.n)]


def _gradients_of_risk(
    target: Target, theta: Float[np.ndarray, "K S"], scores: Float[np.ndarray, "S N K"], weights: Weights | None
) -> Float[np.ndarray, "S K"]:
    """Return the gradients of the risk on the data."""
    if isinstance(target.loss, CountsRisk):
        return np.asarray(jax.device_get(data_gradients(target, host_array(theta))), np.float64)
    return scores.sum(1) if weights is None else np.einsum("snk,n->sk", scores, weights.values)


def log_normal_density(
    scores: Float[np.ndarray, "N K"],
    bootstrap: Bootstrap | None,
    weights: Weights | None = None,
    gradient: Float[np.ndarray, " K"] | None = None,
) -> float:
    """Return the normal log-density of the gradient of the risk, up to a constant.

    It is minus infinity if J is singular, or the gradient is not finite.

    Parameters
    ----------
    scores : ndarray of shape (N, K)
        Gradients of the losses of single observations.
    bootstrap : Bootstrap or None
        The bootstrap, which states how observations depend on each other.
    weights : Weights or None
        Weights of the observations. Default: None, all one.
    gradient : ndarray of shape (K,), optional
        Gradient of the risk. Default: the weighted sum of `scores`, which it is for a sum of losses.
    """
    shares = np.ones(len(scores)) if weights is None else weights.values
    total = shares @ scores
    covariance = sum_of_outer_products((scores - total / shares.sum()).T, bootstrap, weights)
    gradient = total if gradient is None else gradient
    sign, log_determinant = np.linalg.slogdet(covariance)
    if sign <= 0 or not np.isfinite(log_determinant) or not np.isfinite(gradient).all():
        return -np.inf
    return -0.5 * float(log_determinant + gradient @ np.linalg.solve(covariance, gradient))
