"""Losses that are no likelihoods: exact draws of their posteriors, moved by a kernel whose adaptation is frozen.

Two parameters, so that the posterior on each row is had on a grid, by NumPy and not by the library. Draws of it that a
kernel has moved some times must still be draws of it: Kolmogorov and Smirnov's test of each parameter on each row.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

import calibayes as cb
from benchmarks.validate.geweke import kernels_for
from calibayes._backend.rng import replicate_keys
from calibayes._backend.room import make_room
from calibayes._core.particles import Particles, covariance
from calibayes._core.target import Target, evaluate, make_target
from calibayes.kernels import Kernel

STEPS = 5
_OBSERVATIONS = 24
_ROWS = 3
_CELLS = 400


class Loss(NamedTuple):
    name: str
    gibbs: cb.GibbsModel
    eta: float
    by_hand: Callable[[np.ndarray, np.ndarray], np.ndarray]
    """The loss again, of predictions and y."""
    prior: Any
    """And the prior, by SciPy."""
    binary: bool
    span: float
    """Beyond this many there is nothing of the posterior."""


def _zero_one(theta: jax.Array, datum: Any) -> jax.Array:
    x, y = datum
    return jnp.where(y * (x @ theta) > 0, 0.0, 1.0)


LOSSES = (
    Loss(
        "hinge",
        cb.GibbsModel(cb.losses.Hinge(), cb.priors.Laplace([0.5, -0.5], [1.0, 0.7])),
        0.5,
        lambda f, y: 2 * np.maximum(0, 1 - y * f),
        stats.laplace([0.5, -0.5], [1.0, 0.7]),
        True,
        9.0,
    ),
    Loss(
        "Huber",
        cb.GibbsModel(cb.losses.Huber(0.7), cb.priors.Normal([0.5, 0.0], 2.0)),
        1.3,
        lambda f, y: np.where(np.abs(y - f) < 0.7, 0.5 * (y - f) ** 2, 0.7 * (np.abs(y - f) - 0.35)),
        stats.norm([0.5, 0.0], 2.0),
        False,
        5.0,
    ),
    Loss(
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
    """The posterior on every row: shares of square cells."""

    axis: np.ndarray
    """Middles of the cells, along either parameter."""
    mass: np.ndarray
    """(rows, cells, cells)"""

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Draws on every row, (2, rows, size): a cell by its share, and anywhere in it."""
        width = self.axis[1] - self.axis[0]
        cells = [rng.choice(mass.size, size, p=mass.ravel()) for mass in self.mass]
        pairs = np.stack([np.unravel_index(cell, self.mass.shape[1:]) for cell in cells], 1)
        return self.axis[pairs] + width * rng.uniform(-0.5, 0.5, pairs.shape)

    def p_value(self, row: int, parameter: int, draws: np.ndarray) -> float:
        edges = np.append(self.axis, 2 * self.axis[-1] - self.axis[-2]) - 0.5 * (self.axis[1] - self.axis[0])
        below = np.concatenate([[0], np.cumsum(self.mass[row].sum(1 - parameter))])
        return float(stats.kstest(draws, lambda at: np.interp(at, edges, below)).pvalue)


def problem(loss: Loss, seed: int = 0) -> tuple[Target, Grid]:
    """A target of the data and some bootstrap rows, and its posteriors on the grid."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(_OBSERVATIONS), rng.normal(size=_OBSERVATIONS)])
    y = x @ [0.3, 0.8] + rng.standard_t(3, size=_OBSERVATIONS)
    y = np.where(y > 0, 1.0, -1.0) if loss.binary else y
    counts = rng.multinomial(_OBSERVATIONS, np.full(_OBSERVATIONS, 1 / _OBSERVATIONS), size=_ROWS - 1)
    edges = np.linspace(-loss.span, loss.span, _CELLS + 1)
    axis = 0.5 * (edges[1:] + edges[:-1])
    theta = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    losses = loss.by_hand(theta @ x.T, y)
    log_density = -loss.eta * np.stack([np.ones(_OBSERVATIONS), *counts]) @ losses.T
    log_density = log_density + loss.prior.logpdf(theta).sum(-1)
    mass = np.exp(log_density - log_density.max(1, keepdims=True))
    mass = (mass / mass.sum(1, keepdims=True)).reshape(-1, _CELLS, _CELLS)
    return make_target(loss.gibbs, (x, y), counts, 2), Grid(axis, mass)


@eqx.filter_jit
def moved(key: Any, kernel: Kernel, target: Target, eta: float, particles: Particles) -> Particles:
    adaptation = kernel.init(covariance(particles.theta, particles.weights))

    def step(i: Any, particles: Particles) -> Particles:
        keys = replicate_keys(jax.random.fold_in(key, i), target.n_replicates)
        return kernel.step(keys, target, jnp.full(target.n_replicates, eta), particles, adaptation, False)[0]

    return jax.lax.fori_loop(0, STEPS, step, particles)


def compare(name: str, kernel: Kernel, loss: Loss, size: int, seed: int = 0) -> list[dict[str, Any]]:
    target, grid = problem(loss)
    draws = jnp.asarray(grid.draw(np.random.default_rng(seed), size), float)
    after = np.asarray(moved(jax.random.key(seed), kernel, target, loss.eta, evaluate(target, draws)).theta)
    stuck = float((after[0] == np.asarray(draws[0])).mean())
    if stuck > 0.5:
        raise RuntimeError(f"{name} with {loss.name}: {stuck:.0%} of the draws have not moved.")
    return [
        {
            "kernel": name,
            "loss": loss.name,
            "what": f"parameter {k}, row {row}",
            "p": grid.p_value(row, k, after[k, row]),
            "n": size,
        }
        for row in range(_ROWS)
        for k in range(2)
    ]


def run(size: int = 4000) -> list[dict[str, Any]]:
    """Every kernel with every loss it can do."""
    tests = []
    for loss in LOSSES:
        make_room()
        for seed, (name, kernel) in enumerate(kernels_for(loss.gibbs).items()):
            own = compare(name, kernel, loss, size, seed)
            print(name, loss.name, *(f"{test['p']:.3f}" for test in own), flush=True)
            tests += own
    return tests
