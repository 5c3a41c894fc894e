"""Verification of an answer by an independent sampler, and the fallback if it fails.

Importance weights cannot tell of a mode that no particle visited. A sampler that relies on them (`Sampler.audited`) is
therefore audited on some replicates by tempering from the prior (`calibayes.samplers.audit`). If the audit fails, or if
the search found no answer, the sampler's `fallback` samples every replicate anew.
"""

from dataclasses import dataclass, replace

from calibayes._backend.distributed import processes_out_of_sync
from calibayes._backend.rng import fold_key
from calibayes._backend.warnings import CheckpointError
from calibayes._core.status import Code, Diagnostic, Severity, Status
from calibayes.samplers.audit import Audit, audit
from calibayes.samplers.initial import InitialDraws
from calibayes.solve.bracket import Bracket
from calibayes.solve.iterate import Iterate
from calibayes.solve.robbins_monro import REFINEMENT
from calibayes.solve.solver import STOPS, Solution, Solver, SolverState, check_reliability, stopped
from calibayes.solve.stay import Stay

_FALLBACK_STREAM, _AUDIT_STREAM = 3, 4
"""Numbers folded into the key of the search, for independent random streams."""


@dataclass(frozen=True)
class Verified:
    """A solution, whether it passed an audit, and whether the fallback sampler produced it."""

    solution: Solution
    audited: bool
    fell_back: bool = False


def verify(solver: Solver, solution: Solution) -> Verified:
    """Audit a solution, and replace it by the fallback's if it is unreliable, or if there is no answer."""
    problem, iterate = solution.problem, solution.iterate
    if not problem.sampler.audited:
        return Verified(solution, audited=False)
    if iterate.status in (Status.MAX_ITERATIONS, Status.TIME_LIMIT, Status.INTERRUPTED):
        return Verified(_add(solution, Code.NOT_AUDITED, "Not audited: the search did not end."), audited=False)
    if not hasattr(problem.target.prior, "sample"):
        return Verified(_add(solution, Code.NOT_AUDITED, "Not audited: the prior cannot be sampled."), audited=False)
    if iterate.status is not None and iterate.status.is_success:
        solution, outcome = _audit(solver, solution, "audit")
        if outcome is None or not outcome.failed:
            return Verified(solution, audited=outcome is not None)
        solution = _add(solution, Code.AUDIT_FAILED, outcome.finding, Severity.ERROR)
    assert problem.initial is not None
    found_eta = iterate.status in (Status.CONVERGED, Status.COMPUTED, Status.UNRELIABLE)
    return _fall_back(solver, solution, iterate.sampled_eta if found_eta else problem.initial.eta)


def _fall_back(solver: Solver, first: Solution, eta: float) -> Verified:
    """Sample every replicate by the fallback sampler from `eta`, and audit its answer too."""
    problem = first.problem
    sampler = problem.sampler.fallback(problem.target.dim)
    unreliable = replace(first, iterate=check_reliability(first.iterate))
    if sampler is None:
        return Verified(unreliable, audited=False)
    solver.progress.phase("all replicates from the prior")
    assert problem.initial is not None
    initial = InitialDraws(problem.target, problem.initial.particles.merge_replicates(), problem.initial.eta)
    problem = replace(problem, sampler=sampler, initial=initial)
    rule = solver.rule if isinstance(solver.rule, Stay) else Bracket(closeness=REFINEMENT.closeness)
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
        return Verified(replace(failed, iterate=stopped(failed.iterate, error)), audited=False)
    except (ValueError, RuntimeError) as error:
        if processes_out_of_sync(error) or isinstance(error, CheckpointError):
            raise
        failed = _add(unreliable, Code.FALLBACK_FAILED, f"The fallback sampler failed too: {error}.", Severity.ERROR)
        return Verified(failed, audited=False)
    numbered = (replace(record, iteration=len(first.trace) + record.iteration) for record in second.trace)
    second = replace(second, trace=(*first.trace, *numbered))
    carried = tuple(
        replace(finding, severity=Severity.WARNING)
        for finding in first.iterate.diagnostics
        if finding.severity is Severity.ERROR
    )
    second = replace(second, iterate=_prepend(second.iterate, carried))
    message = (
        f"The first sampler was unreliable: every replicate was sampled by {type(sampler).__name__} from the prior."
    )
    second = _add(second, Code.FALLBACK, message)
    if second.iterate.status is None or not second.iterate.status.is_success:
        second = _add(second, Code.NOT_AUDITED, "Not audited: the fallback sampler found no answer.")
        return Verified(second, audited=False, fell_back=True)
    second, outcome = _audit(solver, second, "fallback audit")
    if outcome is not None and outcome.failed:
        message = f"The fallback sampler failed the audit too: {outcome.finding} Do not rely on this eta."
        second = _add(second, Code.AUDIT_FAILED, message, Severity.ERROR)
        second = replace(second, iterate=check_reliability(second.iterate))
    return Verified(second, audited=outcome is not None and not outcome.failed, fell_back=True)


def _audit(solver: Solver, solution: Solution, stage: str) -> tuple[Solution, Audit | None]:
    """Run the audit; return None, with the reason in the diagnostics, if it could not run."""
    problem, iterate = solution.problem, solution.iterate
    solver.progress.phase("audit from the prior")
    key = fold_key(problem.key, _AUDIT_STREAM)

    def run() -> Audit:
        point = problem.point(problem.sampler.data(iterate.state), iterate.sampled_eta)
        return audit(key, problem.target, iterate.state.particles, iterate.sampled_eta, problem.region, point)

    try:
        return solution, solver.checkpoint.stage(stage, run)
    except (ValueError, RuntimeError) as error:
        if processes_out_of_sync(error) or isinstance(error, CheckpointError):
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
