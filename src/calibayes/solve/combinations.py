"""Intervals of many linear combinations of the parameters, each at a learning rate of its own, in one pass.

What calibrates an interval is its coverage curve, and particles near the joint eta answer for the curves of all
combinations at once: only the few whose answer lies too far for weights to carry need a calibration of their own.
The point to be covered moves a little with eta. A first look finds about where each answer is; then all curves are
drawn for the points there.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from calibayes._backend.functions import as_float
from calibayes._backend.jit import jit
from calibayes._core.curve import Curve
from calibayes._core.particles import Particles, pool, shift
from calibayes.solve.curve import POINTS, grid_around
from calibayes.solve.estimate import points_along
from calibayes.solve.found import Found
from calibayes.solve.loop import Loop

_AT_ONCE = 32
_WITHIN = 0.75


def curves(loop: Loop, found: Found, level: float, vectors: Float[np.ndarray, "R K"]) -> tuple[list[Curve], Particles]:
    """The coverage curve of every combination around `found.sampled`; and the particles on the data, pooled."""
    target, eta = loop.target, found.sampled
    etas = grid_around(eta, found.half_width, POINTS)
    points = points_along(loop.estimate, loop.key, target, found.particles, found.eta, etas)
    values = np.asarray(points, np.float64) @ vectors.T

    def levels_of(rows: Particles, at: np.ndarray) -> np.ndarray:
        return _levels(target.constrained(rows), as_float(etas - eta), vectors, at)

    rough = levels_of(found.state.particles, values[POINTS // 2])
    answers = [np.clip(_curve(etas, own, level).eta_hat(), etas[0], etas[-1]) for own in rough]
    at = np.array([np.interp(np.log(answers[r]), np.log(etas), values[:, r]) for r in range(len(vectors))])
    levels, data = list[np.ndarray](), list[Particles]()
    for on_data, rows in loop.sampler.snapshots(target, found.state):
        levels.append(levels_of(rows, at))
        if not data or on_data is not data[-1]:
            data.append(on_data)
    averaged, nearest = np.mean(levels, axis=0), np.abs(np.log(etas[:, None] / answers)).argmin(0)
    groups = loop.sampler.n_populations
    own = [_curve(etas, averaged[r], level, groups, levels[0][r, nearest[r]]) for r in range(len(vectors))]
    return own, pool(data)


def _curve(
    etas: np.ndarray, levels: np.ndarray, level: float, groups: int = 1, in_groups: np.ndarray | None = None
) -> Curve:
    return Curve(etas, levels, np.full(len(etas), np.nan), level, groups, in_groups)


def _levels(particles: Particles, steps: Float[Array, " G"], vectors: np.ndarray, at: np.ndarray) -> np.ndarray:
    """`_levels_of` for any number of combinations, so many at once that one size is compiled; without row 0."""
    missing = -len(vectors) % _AT_ONCE
    filled = np.concatenate([vectors, np.zeros((missing, vectors.shape[1]))])
    points = np.concatenate([at, np.zeros(missing)])
    parts = [
        np.asarray(_levels_of(particles, steps, as_float(filled[i : i + _AT_ONCE]), as_float(points[i : i + _AT_ONCE])))
        for i in range(0, len(filled), _AT_ONCE)
    ]
    return np.concatenate(parts)[: len(vectors), :, 1:]


@jit
def _levels_of(
    particles: Particles, steps: Float[Array, " G"], vectors: Float[Array, "R K"], at: Float[Array, " R"]
) -> Float[Array, "R G B"]:
    """Critical levels of the combinations' values on every row, at each step of eta from where the particles are."""
    weights = jax.lax.map(lambda step: shift(particles, step).weights, steps)

    def row(one):
        theta, own = one
        values = jnp.matmul(vectors, theta, precision=jax.lax.Precision.HIGHEST)
        wanted = jnp.broadcast_to(at[:, None], values.shape)
        below = jnp.where(values < wanted, 1.0, jnp.where(values == wanted, 0.5, 0.0))
        return jnp.abs(2 * below @ own.T - 1)

    by_row = jax.lax.map(row, (jnp.moveaxis(particles.theta, 1, 0), jnp.moveaxis(weights, 1, 0)))
    known = (weights > 0).any(-1).T[:, None, :]
    return jnp.where(known, by_row, jnp.nan).transpose(1, 2, 0)


def answered(curve: Curve, eta: float) -> bool:
    """Whether a combination's learning rate is well within its curve, where weights carry as far."""
    answer = curve.eta_hat()
    near = 0 < answer < np.inf and abs(np.log(answer / eta)) <= _WITHIN * np.log(curve.etas[-1] / eta)
    return bool(near and np.isfinite(curve.eta_se()))
