r"""Known answers: the mean of a bivariate normal, where every region's coverage curve has a closed form.

With the loss $|y_i - \theta|^2 / 2$ and an all but flat prior, the posterior on row b is normal about the row's mean
$\bar y_b$ with variance $1 / (\eta N)$ in both parameters. With $d = \bar y_b - \bar y$ and $s = \sqrt{\eta N}$ the
critical level is that of $|sd|^2$ by chi-squared for HPD sets and ellipsoids, $2\Phi(s|d_k|) - 1$ for an interval, the
larger of the two for the box, its square for the simultaneous box, and $2\Phi(s|d_0 - d_1|/\sqrt2) - 1$ for what grows
with $\theta_0 - \theta_1$.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

import calibayes as cb
from calibayes._backend.room import make_room

OBSERVATIONS = 60
LEVELS = (0.95, 0.8)
_POPULATIONS = 20
_COUNTING = 1700
"""Particles that count on a row, of two snapshots of 1,000."""


def _loss(theta: jax.Array, y: jax.Array) -> jax.Array:
    return 0.5 * jnp.square(y - theta).sum()


def _odds(theta: jax.Array) -> jax.Array:
    return jnp.exp(theta[0] - theta[1])


def _two_sided(z: np.ndarray) -> np.ndarray:
    return 2 * stats.norm.cdf(np.abs(z)) - 1


EXACT = {
    "hpd": lambda z: stats.chi2(2).cdf((z**2).sum(-1)),
    "ellipsoid": lambda z: stats.chi2(2).cdf((z**2).sum(-1)),
    "box": lambda z: _two_sided(z).max(-1),
    "simultaneous": lambda z: _two_sided(z).max(-1) ** 2,
    "interval": lambda z: _two_sided(z[..., 1]),
    "linear": lambda z: _two_sided((z[..., 0] - z[..., 1]) / 2**0.5),
    "functional": lambda z: _two_sided((z[..., 0] - z[..., 1]) / 2**0.5),
}
"""Critical levels of standardised distances (..., 2)."""
REGIONS: dict[str, Any] = {
    "hpd": "hpd",
    "ellipsoid": "ellipsoid",
    "box": "box",
    "simultaneous": "simultaneous",
    "interval": cb.regions.Interval(1),
    "linear": cb.regions.Linear([1.0, -1.0]),
    "functional": cb.regions.Functional(_odds),
}
MODEL = cb.GibbsModel(_loss, cb.priors.Normal(scale=100.0), dim=2)


def problem(n_replicates: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Data that are more spread out in one direction, and counts."""
    rng = np.random.default_rng(seed)
    y = rng.normal(size=(OBSERVATIONS, 2)) @ np.array([[0.9, 0.4], [0.0, 1.3]]) + 2
    return y, rng.multinomial(OBSERVATIONS, np.full(OBSERVATIONS, 1 / OBSERVATIONS), size=n_replicates)


def coverage(y: np.ndarray, counts: np.ndarray, eta: float, region: str, level: float) -> float:
    """The exact one, on these rows."""
    away = counts @ y / OBSERVATIONS - y.mean(0)
    return float((EXACT[region]((eta * OBSERVATIONS) ** 0.5 * away) <= level).mean())


def allowed(n_replicates: int, level: float) -> float:
    """Four errors of coverage that come from the particles.

    A level near the one asked for has an error e on each row, which rows of the same population share: e / sqrt(20) in
    all, where coverage goes with the level. What each has to itself misjudges about n e rows, either way.
    """
    tail = (1 - level) / 2
    error = 2 * (tail * (1 - tail) / _COUNTING) ** 0.5
    return 4 * (error**2 / _POPULATIONS + error / n_replicates) ** 0.5


def run(n_replicates: int = 1000, regions: tuple[str, ...] = tuple(REGIONS)) -> list[dict[str, Any]]:
    """Each region calibrated on the same rows; what the closed form says of the learning rate that was found."""
    y, counts = problem(n_replicates)
    result = cb.calibrate(MODEL, y, bootstrap=counts, sampler="transport", seed=1, progress=False)
    found = []
    for name in regions:
        make_room()
        for level in LEVELS:
            at = result.at(level, REGIONS[name])
            exact = coverage(y, counts, at.eta, name, level)
            limit = allowed(n_replicates, level)
            line = {"region": name, "level": level, "eta": at.eta, "coverage": exact, "allowed": limit}
            found.append(line | {"passed": bool(at.converged and abs(exact - level) < limit)})
            print(name, level, f"eta {at.eta:.4f}, exact coverage {exact:.4f}, allowed {limit:.4f}", flush=True)
    return found
