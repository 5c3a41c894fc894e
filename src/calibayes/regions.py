r"""Credible regions.

A region is a family of credible sets, nested in the credible level. It is implemented by the *critical level* of a
point: the smallest level at which the set of a replicate contains the point. Coverage at any level is the share of
replicates whose critical level is at most that level, so that one array of critical levels gives the coverage at all
levels.

The choice of the region affects eta. `Box` is the product of the K marginal intervals, each at the requested level, so
that its joint posterior mass is below that level; `Simultaneous` is the box widened until its mass is the level.

*Ties.* Particles on the boundary of a marginal interval count half. The critical level of a highest-density set is the
mass of strictly higher density, so that a set contains a plateau of the density completely or not at all: for a
piecewise constant density (a 0-1 loss with a flat prior) the mass of the sets exceeds their level.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from calibayes._backend.arguments import display, integer, parameters
from calibayes._backend.functions import Numbers, static
from calibayes._backend.jit import light_jit
from calibayes._backend.linalg import inverse_factor
from calibayes._core.particles import Particles, mean_and_covariance, quantile, share_below, transform
from calibayes._core.target import Target, log_density

__all__ = [
    "HPD",
    "Box",
    "Ellipsoid",
    "Functional",
    "Interval",
    "Linear",
    "Point",
    "Region",
    "ReplicateParticles",
    "Simultaneous",
    "UnavailableRegion",
]


class ReplicateParticles(eqx.Module):
    """Weighted particles of the posterior on every replicate, the input of a region.

    Attributes
    ----------
    theta : Array of shape (K, B, M)
        Parameters of M particles on each of B replicates.
    weights : Array of shape (B, M)
        Weights, which sum to one over the particles of a replicate.
    log_density : Array of shape (B, M)
        Posterior log-density of the particles, up to a constant per replicate.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from calibayes.regions import ReplicateParticles
    >>> theta = jnp.array([[[-1.0, 0.0, 1.0, 2.0]]])
    >>> particles = ReplicateParticles(theta, weights=jnp.full((1, 4), 0.25), log_density=-0.5 * theta[0] ** 2)
    >>> particles.theta.shape
    (1, 1, 4)
    """

    theta: Float[Array, "K B M"]
    weights: Float[Array, "B M"]
    log_density: Float[Array, "B M"]


class Point(eqx.Module):
    """Point estimate that the credible sets should cover.

    Attributes
    ----------
    theta : Array of shape (K,)
        Parameters of the point, the same on all replicates.
    log_density : Array of shape (B,)
        Posterior log-density of the point on each replicate, up to the same constants as in `ReplicateParticles`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from calibayes.regions import Point
    >>> point = Point(jnp.array([0.5]), log_density=jnp.array([-0.125]))
    """

    theta: Float[Array, " K"]
    log_density: Float[Array, " B"]


class Region(eqx.Module):
    """Base class of credible regions.

    Subclass it and define `critical_level`.

    Attributes
    ----------
    name : str
        Name of the region in summaries and files. Default: the name of the class.

    Examples
    --------
    A one-sided region: all values of one parameter below an upper posterior quantile.

    >>> import equinox as eqx
    >>> import jax.numpy as jnp
    >>> from calibayes.regions import ReplicateParticles, Point, Region
    >>> class UpperBound(Region):
    ...     index: int = eqx.field(static=True)
    ...     def critical_level(self, particles, point):
    ...         below = particles.theta[self.index] < point.theta[self.index]
    ...         return jnp.where(below, particles.weights, 0.0).sum(-1)
    >>> particles = ReplicateParticles(jnp.array([[[-1.0, 0.0, 1.0, 2.0]]]), jnp.full((1, 4), 0.25), jnp.zeros((1, 4)))
    >>> UpperBound(0).critical_level(particles, Point(jnp.array([1.5]), jnp.zeros(1))).tolist()
    [0.75]
    """

    def check(self, dim: int) -> None:
        """Raise an error if the region is not defined for `dim` parameters.

        Parameters
        ----------
        dim : int
            Number of parameters, K.

        Raises
        ------
        ValueError
            If the region does not fit the number of parameters.
        """

    @property
    def name(self) -> str:
        """Name of the region in summaries and files."""
        return type(self).__name__

    def direction(self, dim: int) -> Float[np.ndarray, " K"] | None:  # noqa: ARG002
        """Return the linear combination of the parameters whose interval the region is.

        Parameters
        ----------
        dim : int
            Number of parameters, K.

        Returns
        -------
        ndarray of shape (K,) or None
            Coefficients. Default: None, the region is not such an interval.
        """
        return None

    def values(self, theta: Float[np.ndarray, "K D"]) -> Float[np.ndarray, " D"] | None:
        """Return the values of the function of the parameters whose interval the region is.

        Parameters
        ----------
        theta : ndarray of shape (K, D)
            Draws of the parameters.

        Returns
        -------
        ndarray of shape (D,) or None
            Default: the linear combination `direction`; None if there is none.
        """
        direction = self.direction(len(theta))
        return None if direction is None else direction @ theta

    @abstractmethod
    def critical_level(self, particles: ReplicateParticles, point: Point) -> Float[Array, " B"]:
        """Return the smallest level at which the set of each replicate contains the point.

        Parameters
        ----------
        particles : ReplicateParticles
            Weighted particles on all replicates.
        point : Point
            Point to be covered.

        Returns
        -------
        Array of shape (B,)
            Critical level of each replicate, between 0 and 1. NaN counts as not covered.
        """


class HPD(Region):
    r"""Highest-posterior-density region, `region="hpd"`.

    Notes
    -----
    The set at a level contains the points whose posterior density exceeds a threshold. The critical level of a point
    $\theta^*$ is the posterior mass of $\{\theta : p(\theta) > p(\theta^*)\}$.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from calibayes.regions import HPD, ReplicateParticles, Point
    >>> theta = jnp.array([[[-1.0, 0.0, 1.0, 2.0]]])
    >>> particles = ReplicateParticles(theta, jnp.full((1, 4), 0.25), -0.5 * theta[0] ** 2)
    >>> HPD().critical_level(particles, Point(jnp.array([1.5]), jnp.array([-1.125]))).tolist()
    [0.75]
    """

    def critical_level(self, particles, point):
        denser = particles.log_density > point.log_density[:, None]
        return jnp.where(denser, particles.weights, 0.0).sum(-1)


class Ellipsoid(Region):
    """Points within a Mahalanobis distance of the posterior mean, `region="ellipsoid"`.

    Notes
    -----
    The mass of an ellipsoid is overestimated by about K / M if the same M particles determine its shape and its mass.
    Therefore the distance of each particle is that from the mean and covariance of the others. Leaving out a particle
    of weight w and squared distance q changes the latter to q / (1 - w - w q).

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> from calibayes.regions import ReplicateParticles, Ellipsoid, Point
    >>> theta = jax.random.normal(jax.random.key(0), (2, 1, 4000))
    >>> particles = ReplicateParticles(theta, jnp.full((1, 4000), 1 / 4000), jnp.zeros((1, 4000)))
    >>> level = Ellipsoid().critical_level(particles, Point(jnp.array([2.0, 0.0]), jnp.zeros(1)))
    >>> bool(abs(level[0] - (1 - jnp.exp(-2.0))) < 0.03)  # chi-squared with 2 degrees of freedom
    True
    """

    def critical_level(self, particles, point):
        weights = particles.weights
        centre, spread = mean_and_covariance(particles.theta, weights)
        whiten = inverse_factor(spread)

        def distance(theta):
            return jnp.square(transform(whiten, theta - centre[:, :, None])).sum(0)

        point_distance = distance(jnp.broadcast_to(point.theta[:, None, None], (*centre.shape, 1)))
        own = distance(particles.theta)
        # Up to rounding, a particle that determines the shape alone is infinitely far from the others.
        remainder = jnp.maximum(1 - weights * (1 + own), jnp.finfo(own.dtype).eps)
        return jnp.where(own / remainder < point_distance, weights, 0.0).sum(-1)


class Box(Region):
    """Product of the K equal-tailed marginal intervals, each at the requested level, `region="box"`.

    Notes
    -----
    The joint posterior mass of the box is below the level. The numerical results of Tanaka (2024) correspond to this
    region; see `Simultaneous` for a box whose joint mass is the level.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from calibayes.regions import Box, ReplicateParticles, Point
    >>> theta = jnp.array([[[-1.0, 0.0, 1.0, 2.0]], [[0.0, 1.0, 2.0, 3.0]]])
    >>> particles = ReplicateParticles(theta, jnp.full((1, 4), 0.25), jnp.zeros((1, 4)))
    >>> Box().critical_level(particles, Point(jnp.array([0.5, 2.5]), jnp.zeros(1))).tolist()
    [0.5]
    """

    def critical_level(self, particles, point):
        return _marginal_levels(particles, point).max(0)


class Simultaneous(Region):
    """Product of marginal intervals with the requested joint mass, `region="simultaneous"`.

    Notes
    -----
    The K equal-tailed intervals have a common marginal level, chosen such that the posterior mass of their product is
    the requested level.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from calibayes.regions import ReplicateParticles, Point, Simultaneous
    >>> theta = jnp.array([[[-1.0, 0.0, 1.0, 2.0]], [[0.0, 1.0, 2.0, 3.0]]])
    >>> particles = ReplicateParticles(theta, jnp.full((1, 4), 0.25), jnp.zeros((1, 4)))
    >>> Simultaneous().critical_level(particles, Point(jnp.array([0.5, 2.5]), jnp.zeros(1))).shape
    (1,)
    """

    def critical_level(self, particles, point):
        marginal = _marginal_levels(particles, point).max(0)
        dim = particles.theta.shape[0]
        weights = jnp.broadcast_to(particles.weights[None], particles.theta.shape)
        tail = jnp.broadcast_to(0.5 * (1 - marginal)[None], (dim, *marginal.shape))
        low, high = quantile(particles.theta, weights, tail), quantile(particles.theta, weights, 1 - tail)
        inside = (particles.theta > low[:, :, None]) & (particles.theta < high[:, :, None])
        return jnp.where(inside.all(0), particles.weights, 0.0).sum(-1)


class Interval(Region):
    """Equal-tailed interval of one parameter.

    Parameters
    ----------
    index : int
        Index of the parameter, from 0.

    Examples
    --------
    >>> import calibayes as cb
    >>> slope = cb.regions.Interval(1)
    >>> slope.name
    'Interval(1)'
    """

    index: int = eqx.field(static=True)

    @property
    def name(self):
        return f"Interval({self.index})"

    def check(self, dim):
        if not 0 <= integer("the index of an Interval", self.index) < dim:
            raise ValueError(f"Interval({self.index}) is out of range: there are {dim} parameters, numbered from 0.")

    def direction(self, dim):
        return np.eye(dim)[self.index]

    def critical_level(self, particles, point):
        below = share_below(
            particles.theta[self.index], particles.weights, _per_replicate(point.theta[self.index], particles)
        )
        return jnp.abs(2 * below - 1)


class Linear(Region):
    """Equal-tailed interval of a linear combination of the parameters, such as a prediction.

    Parameters
    ----------
    vector : array-like of shape (K,)
        Coefficients of the combination `vector @ theta`. Another vector does not recompile anything.

    Examples
    --------
    >>> import calibayes as cb
    >>> prediction = cb.regions.Linear([1.0, 4.0])
    >>> prediction.name
    'Linear([1, 4])'
    """

    vector: Float[Array, "..."]

    def __init__(self, vector: Numbers):
        self.vector = parameters("vector", vector)

    @property
    def name(self):
        return f"Linear([{', '.join(f'{value:.7g}' for value in self.vector.tolist())}])"

    def check(self, dim):
        if self.vector.shape != (dim,) or not np.isfinite(np.asarray(self.vector)).all():
            raise ValueError(f"Linear(vector) needs {dim} finite numbers; got {self.vector}.")

    def direction(self, dim):  # noqa: ARG002
        return np.asarray(self.vector, np.float64)

    def critical_level(self, particles, point):
        values = jnp.tensordot(self.vector, particles.theta, 1, precision=jax.lax.Precision.HIGHEST)
        return jnp.abs(
            2 * share_below(values, particles.weights, _per_replicate(self.vector @ point.theta, particles)) - 1
        )


class Functional(Region):
    """Equal-tailed interval of a scalar function of the parameters.

    Parameters
    ----------
    fn : callable
        Function `fn(theta) -> scalar` of a parameter vector of shape (K,), written with `jax.numpy`. A replicate on
        which `fn` is NaN at any particle counts as not covered.

    Examples
    --------
    The root of the regression line:

    >>> import calibayes as cb
    >>> root = cb.regions.Functional(lambda theta: -theta[0] / theta[1])
    >>> bool(result.at(region=root).eta > 0)
    True
    """

    fn: Callable[..., Any] = eqx.field(converter=static)

    def check(self, dim):
        try:
            out = jax.eval_shape(self.fn, jax.ShapeDtypeStruct((dim,), jnp.zeros(()).dtype))
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise TypeError(f"Functional(fn) failed on {dim} parameters: {reason}") from error
        if getattr(out, "shape", None) != ():
            raise ValueError(f"Functional(fn) needs a function with a scalar value; got {out}.")
        if jnp.issubdtype(out.dtype, jnp.complexfloating):
            raise TypeError(f"Functional(fn) needs a function with a real value; got {out.dtype}.")

    def values(self, theta):
        return np.asarray(jax.vmap(self.fn, 1)(jnp.asarray(theta)), np.float64)

    def critical_level(self, particles, point):
        values = jax.vmap(jax.vmap(self.fn, 1), 1)(particles.theta)
        levels = jnp.abs(
            2 * share_below(values, particles.weights, _per_replicate(self.fn(point.theta), particles)) - 1
        )
        undefined = (jnp.isnan(values) & (particles.weights > 0)).any(-1) | jnp.isnan(self.fn(point.theta))
        return jnp.where(undefined, jnp.nan, levels)


class UnavailableRegion(Region):
    """Region of a loaded result that is known only by its name.

    A file stores the name of a region. `HPD`, `Interval` and other regions of this module are rebuilt from it; a
    `Functional` or a user-defined region is not, and becomes a `UnavailableRegion`, which cannot be calibrated.

    Parameters
    ----------
    text : str
        Name of the region.

    Examples
    --------
    >>> from calibayes.regions import UnavailableRegion
    >>> UnavailableRegion("Functional").name
    'Functional'
    """

    text: str = eqx.field(static=True)

    @property
    def name(self):
        return self.text

    def check(self, dim):  # noqa: ARG002
        raise ValueError(f"region {self.text} of a loaded result is known only by its name: pass the region itself.")

    def critical_level(self, particles, point):  # noqa: ARG002
        return jnp.full(particles.weights.shape[:1], jnp.nan)


REGIONS: dict[str, Callable[[], Region]] = {
    "hpd": HPD,
    "ellipsoid": Ellipsoid,
    "box": Box,
    "simultaneous": Simultaneous,
}
"""Regions that can be requested by name."""


def as_region(region: str | Region) -> Region:
    """Return the region of a name; a `Region` is returned unchanged."""
    if isinstance(region, Region):
        return region
    if not isinstance(region, str) or region not in REGIONS:
        raise ValueError(
            f"region must be one of {', '.join(REGIONS)}, or calibayes.regions.Interval(k), Linear(vector) or "
            f"Functional(fn); got {display(region)}."
        )
    return REGIONS[region]()


@light_jit
def critical_levels(
    target: Target,
    particles: Particles,
    eta: Float[Array | np.ndarray, ""],
    region: Region,
    point: Float[Array | np.ndarray, " K"],
) -> Float[Array, " B"]:
    """Return the critical level of a point on each replicate.

    Parameters
    ----------
    target : Target
        Posterior on B replicates.
    particles : Particles
        Weighted particles at learning rate `eta`.
    eta : Array
        Learning rate, a scalar.
    region : Region
        Credible region.
    point : Array of shape (K,)
        Point to be covered.

    Returns
    -------
    Array of shape (B,)
        Critical levels; NaN on replicates where all weights are zero.
    """
    eta, point = jnp.asarray(eta), jnp.asarray(point)
    density = log_densities_at(target, eta[None], point[None])[0]
    constrained = target.constrained(particles)
    return weighted_critical_levels(constrained, constrained.weights, eta, region, Point(point, density))


def weighted_critical_levels(
    particles: Particles, weights: Float[Array, "B M"], eta: Float[Array, ""], region: Region, point: Point
) -> Float[Array, " B"]:
    """Return the critical level of a point on each replicate, from particles with other weights than their own.

    Parameters
    ----------
    particles : Particles
        Particles in the parameters' own coordinates (`Target.constrained`).
    weights : Array of shape (B, M)
        Normalised weights of the particles at learning rate `eta`.
    eta : Array
        Learning rate, a scalar.
    region : Region
        Credible region.
    point : Point
        Point to be covered.

    Returns
    -------
    Array of shape (B,)
        Critical levels; NaN on replicates where all weights are zero.
    """
    reweighted = ReplicateParticles(particles.theta, weights, log_density(particles, jnp.full(len(weights), eta)))
    levels = region.critical_level(reweighted, point)
    return jnp.where((weights > 0).any(-1), levels, jnp.nan)


def log_densities_at(target: Target, etas: Float[Array, " G"], points: Float[Array, "G K"]) -> Float[Array, "G B"]:
    """Return the posterior log-density of G points on each replicate, each point at its own learning rate.

    All points are evaluated in one pass over the observations. The log-density is up to a constant per replicate, the
    same as in `calibayes._core.target.log_density`.
    """
    theta, correction = target.pull_back(points)
    density = -etas[None] * target.risk(theta) + target.log_prior(theta)
    density = density if correction is None else density + correction
    return jnp.where(jnp.isnan(density), -jnp.inf, density).T


def _marginal_levels(particles: ReplicateParticles, point: Point) -> Float[Array, "K B"]:
    """Return the critical level of the equal-tailed interval of each parameter."""

    def one_parameter(theta, value):
        return jnp.abs(2 * share_below(theta, particles.weights, _per_replicate(value, particles)) - 1)

    # On a CPU a loop over the parameters is as fast and needs less memory; on a GPU each pass would be a kernel launch.
    loop = lambda theta, values: jax.lax.map(lambda pair: one_parameter(*pair), (theta, values))
    return jax.lax.platform_dependent(particles.theta, point.theta, cpu=loop, default=jax.vmap(one_parameter))


def _per_replicate(value: Float[Array, ""], particles: ReplicateParticles) -> Float[Array, " B"]:
    return jnp.broadcast_to(value, particles.weights.shape[:1])
