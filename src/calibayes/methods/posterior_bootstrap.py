r"""Posterior bootstrap: the minimizers of the risk on bootstrap replicates are the draws.

Newton's method minimizes the risk averaged over a normal distribution of the parameters (`calibayes.samplers.normal`),
whose width decreases from that of the posterior to a small share of it. Check and hinge losses, which are piecewise
linear, then have derivatives, and the path leads to a vertex instead of ending at the first edge. The length of each
step is that which reduces the risk itself most. A loss that is not of a linear prediction is minimized by quasi-Newton
steps.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from calibayes._backend.devices import SHARDED, UNSHARDED, sum_over_devices
from calibayes._backend.functions import host_array
from calibayes._backend.jit import jit
from calibayes._backend.linalg import host_factor
from calibayes._core.counts import fold_blocks
from calibayes._core.loss import LinearLoss
from calibayes._core.particles import Particles, host_moments
from calibayes._core.scores import score_sums
from calibayes._core.status import Diagnostic, Severity
from calibayes._core.target import Target, has_convex_loss
from calibayes.methods.moments import unresolved
from calibayes.methods.reported import DrawsMethod, ReportedDraws, as_particles_on_data
from calibayes.methods.studentized import require_derivative
from calibayes.samplers.normal import smoothed_derivatives
from calibayes.solve.iterate import share_severity


@dataclass(frozen=True)
class PosteriorBootstrapConfig:
    """Constants of the minimization."""

    n_rounds: int = 20
    """Largest number of steps."""
    last_width: float = 0.003
    """Width of the normal distribution in the last of these steps, in standard deviations of the posterior. In check
    loss regressions of 50 to 2,000 observations and up to 8 parameters, minimizers then differed from those by linear
    programming by up to 0.035 (root mean square) of their standard deviation, and by 0.01 or less in most."""
    ridge: float = 0.01
    """Share of the posterior's Hessian on the data that is added to the Hessians, which are singular if no observation
    has a kink within the width. Order-of-magnitude choice."""
    step_lengths: tuple[float, ...] = (1.0, 0.5, 0.25, 0.1, 0.03, 0.01, 0.001)
    """Factors on the step that are tried."""
    tolerance: float = 1e-3
    """The iteration ends when no parameter would move by more than this, in posterior standard deviations."""
    max_last_step: float = 0.05
    """Last step, likewise, from which on a minimizer counts as not found, for losses that are not known to be a convex
    function of a linear prediction. An independent error of 0.05 standard deviations in each draw adds 0.3% to their
    variance."""


CONFIG = PosteriorBootstrapConfig()


class Minimizers(NamedTuple):
    """Minimizers of the risk on the data (first) and on every replicate, and whether each was found."""

    theta: Float[np.ndarray, "K B"]
    converged: Bool[np.ndarray, " B"]


class PosteriorBootstrap(DrawsMethod):
    r"""Minimizers of the risk on bootstrap replicates, `method="posterior-bootstrap"`.

    With `bootstrap=cb.bootstrap.Bayesian(...)` it is the loss-likelihood bootstrap (Lyddon, Holmes and Walker 2019) and
    the weighted likelihood bootstrap (Newton and Raftery 1994); with others the bootstrap distribution of the estimate.
    Its covariance is about that of the sandwich, $H^{-1} J H^{-1}$.

    Notes
    -----
    Targets the sampling distribution of the minimizer, without the prior. Sets are first-order correct like those of
    `"gpc"`, and their shape is that of the sandwich. Costs the losses at about 300 points per replicate, or a tenth of
    that if they are smooth, in addition to the posteriors of the replicates, from whose means the minimization starts.
    Needs a unique minimizer: with several modes, the draws are those near the posterior means. A loss that is not known
    to be a convex function of a linear prediction must have a derivative almost everywhere. Minimizers of check and
    hinge losses are found up to about 1% of their standard deviation. Bounds of the prior are not part of the risk:
    where the minimizer of a replicate is beyond them, it is reported at the bound, with a diagnostic: an error if there
    are many, otherwise a warning. Dependence between observations is taken into account as far as the bootstrap does so
    (by blocks or clusters). `result.eta` is the matching learning rate with the covariance of the draws in place of the
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

    def draw(self, problem, iterate, draws):
        target = problem.target
        if not _is_convex_and_linear(target):
            require_derivative(self.name, draws)
        theta, converged = minimizers(target, iterate.state.particles, iterate.sampled_eta)
        points = jax.device_put(host_array(theta[:, 1:]))
        beyond = ~np.asarray(target.coordinates.contain(points))
        findings = _describe(int((~converged[1:]).sum()), int(beyond.sum()), len(beyond), problem.level)
        z = np.asarray(target.coordinates.unconstrain(points))
        return ReportedDraws(as_particles_on_data(target, z), float(len(beyond)), findings)


def _describe(n_lost: int, n_beyond: int, n_replicates: int, level: float) -> tuple[Diagnostic, ...]:
    """Return findings about minimizers that were not found, or that are beyond the bounds of the prior."""
    lost = (
        f"The minimizers of {n_lost:,} of {n_replicates:,} replicates were not found: the last step was longer than "
        f"{CONFIG.max_last_step:g} posterior standard deviations, or not finite. The loss may have no derivative there."
    )
    beyond = (
        f"The risk of {n_beyond:,} of {n_replicates:,} replicates is smallest on or beyond a bound of the prior, where "
        "they are reported. Use a prior without the bound, or another method."
    )
    return (
        *(unresolved(lost, Severity.WARNING, n_lost) if n_lost else ()),
        *(unresolved(beyond, share_severity(n_beyond, n_replicates, level), n_beyond) if n_beyond else ()),
    )


def minimizers(target: Target, particles: Particles, eta: float) -> Minimizers:
    """Return the minimizer of the risk on the data and on every replicate, starting from the posterior means.

    Parameters
    ----------
    target : Target
        Generalized posteriors on the data and the replicates.
    particles : Particles
        Particles on every replicate, whose covariances times the learning rate are the inverse Hessians.
    eta : float
        Their learning rate.
    """
    theta, covariances = host_moments(target.constrained(particles))
    scale = np.sqrt(np.einsum("bkk->kb", covariances))
    root, ridge = host_factor(covariances[:1])[0], CONFIG.ridge * np.linalg.inv(eta * covariances[0])
    for width in np.geomspace(1.0, CONFIG.last_width, CONFIG.n_rounds):
        if target.linear:
            smoothed = _smoothed_derivatives_of_risk(target, host_array(theta), host_array(width * root))
            gradients, hessians = (np.asarray(value, np.float64) for value in smoothed)
            directions = -np.linalg.solve(hessians + ridge, gradients.T[:, :, None])[:, :, 0].T
        else:
            gradients = np.asarray(score_sums(target, host_array(theta)), np.float64)
            directions = -np.einsum("bkj,jb->kb", eta * covariances, gradients)
        is_finite = np.isfinite(directions).all(0)
        directions = np.where(is_finite, directions, 0.0)
        lengths = np.asarray(_best_length(target, host_array(theta), host_array(directions)), np.float64)
        theta = theta + lengths * directions
        longest = np.where(is_finite, (np.abs(directions) / scale).max(0), np.inf)
        if (longest <= CONFIG.tolerance).all():
            break
    return Minimizers(theta, (longest <= CONFIG.max_last_step) | _is_convex_and_linear(target))


def _is_convex_and_linear(target: Target) -> bool:
    """Return whether Newton's method for the smoothed risk finds the minimizers, whatever the length of its steps."""
    return target.linear and has_convex_loss(target)


@jit
def _best_length(
    target: Target, theta: Float[Array | np.ndarray, "K B"], directions: Float[Array | np.ndarray, "K B"]
) -> Float[Array, " B"]:
    """Return the length of the step that reduces the risk of each replicate most; zero if none does."""
    lengths = jnp.asarray([0.0, *CONFIG.step_lengths])
    risk = target.risk(jnp.asarray(theta)[:, :, None] + jnp.asarray(directions)[:, :, None] * lengths[None, None])
    return lengths[jnp.argmin(jnp.where(jnp.isfinite(risk), risk, jnp.inf), -1)]


@jit
def _smoothed_derivatives_of_risk(
    target: Target, theta: Float[Array | np.ndarray, "K B"], root: Float[Array | np.ndarray, "K K"]
) -> tuple[Float[Array, "K B"], Float[Array, "B K K"]]:
    """Return the gradient and the Hessian of the risk of every replicate, averaged over a normal distribution.

    Its centre is `theta`, and its covariance `root @ root.T`.
    """
    loss, highest = target.loss, jax.lax.Precision.HIGHEST
    assert isinstance(loss, LinearLoss)

    def on_device(theta, root, data, counts):
        def add_block(total, scanned):
            (x, y, offset), counts_block = scanned
            prediction = offset[:, None] + jnp.matmul(x, theta, precision=highest)
            scale = jnp.sqrt(jnp.square(jnp.matmul(x, root, precision=highest)).sum(-1))
            first, second = smoothed_derivatives(loss.rho, prediction, y, scale)
            factors = counts.block(counts_block)
            gradient = jnp.matmul(x.T, factors * first, precision=highest)
            hessian = jnp.einsum("lb,lk,lj->bkj", factors * second, x, x, precision=highest)
            return jax.tree.map(jnp.add, total, (gradient, hessian))

        dim, n_replicates = theta.shape
        zeros = jnp.zeros_like(theta), jnp.zeros((n_replicates, dim, dim), theta.dtype)
        return fold_blocks(add_block, zeros, (data, counts.blocks), counts.n_blocks)

    specs = (UNSHARDED, UNSHARDED, SHARDED, target.counts.partition_specs())
    relative = jnp.asarray(theta) - target.reference[:, None]
    return sum_over_devices(target.mesh, on_device, specs, relative, jnp.asarray(root), target.data, target.counts)
