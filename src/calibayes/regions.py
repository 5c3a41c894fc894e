r"""Credible regions, each answering with a critical level.

The critical level of a point on a row is the smallest credible level at which the row's set contains the
point. Coverage at any level is the share of rows whose critical level is at most that level, so one
array answers for all of them.

Which set is calibrated decides eta. `Box` is the product of the K marginal intervals, each at the level
asked for, so as a joint set it holds less than that; `Simultaneous` is the box widened until it does.

*Ties and plateaus.* Particles on the edge of a marginal interval count half. A highest-density set takes
in a plateau of the density at once: the critical level of a point is the mass that is strictly denser, so
where the density is piecewise constant (a 0-1 loss with a flat prior) sets hold more than their level.
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
from calibayes._backend.jit import jit
from calibayes._backend.linalg import lower_inverse
from calibayes._core.particles import Particles, covariance, factor, mean, quantile, share_below, transform
from calibayes._core.target import Target, log_density


class Cloud(eqx.Module):
    """The posterior on every row as a region sees it."""

    theta: Float[Array, "K B M"]
    weights: Float[Array, "B M"]
    log_density: Float[Array, "B M"]


class Point(eqx.Module):
    """The point to be covered, and its log-density on every row."""

    theta: Float[Array, " K"]
    log_density: Float[Array, " B"]


class Region(eqx.Module):
    """A family of sets, nested in the level."""

    def check(self, dim: int) -> None:
        """Raise if the region makes no sense for `dim` parameters."""

    @property
    def name(self) -> str:
        """What its sets are called."""
        return type(self).__name__

    @abstractmethod
    def critical_level(self, cloud: Cloud, point: Point) -> Float[Array, " B"]:
        """The smallest level at which each row's set contains the point."""


class HPD(Region):
    """Highest posterior density: all points at least as dense as some threshold."""

    def critical_level(self, cloud, point):
        denser = cloud.log_density > point.log_density[:, None]
        return jnp.where(denser, cloud.weights, 0.0).sum(-1)


class Ellipsoid(Region):
    """Points within a Mahalanobis distance of the posterior mean.

    An ellipsoid fitted to the particles it ranks holds too many of them, by about K / M. So each half of the
    particles is ranked by the ellipsoid of the other half, and the two answers are averaged.
    """

    def critical_level(self, cloud, point):
        half = cloud.theta.shape[-1] // 2
        first, second = _part(cloud, slice(None, half)), _part(cloud, slice(half, None))
        return 0.5 * (_mass_within(first, second, point) + _mass_within(second, first, point))


class Box(Region):
    """The product of the K equal-tailed marginal intervals, each at the level. The paper's, by its numbers."""

    def critical_level(self, cloud, point):
        return _marginal_levels(cloud, point).max(0)


class Simultaneous(Region):
    """The box of marginal intervals, all at the one level that gives the box the mass asked for."""

    def critical_level(self, cloud, point):
        marginal = _marginal_levels(cloud, point).max(0)
        dim = cloud.theta.shape[0]
        weights = jnp.broadcast_to(cloud.weights[None], cloud.theta.shape)
        tail = jnp.broadcast_to(0.5 * (1 - marginal)[None], (dim, *marginal.shape))
        low, high = quantile(cloud.theta, weights, tail), quantile(cloud.theta, weights, 1 - tail)
        inside = (cloud.theta > low[:, :, None]) & (cloud.theta < high[:, :, None])
        return jnp.where(inside.all(0), cloud.weights, 0.0).sum(-1)


class Interval(Region):
    """The equal-tailed interval of one parameter."""

    index: int = eqx.field(static=True)

    @property
    def name(self):
        return f"Interval({self.index})"

    def check(self, dim):
        if not 0 <= integer("the index of an Interval", self.index, 0 - dim) < dim:
            raise ValueError(f"Interval({self.index}) asks for a parameter that is not there: there are {dim}, from 0.")

    def critical_level(self, cloud, point):
        below = share_below(cloud.theta[self.index], cloud.weights, _repeat(point.theta[self.index], cloud))
        return jnp.abs(2 * below - 1)


class Linear(Region):
    """The equal-tailed interval of `vector @ theta`, such as a prediction. Another vector compiles nothing anew."""

    vector: Float[Array, "..."]

    def __init__(self, vector: Numbers):
        self.vector = parameters("vector", vector)

    @property
    def name(self):
        return f"Linear([{', '.join(f'{value:.7g}' for value in self.vector.tolist())}])"

    def check(self, dim):
        if self.vector.shape != (dim,) or not np.isfinite(np.asarray(self.vector)).all():
            raise ValueError(f"Linear(vector) needs {dim} finite numbers; got {self.vector}.")

    def critical_level(self, cloud, point):
        values = jnp.tensordot(self.vector, cloud.theta, 1, precision=jax.lax.Precision.HIGHEST)
        return jnp.abs(2 * share_below(values, cloud.weights, _repeat(self.vector @ point.theta, cloud)) - 1)


class Functional(Region):
    """The equal-tailed interval of a scalar function of the parameters, `fn(theta) -> scalar`."""

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

    def critical_level(self, cloud, point):
        values = jax.vmap(jax.vmap(self.fn, 1), 1)(cloud.theta)
        levels = jnp.abs(2 * share_below(values, cloud.weights, _repeat(self.fn(point.theta), cloud)) - 1)
        undefined = (jnp.isnan(values) & (cloud.weights > 0)).any(-1) | jnp.isnan(self.fn(point.theta))
        return jnp.where(undefined, jnp.nan, levels)


class Remembered(Region):
    """The region of a result that was loaded and that only its user could write down again: a name."""

    text: str = eqx.field(static=True)

    @property
    def name(self):
        return self.text

    def check(self, dim):  # noqa: ARG002
        raise ValueError(f"this region is only a name, {self.text}: pass the region itself.")

    def critical_level(self, cloud, point):  # noqa: ARG002
        return jnp.full(cloud.weights.shape[:1], jnp.nan)


REGIONS: dict[str, Callable[[], Region]] = {
    "hpd": HPD,
    "ellipsoid": Ellipsoid,
    "box": Box,
    "simultaneous": Simultaneous,
}


def as_region(region: str | Region) -> Region:
    """A region from its name."""
    if isinstance(region, Region):
        return region
    if not isinstance(region, str) or region not in REGIONS:
        raise ValueError(
            f"region must be one of {', '.join(REGIONS)}, or calibayes.regions.Interval(k), Linear(vector) or "
            f"Functional(fn); got {display(region)}."
        )
    return REGIONS[region]()


def _marginal_levels(cloud: Cloud, point: Point) -> Float[Array, "K B"]:
    def one(theta, at):
        return jnp.abs(2 * share_below(theta, cloud.weights, _repeat(at, cloud)) - 1)

    # One parameter at a time is as fast on a processor, and takes less memory; elsewhere it is so many launches.
    one_by_one = lambda theta, at: jax.lax.map(lambda pair: one(*pair), (theta, at))
    return jax.lax.platform_dependent(cloud.theta, point.theta, cpu=one_by_one, default=jax.vmap(one))


def _repeat(value: Float[Array, ""], cloud: Cloud) -> Float[Array, " B"]:
    return jnp.broadcast_to(value, cloud.weights.shape[:1])


def _part(cloud: Cloud, which: slice) -> Cloud:
    weights = cloud.weights[:, which]
    return Cloud(cloud.theta[:, :, which], weights / weights.sum(-1, keepdims=True), cloud.log_density[:, which])


def _mass_within(shape: Cloud, ranked: Cloud, point: Point) -> Float[Array, " B"]:
    """Share of `ranked` closer to the mean than the point, in the ellipsoid of `shape`."""
    centre = mean(shape.theta, shape.weights)
    whiten = lower_inverse(factor(covariance(shape.theta, shape.weights)))

    def distance(theta):
        return jnp.square(transform(whiten, theta - centre[:, :, None])).sum(0)

    at_point = distance(jnp.broadcast_to(point.theta[:, None, None], (*centre.shape, 1)))
    return jnp.where(distance(ranked.theta) < at_point, ranked.weights, 0.0).sum(-1)


@jit
def critical_levels(
    target: Target, particles: Particles, eta: Float[Array, ""], region: Region, point: Float[Array, " K"]
) -> Float[Array, " B"]:
    """The critical level of the point on every row; NaN where no particle has any weight."""
    density = densities_at(target, eta[None], point[None])[0]
    drawn = target.constrained(particles)
    return levels_at(drawn, drawn.weights, eta, region, Point(point, density))


def levels_at(
    drawn: Particles, weights: Float[Array, "B M"], eta: Float[Array, ""], region: Region, point: Point
) -> Float[Array, " B"]:
    cloud = Cloud(drawn.theta, weights, log_density(drawn, jnp.full(len(weights), eta)))
    levels = region.critical_level(cloud, point)
    return jnp.where((weights > 0).any(-1), levels, jnp.nan)


def densities_at(target: Target, etas: Float[Array, " G"], points: Float[Array, "G K"]) -> Float[Array, "G B"]:
    """Of points on every row, each at its learning rate; all in one pass over the observations."""
    at = jnp.broadcast_to(points.T[:, None], (target.dim, target.n_replicates, len(points)))
    density = -etas[None] * target.risk(at) + target.log_prior(at)
    return jnp.where(jnp.isnan(density), -jnp.inf, density).T
