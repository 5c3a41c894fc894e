r"""Polson and Scott's Gibbs sampler for support vector machines, at any learning rate.

With $u_i = 1 - y_i x_i^\top\theta$ and the weight $a_i = \eta c_i$ of observation i, the hinge loss is a
scale mixture of normals over a latent $\lambda_i$,

$$ e^{-2 a_i \max(0, u_i)} = \int_0^\infty \frac{1}{\sqrt{2\pi\lambda_i}}
   \exp\Big\{-\frac{(\lambda_i + a_i u_i)^2}{2\lambda_i}\Big\}\,d\lambda_i, $$

and so is the Laplace prior over a latent $\omega_k$. Given $\theta$, the reciprocals are inverse Gaussian:
$\lambda_i^{-1} \sim IG(1/|a_i u_i|, 1)$ and $\omega_k^{-1} \sim IG(1/(s_k|\theta_k - m_k|), 1/s_k^2)$ for a prior with
location $m$ and scale $s$. Given both, $\theta$ is normal with precision $\sum_i a_i^2\lambda_i^{-1}x_i x_i^\top +
\mathrm{diag}(\omega^{-1})$ and linear term $\sum_i a_i(1 + a_i\lambda_i^{-1})\,y_i x_i + \omega^{-1}m$.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PRNGKeyArray

from calibayes._backend.linalg import cholesky, lower_inverse
from calibayes._core.particles import Particles
from calibayes._core.target import Target
from calibayes.kernels.base import Kernel, KernelInfo
from calibayes.losses import Hinge
from calibayes.priors import Laplace


class PolsonScott(Kernel[tuple[()]]):
    """Polson and Scott's Gibbs sampler for support vector machines. It has no tuning parameters.

    Draws the latent variables and then the parameters from their exact conditional distributions. Requires
    `losses.Hinge` with `priors.Laplace`, and non-negative counts.

    References
    ----------
    Polson and Scott (2011), Data augmentation for support vector machines. Bayesian Analysis 6, 1-23.

    Examples
    --------
    >>> import calibayes as cb
    >>> model = cb.GibbsModel(cb.losses.Hinge(), cb.priors.Laplace(scale=10.0))
    >>> sampler = cb.MCMC(n_draws=5_000, n_warmup=500, kernel=cb.kernels.PolsonScott())
    >>> sampler.kernel
    PolsonScott()
    """

    reads_data: ClassVar[bool] = True

    def check(self, target: Target) -> None:
        if not (isinstance(target.loss, Hinge) and isinstance(target.prior, Laplace)):
            raise TypeError(
                "kernel PolsonScott samples losses.Hinge with priors.Laplace; got "
                f"{type(target.loss).__name__} with {type(target.prior).__name__}. Use RAM or RWMH."
            )
        if bool((target.counts.to_array() < 0).any()):
            raise ValueError("kernel PolsonScott needs non-negative counts; got a negative one. Use RAM or RWMH.")

    def init(self, covariance: Float[Array, "B K K"]) -> tuple[()]:
        return ()

    def step(
        self,
        keys: Key[Array, " B"],
        target: Target,
        eta: Float[Array, " B"],
        particles: Particles,
        adaptation: tuple[()],
        adapt: bool,
    ) -> tuple[Particles, tuple[()], KernelInfo]:
        x, y, _ = (leaf.reshape(-1, *leaf.shape[2:]) for leaf in target.data)
        weights = eta[:, None] * target.counts.to_array().T
        prior = target.prior
        loc, scale = (jnp.broadcast_to(p, (target.dim,)) for p in (prior.loc, prior.scale))

        def sweep_replicate(key, theta, loss_weights):
            # One particle at a time, so that the latent variables of a replicate take N numbers and not N x M.
            chains = (jax.random.split(key, theta.shape[-1]), theta.T)
            return jax.lax.map(lambda chain: _sweep(chain[0], chain[1], x, y, loss_weights, loc, scale), chains)

        theta = jnp.moveaxis(jax.vmap(sweep_replicate, (0, 1, 0))(keys, particles.theta, weights), -1, 0)
        # In a very long run, rounding can make a precision matrix indefinite. Such a particle does not move.
        theta = jnp.where(jnp.isfinite(theta).all(0)[None], theta, particles.theta)
        moved = target.evaluate(theta)
        info = KernelInfo(jnp.ones(target.n_replicates, theta.dtype), jnp.isnan(moved.risk).sum(-1))
        return Particles(moved.theta, moved.risk, moved.log_prior, particles.log_weights), adaptation, info


def _sweep(
    key: PRNGKeyArray,
    theta: Float[Array, " K"],
    x: Float[Array, "N K"],
    y: Float[Array, " N"],
    loss_weights: Float[Array, " N"],
    loc: Float[Array, " K"],
    scale: Float[Array, " K"],
) -> Float[Array, " K"]:
    """Draw the latent variables given theta, then theta given the latent variables, of one particle.

    The weight of a loss is the learning rate times the count of the observation.
    """
    loss_key, prior_key, theta_key = jax.random.split(key, 3)
    inverse_lambda = inverse_gaussian(
        loss_key, jnp.abs(loss_weights * (1 - y * (x @ theta))), jnp.ones_like(loss_weights)
    )
    inverse_omega = inverse_gaussian(prior_key, scale * jnp.abs(theta - loc), jnp.square(1 / scale))
    precision = (x.T * (jnp.square(loss_weights) * inverse_lambda)[None]) @ x + jnp.diag(inverse_omega)
    linear = x.T @ (loss_weights * (1 + loss_weights * inverse_lambda) * y) + inverse_omega * loc
    inverse = lower_inverse(cholesky(precision[None]))[0]
    noise = jax.random.normal(theta_key, theta.shape, theta.dtype)
    product = lambda a, b: jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
    return product(inverse.T, product(inverse, linear) + noise)


def inverse_gaussian(
    key: PRNGKeyArray, inverse_mean: Float[Array, " J"], shape: Float[Array, " J"]
) -> Float[Array, " J"]:
    """Draw inverse Gaussian numbers, given the reciprocals of their means (Michael, Schucany and Haas 1976).

    The smaller root of their quadratic equation is computed as `mean / (1 + t + sqrt(t (t + 2)))`, which is free of
    cancellation. Means are limited to 1e6 in units of the shape: there the distribution has reached its limit for an
    infinite mean, that of `shape / chi-squared`.
    """
    normal_key, uniform_key = jax.random.split(key)
    mean = 1 / jnp.maximum(inverse_mean * shape, 1e-6)
    chi2 = jnp.square(jax.random.normal(normal_key, mean.shape, mean.dtype))
    t = 0.5 * mean * chi2
    ratio = 1 / (1 + t + jnp.sqrt(t * (t + 2)))
    use_smaller = jax.random.uniform(uniform_key, mean.shape, mean.dtype) <= 1 / (1 + ratio)
    return shape * jnp.where(use_smaller, mean * ratio, mean / ratio)
