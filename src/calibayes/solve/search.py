"""The interface of a search rule: which learning rate to look at next, and when to stop.

A rule is asked again and again. It states what it needs to know at a learning rate (`Request`), the solver computes
that (`Evaluation`), and `update` returns the next state: another learning rate, another request at the same one, or a
final `Status`. A rule never sees particles, so one rule works with every sampler.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Generic, TypeVar

import equinox as eqx

from calibayes._core.status import Diagnostic, Status


class Request(Enum):
    """What a search rule needs to know at its learning rate."""

    COVERAGE = "coverage"
    """Coverage of the particles as they are."""
    REFINED_COVERAGE = "refined coverage"
    """Coverage after the sampler has refined its state."""
    ROUGH_CURVE = "rough curve"
    """Coverage, and a coarse coverage curve around the learning rate."""
    REFINED_CURVE = "refined curve"
    """Coverage, and the coverage curve on a fine grid, after the sampler has refined its state."""
    REFINED_CURVE_IF_CHEAP = "refined curve if cheap"
    """`REFINED_CURVE` if the sampler can refine its state at low cost, else `ROUGH_CURVE`."""


@dataclass(frozen=True)
class Evaluation:
    """What the solver found at one learning rate.

    Attributes
    ----------
    eta : float
        Learning rate of the particles.
    coverage : float
        Share of replicates whose credible set contains the point estimate.
    level : float
        Requested level.
    tolerance : float
        Largest difference between coverage and level that counts as equal.
    refined : bool
        Whether the sampler has refined its state.
    crossing : float
        Learning rate at which the coverage curve crosses the level: 0 or infinity if it lies to the left or right of
        the curve's range of learning rates, NaN if no curve was requested.
    half_width : float
        Half-width of the curve, in log eta.
    """

    eta: float
    coverage: float
    level: float
    tolerance: float
    refined: bool = False
    crossing: float = math.nan
    half_width: float = math.nan


@dataclass(frozen=True, kw_only=True)
class SearchState:
    """State of a search; rules with a memory of their own derive from it.

    Attributes
    ----------
    eta : float
        Learning rate to look at next; the answer, once `status` is set.
    request : Request
        What to find out there.
    status : Status or None
        None while the search goes on.
    from_curve : bool
        Whether the answer is the crossing of the last curve, not the learning rate of the particles.
    diagnostics : tuple of Diagnostic
        Findings of the search.
    limited : bool
        Whether the iteration limit applies to the next move. Default: True.
    """

    eta: float
    request: Request = Request.COVERAGE
    status: Status | None = None
    from_curve: bool = False
    diagnostics: tuple[Diagnostic, ...] = ()
    limited: bool = True


S = TypeVar("S", bound=SearchState)


class Search(eqx.Module, Generic[S]):
    """A rule for the next learning rate."""

    uses_tolerance: ClassVar[bool] = True
    """Whether the rule stops by the tolerance on coverage."""

    @abstractmethod
    def init(self, eta: float) -> S:
        """Return the state before the first evaluation, a `SearchState` at `eta`."""

    @abstractmethod
    def update(self, state: S, evaluation: Evaluation) -> S:
        """Return the state after an evaluation at `state.eta`."""
