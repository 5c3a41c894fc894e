"""A first guess of the learning rate for any region and level, without an evaluation of the risk.

If the posterior of every replicate were that on the data, shifted by the infinitesimal jackknife
(`calibayes._core.sandwich`) and with a covariance inversely proportional to eta, its critical levels would be known
from the initial draws alone.
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
from calibayes.regions import Point, Region, ReplicateParticles
from calibayes.samplers.initial import InitialDraws
from calibayes.samplers.transport import config
from calibayes.samplers.transport.maps import WhitenedPool, jackknife_shifts, shifted_maps


def initial_eta(target: Target, initial: InitialDraws, region: Region, level: float) -> float:
    """Return the eta at which the approximate sets cover at `level`; that of the draws if it is not on the grid."""
    constants = config.CONFIG.initial_eta
    etas = initial.eta * np.geomspace(1 / constants.grid_factor, constants.grid_factor, constants.n_grid)
    levels = _critical_levels(target, initial.particles, host_array(initial.eta), host_array(etas), region)
    guess = Curve(etas, np.asarray(levels)[:, 1:], np.ones(len(etas)), level).eta_hat()
    return guess if etas[0] < guess < etas[-1] else initial.eta


@jit
def _critical_levels(
    target: Target, particles: Particles, eta: Float[Array, ""], etas: Float[Array, " G"], region: Region
) -> Float[Array, "G B"]:
    """Return the approximate critical levels of the posterior mean on the data, at each of `etas`."""
    n_draws = config.CONFIG.initial_eta.n_guess_draws
    # Thin the draws: neighbouring ones may be copies of one ancestor.
    stride = max(1, particles.risk.shape[-1] // n_draws)
    thinned = jax.tree.map(lambda leaf: leaf[..., ::stride][..., :n_draws], particles)
    pool = WhitenedPool.from_particles(thinned.with_log_weights(normalise(thinned.log_weights)), eta)
    maps = shifted_maps(target, pool, jackknife_shifts(target, particles, eta), jnp.ones(()))
    u, _ = pool.assigned(target.n_replicates)
    weights = jnp.full(u.shape[1:], 1 / u.shape[-1])
    data_mean = maps.centre[:, :1]
    distance = transform(lower_inverse(maps.root), (data_mean - maps.centre)[:, :, None])
    point = target.coordinates.constrain(data_mean)[:, 0]

    def levels_at(eta_ratio: Float[Array, ""]) -> Float[Array, " B"]:
        theta = target.coordinates.constrain(maps.centre[:, :, None] + transform(maps.root, u) / jnp.sqrt(eta_ratio))
        cloud = ReplicateParticles(theta, weights, -0.5 * jnp.square(u).sum(0))
        return region.critical_level(cloud, Point(point, -0.5 * eta_ratio * jnp.square(distance).sum(0)[:, 0]))

    return jax.lax.map(levels_at, etas / eta)
