"""What makes sure of transport's answer: an audit, and SMC from the prior on every row where it fails."""

from dataclasses import replace

import jax

from calibayes._backend.distributed import lost
from calibayes.progress import LiveLine
from calibayes.samplers import SMC
from calibayes.samplers.audit import Audit, audit
from calibayes.samplers.initial import COARSE_SCHEDULE, N_POPULATIONS, InitialDraws
from calibayes.solve import seek
from calibayes.solve.found import FAILED, FELL_BACK, NOT_AUDITED, Found
from calibayes.solve.loop import Loop
from calibayes.solve.search import Bracket


def make_sure(loop: Loop, found: Found, live: LiveLine) -> tuple[Loop, Found]:
    """The answer if it stands up to an independent sampler; else SMC's. What is known to be wrong says so."""
    if found.limited or loop.interrupted:
        return loop, found
    if not hasattr(loop.target.prior, "sample"):
        found.concerns.append(f"{NOT_AUDITED}: the prior cannot be sampled")
        return loop, found
    eta = loop.start.eta
    if found.converged:
        verdict = _verdict(loop, found, live)
        if verdict is None or not verdict.failed:
            return loop, found
        eta = found.sampled
        found.concerns.append(f"{FAILED}failed its audit ({verdict.finding})")
    else:
        found.concerns.append(f"{FAILED}found no answer ({found.outcome})")
    found.converged, found.outcome = False, "no answer to rely on"
    try:
        return _sampled_afresh(loop, found, eta, live)
    except (ValueError, RuntimeError, KeyboardInterrupt) as error:
        if lost(error):
            raise
        loop.interrupted = isinstance(error, KeyboardInterrupt)
        found.concerns.append(f"and SMC from the prior could not take over: {str(error) or 'interrupted'}")
        loop.distrust = found.message
        return loop, found


def _sampled_afresh(loop: Loop, first: Found, eta: float, live: LiveLine) -> tuple[Loop, Found]:
    """SMC's answer, if it stands up itself; it goes on with the trace."""
    live.phase("every row from the prior")
    size = loop.sampler.size(loop.target.dim)
    # From the prior by the ladder that the audit came by, and the pool where there may be several modes.
    sampler = SMC(
        n_particles=size,
        ess_target=COARSE_SCHEDULE.ess_target,
        resample_below=COARSE_SCHEDULE.resample_below,
        n_moves=COARSE_SCHEDULE.n_moves,
        kernel=COARSE_SCHEDULE.kernel,
        start="prior",
    )
    start = InitialDraws(loop.target, loop.start.particles.flat(), loop.start.eta)
    second = replace(loop, sampler=sampler, start=start, best=None, fell_back=True)

    loop.journal.hold(first.state)
    init = lambda: sampler.init(jax.random.fold_in(loop.key, 3), loop.target, start, eta)

    def search() -> Found:
        state = loop.journal.step("init", init)
        return seek.solve(second, state, eta, Bracket.nearby(), loop.max_iterations, live)

    found = second.guarded(search)
    found.concerns.extend([*first.concerns, FELL_BACK])
    verdict = _verdict(second, found, live) if found.converged else None
    if verdict is not None and verdict.failed:
        found.converged = False
        found.outcome = f"SMC failed the audit too: {verdict.finding}. Do not rely on this eta"
        second.distrust = found.outcome
    return second, found


def _verdict(loop: Loop, found: Found, live: LiveLine) -> Audit | None:
    """What the audit says; None if it could not be held, which is said in what was found."""
    live.phase(f"audit of {N_POPULATIONS} rows from the prior")
    key = jax.random.fold_in(loop.key, 4)
    try:
        point = loop.point(loop.sampler.data(found.state), found.sampled)
        judge = lambda: audit(key, loop.target, found.state.particles, found.sampled, loop.region, point)
        return loop.journal.step("audit", judge, found.state)
    except (ValueError, RuntimeError) as error:
        if lost(error):
            raise
        found.concerns.append(f"{NOT_AUDITED}: {error}")
    except KeyboardInterrupt as error:
        if lost(error):
            raise
        loop.interrupted = True
        found.converged, found.outcome = False, "interrupted in the audit; this is what had been found"
    return None
