r"""Stochastic approximation of the learning rate (Tanaka 2024, section 2.1).

$$ \eta_{s+1} = \eta_s + \varsigma\,[\hat c(\eta_s) - (1 - \alpha)] $$

The step is $\varsigma = l^{-0.51}$. By Kesten's rule $l$ grows only when eta changes direction and coverage is below
one; by Syring and Martin's rule it grows at every step.
"""

from dataclasses import dataclass, replace
from typing import Literal

import equinox as eqx
import numpy as np

from calibayes._backend.arguments import positive
from calibayes._core.status import Code, Diagnostic, Severity, Status
from calibayes.solve.bracket import Bracket, BracketState
from calibayes.solve.search import Evaluation, Request, Search, SearchState

STEP_EXPONENT = -0.51
"""Exponent of the step size, from Tanaka (2024, section 2.1)."""


@dataclass(frozen=True)
class InterpolationConfig:
    """Interpolation of the answer of a stochastic search on the coverage curve."""

    closeness: float = 0.6
    """Distance in log eta over which the particles are reweighted to the answer. A stochastic search ends with
    particles of full effective sample size, which allow three times the distance of `Bracket`'s default."""
    max_moves: int = 4
    """Learning rates tried. The first usually suffices, because the search has already come within its tolerance."""


INTERPOLATION = InterpolationConfig()


@dataclass(frozen=True, kw_only=True)
class RobbinsMonroState(SearchState):
    """State of `RobbinsMonro`: Tanaka's $l$, the sign of the last step, and the interpolation that may follow."""

    clock: float = 1.0
    direction: float = 0.0
    interpolation: BracketState | None = None
    n_moves: int = 1


class RobbinsMonro(Search[RobbinsMonroState]):
    """Stochastic approximation with decreasing steps, the search of Tanaka (2024).

    It stops at the first learning rate whose coverage is within the tolerance of the level. Eta stays positive: a step
    to zero or below halves it instead.

    Parameters
    ----------
    step : {"kesten", "syring-martin"}
        Rule by which the step size decreases. Default: "kesten".
    gain : float
        Factor on every step. The value 1 of Tanaka (2024) suits learning rates of order one.
    interpolate : bool
        Whether to replace the learning rate at which the search stopped by the crossing of the coverage curve there.
        Tanaka (2024) reports the learning rate itself (`interpolate=False`), which is biased towards the side that the
        search came from. Default: True.

    Examples
    --------
    >>> import calibayes as cb
    >>> search = cb.RobbinsMonro(step="kesten")
    >>> state = search.init(1.0)
    >>> state.eta
    1.0
    """

    step: Literal["kesten", "syring-martin"] = eqx.field(static=True)
    gain: float = eqx.field(static=True)
    interpolate: bool = eqx.field(static=True)

    def __init__(
        self, step: Literal["kesten", "syring-martin"] = "kesten", gain: float = 1.0, *, interpolate: bool = True
    ):
        if step not in ("kesten", "syring-martin"):
            raise ValueError(f"step must be 'kesten' or 'syring-martin'; got {step!r}.")
        self.step, self.gain, self.interpolate = step, positive("gain", gain), bool(interpolate)

    def init(self, eta: float) -> RobbinsMonroState:
        """Return the state before the first evaluation.

        Parameters
        ----------
        eta : float
            First learning rate.

        Returns
        -------
        RobbinsMonroState
        """
        return RobbinsMonroState(eta=eta)

    def update(self, state: RobbinsMonroState, evaluation: Evaluation) -> RobbinsMonroState:
        """Return the state after an evaluation.

        Parameters
        ----------
        state : RobbinsMonroState
            State before the evaluation.
        evaluation : Evaluation
            What the solver found at `state.eta`.

        Returns
        -------
        RobbinsMonroState
        """
        if state.interpolation is not None:
            return self._step_interpolation(state, evaluation)
        error = evaluation.coverage - evaluation.level
        if abs(error) >= evaluation.tolerance:
            return self._next(state, error, evaluation.coverage)
        if not evaluation.refined:
            return replace(state, request=Request.REFINED_COVERAGE)
        if not self.interpolate:
            return replace(state, status=Status.CONVERGED)
        interpolation = Bracket(closeness=INTERPOLATION.closeness).init(state.eta)
        # The search has met its tolerance; the few moves of the interpolation have a limit of their own.
        return replace(state, interpolation=interpolation, request=interpolation.request, n_moves=1, limited=False)

    def _next(self, state: RobbinsMonroState, error: float, coverage: float) -> RobbinsMonroState:
        direction = float(np.sign(error))
        turned = direction * state.direction < 0 and coverage < 1
        clock = state.clock + 1 if self.step == "kesten" and turned else state.clock
        eta = state.eta + self.gain * clock**STEP_EXPONENT * error
        if self.step == "syring-martin":
            clock += 1
        return replace(
            state,
            eta=eta if eta > 0 else 0.5 * state.eta,
            request=Request.COVERAGE,
            clock=clock,
            direction=direction,
        )

    def _step_interpolation(self, state: RobbinsMonroState, evaluation: Evaluation) -> RobbinsMonroState:
        """One step on the coverage curve. If that fails, the answer is the eta at which the search stopped."""
        assert state.interpolation is not None
        inner = Bracket(closeness=INTERPOLATION.closeness).update(state.interpolation, evaluation)
        if inner.status is Status.CONVERGED:
            return replace(state, eta=inner.eta, status=Status.CONVERGED, from_curve=True)
        n_moves = state.n_moves + (inner.eta != state.interpolation.eta)
        if inner.status is not None or n_moves > INTERPOLATION.max_moves:
            message = (
                "The learning rate could not be interpolated on the coverage curve; it is the one at which the "
                "stochastic search stopped, accurate to the tolerance on coverage only."
            )
            finding = Diagnostic(Code.NOT_INTERPOLATED, Severity.WARNING, 0, message)
            stopped_at = state.interpolation.first_eta
            return replace(state, eta=stopped_at, status=Status.CONVERGED, diagnostics=(finding,))
        return replace(state, eta=inner.eta, request=inner.request, interpolation=inner, n_moves=n_moves)
