"""Posterior bootstrap: the minimizers of the risk on bootstrap replicates are the draws."""

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from calibayes._backend.functions import host_array
from calibayes._backend.jit import jit
from calibayes._core.particles import Particles, host_moments
from calibayes._core.scores import score_sums
from calibayes._core.target import Target
from calibayes.methods.reported import DrawsMethod, Reported, as_particles_on_data, unconstrained

_STEPS = (1.0, 0.5, 0.25, 0.1, 0.03, 0.01, 0.001)
"""Factors on the step that are tried."""
_MAX_ROUNDS = 30
_TOLERANCE = 1e-3
"""The iteration ends when no minimizer moves by more than this, in standard deviations of the posterior at the learning
rate of the particles."""


class PosteriorBootstrap(DrawsMethod):
    r"""Minimizers of the risk on bootstrap replicates, `method="posterior-bootstrap"`.

    With `bootstrap=cb.bootstrap.Bayesian(...)` it is the loss-likelihood bootstrap (Lyddon, Holmes and Walker 2019) and
    the weighted likelihood bootstrap (Newton and Raftery 1994); with others the bootstrap distribution of the estimate.
    Its covariance is about that of the sandwich, $H^{-1} J H^{-1}$.

    Notes
    -----
    Targets the sampling distribution of the minimizer, without the prior. Sets are first-order correct like those of
    `"gpc"`, and their shape is that of the sandwich. Costs a few gradients of the loss per replicate in addition to the
    posteriors of the replicates, from whose means the minimization starts. Needs a unique minimizer: with several
    modes, the draws are those near the posterior means. A minimizer of a check loss is found up to a small share of
    the posterior's width. Dependence between observations is taken into account as far as the bootstrap does so (by
    blocks or clusters). `result.eta` is the matching learning rate with the covariance of the draws in place of the
    sandwich: that of the generalized posterior whose variances are as large, averaged over all directions.

    References
    ----------
    Newton and Raftery (1994), Approximate Bayesian inference with the weighted likelihood bootstrap, Journal of the
    Royal Statistical Society B 56, 3-26.
    Lyddon, Holmes and Walker (2019), General Bayesian updating and the loss-likelihood bootstrap, Biometrika 106,
    465-478.

    Examples
    --------
    >>> import calibayes as cb
    >>> cb.methods.PosteriorBootstrap().name
    'posterior-bootstrap'
    """

    name: ClassVar[str] = "posterior-bootstrap"

    def draw(self, problem, iterate, draws):  # noqa: ARG002
        target, particles = problem.target, iterate.state.particles
        theta = minimizers(target, particles, iterate.sampled_eta)[:, 1:]
        return Reported(as_particles_on_data(target, unconstrained(target, theta)), float(theta.shape[1]))


def minimizers(target: Target, particles: Particles, eta: float) -> Float[np.ndarray, "K B"]:
    """Return the minimizer of the risk on the data (first) and on every replicate, by quasi-Newton steps.

    The steps start from the posterior means, with covariances of the posterior as inverse Hessians throughout.

    Parameters
    ----------
    target : Target
        Generalized posteriors on the data and the replicates.
    particles : Particles
        Particles on every replicate, whose covariances times the learning rate are the inverse Hessians.
    eta : float
        Their learning rate.
    """
    means, covariances = host_moments(target.constrained(particles))
    inverse_hessians, scale = eta * covariances, np.sqrt(np.einsum("bkk->kb", covariances))
    theta = means
    for _ in range(_MAX_ROUNDS):
        risk_gradients = np.asarray(score_sums(target, host_array(theta)), np.float64)
        directions = -np.einsum("bkj,jb->kb", inverse_hessians, risk_gradients)
        steps = np.asarray(_best_step(target, host_array(theta), host_array(directions)), np.float64)
        theta = theta + steps * directions
        if (np.abs(steps * directions) <= _TOLERANCE * scale).all():
            break
    return host_array(theta)


@jit
def _best_step(
    target: Target, theta: Float[Array | np.ndarray, "K B"], directions: Float[Array | np.ndarray, "K B"]
) -> Float[Array, " B"]:
    """Return the length of the step that reduces the risk of each replicate most; zero if none does."""
    lengths = jnp.asarray([0.0, *_STEPS])
    points = jnp.asarray(theta)[:, :, None] + jnp.asarray(directions)[:, :, None] * lengths[None, None]
    inside = jnp.isfinite(target.coordinates.unconstrain(points)).all(0)
    risk = target.risk(points)
    risk = jnp.where(inside & jnp.isfinite(risk), risk, jnp.inf)
    return lengths[jnp.argmin(risk, -1)]
