"""The audit of an answer and the fallback sampler: statuses, diagnostics and what is reported in each case."""

import time
from dataclasses import replace

import jax
import numpy as np
import pytest

import calibayes as cb
from calibayes._backend.time_limit import TimeLimitError
from calibayes._core.precision import PrecisionError
from calibayes._core.target import make_target
from calibayes.samplers.audit import Audit
from calibayes.solve import solver as solver_module
from calibayes.solve import verify as verify_module
from calibayes.solve.checkpoint import Checkpoint
from calibayes.solve.problem import CoverageProblem
from calibayes.solve.progress import Progress
from calibayes.solve.solver import Solver
from calibayes.solve.verify import FALLBACK_FRACTION, verify, verify_moved
from exact import gaussian_location_etas
from exact_sampler import CALLS, B, ExactSampler, make_location_problem, make_location_target
from example_results import run_findings
from targets import CoarseFloats, Flat

LEVEL = 0.9
ERROR, WARNING = cb.Severity.ERROR, cb.Severity.WARNING
WRONG = 1.5
"""Factor on the standard deviation of a sampler that is wrong: its answer is 2.25 times the exact one."""


@pytest.fixture(autouse=True)
def _no_calls_yet():
    CALLS.clear()


@pytest.fixture(scope="module")
def exact_etas():
    _, (_, y), counts = make_location_problem()
    return gaussian_location_etas(y, counts, LEVEL)


class Audits:
    """Replacement of the audit: outcomes of the test's choice, and the learning rates that were audited."""

    def __init__(self):
        self.outcomes: list[bool | BaseException] = []
        """Whether each audit fails, or what it raises."""
        self.etas: list[float] = []
        self.run_difference = 0.25
        """Difference of the critical levels of the two independent runs."""
        self.not_mixed: list[int] = []
        """Number of replicates that had not mixed, for each audit."""

    def run(self, key, target, particles, eta, region, point, not_mixed):
        self.not_mixed.append(int(not_mixed.sum()))
        outcome = self.outcomes[len(self.etas)]
        self.etas.append(eta)
        if isinstance(outcome, BaseException):
            raise outcome
        levels = np.full(20, 0.5)
        return Audit(np.arange(20), levels, np.stack([levels, levels + self.run_difference]), outcome)


@pytest.fixture
def audits(monkeypatch):
    audits = Audits()
    monkeypatch.setattr(verify_module, "audit", audits.run)
    return audits


def run(sampler, *, eta=1.0, target=None, max_iterations=50, rule=None, precision=None):
    problem = CoverageProblem(
        target or make_location_target(), sampler, cb.regions.Interval(0), LEVEL, "mean", jax.random.key(0)
    )
    rule, started = rule or cb.Bracket(), time.perf_counter()
    solver = Solver(rule, 0.011, max_iterations, Checkpoint(), Progress(), started, precision)
    return verify(solver, solver.solve(problem, eta))


def audited(**options):
    return ExactSampler.of_problem(is_audited=True, **options)


def findings(verified):
    return [(finding.code, finding.severity) for finding in verified.solution.iterate.diagnostics]


def test_samplers_are_not_audited_by_default(audits):
    verified = run(ExactSampler.of_problem())
    assert verified.solution.iterate.status is cb.Status.CONVERGED
    assert (verified.audited, verified.fell_back) == (False, False)
    assert not audits.etas


@pytest.mark.parametrize(("moved", "audited_later"), [(False, True), (True, False)])
def test_particles_of_a_run_that_was_stopped_after_the_audit_are_not_audited(audits, moved, audited_later):
    audits.outcomes = [False]
    verified = run(audited(replacement=ExactSampler.of_problem()))
    iterate = replace(verified.solution.iterate, status=cb.Status.TIME_LIMIT)
    if moved:
        iterate = replace(iterate, state=jax.tree.map(lambda leaf: leaf, iterate.state))
    later = replace(verified.solution, iterate=iterate)
    solver = Solver(cb.Bracket(), 0.011, 50, Checkpoint(), Progress(), time.perf_counter(), None)
    final = verify_moved(solver, verified, later)
    assert final.solution is later
    assert final.audited is audited_later


def test_passed_audit_changes_nothing(audits):
    audits.outcomes = [False]
    verified = run(audited(replacement=ExactSampler.of_problem()))
    iterate = verified.solution.iterate
    assert iterate.status is cb.Status.CONVERGED
    assert not iterate.diagnostics
    assert (verified.audited, verified.fell_back) == (True, False)
    # The audit compares particles, which are at the sampled learning rate.
    assert audits.etas == [iterate.sampled_eta]
    assert "fallback" not in CALLS


def test_failed_audit_is_followed_by_the_fallback(audits, exact_etas):
    """The first sampler is wrong, and the fallback right: the answer is the fallback's."""
    audits.outcomes = [True, False]
    wrong = audited(scale=WRONG, replacement=ExactSampler.of_problem())
    verified = run(wrong)
    iterate = verified.solution.iterate
    assert iterate.status is cb.Status.CONVERGED
    low, high = exact_etas
    assert 0.98 * low < iterate.eta < 1.02 * high
    # The failure of the first sampler does not make the answer of the second one unreliable.
    assert findings(verified) == [(cb.Code.AUDIT_FAILED, WARNING), (cb.Code.FALLBACK, WARNING)]
    assert "ExactSampler" in iterate.diagnostics[-1].message
    assert (verified.audited, verified.fell_back) == (True, True)
    assert verified.solution.problem.sampler.scale == 1.0
    # The fallback starts below the learning rate that was audited, and its trace follows the first one.
    first_eta, second_eta = audits.etas
    etas = [record.eta for record in verified.solution.trace]
    assert FALLBACK_FRACTION * first_eta in etas
    assert FALLBACK_FRACTION < 1
    assert second_eta == iterate.sampled_eta
    assert [record.iteration for record in verified.solution.trace] == list(range(1, len(etas) + 1))


def test_failed_audit_without_a_fallback_is_unreliable(audits):
    audits.outcomes = [True]
    verified = run(audited())
    assert verified.solution.iterate.status is cb.Status.UNRELIABLE
    assert findings(verified) == [(cb.Code.AUDIT_FAILED, ERROR)]
    assert (verified.audited, verified.fell_back) == (False, False)


def test_fallback_that_fails_the_audit_too_is_unreliable(audits):
    audits.outcomes = [True, True]
    verified = run(audited(replacement=ExactSampler.of_problem()))
    assert verified.solution.iterate.status is cb.Status.UNRELIABLE
    expected = [(cb.Code.AUDIT_FAILED, WARNING), (cb.Code.FALLBACK, WARNING), (cb.Code.AUDIT_FAILED, ERROR)]
    assert findings(verified) == expected
    assert verified.fell_back


@pytest.mark.parametrize("outcome", [ValueError("no prior"), KeyboardInterrupt()])
def test_fallback_that_is_not_audited_after_a_failed_audit_is_unreliable(audits, outcome):
    """Nothing confirms the second sampler, and the first one is known to be wrong."""
    audits.outcomes = [True, outcome]
    iterate = run(audited(replacement=ExactSampler.of_problem())).solution.iterate
    assert not iterate.status.is_success
    last = iterate.diagnostics[-1]
    assert (last.code, last.severity) == (cb.Code.AUDIT_FAILED, ERROR)
    assert "could not be audited" in last.message


def test_fallback_that_is_not_audited_without_a_failed_audit_is_accepted(audits):
    audits.outcomes = [ValueError("no prior")]
    verified = run(audited(n_unmixed=B // 2, replacement=ExactSampler.of_problem()))
    assert verified.solution.iterate.status is cb.Status.CONVERGED
    assert findings(verified)[-1] == (cb.Code.NOT_AUDITED, WARNING)


@pytest.mark.parametrize("in_fallback", [False, True])
def test_precision_that_is_too_low_is_not_a_failure_of_the_sampler(audits, in_fallback):
    """The calibration is then repeated in double precision."""
    audits.outcomes = [True if in_fallback else PrecisionError("too narrow")]

    class Coarse(ExactSampler):
        def init(self, key, target, initial, eta):
            raise PrecisionError("too narrow")

    with pytest.raises(PrecisionError):
        run(audited(scale=WRONG, replacement=Coarse.of_problem()))


@pytest.mark.parametrize("name", ["check_risk", "check_parameters"])
def test_rounding_errors_are_reported_without_another_sampler(audits, monkeypatch, name):
    monkeypatch.setattr(solver_module, "is_double", lambda: True)
    verified = run(audited(replacement=ExactSampler.of_problem()), precision=CoarseFloats(name))
    assert verified.solution.iterate.status is cb.Status.UNRELIABLE
    assert findings(verified) == [(cb.Code.ROUNDING, ERROR), (cb.Code.NOT_AUDITED, WARNING)]
    assert verified.solution.iterate.diagnostics[0].message == "Parameter 0 is near 1. Centre X."
    assert "fallback" not in CALLS
    assert not audits.etas


@pytest.mark.parametrize("name", ["check_risk", "check_parameters"])
def test_rounding_errors_in_single_precision_raise(name):
    with pytest.raises(PrecisionError):
        run(audited(), precision=CoarseFloats(name))


@pytest.mark.parametrize("error", [ValueError("no prior"), RuntimeError("too far")])
def test_fallback_that_raises_leaves_the_first_answer(audits, monkeypatch, error):
    audits.outcomes = [True]

    class Broken(ExactSampler):
        def init(self, key, target, initial, eta):
            raise error

    verified = run(audited(scale=WRONG, replacement=Broken.of_problem()))
    assert verified.solution.iterate.status is cb.Status.UNRELIABLE
    assert findings(verified) == [(cb.Code.AUDIT_FAILED, ERROR), (cb.Code.FALLBACK_FAILED, ERROR)]
    assert str(error) in verified.solution.iterate.diagnostics[-1].message
    assert (verified.audited, verified.fell_back) == (False, False)
    assert verified.solution.problem.sampler.scale == WRONG


def test_fallback_without_an_answer_keeps_its_status(audits):
    """The fallback's sets have the same size at every learning rate."""
    audits.outcomes = [True]
    verified = run(audited(replacement=ExactSampler.of_problem(scale=50.0, exponent=0.0)))
    assert verified.solution.iterate.status is cb.Status.NO_CROSSING
    expected = [(cb.Code.AUDIT_FAILED, WARNING), (cb.Code.NO_CROSSING, ERROR), (cb.Code.FALLBACK, WARNING)]
    assert findings(verified) == [*expected, (cb.Code.NOT_AUDITED, WARNING)]
    assert not verified.audited
    assert verified.fell_back
    assert len(audits.etas) == 1


def test_search_without_an_answer_is_followed_by_the_fallback(audits, exact_etas):
    """There is nothing to audit; the fallback starts below the learning rate of the initial draws."""
    audits.outcomes = [False]
    verified = run(audited(scale=1e-3, exponent=0.0, replacement=ExactSampler.of_problem()), eta=1.3)
    iterate = verified.solution.iterate
    assert iterate.status is cb.Status.CONVERGED
    low, high = exact_etas
    assert 0.98 * low < iterate.eta < 1.02 * high
    assert findings(verified) == [(cb.Code.NO_CROSSING, WARNING), (cb.Code.FALLBACK, WARNING)]
    assert [record.eta for record in verified.solution.trace].count(FALLBACK_FRACTION * 1.3) == 1
    assert verified.fell_back


def test_unreliable_particles_are_followed_by_the_fallback(audits):
    audits.outcomes = [False]
    verified = run(audited(n_unmixed=B // 2, replacement=ExactSampler.of_problem()))
    assert verified.solution.iterate.status is cb.Status.CONVERGED
    assert findings(verified) == [(cb.Code.NOT_MIXED, WARNING), (cb.Code.FALLBACK, WARNING)]


def test_fallback_that_has_not_mixed_is_accepted_if_independent_runs_agree(audits):
    """Particles that cannot move between modes, but are distributed as those of further runs from the prior."""
    audits.outcomes, audits.run_difference = [True, False], 0.02
    fallback = ExactSampler.of_problem(n_unmixed=B // 2)
    verified = run(audited(replacement=fallback))
    assert verified.solution.iterate.status is cb.Status.CONVERGED
    expected = [(cb.Code.AUDIT_FAILED, WARNING), (cb.Code.NOT_MIXED, WARNING), (cb.Code.FALLBACK, WARNING)]
    assert findings(verified) == expected
    assert "separate modes" in verified.solution.iterate.diagnostics[1].message
    assert audits.not_mixed == [0, B // 2]
    assert verified.audited


@pytest.mark.parametrize(("fails", "run_difference"), [(False, 0.1), (True, 0.02)])
def test_fallback_that_has_not_mixed_is_unreliable_if_runs_differ(audits, fails, run_difference):
    audits.outcomes, audits.run_difference = [True, fails], run_difference
    verified = run(audited(replacement=ExactSampler.of_problem(n_unmixed=B // 2)))
    assert verified.solution.iterate.status is cb.Status.UNRELIABLE
    assert (cb.Code.NOT_MIXED, ERROR) in findings(verified)


def test_search_at_its_limit_is_not_audited(audits):
    verified = run(audited(replacement=ExactSampler.of_problem()), eta=1e-3, max_iterations=1)
    assert verified.solution.iterate.status is cb.Status.MAX_ITERATIONS
    assert (verified.audited, verified.fell_back) == (False, False)
    assert not audits.etas


def test_interrupted_search_is_not_audited(audits, monkeypatch):
    def interrupted(self, target, state, eta, on_step):
        raise KeyboardInterrupt

    monkeypatch.setattr(ExactSampler, "move", interrupted)
    verified = run(audited(replacement=ExactSampler.of_problem()), eta=1e-3)
    assert verified.solution.iterate.status is cb.Status.INTERRUPTED
    assert not verified.audited
    assert not audits.etas


@pytest.mark.parametrize("error", [ValueError("the prior is wrong"), RuntimeError("the prior is wrong")])
def test_audit_that_raises_is_reported(audits, error):
    audits.outcomes = [error]
    verified = run(audited(replacement=ExactSampler.of_problem()))
    assert verified.solution.iterate.status is cb.Status.CONVERGED
    assert findings(verified) == [(cb.Code.NOT_AUDITED, WARNING)]
    assert "the prior is wrong" in verified.solution.iterate.diagnostics[0].message
    assert (verified.audited, verified.fell_back) == (False, False)


def test_prior_that_cannot_be_sampled_is_reported(audits):
    class Unsampled:
        def log_prob(self, theta):
            return Flat().log_prob(theta)

    _, data, counts = make_location_problem()
    target = make_target(cb.GibbsModel(cb.losses.Squared(), Unsampled()), data, counts, 1)
    verified = run(audited(replacement=ExactSampler.of_problem()), target=target)
    assert verified.solution.iterate.status is cb.Status.CONVERGED
    assert findings(verified) == [(cb.Code.NOT_AUDITED, WARNING)]
    assert not verified.audited
    assert not audits.etas


def test_interrupted_audit_keeps_the_answer(audits):
    audits.outcomes = [KeyboardInterrupt()]
    verified = run(audited(replacement=ExactSampler.of_problem()))
    iterate = verified.solution.iterate
    assert iterate.status is cb.Status.INTERRUPTED
    assert findings(verified) == [(cb.Code.NOT_AUDITED, WARNING)]
    assert abs(iterate.coverage - LEVEL) < 0.011
    assert 0 < iterate.eta_se < np.inf
    assert (verified.audited, verified.fell_back) == (False, False)


def test_audit_at_the_time_limit_keeps_the_answer(audits):
    audits.outcomes = [TimeLimitError()]
    verified = run(audited(replacement=ExactSampler.of_problem()))
    assert verified.solution.iterate.status is cb.Status.TIME_LIMIT
    assert findings(verified) == [(cb.Code.TIME_LIMIT, ERROR), (cb.Code.NOT_AUDITED, WARNING)]
    assert (verified.audited, verified.fell_back) == (False, False)


def test_interrupt_before_the_fallback_has_particles_keeps_the_first_answer(audits):
    audits.outcomes = [True]

    class Interrupted(ExactSampler):
        def init(self, key, target, initial, eta):
            raise KeyboardInterrupt

    verified = run(audited(scale=WRONG, replacement=Interrupted.of_problem()))
    assert verified.solution.iterate.status is cb.Status.INTERRUPTED
    assert findings(verified) == [(cb.Code.AUDIT_FAILED, ERROR), (cb.Code.FALLBACK_FAILED, ERROR)]
    assert verified.solution.problem.sampler.scale == WRONG


def test_interrupted_fallback_returns_its_best_iterate(audits):
    audits.outcomes = [True]

    class Interrupted(ExactSampler):
        def refine(self, target, state, on_step):
            raise KeyboardInterrupt

    verified = run(audited(scale=WRONG, replacement=Interrupted.of_problem()))
    assert verified.solution.iterate.status is cb.Status.INTERRUPTED
    expected = [(cb.Code.AUDIT_FAILED, WARNING), (cb.Code.FALLBACK, WARNING), (cb.Code.NOT_AUDITED, WARNING)]
    assert findings(verified) == expected
    assert verified.solution.problem.sampler.scale == 1.0
    assert len(audits.etas) == 1


def test_result_states_audit_and_fallback(audits):
    """`repaired_replicates` are all replicates, and the settings name the audited region and the final sampler."""
    model, data, counts = make_location_problem()
    options = {"level": LEVEL, "region": cb.regions.Interval(0), "bootstrap": counts, "progress": False}
    audits.outcomes = [False]
    passed = cb.calibrate(model, data, sampler=audited(), search=cb.Bracket(), **options)
    assert passed.settings["audited_region"] == passed.region.name
    assert not len(passed.repaired_replicates)
    audits.etas.clear()
    audits.outcomes = [True, False]
    wrong = audited(scale=WRONG, replacement=ExactSampler.of_problem())
    with pytest.warns(cb.CalibrationWarning, match="All replicates were therefore sampled again by ExactSampler"):
        replaced = cb.calibrate(model, data, sampler=wrong, search=cb.Bracket(), **options)
    assert replaced.converged
    assert replaced.repaired_replicates.tolist() == list(range(B))
    assert replaced.settings["sampler"].scale == 1.0
    # Findings about the sampler hold for other questions too.
    with pytest.warns(cb.CalibrationWarning):
        requeried = replaced.at(level=0.8)
    assert [d.code for d in run_findings(requeried)] == [cb.Code.AUDIT_FAILED, cb.Code.FALLBACK]
    assert requeried.converged


def test_unreliable_answer_makes_all_further_answers_unreliable(audits):
    model, data, counts = make_location_problem()
    audits.outcomes = [True]
    options = {"level": LEVEL, "region": cb.regions.Interval(0), "bootstrap": counts, "progress": False}
    with pytest.warns(cb.NotConvergedWarning):
        result = cb.calibrate(model, data, sampler=audited(), search=cb.Bracket(), **options)
    assert result.status is cb.Status.UNRELIABLE
    with pytest.warns(cb.NotConvergedWarning):
        requeried = result.at(level=0.8)
    assert requeried.status is cb.Status.UNRELIABLE
    assert [(d.code, d.severity) for d in run_findings(requeried)] == [(cb.Code.AUDIT_FAILED, ERROR)]
    with pytest.warns(cb.NotConvergedWarning):
        intervals = result.intervals()
    assert intervals.status == [cb.Status.UNRELIABLE]
    assert [d.code for d in intervals.diagnostics[0]] == [cb.Code.AUDIT_FAILED]


@pytest.mark.parametrize("error", [cb.CheckpointError("the disk is full"), KeyboardInterrupt()])
def test_errors_that_other_processes_do_not_know_of_end_the_audit(audits, monkeypatch, error):
    """A checkpoint that cannot be written, or an interrupt of one of several processes, is not a finding."""
    audits.outcomes = [error]
    monkeypatch.setattr(verify_module, "processes_out_of_sync", lambda error: isinstance(error, KeyboardInterrupt))
    with pytest.raises(type(error)):
        run(audited(replacement=ExactSampler.of_problem()))


@pytest.mark.parametrize("error", [cb.CheckpointError("the disk is full"), KeyboardInterrupt()])
def test_errors_that_other_processes_do_not_know_of_end_the_fallback(audits, monkeypatch, error):
    audits.outcomes = [True]
    monkeypatch.setattr(verify_module, "processes_out_of_sync", lambda error: isinstance(error, KeyboardInterrupt))

    class Broken(ExactSampler):
        def init(self, key, target, initial, eta):
            raise error

    with pytest.raises(type(error)):
        run(audited(scale=WRONG, replacement=Broken.of_problem()))
