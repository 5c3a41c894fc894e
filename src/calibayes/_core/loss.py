"""Base classes of losses, as the risk engine sees them.

A `LinearLoss` depends on the parameters through a linear prediction, which the risk engine evaluates by fast matrix
products. A `Generic` loss is any function of the parameters and one observation.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, PyTree

from calibayes._backend.functions import static


class LinearLoss(eqx.Module):
    r"""Base class of losses $\rho(x^\top\theta, y)$ of a linear prediction.

    Subclass it and define `rho`. The class variables below state properties of `rho`; the defaults are always safe.

    Attributes
    ----------
    location : bool
        Whether `rho` depends on `y - prediction` alone, so that `y` can be centred. Default: False.
    margin : bool
        Whether `y` is a label, -1 or 1. Default: False.
    log_link : bool
        Whether the prediction is the logarithm of a mean of y. Default: False.
    finite : bool
        Whether `rho` is finite at every finite prediction. Default: True.
    convex : bool
        Whether `rho` is convex in the prediction. Together with a log-concave prior it makes the posterior unimodal.
        The value is only used if it is set by the class that defines `rho`. Default: False.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from calibayes.losses import LinearLoss
    >>> class LogCosh(LinearLoss):
    ...     location = True
    ...     convex = True
    ...     def rho(self, prediction, y):
    ...         return jnp.log(jnp.cosh(prediction - y))
    >>> round(float(LogCosh().rho(1.0, 3.0)), 4)
    1.325
    """

    location: ClassVar[bool] = False
    margin: ClassVar[bool] = False
    log_link: ClassVar[bool] = False
    finite: ClassVar[bool] = True
    convex: ClassVar[bool] = False

    @abstractmethod
    def rho(self, prediction: Float[Array, "..."], y: Float[Array, ""]) -> Float[Array, "..."]:
        """Return the loss of each prediction for one observation.

        Parameters
        ----------
        prediction : Array
            Linear predictions, of any shape.
        y : Array
            Response of the observation, a scalar.

        Returns
        -------
        Array
            Losses, of the shape of `prediction`.
        """

    def decompose(self) -> tuple[Callable[..., Array], Float[Array, ""] | None]:
        """Split the loss into a nonlinear and a linear part.

        The linear part is summed over observations once, before it is applied to particles. Override this method if
        the nonlinear part takes fewer operations than `rho`.

        Returns
        -------
        nonlinear : callable
            Function of `(prediction, y)`.
        slope : Array or None
            Slope such that `rho` is `nonlinear(prediction, y) + slope * (prediction - y)`. None if there is no linear
            part.
        """
        return self.rho, None

    def check(self, y: np.ndarray) -> None:
        """Raise an error if `y` is not a valid response for this loss.

        Parameters
        ----------
        y : ndarray of shape (N,)
            Responses.

        Raises
        ------
        ValueError
            If a response is invalid.
        """


class Generic(eqx.Module):
    """Loss given by a function of the parameters and one observation.

    `GibbsModel` wraps a function in this class; it is rarely needed directly.

    Parameters
    ----------
    fn : callable
        Function `fn(theta, datum) -> scalar` of a parameter vector of shape (K,) and one observation.
    sign : int
        1 if `fn` is a loss, -1 if it is a log-likelihood, whose negative is the loss. Default: 1.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from calibayes.losses import Generic
    >>> loss = Generic(lambda theta, datum: (datum - theta[0]) ** 2)
    >>> float(loss(jnp.array([1.0]), jnp.array(3.0)))
    4.0
    """

    fn: Callable[..., Any] = eqx.field(converter=static)
    sign: int = eqx.field(static=True, default=1)

    def __call__(self, theta: Float[Array, " K"], datum: PyTree[Array]) -> Float[Array, ""]:
        return self.sign * self.fn(theta, datum)
