"""The interface of a method: how the learning rate is set for a region, and for single parameters.

`GPC` solves for the learning rate at which the sets cover at the level. A `PlugInMethod` computes it from draws on the
data; the solver then samples every replicate there, and reports the coverage.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import Float

from calibayes._backend.distributed import processes_out_of_sync
from calibayes._backend.rng import fold_key
from calibayes._core.loss import CountsRisk
from calibayes._core.status import ABOUT_THE_SEARCH, Code, Diagnostic, Severity, Status
from calibayes._core.weights import Weights
from calibayes.bootstrap import Bootstrap
from calibayes.methods.moments import Draws, DrawsOnData, LearningRate, matching_eta
from calibayes.model import GibbsModel
from calibayes.regions import Region
from calibayes.solve.iterate import Iterate
from calibayes.solve.problem import CoverageProblem
from calibayes.solve.solver import STOPS, Solution, Solver, check_reliability, stopped
from calibayes.solve.stay import Stay
from calibayes.solve.verify import FinalSolution, verify, verify_moved, with_own_draws

HAS_PARTICLES = (Status.CONVERGED, Status.COMPUTED, Status.UNRELIABLE)
"""Status of runs that were not stopped, whose particles on the data can be used."""
_REDRAW_STREAM = 7
"""Number folded into the key of the search, for independent random streams."""


@dataclass(frozen=True)
class MethodConfig:
    """Constants of the methods that compute the learning rate from a formula."""

    max_redraws: int = 3
    """Times that the draws on the data are repeated at the matching learning rate."""
    n_errors: float = 3.0
    """Distance of coverage from the level, in standard errors, from which on it is reported as different."""
    large_deficit: float = 0.5
    """Share of 1 - level by which coverage may fall short of the level before this is a warning: 0.925 for 0.95."""


CONFIG = MethodConfig()


class Method(eqx.Module):
    """Base class of the ways to set the learning rate.

    Attributes
    ----------
    name : str
        Name that `calibrate(method=)` accepts, and that tables show.

    Examples
    --------
    >>> import calibayes as cb
    >>> [method.name for method in (cb.methods.GPC(), cb.methods.Matching())]
    ['gpc', 'matching']
    """

    name: ClassVar[str]
    uses_sandwich: ClassVar[bool] = False
    """Whether the learning rate or the draws depend on the sandwich covariance."""

    def check(self, model: GibbsModel, bootstrap: Bootstrap | None, shape: str | None, weights: Weights | None) -> None:
        """Raise an error if the method cannot be used with the other arguments, before anything is compiled.

        Parameters
        ----------
        model : GibbsModel
            Loss and prior.
        bootstrap : Bootstrap or None
            The bootstrap; None for counts in an array.
        shape : str or None
            Shape of the posterior.
        weights : Weights or None
            Weights of the observations; None if all are one.

        Raises
        ------
        ValueError
            If the method does not fit one of them.
        """

    def check_region(self, region: Region, dim: int) -> None:
        """Raise an error if the method is not available for credible sets, before anything is compiled.

        Parameters
        ----------
        region : Region
            The credible sets.
        dim : int
            Number of parameters.

        Raises
        ------
        ValueError
            If the method is not available for them.
        """

    @abstractmethod
    def solve(self, solver: Solver, problem: CoverageProblem, eta: float | None) -> FinalSolution:
        """Set the learning rate of a new problem.

        Parameters
        ----------
        solver : Solver
            The solver, with the search rule of the call.
        problem : CoverageProblem
            The problem, with initial draws.
        eta : float or None
            Learning rate at which to start, `eta_init` of `calibrate`.

        Returns
        -------
        FinalSolution
            The solution, with the outcome of the audit if there was one.
        """

    @abstractmethod
    def solve_again(self, solver: Solver, problem: CoverageProblem, iterate: Iterate, draws: DrawsOnData) -> Solution:
        """Set the learning rate of a problem whose replicates have been sampled at some learning rate.

        Parameters
        ----------
        solver : Solver
            The solver.
        problem : CoverageProblem
            The problem; region and level may be others than those of `iterate`.
        iterate : Iterate
            Particles on all replicates.
        draws : DrawsOnData
            Draws on the data.

        Returns
        -------
        Solution
        """

    def interval_etas(
        self,
        problem: CoverageProblem,  # noqa: ARG002
        iterate: Iterate,  # noqa: ARG002
        draws: DrawsOnData,  # noqa: ARG002
        level: float,  # noqa: ARG002
        vectors: Float[np.ndarray, "R K"],  # noqa: ARG002
    ) -> list[LearningRate | None] | None:
        """Return the learning rates of the intervals of linear combinations.

        Parameters
        ----------
        problem : CoverageProblem
            The problem.
        iterate : Iterate
            Particles on all replicates, at the learning rate of its solution.
        draws : DrawsOnData
            Draws on the data.
        level : float
            Level of the intervals.
        vectors : ndarray of shape (R, K)
            Coefficients of the combinations.

        Returns
        -------
        list or None
            Learning rates, None for those that need a calibration of their own. Default: None, each interval is
            calibrated by its own coverage.
        """
        return None


class PlugInMethod(Method):
    """Base class of methods that compute the learning rate from draws on the data.

    Subclass it and define `learning_rate`.

    Examples
    --------
    >>> import calibayes as cb
    >>> isinstance(cb.methods.Matching(), cb.methods.PlugInMethod)
    True
    """

    uses_moments: ClassVar[bool] = True
    """Whether the learning rate depends on the moments, so that draws must be near the matching learning rate."""
    uses_sandwich: ClassVar[bool] = True
    is_global: ClassVar[bool] = False
    """Whether the learning rate depends on neither the level nor the sets, so that further questions keep it."""

    @abstractmethod
    def learning_rate(self, draws: DrawsOnData, vector: Float[np.ndarray, " K"] | None) -> LearningRate:
        """Return the learning rate and its simulation standard error.

        Parameters
        ----------
        draws : DrawsOnData
            Draws on the data, with their moments.
        vector : ndarray of shape (K,) or None
            Coefficients of a linear combination, for its interval; None for sets of all parameters.

        Returns
        -------
        LearningRate
        """

    def solve(self, solver, problem, eta):  # noqa: ARG002
        if self.uses_moments:
            problem = draw_near_matching_eta(solver, problem)
        draws = draws_on_data(problem)
        rate = self.learning_rate(draws, problem.region.direction(problem.target.dim))
        solver = replace(solver, rule=Stay(rate.eta))
        verified = verify(solver, solver.solve_from_initial(problem, rate.eta))
        solution = self._describe_draws(state_error(verified.solution, rate), draws)
        if self.uses_moments and (verified.fell_back or draws.far_eta is not None):
            # The initial draws were unreliable or far away, and with them the learning rate.
            solution = self._solve_on_own_draws(solver, solution, np.inf if verified.fell_back else draws.distance)
        return verify_moved(solver, verified, solution)

    def _solve_on_own_draws(self, solver: Solver, solution: Solution, distance: float) -> Solution:
        """Return the solution at the learning rate that its own particles on the data give.

        `distance` is that of the draws so far from the matching learning rate. Draws that are not nearer are not used:
        further ones would move away, as where the loss is a step function.
        """
        for k in range(CONFIG.max_redraws):
            if solution.iterate.status not in HAS_PARTICLES:
                break
            problem = with_own_draws(solution).problem
            draws = draws_on_data(problem)
            try:
                if not draws.distance < distance:
                    break
                distance, rate = draws.distance, self.learning_rate(draws, problem.region.direction(problem.target.dim))
                moved = stay_at(solver, problem, solution.iterate, rate, f"method {k}")
            except STOPS as error:
                if processes_out_of_sync(error):
                    raise
                return replace(solution, iterate=stopped(solution.iterate, error))
            solution = with_earlier_run(self._describe_draws(moved, draws), solution)
            if draws.far_eta is None:
                break
        return solution

    def solve_again(self, solver, problem, iterate, draws):
        if self.is_global and iterate.eta_se_of_method is not None and iterate.status in HAS_PARTICLES:
            rate = _rate_of(iterate)
        else:
            rate = self.learning_rate(draws, problem.region.direction(problem.target.dim))
        return self._describe_draws(stay_at(solver, problem, iterate, rate), draws)

    def _describe_draws(self, solution: Solution, draws: DrawsOnData) -> Solution:
        """Return a solution with a diagnostic if the moments were estimated far from the matching learning rate."""
        if not self.uses_moments or draws.far_eta is None:
            return solution
        message = (
            f"The Hessian and the sandwich covariance were estimated from draws at eta = {draws.far_eta:.3g}, far from "
            f"the learning rate that matches them, {matching_eta(draws.moments.moments):.3g}. They depend on eta "
            'unless the posterior is normal. Compare with method="gpc".'
        )
        return with_diagnostics(solution, Diagnostic(Code.DRAWS_FAR_FROM_ETA, Severity.WARNING, 0, message))

    def interval_etas(self, problem, iterate, draws, level, vectors):  # noqa: ARG002
        if self.is_global:
            return [_rate_of(iterate)] * len(vectors)
        return [self.learning_rate(draws, vector) for vector in vectors]


def describe_host_nuisance(loss: object, method: Method, has_sandwich_shape: bool) -> tuple[Diagnostic, ...]:
    """Return a finding if a sandwich covariance is used that leaves out nuisance parameters fitted on the host."""
    used_by = f'method "{method.name}"' if method.uses_sandwich else 'shape="sandwich"' if has_sandwich_shape else ""
    if not used_by or not isinstance(loss, CountsRisk) or not loss.nuisance_on_host:
        return ()
    message = (
        f"The sandwich covariance that {used_by} uses leaves out the error of the nuisance parameters, because "
        "nuisance_on_host=True. That is valid only if the risk is that of an orthogonal score, such as those of "
        'calibayes.causal. Otherwise use method="gpc" without shape=, or write the nuisance with jax.numpy.'
    )
    return (Diagnostic(Code.NOT_RESOLVED, Severity.WARNING, 0, message),)


def draws_on_data(problem: CoverageProblem, iterate: Iterate | None = None) -> DrawsOnData:
    """Return the initial draws on the data; those of the iterate if they are far from the matching learning rate."""
    assert problem.initial is not None
    initial = Draws(problem.initial.particles, problem.initial.eta)
    candidates = [initial]
    if iterate is not None:
        candidates.append(Draws(problem.sampler.particles_on_data(iterate.state), iterate.sampled_eta))
    return DrawsOnData(problem.target, tuple(candidates), problem.bootstrap, problem.shape is not None, problem.key)


def stay_at(
    solver: Solver, problem: CoverageProblem, iterate: Iterate, rate: LearningRate, stage: str = "method"
) -> Solution:
    """Return the solution at a learning rate, from particles at another one; `stage` names it in the checkpoint.

    If the iterate has a coverage curve of this problem which contains the learning rate, nothing is sampled.
    """
    rule = Stay(rate.eta)
    has_curve = iterate.curve is not None and len(iterate.curve.etas) > 0
    if iterate.refined and has_curve and rule.reaches(iterate.sampled_eta, iterate.half_width):
        kept = tuple(finding for finding in iterate.diagnostics if finding.code not in ABOUT_THE_SEARCH)
        iterate = replace(problem.at_eta(iterate, rate.eta), status=Status.COMPUTED, diagnostics=kept)
        return state_error(Solution(problem, iterate, ()), rate)
    solver = replace(solver, rule=rule)
    start = solver.start_at(iterate.state, iterate.sampled_eta)
    return state_error(solver.search(problem, start, f"{stage} search", f"{stage} solution"), rate)


def state_error(solution: Solution, rate: LearningRate) -> Solution:
    """Return a solution with the error and the findings of the method, and one if coverage is off the level."""
    iterate = replace(solution.iterate, eta_se_of_method=rate.eta_se)
    findings = (*rate.findings, *_describe_coverage(iterate, solution.problem.level))
    return with_diagnostics(replace(solution, iterate=iterate), *findings)


def resolution_of(iterate: Iterate) -> tuple[Diagnostic, ...]:
    """Return the findings of an iterate about how closely its learning rate or its draws are determined."""
    return tuple(finding for finding in iterate.diagnostics if finding.code is Code.NOT_RESOLVED)


def _rate_of(iterate: Iterate) -> LearningRate:
    return LearningRate(iterate.eta, iterate.eta_se, resolution_of(iterate))


def with_diagnostics(solution: Solution, *findings: Diagnostic) -> Solution:
    """Return a solution with further diagnostics."""
    iterate = replace(solution.iterate, diagnostics=(*solution.iterate.diagnostics, *findings))
    return replace(solution, iterate=check_reliability(iterate))


def _describe_coverage(iterate: Iterate, level: float) -> tuple[Diagnostic, ...]:
    """Return a diagnostic if the coverage on the replicates differs from the level by more than its error."""
    if iterate.curve is None or not len(iterate.curve.etas):
        return ()
    difference = float(iterate.coverage) - level
    if abs(difference) <= CONFIG.n_errors * iterate.curve.coverage_se(level):
        return ()
    message = f"The {level:g} sets cover {float(iterate.coverage):.3f} of the bootstrap replicates at this eta."
    severity = Severity.WARNING if difference < -CONFIG.large_deficit * (1 - level) else Severity.INFO
    return (Diagnostic(Code.COVERAGE_OFF_LEVEL, severity, 0, message),)


def draw_near_matching_eta(solver: Solver, problem: CoverageProblem) -> CoverageProblem:
    """Return the problem with initial draws near the matching learning rate.

    Draws that are farther from it than those before them are not used.
    """
    if problem.draws is not None or problem.shape is not None:
        # Draws of the user are kept, and those that gave the shape are near.
        return problem
    nearest, distance = problem, math.inf
    for k in range(CONFIG.max_redraws + 1):
        draws = draws_on_data(problem)
        if not draws.distance < distance:
            break
        nearest, distance = problem, draws.distance
        if draws.far_eta is None or k == CONFIG.max_redraws:
            break
        key, eta = fold_key(problem.key, _REDRAW_STREAM, k), matching_eta(draws.moments.moments)
        assert problem.initial is not None
        draw = partial(problem.sampler.move_initial, key, problem.initial, eta)
        initial = solver.checkpoint.stage(f"initial draws at the matching eta {k}", draw)
        problem = replace(problem, target=initial.target, initial=initial)
    return nearest


def with_earlier_run(solution: Solution, first: Solution) -> Solution:
    """Return a solution with the trace of an earlier one on which it depends, and with its diagnostics.

    Those of how the earlier learning rate was found are left out, and those that are as serious in the later solution.
    """
    known = {(finding.code, finding.severity) for finding in solution.iterate.diagnostics}
    earlier = tuple(
        finding
        for finding in first.iterate.diagnostics
        if finding.code not in ABOUT_THE_SEARCH and (finding.code, finding.severity) not in known
    )
    final = replace(solution.iterate, diagnostics=(*earlier, *solution.iterate.diagnostics))
    numbered = (replace(record, iteration=len(first.trace) + record.iteration) for record in solution.trace)
    return replace(solution, iterate=check_reliability(final), trace=(*first.trace, *numbered))
