"""Exact draws of posteriors whose loss is not a negative log-likelihood, moved by a kernel with frozen adaptation.

There are two parameters, so that the posterior of each replicate can be computed on a grid, by NumPy and independently
of the library. Exact draws that a kernel moved several times must still have that distribution, which a
Kolmogorov-Smirnov test checks for each parameter of each replicate.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray
from scipy import stats

import calibayes as cb
from benchmarks.validate.geweke import kernels_for
from calibayes._backend.memory import clear_caches_if_full
from calibayes._backend.rng import replicate_keys
from calibayes._core.particles import Particles, covariance
from calibayes._core.target import Target, evaluate, make_target
from calibayes.kernels import Kernel

STEPS = 5
_OBSERVATIONS = 24
_REPLICATES = 3
_CELLS = 400
_MAX_STUCK = 0.5
"""Share of draws that may not have moved; a kernel that does not move would pass the test."""


class Problem(NamedTuple):
    """A generalized posterior, and its loss and prior once more in NumPy and SciPy."""

    name: str
    gibbs: cb.GibbsModel
    eta: float
    loss: Callable[[np.ndarray, np.ndarray], np.ndarray]
    """Loss of predictions and y."""
    prior: Any
    """Frozen SciPy distribution of both parameters."""
    binary: bool
    half_width: float
    """The grid extends from minus this to this; the posterior mass outside is negligible."""


def _zero_one(theta: Array, datum: tuple[Array, Array]) -> Array:
    x, y = datum
    return jnp.where(y * (x @ theta) > 0, 0.0, 1.0)


PROBLEMS = (
    Problem(
        "hinge",
        cb.GibbsModel(cb.losses.Hinge(), cb.priors.Laplace([0.5, -0.5], [1.0, 0.7])),
        0.5,
        lambda f, y: 2 * np.maximum(0, 1 - y * f),
        stats.laplace([0.5, -0.5], [1.0, 0.7]),
        True,
        9.0,
    ),
    Problem(
        "Huber",
        cb.GibbsModel(cb.losses.Huber(0.7), cb.priors.Normal([0.5, 0.0], 2.0)),
        1.3,
        lambda f, y: np.where(np.abs(y - f) < 0.7, 0.5 * (y - f) ** 2, 0.7 * (np.abs(y - f) - 0.35)),
        stats.norm([0.5, 0.0], 2.0),
        False,
        5.0,
    ),
    Problem(
        "0-1",
        cb.GibbsModel(_zero_one, cb.priors.Normal([0.0, 0.5], 1.0), dim=2),
        1.0,
        lambda f, y: np.where(y * f > 0, 0.0, 1.0),
        stats.norm([0.0, 0.5], 1.0),
        True,
        5.0,
    ),
)


class Grid(NamedTuple):
    """The posterior of every replicate on a grid of square cells."""

    axis: np.ndarray
    """Centres of the cells, the same for both parameters."""
    mass: np.ndarray
    """Probability of each cell, shape (replicates, cells, cells)."""

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Draw from every posterior, uniformly within a cell; shape (2, replicates, size)."""
        width = self.axis[1] - self.axis[0]
        cells = [rng.choice(mass.size, size, p=mass.ravel()) for mass in self.mass]
        pairs = np.stack([np.unravel_index(cell, self.mass.shape[1:]) for cell in cells], 1)
        return self.axis[pairs] + width * rng.uniform(-0.5, 0.5, pairs.shape)

    def p_value(self, replicate: int, parameter: int, draws: np.ndarray) -> float:
        """Return the p-value of the Kolmogorov-Smirnov test that draws have a marginal of the posterior."""
        edges = np.append(self.axis, 2 * self.axis[-1] - self.axis[-2]) - 0.5 * (self.axis[1] - self.axis[0])
        cdf = np.concatenate([[0], np.cumsum(self.mass[replicate].sum(1 - parameter))])
        return float(stats.kstest(draws, lambda x: np.interp(x, edges, cdf)).pvalue)


def discretise(problem: Problem, seed: int = 0) -> tuple[Target, Grid]:
    """Draw data and bootstrap counts; return the target and its posteriors on the grid."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(_OBSERVATIONS), rng.normal(size=_OBSERVATIONS)])
    y = x @ [0.3, 0.8] + rng.standard_t(3, size=_OBSERVATIONS)
    y = np.where(y > 0, 1.0, -1.0) if problem.binary else y
    counts = rng.multinomial(_OBSERVATIONS, np.full(_OBSERVATIONS, 1 / _OBSERVATIONS), size=_REPLICATES - 1)
    edges = np.linspace(-problem.half_width, problem.half_width, _CELLS + 1)
    axis = 0.5 * (edges[1:] + edges[:-1])
    theta = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    losses = problem.loss(theta @ x.T, y)
    log_density = -problem.eta * np.stack([np.ones(_OBSERVATIONS), *counts]) @ losses.T
    log_density = log_density + problem.prior.logpdf(theta).sum(-1)
    mass = np.exp(log_density - log_density.max(1, keepdims=True))
    mass = (mass / mass.sum(1, keepdims=True)).reshape(-1, _CELLS, _CELLS)
    return make_target(problem.gibbs, (x, y), counts, 2), Grid(axis, mass)


@eqx.filter_jit
def move(key: PRNGKeyArray, kernel: Kernel, target: Target, eta: float, particles: Particles) -> Particles:
    """Move particles `STEPS` times by a kernel whose adaptation is frozen."""
    adaptation = kernel.init(covariance(particles.theta, particles.weights))

    def step(i: Array, particles: Particles) -> Particles:
        keys = replicate_keys(jax.random.fold_in(key, i), target.n_replicates)
        return kernel.step(keys, target, jnp.full(target.n_replicates, eta), particles, adaptation, False)[0]

    return jax.lax.fori_loop(0, STEPS, step, particles)


def compare(name: str, kernel: Kernel, problem: Problem, size: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return a p-value for each parameter of each replicate."""
    target, grid = discretise(problem)
    draws = jnp.asarray(grid.draw(np.random.default_rng(seed), size), float)
    moved = np.asarray(move(jax.random.key(seed), kernel, target, problem.eta, evaluate(target, draws)).theta)
    stuck = float((moved[0] == np.asarray(draws[0])).mean())
    if stuck > _MAX_STUCK:
        raise RuntimeError(f"{name} with {problem.name}: {stuck:.0%} of the draws did not move.")
    return [
        {
            "kernel": name,
            "loss": problem.name,
            "quantity": f"parameter {k}, replicate {b}",
            "p": grid.p_value(b, k, moved[k, b]),
            "n": size,
        }
        for b in range(_REPLICATES)
        for k in range(2)
    ]


def run(size: int = 4000) -> list[dict[str, Any]]:
    """Test every kernel with every loss that it supports."""
    results = []
    for problem in PROBLEMS:
        clear_caches_if_full()
        for seed, (name, kernel) in enumerate(kernels_for(problem.gibbs).items()):
            tests = compare(name, kernel, problem, size, seed)
            print(name, problem.name, *(f"{test['p']:.3f}" for test in tests), flush=True)
            results += tests
    return results
