r"""Affine maps from the pool to every replicate, and the importance weights of the mapped particles.

The particles of replicate b are $T_b(u_m) = \mu_b + L_b u_m$, where $u$ is a population of the pool, whitened by its
own mean and covariance. Their weights are the ratio of the density of the replicate to that of the pool,

$$ \log w_m = [-\eta R_b(T_b u_m) + \log p(T_b u_m)] - [-\eta_0 R(\theta_m) + \log p(\theta_m)] : $$

the map is affine, so its Jacobian is the same for all m and cancels. The first maps shift the mean of the pool by the
infinitesimal jackknife (`calibayes._core.sandwich`); `refit.py` improves them.

Pools and maps are small and stay on the host, as NumPy arrays. The only compiled program is `transport_and_weight`.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from calibayes._backend.functions import host_array
from calibayes._backend.jit import jit
from calibayes._backend.linalg import host_factor, host_inverse_factor
from calibayes._core.particles import Particles, host_moments, normalise_with_ess, transform
from calibayes._core.target import Target, log_density
from calibayes.samplers.transport import config


class WhitenedPool(eqx.Module):
    """Populations of draws on the data, each whitened by its own mean and covariance.

    With many parameters, all are whitened by the mean and covariance of all of them together: the moments of one
    population have an error that would reduce the effective sample size by the factor exp(-K^2 / (2 M)).

    Replicate b uses population b modulo the number of populations, so that the replicates do not all share one Monte
    Carlo error.
    """

    u: Float[Array | np.ndarray, "K R M"]
    """Whitened draws."""
    log_density: Float[Array | np.ndarray, "R M"]
    """Log-density of the draws at the learning rate of the pool."""
    centre: Float[Array | np.ndarray, " K"]
    """Mean of all populations together."""
    root: Float[Array | np.ndarray, "K K"]
    """Lower factor of the covariance of all populations together."""

    @staticmethod
    def from_particles(particles: Particles, eta: float) -> "WhitenedPool":
        """Whiten the populations `particles`, which have the learning rate `eta`."""
        theta, risk, log_prior = jax.device_get((particles.theta, particles.risk, particles.log_prior))
        centre, within = host_moments(particles)
        between = np.atleast_2d(np.cov(centre, bias=True))
        root = host_factor((within.mean(0) + between)[None])[0]
        if len(theta) < config.CONFIG.size.common_moments_from:
            whiten, origin = host_inverse_factor(within), centre
        else:
            whiten, origin = np.linalg.inv(root)[None], np.broadcast_to(centre.mean(1, keepdims=True), centre.shape)
        u = whiten @ np.moveaxis(theta - origin[:, :, None], 1, 0)
        density = -eta * risk.astype(np.float64) + log_prior
        density = np.where(np.isfinite(risk) & ~np.isnan(density), density, -np.inf)
        return WhitenedPool(*map(host_array, (np.moveaxis(u, 0, 1), density, centre.mean(1), root)))

    @property
    def n_particles(self) -> int:
        """Number of draws in a population."""
        return self.log_density.shape[-1]

    @property
    def n_populations(self) -> int:
        """Number of populations."""
        return self.log_density.shape[0]

    def rotated(self) -> "WhitenedPool":
        """Return the pool with every population replaced by the next one."""
        return WhitenedPool(np.roll(self.u, -1, 1), np.roll(self.log_density, -1, 0), self.centre, self.root)

    def truncated(self, n_particles: int) -> "WhitenedPool":
        """Return the pool with the first `n_particles` draws of every population."""
        return WhitenedPool(self.u[:, :, :n_particles], self.log_density[:, :n_particles], self.centre, self.root)

    def for_replicates(self, indices: Int[np.ndarray, " B"]) -> "WhitenedPool":
        """Return the populations that these replicates use, in the order of `indices`."""
        populations = indices % self.n_populations
        return WhitenedPool(self.u[:, populations], self.log_density[populations], self.centre, self.root)


class AffineMaps(eqx.Module):
    """An affine map for every replicate."""

    centre: Float[Array | np.ndarray, "K B"]
    """Offsets mu."""
    root: Float[Array | np.ndarray, "B K K"]
    """Linear parts L, which need not be triangular."""

    @staticmethod
    def around(
        centre: Float[np.ndarray, " K"],
        root: Float[np.ndarray, "K K"],
        variance_factors: Float[np.ndarray, " B"],
        shifts: Float[np.ndarray, "K B"] | float = 0.0,
    ) -> "AffineMaps":
        """Return maps to `centre` plus `shifts`, with variances that are those of `root` times `variance_factors`."""
        centres = np.broadcast_to(centre[:, None], (len(centre), len(variance_factors))) + shifts
        return AffineMaps(host_array(centres), host_array(np.sqrt(variance_factors)[:, None, None] * root))

    def where(self, mask: Bool[np.ndarray, " B"], other: "AffineMaps") -> "AffineMaps":
        """Return these maps on the replicates of `mask`, and `other` elsewhere."""
        return AffineMaps(
            np.where(mask[None], self.centre, other.centre), np.where(mask[:, None, None], self.root, other.root)
        )

    def select(self, indices: Int[np.ndarray, " R"]) -> "AffineMaps":
        """Return the maps of some replicates."""
        return AffineMaps(self.centre[:, indices], self.root[indices])

    def with_replicates(self, indices: Int[np.ndarray, " R"], new: "AffineMaps") -> "AffineMaps":
        """Return these maps with those of the replicates at `indices` replaced."""
        centre, root = np.array(self.centre), np.array(self.root)
        centre[:, indices], root[indices] = new.centre, new.root
        return AffineMaps(centre, root)

    def scaled(self, variance_factor: float) -> "AffineMaps":
        """Return maps with the same centres and all variances multiplied by `variance_factor`."""
        return AffineMaps(self.centre, host_array(self.root * variance_factor**0.5))


@jit
def transport_and_weight(
    target: Target, pool: WhitenedPool, maps: AffineMaps, eta: Float[Array | np.ndarray, ""]
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
    n_replicates = target.n_replicates
    times = -(-n_replicates // pool.n_populations)
    u = jnp.tile(pool.u, (1, times, 1))[:, :n_replicates]
    pool_density = jnp.tile(pool.log_density, (times, 1))[:n_replicates]
    particles = target.evaluate(jnp.asarray(maps.centre)[:, :, None] + transform(jnp.asarray(maps.root), u))
    density = log_density(particles, jnp.full(n_replicates, eta))
    log_ratio = jnp.where(jnp.isfinite(pool_density), density - pool_density, -jnp.inf)
    log_weights, sizes = normalise_with_ess(log_ratio)
    return particles.with_log_weights(log_weights), sizes
