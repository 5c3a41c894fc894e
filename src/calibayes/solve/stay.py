"""A search rule that does not search: the coverage at a learning rate that a method has set.

Methods such as matching compute the learning rate from a formula (`calibayes.methods`). The solver still samples every
replicate at it, so that its coverage and the coverage curve around it are known.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import equinox as eqx

from calibayes._core.status import Status
from calibayes.solve.search import Evaluation, Request, Search, SearchState


@dataclass(frozen=True)
class StayConfig:
    """Constants of `Stay`."""

    closeness: float = 0.2
    """Distance in log eta over which particles are reweighted instead of moved; the default of `Bracket`."""


CONFIG = StayConfig()


class Stay(Search[SearchState]):
    """Coverage at one learning rate.

    Parameters
    ----------
    eta : float
        The learning rate.
    """

    eta: float = eqx.field(static=True)
    uses_tolerance: ClassVar[bool] = False

    def reaches(self, eta: float, half_width: float) -> bool:
        """Return whether particles at `eta` can be reweighted to the answer, given the half-width of their curve."""
        return abs(math.log(self.eta / eta)) <= min(CONFIG.closeness, half_width / 2)

    def init(self, eta: float) -> SearchState:
        """Return the state before the first evaluation: at `eta` if particles there can be reweighted to the answer."""
        first = eta if self.reaches(eta, math.inf) else self.eta
        return SearchState(eta=first, request=Request.REFINED_CURVE, limited=False)

    def update(self, state: SearchState, evaluation: Evaluation) -> SearchState:
        """Return the final state, or that of a move if the curve does not extend to the learning rate."""
        if self.reaches(evaluation.eta, evaluation.half_width):
            return replace(state, eta=self.eta, status=Status.COMPUTED)
        return replace(state, eta=self.eta)
