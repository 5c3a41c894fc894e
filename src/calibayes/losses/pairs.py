"""Pairwise composite likelihood: minus the log-densities of pairs of observations, such as of neighbours in space."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from calibayes._backend.arguments import display, positive
from calibayes._backend.functions import static
from calibayes._core.loss import CountsRisk

_AT_ONCE = 2**22
"""Distances that are computed at the same time, 32 MiB; it does not change results."""


class _Pairs(NamedTuple):
    """Observations and the indices of pairs of them."""

    observations: PyTree[Array | np.ndarray]
    first: Int[Array | np.ndarray, " P"]
    second: Int[Array | np.ndarray, " P"]


class Composite(CountsRisk):
    r"""Negative pairwise composite log-likelihood.

    Parameters
    ----------
    log_density : callable
        Function `log_density(theta, first, second) -> scalar`, the logarithm of the joint density of two observations,
        written with `jax.numpy`.
    max_distance : float
        Largest distance between the coordinates of two observations that are a pair.

    Notes
    -----
    Data are `(coordinates, ...)`: coordinates of shape (N,) or (N, P), followed by the other arrays. An observation is
    the tuple of its rows. With counts c the risk is

    $$ -\sum_{i < j} \frac{2 c_i c_j}{c_i + c_j} \log f(z_i, z_j; \theta) $$

    over all pairs that are near enough: a pair counts as often as its observations if these have equal counts, as in a
    block or cluster that was drawn, and not at all if one of them was not drawn. Observations are dependent, so that
    the bootstrap must draw blocks of neighbouring observations, large compared with the range of the dependence:
    `bootstrap.Cluster` with blocks as clusters. The composite likelihood is no likelihood, because an observation is in
    many pairs; the calibrated eta corrects for this.

    References
    ----------
    Varin, Reid and Firth (2011), An overview of composite likelihood methods, Statistica Sinica 21, 5-42.
    Ribatet, Cooley and Davison (2012), Bayesian inference from composite likelihoods, with an application to spatial
    extremes, Statistica Sinica 22, 813-845.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import calibayes as cb
    >>> def log_density(theta, first, second):  # of two standard normal variables
    ...     (s, y), (t, z) = first, second
    ...     r = jnp.exp(-jnp.abs(s - t) / jnp.exp(theta[0]))
    ...     return -0.5 * jnp.log1p(-(r**2)) - 0.5 * (y**2 - 2 * r * y * z + z**2) / (1 - r**2)
    >>> model = cb.GibbsModel(cb.losses.Composite(log_density, 2.0), cb.priors.Normal(scale=2.0), dim=1)
    """

    log_density: Callable[..., Any] = eqx.field(converter=static)
    max_distance: float = eqx.field(static=True)

    def __init__(self, log_density: object, max_distance: float):
        if not callable(log_density):
            raise TypeError(f"log_density must be a function (theta, first, second); got {display(log_density)}.")
        self.log_density, self.max_distance = log_density, positive("max_distance", max_distance)

    def check(self, data):
        if not isinstance(data, tuple | list):
            raise TypeError("data must be (coordinates, ...) for Composite.")
        if not len(_near(np.asarray(data[0], np.float64), self.max_distance)[0]):
            raise ValueError(f"no two observations are within max_distance = {self.max_distance:g} of each other.")
        return tuple(data)

    def prepare(self, data):
        return _Pairs(data, *_near(np.asarray(data[0], np.float64), self.max_distance))

    def memory_per_particle(self, data, n_stored):
        return max(n_stored, len(data.first))

    def __call__(self, theta, data, counts, nuisance=None):  # noqa: ARG002
        a, b = counts[data.first], counts[data.second]
        both = (a > 0) & (b > 0)
        # A pair of copies of the last observation, which are padding, may have an infinite density. Pairs that do not
        # count are replaced by one that does, because the derivative of an infinite density times zero is NaN.
        of_pairs = jnp.asarray(data.first), jnp.asarray(data.second)
        pairs = [_take(data.observations, jnp.where(both, rows, rows[jnp.argmax(both)])) for rows in of_pairs]
        values = jax.vmap(self.log_density, (None, 0, 0))(theta, *pairs)
        # Harmonic means.
        weights = jnp.where(both, 2 * a * b / jnp.where(both, a + b, 1.0), 0.0)
        return -(weights * jnp.where(both, values, 0.0)).sum()


def _take(observations: PyTree[Array], rows: Int[Array, " P"]) -> PyTree[Array]:
    return jax.tree.map(lambda leaf: leaf[rows], observations)


def _near(coordinates: np.ndarray, max_distance: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of all pairs of different observations within a distance."""
    points = coordinates.reshape(len(coordinates), -1)
    n = len(points)
    size = max(1, _AT_ONCE // (n * points.shape[1]))
    firsts, seconds = [], []
    for start in range(0, n, size):
        squares = np.square(points[start : start + size, None] - points[None]).sum(-1)
        first, second = np.nonzero(squares <= max_distance**2)
        kept = first + start < second
        firsts.append(first[kept] + start)
        seconds.append(second[kept])
    return np.concatenate(firsts), np.concatenate(seconds)
