r"""Audit of particles on some replicates by an independent sampler.

Importance weights cannot reveal a mode that no particle visited, nor a bound that a map moved particles across: there
the weights are nearly equal, and wrong. The audit therefore samples `N_POPULATIONS` replicates again, twice: by
tempering from the prior; or, if the posteriors are log-concave, which have neither, by importance sampling from a
Student t distribution, whose weights are bounded (`calibayes.samplers.importance`). Half of these replicates are chosen
at random. The other half are those that seem to have a mode without particles (`calibayes.samplers.unvisited`), and
those whose posterior mean is farthest from that on the data. The difference between the two runs estimates the Monte
Carlo error, and the critical levels of the audited particles are compared with the mean of the two.
"""

from contextlib import suppress
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from calibayes._backend.functions import host_array
from calibayes._backend.jit import light_jit
from calibayes._backend.rng import split_key
from calibayes._core.particles import Particles, host_moments, mean
from calibayes._core.target import Target
from calibayes.regions import Region, critical_levels
from calibayes.samplers.importance import (
    DegenerateWeightsError,
    Proposal,
    can_importance_sample,
    random_generator,
    sample,
)
from calibayes.samplers.initial import temper_from_prior
from calibayes.samplers.mixing import rejuvenate_until_mixed
from calibayes.samplers.normal import NotNormalError, can_fit_normal, fit_to_data, fit_to_replicates
from calibayes.samplers.populations import N_POPULATIONS
from calibayes.samplers.unvisited import CONFIG as UNVISITED
from calibayes.samplers.unvisited import unvisited_log_densities


@dataclass(frozen=True)
class AuditConfig:
    """Thresholds of the audit."""

    significance: float = 1e-4
    """Probability of a false alarm. Small, because a failed audit costs a sampling of all replicates from the prior."""
    min_difference: float = 0.02
    """Root mean square difference of critical levels that matters. A smaller one changes eta by less than its own
    standard error with 2,000 replicates."""
    max_run_sd: float = 0.05
    """Root mean square error of critical levels, estimated from the difference of two independent runs, up to which
    particles that cannot move between modes are accepted. Smaller than 1 - level at the usual levels: the coverage,
    which averages over replicates, hardly depends on it."""
    max_moment_error: float = 0.5
    """Largest K^2 / M for which the moments of M particles of K parameters are a proposal: their errors reduce the
    effective sample size by a factor of about exp(-K^2 / (2 M))."""
    particles_per_parameter: int = 40
    """Smallest number of particles per parameter that are tempered from the prior. With fewer in many dimensions,
    tempering ends with too little spread."""


CONFIG = AuditConfig()


class Audit(NamedTuple):
    """Result of an audit.

    Attributes
    ----------
    replicates : array of int, shape (R,)
        Audited bootstrap replicates, counted from 0; -1 stands for the data.
    levels : array of shape (R,)
        Critical levels from the audited particles.
    independent_levels : array of shape (2, R)
        Critical levels from two independent runs of another sampler.
    failed : bool
        Whether the levels differ significantly and materially.
    """

    replicates: Int[np.ndarray, " R"]
    levels: Float[np.ndarray, " R"]
    independent_levels: Float[np.ndarray, "2 R"]
    failed: bool

    @property
    def reproducible(self) -> bool:
        """Whether the two independent runs agree so well that their mixing need not be tested."""
        return bool(np.sqrt(np.mean(np.square(np.diff(self.independent_levels, axis=0))) / 2) < CONFIG.max_run_sd)

    @property
    def finding(self) -> str:
        """The outcome as a sentence."""
        difference = np.abs(self.levels - self.independent_levels.mean(0)).max()
        return (
            f"The critical levels differ from those of an independent sampler by up to {difference:.2f} on "
            f"{len(self.replicates)} replicates."
        )


def audit(
    key: PRNGKeyArray,
    target: Target,
    particles: Particles,
    eta: float,
    region: Region,
    point: Float[Array | np.ndarray, " K"],
    not_mixed: Bool[np.ndarray, " B"] | None = None,
) -> Audit:
    """Compare the critical levels of some replicates with those of an independent sampler.

    Parameters
    ----------
    key : PRNGKeyArray
        Random key.
    target : Target
        The posteriors, on all replicates.
    particles : Particles
        The particles to audit, on all replicates.
    eta : float
        Their learning rate.
    region : Region
        The credible region.
    point : array of shape (K,)
        The point whose critical levels are compared.
    not_mixed : array of bool, shape (B,), optional
        Replicates that have not mixed, which are audited first. Default: none.
    """
    choice_key, broad_key, *run_keys = split_key(key, 4)
    doubts = np.zeros(target.n_replicates)
    if not_mixed is not None and not_mixed.any():
        doubts = np.where(not_mixed, 1.0, 0.0)
    elif not can_importance_sample(target):
        # Log-concave posteriors have a single mode.
        unvisited = unvisited_log_densities(broad_key, target, particles, eta)
        # Relative to a threshold, and never for the data, from which the particles come.
        doubts = np.maximum(unvisited - UNVISITED.notable, 0.0)
        doubts[0] = 0.0
    chosen = _choose_replicates(choice_key, particles, doubts)
    chosen_target, audited = target.select(chosen), particles.select(chosen)
    size = particles.risk.shape[-1]
    proposal = _proposal(target, particles, chosen, eta) if can_importance_sample(target) else None
    runs = [_sample_independently(run_key, chosen_target, proposal, eta, size) for run_key in run_keys]
    levels, *independent = (
        np.asarray(critical_levels(chosen_target, sampled, host_array(eta), region, point))
        for sampled in (audited, *runs)
    )
    weights = np.exp(np.asarray(audited.log_weights, np.float64))
    inflation = size * np.square(weights).sum(-1)
    failed = _levels_differ(levels, np.stack(independent), size, inflation, exact_runs=proposal is not None)
    return Audit(chosen - 1, levels, np.stack(independent), failed)


def _proposal(target: Target, particles: Particles, chosen: Int[np.ndarray, " R"], eta: float) -> Proposal:
    """Return proposals for the chosen replicates: the moments of the audited particles, or normal approximations.

    The weights reveal a proposal that does not suit the posterior, and are correct whatever the proposal.
    """
    some = particles.select(chosen)
    inaccurate = target.dim**2 > CONFIG.max_moment_error * some.risk.shape[-1]
    if inaccurate and can_fit_normal(target):
        with suppress(NotNormalError):
            centre, covariance = host_moments(particles.replicate(0))
            fits = fit_to_replicates(target.select(chosen), fit_to_data(target, centre[:, 0], covariance[0], eta))
            return Proposal(fits.centre, fits.root @ np.swapaxes(fits.root, 1, 2))
    return Proposal.from_particles(some)


def _sample_independently(
    key: PRNGKeyArray, target: Target, proposal: Proposal | None, eta: float, n_particles: int
) -> Particles:
    """Sample log-concave posteriors by importance sampling; temper others from the prior, and rejuvenate until mixed.

    A bad proposal makes the weights degenerate, but not wrong.
    """
    if proposal is not None:
        with suppress(DegenerateWeightsError):
            return sample(random_generator(key), target, proposal, eta, n_particles)
    temper_key, mix_key = split_key(key)
    n_tempered = max(n_particles, CONFIG.particles_per_parameter * target.dim)
    tempered = temper_from_prior(temper_key, target, eta, n_tempered)
    state, _ = rejuvenate_until_mixed(mix_key, target, tempered.particles, eta, min_moves=0)
    return state.particles


def _levels_differ(
    levels: Float[np.ndarray, " R"],
    independent: Float[np.ndarray, "2 R"],
    n_particles: int,
    inflation: Float[np.ndarray, " R"],
    exact_runs: bool = False,
) -> bool:
    r"""Return whether levels differ by more than Monte Carlo error, and by enough to matter. NaN is a difference.

    A level L from M independent draws has a variance of at most $(1 - L^2) / M$, so its arcsine has a variance of about
    $1 / M$ for any L (with Anscombe's correction near one); a variance estimated from levels near one would be as noisy
    as the levels themselves. Two contributions are added: `inflation`, M over the effective sample size, for the
    unequal weights of the audited particles; and the inflation by resampling, estimated from the two independent runs.
    The sum of squared standardised differences is compared with a quantile of the chi-squared distribution.

    If the two runs are independent draws (`exact_runs`), their inflation is a property of the region: an ellipsoid in
    many dimensions also has the error of its covariance matrix. That of the audited particles is then as large.
    """
    angles, independent_angles = _arcsines(levels, n_particles / inflation), _arcsines(independent, n_particles)
    run_differences = independent_angles[0] - independent_angles[1]
    run_inflation = max(1.0, float(np.mean(np.square(run_differences) * n_particles / 2)))
    differences = angles - independent_angles.mean(0)
    own_inflation = inflation * (run_inflation if exact_runs else 1.0)
    statistic = np.sum(np.square(differences) * n_particles / (own_inflation + run_inflation / 2))
    material = np.sqrt(np.mean(np.square(levels - independent.mean(0)))) > CONFIG.min_difference
    return bool(not np.isfinite(statistic) or (material and statistic > _chi_squared_quantile(len(levels))))


def _arcsines(levels: Float[np.ndarray, "... R"], n_draws: Float[np.ndarray, " R"] | int) -> Float[np.ndarray, "... R"]:
    return np.arcsin(np.clip(levels, 0, 1) * n_draws / (n_draws + 0.75))


def _chi_squared_quantile(df: int) -> float:
    """Return the upper `CONFIG.significance` quantile of a chi-squared distribution (Wilson and Hilferty 1931)."""
    variance = 2 / (9 * df)
    return df * (1 - variance + NormalDist().inv_cdf(1 - CONFIG.significance) * variance**0.5) ** 3


@light_jit
def _means(particles: Particles) -> Float[Array, "K B"]:
    return mean(particles.theta, particles.weights)


def _choose_replicates(
    key: PRNGKeyArray, particles: Particles, doubts: Float[np.ndarray, " B"]
) -> Int[np.ndarray, " R"]:
    """Choose replicates: those with the largest doubts, those with a mean far from that on the data, and others.

    The data are chosen only if there is a doubt about them.
    """
    means = np.asarray(_means(particles))
    variance = np.diagonal(host_moments(particles.replicate(0))[1][0])
    scale = np.sqrt(np.where(variance > 0, variance, 1.0))
    distances = np.square((means - means[:, :1]) / scale[:, None]).sum(0)
    order = np.lexsort((-distances[1:], -doubts[1:])) + 1
    order = order if doubts[0] == 0 else np.concatenate([[0], order])
    n_first = min(N_POPULATIONS // 2, len(order))
    others = random_generator(key).permutation(order[n_first:])
    # With few replicates some are audited twice.
    return np.resize(np.concatenate([order[:n_first], others]), N_POPULATIONS)
