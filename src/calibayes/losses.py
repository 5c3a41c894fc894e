r"""Losses: what the posterior holds a parameter accountable for.

The generalized posterior is $\exp\{-\eta \sum_i r_i(\theta)\}\, p(\theta)$. A *linear* loss is
$r_i(\theta) = \rho(x_i^\top\theta, y_i)$ for a scalar $\rho$, and takes the fast path of the risk
engine; any other function of `(theta, datum)` is a `Generic` loss.

Parameters of a loss (tau, delta) are arrays in its pytree: another value does not recompile.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from calibayes._backend.arguments import parameters, scalar
from calibayes._backend.functions import Numbers, static
from calibayes._core.loss import Generic as Generic
from calibayes._core.loss import LinearLoss as LinearLoss


class _Location(LinearLoss):
    location: ClassVar[bool] = True


class Quantile(_Location):
    """Check loss: the risk of the `tau`-th conditional quantile (paper, section 3.1)."""

    convex: ClassVar[bool] = True
    tau: Float[Array, ""]

    def __init__(self, tau: Numbers):
        self.tau = parameters("tau", tau)
        _require_fraction("tau", self.tau)

    def parts(self):
        if type(self).rho is not Quantile.rho:
            return super().parts()
        return (lambda prediction, y: 0.5 * jnp.abs(prediction - y)), 0.5 - self.tau

    def rho(self, prediction, y):
        residual = y - prediction
        return jnp.maximum(self.tau * residual, (self.tau - 1) * residual)


class Absolute(_Location):
    """Absolute error: the median, on twice the scale of `Quantile(0.5)`."""

    convex: ClassVar[bool] = True

    def rho(self, prediction, y):
        return jnp.abs(prediction - y)


class Squared(_Location):
    """Half the squared error: the mean; at eta 1 a Gaussian likelihood with unit variance."""

    convex: ClassVar[bool] = True

    def rho(self, prediction, y):
        return 0.5 * jnp.square(prediction - y)


class Huber(_Location):
    """Half the squared error up to `delta`, linear beyond: a mean that outliers cannot drag."""

    convex: ClassVar[bool] = True
    delta: Float[Array, ""]

    def __init__(self, delta: Numbers = 1.345):
        self.delta = scalar("delta", delta)

    def rho(self, prediction, y):
        size = jnp.abs(prediction - y)
        inner = jnp.minimum(size, self.delta)
        return inner * (size - 0.5 * inner)


class Expectile(_Location):
    """Asymmetric squared error; `Expectile(0.5)` is `Squared`."""

    convex: ClassVar[bool] = True
    tau: Float[Array, ""]

    def __init__(self, tau: Numbers):
        self.tau = parameters("tau", tau)
        _require_fraction("tau", self.tau)

    def rho(self, prediction, y):
        beyond = prediction - y
        return jnp.where(beyond > 0, 1 - self.tau, self.tau) * jnp.square(beyond)


class _Margin(LinearLoss):
    margin: ClassVar[bool] = True

    def check(self, y):
        values = np.unique(y)
        if not np.isin(values, (-1, 1)).all():
            display = ", ".join(f"{v:g}" for v in values[:5]) + (", ..." if values.size > 5 else "")
            way_out = "Use 2 * y - 1." if np.isin(values, (0, 1)).all() else "Recode the two classes."
            raise ValueError(f"y must be -1 or 1 for {type(self).__name__}; got {display}. {way_out}")


class Hinge(_Margin):
    """Support vector machine, `2 max(0, 1 - y f)`, with the paper's factor 2; y is -1 or 1."""

    convex: ClassVar[bool] = True

    def rho(self, prediction, y):
        return 2 * jnp.maximum(0, 1 - y * prediction)


class Logistic(_Margin):
    """Logistic regression, `log(1 + exp(-y f))`; y is -1 or 1."""

    convex: ClassVar[bool] = True

    def rho(self, prediction, y):
        return jax.nn.softplus(-y * prediction)


class Linear(LinearLoss):
    """A linear loss from the user's own scalar function `fn(prediction, y)`."""

    finite: ClassVar[bool] = False
    fn: Callable[..., Any] = eqx.field(converter=static)

    def rho(self, prediction, y):
        return jnp.vectorize(self.fn)(prediction, y)


def _require_fraction(name: str, value: Float[Array, ""]) -> None:
    if value.ndim != 0 or not 0 < float(value) < 1:
        raise ValueError(f"{name} must be a number between 0 and 1, both excluded; got {value}.")
