"""How parameters are reported that were sampled in other coordinates.

A linear model samples well with its columns centred and a large offset taken off y. What a reader expects is the line
for the columns and y as they were, with the intercept at zero of the columns: a linear map of what was sampled, and so
are its intervals, each of which is calibrated as what it is.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from calibayes._backend.functions import as_float
from calibayes.regions import HPD, Box, Cloud, Ellipsoid, Interval, Linear, Point, Region, Simultaneous
from calibayes.result import Record, Result


@dataclass(frozen=True)
class Reparametrization:
    """Reported parameters are `matrix @ theta + shift`."""

    matrix: Float[np.ndarray, "K K"]
    shift: Float[np.ndarray, " K"]

    def of(self, theta: Float[np.ndarray, "... K"]) -> Float[np.ndarray, "... K"]:
        return np.asarray(theta, np.float64) @ self.matrix.T + self.shift

    def inside(self, reported: Float[np.ndarray, " K"]) -> Float[np.ndarray, " K"]:
        """What was sampled, from what is reported."""
        return np.linalg.solve(self.matrix, reported - self.shift)

    def combinations(self, vectors: Float[np.ndarray, "R K"]) -> tuple[np.ndarray, np.ndarray]:
        """Combinations of what is reported, as combinations of what was sampled and constants."""
        return vectors @ self.matrix, vectors @ self.shift

    def region(self, region: Region) -> Region:
        """The same sets, of what is reported. Those of the density and ellipsoids are the same in both coordinates."""
        if isinstance(region, HPD | Ellipsoid):
            return region
        # Intervals move along with a constant, which would cost digits.
        free = isinstance(region, Box | Simultaneous | Interval | Linear)
        return TransformedRegion(
            region, as_float(self.matrix), as_float(np.zeros_like(self.shift) if free else self.shift)
        )

    def result(self, result: Result) -> Result:
        """A result of what was sampled as one of what is reported."""
        region = result.region.region if isinstance(result.region, TransformedRegion) else result.region
        return replace(
            result,
            draws=self.of(result.draws),
            estimate=self.of(result.estimate),
            trace=[self._record(record) for record in result.trace],
            region=region,
        )

    def _record(self, record: Record) -> Record:
        """An interval is not kept of what is made from several parameters."""
        alone = (self.matrix != 0).sum(1) == 1
        bounds = np.sort(self.matrix @ np.asarray(record.intervals, np.float64) + self.shift[:, None], axis=1)
        return replace(record, intervals=np.where(alone[:, None], bounds, np.nan))


class TransformedRegion(Region):
    """A region of what is reported, asked of what was sampled."""

    region: Region
    matrix: Float[Array, "K K"]
    shift: Float[Array, " K"]

    @property
    def name(self):
        return self.region.name

    def check(self, dim):
        self.region.check(dim)

    def critical_level(self, cloud, point):
        exact: Any = jax.lax.Precision.HIGHEST
        theta = jnp.tensordot(self.matrix, cloud.theta, 1, precision=exact) + self.shift[:, None, None]
        at = jnp.matmul(self.matrix, point.theta, precision=exact) + self.shift
        seen = Cloud(theta, cloud.weights, cloud.log_density)
        return self.region.critical_level(seen, Point(at, point.log_density))
