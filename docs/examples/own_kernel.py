"""A Markov kernel: a random walk with the same adapted step size in every direction."""

import jax.numpy as jnp

import calibayes as cb
from calibayes.kernels import Kernel
from calibayes.kernels.base import metropolis, random_walk_noise


class IsotropicWalk(Kernel):
    """The adaptation is the logarithm of the step size of each replicate, an array of shape (B,)."""

    def init(self, covariance):
        variances = jnp.trace(covariance, axis1=1, axis2=2) / covariance.shape[-1]
        return 0.5 * jnp.log(variances)

    def step(self, keys, target, eta, particles, adaptation, adapt):
        normal, log_uniforms = random_walk_noise(keys, particles.theta)
        proposal = particles.theta + jnp.exp(adaptation)[None, :, None] * normal
        move = metropolis(log_uniforms, target, eta, particles, proposal)
        if adapt:
            adaptation = adaptation + 0.1 * (move.info.acceptance - 0.25)
        return move.particles, adaptation, move.info


def main(checkpoint=None):
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    data = cb.datasets.median_regression(n=60, seed=0)
    sampler = cb.SMC(n_particles=300, ess_target=0.95, n_moves=4, kernel=IsotropicWalk())
    return cb.calibrate(
        model, data, sampler=sampler, bootstrap=200, tolerance=0.03, seed=0, checkpoint=checkpoint, progress=False
    )


if __name__ == "__main__":
    print(main())
