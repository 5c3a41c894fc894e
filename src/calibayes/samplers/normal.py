r"""Normal approximations of log-concave posteriors, by Newton's method on the smoothed risk.

The normal distribution N(mu, Sigma) closest to a posterior, in the Kullback-Leibler divergence from the normal to the
posterior, satisfies (Opper and Archambeau 2009)

$$ E\{\eta\nabla R_b(\theta) - \nabla\log p(\theta)\} = 0, \qquad
   \Sigma^{-1} = E\{\eta\nabla^2 R_b(\theta) - \nabla^2\log p(\theta)\}, \qquad \theta\sim N(\mu, \Sigma). $$

A loss of a linear prediction depends on $\theta$ through $f = x^\top\theta \sim N(m, s^2)$ alone. With $z$ standard
normal, integration by parts gives

$$ E\,\rho'(f) = E\{z\,\rho(m + sz)\}/s, \qquad E\,\rho''(f) = E\{(z^2 - 1)\,\rho(m + sz)\}/s^2, $$

integrals over one dimension that exist for check and hinge losses too. A risk that is a convex function of the counts
is not smoothed; its derivatives are those of automatic differentiation. A Newton step on all replicates therefore costs
B x N evaluations of the loss at a few nodes and B x N x K^2 operations for the Hessians, less than one evaluation of
the risk at all particles. The smoothing scale s is that of the posterior on the data, for all replicates.

References
----------
Opper and Archambeau (2009), The variational Gaussian approximation revisited, Neural Computation 21, 786-792.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from calibayes._backend.devices import SHARDED, UNSHARDED, sum_over_devices
from calibayes._backend.functions import host_array
from calibayes._backend.jit import jit, light_jit, prefetch
from calibayes._backend.linalg import host_factor, host_inverse_factor
from calibayes._core import counts_risk
from calibayes._core.coordinates import Coordinates
from calibayes._core.counts import fold_chunks
from calibayes._core.loss import CountsRisk, LinearLoss
from calibayes._core.target import Model, Target, has_log_concave_density, is_log_concave


@dataclass(frozen=True)
class NormalConfig:
    """Constants of the normal approximations."""

    node_spacing: float = 1.0
    """Distance of the nodes of the trapezoidal rule, in standard deviations of the prediction. It is exact to 1e-6 for
    smooth losses, and to 10% for one with a kink, whose errors average out over observations."""
    node_range: float = 4.0
    """Largest node, in standard deviations."""
    max_data_steps: int = 100
    """Largest number of Newton steps on the data. A logistic regression with 50 parameters takes about 8."""
    min_damping: float = 0.1
    """Smallest factor by which steps on the data are shortened. It is halved whenever they do not become shorter."""
    max_step: float = 3.0
    """Largest length of a step on the data, in posterior standard deviations per square root of a parameter."""
    tolerance: float = 0.01
    """A fit has converged if the squared length of the last step, in posterior standard deviations, is at most this
    multiple of the number of parameters. The importance weights correct the rest."""
    eta_tolerance: float = 0.05
    """Relative change of the matching learning rate in the last step. It only starts the search."""
    replicate_steps: int = 5
    """Largest number of Newton steps on the replicates, from the fit to the data. Each one squares the relative
    error."""
    max_replicate_step: float = 1.0
    """Largest length of a step on a replicate, in posterior standard deviations on the data per square root of a
    parameter. Far from the data's fit, where the smoothed loss has little curvature, full steps can diverge."""
    max_last_step: float = 0.5
    """Largest length of the last of these steps, likewise, of a fit that is used."""
    small_step: float = 0.05
    """Length of a step on a replicate, likewise, after which another one would not be noticed: it changes the
    importance weights of a posterior with K parameters by a factor of exp(0.05 sqrt(K)) or so."""
    max_batch_elements: int = 2**22
    """Entries of the matrices of replicates that the host factors at a time, 32 MiB in double precision.
    Order-of-magnitude choice for memory; it does not change results."""
    max_chunk: int = 256
    """Number of observations in a step of the sum over them, from which on matrix products are efficient."""


CONFIG = NormalConfig()


def can_fit_normal(target: Target) -> bool:
    """Return whether the posteriors are known to be log-concave, so that the risk has derivatives, if smoothed."""
    return is_log_concave(target)


def can_fit_normal_to(model: Model, dim: int) -> bool:
    """Return whether `can_fit_normal` holds for targets of a model with `dim` parameters."""
    return has_log_concave_density(model) and Coordinates.from_prior(model.prior, dim).unbounded


class NotNormalError(Exception):
    """There is no normal approximation of the posterior on the data."""


class NormalFit(NamedTuple):
    """Normal approximation of the posterior on the data.

    Attributes
    ----------
    centre : ndarray of shape (K,)
        Mean.
    covariance : ndarray of shape (K, K)
        Covariance.
    eta : float
        Learning rate.
    """

    centre: Float[np.ndarray, " K"]
    covariance: Float[np.ndarray, "K K"]
    eta: float


class ReplicateFits(NamedTuple):
    """Normal approximations of the posteriors on all replicates.

    Attributes
    ----------
    centre : ndarray of shape (K, B)
        Means.
    root : ndarray of shape (B, K, K)
        Factors of the covariances, which are `root @ root.T`.
    """

    centre: Float[np.ndarray, "K B"]
    root: Float[np.ndarray, "B K K"]


class Derivatives(NamedTuple):
    """Derivatives of the smoothed risk, without the learning rate, and of minus the logarithm of the prior."""

    gradient: Float[Array, "K R"]
    hessian: Float[Array, "R P"]
    """Upper triangles, row by row."""
    outer: Float[Array, "R P"]
    """Upper triangles of sums over observations of the outer products of the gradients of their losses."""
    prior_gradient: Float[Array, "K R"]
    prior_hessian: Float[Array, "K K"]
    """At the mean over replicates."""


def fit_to_data(
    target: Target, centre: Float[np.ndarray, " K"], covariance: Float[np.ndarray, "K K"], eta: float | None
) -> NormalFit:
    """Fit a normal distribution to the posterior on the data.

    Parameters
    ----------
    target : Target
        The posteriors; replicate 0 is the data.
    centre, covariance : ndarray of shape (K,), (K, K)
        Where to start. A large covariance smooths the risk, so that Newton's method converges from far away.
    eta : float or None
        Learning rate. None for the one at which the posterior matches the sandwich covariance in trace.

    Raises
    ------
    NotNormalError
        If Newton's method does not converge.
    """
    data, dim = _data_target(target), target.dim
    damping, previous, eta_converged = 1.0, np.inf, True
    current = math.nan if eta is None else eta
    for _ in range(CONFIG.max_data_steps):
        root = host_factor(covariance[None])[0]
        fitted = jax.device_get(_derivatives_on_data(data, host_array(centre[:, None]), host_array(root)))
        gradients = fitted.gradient, fitted.prior_gradient
        gradient, prior_gradient = (np.asarray(value[:, 0], np.float64) for value in gradients)
        hessian, outer = (_unpacked(value, dim)[0] for value in (fitted.hessian, fitted.outer))
        if not (np.isfinite(hessian).all() and np.isfinite(gradient).all()):
            break
        if eta is None:
            # The posterior covariance is (eta H + prior)^-1, and the sandwich eta^2 times J between two of these. The
            # geometric mean converges where the prior determines the covariance, which then does not depend on eta.
            first = math.isnan(current)
            inverse = _inverse(hessian) if first else current * covariance
            matching = dim / max(float(np.sum(inverse * outer)), 1e-300)
            moved = matching if first else (current * matching) ** 0.5
            eta_converged = not first and abs(np.log(moved / current)) < CONFIG.eta_tolerance
            current = moved
        if not np.isfinite(current):
            break
        precision = current * hessian + fitted.prior_hessian
        if damping < 1:
            precision = damping * precision + (1 - damping) * _inverse(covariance)
        covariance = _inverse(precision)
        step = covariance @ (current * gradient + prior_gradient)
        length = float(np.sqrt(max(step @ precision @ step, 0.0) / dim))
        if not np.isfinite(length):
            break
        # The covariance of one step smooths the risk in the next one, and the steps may alternate.
        damping = damping if length < previous else max(0.5 * damping, CONFIG.min_damping)
        previous = length
        centre = centre - damping * min(1.0, CONFIG.max_step / max(length, 1e-30)) * step
        if length**2 <= CONFIG.tolerance and eta_converged:
            return NormalFit(centre, covariance, current)
    raise NotNormalError


def fit_to_replicates(target: Target, fit: NormalFit) -> ReplicateFits:
    """Fit normal distributions to the posteriors on all replicates, by Newton steps from the fit to the data.

    A replicate on which Newton's method does not converge has the fit to the data.
    """
    root = host_factor(fit.covariance[None])[0]
    centres = np.repeat(fit.centre[:, None], target.n_replicates, 1)
    roots = host_array(np.repeat(root[None], target.n_replicates, 0))
    for _ in range(CONFIG.replicate_steps):
        derivatives = jax.device_get(_derivatives_on_replicates(target, host_array(centres), host_array(root)))
        centres, length = _newton_steps(derivatives, fit.eta, root, centres, roots)
        if (length <= CONFIG.small_step).all():
            break
    # NaN compares as false.
    converged = (length <= CONFIG.max_last_step) & np.isfinite(roots).all((1, 2))
    roots[~converged] = root
    return ReplicateFits(np.where(converged, centres, fit.centre[:, None]), roots)


def _newton_steps(
    derivatives: "Derivatives",
    eta: float,
    root: Float[np.ndarray, "K K"],
    centres: Float[np.ndarray, "K B"],
    roots: Float[np.ndarray, "B K K"],
) -> tuple[Float[np.ndarray, "K B"], Float[np.ndarray, " B"]]:
    """Take a Newton step on every replicate, in the coordinates in which the fit to the data is standard normal.

    Factors of the covariances are written to `roots`. Returns the centres, and the lengths of the steps in posterior
    standard deviations per square root of a parameter.
    """
    dim, n_replicates = centres.shape
    moved, lengths = centres.copy(), np.empty(n_replicates)
    gradients = eta * derivatives.gradient.astype(np.float64) + derivatives.prior_gradient
    n_batch = max(1, CONFIG.max_batch_elements // dim**2)
    for batch in (slice(i, i + n_batch) for i in range(0, n_replicates, n_batch)):
        precision = eta * _unpacked(np.asarray(derivatives.hessian)[batch], dim) + derivatives.prior_hessian
        inverse = host_inverse_factor(root.T @ precision @ root)
        scaled = np.einsum("bij,jk,kb->bi", inverse, root.T, gradients[:, batch], optimize=True)
        length = np.sqrt(np.square(np.einsum("bij,bi->bj", inverse, scaled)).mean(1))
        roots[batch] = root @ np.swapaxes(inverse, 1, 2)
        step = np.einsum("bij,bj->ib", roots[batch], scaled)
        moved[:, batch] -= step * np.minimum(1.0, CONFIG.max_replicate_step / np.maximum(length, 1e-30))
        lengths[batch] = length
    return moved, lengths


def _unpacked(packed: Float[np.ndarray, "R P"], dim: int) -> Float[np.ndarray, "R K K"]:
    """Return symmetric matrices in double precision, given their upper triangles."""
    rows, columns = np.triu_indices(dim)
    matrices = np.empty((len(packed), dim, dim))
    matrices[:, rows, columns] = matrices[:, columns, rows] = packed
    return matrices


def prefetch_normal_fits(target: Target) -> None:
    """Start to compile the fits to the data and to the replicates."""
    dim, dtype = target.dim, target.reference.dtype
    shaped = lambda *shape: jax.ShapeDtypeStruct(shape, dtype)
    prefetch(_derivatives_on_data, prefetch(_data_target, target), shaped(dim, 1), shaped(dim, dim))
    prefetch(_derivatives_on_replicates, target, shaped(dim, target.n_replicates), shaped(dim, dim))


def _inverse(matrix: Float[np.ndarray, "K K"]) -> Float[np.ndarray, "K K"]:
    inverse_root = host_inverse_factor(matrix[None])[0]
    return inverse_root.T @ inverse_root


@light_jit
def _data_target(target: Target) -> Target:
    return target.select(jnp.zeros(1, int))


@jit
def _derivatives_on_data(
    data: Target, centre: Float[Array | np.ndarray, "K 1"], root: Float[Array | np.ndarray, "K K"]
) -> Derivatives:
    return _derivatives(data, jnp.asarray(centre), jnp.asarray(root), with_outer=True)


@jit
def _derivatives_on_replicates(
    target: Target, centres: Float[Array | np.ndarray, "K B"], root: Float[Array | np.ndarray, "K K"]
) -> Derivatives:
    return _derivatives(target, jnp.asarray(centres), jnp.asarray(root), with_outer=False)


def _derivatives(
    target: Target, centre: Float[Array, "K R"], root: Float[Array, "K K"], with_outer: bool
) -> Derivatives:
    """Return the derivatives of the smoothed risk and of the prior at the centres of R replicates."""
    loss, dim, n_replicates = target.loss, len(centre), centre.shape[1]
    log_prob = target.prior.log_prob
    prior_gradient = -jax.vmap(jax.grad(log_prob), 1, 1)(centre)
    prior_hessian = -jax.hessian(log_prob)(centre.mean(1))
    rows, columns = np.triu_indices(dim)
    if isinstance(loss, CountsRisk):
        per_draw = 1.0 if target.weights is None else target.weights.per_draw.reshape(-1)
        of_risk = counts_risk.derivatives(loss, centre, target.counts_data, per_draw)
        hessian, outer = (matrix[:, rows, columns] for matrix in (of_risk.hessian, of_risk.outer))
        return Derivatives(of_risk.gradient, hessian, outer, prior_gradient, prior_hessian)
    assert isinstance(loss, LinearLoss)
    relative = centre - target.reference[:, None]
    highest = jax.lax.Precision.HIGHEST
    flatten = lambda leaf: leaf.reshape(-1, *leaf.shape[2:])

    def on_device(data, relative, root, counts, observation_weights):
        def add(total, chunk):
            block, elements, of_block = chunk
            (x, y, offset), weights = jax.tree.map(flatten, (block, jax.vmap(counts.block)(elements)))
            per_draw = 1.0 if of_block is None else of_block.per_draw.reshape(-1, 1)
            prediction = offset[:, None] + jnp.matmul(x, relative, precision=highest)
            scale = jnp.sqrt(jnp.square(jnp.matmul(x, root, precision=highest)).sum(-1))
            # Without the barrier XLA computes them again for every product below.
            first, second = jax.lax.optimization_barrier(smoothed_derivatives(loss.rho, prediction, y, scale))
            gradient = jnp.matmul(x.T, weights * first, precision=highest)
            # The products of columns are the same for all replicates, so that their weighted sums are matrix products.
            products = x[:, rows] * x[:, columns]
            weighted = [weights * second, *((weights * per_draw * jnp.square(first),) if with_outer else ())]
            terms = (gradient, *(jnp.matmul(value.T, products, precision=highest) for value in weighted))
            return jax.tree.map(jnp.add, total, terms)

        matrices = jnp.zeros((n_replicates, len(rows)), relative.dtype)
        zeros = (jnp.zeros_like(relative), *(matrices,) * (1 + with_outer))
        width = max(1, CONFIG.max_chunk // target.reference_loss.shape[1])
        blocks = (data, counts.blocks, observation_weights)
        return fold_chunks(add, zeros, blocks, counts.n_blocks, width, on_cpu=True)

    specs = (SHARDED, UNSHARDED, UNSHARDED, target.counts.partition_specs(), SHARDED)
    args = (target.data, relative, root, target.counts, target.weights)
    gradient, hessian, *outer = sum_over_devices(target.mesh, on_device, specs, *args)
    return Derivatives(gradient, hessian, outer[0] if outer else hessian, prior_gradient, prior_hessian)


def smoothed_derivatives(
    rho: Callable[..., Array], prediction: Float[Array, "L R"], y: Float[Array, " L"], scale: Float[Array, " L"]
) -> tuple[Float[Array, "L R"], Float[Array, "L R"]]:
    """Return the first and second derivative of the loss, averaged over a normal distribution of the prediction."""
    nodes = np.arange(-CONFIG.node_range, CONFIG.node_range + CONFIG.node_spacing / 2, CONFIG.node_spacing)
    density = np.exp(-0.5 * nodes**2)
    first = density * nodes / (density @ nodes**2)
    second = density * (nodes**2 - (density @ nodes**2) / density.sum())
    second = second * 2 / (second @ nodes**2)
    # A scale of zero belongs to a row of X that is zero, whose loss does not depend on the parameters.
    scale = jnp.where(scale > 0, scale, 1.0)[:, None]
    losses = jax.vmap(rho)
    # Minus the loss at the centre, because rounding errors of large losses would be divided by a small scale. The sum
    # is unrolled: XLA does not vectorise a reduction over the nodes on a CPU.
    middle = losses(prediction, y)
    slope, curvature = jnp.zeros_like(prediction), jnp.zeros_like(prediction)
    for z, a, b in zip(nodes.tolist(), first.tolist(), second.tolist(), strict=True):
        if z == 0:
            continue
        difference = losses(prediction + z * scale, y) - middle
        slope, curvature = slope + a * difference, curvature + b * difference
    return slope / scale, jnp.maximum(curvature, 0.0) / jnp.square(scale)
