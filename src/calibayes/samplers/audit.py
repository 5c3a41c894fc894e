r"""A second opinion on some rows, from a sampler that shares nothing with the first.

Weights cannot tell of a mode that no particle came to, nor of a wall that a map carried particles over: there they
are as even as can be, and wrong. So `CREW` rows, half of them at random and half those whose posterior moved most, are
sampled once more, from the prior, twice over. The two runs against each other show what Monte Carlo error is there;
the critical levels of the first sampler are held against their mean.
"""

from statistics import NormalDist
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from calibayes._backend.functions import as_float
from calibayes._core.particles import Particles, ess, mean
from calibayes._core.target import Target
from calibayes.regions import Region, critical_levels
from calibayes.samplers.initial import N_POPULATIONS, rejuvenate_until_mixed, temper_from_prior

_ess = jax.jit(ess)
_SIGNIFICANCE = 1e-4
_MATERIAL = 0.02
"""Root mean square difference of levels that matters; less would move eta by less than its own error."""


class Audit(NamedTuple):
    rows: Int[np.ndarray, " R"]
    """Bootstrap rows, counted from 0."""
    levels: Float[np.ndarray, " R"]
    """What the calibration had there."""
    audited: Float[np.ndarray, "2 R"]
    """What two runs from the prior have."""
    failed: bool

    @property
    def finding(self) -> str:
        gaps = np.abs(self.levels - self.audited.mean(0))
        return f"its critical levels differ from an independent sampler's by {gaps.max():.2f} at most on {N_POPULATIONS} rows"


def audit(
    key: PRNGKeyArray,
    target: Target,
    particles: Particles,
    eta: float,
    region: Region,
    point: Float[Array, " K"],
) -> Audit:
    """Hold the particles of some rows against independent ones."""
    choice_key, *run_keys = jax.random.split(key, 3)
    rows = _choice(choice_key, particles)
    some = target.select(rows)
    size = particles.risk.shape[-1]
    ours = np.asarray(critical_levels(some, particles.select(rows), as_float(eta), region, point))
    runs = [_independent(run_key, some, eta, size) for run_key in run_keys]
    theirs = np.stack([np.asarray(critical_levels(some, run, as_float(eta), region, point)) for run in runs])
    effective = np.asarray(_ess(particles.select(rows).log_weights))
    return Audit(np.asarray(rows) - 1, ours, theirs, _differ(ours, theirs, size, size / np.maximum(effective, 1.0)))


def _independent(key: PRNGKeyArray, target: Target, eta: float, size: int) -> Particles:
    """Particles from the prior, moved until they have settled."""
    temper_key, mix_key = jax.random.split(key)
    return rejuvenate_until_mixed(
        mix_key, target, temper_from_prior(temper_key, target, eta, size).particles, eta, at_least=0
    )[0].particles


def _differ(
    ours: Float[np.ndarray, " R"], theirs: Float[np.ndarray, "2 R"], size: int, uneven: Float[np.ndarray, " R"]
) -> bool:
    """Whether the levels differ by more than Monte Carlo error, and by enough to matter.

    A level L from M independent draws has the variance (1 - L^2) / M at most, and so its arcsine about 1 / M, wherever
    it is (with Anscombe's correction near one): a variance read off the levels there would be as noisy as they are.
    What resampling adds is read off the two runs; what weights add to ours is M over their effective size, `uneven`.
    """
    our_angles, their_angles = _angles(ours, size / uneven), _angles(theirs, size)
    inflation = max(1.0, float(np.mean(np.square(their_angles[0] - their_angles[1]) * size / 2)))
    gaps = our_angles - their_angles.mean(0)
    statistic = np.sum(np.square(gaps) * size / (uneven + inflation / 2))
    material = np.sqrt(np.mean(np.square(ours - theirs.mean(0)))) > _MATERIAL
    return bool(not np.isfinite(statistic) or (material and statistic > _chi_squared_limit(len(ours))))


def _angles(levels: Float[np.ndarray, "... R"], size: Float[np.ndarray, " R"] | int) -> Float[np.ndarray, "... R"]:
    return np.arcsin(np.clip(levels, 0, 1) * size / (size + 0.75))


def _chi_squared_limit(df: int) -> float:
    """What a chi-squared variable exceeds with probability `_SIGNIFICANCE` (Wilson and Hilferty's cube)."""
    spread = 2 / (9 * df)
    return df * (1 - spread + NormalDist().inv_cdf(1 - _SIGNIFICANCE) * spread**0.5) ** 3


@eqx.filter_jit
def _choice(key: PRNGKeyArray, particles: Particles) -> Int[Array, " R"]:
    """Bootstrap rows: those whose mean lies farthest from the data's, and others at random."""
    means = mean(particles.theta, particles.weights)
    scale = jnp.sqrt(mean(jnp.square(particles.theta - means[:, :, None]), particles.weights)[:, :1])
    moved = jnp.square((means - means[:, :1]) / jnp.where(scale > 0, scale, 1.0)).sum(0).at[0].set(-1.0)
    far = jax.lax.top_k(moved, N_POPULATIONS // 2)[1]
    # Random keys to sort by, those already taken and the data put last.
    order = jax.random.uniform(key, moved.shape).at[far].set(-1.0).at[0].set(-1.0)
    return jnp.concatenate([far, jax.lax.top_k(order, N_POPULATIONS - N_POPULATIONS // 2)[1]])
