"""What is known at one learning rate: coverage of the credible sets, and how far it can be trusted."""

import math
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from calibayes._backend.jit import light_jit
from calibayes._core.curve import Coverage, Curve
from calibayes._core.particles import Particles
from calibayes._core.status import Code, Diagnostic, Severity, Status
from calibayes._core.target import Target
from calibayes.regions import Region, critical_levels
from calibayes.samplers.base import SamplerInfo, SamplerState
from calibayes.solve.curve import risk_variances


@dataclass(frozen=True)
class IterateConfig:
    """Thresholds of the diagnostics of an iterate."""

    collapsed_ess: float = 10.0
    """Effective particles below which a replicate's critical level is noise."""
    low_ess: float = 100.0
    """Median effective sample size below which the noise of the levels biases eta low by more than its error."""
    material_share: float = 0.25
    """Share of 1 - level: more failed replicates than this could move coverage by a quarter of the probability outside
    the sets, and the answer is not to be relied on."""


CONFIG = IterateConfig()


@dataclass(frozen=True)
class TraceRecord:
    """One entry of a calibration's trace: where the search was and what it found there.

    Attributes
    ----------
    iteration : int
        Number of the entry, from 1.
    eta : float
        Learning rate.
    coverage : float
        Coverage of the credible sets there.
    ess : float
        Median over replicates of the effective sample size.
    ess_min : float
        Minimum over replicates of the effective sample size.
    steps : int
        Steps of the sampler to this learning rate: for SMC temperature steps, for transport evaluations of the risk.
    acceptance : float
        Mean acceptance rate of the sampler's last move; NaN without a Markov kernel.
    seconds : float
        Seconds since the start of the calibration, compilation included.
    intervals : ndarray of shape (K, 2)
        Marginal credible intervals on the data at this learning rate and the requested level; NaN for reported
        parameters that were not sampled themselves, such as an estimator's intercept.

    Examples
    --------
    >>> result.trace[0].iteration
    1
    """

    iteration: int
    eta: float
    coverage: float
    ess: float
    ess_min: float
    steps: int
    acceptance: float
    seconds: float
    intervals: Float[np.ndarray, "K 2"] = field(repr=False)


@dataclass(frozen=True)
class Iterate:
    """Coverage at one learning rate and all that the solver knows about it.

    Attributes
    ----------
    eta : float
        Learning rate that this iterate is about.
    sampled_eta : float
        Learning rate of `state`; `eta` may be the crossing of the coverage curve around it.
    coverage : Coverage
        Share of replicates whose credible set contains `point`.
    point : Array
        Point estimate at `eta`.
    particles : Particles
        Weighted particles on the data at `eta`.
    state : object
        State of the sampler.
    info : SamplerInfo
        Diagnostics that the sampler reports for `state`.
    diagnostics : tuple of Diagnostic
        Findings, in the order in which they were made.
    half_width : float
        Distance in log eta over which the particles can be reweighted; half-width of the coverage curve.
    intervals : ndarray of shape (K, 2)
        Marginal credible intervals on the data at `sampled_eta`.
    curve : Curve or None
        Coverage curve around `sampled_eta`, where it has been computed.
    refined : bool
        Whether `state` has the sampler's full accuracy (`Sampler.refine`).
    status : Status or None
        How the search ended; None before its end.
    eta_se_along_trace : float
        Standard error of eta from the slope of the coverage along the trace, which is used where the curve is too
        narrow for one; infinite if it was not computed.
    eta_se_of_method : float or None
        Standard error that a method states for its own learning rate; None if it comes from the curve.
    reported : Particles or None
        Particles that a method reports instead of those of the posterior on the data. None for the posterior.
    n_reported : float
        Number of independent draws that determine the covariance of `reported` as well.
    """

    eta: float
    sampled_eta: float
    coverage: Coverage
    point: Float[Array | np.ndarray, " K"]
    particles: Particles
    state: SamplerState
    info: SamplerInfo
    diagnostics: tuple[Diagnostic, ...]
    half_width: float
    intervals: Float[np.ndarray, "K 2"]
    curve: Curve | None = None
    refined: bool = False
    status: Status | None = None
    eta_se_along_trace: float = np.inf
    eta_se_of_method: float | None = None
    reported: Particles | None = None
    n_reported: float = math.inf

    @property
    def eta_se(self) -> float:
        """Simulation standard error of eta; infinite if it is unknown."""
        if self.eta_se_of_method is not None:
            return self.eta_se_of_method
        return self.eta_se_along_trace if self.curve is None else min(self.curve.eta_se(), self.eta_se_along_trace)


class Summary(NamedTuple):
    """What one compiled program computes from the particles at a learning rate."""

    levels: Float[Array, " B"]
    """Critical level of the point on every replicate."""
    n_invalid: Int[Array, " B"]
    """Number of particles whose risk is NaN."""
    risk_variances: Float[Array, " B"]
    """Variance of the risk over particles."""


@light_jit
def summarize(
    target: Target,
    particles: Particles,
    eta: Float[Array | np.ndarray, ""],
    region: Region,
    point: Float[Array | np.ndarray, " K"],
) -> Summary:
    """Return the critical levels of the point, and further summaries.

    One program, because each part takes less time than a call.
    """
    levels = critical_levels(target, particles, eta, region, point)
    n_invalid = jnp.isnan(particles.risk).sum(-1)
    return Summary(levels, n_invalid, risk_variances(particles))


def marginal_intervals(particles: Particles, level: float) -> Float[np.ndarray, "K 2"]:
    """Return the equal-tailed intervals of the parameters from particles on the data."""
    theta, log_weights = jax.device_get((particles.theta, particles.log_weights))
    weights, tails = np.exp(log_weights[0].astype(np.float64)), [0.5 * (1 - level), 0.5 * (1 + level)]
    return np.array([np.quantile(values, tails, weights=weights, method="inverted_cdf") for values in theta[:, 0]])


def share_severity(count: int, n_replicates: int, level: float) -> Severity:
    """Return how much it matters that something failed on `count` of the replicates."""
    material = count > CONFIG.material_share * (1 - level) * n_replicates
    return Severity.ERROR if material else Severity.WARNING


def diagnose(info: SamplerInfo, n_undefined: int, level: float) -> tuple[Diagnostic, ...]:
    """Return what a user should know about the sampling at a learning rate.

    Parameters
    ----------
    info : SamplerInfo
        The sampler's account of its state.
    n_undefined : int
        Number of replicates whose critical level is NaN.
    level : float
        Requested level.
    """
    n_replicates = len(info.ess) - 1
    findings = list(info.diagnostics)

    def add(code: Code, severity: Severity, count: int, message: str) -> None:
        findings.append(Diagnostic(code, severity, count, message))

    failed = partial(share_severity, n_replicates=n_replicates, level=level)
    if info.repaired is not None and (count := int(info.repaired.sum())):
        posteriors = "its posterior was" if count == 1 else "their posteriors were"
        message = (
            f"{count:,} of {n_replicates:,} replicates had degenerate importance weights; {posteriors} sampled again "
            "by a slower sampler (the bootstrap counts are unchanged)."
        )
        add(Code.REPAIRED, Severity.INFO, count, message)
    if count := int((info.ess < CONFIG.collapsed_ess).sum()):
        message = f"The effective sample size is below {CONFIG.collapsed_ess:g} on {count:,} replicates."
        add(Code.ESS_COLLAPSED, failed(count), count, message)
    if (typical := float(np.median(info.ess))) < CONFIG.low_ess:
        message = (
            f"The median effective sample size of a replicate is only {typical:.0f}, which biases eta low. "
            "Use more particles or draws."
        )
        add(Code.ESS_LOW, Severity.WARNING, 0, message)
    if count := int(info.not_mixed.sum()):
        message = (
            f"The particles of {count:,} replicates still depend on where they started. Choose an eta_init nearer to "
            "the answer, or a kernel that mixes faster."
        )
        add(Code.NOT_MIXED, failed(count), count, message)
    if n_undefined:
        message = f"The critical level is NaN on {n_undefined:,} replicates, which count as not covered."
        add(Code.LEVEL_UNDEFINED, failed(n_undefined), n_undefined, message)
    if info.invalid:
        message = f"The loss was NaN at {info.invalid:,} proposed particles, which were discarded."
        add(Code.INVALID_LOSS, Severity.WARNING, info.invalid, message)
    return tuple(findings)
