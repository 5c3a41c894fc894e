"""Methods whose runs are stopped, fall back to another sampler, or use draws far from their answer.

The problem is a normal mean with exact draws, whose matching learning rate is N over the sum of squared residuals.
"""

import time
from dataclasses import replace

import jax
import numpy as np
import pytest

import calibayes as cb
from calibayes._backend.time_limit import TimeLimitError
from calibayes._core.curve import Curve
from calibayes.methods import moments as moments_module
from calibayes.methods import studentized as studentized_module
from calibayes.methods.base import draws_on_data, stay_at, with_earlier_run
from calibayes.methods.moments import Draws, DrawsOnData, LearningRate, Moments
from calibayes.methods.plug_in import LyddonHolmesWalker
from calibayes.methods.shape import sandwich_map
from calibayes.samplers.audit import Audit
from calibayes.solve import verify as verify_module
from calibayes.solve.checkpoint import Checkpoint
from calibayes.solve.problem import CoverageProblem
from calibayes.solve.progress import Progress
from calibayes.solve.solver import Solver
from exact_sampler import ExactSampler, make_location_problem, make_location_target

LEVEL, REGION = 0.9, cb.regions.Interval(0)
FINDING = cb.Diagnostic(cb.Code.DATA_UNRELIABLE, cb.Severity.ERROR, 0, "The draws are unreliable.")


def make_solver():
    return Solver(cb.Bracket(), 0.011, 50, Checkpoint(), Progress(), time.perf_counter())


def make_problem(sampler=None, eta=1.0):
    sampler = ExactSampler.of_problem() if sampler is None else sampler
    problem = CoverageProblem(make_location_target(), sampler, REGION, LEVEL, "mean", jax.random.key(0))
    return make_solver().draw_initial(problem, eta)


def matching_eta():
    _, (_, y), _ = make_location_problem()
    return len(y) / np.square(y - y.mean()).sum()


def codes(solution):
    return [finding.code for finding in solution.iterate.diagnostics]


def raise_at_call(monkeypatch, owner, name, number, error):
    """Raise an error in the given call of a function, counted from one."""
    original, calls = getattr(owner, name), []

    def counted(*args, **options):
        calls.append(name)
        if len(calls) == number:
            raise error
        return original(*args, **options)

    monkeypatch.setattr(owner, name, counted)


@pytest.fixture
def second_sampler(monkeypatch):
    """A wrong sampler whose fallback is exact, and audits that fail the first and pass the second."""
    outcomes = [True, False]
    levels = np.full(20, 0.5)
    monkeypatch.setattr(
        verify_module, "audit", lambda *_: Audit(np.arange(20), levels, np.stack([levels, levels]), outcomes.pop(0))
    )
    return ExactSampler.of_problem(scale=1.5, is_audited=True, replacement=ExactSampler.of_problem())


# The fallback sampler


def test_formula_is_evaluated_again_on_the_draws_of_the_fallback_sampler(second_sampler):
    """A standard deviation that is wrong by 1.5 changes the matching learning rate by 1.5 ** 2."""
    problem = make_problem(second_sampler)
    verified = cb.methods.Matching().solve(make_solver(), problem, None)
    iterate, trace = verified.solution.iterate, verified.solution.trace
    assert verified.fell_back
    assert iterate.status is cb.Status.COMPUTED
    # Draws are quantiles, whose variance is too small by 0.3%.
    assert iterate.eta == pytest.approx(matching_eta(), rel=0.01)
    # The draws of the fallback sampler are at the first, wrong learning rate, which is reported.
    assert codes(verified.solution) == [cb.Code.AUDIT_FAILED, cb.Code.FALLBACK, cb.Code.DRAWS_FAR_FROM_ETA]
    # The learning rates of both samplers, and of both evaluations of the formula.
    assert [record.iteration for record in trace] == list(range(1, len(trace) + 1))
    assert trace[0].eta == pytest.approx(matching_eta() / 1.5**2, rel=0.01)
    assert trace[-1].eta == pytest.approx(matching_eta(), rel=0.01)


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt(), cb.Status.INTERRUPTED), (TimeLimitError(), cb.Status.TIME_LIMIT)]
)
def test_formula_that_is_stopped_after_the_fallback_keeps_its_answer(second_sampler, monkeypatch, error, status):
    problem = make_problem(second_sampler)
    # The fallback sampler moves once, to the first learning rate; the second move is to that of its own draws.
    raise_at_call(monkeypatch, ExactSampler, "move", 2, error)
    solution = cb.methods.Matching().solve(make_solver(), problem, None).solution
    assert solution.iterate.status is status
    assert solution.iterate.coverage > 0.5
    assert cb.Code.FALLBACK in codes(solution)


def test_findings_about_the_sampler_and_the_trace_of_an_earlier_run_are_kept():
    first = make_solver().solve(make_problem(), 1.0)
    crossing = replace(FINDING, code=cb.Code.SEVERAL_CROSSINGS)
    first = replace(first, iterate=replace(first.iterate, diagnostics=(FINDING, crossing)))
    second = cb.methods.Fixed(3.0).solve(make_solver(), make_problem(), None).solution
    own = codes(second)
    merged = with_earlier_run(second, first)
    assert codes(merged) == [FINDING.code, *own]
    assert merged.iterate.status is cb.Status.UNRELIABLE
    assert [record.eta for record in merged.trace] == [record.eta for record in (*first.trace, *second.trace)]
    assert [record.iteration for record in merged.trace] == list(range(1, len(merged.trace) + 1))


# Interrupts and time limits


def test_interrupted_run_without_a_curve_is_evaluated_at_another_learning_rate():
    """The coverage at 2% more is that of a run there, and not that of the missing curve, zero."""
    problem = make_problem()
    iterate = make_solver().solve(problem, 1.0).iterate
    empty = replace(iterate, curve=Curve.empty(iterate.coverage.n_replicates, LEVEL), status=cb.Status.INTERRUPTED)
    eta = 1.02 * iterate.sampled_eta
    moved = stay_at(make_solver(), problem, empty, LearningRate(eta, 0.0)).iterate
    expected = cb.methods.Fixed(eta).solve(make_solver(), problem, None).solution.iterate
    assert moved.status is cb.Status.COMPUTED
    assert moved.coverage == pytest.approx(float(expected.coverage), abs=0.011)
    assert moved.coverage > 0.5


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt(), cb.Status.INTERRUPTED), (TimeLimitError(), cb.Status.TIME_LIMIT)]
)
@pytest.mark.parametrize("name", ["stay_at", "_replicate_moments"])
def test_studentized_calibration_that_is_stopped_keeps_the_answer_of_gpc(monkeypatch, name, error, status):
    gpc = make_solver().solve(make_problem(), None)
    raise_at_call(monkeypatch, studentized_module, name, 1, error)
    solution = cb.methods.StudentizedGPC().solve(make_solver(), make_problem(), None).solution
    assert solution.iterate.status is status
    assert solution.iterate.eta == gpc.iterate.eta


# Draws far from the learning rate


def test_draws_far_from_the_matching_learning_rate_are_reported():
    """A factor of five; the formula is right nevertheless, because the posterior is normal."""
    method, far = cb.methods.Matching(), make_problem(eta=0.2)
    near = method.solve(make_solver(), far, None).solution
    assert cb.Code.DRAWS_FAR_FROM_ETA not in codes(near)
    iterate = make_solver().solve(far, 0.2).iterate
    draws = draws_on_data(far)
    resolved = method.solve_again(make_solver(), far, iterate, draws)
    assert codes(resolved).count(cb.Code.DRAWS_FAR_FROM_ETA) == 1
    assert "from draws at eta = 0.2" in resolved.iterate.diagnostics[-1].message
    assert resolved.iterate.status is cb.Status.COMPUTED
    assert resolved.iterate.eta == pytest.approx(matching_eta(), rel=0.01)
    fixed = cb.methods.Fixed(1.0).solve_again(make_solver(), far, iterate, draws)
    assert cb.Code.DRAWS_FAR_FROM_ETA not in codes(fixed)


def test_draws_of_the_user_are_not_replaced_but_reported():
    problem = make_problem(eta=0.2)
    problem = replace(problem, draws=problem.initial.particles.theta[:, 0].T)
    solution = cb.methods.Matching().solve(make_solver(), problem, None).solution
    assert cb.Code.DRAWS_FAR_FROM_ETA in codes(solution)


def test_first_draws_near_the_matching_learning_rate_are_used():
    near, far = make_problem(eta=matching_eta()), make_problem(eta=0.2)
    candidates = tuple(Draws(one.initial.particles, one.initial.eta) for one in (far, near))
    assert DrawsOnData(near.target, candidates, None).far_eta is None
    assert DrawsOnData(near.target, candidates[:1], None).far_eta == 0.2


def test_studentized_learning_rate_that_keeps_moving_is_reported(monkeypatch):
    near = cb.methods.StudentizedGPC().solve(make_solver(), make_problem(), None).solution
    assert cb.Code.DRAWS_FAR_FROM_ETA not in codes(near)
    monkeypatch.setattr(studentized_module, "CONFIG", replace(studentized_module.CONFIG, max_moves=0))
    moving = cb.methods.StudentizedGPC().solve(make_solver(), make_problem(), None).solution
    assert cb.Code.DRAWS_FAR_FROM_ETA in codes(moving)


# Moments


def test_singular_sandwich_is_rejected():
    """Three clusters for three parameters, whose sums of scores add up to zero."""
    scores = np.random.default_rng(0).normal(size=(3, 3))
    scores -= scores.mean(1, keepdims=True)
    singular = Moments(np.eye(3), scores @ scores.T)
    regular = Moments(np.eye(3), singular.sandwich + 1e-4 * np.eye(3))
    for use in (sandwich_map, formula_of(LyddonHolmesWalker())):
        use(regular)
        with pytest.raises(ValueError, match="3 parameters is singular: there are too few independent observations"):
            use(singular)


def formula_of(method):
    """Return the learning rate of a formula as a function of the moments."""

    class Known:
        def __init__(self, moments):
            self.moments = self
            self.known = moments

        def learning_rate(self, formula):
            return formula(self.known)

    return lambda moments: method.learning_rate(Known(moments), None)


def test_studentized_calibration_of_the_sandwich_shape_compares_derivatives_of_the_unshaped_posterior():
    """One eigenvalue of H^-1 J is so large that the shaped moments would differ from the derivatives by more than 3."""
    rng = np.random.default_rng(0)
    n, dim = 96, 4
    x = np.column_stack([np.ones(n), rng.normal(size=(n, dim - 1))])
    x[:, 1] *= np.where(np.arange(n) % 8 == 0, 10.0, 0.1)
    y = x @ [1.0, 2.0, 0.0, -1.0] + rng.normal(size=n) * (0.03 + np.abs(x[:, 1]))
    scores = x * (y - x @ np.linalg.lstsq(x, y)[0])[:, None]
    relative = np.linalg.solve(x.T @ x, scores.T @ scores)
    ratio = dim * np.trace(relative @ relative) / np.trace(relative) ** 2
    assert ratio > moments_module.CONFIG.max_ratio
    options = {"sampler": cb.Transport(n_particles=500), "bootstrap": cb.bootstrap.Multinomial(400)}
    result = cb.calibrate(
        cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=100.0)),
        (x, y),
        method="gpc-studentized",
        shape="sandwich",
        progress=False,
        **options,
    )
    assert result.converged
