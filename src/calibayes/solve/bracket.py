r"""Solve for the learning rate on the replicates' critical etas.

With counts and particles fixed, every replicate has a critical eta, at which its credible set just excludes the point
estimate, and the answer is a quantile of those: nothing random remains to be averaged. Particles at one learning rate
give these critical etas in its neighbourhood by reweighting (`calibayes.solve.curve`). `Bracket` therefore only needs
to bring the particles near the answer; there it reads the answer off the curve.

Rough curves, from few particles, lead the way. Near the crossing that they predict, the sampler refines its particles
and a full curve decides. If the full curve puts the crossing elsewhere, full curves lead on.
"""

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import ClassVar

import equinox as eqx

from calibayes._backend.arguments import positive
from calibayes._core.status import Code, Diagnostic, Severity, Status
from calibayes.solve.search import Evaluation, Request, Search, SearchState


@dataclass(frozen=True)
class BracketConfig:
    """Constants of the bracketing search. All are dimensionless; distances are in log eta."""

    rough_tolerance: float = 1.5
    """Tolerance on a rough curve's crossing, relative to `closeness`: it is off by about 0.1 in log eta."""
    narrow_width: float = 0.25
    """The bracket is too narrow to search further when its width is below this share of `closeness`."""
    search_range: float = 1e5
    """Largest factor between the first learning rate and a larger one."""
    search_range_below: float = 1e9
    """Largest factor between the first learning rate and a smaller one. Small learning rates are easy to sample, and
    the first one is far too large if the posterior has several modes, so that it does not narrow as eta grows."""
    max_factor: float = 16.0
    """Largest factor of one move."""
    min_factor: float = 1.5
    """Smallest factor of a move without a crossing: a coverage just off the level would otherwise not move eta."""
    below_level: float = 0.99
    """Coverage relative to the level that stands for "the crossing is at a smaller learning rate"."""


CONFIG = BracketConfig()


@dataclass(frozen=True, kw_only=True)
class BracketState(SearchState):
    """State of `Bracket`.

    Attributes
    ----------
    first_eta : float
        Learning rate of the first evaluation.
    low, high : float
        Largest learning rate known to cover too often, and smallest known to cover too seldom.
    use_refined_curves : bool
        Whether full curves lead the search.
    first_curve_was_refined : bool
        Whether the latest evaluation was the first one and a full curve, because that was cheap.
    """

    first_eta: float
    low: float = 0.0
    high: float = math.inf
    use_refined_curves: bool = False
    first_curve_was_refined: bool = False

    @property
    def bracketed(self) -> bool:
        """Whether an evaluation has shown on which side of its eta the answer is."""
        return self.low > 0 or self.high < math.inf


class Bracket(Search[BracketState]):
    r"""Bracketing search on the coverage curve, the default for transport.

    If the curve does not cross the level, the next learning rate is extrapolated as if the posterior were normal: its
    coverage is $P(|Z| < z)$ with $z$ proportional to $\eta^{-1/2}$. Once learning rates with too large and
    with too small a coverage are known, the search stays between them.

    Parameters
    ----------
    closeness : float
        The crossing of a coverage curve is accepted if it is within this distance, in log eta, of the learning rate at
        which the particles were sampled; else the particles are moved there first. Default: 0.2.

    Examples
    --------
    >>> import calibayes as cb
    >>> cb.Bracket(closeness=0.1).init(1.0).eta
    1.0
    """

    closeness: float = eqx.field(static=True, default=0.2)
    uses_tolerance: ClassVar[bool] = False

    def __check_init__(self):
        positive("closeness", self.closeness)

    def init(self, eta: float) -> BracketState:
        """Return the state before the first evaluation.

        Parameters
        ----------
        eta : float
            First learning rate.

        Returns
        -------
        BracketState
        """
        return BracketState(eta=eta, request=Request.REFINED_CURVE_IF_CHEAP, first_eta=eta)

    def update(self, state: BracketState, evaluation: Evaluation) -> BracketState:
        """Return the state after an evaluation.

        Parameters
        ----------
        state : BracketState
            State before the evaluation.
        evaluation : Evaluation
            What the solver found at `state.eta`.

        Returns
        -------
        BracketState
        """
        if state.request is Request.REFINED_CURVE_IF_CHEAP:
            state = replace(state, use_refined_curves=evaluation.refined, first_curve_was_refined=evaluation.refined)
        return self._step_refined(state, evaluation) if evaluation.refined else self._step_rough(state, evaluation)

    def _step_rough(self, state: BracketState, evaluation: Evaluation) -> BracketState:
        near = _is_near(evaluation, CONFIG.rough_tolerance * self.closeness)
        proposal = state.eta
        if state.bracketed or not near:
            state, proposal = _narrow(state, evaluation)
        if near or self._is_narrow(state):
            return replace(state, request=Request.REFINED_CURVE)
        return self._move(state, evaluation, proposal, Request.ROUGH_CURVE)

    def _step_refined(self, state: BracketState, evaluation: Evaluation) -> BracketState:
        is_narrow = self._is_narrow(state)
        if _is_near(evaluation, math.inf if is_narrow else self.closeness):
            return replace(state, eta=evaluation.crossing, status=Status.CONVERGED, from_curve=True)
        if is_narrow:
            message = (
                f"Coverage does not decrease steadily with the learning rate: it crosses {evaluation.level:g} nowhere "
                f"near eta = {evaluation.eta:.4g}."
            )
            return _no_crossing(state, message)
        if not state.use_refined_curves:
            # The bracket came from rough curves, which the full curve contradicts.
            state = replace(state, low=0.0, high=math.inf)
        state, proposal = _narrow(state, evaluation)
        # Go back to rough curves only if the first curve was full and did not cross the level.
        use_refined_curves = not state.first_curve_was_refined or 0 < evaluation.crossing < math.inf
        state = replace(state, use_refined_curves=use_refined_curves, first_curve_was_refined=False)
        return self._move(
            state, evaluation, proposal, Request.REFINED_CURVE if use_refined_curves else Request.ROUGH_CURVE
        )

    def _is_narrow(self, state: BracketState) -> bool:
        """Return whether the bracket is too narrow to search further."""
        return state.bracketed and state.high < math.exp(CONFIG.narrow_width * self.closeness) * state.low

    def _move(self, state: BracketState, evaluation: Evaluation, proposal: float, request: Request) -> BracketState:
        """Go to the crossing if it lies inside the bracket, else to the proposal."""
        inside = state.low < evaluation.crossing < state.high
        eta = evaluation.crossing if inside else proposal
        if not state.first_eta / CONFIG.search_range_below < eta < state.first_eta * CONFIG.search_range:
            return _no_crossing(state, "")
        return replace(state, eta=eta, request=request)


def _is_near(evaluation: Evaluation, closeness: float) -> bool:
    """Return whether the crossing is within `closeness` of the particles and well inside the curve."""
    if not 0 < evaluation.crossing < math.inf:
        return False
    distance = abs(math.log(evaluation.crossing / evaluation.eta))
    return distance <= min(closeness, evaluation.half_width / 2)


def _narrow(state: BracketState, evaluation: Evaluation) -> tuple[BracketState, float]:
    """Return the state with a narrower bracket, and the learning rate that a normal posterior suggests."""
    eta, level = evaluation.eta, evaluation.level
    coverage = _side(evaluation)
    covers = coverage >= level
    low, high = (max(state.low, eta), state.high) if covers else (state.low, min(state.high, eta))
    ratio = (_z_value(coverage) / _z_value(level)) ** 2
    smallest, largest = CONFIG.min_factor, CONFIG.max_factor
    factor = min(max(ratio, smallest), largest) if covers else min(max(ratio, 1 / largest), 1 / smallest)
    proposal = eta * factor
    if low > 0 and high < math.inf and not low < proposal < high:
        proposal = math.sqrt(low * high)
    return replace(state, low=low, high=high), proposal


def _side(evaluation: Evaluation) -> float:
    """Return a coverage that tells on which side of the particles the crossing lies."""
    below = CONFIG.below_level * evaluation.level
    if evaluation.crossing == 0:
        return min(evaluation.coverage, below)
    if evaluation.crossing == math.inf:
        return max(evaluation.coverage, evaluation.level)
    return evaluation.level if evaluation.crossing >= evaluation.eta else below


def _z_value(coverage: float) -> float:
    """Return the z at which the central interval of a normal distribution has this coverage."""
    return NormalDist().inv_cdf(0.5 + 0.5 * min(max(coverage, 0.0), 1 - 1e-6))


def _no_crossing(state: BracketState, message: str) -> BracketState:
    """Return the state of a search that failed; without a message the solver describes what it saw on the way."""
    findings = (Diagnostic(Code.NO_CROSSING, Severity.ERROR, 0, message),) if message else ()
    return replace(state, status=Status.NO_CROSSING, diagnostics=findings)
