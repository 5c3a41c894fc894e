r"""Calibrations with a known answer: the mean of a bivariate normal, where every coverage curve has a closed form.

With the loss $|y_i - \theta|^2 / 2$ and an almost flat prior, the posterior of replicate b is normal with mean $\bar
y_b$, the mean of the replicate, and variance $1 / (\eta N)$ in both parameters. With $d = \bar y_b - \bar y$ and $s =
\sqrt{\eta N}$ the critical level is the chi-squared probability of $|sd|^2$ for HPD sets and ellipsoids, $2\Phi(s|d_k|)
- 1$ for an interval, the larger of the two for the box, its square for the simultaneous box, and $2\Phi(s|d_0 -
d_1|/\sqrt2) - 1$ for increasing functions of $\theta_0 - \theta_1$.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy import stats

import calibayes as cb
from calibayes._backend.memory import clear_caches_if_full

OBSERVATIONS = 60
LEVELS = (0.95, 0.8)
_POPULATIONS = 20
"""Number of populations of the transport sampler."""
_ESS = 1700
"""Effective sample size of a replicate in two snapshots of 1,000 particles."""


def _loss(theta: Array, y: Array) -> Array:
    return 0.5 * jnp.square(y - theta).sum()


def _ratio(theta: Array) -> Array:
    return jnp.exp(theta[0] - theta[1])


def _two_sided(z: np.ndarray) -> np.ndarray:
    return 2 * stats.norm.cdf(np.abs(z)) - 1


EXACT_LEVELS = {
    "hpd": lambda z: stats.chi2(2).cdf((z**2).sum(-1)),
    "ellipsoid": lambda z: stats.chi2(2).cdf((z**2).sum(-1)),
    "box": lambda z: _two_sided(z).max(-1),
    "simultaneous": lambda z: _two_sided(z).max(-1) ** 2,
    "interval": lambda z: _two_sided(z[..., 1]),
    "linear": lambda z: _two_sided((z[..., 0] - z[..., 1]) / 2**0.5),
    "functional": lambda z: _two_sided((z[..., 0] - z[..., 1]) / 2**0.5),
}
"""Critical levels of standardised distances, which have shape (..., 2)."""
REGIONS: dict[str, Any] = {
    "hpd": "hpd",
    "ellipsoid": "ellipsoid",
    "box": "box",
    "simultaneous": "simultaneous",
    "interval": cb.regions.Interval(1),
    "linear": cb.regions.Linear([1.0, -1.0]),
    "functional": cb.regions.Functional(_ratio),
}
MODEL = cb.GibbsModel(_loss, cb.priors.Normal(scale=100.0), dim=2)


def make_problem(n_replicates: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return data with unequal variances and bootstrap counts."""
    rng = np.random.default_rng(seed)
    y = rng.normal(size=(OBSERVATIONS, 2)) @ np.array([[0.9, 0.4], [0.0, 1.3]]) + 2
    return y, rng.multinomial(OBSERVATIONS, np.full(OBSERVATIONS, 1 / OBSERVATIONS), size=n_replicates)


def exact_coverage(y: np.ndarray, counts: np.ndarray, eta: float, region: str, level: float) -> float:
    """Return the exact coverage on these bootstrap replicates."""
    distance = counts @ y / OBSERVATIONS - y.mean(0)
    return float((EXACT_LEVELS[region]((eta * OBSERVATIONS) ** 0.5 * distance) <= level).mean())


def tolerance(n_replicates: int, level: float) -> float:
    """Return four standard errors of the coverage due to the particles.

    A critical level near `level` has a standard error e on each replicate. Replicates of one population share it, which
    contributes e / sqrt(20) to the coverage. The part specific to a replicate misclassifies about n e replicates.
    """
    tail = (1 - level) / 2
    se = 2 * (tail * (1 - tail) / _ESS) ** 0.5
    return 4 * (se**2 / _POPULATIONS + se / n_replicates) ** 0.5


def run(n_replicates: int = 1000, regions: tuple[str, ...] = tuple(REGIONS)) -> list[dict[str, Any]]:
    """Calibrate each region on the same replicates and compute the exact coverage at the resulting learning rate."""
    y, counts = make_problem(n_replicates)
    result = cb.calibrate(MODEL, y, bootstrap=counts, sampler="transport", seed=1, progress=False)
    results = []
    for name in regions:
        clear_caches_if_full()
        for level in LEVELS:
            calibrated = result.at(level, REGIONS[name])
            coverage = exact_coverage(y, counts, calibrated.eta, name, level)
            allowed = tolerance(n_replicates, level)
            line = {"region": name, "level": level, "eta": calibrated.eta, "coverage": coverage, "tolerance": allowed}
            results.append(line | {"passed": bool(calibrated.converged and abs(coverage - level) < allowed)})
            summary = f"eta {calibrated.eta:.4f}, exact coverage {coverage:.4f}, tolerance {allowed:.4f}"
            print(name, level, summary, flush=True)
    return results
