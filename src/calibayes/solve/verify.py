"""Verification of an answer by an independent sampler, and the fallback if it fails.

Importance weights cannot tell of a mode that no particle visited. A sampler that relies on them (`Sampler.needs_audit`)
is therefore audited on some replicates by tempering from the prior or, for log-concave posteriors, by importance
sampling (`calibayes.samplers.audit`). If the audit fails, or if the search found no answer, the sampler's `fallback`
samples every replicate anew.

The fallback tempers from the prior, too. With separate modes its particles do not pass a test of mixing, because they
cannot move between modes, but tempering puts the right share of them into each mode. They are nevertheless accepted if
an audit of replicates that have not mixed passes, and if the two independent runs of this audit agree.
"""

import math
from dataclasses import dataclass, replace

import jax

from calibayes._backend.distributed import processes_out_of_sync
from calibayes._backend.rng import fold_key
from calibayes._backend.time_limit import has_time_limit
from calibayes._backend.warnings import CheckpointError
from calibayes._core.precision import PrecisionError
from calibayes._core.status import Code, Diagnostic, Severity, Status, worst
from calibayes.samplers.audit import Audit, audit
from calibayes.samplers.importance import can_importance_sample
from calibayes.samplers.initial import InitialDraws
from calibayes.solve.bracket import Bracket
from calibayes.solve.iterate import Iterate
from calibayes.solve.robbins_monro import INTERPOLATION
from calibayes.solve.solver import STOPS, Solution, Solver, SolverState, check_reliability, stopped
from calibayes.solve.stay import Stay

FALLBACK_FRACTION = 0.25
"""The fallback starts at this fraction of the first sampler's learning rate. Particles that miss a mode make eta too
large, and tempering to a larger eta is accurate where tempering to a smaller one is not: a minor mode, of which hardly
any particle remains, cannot grow again."""
EVALUATIONS_OF_FALLBACK = 200
"""Evaluations of the risk of all replicates to sample them from the prior. Order of magnitude."""
MAX_LOSSES_OF_FALLBACK = {"cpu": 2**41, "gpu": 2**46}
"""Largest number of losses (observations x particles x replicates x evaluations) of the fallback: about half an hour on
two cores, or on an accelerator. A larger one is only run under a time limit, which is taken as permission to try."""
_FALLBACK_STREAM, _AUDIT_STREAM = 3, 4
"""Numbers folded into the key of the search, for independent random streams."""


@dataclass(frozen=True)
class FinalSolution:
    """A solution, whether it passed an audit, and whether the fallback sampler produced it."""

    solution: Solution
    audited: bool = False
    fell_back: bool = False


def verify(solver: Solver, solution: Solution) -> FinalSolution:
    """Audit a solution, and replace it by the fallback's if it is unreliable, or if there is no answer."""
    problem, iterate = solution.problem, solution.iterate
    if not problem.sampler.needs_audit:
        return FinalSolution(solution)
    if iterate.status in (Status.MAX_ITERATIONS, Status.TIME_LIMIT, Status.INTERRUPTED):
        return FinalSolution(_add(solution, Code.NOT_AUDITED, "Not audited: the search did not end."))
    if not hasattr(problem.target.prior, "sample"):
        return FinalSolution(_add(solution, Code.NOT_AUDITED, "Not audited: the prior cannot be sampled."))
    if Code.ROUNDING in _errors(iterate):
        # Another sampler computes with the same floats.
        return FinalSolution(_add(solution, Code.NOT_AUDITED, "Not audited: rounding errors are too large."))
    if iterate.status is not None and iterate.status.is_success:
        solution, outcome = _audit(solver, solution, "audit")
        if outcome is None or not outcome.failed:
            return FinalSolution(solution, audited=outcome is not None)
        solution = _add(solution, Code.AUDIT_FAILED, outcome.finding, Severity.ERROR)
    if _has_no_crossing_for_certain(solution):
        message = "Not audited: there is no answer to audit."
        return FinalSolution(_add(solution, Code.NOT_AUDITED, message))
    assert problem.initial is not None
    found_eta = iterate.status in (Status.CONVERGED, Status.COMPUTED, Status.UNRELIABLE)
    return _fall_back(solver, solution, FALLBACK_FRACTION * (iterate.sampled_eta if found_eta else problem.initial.eta))


def verify_moved(solver: Solver, verified: FinalSolution, solution: Solution) -> FinalSolution:
    """Return a verified solution replaced by a later one, which is audited like the first if its particles differ."""
    if not verified.audited or solution.iterate.state is verified.solution.iterate.state:
        return replace(verified, solution=solution)
    if solution.iterate.status is None or not solution.iterate.status.is_success:
        return replace(verified, solution=solution, audited=False)
    solution, outcome = _audit(solver, solution, "last audit")
    if outcome is not None and outcome.failed:
        solution = _add(solution, Code.AUDIT_FAILED, outcome.finding, Severity.ERROR)
        solution = replace(solution, iterate=check_reliability(solution.iterate))
    return replace(verified, solution=solution, audited=outcome is not None and not outcome.failed)


def with_own_draws(solution: Solution) -> Solution:
    """Return a solution whose particles on the data take the place of the initial draws."""
    problem, iterate = solution.problem, solution.iterate
    on_data = problem.sampler.particles_on_data(iterate.state)
    initial = InitialDraws(problem.target, on_data, iterate.sampled_eta)
    return replace(solution, problem=replace(problem, initial=initial))


def _has_no_crossing_for_certain(solution: Solution) -> bool:
    """Return whether another sampler would find no crossing either.

    The posterior is log-concave, so that the particles cannot have missed a mode, its sets cover too often at every
    learning rate, and nothing else is wrong with the particles. An example are two classes that a plane separates: the
    loss vanishes on a set of parameters, and only the prior determines where in it they are.
    """
    problem, iterate = solution.problem, solution.iterate
    others = [finding for finding in iterate.diagnostics if finding.code is not Code.NO_CROSSING]
    covers = iterate.status is Status.NO_CROSSING and float(iterate.coverage) > problem.level
    return covers and can_importance_sample(problem.target) and worst(others) < Severity.WARNING


def _fall_back(solver: Solver, first: Solution, eta: float) -> FinalSolution:
    """Sample every replicate by the fallback sampler from `eta`, and audit its answer too."""
    problem = first.problem
    sampler = problem.sampler.fallback(problem.target.dim)
    unreliable = replace(first, iterate=check_reliability(first.iterate))
    if sampler is None:
        return FinalSolution(unreliable)
    n_losses = int(problem.target.counts.n) * problem.target.n_replicates * sampler.size(problem.target.dim)
    n_losses, limit = EVALUATIONS_OF_FALLBACK * n_losses, MAX_LOSSES_OF_FALLBACK.get(jax.default_backend(), math.inf)
    if n_losses > limit and not has_time_limit():
        message = (
            f"The fallback sampler, {type(sampler).__name__} from the prior, was not tried, because it would evaluate "
            f"the loss {n_losses:.0e} times. Use fewer replicates, a prior with a smaller scale or fewer parameters, "
            "or set a time limit (max_seconds=)."
        )
        failed = _add(unreliable, Code.FALLBACK_FAILED, message, Severity.ERROR)
        return FinalSolution(replace(failed, iterate=check_reliability(failed.iterate)))
    solver.progress.phase("all replicates from the prior")
    assert problem.initial is not None
    initial = InitialDraws(problem.target, problem.initial.particles.merge_replicates(), problem.initial.eta)
    problem = replace(problem, sampler=sampler, initial=initial)
    rule = solver.rule if isinstance(solver.rule, Stay) else Bracket(closeness=INTERPOLATION.closeness)
    solver = replace(solver, rule=rule)

    def start() -> SolverState:
        key = fold_key(problem.key, _FALLBACK_STREAM)
        return solver.start_at(sampler.init(key, problem.target, initial, eta), eta)

    try:
        second = solver.search(
            problem, solver.checkpoint.stage("fallback search", start), "fallback search", "fallback solution"
        )
    except STOPS as error:
        if processes_out_of_sync(error):
            raise
        failed = _add(unreliable, Code.FALLBACK_FAILED, "The fallback sampler did not end.", Severity.ERROR)
        return FinalSolution(replace(failed, iterate=stopped(failed.iterate, error)))
    except (ValueError, RuntimeError) as error:
        if processes_out_of_sync(error) or isinstance(error, CheckpointError | PrecisionError):
            raise
        failed = _add(
            unreliable,
            Code.FALLBACK_FAILED,
            f"The fallback sampler failed, too: {str(error).rstrip('.')}.",
            Severity.ERROR,
        )
        return FinalSolution(failed)
    numbered = (replace(record, iteration=len(first.trace) + record.iteration) for record in second.trace)
    # The initial draws are the first sampler's.
    second = with_own_draws(replace(second, trace=(*first.trace, *numbered)))
    carried = tuple(
        replace(finding, severity=Severity.WARNING)
        for finding in first.iterate.diagnostics
        if finding.severity is Severity.ERROR
    )
    second = replace(second, iterate=_prepend(second.iterate, carried))
    message = (
        "The first sampler was unreliable. All replicates were therefore sampled again by "
        f"{type(sampler).__name__}, which starts from the prior."
    )
    return _verify_fallback(solver, _add(second, Code.FALLBACK, message))


def _verify_fallback(solver: Solver, second: Solution) -> FinalSolution:
    """Audit the answer of the fallback sampler."""
    not_mixed_only = _errors(second.iterate) == {Code.NOT_MIXED}
    succeeded = second.iterate.status is not None and second.iterate.status.is_success
    if not succeeded and not not_mixed_only:
        second = _add(second, Code.NOT_AUDITED, "Not audited: the search with the fallback sampler did not converge.")
        return FinalSolution(second, fell_back=True)
    second, outcome = _audit(solver, second, "fallback audit")
    if outcome is not None and outcome.failed:
        message = f"The fallback sampler failed the audit too: {outcome.finding} Do not rely on this eta."
        second = _add(second, Code.AUDIT_FAILED, message, Severity.ERROR)
        second = replace(second, iterate=check_reliability(second.iterate))
    elif outcome is None and any(finding.code is Code.AUDIT_FAILED for finding in second.iterate.diagnostics):
        # The audit of the first sampler failed, and nothing has confirmed the second one.
        message = "The fallback sampler could not be audited. Do not rely on this eta."
        second = _add(second, Code.AUDIT_FAILED, message, Severity.ERROR)
        second = replace(second, iterate=check_reliability(second.iterate))
    elif outcome is not None and not_mixed_only and outcome.reproducible:
        status = Status.COMPUTED if isinstance(solver.rule, Stay) else Status.CONVERGED
        second = replace(second, iterate=_accept_not_mixed(second.iterate, status))
    return FinalSolution(second, audited=outcome is not None and not outcome.failed, fell_back=True)


def _errors(iterate: Iterate) -> set[Code]:
    """Return the codes of the errors of an iterate that has a status which they could have changed."""
    if iterate.status is not Status.UNRELIABLE:
        return set()
    return {finding.code for finding in iterate.diagnostics if finding.severity is Severity.ERROR}


def _accept_not_mixed(iterate: Iterate, status: Status) -> Iterate:
    """Return an iterate that succeeded, with a warning in place of the error that replicates have not mixed."""

    def accept(finding: Diagnostic) -> Diagnostic:
        if finding.code is not Code.NOT_MIXED or finding.severity is not Severity.ERROR:
            return finding
        message = (
            f"The particles of {finding.count:,} replicates do not move between separate modes. Their shares of the "
            "modes come from tempering, and agree with independent runs."
        )
        return replace(finding, severity=Severity.WARNING, message=message)

    return replace(iterate, status=status, diagnostics=tuple(map(accept, iterate.diagnostics)))


def _audit(solver: Solver, solution: Solution, stage: str) -> tuple[Solution, Audit | None]:
    """Run the audit; return None, with the reason in the diagnostics, if it could not run."""
    problem, iterate = solution.problem, solution.iterate
    solver.progress.phase("audit from the prior")
    key = fold_key(problem.key, _AUDIT_STREAM)

    def run() -> Audit:
        point = problem.point(problem.sampler.particles_on_data(iterate.state), iterate.sampled_eta)
        return audit(
            key,
            problem.target,
            iterate.state.particles,
            iterate.sampled_eta,
            problem.region,
            point,
            iterate.info.not_mixed,
        )

    try:
        return solution, solver.checkpoint.stage(stage, run)
    except (ValueError, RuntimeError) as error:
        if processes_out_of_sync(error) or isinstance(error, CheckpointError | PrecisionError):
            raise
        return _add(solution, Code.NOT_AUDITED, f"The audit could not run: {error}"), None
    except STOPS as error:
        if processes_out_of_sync(error):
            raise
        solution = replace(solution, iterate=stopped(iterate, error))
        return _add(solution, Code.NOT_AUDITED, "The audit did not end."), None


def _add(solution: Solution, code: Code, message: str, severity: Severity = Severity.WARNING) -> Solution:
    finding = Diagnostic(code, severity, 0, message)
    iterate = solution.iterate
    return replace(solution, iterate=replace(iterate, diagnostics=(*iterate.diagnostics, finding)))


def _prepend(iterate: Iterate, findings: tuple[Diagnostic, ...]) -> Iterate:
    return replace(iterate, diagnostics=(*findings, *iterate.diagnostics))
