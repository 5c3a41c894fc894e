"""Reference problems: twelve small models with the critical etas of all bootstrap replicates by exact integration.

As in posteriordb, a problem is stored with its code: the name of a family of `adversarial/families.py` and its
constants, which define data, model and bootstrap counts. The critical eta of a replicate is the largest learning rate
at which its set contains the estimate from the data; their quantile is the learning rate that GPC looks for.

`python -m benchmarks.validate.reference` computes them and stores them in `results/reference.json`.
`tests/test_reference.py` compares every sampler with them.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import norm

from benchmarks.common import RESULTS, write_json
from benchmarks.validate.adversarial import families
from benchmarks.validate.adversarial.families import Case

FILE = RESULTS / "reference.json"
_RATIO, _STEPS = 1.5, 7
"""Ratio of neighbouring learning rates of the grid, and their number on either side of the solution. Critical etas
beyond the grid are stored as its ends."""
_BISECTIONS, _RANGE = 14, (1e-3, 1e3)
_DIGITS = 5
"""Significant digits of stored numbers."""

PROBLEMS: dict[str, tuple[Callable[..., Case], dict[str, Any]]] = {
    "normal location, prior in conflict": (families.conflict, {"loc": 1.0, "scale": 0.1}),
    "overdispersed counts": (families.poisson, {"mean": 20.0, "overdispersion": 3.0}),
    "median regression, hpd": (families.regression, {}),
    "median regression, ellipsoid": (families.regression, {"region": "ellipsoid"}),
    "median regression, box": (families.regression, {"region": "box"}),
    "median regression, slope": (families.regression, {"region": "interval 1"}),
    "least squares, hpd": (families.regression, {"loss": "squared"}),
    "bounded loss": (families.welsch, {"gap": 1.0}),
    "Cauchy loss": (families.cauchy, {}),
    "insensitive loss": (families.flat, {}),
    "waiting times": (families.waiting_times, {}),
    "quantile 0.05": (families.extreme_tau, {"tau": 0.05}),
}


class Reference(NamedTuple):
    """A problem and its critical etas.

    Attributes
    ----------
    case : Case
        Model, data, bootstrap counts, region and level.
    critical_etas : ndarray of shape (B,)
        Critical eta of each replicate.
    """

    case: Case
    critical_etas: np.ndarray

    @property
    def eta(self) -> float:
        """Learning rate at which the share of replicates whose set contains the estimate equals the level."""
        return float(np.quantile(self.critical_etas, 1 - self.case.level))

    def coverage(self, eta: float) -> float:
        """Return the share of replicates whose set contains the estimate at a learning rate."""
        return float(np.mean(self.critical_etas >= eta))


def make_case(name: str) -> Case:
    """Return a problem by its name."""
    family, constants = PROBLEMS[name]
    return family(**constants)


def load(name: str) -> Reference:
    """Return a problem with its stored critical etas."""
    stored = json.loads(FILE.read_text())[name]
    return Reference(make_case(name), np.array(stored["critical_etas"]))


def critical_etas(case: Case) -> np.ndarray:
    """Compute the critical eta of every replicate by exact integration at a grid of learning rates.

    The width of a set that touches the estimate is a power of eta near the crossing, so that the logarithm of the
    normal quantile of the critical level is interpolated linearly in the logarithm of eta.
    """
    solution = _solve(case)
    etas = solution * _RATIO ** np.arange(-_STEPS, _STEPS + 1)
    levels = np.array([case.exact.critical_levels(eta, case.region, case.estimate) for eta in etas])
    levels = np.clip(levels, 1e-9, 1 - 1e-9)
    heights = np.log(norm.ppf((1 + levels) / 2)) - math.log(norm.ppf((1 + case.level) / 2))
    return np.exp([_crossing(np.log(etas), column) for column in heights.T])


def _crossing(positions: np.ndarray, heights: np.ndarray) -> float:
    """Return the first position at which heights become positive; an end of the range if they do not."""
    above = np.flatnonzero(heights > 0)
    if not len(above) or above[0] == 0:
        return float(positions[0 if len(above) else -1])
    k = above[0]
    share = -heights[k - 1] / (heights[k] - heights[k - 1])
    return float(positions[k - 1] + share * (positions[k] - positions[k - 1]))


def _solve(case: Case) -> float:
    """Return the learning rate at which the coverage equals the level, to a few percent."""
    low, high = (math.log(eta) for eta in _RANGE)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if case.coverage(math.exp(middle)) >= case.level else (low, middle)
    return math.exp((low + high) / 2)


def main() -> None:
    """Compute all problems and store them."""
    content = {}
    for name, (family, constants) in PROBLEMS.items():
        case = make_case(name)
        etas = [float(f"{eta:.{_DIGITS}g}") for eta in critical_etas(case)]
        described = {"family": family.__name__, "constants": constants, "region": case.region, "level": case.level}
        content[name] = described | {"critical_etas": etas}
        print(f"{name}: eta {Reference(case, np.array(etas)).eta:.4g}", flush=True)
    write_json(Path(FILE), content)


if __name__ == "__main__":
    main()
