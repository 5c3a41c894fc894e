"""Intervals of many linear combinations of the parameters, each at its own learning rate, in one pass.

An interval is calibrated by its own coverage curve, and particles near the joint learning rate give the curves of all
combinations at once. Only combinations whose answer is too far away for importance weights need a calibration of their
own. The point to cover moves a little with eta: a first pass locates each answer roughly, and a second one computes the
curves for the point estimates there.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from calibayes._backend.functions import as_float
from calibayes._backend.jit import jit
from calibayes._core.curve import Curve
from calibayes._core.particles import Particles, pool, reweight_particles
from calibayes.solve import curve as curves
from calibayes.solve.curve import grid_around
from calibayes.solve.estimate import points_along
from calibayes.solve.iterate import Iterate
from calibayes.solve.problem import CoverageProblem


@dataclass(frozen=True)
class MarginalsConfig:
    """Constants of the simultaneous calibration of linear combinations."""

    batch: int = 32
    """Combinations per call of the compiled program, so that one shape is compiled for any number of them."""
    inner_share: float = 0.75
    """Share of a curve's half-width within which a crossing is accepted; nearer to its end the weights are uneven."""


CONFIG = MarginalsConfig()


def marginal_curves(
    problem: CoverageProblem, iterate: Iterate, level: float, vectors: Float[np.ndarray, "R K"]
) -> tuple[list[Curve], Particles]:
    """Return the coverage curve of every linear combination, and the particles on the data.

    Parameters
    ----------
    problem : CoverageProblem
        The calibrated problem.
    iterate : Iterate
        Its solution, or an iterate at another learning rate.
    level : float
        Level of the intervals.
    vectors : ndarray of shape (R, K)
        Coefficients of the combinations.
    """
    target, sampled_eta = problem.target, iterate.sampled_eta
    etas = grid_around(sampled_eta, iterate.half_width, curves.CONFIG.n_points)
    points = points_along(problem.estimate, problem.key, target, iterate.particles, iterate.eta, etas)
    values = np.asarray(points, np.float64) @ vectors.T
    offsets = as_float(etas - sampled_eta)

    def levels_of(particles: Particles, points: np.ndarray) -> np.ndarray:
        return _levels(target.constrained(particles), offsets, vectors, points)

    reported = problem.shaped_target(iterate.state.particles).shaped(iterate.state.particles)
    rough = levels_of(reported, values[len(etas) // 2])
    eta_hats = np.array([np.clip(_curve(etas, levels, level).eta_hat(), etas[0], etas[-1]) for levels in rough])
    values_at_eta_hat = np.array(
        [np.interp(np.log(eta_hats[r]), np.log(etas), values[:, r]) for r in range(len(vectors))]
    )
    by_snapshot, particles_on_data = list[np.ndarray](), list[Particles]()
    for data, replicates in problem.snapshots(iterate.state):
        by_snapshot.append(levels_of(replicates, values_at_eta_hat))
        if not particles_on_data or data is not particles_on_data[-1]:
            particles_on_data.append(data)
    averaged, nearest = np.mean(by_snapshot, axis=0), np.abs(np.log(etas[:, None] / eta_hats)).argmin(0)
    n_populations = problem.sampler.n_populations
    result = [
        problem.with_equal_replicates(_curve(etas, averaged[r], level, n_populations, by_snapshot[0][r, nearest[r]]))
        for r in range(len(vectors))
    ]
    return result, pool(particles_on_data)


def is_inside(curve: Curve, eta: float) -> bool:
    """Return whether a curve around `eta` gives the learning rate and its standard error reliably."""
    crossing = curve.lowest_crossing()
    half_width = np.log(curve.etas[-1] / eta)
    near = 0 < crossing < np.inf and abs(np.log(crossing / eta)) <= CONFIG.inner_share * half_width
    return bool(near and np.isfinite(curve.eta_se()))


def _curve(
    etas: np.ndarray,
    levels: np.ndarray,
    level: float,
    n_populations: int = 1,
    first_critical_levels: np.ndarray | None = None,
) -> Curve:
    return Curve(etas, levels, np.full(len(etas), np.nan), level, n_populations, first_critical_levels)


def _levels(particles: Particles, steps: Float[Array, " G"], vectors: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return the critical levels of any number of combinations on the replicates, without the data."""
    batch = CONFIG.batch
    missing = -len(vectors) % batch
    padded = np.concatenate([vectors, np.zeros((missing, vectors.shape[1]))])
    padded_points = np.concatenate([points, np.zeros(missing)])
    parts = [
        np.asarray(
            _batch_levels(particles, steps, as_float(padded[i : i + batch]), as_float(padded_points[i : i + batch]))
        )
        for i in range(0, len(padded), batch)
    ]
    return np.concatenate(parts)[: len(vectors), :, 1:]


@jit
def _batch_levels(
    particles: Particles, steps: Float[Array, " G"], vectors: Float[Array, "R K"], points: Float[Array, " R"]
) -> Float[Array, "R G B"]:
    """Return the critical levels of combinations on every replicate, at each step of eta from the particles' own."""
    weights = jax.lax.map(lambda step: reweight_particles(particles, step).weights, steps)

    def on_replicate(inputs):
        theta, own_weights = inputs
        values = jnp.matmul(vectors, theta, precision=jax.lax.Precision.HIGHEST)
        point = jnp.broadcast_to(points[:, None], values.shape)
        below = jnp.where(values < point, 1.0, jnp.where(values == point, 0.5, 0.0))
        return jnp.abs(2 * below @ own_weights.T - 1)

    levels = jax.lax.map(on_replicate, (jnp.moveaxis(particles.theta, 1, 0), jnp.moveaxis(weights, 1, 0)))
    has_weight = (weights > 0).any(-1).T[:, None, :]
    return jnp.where(has_weight, levels, jnp.nan).transpose(1, 2, 0)
