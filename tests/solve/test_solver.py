"""The solver, with a sampler whose coverage is known exactly at every learning rate."""

import math
import time
from dataclasses import dataclass, replace

import equinox as eqx
import jax
import numpy as np
import pytest
from scipy.stats import norm

import calibayes as cb
from calibayes._backend.time_limit import TimeLimitError, time_limit
from calibayes.solve import problem as problem_module
from calibayes.solve.checkpoint import Checkpoint
from calibayes.solve.problem import CoverageProblem
from calibayes.solve.progress import Progress
from calibayes.solve.search import Evaluation, Request, Search, SearchState
from calibayes.solve.solver import Solver, SolverConfig
from exact import gaussian_location_coverage, gaussian_location_etas
from exact_sampler import CALLS, B, ExactSampler, make_location_problem, make_location_target

LEVEL = 0.9
OBSERVATIONS: list[Evaluation] = []


@pytest.fixture(autouse=True)
def _no_calls_yet():
    CALLS.clear()
    OBSERVATIONS.clear()


@pytest.fixture(scope="module")
def exact_etas():
    """The interval of learning rates at which coverage is exactly the level."""
    _, (_, y), counts = make_location_problem()
    return gaussian_location_etas(y, counts, LEVEL)


def exact_coverage(eta):
    _, (_, y), counts = make_location_problem()
    return gaussian_location_coverage(y, counts, eta, LEVEL)


def make_problem(**options):
    sampler = ExactSampler.of_problem(**options)
    return CoverageProblem(make_location_target(), sampler, cb.regions.Interval(0), LEVEL, "mean", jax.random.key(0))


def make_solver(rule, tolerance=0.011, max_iterations=50, progress=None):
    return Solver(rule, tolerance, max_iterations, Checkpoint(), progress or Progress(), time.perf_counter())


def solve(rule, eta=1.0, *, tolerance=0.011, max_iterations=50, **options):
    return make_solver(rule, tolerance, max_iterations).solve(make_problem(**options), eta)


def codes(iterate):
    return [finding.code for finding in iterate.diagnostics]


def raise_interrupt_at_call(monkeypatch, owner, name, number, error=KeyboardInterrupt):
    """Make the given call of a function raise an error before it does anything."""
    function, calls = getattr(owner, name), []

    def interrupted(*args, **options):
        calls.append(name)
        if len(calls) == number:
            raise error
        return function(*args, **options)

    monkeypatch.setattr(owner, name, interrupted)


@dataclass(frozen=True, kw_only=True)
class ScriptState(SearchState):
    position: int = 0


class Script(Search[ScriptState]):
    """Visit given learning rates with given requests, then end with a status."""

    requests: tuple[tuple[float, Request], ...] = eqx.field(static=True)
    status: cb.Status = eqx.field(static=True, default=cb.Status.CONVERGED)

    def init(self, eta):
        return ScriptState(eta=eta, request=self.requests[0][1])

    def update(self, state, evaluation):
        OBSERVATIONS.append(evaluation)
        position = state.position + 1
        if position == len(self.requests):
            return replace(state, status=self.status)
        eta, request = self.requests[position]
        return replace(state, eta=eta, request=request, position=position)


@dataclass(frozen=True, kw_only=True)
class BisectionState(SearchState):
    low: float
    high: float


class Bisection(Search[BisectionState]):
    """A third-party rule: halve an interval of log eta until coverage is within the tolerance."""

    low: float = eqx.field(static=True, default=0.01)
    high: float = eqx.field(static=True, default=100.0)

    def init(self, eta):
        return BisectionState(eta=eta, low=self.low, high=self.high)

    def update(self, state, evaluation):
        if abs(evaluation.coverage - evaluation.level) < evaluation.tolerance:
            return replace(state, status=cb.Status.CONVERGED)
        covers = evaluation.coverage > evaluation.level
        low, high = (state.eta, state.high) if covers else (state.low, state.eta)
        return replace(state, low=low, high=high, eta=math.sqrt(low * high))


# The known answer


@pytest.mark.parametrize("eta", [0.05, 1.0, 40.0])
@pytest.mark.parametrize("cheap", [True, False])
@pytest.mark.parametrize("excess", [1.0, 1.1])
def test_bracket_converges_to_the_exact_answer(exact_etas, eta, cheap, excess):
    """Coverage has steps of 1/100, and 1,000 quantiles place a critical eta to 1% (0.001 in level over a slope of 0.1).

    A sampler that needs refinement (`excess`) gives the same answer.
    """
    solution = solve(cb.Bracket(), eta, cheap=cheap, excess=excess)
    iterate = solution.iterate
    assert iterate.status is cb.Status.CONVERGED
    assert not iterate.diagnostics
    low, high = exact_etas
    assert 0.98 * low < iterate.eta < 1.02 * high
    assert abs(iterate.coverage - LEVEL) < 0.011
    assert abs(math.log(iterate.eta / iterate.sampled_eta)) <= 0.2
    assert 0 < iterate.eta_se < 0.5 * iterate.eta
    assert solution.trace[0].eta == eta


@pytest.mark.parametrize("interpolate", [True, False])
@pytest.mark.parametrize("excess", [1.0, 1.01])
def test_robbins_monro_converges_to_the_exact_answer(exact_etas, interpolate, excess):
    solution = solve(cb.RobbinsMonro(gain=3.0, interpolate=interpolate), 0.3, excess=excess)
    iterate = solution.iterate
    assert iterate.status is cb.Status.CONVERGED
    assert not iterate.diagnostics
    assert abs(exact_coverage(iterate.eta) - LEVEL) < 0.011 + 0.01
    if interpolate:
        low, high = exact_etas
        assert 0.98 * low < iterate.eta < 1.02 * high
    else:
        # The reported learning rate is one that the search visited, and its curve is around it.
        assert iterate.eta == iterate.sampled_eta == solution.trace[-1].eta
        assert iterate.curve is not None
        assert len(iterate.curve.etas)


@pytest.mark.parametrize("search", [cb.Bracket(), cb.RobbinsMonro(gain=3.0)], ids=["bracket", "robbins-monro"])
def test_solution_describes_the_exact_posterior(search):
    iterate = solve(search, 1.5).iterate
    _, (_, y), _ = make_location_problem()
    assert float(iterate.point[0]) == pytest.approx(y.mean(), abs=1e-5)
    weights = np.asarray(iterate.particles.weights[0], np.float64)
    theta = np.asarray(iterate.particles.theta[0, 0], np.float64)
    sd = np.sqrt(weights @ (theta - weights @ theta) ** 2)
    assert sd == pytest.approx((iterate.eta * len(y)) ** -0.5, rel=0.02)


# Requests and their order


@pytest.mark.parametrize(
    ("request_", "refined", "has_curve"),
    [
        (Request.COVERAGE, False, False),
        (Request.REFINED_COVERAGE, True, False),
        (Request.ROUGH_CURVE, False, True),
        (Request.REFINED_CURVE, True, True),
    ],
)
def test_observation_answers_the_request(request_, refined, has_curve):
    solution = solve(Script(((0.8, request_),)), 0.8, excess=1.3)
    (evaluation,) = OBSERVATIONS
    assert (evaluation.eta, evaluation.level, evaluation.tolerance) == (0.8, LEVEL, 0.011)
    assert evaluation.refined is refined
    assert math.isnan(evaluation.crossing) is not has_curve
    assert math.isnan(evaluation.half_width) is not has_curve
    # Unrefined particles are 1.3 times too wide, as they would be at a smaller learning rate.
    assert evaluation.coverage == pytest.approx(exact_coverage(0.8 if refined else 0.8 / 1.3**2), abs=0.011)
    if has_curve:
        assert 0.1 < evaluation.half_width <= 0.6
    # The final iterate is refined in any case.
    assert solution.iterate.refined
    assert CALLS.count("refine") == 1


@pytest.mark.parametrize("cheap", [True, False])
def test_curve_if_cheap_is_a_full_one_if_refinement_is_cheap(cheap):
    solution = solve(Script(((0.8, Request.REFINED_CURVE_IF_CHEAP),)), 0.8, excess=1.3, cheap=cheap)
    (evaluation,) = OBSERVATIONS
    assert evaluation.refined is cheap
    # The result has a full curve of refined particles, whatever led to it.
    assert len(solution.iterate.curve.etas) == 15
    assert solution.iterate.refined
    assert len(solution.trace) == (1 if cheap else 2)


def test_sampler_is_asked_in_the_documented_order():
    solve(Script(((0.8, Request.COVERAGE), (0.9, Request.ROUGH_CURVE), (0.9, Request.REFINED_CURVE))), 0.8, excess=1.3)
    assert CALLS == ["draw_initial", "init", "info", "move", "info", "refine", "info"]


def test_sampler_proposes_the_first_learning_rate_by_default():
    solution = solve(Script(((2.0, Request.COVERAGE),)), None)
    assert CALLS == ["draw_initial", "initial_eta", "init", "info", "refine"]
    assert solution.trace[0].eta == 2.0


def test_trace_has_one_record_per_evaluation():
    """Curves add none; refinement adds one only if it changed the state."""
    requests = (
        (0.8, Request.COVERAGE),
        (0.8, Request.ROUGH_CURVE),
        (0.9, Request.COVERAGE),
        (0.9, Request.REFINED_COVERAGE),
        (0.9, Request.REFINED_CURVE),
    )
    for excess, etas in ((1.3, [0.8, 0.9, 0.9]), (1.0, [0.8, 0.9])):
        trace = solve(Script(requests), 0.8, excess=excess).trace
        assert [record.eta for record in trace] == etas
        assert [record.iteration for record in trace] == list(range(1, len(etas) + 1))
        assert (np.diff([record.seconds for record in trace]) > 0).all()
        assert trace[0].ess == trace[0].ess_min == 1000
        assert trace[0].intervals.shape == (1, 2)


def test_bracket_requests_rough_curves_first_and_a_full_curve_at_the_end():
    solve(cb.Bracket(), 20.0, excess=1.1)
    assert CALLS[:4] == ["draw_initial", "init", "refine_is_cheap", "info"]
    assert CALLS[-2:] == ["refine", "info"]
    assert CALLS.count("refine_is_cheap") == 1
    moves = CALLS.count("move")
    assert 1 <= moves <= 5
    assert CALLS.count("info") == moves + 1 + CALLS.count("refine")


class EndsElsewhere(Script):
    """End at a learning rate that was visited, but is neither the latest nor the one with the best coverage."""

    def update(self, state, evaluation):
        state = super().update(state, evaluation)
        return state if state.status is None else replace(state, eta=self.requests[0][0])


def test_answer_at_an_earlier_learning_rate_is_sampled_again():
    """The solver keeps only the latest and the best iterate."""
    script = tuple((eta, Request.COVERAGE) for eta in (0.01, 1.0, 30.0))
    solution = solve(EndsElsewhere(script), 0.01, excess=1.1)
    assert solution.iterate.status is cb.Status.CONVERGED
    assert solution.iterate.eta == solution.iterate.sampled_eta == 0.01
    assert solution.iterate.refined
    assert [record.eta for record in solution.trace] == [0.01, 1.0, 30.0, 0.01]
    assert CALLS[-3:] == ["move", "refine", "info"]


# How a search ends without an answer


def test_iteration_limit_returns_the_best_iterate():
    """Coverage is 1, then too small, then smaller still: the second learning rate is the best of the three."""
    script = tuple((eta, Request.COVERAGE) for eta in (0.01, 2.0, 30.0, 50.0))
    solution = solve(Script(script), 0.01, max_iterations=3)
    assert [record.eta for record in solution.trace] == [0.01, 2.0, 30.0]
    assert solution.iterate.status is cb.Status.MAX_ITERATIONS
    assert solution.iterate.eta == 2.0
    assert solution.iterate.coverage == solution.trace[1].coverage
    (finding,) = solution.iterate.diagnostics
    assert (finding.code, finding.severity) == (cb.Code.MAX_ITERATIONS, cb.Severity.ERROR)
    assert "after 3 iterations" in finding.message
    assert len(solution.iterate.curve.etas) == 15


def test_iteration_limit_counts_learning_rates_and_not_requests():
    requests = ((0.8, Request.COVERAGE), (0.8, Request.REFINED_COVERAGE), (0.8, Request.REFINED_CURVE))
    assert solve(Script(requests), 0.8, max_iterations=1).iterate.status is cb.Status.CONVERGED
    moving = (*requests, (0.9, Request.COVERAGE))
    assert solve(Script(moving), 0.8, max_iterations=1).iterate.status is cb.Status.MAX_ITERATIONS
    assert solve(Script(moving), 0.8, max_iterations=2).iterate.status is cb.Status.CONVERGED


def test_best_iterate_at_the_limit_is_refined():
    script = tuple((eta, Request.COVERAGE) for eta in (2.0, 30.0, 50.0))
    solution = solve(Script(script), 2.0, max_iterations=2, excess=1.1)
    assert solution.iterate.eta == 2.0
    assert solution.iterate.refined
    assert [record.eta for record in solution.trace] == [2.0, 30.0, 2.0]
    assert solution.iterate.coverage == pytest.approx(exact_coverage(2.0), abs=0.011)


def test_interpolation_may_follow_the_last_iteration(exact_etas):
    """A stochastic search that has met its tolerance is interpolated although its last iteration is over."""
    low, high = exact_etas
    solution = solve(cb.RobbinsMonro(), float(0.6 * low), tolerance=0.1, max_iterations=1)
    assert solution.iterate.status is cb.Status.CONVERGED
    assert not solution.iterate.diagnostics
    assert len(solution.trace) == 2
    assert 0.98 * low < solution.iterate.eta < 1.02 * high


@pytest.mark.parametrize(("eta", "direction"), [(1e-3, "larger"), (1e3, "smaller")])
def test_one_sided_stochastic_search_states_the_direction(eta, direction):
    iterate = solve(cb.RobbinsMonro(gain=0.1), eta, max_iterations=3).iterate
    (finding,) = iterate.diagnostics
    assert finding.code is cb.Code.MAX_ITERATIONS
    assert f"Eta must be {direction} still" in finding.message
    assert "eta_init" in finding.message


@pytest.mark.parametrize(
    ("scale", "coverage", "search_range", "words"),
    [(50.0, 1.0, 1e5, "still cover more than 0.9"), (1e-3, 0.0, 1e9, "up covers at 0.9: the largest coverage is")],
    ids=["sets too large", "sets too small"],
)
def test_no_crossing_is_reported_in_both_directions(scale, coverage, search_range, words):
    """The sets of this sampler have the same size at every learning rate."""
    solution = solve(cb.Bracket(), 1.0, scale=scale, exponent=0.0)
    iterate = solution.iterate
    assert iterate.status is cb.Status.NO_CROSSING
    (finding,) = iterate.diagnostics
    assert (finding.code, finding.severity) == (cb.Code.NO_CROSSING, cb.Severity.ERROR)
    assert words in finding.message
    assert iterate.coverage == pytest.approx(coverage, abs=0.05)
    etas = [record.eta for record in solution.trace]
    assert search_range / 100 < max(etas[-1] / etas[0], etas[0] / etas[-1]) < search_range
    assert np.isfinite(iterate.curve.critical_levels).all()


@pytest.mark.parametrize(
    ("etas", "words"),
    [((0.5, 50.0), "does not decrease steadily"), ((50.0, 0.01), "still cover more than 0.9")],
)
def test_no_crossing_describes_the_visited_learning_rates(etas, words):
    rule = Script(tuple((eta, Request.COVERAGE) for eta in etas), cb.Status.NO_CROSSING)
    iterate = solve(rule, etas[0]).iterate
    (finding,) = iterate.diagnostics
    assert finding.code is cb.Code.NO_CROSSING
    assert words in finding.message


def test_unreachable_learning_rate_ends_with_the_best_iterate():
    solution = solve(cb.RobbinsMonro(gain=3.0), 0.3, max_eta=0.6)
    iterate = solution.iterate
    assert iterate.status is cb.Status.NOT_REACHED
    (finding,) = iterate.diagnostics
    assert (finding.code, finding.severity) == (cb.Code.NOT_REACHED, cb.Severity.ERROR)
    assert iterate.eta <= 0.6
    assert iterate.eta == min(solution.trace, key=lambda record: abs(record.coverage - LEVEL)).eta
    assert all(record.eta <= 0.6 for record in solution.trace)


def test_unreachable_first_learning_rate_raises():
    with pytest.raises(RuntimeError, match=r"101 replicates did not reach eta = 0\.3"):
        solve(cb.Bracket(), 0.3, max_eta=0.1)


def test_diagnostics_of_severity_error_make_the_answer_unreliable():
    """More than a quarter of 1 - level: 3 of 100 replicates at level 0.9."""
    many = solve(cb.Bracket(), 1.0, n_unmixed=3).iterate
    assert many.status is cb.Status.UNRELIABLE
    assert [(d.code, d.severity, d.count) for d in many.diagnostics] == [(cb.Code.NOT_MIXED, cb.Severity.ERROR, 3)]
    few = solve(cb.Bracket(), 1.0, n_unmixed=2).iterate
    assert few.status is cb.Status.CONVERGED
    assert [(d.code, d.severity, d.count) for d in few.diagnostics] == [(cb.Code.NOT_MIXED, cb.Severity.WARNING, 2)]
    assert few.eta == many.eta


def test_unknown_standard_error_is_reported(monkeypatch):
    monkeypatch.setattr("calibayes._core.curve.Curve.eta_se", lambda self, level=None: math.inf)
    monkeypatch.setattr("calibayes.solve.solver.CONFIG", SolverConfig(slope_range=0.0))
    iterate = solve(cb.Bracket(), 1.0).iterate
    assert iterate.status is cb.Status.CONVERGED
    assert [(d.code, d.severity) for d in iterate.diagnostics] == [(cb.Code.ETA_SE_UNKNOWN, cb.Severity.WARNING)]


def test_standard_error_from_the_trace_replaces_one_that_the_curve_does_not_give(monkeypatch):
    """From the slope of coverage at the learning rates visited: z phi(z) per unit of log eta for a normal posterior."""
    monkeypatch.setattr("calibayes._core.curve.Curve.eta_se", lambda self, level=None: math.inf)
    answer = solve(cb.Bracket()).iterate.eta
    steps = tuple((factor * answer, Request.REFINED_COVERAGE) for factor in (0.6, 0.8, 1.2, 1.0))
    iterate = solve(Script(steps), 0.6 * answer).iterate
    assert not iterate.diagnostics
    z = norm.ppf(0.5 + 0.5 * LEVEL)
    expected = answer * math.sqrt(LEVEL * (1 - LEVEL) / B) / (z * norm.pdf(z))
    assert 0.5 * expected < iterate.eta_se < 2 * expected


# Interrupts


INTERRUPTIONS = [
    (cb.Bracket(), ExactSampler, "refine", 1),
    (cb.Bracket(), ExactSampler, "move", 1),
    (cb.Bracket(), ExactSampler, "move", 2),
    (cb.Bracket(), problem_module, "local_curve", 1),
    (cb.Bracket(), problem_module, "local_curve", 2),
    (cb.Bracket(), CoverageProblem, "at_crossing", 1),
    (cb.RobbinsMonro(gain=3.0), ExactSampler, "move", 2),
    (cb.RobbinsMonro(gain=3.0), ExactSampler, "refine", 1),
    (cb.RobbinsMonro(gain=3.0), problem_module, "local_curve", 1),
    (cb.RobbinsMonro(gain=3.0, interpolate=False), problem_module, "local_curve", 1),
]


@pytest.mark.parametrize("cheap", [True, False])
@pytest.mark.parametrize(
    ("rule", "owner", "name", "number"),
    INTERRUPTIONS,
    ids=[f"{type(rule).__name__}-{name}-{number}" for rule, _, name, number in INTERRUPTIONS],
)
def test_interrupted_search_returns_the_best_iterate(monkeypatch, rule, owner, name, number, cheap):
    raise_interrupt_at_call(monkeypatch, owner, name, number)
    solution = solve(rule, 0.02, excess=1.01, cheap=cheap)
    iterate = solution.iterate
    assert iterate.status is cb.Status.INTERRUPTED
    assert not iterate.diagnostics
    # A refined iterate replaces an unrefined one at the same learning rate.
    last = {record.eta: abs(record.coverage - LEVEL) for record in solution.trace}
    assert abs(iterate.coverage - LEVEL) == min(last.values())
    assert iterate.eta in [record.eta for record in solution.trace]
    assert iterate.curve is not None
    assert np.isfinite(np.asarray(iterate.particles.theta)).all()


@pytest.mark.parametrize(("rule", "owner", "name", "number"), INTERRUPTIONS[:5])
def test_search_at_the_time_limit_returns_the_best_iterate(monkeypatch, rule, owner, name, number):
    raise_interrupt_at_call(monkeypatch, owner, name, number, TimeLimitError)
    solution = solve(rule, 0.02, excess=1.01)
    iterate = solution.iterate
    assert iterate.status is cb.Status.TIME_LIMIT
    assert [(d.code, d.severity) for d in iterate.diagnostics] == [(cb.Code.TIME_LIMIT, cb.Severity.ERROR)]
    last = {record.eta: abs(record.coverage - LEVEL) for record in solution.trace}
    assert abs(iterate.coverage - LEVEL) == min(last.values())


class Sleeping(Progress):
    """Sleep after the first evaluation, until the time limit has passed."""

    def iteration(self, number, eta, coverage, ess):
        time.sleep(1.1)


def test_programs_that_complete_the_answer_run_after_the_time_limit():
    solve(cb.Bracket(), 0.02, excess=1.01)
    with time_limit(1.0):
        solution = make_solver(cb.Bracket(), progress=Sleeping()).solve(make_problem(excess=1.01), 0.02)
    assert solution.iterate.status is cb.Status.TIME_LIMIT
    assert [record.eta for record in solution.trace] == [0.02]
    assert solution.iterate.curve is not None


@pytest.mark.parametrize("name", ["draw_initial", "init"])
def test_time_limit_before_the_first_evaluation_raises(monkeypatch, name):
    raise_interrupt_at_call(monkeypatch, ExactSampler, name, 1, TimeLimitError)
    with pytest.raises(TimeoutError):
        solve(cb.Bracket(), None)


class InterruptedAtTheEnd(Checkpoint):
    def put(self, name, value):
        if name == "solution":
            raise KeyboardInterrupt
        super().put(name, value)


@pytest.mark.parametrize("out_of_sync", [False, True])
def test_interrupt_while_the_answer_is_saved_keeps_it(monkeypatch, out_of_sync):
    """The answer is complete; only if another process may not have it, the interrupt is raised."""
    monkeypatch.setattr("calibayes.solve.solver.processes_out_of_sync", lambda error: out_of_sync)
    solver = replace(make_solver(cb.Bracket()), checkpoint=InterruptedAtTheEnd())
    if out_of_sync:
        with pytest.raises(KeyboardInterrupt):
            solver.solve(make_problem(), 1.0)
    else:
        assert solver.solve(make_problem(), 1.0).iterate.status is cb.Status.CONVERGED


@pytest.mark.parametrize("name", ["draw_initial", "initial_eta", "init", "info"])
def test_interrupt_before_the_first_evaluation_raises(monkeypatch, name):
    raise_interrupt_at_call(monkeypatch, ExactSampler, name, 1)
    with pytest.raises(KeyboardInterrupt):
        solve(cb.Bracket(), None)


def test_interrupted_first_refinement_returns_the_unrefined_iterate(monkeypatch):
    """The refinement comes before the first evaluation if it is cheap: the state before it is then evaluated."""
    raise_interrupt_at_call(monkeypatch, ExactSampler, "refine", 1)
    solution = solve(cb.Bracket(), 0.7, excess=1.1, cheap=True)
    assert solution.iterate.status is cb.Status.INTERRUPTED
    assert solution.iterate.eta == 0.7
    assert not solution.iterate.refined
    assert [record.eta for record in solution.trace] == [0.7]


# Rules of third parties


def test_third_party_search_rule_converges():
    solution = solve(Bisection(), 1.0)
    iterate = solution.iterate
    assert iterate.status is cb.Status.CONVERGED
    assert abs(iterate.coverage - LEVEL) < 0.011
    assert iterate.eta == iterate.sampled_eta == solution.trace[-1].eta
    assert abs(exact_coverage(iterate.eta) - LEVEL) < 0.011 + 0.01
    assert 0 < iterate.eta_se < math.inf


def test_third_party_search_rule_and_sampler_work_with_calibrate():
    model, data, counts = make_location_problem()
    result = cb.calibrate(
        model,
        data,
        level=LEVEL,
        region=cb.regions.Interval(0),
        sampler=ExactSampler.of_problem(),
        search=Bisection(),
        bootstrap=counts,
        tolerance=0.011,
        progress=False,
    )
    assert result.status is cb.Status.CONVERGED
    assert abs(exact_coverage(result.eta) - LEVEL) < 0.011 + 0.01
    assert result.draws.mean() == pytest.approx(data[1].mean(), abs=0.05)


# Progress


def test_progress_is_reported():
    events = []

    class Recorder(Progress):
        def phase(self, name):
            events.append(name)

        def fraction_done(self, done):
            events.append(done)

        def iteration(self, number, eta, coverage, ess):
            events.append((number, eta))

    requests = ((0.8, Request.COVERAGE), (0.9, Request.REFINED_CURVE))
    make_solver(Script(requests), progress=Recorder()).solve(make_problem(excess=1.1), 0.8)
    assert events == [
        "initial draws on the data",
        "bootstrap replicates",
        (1, 0.8),
        "to eta 0.9",
        1.0,
        "refinement of the particles",
        1.0,
        (2, 0.9),
        "coverage curve",
    ]


@pytest.mark.parametrize("rule", [cb.RobbinsMonro(gain=1e-20), cb.Bracket(closeness=1e-20)], ids=["gain", "closeness"])
def test_rule_that_does_not_move_ends_at_the_limit(rule):
    solution = solve(rule, 0.02, max_iterations=5)
    assert solution.iterate.status in (cb.Status.MAX_ITERATIONS, cb.Status.NO_CROSSING)
