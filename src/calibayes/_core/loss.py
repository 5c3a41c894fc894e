"""Abstract losses that the risk engine knows: a loss of a linear prediction, and any function of one observation."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, PyTree

from calibayes._backend.functions import static


class LinearLoss(eqx.Module):
    """A loss `rho(prediction, y)` of a linear prediction `x @ theta`."""

    location: ClassVar[bool] = False
    """Whether rho depends on `y - prediction` alone, so that data can be centred."""
    margin: ClassVar[bool] = False
    """Whether y is a label, -1 or 1."""
    finite: ClassVar[bool] = True
    """Whether rho is finite wherever the prediction is."""
    convex: ClassVar[bool] = False
    """Whether rho is convex in the prediction. Said by the class that defines rho, of this rho alone."""

    @abstractmethod
    def rho(self, prediction: Float[Array, "..."], y: Float[Array, ""]) -> Float[Array, "..."]:
        """The loss at every prediction for one observation's y."""

    def parts(self) -> tuple[Callable[..., Array], Float[Array, ""] | None]:
        """A function `bent(prediction, y)` and a number `tilt`, which give rho as `bent + tilt * (prediction - y)`.

        Where bent takes fewer operations than rho; what is linear can be summed over observations before it meets a
        particle. No tilt, if there is nothing to gain.
        """
        return self.rho, None

    def check(self, y: np.ndarray) -> None:
        """Raise if `y` is nothing this loss can be asked about."""


class Generic(eqx.Module):
    """Any loss `fn(theta, datum) -> scalar` of one observation."""

    fn: Callable[..., Any] = eqx.field(converter=static)
    sign: int = eqx.field(static=True, default=1)
    """-1 where `fn` is a log-likelihood, whose negative is the loss."""

    def __call__(self, theta: Float[Array, " K"], datum: PyTree[Array]) -> Float[Array, ""]:
        return self.sign * self.fn(theta, datum)
