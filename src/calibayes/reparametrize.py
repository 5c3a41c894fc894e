"""Results in other coordinates than those that were sampled.

A linear model is sampled with centred columns and with a large offset subtracted from y, which floats represent
accurately. It is reported for the original columns and y, with the intercept at zero of all columns. The reported
parameters are an affine function of the sampled ones, and a linear combination of reported parameters is one of sampled
parameters plus a constant, so that its interval is calibrated without sampling again.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from calibayes._backend.functions import as_float
from calibayes.regions import HPD, Box, Ellipsoid, Interval, Linear, Point, Region, ReplicateParticles, Simultaneous
from calibayes.result import Result, TraceRecord


@dataclass(frozen=True)
class Reparametrization:
    """Affine map from sampled to reported parameters, `matrix @ theta + shift`.

    Parameters
    ----------
    matrix : ndarray of shape (K, K)
        Invertible matrix.
    shift : ndarray of shape (K,)
        Constant.
    """

    matrix: Float[np.ndarray, "K K"]
    shift: Float[np.ndarray, " K"]

    def apply(self, theta: Float[np.ndarray, "... K"]) -> Float[np.ndarray, "... K"]:
        """Return the reported parameters of sampled ones."""
        return np.asarray(theta, np.float64) @ self.matrix.T + self.shift

    def invert(self, reported: Float[np.ndarray, " K"]) -> Float[np.ndarray, " K"]:
        """Return the sampled parameters of reported ones."""
        return np.linalg.solve(self.matrix, reported - self.shift)

    def pull_back(self, vectors: Float[np.ndarray, "R K"]) -> tuple[Float[np.ndarray, "R K"], Float[np.ndarray, " R"]]:
        """Express linear combinations of reported parameters as combinations of sampled parameters plus constants.

        Parameters
        ----------
        vectors : ndarray of shape (R, K)
            Coefficients of R linear combinations of the reported parameters.

        Returns
        -------
        vectors : ndarray of shape (R, K)
            Coefficients of the sampled parameters.
        constants : ndarray of shape (R,)
            Constants to be added.
        """
        return vectors @ self.matrix, vectors @ self.shift

    def transform_region(self, region: Region) -> Region:
        """Return the region of sampled parameters that corresponds to a region of reported ones.

        Highest-density sets and ellipsoids are invariant under affine maps.
        """
        if isinstance(region, HPD | Ellipsoid):
            return region
        # Intervals are equivariant under a shift, which is therefore left out: adding it would lose digits.
        equivariant = isinstance(region, Box | Simultaneous | Interval | Linear)
        shift = np.zeros_like(self.shift) if equivariant else self.shift
        return TransformedRegion(region, as_float(self.matrix), as_float(shift))

    def transform_result(self, result: Result) -> Result:
        """Return a result of sampled parameters as a result of reported ones."""
        region = result.region.region if isinstance(result.region, TransformedRegion) else result.region
        return replace(
            result,
            draws=self.apply(result.draws),
            estimate=self.apply(result.estimate),
            trace=[self._transform_record(record) for record in result.trace],
            region=region,
        )

    def _transform_record(self, record: TraceRecord) -> TraceRecord:
        """Transform the intervals of a record; NaN for parameters that combine several sampled ones."""
        is_rescaled = (self.matrix != 0).sum(1) == 1
        bounds = np.sort(self.matrix @ np.asarray(record.intervals, np.float64) + self.shift[:, None], axis=1)
        return replace(record, intervals=np.where(is_rescaled[:, None], bounds, np.nan))


class TransformedRegion(Region):
    """Region of reported parameters, evaluated on particles of sampled parameters.

    Parameters
    ----------
    region : Region
        Region of the reported parameters.
    matrix : Array of shape (K, K)
        Matrix of the map from sampled to reported parameters.
    shift : Array of shape (K,)
        Constant of that map.
    """

    region: Region
    matrix: Float[Array, "K K"]
    shift: Float[Array, " K"]

    @property
    def name(self):
        return self.region.name

    def check(self, dim):
        self.region.check(dim)

    def direction(self, dim):
        vector = self.region.direction(dim)
        return None if vector is None else vector @ np.asarray(self.matrix, np.float64)

    def critical_level(self, particles, point):
        precision = jax.lax.Precision.HIGHEST
        theta = jnp.tensordot(self.matrix, particles.theta, 1, precision=precision) + self.shift[:, None, None]
        transformed_point = jnp.matmul(self.matrix, point.theta, precision=precision) + self.shift
        transformed = ReplicateParticles(theta, particles.weights, particles.log_density)
        return self.region.critical_level(transformed, Point(transformed_point, point.log_density))
