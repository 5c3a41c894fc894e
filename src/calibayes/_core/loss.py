"""Base classes of losses, as the risk engine sees them.

A `LinearLoss` depends on the parameters through a linear prediction, which the risk engine evaluates by fast matrix
products. A `Generic` loss is any function of the parameters and one observation. A `CountsRisk` is not a sum of losses,
but a function of the parameters and of the counts of all observations.
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

    Subclass it and define `rho`. The class variables below state properties of `rho`. With their defaults no result is
    wrong: calibrations are slower, or an infinite loss is reported as an error.

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
            Slope of the linear part: `rho` is `nonlinear(prediction, y) + slope * (prediction - y)`. None if there is
            no linear part.
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


class CountsRisk(eqx.Module):
    """Base class of risks that are functions of the counts of the observations, and need not be sums over them.

    Subclass it and define `__call__`. An observation with count zero must contribute nothing, and the order of the
    observations must not matter.

    Attributes
    ----------
    convex : bool
        Whether the risk is convex and twice differentiable in the parameters. The value is only used if it is set by
        the class that defines `__call__`. Default: False.
    nuisance_on_host : bool
        Whether `nuisance` is called with NumPy arrays, for one replicate after the other. Default: False.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from calibayes.losses import CountsRisk
    >>> class LogMeanSquare(CountsRisk):
    ...     def __call__(self, theta, data, counts, nuisance=None):
    ...         mean = counts @ jnp.square(data - theta[0]) / counts.sum()
    ...         return 0.5 * counts.sum() * jnp.log(mean)
    >>> float(LogMeanSquare()(jnp.zeros(1), jnp.array([1.0, -1.0, 5.0]), jnp.array([1.0, 1.0, 0.0])))
    0.0
    """

    convex: ClassVar[bool] = False
    nuisance_on_host: ClassVar[bool] = False

    @abstractmethod
    def __call__(
        self, theta: Float[Array, " K"], data: PyTree[Array], counts: Float[Array, " N"], nuisance: PyTree[Array] = None
    ) -> Float[Array, ""]:
        """Return the risk.

        Parameters
        ----------
        theta : Array of shape (K,)
            Parameters.
        data : pytree of Array
            The value of `prepare`.
        counts : Array of shape (N,)
            Counts of the observations, not negative.
        nuisance : pytree
            The value of `nuisance` for these counts.

        Returns
        -------
        Array
            The risk, a scalar that grows in proportion to the counts.
        """

    def differentiable_risk(
        self, theta: Float[Array, " K"], data: PyTree[Array], counts: Float[Array, " N"], nuisance: PyTree[Array] = None
    ) -> Float[Array, ""]:
        """Return the risk in a form that is fast to differentiate. Default: `__call__`.

        Parameters
        ----------
        theta, data, counts, nuisance
            As for `__call__`.

        Returns
        -------
        Array
            The risk.
        """
        return self(theta, data, counts, nuisance)

    def check(self, data: PyTree[np.ndarray]) -> PyTree[np.ndarray]:
        """Raise an error for invalid data, and return the data in the form that `prepare` takes.

        Parameters
        ----------
        data : pytree of ndarray
            Arrays of numbers with the observations along the first axis.

        Returns
        -------
        pytree of ndarray
            The checked data.

        Raises
        ------
        ValueError
            If the data are invalid.
        """
        return data

    def check_weights(self, are_repetitions: bool) -> None:
        """Raise an error if observations cannot have weights of a kind.

        Parameters
        ----------
        are_repetitions : bool
            Whether the weights are integers, numbers of repetitions. Others are survey weights.

        Raises
        ------
        ValueError
            If the risk is not defined for them.
        """

    def check_counts(self, data: PyTree[np.ndarray], counts: Float[np.ndarray, "B N"]) -> None:
        """Raise an error if the risk is not defined for the counts of too many replicates.

        It is not called for counts that are drawn on demand instead of being stored.

        Parameters
        ----------
        data : pytree of ndarray
            The value of `check`.
        counts : ndarray of shape (B, N)
            Counts of the observations of each replicate.

        Raises
        ------
        ValueError
            If the counts are invalid.
        """

    def n_parameters(self, data: PyTree[np.ndarray]) -> int | None:  # noqa: ARG002
        """Return the number of parameters, if the data determine it.

        Parameters
        ----------
        data : pytree of ndarray
            The value of `check`.

        Returns
        -------
        int or None
            The number of parameters; None if it is not known.
        """
        return None

    def prepare(self, data: PyTree[np.ndarray]) -> PyTree[np.ndarray]:
        """Return the data in the form that `__call__` takes, computed once, on the host.

        Parameters
        ----------
        data : pytree of ndarray
            The value of `check`, with copies of the last observation appended whose counts are zero.

        Returns
        -------
        pytree of ndarray
            Arrays of any shapes. Counts keep the order of the observations in `data`.
        """
        return data

    def memory_per_particle(self, data: PyTree[Array], n_stored: int) -> int:  # noqa: ARG002
        """Return the size of the largest intermediate result, which determines how many particles are computed at once.

        Parameters
        ----------
        data : pytree of Array
            The value of `prepare`.
        n_stored : int
            Number of observations, padding included, which the base class returns.

        Returns
        -------
        int
            Number of elements for each particle.
        """
        return n_stored

    def nuisance(self, data: PyTree[Array], counts: Float[Array | np.ndarray, " N"]) -> PyTree[Array]:  # noqa: ARG002
        """Return the nuisance parameters of one replicate, a pytree of arrays. Default: None.

        Parameters
        ----------
        data : pytree of Array
            The value of `prepare`.
        counts : Array of shape (N,)
            Counts of the observations.

        Returns
        -------
        pytree of Array
            Nuisance parameters.
        """
        return None
