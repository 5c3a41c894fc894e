r"""Losses that define a generalized posterior.

The generalized posterior with learning rate $\eta$ is proportional to $\exp\{-\eta \sum_i r_i(\theta)\}\, p(\theta)$
(Tanaka 2024, section 1). A *loss of a linear prediction* (`LinearLoss`) is $r_i(\theta) = \rho(x_i^\top\theta, y_i)$
for a scalar function $\rho$, and is evaluated by fast matrix products. Any other function of `(theta, datum)` is a
`Generic` loss. A `CountsRisk` is not a sum of losses.

Numerical parameters of a loss of a linear prediction, such as `tau`, are leaves of its pytree: a new value does not
recompile anything.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from calibayes._backend.arguments import parameters, scalar
from calibayes._backend.functions import Numbers, static
from calibayes._core.loss import CountsRisk, Generic, LinearLoss
from calibayes.losses.cox import Cox
from calibayes.losses.discrepancy import MMD
from calibayes.losses.function import FunctionRisk
from calibayes.losses.moments import GMM
from calibayes.losses.pairs import Composite
from calibayes.losses.ranking import AUC
from calibayes.losses.tail import FisslerZiegel

__all__ = [
    "AUC",
    "GMM",
    "MMD",
    "Absolute",
    "Composite",
    "CountsRisk",
    "Cox",
    "Expectile",
    "FisslerZiegel",
    "FunctionRisk",
    "Generic",
    "Hinge",
    "Huber",
    "Linear",
    "LinearLoss",
    "Logistic",
    "Poisson",
    "Quantile",
    "Squared",
    "from_name",
    "names",
]


class _LocationLoss(LinearLoss):
    location: ClassVar[bool] = True


class Quantile(_LocationLoss):
    r"""Check loss, whose expectation is minimised by a conditional quantile.

    Parameters
    ----------
    tau : float
        Quantile level, between 0 and 1.

    Notes
    -----
    With the residual $u = y - x^\top\theta$ the loss is $\rho_\tau(u) = \max\{\tau u, (\tau - 1) u\}$ (Tanaka
    2024, section 3.1). `Quantile(0.5)` is half the absolute error.

    Examples
    --------
    >>> import calibayes as cb
    >>> loss = cb.losses.Quantile(0.25)
    >>> float(loss.rho(1.0, 3.0)), float(loss.rho(3.0, 1.0))
    (0.5, 1.5)
    """

    convex: ClassVar[bool] = True
    tau: Float[Array, ""]

    def __init__(self, tau: Numbers):
        self.tau = parameters("tau", tau)
        _require_fraction("tau", self.tau)

    def rho(self, prediction, y):
        residual = y - prediction
        return jnp.maximum(self.tau * residual, (self.tau - 1) * residual)

    def decompose(self):
        if type(self).rho is not Quantile.rho:
            return super().decompose()
        return (lambda prediction, y: 0.5 * jnp.abs(prediction - y)), 0.5 - self.tau


class Absolute(_LocationLoss):
    r"""Absolute error $|y - x^\top\theta|$, whose expectation is minimised by the conditional median.

    Notes
    -----
    The loss is twice `Quantile(0.5)`, so that its calibrated learning rate is half as large.

    Examples
    --------
    >>> import calibayes as cb
    >>> float(cb.losses.Absolute().rho(1.0, 3.0))
    2.0
    """

    convex: ClassVar[bool] = True

    def rho(self, prediction, y):
        return jnp.abs(prediction - y)


class Squared(_LocationLoss):
    r"""Half the squared error, whose expectation is minimised by the conditional mean.

    Notes
    -----
    The loss is $\tfrac12 (y - x^\top\theta)^2$. At $\eta = 1$ the posterior is that of a Gaussian likelihood with unit
    variance.

    Examples
    --------
    >>> import calibayes as cb
    >>> float(cb.losses.Squared().rho(1.0, 4.0))
    4.5
    """

    convex: ClassVar[bool] = True

    def rho(self, prediction, y):
        return 0.5 * jnp.square(prediction - y)


class Huber(_LocationLoss):
    r"""Huber's loss: half the squared error of small residuals, linear in large ones.

    Parameters
    ----------
    delta : float
        Residual size beyond which the loss is linear, in units of `y`. Default: 1.345, which has 95% efficiency at
        normal errors of unit variance.

    Notes
    -----
    With the residual $u = y - x^\top\theta$ the loss is $\tfrac12 u^2$ if $|u| \le \delta$ and
    $\delta |u| - \tfrac12 \delta^2$ otherwise.

    References
    ----------
    Huber (1964), Robust estimation of a location parameter, Annals of Mathematical Statistics 35.

    Examples
    --------
    >>> import calibayes as cb
    >>> loss = cb.losses.Huber(2.0)
    >>> float(loss.rho(0.0, 1.0)), float(loss.rho(0.0, 5.0))
    (0.5, 8.0)
    """

    convex: ClassVar[bool] = True
    delta: Float[Array, ""]

    def __init__(self, delta: Numbers = 1.345):
        self.delta = scalar("delta", delta)

    def rho(self, prediction, y):
        size = jnp.abs(prediction - y)
        inner = jnp.minimum(size, self.delta)
        return inner * (size - 0.5 * inner)


class Expectile(_LocationLoss):
    r"""Asymmetric squared error, whose expectation is minimised by a conditional expectile.

    Parameters
    ----------
    tau : float
        Expectile level, between 0 and 1. `Expectile(0.5)` is `Squared()`.

    Notes
    -----
    With the residual $u = y - x^\top\theta$ the loss is $\tau u^2$ if $u \ge 0$ and $(1 - \tau) u^2$ otherwise.

    References
    ----------
    Newey and Powell (1987), Asymmetric least squares estimation and testing, Econometrica 55.

    Examples
    --------
    >>> import calibayes as cb
    >>> loss = cb.losses.Expectile(0.25)
    >>> float(loss.rho(1.0, 3.0)), float(loss.rho(3.0, 1.0))
    (1.0, 3.0)
    """

    convex: ClassVar[bool] = True
    tau: Float[Array, ""]

    def __init__(self, tau: Numbers):
        self.tau = parameters("tau", tau)
        _require_fraction("tau", self.tau)

    def rho(self, prediction, y):
        excess = prediction - y
        return jnp.where(excess > 0, 1 - self.tau, self.tau) * jnp.square(excess)


class _MarginLoss(LinearLoss):
    margin: ClassVar[bool] = True

    def check(self, y):
        values = np.unique(y)
        if not np.isin(values, (-1, 1)).all():
            listed = ", ".join(f"{v:g}" for v in values[:5]) + (", ..." if values.size > 5 else "")
            hint = "Use 2 * y - 1." if np.isin(values, (0, 1)).all() else "Recode the two classes."
            raise ValueError(f"y must be -1 or 1 for {type(self).__name__}; got {listed}. {hint}")


class Hinge(_MarginLoss):
    r"""Hinge loss of a support vector machine.

    Notes
    -----
    For a label $y$ of -1 or 1 the loss is $2 \max(0, 1 - y\, x^\top\theta)$, with the factor 2 of Tanaka (2024,
    section 3.2).

    Examples
    --------
    >>> import calibayes as cb
    >>> loss = cb.losses.Hinge()
    >>> float(loss.rho(0.5, 1.0)), float(loss.rho(0.5, -1.0))
    (1.0, 3.0)
    """

    convex: ClassVar[bool] = True

    def rho(self, prediction, y):
        return 2 * jnp.maximum(0, 1 - y * prediction)


class Logistic(_MarginLoss):
    r"""Logistic loss, the negative log-likelihood of logistic regression.

    Notes
    -----
    For a label $y$ of -1 or 1 the loss is $\log\{1 + \exp(-y\, x^\top\theta)\}$.

    Examples
    --------
    >>> import calibayes as cb
    >>> round(float(cb.losses.Logistic().rho(0.0, 1.0)), 4)
    0.6931
    """

    convex: ClassVar[bool] = True

    def rho(self, prediction, y):
        return _softplus(-y * prediction)


class Poisson(LinearLoss):
    r"""Negative log-likelihood of Poisson regression with a logarithmic link, up to a constant.

    Notes
    -----
    For a response $y \ge 0$ the loss is $\exp(x^\top\theta) - y\, x^\top\theta$. Its expectation is minimised by the
    logarithm of a conditional mean, also if the responses do not have a Poisson distribution.

    Examples
    --------
    >>> import calibayes as cb
    >>> float(cb.losses.Poisson().rho(0.0, 3.0))
    1.0
    """

    convex: ClassVar[bool] = True
    finite: ClassVar[bool] = False
    log_link: ClassVar[bool] = True

    def rho(self, prediction, y):
        return jnp.exp(prediction) - y * prediction

    def check(self, y):
        if y.min() < 0:
            raise ValueError(f"y must not be negative for {type(self).__name__}; the smallest is {y.min():g}.")
        if y.max() == 0:
            raise ValueError(f"y is zero for all observations, for which {type(self).__name__} has no minimum.")


class Linear(LinearLoss):
    """Loss of a linear prediction, given by a scalar function of the prediction and the response.

    Parameters
    ----------
    fn : callable
        Function `fn(prediction, y) -> scalar`, written with `jax.numpy`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import calibayes as cb
    >>> loss = cb.losses.Linear(lambda prediction, y: jnp.abs(y - prediction) ** 1.5)
    >>> float(loss.rho(1.0, 5.0))
    8.0
    """

    finite: ClassVar[bool] = False
    fn: Callable[..., Any] = eqx.field(converter=static)

    def rho(self, prediction, y):
        return jnp.vectorize(self.fn)(prediction, y)


_NAMED: dict[str, Callable[..., LinearLoss]] = {
    "quantile": Quantile,
    "absolute": Absolute,
    "squared": Squared,
    "huber": Huber,
    "expectile": Expectile,
    "hinge": Hinge,
    "logistic": Logistic,
    "poisson": Poisson,
}


def names() -> tuple[str, ...]:
    """Return the names of losses that `from_name` accepts.

    Returns
    -------
    tuple of str

    Examples
    --------
    >>> import calibayes as cb
    >>> cb.losses.names()[:3]
    ('quantile', 'absolute', 'squared')
    """
    return tuple(_NAMED)


def from_name(name: object, *, tau: Numbers | None = None, delta: Numbers | None = None) -> LinearLoss:
    """Return the loss with a given name.

    Parameters
    ----------
    name : str
        One of `names()`.
    tau : float, optional
        Level of a quantile or expectile. Default: 0.5.
    delta : float, optional
        Residual size beyond which Huber's loss is linear. Default: 1.345.

    Returns
    -------
    LinearLoss

    Raises
    ------
    ValueError
        If there is no loss of this name, or it does not have the parameter that is given.

    Examples
    --------
    >>> import calibayes as cb
    >>> round(float(cb.losses.from_name("quantile", tau=0.9).tau), 3)
    0.9
    """
    if not isinstance(name, str) or name not in _NAMED:
        hint = "calibayes.losses.Linear(fn) makes a loss of a function" if callable(name) else f"got {name!r}"
        raise ValueError(f"loss must be one of {', '.join(_NAMED)}, or an object of calibayes.losses; {hint}.")
    if tau is not None and name not in ("quantile", "expectile"):
        raise ValueError(f"tau is for the losses quantile and expectile; the loss is {name}.")
    if delta is not None and name != "huber":
        raise ValueError(f"delta is for the loss huber; the loss is {name}.")
    if name in ("quantile", "expectile"):
        return _NAMED[name](0.5 if tau is None else tau)
    return _NAMED[name]() if delta is None else _NAMED[name](delta)


def _softplus(value: Any) -> Array:
    """Return log(1 + exp(value)) to the accuracy of the float type.

    With e = exp(-|value|) and s = e / (2 + e), which is at most 1/3, log(1 + e) is 2 atanh(s), whose power series takes
    a third of the time of the logarithm that XLA computes on a CPU.
    """
    value = jnp.asarray(value, jnp.result_type(float, value))
    e = jnp.exp(-jnp.abs(value))
    s = e / (2 + e)
    square, n_terms = s * s, 7 if value.dtype == jnp.float32 else 17
    series = jnp.full_like(s, 1 / (2 * n_terms - 1))
    for k in range(n_terms - 2, -1, -1):
        series = series * square + 1 / (2 * k + 1)
    return jnp.maximum(value, 0) + 2 * s * series


def _require_fraction(name: str, value: Float[Array, ""]) -> None:
    if value.ndim != 0 or not 0 < float(value) < 1:
        raise ValueError(f"{name} must be a number between 0 and 1, both excluded; got {value}.")
