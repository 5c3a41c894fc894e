r"""The Hessian of the risk and the sandwich covariance, from draws of the posterior on the data.

With $H$ the Hessian of the risk $\sum_i r_i$ at the estimate and $J = \sum_i g_i g_i^\top$ the summed outer products of
the gradients of the losses, the posterior covariance is $\Sigma = H^{-1} / \eta$ and the covariance of the estimate is
the sandwich $V = H^{-1} J H^{-1}$ (Huber 1967). Draws give $H^{-1} = \eta\Sigma$, and their covariance with the loss of
observation i gives $I_i = -H^{-1} g_i$ (`calibayes._core.sandwich`), so that $V = \sum_i I_i I_i^\top$ needs no
derivative. Such a covariance averages the gradient over the posterior. Where the gradient jumps within its width, as
that of the check loss, the averages are smaller than the gradients: in a median regression of 50 observations J is too
small by a quarter. The gradients at the posterior mean are therefore used where automatic differentiation agrees with
the covariances. Where observations are dependent, $J$ consists of sums over clusters or blocks of consecutive
observations.

References
----------
Huber (1967), The behavior of maximum likelihood estimates under nonstandard conditions, Fifth Berkeley Symposium.
Liang and Zeger (1986), Longitudinal data analysis using generalized linear models, Biometrika 73 (clusters).
Künsch (1989), The jackknife and the bootstrap for general stationary observations, Annals of Statistics 17 (blocks).
Newey and West (1987), A simple, positive semi-definite, heteroskedasticity and autocorrelation consistent covariance
matrix, Econometrica 55.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray

from calibayes._backend.functions import host_array
from calibayes._core.particles import Particles
from calibayes._core.sandwich import influences_on
from calibayes._core.scores import observation_scores
from calibayes._core.status import Code, Diagnostic, Severity
from calibayes._core.target import Target
from calibayes._core.weights import Weights
from calibayes.bootstrap import Block, Bootstrap, Cluster, Stratified


@dataclass(frozen=True)
class MomentsConfig:
    """Constants of the moments."""

    n_groups: int = 10
    """Groups of draws that the jackknife leaves out in turn. The standard error then has a relative error of about
    1 / sqrt(2 x 9) = 24%. For losses without a derivative each group costs one evaluation of the losses at the draws on
    the data."""
    max_distance: float = 0.3
    """Largest distance in log eta between the draws on the data and the learning rate that matches the sandwich. The
    Hessian of the risk at the estimate is the posterior's inverse covariance over eta for normal posteriors only: in a
    median regression of 100 observations, a factor of 1.6 in eta changed the matching learning rate by about 10%."""
    min_eigenvalue: float = 1e-9
    """Smallest eigenvalue of H^-1 J relative to the largest, below which the sandwich is singular: above the rounding
    error of single precision squared, far below the ratio of any two directions that the data determine."""

    max_ratio: float = 3.0
    """Largest ratio of tr(H^-1 J) by derivatives of the losses and by posterior covariances, above or below which the
    derivatives are not used. They agree up to the width of the posterior for losses with a derivative almost
    everywhere; the derivative of a 0-1 loss is zero."""


CONFIG = MomentsConfig()


class LearningRate(NamedTuple):
    """A learning rate, its simulation standard error, and findings about them."""

    eta: float
    eta_se: float
    findings: tuple[Diagnostic, ...] = ()


def unresolved(message: str, severity: Severity = Severity.WARNING, count: int = 0) -> tuple[Diagnostic, ...]:
    """Return a finding about how closely the answer of a method is determined."""
    return (Diagnostic(Code.NOT_RESOLVED, severity, count, message),)


@dataclass(frozen=True)
class Moments:
    """Hessian and sandwich covariance of K parameters.

    Attributes
    ----------
    inverse_hessian : ndarray of shape (K, K)
        Inverse of the Hessian of the risk at the estimate, eta times the posterior covariance. An informative prior
        adds its curvature, divided by eta, to the Hessian.
    sandwich : ndarray of shape (K, K)
        Covariance of the estimate over data sets.
    dof : float
        Degrees of freedom of the sandwich covariance: number of independent observations, clusters or blocks, less that
        of their means. Default: infinite.
    """

    inverse_hessian: Float[np.ndarray, "K K"]
    sandwich: Float[np.ndarray, "K K"]
    dof: float = math.inf

    def along(self, vector: Float[np.ndarray, " K"]) -> "Moments":
        """Return the moments of one linear combination of the parameters."""
        row = vector[None]
        return Moments(row @ self.inverse_hessian @ row.T, row @ self.sandwich @ row.T, self.dof)


@dataclass(frozen=True)
class MomentEstimates:
    """Moments from all draws, and with each group of the draws left out.

    Attributes
    ----------
    moments : Moments
        Moments from all draws.
    left_out : tuple of Moments
        Moments without each group in turn, for the jackknife.
    traces : tuple of float
        tr(H^-1 J) by derivatives of the losses at the posterior mean, NaN if they have none, and by posterior
        covariances.
    """

    moments: Moments
    left_out: tuple[Moments, ...]
    traces: tuple[float, float]

    @property
    def uses_derivative(self) -> bool:
        """Whether the derivatives of the losses describe how they vary with the parameters."""
        return _agree(*self.traces)

    def learning_rate(self, formula: Callable[[Moments], float]) -> LearningRate:
        """Return a function of the moments with the bias correction and the standard error of the jackknife."""
        plain, others = formula(self.moments), np.array([formula(moments) for moments in self.left_out])
        n_groups, mean = len(others), others.mean()
        corrected = n_groups * plain - (n_groups - 1) * mean
        error = np.sqrt((n_groups - 1) * np.square(others - mean).mean())
        return LearningRate(float(corrected if corrected > 0 else plain), float(error))


def _agree(by_derivative: float, by_covariance: float) -> bool:
    return by_covariance / CONFIG.max_ratio < by_derivative < by_covariance * CONFIG.max_ratio


def matching_eta(moments: Moments) -> float:
    """Return K / tr(H S) for the Hessian H and the sandwich covariance S.

    At this learning rate the posterior covariance and S, both multiplied by H, have the same trace.
    """
    dim = len(moments.sandwich)
    return float(dim / np.trace(np.linalg.solve(moments.inverse_hessian, moments.sandwich)))


def require_full_rank(moments: Moments) -> None:
    """Raise an error if the sandwich covariance is singular, or random, as with few clusters for its parameters.

    With as many degrees of freedom as parameters its inverse is dominated by noise, whatever its rank.
    """
    relative = np.linalg.eigvals(np.linalg.solve(moments.inverse_hessian, moments.sandwich)).real
    if not (relative.min() > CONFIG.min_eigenvalue * relative.max() and moments.dof > len(relative)):
        raise ValueError(
            f"the sandwich covariance of {len(relative)} parameters is singular: there are too few independent "
            f"observations or clusters ({moments.dof:g} degrees of freedom, of which more are needed than parameters). "
            'Use method="gpc" or "matching", with shape=None.'
        )


def shaped(moments: Moments) -> Moments:
    """Return the moments of a posterior with the shape of the sandwich, and with the same matching learning rate."""
    return Moments(matching_eta(moments) * moments.sandwich, moments.sandwich, moments.dof)


def distance_to_matching(estimates: MomentEstimates, eta: float) -> float:
    """Return the distance in log eta of draws at `eta`, which gave these moments, from the matching learning rate."""
    return abs(math.log(matching_eta(estimates.moments) / eta))


def is_far(estimates: MomentEstimates, eta: float) -> bool:
    """Return whether draws at `eta`, which gave these moments, are far from the matching learning rate."""
    return distance_to_matching(estimates, eta) > CONFIG.max_distance


def estimate_moments(
    target: Target, particles: Particles, eta: float, bootstrap: Bootstrap | None, *, unbounded: bool = False
) -> MomentEstimates:
    """Return the moments of the parameters, in their own coordinates or in unbounded ones.

    Parameters
    ----------
    target : Target
        Posteriors of all replicates: model, data and counts.
    particles : Particles
        Draws of the posterior on the data, in one or more populations.
    eta : float
        Learning rate of the draws.
    bootstrap : Bootstrap or None
        The bootstrap, which states how observations depend on each other: `Cluster` and `Block`. Observations are
        independent for all others.
    unbounded : bool
        Whether to return the moments of the unbounded coordinates. Default: False.

    Raises
    ------
    ValueError
        If the losses do not depend on the parameters, or the run has several processes.
    """
    if jax.process_count() > 1:
        raise ValueError('methods other than "gpc" need the influences of all observations in one process.')
    on_host = jax.device_get((particles.theta, target.constrained(particles).theta, particles.log_weights))
    coordinates, theta = (array.reshape(len(array), -1).astype(np.float64) for array in on_host[:2])
    weights = np.exp(on_host[2].astype(np.float64)).reshape(-1)
    n = int(target.counts.n)
    observation_weights = host_weights(target)
    statistic = coordinates if unbounded else theta
    gradients = _gradients_at_mean(target, theta @ (weights / weights.sum()), unbounded)
    products = sum_of_outer_products(gradients, bootstrap, observation_weights)
    n_positive = n if observation_weights is None else int(np.count_nonzero(observation_weights.values))
    dof = _degrees_of_freedom(bootstrap, n_positive)

    def by_covariances(chosen: np.ndarray) -> Moments:
        influence, inverse_hessian = influences_on(target, coordinates, statistic, chosen / chosen.sum(), eta)
        values = np.asarray(jax.device_get(influence.values), np.float64)[:, :n]
        return Moments(inverse_hessian, sum_of_outer_products(values, bootstrap, observation_weights), dof)

    def by_derivatives(chosen: np.ndarray) -> Moments:
        shares = chosen / chosen.sum()
        centred = statistic - (statistic @ shares)[:, None]
        inverse_hessian = eta * ((centred * shares) @ centred.T)
        return Moments(inverse_hessian, inverse_hessian @ products @ inverse_hessian, dof)

    trace = lambda moments: float(np.trace(np.linalg.solve(moments.inverse_hessian, moments.sandwich)))
    traces = trace(by_derivatives(weights)), trace(by_covariances(weights))
    estimate = by_derivatives if _agree(*traces) else by_covariances

    def moments_of(kept: np.ndarray) -> Moments:
        moments = estimate(weights * kept)
        sandwich = moments.sandwich
        if not (np.isfinite(sandwich).all() and np.trace(sandwich) > 0):
            raise ValueError(
                "the losses do not vary with the parameters near the estimate, so the learning rate cannot be computed "
                "from the sandwich covariance."
            )
        return moments

    everything = np.ones(len(weights))
    groups = np.array_split(np.arange(len(weights)), CONFIG.n_groups)
    left_out = tuple(moments_of(np.where(np.isin(np.arange(len(weights)), group), 0.0, 1.0)) for group in groups)
    return MomentEstimates(moments_of(everything), left_out, traces)


def _gradients_at_mean(target: Target, mean: Float[np.ndarray, " K"], unbounded: bool) -> Float[np.ndarray, "K N"]:
    """Return the gradient of every loss at the posterior mean, NaN if the losses cannot be differentiated."""
    n, point = int(target.counts.n), jax.device_put(host_array(mean[:, None]))
    try:
        scores = observation_scores(target, point)
    except (TypeError, ValueError, NotImplementedError):
        return np.full((len(mean), n), np.nan)
    gradients = np.asarray(jax.device_get(scores), np.float64)[0, :n].T
    if unbounded and not target.coordinates.unbounded:
        z = target.coordinates.unconstrain(point)[:, 0]
        gradients = np.asarray(jax.jacobian(target.coordinates.constrain)(z), np.float64).T @ gradients
    return gradients


def host_weights(target: Target) -> Weights | None:
    """Return the weights of the observations of a target on the host; None if all are one."""
    if target.weights is None:
        return None
    n = int(target.counts.n)
    on_host = jax.device_get((target.weights.values, target.weights.per_draw))
    values, per_draw = (leaf.reshape(-1)[:n].astype(np.float64) for leaf in on_host)
    # A draw adds one to the count if weights are repetitions, and the weight otherwise.
    return Weights(values, repeats=bool((per_draw == 1).all()))


def sum_of_outer_products(
    influences: Float[np.ndarray, "K N"], bootstrap: Bootstrap | None, weights: Weights | None = None
) -> Float[np.ndarray, "K K"]:
    """Return the sampling covariance of the sum of all influences, with the dependence that the bootstrap preserves.

    Parameters
    ----------
    influences : ndarray of shape (K, N)
        Influence of every observation on the posterior means of the K parameters.
    bootstrap : Bootstrap or None
        `Cluster`: sums over clusters. `Block`: sums over all blocks of consecutive observations, which is the
        estimator of Newey and West with triangular weights. `Stratified` and `Cluster` with strata: products around the
        means of the strata. Others: independent observations.
    weights : Weights or None
        Weights of the observations. Default: None, all one.
    """
    if isinstance(bootstrap, Cluster):
        values = influences if weights is None else influences * weights.values
        groups = np.asarray(bootstrap.groups)
        sums = np.stack([np.bincount(groups, row, bootstrap.n_groups) for row in values])
        return sums @ sums.T if bootstrap.sizes is None else _within_strata(sums, _strata_of_groups(bootstrap.sizes))
    if weights is not None and not isinstance(bootstrap, Block | Stratified):
        influences = influences * np.sqrt(weights.values * weights.per_draw)
    elif weights is not None and weights.repeats and bootstrap is not None:
        repeats = weights.values.astype(int)
        influences, bootstrap = np.repeat(influences, repeats, axis=1), bootstrap.repeated(repeats)
    elif weights is not None:
        influences = influences * weights.values
    if isinstance(bootstrap, Stratified):
        return _within_strata(influences, np.asarray(bootstrap.strata))
    if isinstance(bootstrap, Block):
        n, length = influences.shape[1], int(bootstrap.length)
        wrapped = np.concatenate([influences, influences[:, : length - 1]], 1) if bootstrap.circular else influences
        totals = np.concatenate([np.zeros((len(influences), 1)), np.cumsum(wrapped, 1)], 1)
        sums = totals[:, length:] - totals[:, :-length]
        return sums @ sums.T * (n / (length * sums.shape[1]))
    return influences @ influences.T


def _degrees_of_freedom(bootstrap: Bootstrap | None, n: int) -> float:
    """Return the number of independent units among `n` observations, less the number of their means."""
    n_means = 1
    if isinstance(bootstrap, Cluster | Stratified) and bootstrap.sizes is not None:
        n_means = len(bootstrap.sizes)
    if isinstance(bootstrap, Cluster):
        n = bootstrap.n_groups
    elif isinstance(bootstrap, Block):
        n = n // int(bootstrap.length)
    return float(n - n_means)


def _strata_of_groups(sizes: tuple[int, ...]) -> Int[np.ndarray, " G"]:
    """Return the index of each cluster's stratum. Clusters of a stratum have consecutive indices."""
    return np.repeat(np.arange(len(sizes)), sizes)


def _within_strata(values: Float[np.ndarray, "K U"], strata: Int[np.ndarray, " U"]) -> Float[np.ndarray, "K K"]:
    """Return the unbiased covariance of the sum of independent units, drawn within strata of two or more."""
    sizes = np.bincount(strata)
    means = np.stack([np.bincount(strata, row) / sizes for row in values])
    centred = (values - means[:, strata]) * np.sqrt(sizes / (sizes - 1))[strata]
    return centred @ centred.T


class Draws(NamedTuple):
    """Draws of the posterior on the data, in one or more populations, and their learning rate."""

    particles: Particles
    eta: float


@dataclass(frozen=True)
class DrawsOnData:
    """Draws of the posterior on the data, and the moments that they give.

    Attributes
    ----------
    target : Target
        Posteriors of all replicates: model, data and counts.
    candidates : tuple of Draws
        Draws at one or more learning rates. The first that are near the matching learning rate are used, else the last.
    bootstrap : Bootstrap or None
        The bootstrap, which states how observations depend on each other.
    has_sandwich_shape : bool
        Whether draws are reported with the shape of the sandwich. The matching learning rate of all parameters together
        is then that of each of them.
    key : PRNGKeyArray or None
        Key of the search, for methods that simulate.
    """

    target: Target
    candidates: tuple[Draws, ...]
    bootstrap: Bootstrap | None
    has_sandwich_shape: bool = False
    key: PRNGKeyArray | None = None

    @property
    def n(self) -> float:
        """Number of observations, the total of their weights."""
        weights = host_weights(self.target)
        return float(self.target.counts.n) if weights is None else float(weights.values.sum())

    @cached_property
    def _unshaped(self) -> tuple[MomentEstimates, float]:
        """The moments of the draws as they are, and the learning rate of these draws."""
        for particles, eta in self.candidates:
            moments = estimate_moments(self.target, particles, eta, self.bootstrap)
            if not is_far(moments, eta):
                break
        return moments, eta

    @property
    def moments(self) -> MomentEstimates:
        """The moments, which are computed when they are first needed."""
        moments, _ = self._unshaped
        if not self.has_sandwich_shape:
            return moments
        return MomentEstimates(shaped(moments.moments), tuple(map(shaped, moments.left_out)), moments.traces)

    @property
    def distance(self) -> float:
        """Distance in log eta of the draws from the matching learning rate."""
        return distance_to_matching(*self._unshaped)

    @property
    def far_eta(self) -> float | None:
        """Learning rate of the draws if it is far from the matching learning rate, else None."""
        moments, eta = self._unshaped
        return eta if is_far(moments, eta) else None
