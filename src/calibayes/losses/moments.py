r"""Moment conditions: a quadratic form of the counts-weighted mean moments (generalized method of moments)."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from calibayes._backend.arguments import display
from calibayes._backend.functions import host_array, static
from calibayes._backend.linalg import cholesky, lower_inverse
from calibayes._core.loss import CountsRisk


class GMM(CountsRisk):
    r"""Quadratic form of mean moments, the objective function of the generalized method of moments.

    Parameters
    ----------
    moments : callable
        Function `moments(theta, datum) -> (P,)` of the parameters and one observation, written with `jax.numpy`, whose
        expectation is zero at the true parameters.
    weight : "continuous" or array_like of shape (P, P)
        Weight matrix W. "continuous": the inverse of the covariance matrix of the moments at every $\theta$ and on
        every replicate (continuously updated). An array: this fixed matrix, such as that of a first step, or the
        identity if all moments have about the same variance. Default: "continuous".

    Notes
    -----
    With counts c, their sum n and the mean moments $\bar{g}(\theta) = \sum_i c_i g(\theta, z_i) / n$ the risk is
    $\tfrac{n}{2}\, \bar{g}(\theta)^\top W \bar{g}(\theta)$. With the continuously updated matrix the posterior at
    learning rate 1 has the efficient covariance if there are as many moments as parameters or the model is correct, so
    that the calibrated eta is about one (Chernozhukov and Hong 2003); far from the estimate this risk is bounded, and
    the prior must be proper. With too few distinct observations to invert the matrix, the risk is infinite.

    References
    ----------
    Hansen (1982), Large sample properties of generalized method of moments estimators, Econometrica 50, 1029-1054.
    Hansen, Heaton and Yaron (1996), Finite-sample properties of some alternative GMM estimators, Journal of Business
    and Economic Statistics 14, 262-280.
    Chernozhukov and Hong (2003), An MCMC approach to classical estimation, Journal of Econometrics 115, 293-346.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import calibayes as cb
    >>> def instruments(theta, datum):
    ...     z, x, y = datum
    ...     return z * (y - x @ theta)
    >>> model = cb.GibbsModel(cb.losses.GMM(instruments), cb.priors.Normal(scale=10.0), dim=2)
    """

    moments: Callable[..., Any] = eqx.field(converter=static)
    weight: Float[Array, "P P"] | None

    def __init__(self, moments: object, weight: object = "continuous"):
        if not callable(moments):
            raise TypeError(f"moments must be a function (theta, datum); got {display(moments)}.")
        self.moments, self.weight = moments, None
        if isinstance(weight, str):
            if weight != "continuous":
                raise ValueError(f'weight must be "continuous" or a matrix; got {display(weight)}.')
            return
        matrix = np.asarray(weight, np.float64)
        symmetric = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1] and np.allclose(matrix, matrix.T)
        if not (symmetric and np.isfinite(matrix).all() and (np.linalg.eigvalsh(matrix) > 0).all()):
            raise ValueError(f"weight must be a symmetric positive definite matrix; got shape {matrix.shape}.")
        self.weight = jnp.asarray(host_array(matrix))

    def __call__(self, theta, data, counts, nuisance=None):  # noqa: ARG002
        values = jax.vmap(self.moments, (None, 0))(theta, data)
        if values.ndim != 2:
            raise ValueError(f"moments must return a vector for one observation; got shape {values.shape[1:]}.")
        # Moments of an observation with count zero may be infinite.
        values = jnp.where(counts[:, None] != 0, values, 0.0)
        n = counts.sum()
        mean = counts @ values / n
        if self.weight is not None:
            return 0.5 * n * mean @ self.weight.astype(mean.dtype) @ mean
        centred = values - mean[None]
        covariance = jnp.matmul((centred * counts[:, None]).T, centred, precision=jax.lax.Precision.HIGHEST) / n
        inverse_root = lower_inverse(cholesky(covariance[None]))[0]
        value = 0.5 * n * jnp.sum(jnp.square(jnp.matmul(inverse_root, mean, precision=jax.lax.Precision.HIGHEST)))
        return jnp.where(jnp.isfinite(value), value, jnp.inf)
