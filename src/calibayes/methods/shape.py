r"""Posteriors with the shape of the sandwich covariance (open-faced sandwich, curvature adjustment).

One learning rate scales the posterior covariance $H^{-1}/\eta$, but does not give it the shape of the covariance of the
estimate, $V = H^{-1} J H^{-1}$, so that no learning rate calibrates the intervals of all parameters. An affine map of
the draws around their mean does: with $A H^{-1} A^\top = \eta_m V$, where $\eta_m = K / \mathrm{tr}(H^{-1} J)$, the
covariance of the mapped draws is $V$ at the learning rate $\eta_m$. The method then sets the learning rate of the
mapped posterior. The symmetric square roots $A = (\eta_m V)^{1/2} H^{1/2}$ are used (Shaby 2014).

References
----------
Shaby (2014), The open-faced sandwich adjustment for MCMC using estimating functions, Journal of Computational and
Graphical Statistics 23, 853-876.
Ribatet, Cooley and Davison (2012), Bayesian inference from composite likelihoods, Statistica Sinica 22 (curvature
adjustment).
"""

from dataclasses import dataclass, replace

import jax
import numpy as np
from jaxtyping import Float

from calibayes._backend.arguments import display
from calibayes._core.particles import Particles
from calibayes._core.status import Code, Diagnostic, Severity
from calibayes.methods.base import draw_near_matching_eta, with_diagnostics
from calibayes.methods.moments import Moments, estimate_moments, matching_eta, require_full_rank
from calibayes.solve.problem import CoverageProblem
from calibayes.solve.solver import Solver
from calibayes.solve.verify import FinalSolution

SHAPES = (None, "sandwich")


@dataclass(frozen=True)
class ShapeConfig:
    """Limits of a posterior that is near normal, in unbounded coordinates. Order-of-magnitude choices."""

    max_skewness: float = 0.8
    """Largest skewness along a principal axis. The logarithm of a parameter that lies at its bound is skewed by more
    than 1."""
    min_kurtosis: float = 0.6
    """Smallest ratio of the mean fourth power of the Mahalanobis distance to that of a normal distribution. It is 1/3
    for two distant modes of equal mass and one parameter."""
    max_kurtosis: float = 1.8
    """Largest such ratio, for heavy tails and modes of unequal mass."""


CONFIG = ShapeConfig()


def check_shape(shape: object) -> None:
    """Raise an error if a shape is not available."""
    if shape is not None and shape != "sandwich":
        raise ValueError(f'shape must be None or "sandwich"; got {display(shape)}.')


def with_sandwich_shape(solver: Solver, problem: CoverageProblem) -> CoverageProblem:
    """Return the problem with initial draws, and with the matrix that makes covariances proportional to the sandwich.

    Raises
    ------
    ValueError
        If the posterior on the data is not near normal.
    """
    problem = draw_near_matching_eta(solver, problem)
    assert problem.initial is not None
    particles, eta = problem.initial.particles, problem.initial.eta
    z, weights = _merged(particles)
    require_near_normal(z, weights)
    estimates = estimate_moments(problem.target, particles, eta, problem.bootstrap, unbounded=True)
    return replace(problem, shape=sandwich_map(estimates.moments))


def describe_shape(verified: FinalSolution) -> FinalSolution:
    """Return a verified solution with a diagnostic if its shape is that of draws which were replaced."""
    if not verified.fell_back:
        return verified
    message = "The shape is that of the draws of the first sampler, which was unreliable. Compare with shape=None."
    finding = Diagnostic(Code.FALLBACK, Severity.WARNING, 0, message)
    return replace(verified, solution=with_diagnostics(verified.solution, finding))


def sandwich_map(moments: Moments) -> Float[np.ndarray, "K K"]:
    """Return the matrix that gives draws at the matching learning rate the sandwich as their covariance."""
    require_full_rank(moments)
    root = _power(matching_eta(moments) * moments.sandwich, 0.5)
    return root @ _power(moments.inverse_hessian, -0.5)


def require_near_normal(z: Float[np.ndarray, "K M"], weights: Float[np.ndarray, " M"]) -> None:
    """Raise an error if draws are far from a normal distribution.

    Parameters
    ----------
    z : ndarray of shape (K, M)
        Draws in unbounded coordinates.
    weights : ndarray of shape (M,)
        Weights, which sum to one.
    """
    centred = z - (z @ weights)[:, None]
    values, axes = np.linalg.eigh((centred * weights) @ centred.T)
    white = axes.T @ centred / np.sqrt(values)[:, None]
    skewness = float(np.abs(white**3 @ weights).max())
    kurtosis = float(np.square((white**2).sum(0)) @ weights) / (len(z) * (len(z) + 2))
    if skewness > CONFIG.max_skewness or not CONFIG.min_kurtosis < kurtosis < CONFIG.max_kurtosis:
        raise ValueError(
            'shape="sandwich" needs a posterior that is near normal. In unbounded coordinates its largest skewness is '
            f"{skewness:.2g} (at most {CONFIG.max_skewness:g}) and its kurtosis relative to a normal one "
            f"{kurtosis:.2g} (from {CONFIG.min_kurtosis:g} to {CONFIG.max_kurtosis:g}): it may have several modes, or "
            "lie at a bound. Use shape=None."
        )


def _merged(particles: Particles) -> tuple[Float[np.ndarray, "K M"], Float[np.ndarray, " M"]]:
    theta, log_weights = jax.device_get((particles.theta, particles.log_weights))
    weights = np.exp(log_weights.astype(np.float64)).reshape(-1)
    return theta.reshape(len(theta), -1).astype(np.float64), weights / weights.sum()


def _power(matrix: Float[np.ndarray, "K K"], exponent: float) -> Float[np.ndarray, "K K"]:
    """Return a power of a symmetric positive definite matrix."""
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * values**exponent) @ vectors.T
