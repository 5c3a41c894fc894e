"""What an iteration of the loop found, and what a user should know of it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Array, Float

from calibayes._core.curve import Coverage, Curve
from calibayes._core.particles import Particles
from calibayes.samplers.base import SamplerInfo

NOT_AUDITED = "not audited"
"""How a concern begins that there was no audit."""
FAILED = "transport "
"""How a concern begins that transport did not do."""
FELL_BACK = "so every row was sampled by SMC from the prior"
UNKNOWN_ERROR = "the error of eta is unknown, its ends are off the coverage curve: use more bootstrap rows"
_COLLAPSED = 10.0
_FEW = 100.0


@dataclass
class Found:
    """An iteration's answer, or the refined one."""

    eta: float
    coverage: Coverage
    point: Float[Array, " K"]
    particles: Particles
    """On the data."""
    state: Any
    sampled: float
    """The learning rate the state is at; `eta` is read off the curve around it."""
    reach: SamplerInfo
    concerns: list[str]
    half_width: float
    """How far the curve around the state reaches, in log eta."""
    intervals: Float[np.ndarray, "K 2"]
    """Of each parameter on the data."""
    curve: Curve | None = None
    eta_se: float = np.inf
    """By the curve."""
    converged: bool = False
    limited: bool = False
    """Stopped because it was told to, after so many iterations."""
    outcome: str = ""

    @property
    def message(self) -> str:
        return "; ".join([self.outcome, *self.concerns])


def standing(concerns: list[str]) -> list[str]:
    """Those that are about the sampler, and hold for whatever else its particles are asked."""
    return [concern for concern in concerns if concern.startswith((NOT_AUDITED, FAILED, FELL_BACK))]


def concerns_of(reach: SamplerInfo, undefined: int) -> list[str]:
    """What a user should know of the sampling, in words."""
    concerns = [d.message for d in reach.diagnostics]
    collapsed, typical = int((reach.ess < _COLLAPSED).sum()), float(np.median(reach.ess))
    if collapsed:
        concerns.append(f"the effective size collapsed on {collapsed} rows, to below {_COLLAPSED:g}")
    if typical < _FEW:
        concerns.append(
            f"the effective size of a row is only {typical:.0f}, which biases eta low: use more particles or draws"
        )
    not_mixed = int(reach.not_mixed.sum())
    if not_mixed:
        concerns.append(f"particles had not settled on {not_mixed} rows: try an eta_init nearer to the answer")
    if undefined:
        concerns.append(f"the region's level is NaN on {undefined} rows, which count as not covered")
    if reach.invalid:
        concerns.append(f"the loss was NaN at {reach.invalid} proposed particles, which were given up")
    return concerns
