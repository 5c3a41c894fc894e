r"""Generalized posterior calibration with a level that a nested bootstrap calibrates.

GPC takes the $\alpha$ quantile of the critical etas of the replicates, $\alpha = 1 - $ level, as if replicates were to
the data what data are to the truth. Whether this holds can be asked on a replicate b: its own bootstrap replicates have
critical etas, and the set of replicate b that is calibrated with the $t$ quantile of these contains the estimate of the
data if $u_b \geq t$, where $u_b$ is the share of them below the critical eta $\eta_b^*$ of the replicate. The sets
cover with the requested level at the $\alpha$ quantile $t^*$ of the $u_b$, and the learning rate is the $t^*$ quantile
of the $\eta_b^*$.

The replicates of a replicate are not sampled. To first order their estimates are normal around that of the replicate,
with its sandwich covariance, and their posteriors have its Hessian, so that their critical etas are a chi-squared
quantile over a quadratic form of normal variables. This makes the nested bootstrap as cheap as the plain one.
"""

from typing import ClassVar

import numpy as np
from jaxtyping import Float

from calibayes._core.curve import eta_covering, quantile_error
from calibayes.methods.moments import LearningRate, unresolved
from calibayes.methods.studentized import StudentizedGPC, chi_squared_quantile, extrapolated_critical_etas
from calibayes.regions import HPD, Ellipsoid

_N_INNER = 2_000
"""Replicates of each replicate. The shares have an error of at most 0.5% near the quantile of 5%."""


class DoubleGPC(StudentizedGPC):
    r"""Generalized posterior calibration with a nested bootstrap, `method="gpc-double"`.

    Targets coverage of the true parameter: the level at which GPC is applied is calibrated by asking how often the sets
    of the replicates, calibrated by replicates of their own, contain the estimate of the data.

    Notes
    -----
    Second-order correct like `"gpc-studentized"`, at the same cost: the inner replicates follow from the normal
    approximation (the sandwich covariance and Hessian of each replicate), not from sampling. It needs a loss with a
    derivative almost everywhere and near-normal posteriors, and is not available for strata and for `bootstrap.Block`.
    Regions must be ellipsoids or intervals: "hpd", "ellipsoid", `regions.Interval` and `regions.Linear`. The adjusted
    quantile lies further in the tail of the critical etas, so that the error of the learning rate is larger than that
    of `"gpc"`: use more replicates. The sets on the replicates cover more than the level.

    References
    ----------
    Beran (1987), Prepivoting to reduce level error of confidence sets, Biometrika 74, 457-468.
    Loh (1987), Calibrating confidence coefficients, Journal of the American Statistical Association 82, 155-162.

    Examples
    --------
    >>> import calibayes as cb
    >>> cb.methods.DoubleGPC().name
    'gpc-double'
    """

    name: ClassVar[str] = "gpc-double"

    def check_region(self, region, dim):
        if not isinstance(region, HPD | Ellipsoid) and region.direction(dim) is None:
            raise ValueError(
                f'method "{self.name}" is available for the regions "hpd", "ellipsoid", Interval and Linear only; '
                f'got {region.name}. Use method="gpc-studentized" or "gpc".'
            )

    def rate(self, curve, level, moments, vector):
        spreads = relative_spreads(moments, vector)
        dim = spreads.shape[1]
        critical = extrapolated_critical_etas(curve, level, dim)
        shares = inner_shares(critical, spreads[1:], level)
        tail, resolution = eta_covering(np.sort(shares), level), 0.5 / len(shares)
        adjusted = 1 - max(tail, resolution)
        ordered = np.sort(critical)
        error = quantile_error(ordered, adjusted, np.sqrt(level * (1 - level) / len(critical)))
        message = (
            f"The nested bootstrap asks for the {tail:.2g} quantile of the critical etas of {len(shares):,} replicates,"
            " which is beyond the smallest one. The sets cover less than intended. Use more replicates, or "
            'method="gpc-studentized".'
        )
        findings = () if tail >= resolution else unresolved(message)
        return LearningRate(float(eta_covering(ordered, adjusted)), float(error), findings)


def relative_spreads(moments, vector: Float[np.ndarray, " K"] | None) -> Float[np.ndarray, "R D"]:
    """Return the eigenvalues of H S, with the Hessian H and the sandwich covariance S, of the data and every replicate.

    Row 0 is the data. For the interval of one linear combination the only one is its sandwich variance divided by its
    posterior variance at eta = 1.
    """
    if vector is not None:
        return 1 / moments.matching(vector)[:, None]
    product = np.linalg.solve(moments.inverse_hessians, moments.sandwiches)
    return np.maximum(np.linalg.eigvals(product).real, 0.0)


def inner_shares(
    critical: Float[np.ndarray, " B"], spreads: Float[np.ndarray, "B D"], level: float
) -> Float[np.ndarray, " B"]:
    """Return, for each replicate, the share of second-level replicates drawn from it with a smaller critical eta.

    The critical eta is the largest at which the set contains the estimate. That of a second-level replicate is
    approximated by the chi-squared quantile over a sum of squared normal variables, weighted
    by the eigenvalues.
    """
    dim = spreads.shape[1]
    squares = np.square(np.random.default_rng(0).normal(size=(dim, _N_INNER)))
    with np.errstate(divide="ignore"):
        bounds = chi_squared_quantile(level, dim) / critical
    return np.array([(weights @ squares > bound).mean() for weights, bound in zip(spreads, bounds, strict=True)])
