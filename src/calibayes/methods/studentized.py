r"""Generalized posterior calibration of a studentized statistic.

On replicate b the set at learning rate $\eta$ contains the estimate if $\eta$ is at most the replicate's critical eta
$\eta_b^*$. GPC takes a quantile of the critical etas: one learning rate for all replicates, although each replicate has
a sandwich covariance of its own, and would need a learning rate of its own. The ratio $\eta_b^* / \eta_b^m$ to the
replicate's matching learning rate $\eta_b^m = K / \mathrm{tr}(H_b^{-1} J_b)$ is asymptotically pivotal, like a t
statistic: to first order its distribution does not depend on unknown parameters, so that the bootstrap estimates its
quantile with a smaller error. The learning rate is $\eta^m$ of the data times that
quantile.

References
----------
Hall (1988), Theoretical comparison of bootstrap confidence intervals, Annals of Statistics 16, 927-953.
Beran (1988), Prepivoting test statistics: a bootstrap view of asymptotic refinements, Journal of the American
Statistical Association 83, 687-697.
"""

from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import ClassVar

import jax
import numpy as np
from jaxtyping import Float

from calibayes._backend.distributed import processes_out_of_sync
from calibayes._backend.functions import host_array
from calibayes._core.curve import Curve, eta_covering, quantile_error
from calibayes._core.particles import Particles, host_moments
from calibayes._core.scores import cluster_score_products, score_products
from calibayes._core.status import Code, Diagnostic, Severity, Status
from calibayes._core.target import Target
from calibayes.bootstrap import Block, Bootstrap, Cluster, Stratified
from calibayes.methods.base import Method, draws_on_data, stay_at, with_diagnostics, with_earlier_run
from calibayes.methods.moments import DrawsOnData, LearningRate, unresolved
from calibayes.solve.bracket import Bracket
from calibayes.solve.iterate import Iterate, share_severity
from calibayes.solve.marginals import marginal_curves
from calibayes.solve.problem import CoverageProblem
from calibayes.solve.solver import STOPS, Solution, Solver, stopped
from calibayes.solve.verify import verify, verify_moved


@dataclass(frozen=True)
class StudentizedConfig:
    """Constants of the studentized calibration."""

    max_moves: int = 4
    """Times that the particles are moved to the studentized learning rate. The Hessians are estimated from posteriors
    at the learning rate of the particles, and depend on it where posteriors are not normal; one move usually
    suffices."""
    level_resolution: float = 5e-4
    """Half the resolution of a critical level where the effective sample size is unknown: that of 1,000 particles."""
    inner_share: float = 0.75
    """Share of a curve's half-width within which the learning rate of an interval is accepted, as for intervals by
    GPC (`calibayes.solve.marginals`)."""


CONFIG = StudentizedConfig()


class StudentizedGPC(Method):
    """Generalized posterior calibration of a studentized statistic, `method="gpc-studentized"`.

    Targets coverage of the true parameter, with a correction for the error of the estimated covariance. The learning
    rate is the `Matching` learning rate of the data times the (1 - level) quantile, over bootstrap replicates, of the
    ratio of a replicate's critical eta (`Curve.critical_etas`) to its own `Matching` learning rate.

    Notes
    -----
    Costs one gradient of each loss per replicate more than GPC, and, if its learning rate differs from
    that of GPC, a move of all particles, which takes about as long as GPC. Second-order correct where GPC is
    first-order, so that its sets are somewhat wider for few observations per parameter, and the sets on the replicates
    cover more than the level. It needs a loss with a derivative almost everywhere, and is not available for strata and
    for blocks of dependent observations. It relies on posteriors that are near normal.

    References
    ----------
    Hall (1988), Theoretical comparison of bootstrap confidence intervals, Annals of Statistics 16, 927-953.

    Examples
    --------
    >>> import calibayes as cb
    >>> cb.methods.StudentizedGPC().name
    'gpc-studentized'
    """

    name: ClassVar[str] = "gpc-studentized"
    uses_sandwich: ClassVar[bool] = True

    def check(self, model, bootstrap, shape, weights):  # noqa: ARG002
        if isinstance(bootstrap, Block):
            raise ValueError(
                f'method "{self.name}" is not available for bootstrap.Block: the counts of a replicate '
                'do not determine its blocks. Use method="matching" or "gpc".'
            )
        if isinstance(bootstrap, Stratified) or (isinstance(bootstrap, Cluster) and bootstrap.sizes is not None):
            raise ValueError(f'method "{self.name}" is not available with strata. Use method="matching" or "gpc".')

    def rate(
        self, curve: Curve, level: float, moments: "ReplicateMoments", vector: Float[np.ndarray, " K"] | None
    ) -> LearningRate:
        """Return the learning rate, given the coverage curve and the moments of the data and of all replicates.

        Parameters
        ----------
        curve : Curve
            Coverage curve.
        level : float
            Level of the sets.
        moments : ReplicateMoments
            Hessians and sandwich covariances.
        vector : ndarray of shape (K,) or None
            Coefficients of the linear combination that the sets are about; None for sets of all parameters.

        Returns
        -------
        LearningRate
        """
        return _studentized(curve, level, moments.matching(vector), moments.dim if vector is None else 1)

    def solve(self, solver, problem, eta):
        require_derivative(self.name, draws_on_data(problem))
        verified = verify(solver, solver.solve_from_initial(problem, eta))
        return verify_moved(solver, verified, self._studentize(solver, verified.solution))

    def solve_again(self, solver, problem, iterate, draws):
        require_derivative(self.name, draws)
        solver = replace(solver, rule=Bracket())
        if iterate.curve is not None and iterate.status is Status.CONVERGED:
            return self._studentize(solver, Solution(problem, iterate, ()))
        start = solver.start_at(iterate.state, iterate.sampled_eta)
        return self._studentize(solver, solver.search(problem, start, "search", "solution"))

    def _studentize(self, solver: Solver, solution: Solution) -> Solution:
        """Move to the studentized learning rate, until it is close to where the Hessians were estimated."""
        problem = solution.problem
        if solution.iterate.status is not Status.CONVERGED:
            return solution
        direction = problem.region.direction(problem.target.dim)
        for move in range(CONFIG.max_moves):
            iterate = solution.iterate
            assert iterate.curve is not None
            try:
                moments = _replicate_moments(self.name, problem, iterate)
                rate = self.rate(iterate.curve, problem.level, moments, direction)
                moved = stay_at(solver, problem, iterate, rate, f"studentized {move}")
            except STOPS as error:
                if processes_out_of_sync(error):
                    raise
                return replace(solution, iterate=stopped(iterate, error))
            solution = with_earlier_run(moved, solution)
            if not moved.trace or solution.iterate.status is not Status.COMPUTED:
                return solution
        message = (
            f"The learning rate still changed after {CONFIG.max_moves} moves of the particles to it, because the "
            'Hessians depend on it. The posteriors may be far from normal: compare with method="gpc".'
        )
        return with_diagnostics(solution, Diagnostic(Code.DRAWS_FAR_FROM_ETA, Severity.WARNING, 0, message))

    def interval_etas(self, problem, iterate, draws, level, vectors):  # noqa: ARG002
        moments = _replicate_moments(self.name, problem, iterate)
        curves, _ = marginal_curves(problem, iterate, level, vectors)
        rates = [self.rate(curve, level, moments, vector) for curve, vector in zip(curves, vectors, strict=True)]
        reach = CONFIG.inner_share * iterate.half_width
        return [rate if _is_within(rate, iterate.sampled_eta, reach) else None for rate in rates]


@dataclass(frozen=True)
class ReplicateMoments:
    """Inverse Hessians and sandwich covariances of the data, at index 0, and of the replicates."""

    inverse_hessians: Float[np.ndarray, "B K K"]
    sandwiches: Float[np.ndarray, "B K K"]

    @property
    def dim(self) -> int:
        """Number of parameters."""
        return self.sandwiches.shape[-1]

    def matching(self, vector: Float[np.ndarray, " K"] | None) -> Float[np.ndarray, " B"]:
        """Return the matching learning rates, those of the interval of one linear combination if given."""
        with np.errstate(divide="ignore"):
            if vector is not None:
                return (self.inverse_hessians @ vector @ vector) / (self.sandwiches @ vector @ vector)
            ratios = np.linalg.solve(self.inverse_hessians, self.sandwiches)
            return self.sandwiches.shape[-1] / np.trace(ratios, axis1=1, axis2=2)


def _replicate_moments(name: str, problem: CoverageProblem, iterate: Iterate) -> ReplicateMoments:
    """Return inverse Hessians and sandwich covariances on the data and on all replicates."""
    target, eta = problem.target, iterate.sampled_eta
    particles, data = iterate.state.particles, problem.sampler.particles_on_data(iterate.state)
    means, covariances = _moments_with_data(target, particles, data)
    inverse_hessians, scores = eta * covariances, _score_products(name, target, means, problem.bootstrap)
    sandwiches = inverse_hessians @ scores @ inverse_hessians
    if problem.shape is not None:
        shaped = problem.shaped_target(particles).shaped(particles)
        inverse_hessians = eta * _moments_with_data(target, shaped, problem.shaped_particles(data))[1]
    return ReplicateMoments(inverse_hessians, sandwiches)


def _moments_with_data(
    target: Target, particles: Particles, data: Particles
) -> tuple[Float[np.ndarray, "K B"], Float[np.ndarray, "B K K"]]:
    """Return the posterior means and covariances; on the data they are computed from all of its draws."""
    means, covariances = host_moments(target.constrained(particles))
    means[:, :1], covariances[:1] = host_moments(target.constrained(data))
    return means, covariances


def _score_products(
    name: str, target: Target, means: Float[np.ndarray, "K B"], bootstrap: Bootstrap | None
) -> Float[np.ndarray, "B K K"]:
    if isinstance(bootstrap, Cluster):
        if target.mesh is not None:
            raise ValueError(f'method "{name}" with bootstrap.Cluster needs a single device.')
        products = cluster_score_products(target, host_array(means), bootstrap.groups, bootstrap.n_groups)
    else:
        products = score_products(target, host_array(means))
    return np.asarray(jax.device_get(products), np.float64)


def require_derivative(name: str, draws: DrawsOnData) -> None:
    """Raise an error if the derivative of the loss does not describe how the loss varies with the parameters.

    Parameters
    ----------
    name : str
        Name of the method that needs it.
    draws : DrawsOnData
        Draws on the data.

    Raises
    ------
    ValueError
        If the matching learning rates from the derivatives of the loss and from the covariance of the draws differ.
    """
    if draws.moments.uses_derivative:
        return
    by_derivative, by_covariance = draws.moments.traces
    raise ValueError(
        f'method "{name}" needs a loss with a derivative. Two estimates of tr(H^-1 J) disagree: '
        f"{by_derivative:.3g} from the derivatives of the loss, {by_covariance:.3g} from the covariance of the draws. "
        'Use method="gpc" or "matching".'
    )


def _is_within(rate: LearningRate, eta: float, distance: float) -> bool:
    """Return whether a learning rate with a known error is within a distance of `eta`, in log eta."""
    known = 0 < rate.eta < np.inf and np.isfinite(rate.eta_se)
    return bool(known and abs(np.log(rate.eta / eta)) <= distance)


def _studentized(curve: Curve, level: float, matching: Float[np.ndarray, " B"], dim: int) -> LearningRate:
    """Return the studentized learning rate.

    It is the matching eta of the data times the (1 - level) quantile, over replicates, of critical eta divided by the
    replicate's own matching eta. `dim` is the number of parameters that the sets are about.
    """
    ordered = np.sort(extrapolated_critical_etas(curve, level, dim) / matching[1:])
    factor, n_flat = eta_covering(ordered, level), int((~np.isfinite(matching[1:])).sum())
    message = (
        f"The gradients of all losses are zero at the posterior means of {n_flat:,} of {len(ordered):,} replicates, as "
        'for separable classes, so that their sandwich covariance is zero. Use method="gpc".'
    )
    if not 0 < factor * matching[0] < np.inf:
        raise ValueError(f"the studentized learning rate is {factor * matching[0]:.2g}. {message}")
    findings = unresolved(message, share_severity(n_flat, len(ordered), level), n_flat) if n_flat else ()
    error = quantile_error(ordered, level, curve.coverage_se(level))
    return LearningRate(float(matching[0] * factor), float(matching[0] * error), findings)


def extrapolated_critical_etas(curve: Curve, level: float, dim: int) -> Float[np.ndarray, " B"]:
    """Return the critical etas; those off the curve are extrapolated as if posteriors were normal.

    The critical level of a normal posterior is the probability that a chi-squared variable is at most eta times a
    squared distance. A critical level of one, or zero, is moved inside by half of its resolution.
    """
    critical = curve.critical_etas(level).copy()
    for off_curve, edge in ((critical == 0, 0), (critical == np.inf, -1)):
        for b in np.flatnonzero(off_curve):
            smallest = 0.5 / curve.ess[edge] if np.isfinite(curve.ess[edge]) else CONFIG.level_resolution
            edge_level = float(np.clip(curve.critical_levels[edge, b], smallest, 1 - smallest))
            if np.isfinite(edge_level):
                critical[b] = (
                    curve.etas[edge] * chi_squared_quantile(level, dim) / chi_squared_quantile(edge_level, dim)
                )
    return critical


def chi_squared_quantile(probability: float, dim: int) -> float:
    """Return a quantile of the chi-squared distribution, exact for one degree of freedom.

    Otherwise by the cube root transformation of Wilson and Hilferty (1931), which is accurate to 3% for probabilities
    above one half.
    """
    if dim == 1:
        return NormalDist().inv_cdf(0.5 + 0.5 * probability) ** 2
    variance = 2 / (9 * dim)
    return dim * max(1 - variance + NormalDist().inv_cdf(probability) * variance**0.5, 1e-3) ** 3
