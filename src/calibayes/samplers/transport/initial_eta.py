"""Where to look first: the learning rate for any region and level, before any row has been sampled.

Were every row's posterior the pool's own, moved by the infinitesimal jackknife (`calibayes._core.sandwich`) and scaled with
eta, its critical levels would be known without a single evaluation of the risk.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from calibayes._backend.functions import host_array
from calibayes._backend.jit import jit
from calibayes._backend.linalg import lower_inverse
from calibayes._core.curve import Curve
from calibayes._core.particles import Particles, normalise, transform
from calibayes._core.target import Target
from calibayes.regions import Cloud, Point, Region
from calibayes.samplers.initial import InitialDraws
from calibayes.samplers.transport.maps import Base, first_maps, jackknifed

_WITHIN = 16.0
_DRAWS = 200


def initial_eta(target: Target, start: InitialDraws, region: Region, level: float) -> float:
    """Where sets would cover at `level`; the draws' own eta, if that is nowhere near it."""
    etas = start.eta * np.geomspace(1 / _WITHIN, _WITHIN, 9)
    levels = _levels(target, start.particles, host_array(start.eta), host_array(etas), region)
    guess = Curve(etas, np.asarray(levels)[:, 1:], np.ones(len(etas)), level).eta_hat()
    return guess if etas[0] < guess < etas[-1] else start.eta


@jit
def _levels(
    target: Target, pool: Particles, eta: Float[Array, ""], etas: Float[Array, " G"], region: Region
) -> Float[Array, "G B"]:
    """Critical levels of the data's centre, from the pool moved and scaled; no risk is evaluated."""
    # Neighbours are relatives: from all over.
    stride = max(1, pool.risk.shape[-1] // _DRAWS)
    few = jax.tree.map(lambda leaf: leaf[..., ::stride][..., :_DRAWS], pool)
    base = Base.of(few.with_log_weights(normalise(few.log_weights)), eta)
    maps = first_maps(target, base, jackknifed(target, pool, eta), jnp.ones(()))
    u, _ = base.on_rows(target.n_replicates)
    weights = jnp.full(u.shape[1:], 1 / u.shape[-1])
    centre = maps.centre[:, :1]
    away = transform(lower_inverse(maps.root), (centre - maps.centre)[:, :, None])
    point = target.coordinates.constrain(centre)[:, 0]

    def at(ratio: Float[Array, ""]) -> Float[Array, " B"]:
        theta = target.coordinates.constrain(maps.centre[:, :, None] + transform(maps.root, u) / jnp.sqrt(ratio))
        cloud = Cloud(theta, weights, -0.5 * jnp.square(u).sum(0))
        return region.critical_level(cloud, Point(point, -0.5 * ratio * jnp.square(away).sum(0)[:, 0]))

    return jax.lax.map(at, etas / eta)
