r"""Polson and Scott's Gibbs sampler for support vector machines (Bayesian Analysis 6, 2011), at any eta.

With $u_i = 1 - y_i x_i^\top\theta$ and the weight $a_i = \eta c_i$ of observation i, the hinge loss is a
scale mixture of normals over a latent $\lambda_i$,

$$ e^{-2 a_i \max(0, u_i)} = \int_0^\infty \frac{1}{\sqrt{2\pi\lambda_i}}
   \exp\Big\{-\frac{(\lambda_i + a_i u_i)^2}{2\lambda_i}\Big\}\,d\lambda_i, $$

and so is the Laplace prior over $\omega_k$. Given $\theta$, the reciprocals are inverse Gaussian:
$\lambda_i^{-1} \sim IG(1/|a_i u_i|, 1)$ and $\omega_k^{-1} \sim IG(1/(s_k|\theta_k - m_k|), 1/s_k^2)$ for a prior with
location $m$ and scale $s$. Given both, $\theta$ is normal with precision $\sum_i a_i^2\lambda_i^{-1}x_i x_i^\top +
\mathrm{diag}(\omega^{-1})$ and linear term $\sum_i a_i(1 + a_i\lambda_i^{-1})\,y_i x_i + \omega^{-1}m$.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from calibayes._backend.linalg import cholesky, lower_inverse
from calibayes._core.particles import Particles
from calibayes.kernels.base import Info, Kernel
from calibayes.losses import Hinge
from calibayes.priors import Laplace


class PolsonScott(Kernel):
    """Exact conditional draws; nothing to tune. Needs `losses.Hinge` with `priors.Laplace`."""

    def check(self, target):
        if not (isinstance(target.loss, Hinge) and isinstance(target.prior, Laplace)):
            raise TypeError(
                "kernel PolsonScott samples losses.Hinge with priors.Laplace; got "
                f"{type(target.loss).__name__} with {type(target.prior).__name__}. Use RAM or RWMH."
            )
        if bool((target.counts.to_array() < 0).any()):
            raise ValueError("kernel PolsonScott needs counts of at least zero; use RAM or RWMH.")

    def init(self, covariance):
        return ()

    def step(self, keys, target, eta, particles, adaptation, adapt):
        x, y, _ = (leaf.reshape(-1, *leaf.shape[2:]) for leaf in target.data)
        weights = eta[:, None] * target.counts.to_array().T
        prior = target.prior
        loc, scale = (jnp.broadcast_to(p, (target.dim,)) for p in (prior.loc, prior.scale))

        def row(key, theta, a):
            # Particle by particle, so that the latents take N numbers a row and not N x M.
            chains = (jax.random.split(key, theta.shape[-1]), theta.T)
            return jax.lax.map(lambda chain: _sweep(chain[0], chain[1], x, y, a, loc, scale), chains)

        theta = jnp.moveaxis(jax.vmap(row, (0, 1, 0))(keys, particles.theta, weights), -1, 0)
        # Rounding can leave a precision matrix without a factor once in a very long run: stay there.
        theta = jnp.where(jnp.isfinite(theta).all(0)[None], theta, particles.theta)
        moved = target.evaluate(theta)
        info = Info(jnp.ones(target.n_replicates, theta.dtype), jnp.isnan(moved.risk).sum(-1))
        return Particles(moved.theta, moved.risk, moved.log_prior, particles.log_weights), adaptation, info


def _sweep(
    key: PRNGKeyArray,
    theta: Float[Array, " K"],
    x: Float[Array, "N K"],
    y: Float[Array, " N"],
    a: Float[Array, " N"],
    loc: Float[Array, " K"],
    scale: Float[Array, " K"],
) -> Float[Array, " K"]:
    """One sweep on one row: latents given theta, then theta given latents."""
    loss_key, prior_key, theta_key = jax.random.split(key, 3)
    inverse_lambda = inverse_gaussian(loss_key, jnp.abs(a * (1 - y * (x @ theta))), jnp.ones_like(a))
    inverse_omega = inverse_gaussian(prior_key, scale * jnp.abs(theta - loc), jnp.square(1 / scale))
    precision = (x.T * (jnp.square(a) * inverse_lambda)[None]) @ x + jnp.diag(inverse_omega)
    linear = x.T @ (a * (1 + a * inverse_lambda) * y) + inverse_omega * loc
    inverse = lower_inverse(cholesky(precision[None]))[0]
    noise = jax.random.normal(theta_key, theta.shape, theta.dtype)
    product = lambda a, b: jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
    return product(inverse.T, product(inverse, linear) + noise)


def inverse_gaussian(
    key: PRNGKeyArray, inverse_mean: Float[Array, " J"], shape: Float[Array, " J"]
) -> Float[Array, " J"]:
    """Draws with the given reciprocal means (Michael, Schucany and Haas 1976), stable for large means.

    The smaller root of their quadratic is `mean / (1 + t + sqrt(t (t + 2)))`, free of cancellation. In units of the
    shape, a mean beyond 1e6 is taken for 1e6: the limit law, that of `shape / chi-squared`, is reached.
    """
    normal_key, uniform_key = jax.random.split(key)
    mean = 1 / jnp.maximum(inverse_mean * shape, 1e-6)
    chi2 = jnp.square(jax.random.normal(normal_key, mean.shape, mean.dtype))
    t = 0.5 * mean * chi2
    ratio = 1 / (1 + t + jnp.sqrt(t * (t + 2)))
    small = jax.random.uniform(uniform_key, mean.shape, mean.dtype) <= 1 / (1 + ratio)
    return shape * jnp.where(small, mean * ratio, mean / ratio)
