"""Maximum mean discrepancy between the data and a simulator whose random numbers are fixed."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from calibayes._backend.arguments import display, positive
from calibayes._backend.functions import static
from calibayes._core.loss import CountsRisk
from calibayes._core.unroll import unroll


class MMD(CountsRisk):
    r"""Squared maximum mean discrepancy (MMD) between the data and simulated observations.

    Parameters
    ----------
    kernel : float or callable
        Bandwidth h of the Gaussian kernel $\exp\{-\lVert x - y\rVert^2 / (2 h^2)\}$, in units of the data; or a
        positive definite function `kernel(x, y) -> scalar` of two observations. The median distance between
        observations is a usual bandwidth.
    simulator : callable
        Function `simulator(theta, noise)` that returns one simulated observation, written with `jax.numpy`.
    noise : array_like of shape (S, ...)
        Random numbers of S simulated observations, the same for all parameters. The risk is then a smooth function of
        the parameters; its minimizer has an error of order $S^{-1/2}$ from these numbers.

    Notes
    -----
    With counts c and their sum n, and simulated observations $x_s(\theta)$, the risk is n times

    $$ \frac{1}{S (S - 1)} \sum_{s \ne t} k(x_s, x_t) - \frac{2}{S n} \sum_{s, i} c_i\, k(x_s, y_i), $$

    the squared discrepancy without the part that does not depend on the parameters. It is robust to outliers, whose
    kernels are bounded. An evaluation takes a time proportional to S (N + S).

    References
    ----------
    Briol, Barp, Duncan and Girolami (2019), Statistical inference for generative models with maximum mean discrepancy,
    arXiv:1906.05944.
    Chérief-Abdellatif and Alquier (2020), MMD-Bayes: robust Bayesian estimation via maximum mean discrepancy,
    Proceedings of Machine Learning Research 118.

    Examples
    --------
    >>> import numpy as np
    >>> import calibayes as cb
    >>> noise = np.random.default_rng(0).normal(size=200)
    >>> risk = cb.losses.MMD(1.0, lambda theta, noise: theta[0] + noise, noise)
    >>> model = cb.GibbsModel(risk, cb.priors.Normal(scale=10.0), dim=1)
    """

    kernel: Callable[..., Any] | None
    bandwidth: float | None = eqx.field(static=True)
    simulator: Callable[..., Any]
    noise: Array

    def __init__(self, kernel: object, simulator: object, noise: object):
        for name, fn in (("kernel", kernel), ("simulator", simulator)):
            if not callable(fn) and not (name == "kernel" and isinstance(fn, int | float | np.number)):
                raise TypeError(f"{name} must be a function; got {display(fn)}.")
        self.kernel = static(kernel) if callable(kernel) else None
        self.bandwidth = None if callable(kernel) else positive("kernel", kernel)
        self.simulator = static(simulator)  # type: ignore[arg-type]
        numbers = np.asarray(noise)
        if numbers.ndim == 0 or len(numbers) < 2 or not np.isfinite(numbers).all():
            raise ValueError(f"noise must hold finite random numbers of two or more observations; got {numbers.shape}.")
        self.noise = jnp.asarray(numbers, jax.dtypes.canonicalize_dtype(numbers.dtype))

    def memory_per_particle(self, data, n_stored):  # noqa: ARG002
        return len(self.noise) * max(n_stored, len(self.noise))

    def __call__(self, theta, data, counts, nuisance=None):  # noqa: ARG002
        simulated = jax.vmap(self.simulator, (None, 0))(theta, self.noise)
        n, size = counts.sum(), len(self.noise)
        to_data = self._kernel_matrix(simulated, data).sum(0) @ counts
        within = self._kernel_matrix(simulated, simulated)
        off_diagonal = jnp.where(jnp.eye(size, dtype=bool), 0.0, within).sum()
        return n * off_diagonal / (size * (size - 1)) - 2 * to_data / size

    def _kernel_matrix(self, x: PyTree[Array], y: PyTree[Array]) -> Float[Array, "S N"]:
        kernel = self._gaussian_kernel if self.kernel is None else self.kernel
        first = lambda values: jax.tree.map(lambda leaf: leaf[0], values)
        # A sum over the few numbers of an observation prevents vector instructions if it is an operation of its own.
        unrolled = unroll(kernel, first(x), first(y))
        return jax.vmap(jax.vmap(unrolled, (None, 0)), (0, None))(x, y)

    def _gaussian_kernel(self, x: Array, y: Array) -> Float[Array, ""]:
        assert self.bandwidth is not None
        return jnp.exp(-0.5 / self.bandwidth**2 * jnp.square(x - y).ravel().sum())
