r"""Affine maps from the pool to every replicate, and the importance weights of the mapped particles.

The particles of replicate b are $T_b(u_m) = \mu_b + L_b u_m$, where $u$ is a population of the pool, whitened by its
own mean and covariance. Their weights are the ratio of the density of the replicate to that of the pool,

$$ \log w_m = [-\eta R_b(T_b u_m) + \log p(T_b u_m)] - [-\eta_0 R(\theta_m) + \log p(\theta_m)] : $$

the map is affine, so its Jacobian is the same for all m and cancels. The first maps shift the mean of the pool by the
infinitesimal jackknife (`calibayes._core.sandwich`); `refit.py` improves them.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from calibayes._backend.jit import jit, light_jit
from calibayes._core.particles import (
    Particles,
    factor,
    inverse_factor,
    mean_and_covariance,
    normalise_with_ess,
    transform,
)
from calibayes._core.target import Target, log_density


class WhitenedPool(eqx.Module):
    """Populations of draws on the data, each whitened by its own mean and covariance.

    Replicate b uses population b modulo the number of populations, so that the replicates do not all share one Monte
    Carlo error.
    """

    u: Float[Array, "K R M"]
    """Whitened draws."""
    log_density: Float[Array, "R M"]
    """Log-density of the draws at the learning rate of the pool."""
    centre: Float[Array, " K"]
    """Mean of all populations together."""
    root: Float[Array, "K K"]
    """Lower factor of the covariance of all populations together."""

    @staticmethod
    @jit
    def from_particles(particles: Particles, eta: Float[Array, ""]) -> "WhitenedPool":
        """Whiten the populations `particles`, which have the learning rate `eta`."""
        theta, weights = particles.theta, particles.weights
        centre, within = mean_and_covariance(theta, weights)
        between = jnp.atleast_2d(jnp.cov(centre, bias=True))
        return WhitenedPool(
            transform(inverse_factor(within), theta - centre[:, :, None]),
            log_density(particles, jnp.full(weights.shape[0], eta)),
            centre.mean(1),
            factor((within.mean(0) + between)[None])[0],
        )

    @property
    def n_particles(self) -> int:
        """Number of draws in a population."""
        return self.log_density.shape[-1]

    @jit
    def rotated(self) -> "WhitenedPool":
        """Return the pool with every population replaced by the next one."""
        return WhitenedPool(jnp.roll(self.u, -1, 1), jnp.roll(self.log_density, -1, 0), self.centre, self.root)

    def truncated(self, n_particles: int) -> "WhitenedPool":
        """Return the pool with the first `n_particles` draws of every population."""
        return WhitenedPool(self.u[:, :, :n_particles], self.log_density[:, :n_particles], self.centre, self.root)

    def for_replicates(self, indices: Int[Array, " B"]) -> "WhitenedPool":
        """Return the populations that these replicates use, in the order of `indices`."""
        populations = indices % self.u.shape[1]
        return WhitenedPool(self.u[:, populations], self.log_density[populations], self.centre, self.root)

    def assigned(self, n_replicates: int) -> tuple[Float[Array, "K B M"], Float[Array, "B M"]]:
        """Return the whitened draws and log-densities that replicates 0, 1, ... use."""
        times = -(-n_replicates // self.u.shape[1])
        return jnp.tile(self.u, (1, times, 1))[:, :n_replicates], jnp.tile(self.log_density, (times, 1))[:n_replicates]


class AffineMaps(eqx.Module):
    """An affine map for every replicate."""

    centre: Float[Array, "K B"]
    """Offsets mu."""
    root: Float[Array, "B K K"]
    """Linear parts L, which need not be triangular."""

    def where(self, mask: Bool[Array, " B"], other: "AffineMaps") -> "AffineMaps":
        """Return these maps on the replicates of `mask`, and `other` elsewhere."""
        return AffineMaps(
            jnp.where(mask[None], self.centre, other.centre),
            jnp.where(mask[:, None, None], self.root, other.root),
        )

    @jit
    def select(self, indices: Int[Array, " R"]) -> "AffineMaps":
        """Return the maps of some replicates."""
        return AffineMaps(self.centre[:, indices], self.root[indices])

    @jit
    def scaled(self, variance_factor: Float[Array, ""]) -> "AffineMaps":
        """Return maps with the same centres and all variances multiplied by `variance_factor`."""
        return AffineMaps(self.centre, self.root * jnp.sqrt(variance_factor))


@jit
def transport_and_weight(
    target: Target, pool: WhitenedPool, maps: AffineMaps, eta: Float[Array, ""]
) -> tuple[Particles, Float[Array, " B"]]:
    """Map the pool to every replicate and weight it there, by one evaluation of the risk.

    Parameters
    ----------
    target : Target
        The posteriors.
    pool : WhitenedPool
        The pool.
    maps : AffineMaps
        The map of each replicate.
    eta : array of shape ()
        Learning rate of the posteriors.

    Returns
    -------
    particles : Particles
        The mapped particles with their importance weights.
    ess : array of shape (B,)
        Their effective sample sizes.
    """
    u, pool_density = pool.assigned(target.n_replicates)
    particles = target.evaluate(maps.centre[:, :, None] + transform(maps.root, u))
    density = log_density(particles, jnp.full(target.n_replicates, eta))
    log_ratio = jnp.where(jnp.isfinite(pool_density), density - pool_density, -jnp.inf)
    log_weights, sizes = normalise_with_ess(log_ratio)
    return particles.with_log_weights(log_weights), sizes


@light_jit
def shifted_maps(
    target: Target, pool: WhitenedPool, shifts: Float[Array, "K B"], eta_ratio: Float[Array, ""]
) -> AffineMaps:
    """Return `pool_maps` with the centres moved by `shifts`."""
    maps = pool_maps(target, pool, eta_ratio)
    return AffineMaps(maps.centre + shifts, maps.root)


@jit
def pool_maps(target: Target, pool: WhitenedPool, eta_ratio: Float[Array, ""]) -> AffineMaps:
    """Return maps to the mean of the pool, with its covariance scaled to the learning rate and the total count.

    `eta_ratio` is the learning rate of the pool over that of the replicates.
    """
    scale = jnp.sqrt(eta_ratio * target.counts.n.astype(float) / target.totals())
    centre = jnp.broadcast_to(pool.centre[:, None], (target.dim, target.n_replicates))
    return AffineMaps(centre, scale[:, None, None] * pool.root[None])
