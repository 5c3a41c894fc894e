"""The loop: ask every row at eta whether its set covers the estimate, move eta, repeat.

Paper, figures 1 and 3: the two algorithms differ in the sampler alone. A stochastic search stops at the first coverage
near the level; a bracketing one, and any search's refinement, solves for eta on the rows' critical etas (see
`calibayes.solve.curve`).
"""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import numpy as np

from calibayes._backend.functions import host_array
from calibayes._backend.jit import jit
from calibayes._backend.rng import split_key
from calibayes._core.precision import require_precision
from calibayes.progress import LiveLine
from calibayes.regions import Region
from calibayes.solve.found import Found, standing
from calibayes.solve.loop import Loop
from calibayes.solve.search import Bracket

_ROUGHLY = 1.5
"""A rough curve's answer is some 0.1 off in log eta: nearer than this times what is near enough it cannot lead."""
_RELOCATIONS = 4
_FARTHEST = 1e5
"""Learning rates are looked for within this factor of the first."""


def run(loop: Loop, live: LiveLine) -> Found:
    """The search, and the curve around its answer."""
    return loop.guarded(lambda: _search(loop, live))


def again(loop: Loop, found: Found, region: Region, level: float, live: LiveLine) -> tuple[Loop, Found]:
    """Another region or level, from the particles that are there. Not audited again."""
    search = Bracket()
    loop = replace(loop, region=region, level=level, trace=[], best=None, search=search)
    there = loop.guarded(lambda: solve(loop, found.state, found.sampled, search, loop.max_iterations, live))
    there.concerns = [*standing(found.concerns), *there.concerns]
    if loop.distrust:
        there.converged, there.outcome = False, loop.distrust
    return loop, there


def _search(loop: Loop, live: LiveLine) -> Found:
    begin_key, init_key = split_key(loop.key, 2, 0)
    live.phase("start: posterior on the data")
    loop.start = loop.step("begin", lambda: loop.sampler.draw_initial(begin_key, loop.target, loop.eta, loop.draws))
    loop.target = loop.start.target
    require_precision(loop.target, loop.start.particles, loop.start.eta)
    live.phase("start: bootstrap rows")
    eta = loop.eta
    if eta is None:
        guess = lambda: loop.sampler.initial_eta(loop.target, loop.start, loop.region, loop.level)
        eta = loop.journal.note("first eta", guess)
    state = loop.step("init", lambda: loop.sampler.init(init_key, loop.target, loop.start, eta))
    if isinstance(loop.search, Bracket):
        return solve(loop, state, eta, loop.search, loop.max_iterations, live)
    found = _approximate(loop, state, eta, live)
    if found.converged and getattr(loop.search, "refine", False):
        outcome = found.outcome
        found = solve(loop, found.state, found.eta, Bracket.nearby(), _RELOCATIONS, live, record=False)
        if not found.converged:
            found.concerns.append(f"eta could not be refined: {found.outcome}")
        found.outcome, found.converged = outcome, True
    return found


def _approximate(loop: Loop, state: Any, eta: float, live: LiveLine) -> Found:
    """Stochastic approximation: until coverage comes within the tolerance, or the iteration nearest to that."""
    searching = _begun(loop.search, host_array(eta))
    for iteration in range(1, loop.max_iterations + 1):
        found = loop.assess(state, eta)
        loop.record(found, live)
        if loop.best is None or _error(loop, found) <= _error(loop, loop.best):
            loop.best = found
        if _error(loop, found) < loop.tolerance:
            found = loop.mended(found, live)
        if _error(loop, found) < loop.tolerance:
            found.converged, found.outcome = True, f"coverage within {loop.tolerance:g} of {loop.level:g}"
            if found.reach.not_mixed.sum() > 0.25 * (1 - loop.level) * found.coverage.n_replicates:
                found.converged = False
                found.outcome += ", but from particles that had not settled"
            return found
        if iteration < loop.max_iterations:
            searching = _update(loop.search, searching, host_array(float(found.coverage)), host_array(loop.level))
            eta = float(searching.eta)
            live.phase(f"to eta {eta:.4g}")
            state = loop.move(state, eta, live)
    assert loop.best is not None
    loop.best = loop.mended(loop.best, live)
    loop.best.limited = True
    loop.best.outcome = (
        f"stopped after {loop.max_iterations} iterations, short of the tolerance {loop.tolerance:g}" + _way_out(loop)
    )
    return loop.best


def solve(
    loop: Loop, state: Any, eta: float, search: Bracket, limit: int, live: LiveLine, record: bool = True
) -> Found:
    """The eta that the curve around it gives back, from rows that have been mended where they need it.

    Rough curves lead to where they say it is. If a fitted one says that it is not, fitted ones lead on. Where that
    takes no time the first is a fitted one, which leads on if it meets the level.
    """
    searching: Any = None
    first, quick = eta, loop.journal.note("quick", lambda: loop.sampler.refine_is_cheap(loop.target, state))
    sure = quick
    for _ in range(limit):
        state = loop.mend_at_once(state, eta, live) if sure else state
        found = loop.assess(state, eta)
        if record:
            loop.record(found, live)
        loop.best = found if loop.best is None else loop.best
        live.phase("coverage curve")
        near = sure
        if not sure:
            answer, near = loop.reading(found, _ROUGHLY * search.closeness, rough=True)
            if searching is not None or not near:
                searching = _updated(loop, search, searching, found, answer)
        # Two etas so close that curves disagree between them: the fitted one decides.
        closed = searching is not None and searching.high < np.exp(search.closeness / 4) * searching.low
        if near or closed:
            found = found if sure else loop.mended(found, live)
            state = found.state
            live.phase("coverage curve")
            answer, near = loop.reading(found, np.inf if closed else search.closeness, rough=False)
            if near:
                return loop.answer(found, answer)
            if closed:
                found.outcome = (
                    f"coverage does not fall steadily with eta: it meets {loop.level:g} nowhere near {eta:.4g}"
                )
                return found
            searching = _updated(loop, search, searching if sure else None, found, answer)
            sure, quick = not quick or bool(0 < answer < np.inf), False
        eta = answer if searching.low < answer < searching.high else float(searching.eta)
        searching = eqx.tree_at(lambda s: s.eta, searching, host_array(eta))
        if not first / _FARTHEST < eta < first * _FARTHEST:
            found.outcome = _unreachable(loop, found)
            return found
        live.phase(f"to eta {eta:.4g}")
        state = loop.move(state, eta, live)
    found = loop.mended(found, live, "last mend")
    found.outcome, found.limited = f"eta had not settled after {limit} iterations", True
    return found


def _updated(loop: Loop, search: Bracket, searching: Any, found: Found, answer: float) -> Any:
    searching = _begun(search, host_array(found.eta)) if searching is None else searching
    side = _side(answer, found.eta, loop.level, found.coverage)
    return jax.device_get(_update(search, searching, host_array(side), host_array(loop.level)))


def _error(loop: Loop, found: Found) -> float:
    return abs(found.coverage - loop.level)


def _way_out(loop: Loop) -> str:
    """A hint, if the search never came past the answer."""
    above = [record.coverage > loop.level for record in loop.trace]
    if all(above) or not any(above):
        larger = "larger" if all(above) else "smaller"
        return f": eta must be {larger} still; start there (eta_init=) or take longer steps (RobbinsMonro(gain=))"
    return ""


def _unreachable(loop: Loop, found: Found) -> str:
    most = max(loop.trace, key=lambda record: record.coverage)
    if found.coverage < loop.level <= most.coverage:
        return (
            f"coverage does not fall steadily with eta: it is {most.coverage:.3f} at eta = {most.eta:.3g}, and "
            f"{float(found.coverage):.3f} at {found.eta:.2g}"
        )
    if found.coverage < loop.level:
        return (
            f"no learning rate from {found.eta:.2g} up covers at {loop.level:g}: the sets cover "
            f"{most.coverage:.3f} at most, at eta = {most.eta:.3g}. The estimate may lie where the posterior has "
            'no mass: try estimate="mode", or another region'
        )
    return f"the sets still cover more than {loop.level:g} at eta = {found.eta:.2g}: they do not shrink with eta"


def _side(answer: float, eta: float, level: float, coverage: float) -> float:
    """A coverage that tells the bracket on which side of eta the answer is; the one there, if that is off the curve."""
    if answer == 0:
        return min(coverage, 0.99 * level)
    if answer == np.inf:
        return max(coverage, level)
    return level if answer >= eta else 0.99 * level


_begun = jit(lambda search, eta: search.init(eta))
_update = jit(lambda search, state, coverage, level: search.update(state, coverage, level))
