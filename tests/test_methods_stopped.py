"""Methods whose runs are stopped, fall back to another sampler, or use draws far from their answer.

The problem is a normal mean with exact draws, whose matching learning rate is N over the sum of squared residuals.
"""

import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._backend.time_limit import TimeLimitError
from calibayes._core.curve import Curve
from calibayes._core.target import evaluate, make_target
from calibayes.methods import moments as moments_module
from calibayes.methods import studentized as studentized_module
from calibayes.methods.base import draw_near_matching_eta, draws_on_data, stay_at, with_earlier_run
from calibayes.methods.moments import (
    Draws,
    DrawsOnData,
    LearningRate,
    Moments,
    estimate_moments,
    require_full_rank,
    shaped,
)
from calibayes.methods.plug_in import LyddonHolmesWalker
from calibayes.methods.shape import sandwich_map
from calibayes.samplers.audit import Audit
from calibayes.solve import verify as verify_module
from calibayes.solve.checkpoint import Checkpoint
from calibayes.solve.problem import CoverageProblem
from calibayes.solve.progress import Progress
from calibayes.solve.solver import Solver
from calibayes.solve.stay import Stay
from exact_sampler import ExactSampler, N, make_location_problem, make_location_target
from example_results import run_findings

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
    """A wrong sampler whose fallback is exact, and audits that fail the first and pass those of the second."""
    outcomes = [True, False, False]
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
    # The draws of the fallback sampler are at the first, wrong learning rate: the formula is evaluated once more.
    assert codes(verified.solution) == [cb.Code.AUDIT_FAILED, cb.Code.FALLBACK]
    assert verified.audited
    # The learning rates of both samplers, and of both evaluations of the formula.
    assert [record.iteration for record in trace] == list(range(1, len(trace) + 1))
    assert trace[0].eta == pytest.approx(matching_eta() / 1.5**2, rel=0.01)
    assert trace[-1].eta == pytest.approx(matching_eta(), rel=0.01)


def test_draws_after_a_fallback_are_those_of_the_fallback_sampler(second_sampler):
    """So that the interval of a single parameter, which is computed from them, has the learning rate of the result."""
    verified = cb.methods.Matching().solve(make_solver(), make_problem(second_sampler), None)
    solution, initial = verified.solution, verified.solution.problem.initial
    assert initial.particles.theta.std() == pytest.approx((N * initial.eta) ** -0.5, rel=0.01)
    draws = draws_on_data(solution.problem, solution.iterate)
    (of_interval,) = cb.methods.Matching().interval_etas(None, None, draws, None, np.eye(1))
    assert of_interval.eta == pytest.approx(solution.iterate.eta, rel=1e-9)


def test_shape_of_draws_that_a_fallback_replaced_is_reported(second_sampler):
    model, data, counts = make_location_problem()
    options = {"method": "matching", "level": LEVEL, "bootstrap": counts, "progress": False}
    with pytest.warns(cb.CalibrationWarning, match="The shape is that of the draws of the first sampler"):
        shaped = cb.calibrate(model, data, sampler=second_sampler, shape="sandwich", **options)
    assert shaped.converged
    exact = cb.calibrate(model, data, sampler=ExactSampler.of_problem(), shape="sandwich", **options)
    assert run_findings(exact) == []


def test_particles_that_were_moved_after_the_audit_are_audited_too(monkeypatch):
    """Studentizing moves them to another learning rate. A failure there is an error, and without a move none is run."""
    outcomes, etas, levels = [], [], np.full(20, 0.5)

    def audit(key, target, particles, eta, *_):
        etas.append(eta)
        return Audit(np.arange(20), levels, np.stack([levels, levels]), outcomes.pop(0))

    monkeypatch.setattr(verify_module, "audit", audit)
    problem = make_problem(ExactSampler.of_problem(is_audited=True))
    # The move is needed if the curve of the first solution does not reach the studentized learning rate.
    monkeypatch.setattr(Stay, "reaches", lambda self, eta, _: self.eta == eta)
    for failed in (False, True):
        outcomes[:] = [False, failed]
        verified = cb.methods.StudentizedGPC().solve(make_solver(), problem, None)
        iterate = verified.solution.iterate
        assert etas[-1] == iterate.sampled_eta != etas[-2]
        assert verified.audited is not failed
        assert iterate.status is (cb.Status.UNRELIABLE if failed else cb.Status.COMPUTED)
    outcomes[:] = [False]
    etas.clear()
    verified = cb.methods.Fixed(2.0).solve(make_solver(), problem, None)
    assert verified.audited
    assert len(etas) == 1


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
    assert codes(merged) == [FINDING.code, *(code for code in own if code is not FINDING.code)]
    assert merged.iterate.status is cb.Status.UNRELIABLE
    assert [record.eta for record in merged.trace] == [record.eta for record in (*first.trace, *second.trace)]
    assert [record.iteration for record in merged.trace] == list(range(1, len(merged.trace) + 1))


def test_findings_about_the_particles_of_an_earlier_run_are_kept_unless_repeated():
    """The reported draws may come from it; the more serious of two findings counts."""
    finding = lambda code, severity, count: cb.Diagnostic(code, severity, count, f"{count} replicates.")
    collapsed = finding(cb.Code.ESS_COLLAPSED, cb.Severity.ERROR, 30)
    repaired = [finding(cb.Code.REPAIRED, cb.Severity.INFO, count) for count in (3, 5)]
    of_search = [finding(code, cb.Severity.ERROR, 0) for code in (cb.Code.MAX_ITERATIONS, cb.Code.NOT_RESOLVED)]
    run = cb.methods.Fixed(3.0).solve(make_solver(), make_problem(), None).solution
    first, second = (
        replace(run, iterate=replace(run.iterate, diagnostics=findings))
        for findings in ((collapsed, repaired[0], *of_search), (repaired[1],))
    )
    merged = with_earlier_run(second, first).iterate
    assert merged.diagnostics == (collapsed, repaired[1])
    assert merged.status is cb.Status.UNRELIABLE


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


def test_draws_of_the_user_that_are_far_are_replaced_by_those_of_the_sampler():
    """The formula is evaluated on the particles at its first answer, and the particles are the draws of the result."""
    problem = make_problem(eta=0.2)
    problem = replace(problem, draws=problem.initial.particles.theta[:, 0].T)
    solution = cb.methods.Matching().solve(make_solver(), problem, None).solution
    assert cb.Code.DRAWS_FAR_FROM_ETA not in codes(solution)
    assert solution.problem.initial.eta == pytest.approx(solution.iterate.eta, rel=0.01)


def test_draws_are_moved_to_the_matching_learning_rate_once():
    """By the sampler's own method, and not again after the shape has been computed from them."""
    moves = []

    class Moving(ExactSampler):
        def move_initial(self, key, initial, eta):
            moves.append(eta)
            return self.draw_initial(key, initial.target, eta, None)

    problem = draw_near_matching_eta(make_solver(), make_problem(Moving.of_problem(), eta=0.2))
    assert moves == [problem.initial.eta] == [pytest.approx(matching_eta(), rel=0.01)]
    shaped = replace(make_problem(Moving.of_problem(), eta=0.2), shape=np.eye(1))
    assert draw_near_matching_eta(make_solver(), shaped) is shaped


def test_draws_that_move_away_from_the_matching_learning_rate_are_not_used():
    """The standard deviation decreases as eta ** -2, so that the matching learning rate of draws grows as eta ** 3."""
    problem = make_problem(ExactSampler.of_problem(exponent=-2.0), eta=2.0)
    assert draw_near_matching_eta(make_solver(), problem).initial.eta == 2.0
    solution = cb.methods.Matching().solve(make_solver(), problem, None).solution
    assert solution.iterate.eta == pytest.approx(2.0**3 * matching_eta(), rel=0.01)
    assert "from draws at eta = 2," in next(
        finding.message for finding in solution.iterate.diagnostics if finding.code is cb.Code.DRAWS_FAR_FROM_ETA
    )


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


@pytest.mark.parametrize(
    ("bootstrap", "dof"),
    [
        (None, 11),
        (cb.bootstrap.Cluster(9, np.repeat([0, 1, 2], 4)), 2),
        (cb.bootstrap.Cluster(9, np.repeat(np.arange(6), 2), np.repeat([0, 1], 6)), 4),
        (cb.bootstrap.Stratified(9, np.repeat([0, 1, 2], 4)), 9),
        (cb.bootstrap.Block(9, length=3), 3),
    ],
)
def test_sandwich_needs_more_independent_units_than_parameters(bootstrap, dof):
    """Units less their means, of observations, clusters, strata and blocks."""
    rng = np.random.default_rng(0)
    x, y = np.ones((12, 1)), rng.normal(size=12)
    target = make_target(make_location_problem()[0], (x, y), np.ones((1, 12)), 1).replicate(0)
    particles = evaluate(target, jnp.asarray(rng.normal(size=(1, 1, 200)), float))
    moments = estimate_moments(target, particles, 1.0, bootstrap).moments
    assert moments.dof == moments.along(np.ones(1)).dof == shaped(moments).dof == dof
    for dim in (dof - 1, dof):
        many = Moments(np.eye(dim), np.eye(dim), moments.dof)
        if dim < dof:
            require_full_rank(many)
        else:
            with pytest.raises(ValueError, match=f"{dof} degrees of freedom"):
                require_full_rank(many)


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
