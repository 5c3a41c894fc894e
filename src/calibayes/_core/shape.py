r"""Posteriors with another shape: an affine map of the particles of every replicate around their mean.

In unbounded coordinates, a draw $z$ of replicate b becomes $z' = c_b + A (z - c_b)$, where $c_b$ is the mean of the
replicate. Risks and weights stay those of $z$, so that particles are reweighted to other learning rates as before. The
density at a point is, up to a constant, that of the posterior at the point pulled back, $c_b + A^{-1}(z' - c_b)$.
"""

from dataclasses import fields

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from calibayes._backend.functions import host_array
from calibayes._backend.jit import light_jit
from calibayes._core.particles import Particles, host_means
from calibayes._core.target import Target


class ShapedTarget(Target):
    """Target whose particles are mapped around the centre of each replicate.

    Attributes
    ----------
    matrix, inverse : Array of shape (K, K)
        The matrix A of the map, and its inverse.
    centres : Array of shape (K, B)
        Centres of the replicates, in unbounded coordinates.
    """

    matrix: Float[Array, "K K"] = None  # type: ignore[assignment]
    inverse: Float[Array, "K K"] = None  # type: ignore[assignment]
    centres: Float[Array, "K B"] = None  # type: ignore[assignment]

    def shaped(self, particles: Particles) -> Particles:
        """Return the particles at their mapped positions."""
        return _map_particles(particles, self.matrix, self.centres)

    def pull_back(self, points: Float[Array, "G K"]) -> tuple[Float[Array, "K B G"], Float[Array, "B G"]]:
        """Return the points whose images are `points`, on each replicate, and a correction of their log-density."""
        z = jnp.broadcast_to(self.coordinates.unconstrain(points.T)[:, None], (*self.centres.shape, len(points)))
        origin = _map_coordinates(z, self.inverse, self.centres)
        # Densities are of the coordinates before the map, and of the parameters after it.
        correction = self.coordinates.log_jacobian(origin) - self.coordinates.log_jacobian(z)
        return self.coordinates.constrain(origin), correction


def shape_target(target: Target, particles: Particles, matrix: Float[np.ndarray, "K K"]) -> ShapedTarget:
    """Return the target with particles mapped by a matrix around the means of these particles.

    Parameters
    ----------
    target : Target
        Target of as many replicates as the particles have.
    particles : Particles
        Particles whose means are the centres.
    matrix : ndarray of shape (K, K)
        Matrix of the map.
    """
    own = {field.name: getattr(target, field.name) for field in fields(target)}
    arrays = (matrix, np.linalg.inv(matrix), host_means(particles))
    return ShapedTarget(**own, **dict(zip(("matrix", "inverse", "centres"), map(host_array, arrays), strict=True)))


@light_jit
def _map_particles(
    particles: Particles, matrix: Float[Array, "K K"], centres: Float[Array | np.ndarray, "K B"]
) -> Particles:
    z = _map_coordinates(particles.theta, matrix, centres)
    return Particles(z, particles.risk, particles.log_prior, particles.log_weights)


def _map_coordinates(
    z: Float[Array, "K B M"], matrix: Float[Array, "K K"], centres: Float[Array | np.ndarray, "K B"]
) -> Float[Array, "K B M"]:
    centre = jnp.asarray(centres)[:, :, None]
    return centre + jnp.tensordot(jnp.asarray(matrix), z - centre, 1, precision=jax.lax.Precision.HIGHEST)
