r"""The interface of methods that report draws of another distribution than a posterior at one learning rate.

`result.draws` and the intervals are those of the distribution. `result.eta` is the learning rate of the posterior that
is as wide on average: with the Hessian $H$ and the covariance $\Sigma$ of the draws it is
$K / \mathrm{tr}(H \Sigma)$, and $[H^{-1}]_{kk} / \Sigma_{kk}$ for the interval of one parameter. The coverage is that
of the posterior at this learning rate, so that all methods are compared by one measure.
"""

import math
from abc import abstractmethod
from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from calibayes._backend.distributed import processes_out_of_sync
from calibayes._backend.functions import host_array
from calibayes._core.particles import Particles, host_moments, reweight_particles
from calibayes._core.status import Diagnostic
from calibayes._core.target import Target, evaluate
from calibayes.methods.base import (
    HAS_PARTICLES,
    Method,
    draw_near_matching_eta,
    draws_on_data,
    resolution_of,
    stay_at,
    with_earlier_run,
)
from calibayes.methods.moments import DrawsOnData, LearningRate, Moments, matching_eta
from calibayes.solve.iterate import Iterate
from calibayes.solve.problem import CoverageProblem
from calibayes.solve.solver import STOPS, Solution, Solver, stopped
from calibayes.solve.stay import Stay
from calibayes.solve.verify import verify, verify_moved


class ReportedDraws(NamedTuple):
    """Draws that a method reports.

    Attributes
    ----------
    particles : Particles
        The draws, on one replicate.
    n_effective : float
        Number of independent draws that determine the covariance as well.
    findings : tuple of Diagnostic
        Findings about the draws.
    """

    particles: Particles
    n_effective: float
    findings: tuple[Diagnostic, ...] = ()


class DrawsMethod(Method):
    """Base class of methods that report draws of another distribution than a posterior at one learning rate.

    Subclass it and define `draw`.

    Examples
    --------
    >>> import calibayes as cb
    >>> isinstance(cb.methods.BayesBag(), cb.methods.DrawsMethod)
    True
    """

    def sampling_eta(self) -> float | None:
        """Return the learning rate at which the replicates must have been sampled.

        Returns
        -------
        float or None
            Default: None, any learning rate near the matching one.
        """
        return None

    @abstractmethod
    def draw(self, problem: CoverageProblem, iterate: Iterate, draws: DrawsOnData) -> ReportedDraws:
        """Return the draws to report.

        Parameters
        ----------
        problem : CoverageProblem
            The problem.
        iterate : Iterate
            Particles on all replicates.
        draws : DrawsOnData
            Draws on the data, with their moments.

        Returns
        -------
        ReportedDraws
        """

    def check(self, model, bootstrap, shape, weights):  # noqa: ARG002
        if shape is not None:
            raise ValueError(f'method "{self.name}" has draws with a shape of their own. Use shape=None.')

    def solve(self, solver, problem, eta):  # noqa: ARG002
        problem = draw_near_matching_eta(solver, problem)
        first = self.sampling_eta() or matching_eta(draws_on_data(problem).moments.moments)
        solver = replace(solver, rule=Stay(first))
        verified = verify(solver, solver.solve_from_initial(problem, first))
        solution = verified.solution
        if solution.iterate.status not in HAS_PARTICLES:
            return verified
        draws = draws_on_data(solution.problem, solution.iterate)
        return verify_moved(solver, verified, self._report(solver, solution, draws))

    def solve_again(self, solver, problem, iterate, draws):
        solution, first = Solution(problem, iterate, ()), self.sampling_eta()
        if first is not None:
            solution = stay_at(solver, problem, iterate, LearningRate(first, 0.0), "first")
            if solution.iterate.status not in HAS_PARTICLES:
                return solution
        return self._report(solver, solution, draws)

    def _report(self, solver: Solver, first: Solution, draws: DrawsOnData) -> Solution:
        """Return the solution at the learning rate that matches the reported draws, and these draws."""
        problem, iterate = first.problem, first.iterate
        try:
            reported = self.draw(problem, iterate, draws)
            rate = _learning_rate(reported, problem.target, draws, problem.region.direction(problem.target.dim))
            solution = stay_at(solver, problem, iterate, rate)
        except STOPS as error:
            if processes_out_of_sync(error):
                raise
            return replace(first, iterate=stopped(iterate, error))
        solution = with_earlier_run(solution, first)
        iterate = replace(solution.iterate, reported=reported.particles, n_reported=reported.n_effective)
        return replace(solution, iterate=iterate)

    def interval_etas(self, problem, iterate, draws, level, vectors):  # noqa: ARG002
        if iterate.reported is None:
            return [None] * len(vectors)
        reported = ReportedDraws(iterate.reported, iterate.n_reported, resolution_of(iterate))
        return [_learning_rate(reported, problem.target, draws, vector) for vector in vectors]


def _learning_rate(
    reported: ReportedDraws, target: Target, draws: DrawsOnData, vector: Float[np.ndarray, " K"] | None
) -> LearningRate:
    """Return the matching learning rate, with the covariance of the reported draws in place of the sandwich."""
    covariance = host_moments(target.constrained(reported.particles))[1][0]

    def formula(moments: Moments) -> float:
        pair = Moments(moments.inverse_hessian, covariance)
        return matching_eta(pair if vector is None else pair.along(vector))

    rate = draws.moments.learning_rate(formula)
    n_directions = target.dim if vector is None else 1
    relative = math.sqrt(2 / (n_directions * reported.n_effective))
    return LearningRate(rate.eta, math.hypot(rate.eta_se, rate.eta * relative), reported.findings)


def replicates_at(iterate: Iterate, eta: float) -> Particles:
    """Return the particles of the bootstrap replicates at a learning rate near that of the sampler."""
    particles = iterate.state.particles
    if eta != iterate.sampled_eta:
        particles = reweight_particles(particles, host_array(eta - iterate.sampled_eta))
    return particles


def unconstrained(target: Target, theta: Float[np.ndarray, "K M"]) -> Float[np.ndarray, "K M"]:
    """Return the unbounded coordinates of parameters; NaN for draws with a parameter beyond its bounds."""
    points = jax.device_put(host_array(theta))
    z = target.coordinates.unconstrain(points)
    return np.where(np.asarray(target.coordinates.contain(points)), np.asarray(z), np.nan)


def as_particles_on_data(target: Target, z: Float[np.ndarray, "K M"]) -> Particles:
    """Return draws in unbounded coordinates as particles on the data."""
    return evaluate(target.replicate(0), host_array(z[:, None]))


def random_generator(draws: DrawsOnData, stream: int) -> np.random.Generator:
    """Return a random generator from the key of the calibration."""
    assert draws.key is not None
    return np.random.default_rng([*np.asarray(jax.random.key_data(draws.key)).ravel(), stream])
