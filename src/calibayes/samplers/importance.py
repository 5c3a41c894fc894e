r"""Importance sampling of log-concave posteriors.

A convex loss and a log-concave prior make a log-concave posterior. It has one mode, and its tails are no heavier than
exponential, so that draws $\theta$ of a Student t distribution with location $\mu$ and scale matrix $\Sigma$ have
bounded weights

$$ w = \exp\{-\eta R(\theta)\}\,p(\theta) / t(\theta; \mu, \Sigma). $$

If $\mu$ and $\Sigma$ are the mean and covariance of the posterior and it is not far from normal, the effective sample
size is at least half the number of draws. $\mu$ and $\Sigma$ are found by adaptive
importance sampling (Cappé, Guillin, Marin and Robert 2004): draw, weight, and move $\mu$ and $\Sigma$ to the weighted
mean and covariance, starting at a broad distribution around the least-squares fit. While the effective sample size is
small, the draws with the largest weights count equally, as in the cross-entropy method (Rubinstein 1999).

This takes a few evaluations of the risk, where tempering from the prior takes hundreds, and the draws are independent.
Weights also reveal a failure, by a `DegenerateWeightsError`. Callers then use tempering and Markov chains
(`calibayes.samplers.mixing`), which work for any posterior.

References
----------
Cappé, Guillin, Marin and Robert (2004), Population Monte Carlo, Journal of Computational and Graphical Statistics 13.
Rubinstein (1999), The cross-entropy method for combinatorial and continuous optimization, Methodology and Computing in
Applied Probability 1.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from calibayes._backend.devices import SHARDED, sum_over_devices
from calibayes._backend.functions import host_array
from calibayes._backend.jit import light_jit, prefetch
from calibayes._backend.linalg import host_factor
from calibayes._core.convergence import pareto_k, pareto_k_limit
from calibayes._core.counts_risk import derivatives
from calibayes._core.loss import CountsRisk
from calibayes._core.particles import Particles, host_moments
from calibayes._core.target import Target, evaluate, is_log_concave


@dataclass(frozen=True)
class ImportanceConfig:
    """Constants of the importance sampling."""

    min_df: int = 8
    """Smallest number of degrees of freedom of the Student t proposal: tails that are heavier than exponential, at
    little loss of effective sample size for a normal posterior. With more parameters it is their number, because the
    distance of a draw from the centre varies by the share sqrt(2 / df)."""
    min_ess: float = 0.2
    """Effective sample size, as a share of the draws, that every replicate must have. With `oversampling` draws for
    each equally weighted one, nearly as many are effective. It is 0.35 for a check loss with 50 parameters and 2,000
    observations."""
    good_ess: float = 0.5
    """Effective sample size, as a share of the draws, from which on a proposal is not fitted again. Moments of the
    draws have errors, which in many dimensions are larger than those of a normal approximation."""
    max_parameters: int = 500
    """Largest number of parameters. Order-of-magnitude choice; the weights reveal a proposal that does not fit."""
    oversampling: int = 4
    """Draws of the proposal for each equally weighted draw; enough that few are chosen twice by the resampling."""
    max_fits: int = 25
    """Largest number of fits of the proposal. In 50 parameters the best draws have variances that are smaller by a
    third."""
    elite_share: float = 0.025
    """Share of the draws to which a proposal is fitted if fewer are effective. More would shrink the proposal more
    slowly, fewer would fit it to a few draws."""
    min_elite_draws: int = 25
    """Smallest number of such draws per parameter, as for the maps of transport."""
    broadening: float = 25.0
    """Factor of the covariance of the first proposal, relative to that of least squares."""
    ridge: float = 1e-6
    """Ridge of the least-squares fit, for columns scaled to a mean square of one: directions that the observations do
    not determine start with a wide proposal."""


CONFIG = ImportanceConfig()


class DegenerateWeightsError(Exception):
    """Too few draws of the proposal are effective."""


class Proposal(NamedTuple):
    """Location and scale matrix of a Student t distribution for every replicate."""

    centre: Float[np.ndarray, "K R"]
    scale: Float[np.ndarray, "R K K"]

    @staticmethod
    def from_particles(particles: Particles) -> "Proposal":
        """Return proposals with the mean and covariance of the particles of each replicate."""
        return Proposal(*host_moments(particles))

    def repeated(self, n_replicates: int) -> "Proposal":
        """Return the proposal of a single replicate for `n_replicates` replicates."""
        return Proposal(np.repeat(self.centre, n_replicates, 1), np.repeat(self.scale, n_replicates, 0))


class WeightedDraws(NamedTuple):
    """Draws of a proposal on every replicate, and the logarithms of their importance weights, not normalised."""

    theta: Float[np.ndarray, "K R M"]
    risk: Float[np.ndarray, "R M"]
    log_prior: Float[np.ndarray, "R M"]
    log_weights: Float[np.ndarray, "R M"]


def can_importance_sample(target: Target) -> bool:
    """Return whether the posteriors are known to be log-concave, and have few enough parameters."""
    return is_log_concave(target) and target.dim <= CONFIG.max_parameters


def random_generator(key: PRNGKeyArray) -> np.random.Generator:
    """Return a generator of random numbers on the host whose seed is a key."""
    return np.random.default_rng(jax.device_get(jax.random.key_data(key)))


def first_proposal(target: Target) -> Proposal:
    """Return a broad proposal around the least-squares fit to the observed data; its replicate axis has length one.

    For a risk that is not a sum of losses it is around the reference, with the inverse Hessian of the risk there.
    """
    if not target.linear:
        hessian = np.asarray(_hessian_at_reference(target), np.float64)
        size = np.maximum(np.diagonal(hessian), 1e-30)
        inverse = np.linalg.pinv(hessian + CONFIG.ridge * np.diag(size), hermitian=True)
        return Proposal(np.asarray(target.reference, np.float64)[:, None], CONFIG.broadening * inverse[None])
    n, dim = int(target.counts.n), target.dim
    products = np.asarray(_products_of_columns(target), np.float64)
    gram, moments, squares = products[:dim, :dim], products[:dim, dim], products[dim, dim]
    size = np.sqrt(np.maximum(np.diagonal(gram), 1e-30))
    inverse = np.linalg.inv(gram / (size * size[:, None]) + CONFIG.ridge * np.eye(dim)) / (size * size[:, None])
    fit = inverse @ moments
    variance = (squares - moments @ fit) / n
    # Residuals that vanish, up to rounding, leave no scale: use that of the response.
    variance = variance if variance > CONFIG.ridge * squares / n else max(squares / n, 1.0)
    scale = CONFIG.broadening * variance * inverse
    return Proposal((np.asarray(target.reference, np.float64) + fit)[:, None], scale[None])


def prefetch_first_proposal(target: Target) -> None:
    """Start to compile `first_proposal`."""
    prefetch(_products_of_columns if target.linear else _hessian_at_reference, target)


@light_jit
def _hessian_at_reference(target: Target) -> Float[Array, "K K"]:
    """Return the Hessian of the risk of the data."""
    assert isinstance(target.loss, CountsRisk)
    data = target.select(jnp.zeros(1, int))
    return derivatives(target.loss, target.reference[:, None], data.counts_data).hessian[0]


@light_jit
def _products_of_columns(target: Target) -> Float[Array, "J J"]:
    """Return the products, summed over the data, of the columns of X and the response, which is the last column."""

    def on_device(data, counts):
        x, y, offset = data
        columns = jnp.concatenate([x, (y - offset)[..., None]], -1)
        weighted = columns * jax.vmap(counts.block)(counts.blocks)
        return jnp.tensordot(weighted, columns, ((0, 1), (0, 1)), precision=jax.lax.Precision.HIGHEST)

    data_counts = target.counts.select(jnp.zeros(1, int))
    return sum_over_devices(target.mesh, on_device, (SHARDED, data_counts.partition_specs()), target.data, data_counts)


def adapt(rng: np.random.Generator, populations: Target, eta: float, proposal: Proposal, n_draws: int) -> Proposal:
    """Fit the proposal to the posterior on the data.

    Parameters
    ----------
    rng : Generator
        Random numbers.
    populations : Target
        The posterior on the data, once for each population.
    eta : float
        The learning rate.
    proposal : Proposal
        First proposal, for a single replicate.
    n_draws : int
        Number of draws in each population.

    Returns
    -------
    Proposal
        A proposal of which enough draws are effective, or the mean and covariance estimated from them, for a single
        replicate.

    Raises
    ------
    DegenerateWeightsError
        If there is no such proposal after `CONFIG.max_fits` fits.
    """
    for _ in range(CONFIG.max_fits):
        draws = draw_and_weight(rng, populations, proposal.repeated(populations.n_replicates), eta, n_draws)
        log_weights = draws.log_weights.reshape(1, -1)
        if not np.isfinite(log_weights.max()):
            break
        weights = _relative_weights(log_weights)
        size = _ess(weights)[0]
        if size >= CONFIG.good_ess * weights.size:
            return proposal
        theta = draws.theta.reshape(len(draws.theta), -1).astype(np.float64)
        n_elite = int(max(CONFIG.elite_share * weights.size, CONFIG.min_elite_draws * len(theta)))
        few_effective = size < n_elite < weights.size
        if few_effective:
            weights = (log_weights >= np.partition(log_weights[0], -n_elite)[-n_elite]).astype(np.float64)
        weights = weights[0] / weights.sum()
        centre = (theta @ weights)[:, None]
        # Around the previous centre, a proposal that has to move becomes wider in that direction (as in CMA-ES).
        deviations = theta - (proposal.centre if few_effective else centre)
        proposal = Proposal(centre, ((deviations * weights) @ deviations.T)[None])
        if size >= CONFIG.min_ess * weights.size:
            return proposal
    raise DegenerateWeightsError


def sample(rng: np.random.Generator, target: Target, proposal: Proposal, eta: float, n_particles: int) -> Particles:
    """Return equally weighted draws on every replicate, by importance sampling and resampling.

    Parameters
    ----------
    rng : Generator
        Random numbers.
    target : Target
        The posteriors.
    proposal : Proposal
        Proposals close to them.
    eta : float
        The learning rate.
    n_particles : int
        Number of draws on each replicate.

    Raises
    ------
    DegenerateWeightsError
        If too few draws of a replicate are effective.
    """
    particles, sufficient = sample_and_check(rng, target, proposal, eta, n_particles, CONFIG.min_ess)
    if not sufficient.all():
        raise DegenerateWeightsError
    return particles


def sample_and_check(
    rng: np.random.Generator, target: Target, proposal: Proposal, eta: float, n_particles: int, min_ess: float
) -> tuple[Particles, Bool[np.ndarray, " R"]]:
    """Return equally weighted draws as `sample`, and on which replicates enough draws of the proposal are effective.

    `min_ess` is the effective sample size, as a share of the draws of the proposal, that a replicate must have.
    """
    parts = [draw_and_weight(rng, target, proposal, eta, n_particles) for _ in range(CONFIG.oversampling)]
    draws = WeightedDraws(*(np.concatenate(leaves, -1) for leaves in zip(*parts, strict=True)))
    weights = _relative_weights(draws.log_weights)
    n_draws = weights.shape[-1]
    # NaN, the size of weights that are all zero, is not sufficient.
    sufficient = (_ess(weights) >= min_ess * n_draws) & (pareto_k(draws.log_weights) <= pareto_k_limit(n_draws))
    ancestors = _stratified(rng, weights, n_particles)
    theta, risk, log_prior = (
        np.take_along_axis(leaf, np.broadcast_to(ancestors, (*leaf.shape[:-1], n_particles)), -1) for leaf in draws[:3]
    )
    equal = host_array(np.full(ancestors.shape, -np.log(n_particles)))
    return Particles(*jax.device_put((theta, risk, log_prior, equal))), sufficient


def draw_and_weight(
    rng: np.random.Generator, target: Target, proposal: Proposal, eta: float, n_draws: int
) -> WeightedDraws:
    """Draw from the Student t proposal of every replicate, and weight the draws, by one evaluation of the risk."""
    dim, n_replicates = proposal.centre.shape
    z = rng.standard_normal((n_replicates, dim, n_draws))
    df = max(CONFIG.min_df, dim)
    z *= np.sqrt(df / rng.chisquare(df, (n_replicates, 1, n_draws)))
    theta = proposal.centre[:, :, None] + np.moveaxis(host_factor(proposal.scale) @ z, 1, 0)
    evaluated = jax.device_get(evaluate(target, host_array(theta)))
    log_t = -0.5 * (df + dim) * np.log1p(np.square(z).sum(1) / df)
    with np.errstate(invalid="ignore"):
        log_density = -eta * evaluated.risk.astype(np.float64) + evaluated.log_prior
    log_weights = np.where(np.isfinite(log_density), log_density - log_t, -np.inf)
    return WeightedDraws(evaluated.theta, evaluated.risk, evaluated.log_prior, log_weights)


def _relative_weights(log_weights: Float[np.ndarray, "R M"]) -> Float[np.ndarray, "R M"]:
    """Return weights relative to the largest of each replicate."""
    largest = log_weights.max(-1, keepdims=True)
    return np.exp(log_weights - np.where(np.isfinite(largest), largest, 0.0))


def _ess(weights: Float[np.ndarray, "R M"]) -> Float[np.ndarray, " R"]:
    with np.errstate(invalid="ignore"):
        return np.square(weights.sum(-1)) / np.square(weights).sum(-1)


def _stratified(rng: np.random.Generator, weights: Float[np.ndarray, "R M"], n: int) -> np.ndarray:
    """Return the indices of `n` ancestors on each replicate, by stratified resampling."""
    points = (np.arange(n) + rng.uniform(size=(len(weights), n))) / n
    cdf = np.cumsum(weights, -1)
    indices = [np.searchsorted(row, row[-1] * point, side="right") for row, point in zip(cdf, points, strict=True)]
    return np.minimum(indices, weights.shape[-1] - 1)
