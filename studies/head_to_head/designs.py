"""Data of the head-to-head, and the parameter to be covered: the minimizer of the population risk.

A line `2 + x + e` with seven joint distributions of x and e, all stationary. The expectation of the score depends on
the joint distribution of one x and e only, and is computed by quadrature. Classifiers predict the sign of
`x - 0.5 + e`.

Imports neither calibayes nor jax, so that the environment of the other software can import it.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy import optimize, stats

from studies.head_to_head.names import (
    AR1,
    CLASSIFIERS,
    CLUSTERS,
    DESIGNS,
    HETEROSCEDASTIC,
    OUTLIERS,
    SKEWED,
    T3,
    WIDE,
)

N_CLUSTERS = {50: 10, 100: 20, 400: 50}
"""Number of clusters by number of observations."""
WIDE_THETA = (1.0, 2.0, 0.0, -1.0)
"""Parameters of the problem `WIDE`."""
TAU, HUBER_DELTA = 0.9, 1.345
_INTERCEPT, _SLOPE = 2.0, 1.0
_LATENT_INTERCEPT = -0.5
_OUTLIER_SHARE, _SHIFT = 0.05, 10.0
_WITHIN = 0.5
"""Correlation of two observations of a cluster, and of consecutive observations of a series; of x and of e."""
_WIDE_SPREAD = (0.3, 1.5)
"""Standard deviation of the errors at zero of the second column, and its increase with the distance from zero."""


class Data(NamedTuple):
    """A data set; `groups` has the cluster of each observation, or is None."""

    x: np.ndarray
    y: np.ndarray
    groups: np.ndarray | None


def draw(loss: str, design: str, n: int, seed: int) -> Data:
    """Draw a data set. It does not depend on the loss, but for the labels of classifiers and for `WIDE`."""
    rng = np.random.default_rng([seed, 25, DESIGNS.index(design)])
    if loss == WIDE:
        x = np.column_stack([np.ones(n), rng.normal(size=(n, 3))])
        e = rng.normal(size=n) * (_WIDE_SPREAD[0] + _WIDE_SPREAD[1] * np.abs(x[:, 1]))
        return Data(x, x @ WIDE_THETA + e, None)
    groups = np.arange(n) * N_CLUSTERS[n] // n if design == CLUSTERS else None
    regressor, e = _DRAW.get(design, _independent)(rng, n, design)
    x = np.column_stack([np.ones(n), regressor])
    if loss in CLASSIFIERS:
        return Data(x, np.where(_LATENT_INTERCEPT + regressor + e > 0, 1.0, -1.0), groups)
    return Data(x, _INTERCEPT + _SLOPE * regressor + e, groups)


def _independent(rng: np.random.Generator, n: int, design: str) -> tuple[np.ndarray, np.ndarray]:
    x = rng.chisquare(4, n) - 2 if design in (SKEWED, HETEROSCEDASTIC) else rng.normal(size=n)
    e = rng.standard_t(3, n) if design == T3 else rng.normal(size=n)
    if design == HETEROSCEDASTIC:
        e = e * _spread(x)
    if design == OUTLIERS:
        e = e + _SHIFT * (rng.uniform(size=n) < _OUTLIER_SHARE)
    return x, e


def _clustered(rng: np.random.Generator, n: int, design: str) -> tuple[np.ndarray, np.ndarray]:  # noqa: ARG001
    number = N_CLUSTERS[n]
    common = rng.normal(size=(2, number))[:, np.arange(n) * number // n]
    x, e = math.sqrt(_WITHIN) * common + math.sqrt(1 - _WITHIN) * rng.normal(size=(2, n))
    return x, e


def _serial(rng: np.random.Generator, n: int, design: str) -> tuple[np.ndarray, np.ndarray]:  # noqa: ARG001
    series = rng.normal(size=(n, 2))
    series[1:] *= math.sqrt(1 - _WITHIN**2)
    for i in range(1, n):
        series[i] += _WITHIN * series[i - 1]
    return series[:, 0], series[:, 1]


_DRAW: dict[str, Callable[[np.random.Generator, int, str], tuple[np.ndarray, np.ndarray]]] = {
    CLUSTERS: _clustered,
    AR1: _serial,
}


def _spread(x: np.ndarray) -> np.ndarray:
    """Return the standard deviation of heteroscedastic errors."""
    return 0.5 + 0.5 * np.abs(x)


@cache
def truth(loss: str, design: str) -> tuple[float, ...]:
    """Return the minimizer of the population risk, rounded to eight digits.

    The digits after these depend on the processor; stored interval bounds can be equal to the rounded values.
    """
    if loss == WIDE:
        return WIDE_THETA
    start = (0.0, 1.0) if loss in CLASSIFIERS else (_INTERCEPT, _SLOPE)
    solution = optimize.root(lambda theta: expected_score(loss, design, theta), start, tol=1e-12)
    if not np.abs(solution.fun).max() < 1e-9:
        raise RuntimeError(f"the minimizer of the population risk was not found: {loss}, {design}: {solution.message}")
    return tuple(round(float(value), 8) for value in solution.x)


def expected_score(loss: str, design: str, theta: np.ndarray) -> np.ndarray:
    """Return the expected derivative of the negative loss by intercept and slope, by quadrature over x."""
    kinks = [(margin - theta[0]) / theta[1] for margin in (-1.0, 1.0)] if loss == "hinge" else []
    x, weights = _regressor(design, kinks)
    prediction = theta[0] + theta[1] * x
    if loss in CLASSIFIERS:
        mean = _expected_margin_score(loss, 1 - _cdf(design, -_LATENT_INTERCEPT - x, x), prediction)
    else:
        mean = _expected_residual_score(loss, design, prediction - _INTERCEPT - _SLOPE * x, x)
    return np.array([weights @ mean, weights @ (mean * x)])


def _regressor(design: str, kinks: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return points and weights of the distribution of x: Gauss-Legendre between the kinks; zero is one of them."""
    skewed = design in (SKEWED, HETEROSCEDASTIC)
    low, high = (-2.0, 60.0) if skewed else (-9.0, 9.0)
    ends = sorted({low, high, *(float(np.clip(kink, low, high)) for kink in (0.0, *kinks))})
    points, weights = _gauss(400)
    parts = [((b - a) / 2, (a + b) / 2) for a, b in pairwise(ends)]
    x = np.concatenate([middle + half * points for half, middle in parts])
    density = stats.chi2(4).pdf(x + 2) if skewed else stats.norm.pdf(x)
    return x, np.concatenate([half * weights for half, _ in parts]) * density


@cache
def _gauss(number: int) -> tuple[np.ndarray, np.ndarray]:
    return np.polynomial.legendre.leggauss(number)


def _cdf(design: str, e: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the distribution function of the errors given x."""
    if design == T3:
        return stats.t(3).cdf(e)
    if design == OUTLIERS:
        return (1 - _OUTLIER_SHARE) * stats.norm.cdf(e) + _OUTLIER_SHARE * stats.norm.cdf(e - _SHIFT)
    return stats.norm.cdf(e / (_spread(x) if design == HETEROSCEDASTIC else 1.0))


def _expected_residual_score(loss: str, design: str, gap: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the expected score of a residual e - gap given x."""
    if loss == "squared":
        return (_OUTLIER_SHARE * _SHIFT if design == OUTLIERS else 0.0) - gap
    if loss == "huber":
        # E[clip(e - gap, -d, d)] = d - the integral of the distribution function from gap - d to gap + d.
        points, weights = _gauss(60)
        values = _cdf(design, gap[:, None] + HUBER_DELTA * points, x[:, None])
        return HUBER_DELTA - HUBER_DELTA * values @ weights
    return (TAU if loss == "tau 0.9" else 0.5) - _cdf(design, gap, x)


def _expected_margin_score(loss: str, share: np.ndarray, prediction: np.ndarray) -> np.ndarray:
    """Return the expected score of a classifier for labels that are positive with probability `share`."""
    if loss == "logistic":
        return share - 1 / (1 + np.exp(-prediction))
    return share * (prediction < 1) - (1 - share) * (prediction > -1)
