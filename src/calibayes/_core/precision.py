"""Check that floats resolve the posterior: differences of its parameters, and differences of their risks.

Single precision is the default. Where it does not resolve a posterior (parameters far from zero relative to their
spread, or a loss that is a small difference of large terms), `calibrate` repeats the calibration in double precision.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from calibayes._backend.functions import host_array
from calibayes._backend.jit import jit, light_jit
from calibayes._core.loss import LinearLoss
from calibayes._core.particles import Particles
from calibayes._core.target import Model, Target, make_target
from calibayes._core.weights import Weights


@dataclass(frozen=True)
class PrecisionConfig:
    """Largest rounding errors that are accepted."""

    max_risk_rounding: float = 0.1
    """Largest rounding error of eta times the risk. A posterior resolves differences of order one; an error of 0.1
    changes a density by 10%. Order-of-magnitude choice; it only decides which calls need double precision."""
    max_spacing: float = 0.05
    """Largest distance between neighbouring floats, in posterior standard deviations. Order-of-magnitude choice; it
    only decides which calls need double precision."""
    single_range: tuple[float, float] = (1e-15, 1e15)
    """Smallest and largest magnitude of data, parameters and losses that single precision is used for. Their squares,
    which covariances need, are then within its range of 1e-38 to 3e38. Median regressions in units of 1e-15 and 1e15
    have correct answers in single precision, and fail from 1e19."""
    n_draws: int = 32
    """Draws at which the risk of a user's loss is computed in double precision too: the standard deviation of its
    rounding error is then known to 13%."""
    max_observations: int = 2**14
    """Largest number of observations of this comparison. Of more, a part is used, and the error scaled up."""


CONFIG = PrecisionConfig()


class PrecisionError(ValueError):
    """The float type is too coarse for the posterior."""


def double_precision(enabled: bool) -> AbstractContextManager[None]:
    """Return a context in which JAX computes in double precision; with False, in that of the user's configuration."""
    return jax.enable_x64(True if enabled else jax.config.values["jax_enable_x64"])


def is_double() -> bool:
    """Return whether JAX computes in double precision."""
    return jax.dtypes.canonicalize_dtype(float) == np.float64


class PrecisionCheck:
    """Check of a calibration's float type.

    Parameters
    ----------
    model : Model
        Loss and prior.
    data : pytree of ndarray
        Validated data in double precision.
    weights : Weights or None
        Weights of the observations. Default: None, all one.
    """

    def __init__(self, model: Model, data: Any, weights: Weights | None = None):
        self._model = model
        self._data = data
        self._weights = weights
        self._rounding = 0.0

    def check_range(self, target: Target) -> None:
        """Check, before anything is sampled, that squares of data, parameters and losses are within the float range.

        Raises
        ------
        PrecisionError
            If they are not. Never in double precision, which represents the squares of all data in single precision.
        """
        if is_double():
            return
        low, high = CONFIG.single_range
        for name, size in self._magnitudes(target).items():
            if size and not low <= size <= high:
                raise PrecisionError(
                    f"{name} of order {size:.0e} are too {'large' if size > high else 'small'} for {_float_name()}, "
                    "which cannot represent their squares: use other units."
                )

    def _magnitudes(self, target: Target) -> dict[str, float]:
        """Return the largest absolute values of data, parameters and losses, and the scales of the prior, by name."""
        # On several devices no process holds all losses.
        losses = {} if target.mesh is not None else {"losses": float(np.abs(np.asarray(target.reference_loss)).max())}
        scale = getattr(target.prior, "scale", None)
        if isinstance(scale, jax.Array):
            # Densities divide by its square.
            losses |= {
                "scales of the prior": float(scale.max()),
                "the smallest scales of the prior": float(scale.min()),
            }
        if not isinstance(target.loss, LinearLoss):
            leaves = [leaf for leaf in jax.tree.leaves(self._data) if leaf.dtype.kind == "f"]
            return {"data": max((float(np.abs(leaf).max()) for leaf in leaves), default=0.0), **losses}
        x, y = self._data
        columns, response = np.abs(x).max(0), float(np.abs(y).max())
        named = {f"values of column {k} of X": float(size) for k, size in enumerate(columns)}
        if target.loss.location:
            named |= {f"values of parameter {k}": response / float(size) for k, size in enumerate(columns) if size}
        return {"values of y": response, **named, **losses}

    def check_initial(self, target: Target, particles: Particles, eta: float) -> None:
        """Check the initial draws on the data.

        Parameters
        ----------
        target : Target
            Target with its reference inside the posterior.
        particles : Particles
            Draws of the posterior on the data.
        eta : float
            Their learning rate.

        Raises
        ------
        PrecisionError
            If the parameters or the risks cannot be resolved.
        """
        theta = self.check_parameters(target, particles, eta)
        self._rounding = float(_rounding_error(target))
        if not (isinstance(target.loss, LinearLoss) or target.mesh is not None or is_double()):
            self._rounding = max(self._rounding, self._compare_with_double(target, theta))
        self.check_risk(eta)

    def check_risk(self, eta: float) -> None:
        """Check the rounding of `eta * risk` at a learning rate, after `check_initial`.

        Raises
        ------
        PrecisionError
            If it is too large.
        """
        rounding = eta * self._rounding
        if rounding > CONFIG.max_risk_rounding:
            remedy = "subtract from the loss the part that does not depend on theta."
            if isinstance(self._model.loss, LinearLoss) and self._model.loss.location:
                remedy = (
                    "the prior keeps the parameters far from a fit of the data, or X determines most values of y. "
                    "Check both."
                )
            raise PrecisionError(
                f"the risk is so large, even at the posterior mean, that {_float_name()} rounds eta * risk to "
                f"{rounding:.1g} at eta = {eta:.3g}: {remedy}"
            )

    def check_parameters(self, target: Target, particles: Particles, eta: float) -> Float[np.ndarray, "K M"]:
        """Check that floats resolve the parameters at a learning rate.

        Parameters
        ----------
        target : Target
            Posteriors of all replicates: model, data and counts.
        particles : Particles
            Draws of the posterior on the data.
        eta : float
            Their learning rate.

        Returns
        -------
        ndarray of shape (K, M)
            The parameters.

        Raises
        ------
        PrecisionError
            If the distance between neighbouring floats is too large a share of a posterior standard deviation.
        """
        theta = np.asarray(target.constrained(particles).theta).reshape(target.dim, -1)
        largest, mean, sd = np.abs(theta).max(1), theta.mean(1, dtype=np.float64), theta.std(1, dtype=np.float64)
        coarse = np.spacing(largest) > CONFIG.max_spacing * sd
        if coarse.any():
            k = int(np.argmax(coarse))
            location = isinstance(self._model.loss, LinearLoss) and self._model.loss.location
            remedy = ", and check that X does not determine most values of y" if location and is_double() else ""
            raise PrecisionError(
                f"parameter {k} is near {mean[k]:.3g} and its posterior at eta = {eta:.3g}, with standard deviation "
                f"{sd[k]:.2g}, is too narrow for {_float_name()}. Centre y and the columns of X{remedy}."
            )
        return theta

    def _compare_with_double(self, target: Target, theta: Float[np.ndarray, "K M"]) -> float:
        """Return the standard deviation over draws of the rounding error of the risk on the data."""
        n, size = int(target.counts.n), theta.shape[1]
        every = -(-n // CONFIG.max_observations)
        part = jax.tree.map(lambda leaf: leaf[::every], self._data)
        weights = self._weights and self._weights._replace(values=self._weights.values[::every])
        draws = theta[:, :: max(1, size // CONFIG.n_draws)][:, None, : CONFIG.n_draws].astype(np.float64)
        risks = []
        for enabled in (False, True):
            with double_precision(enabled):
                counts = np.ones((1, -(-n // every)))
                exact = make_target(self._model, part, counts, target.dim, weights=weights)
                exact = exact.recentre(host_array(target.reference))
                risks.append(np.asarray(_risk_on_data(exact, host_array(draws)), np.float64))
        error = risks[0] - risks[1]
        return float(every * np.std(error[np.isfinite(error)])) if np.isfinite(error).any() else 0.0


@jit
def _risk_on_data(target: Target, theta: Float[Array | np.ndarray, "K 1 M"]) -> Float[Array, "1 M"]:
    return target.select(jnp.zeros(1, int)).risk(jnp.asarray(theta))


@light_jit
def _rounding_error(target: Target) -> Float[Array, ""]:
    """Bound the rounding error of a sum over blocks, each rounded by at most half the distance to the next float."""
    losses, n = target.reference_loss, target.counts.n
    if target.weights is not None:
        losses = losses * target.weights.values
    is_observation = jnp.arange(losses.size, dtype=n.dtype).reshape(losses.shape) < n
    block_sums = jnp.abs(jnp.where(is_observation, losses, 0.0).sum(1))
    return jnp.sqrt(jnp.square(jnp.nextafter(block_sums, jnp.inf) - block_sums).sum())


def _float_name() -> str:
    return np.dtype(jax.dtypes.canonicalize_dtype(float)).name
