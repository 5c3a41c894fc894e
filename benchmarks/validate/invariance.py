"""Invariance of the learning rate: an equivalent formulation of a problem has the same learning rate.

Both formulations use the same seeds and the same bootstrap counts, so that only rounding differs. Rounding can change
whether one proposal is accepted, after which the two runs differ by Monte Carlo error. That error is estimated as the
spread of log eta over seeds on the same counts, and means over seeds are compared by a t test. Results that agree to
the last bit are marked as identical.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy import stats

import calibayes as cb
from calibayes._backend.memory import clear_caches_if_full
from calibayes.samplers import Sampler

_FACTOR = 8.0
_CONSTANT = 3.0
_TAU = 0.3


class Problem(NamedTuple):
    """Data, bootstrap counts, loss and prior of a linear quantile regression."""

    x: np.ndarray
    y: np.ndarray
    counts: np.ndarray
    loc: np.ndarray
    """Location of the prior, which is informative: a transformation that misses it changes the result."""
    scale: np.ndarray
    loss: cb.losses.Linear
    eta_factor: float = 1.0
    """Factor by which eta is multiplied before it is compared."""


def _quantile(prediction: Array, y: Array) -> Array:
    residual = y - prediction
    return jnp.maximum(_TAU * residual, (_TAU - 1) * residual)


def _multiplied(prediction: Array, y: Array) -> Array:
    return _FACTOR * _quantile(prediction, y)


def _plus_constant(prediction: Array, y: Array) -> Array:
    return _quantile(prediction, y) + _CONSTANT


def make_problem(n_replicates: int, n: int = 50) -> Problem:
    """Return a quantile regression with three parameters."""
    rng = np.random.default_rng(3)
    x = np.column_stack([np.ones(n), rng.normal(size=n), rng.exponential(size=n)])
    y = x @ [1.0, 0.5, -1.0] + rng.normal(size=n)
    counts = rng.multinomial(n, np.full(n, 1 / n), size=n_replicates).astype(float)
    loc, scale = np.array([0.5, 0.5, -0.5]), np.array([0.5, 0.3, 1.0])
    return Problem(x, y, counts, loc, scale, cb.losses.Linear(_quantile))


def _permute_observations(problem: Problem) -> Problem:
    order = np.random.default_rng(1).permutation(len(problem.y))
    return problem._replace(x=problem.x[order], y=problem.y[order], counts=problem.counts[:, order])


def _permute_parameters(problem: Problem) -> Problem:
    order = np.array([2, 0, 1])
    return problem._replace(x=problem.x[:, order], loc=problem.loc[order], scale=problem.scale[order])


def _scale_columns(problem: Problem) -> Problem:
    factors = np.array([1.0, 250.0, 0.04])
    return problem._replace(x=problem.x * factors, loc=problem.loc / factors, scale=problem.scale / factors)


def _change_unit_of_y(problem: Problem) -> Problem:
    return problem._replace(y=30 * problem.y, loc=30 * problem.loc, scale=30 * problem.scale, eta_factor=30.0)


CHANGES: dict[str, Callable[[Problem], Problem]] = {
    "observations permuted": _permute_observations,
    "parameters permuted": _permute_parameters,
    "columns of X scaled": _scale_columns,
    "y in other units": _change_unit_of_y,
    "loss times 8": lambda problem: problem._replace(loss=cb.losses.Linear(_multiplied), eta_factor=_FACTOR),
    "loss plus 3": lambda problem: problem._replace(loss=cb.losses.Linear(_plus_constant)),
}
SAMPLERS: dict[str, tuple[Sampler, int]] = {
    "transport": (cb.Transport(n_particles=500), 400),
    "SMC": (cb.SMC(n_particles=300, ess_target=0.9), 100),
    "MCMC": (cb.MCMC(n_draws=1500, n_warmup=300), 100),
}
"""Samplers with their number of replicates."""
_UNCHANGED = "unchanged"


def log_eta(problem: Problem, sampler: Sampler, seed: int) -> float:
    """Calibrate and return the logarithm of eta in the units of the unchanged problem."""
    model = cb.GibbsModel(problem.loss, cb.priors.Normal(problem.loc, problem.scale))
    eta_init = None if isinstance(sampler, cb.Transport) else 2.0 / problem.eta_factor
    options: dict[str, Any] = {"bootstrap": problem.counts, "sampler": sampler, "eta_init": eta_init}
    options |= {"search": cb.Bracket(), "level": 0.9, "region": "ellipsoid", "seed": seed, "progress": False}
    result = cb.calibrate(model, (problem.x, problem.y), **options)
    if not result.converged:
        raise RuntimeError(f"the calibration did not converge: {result.message}")
    return float(np.log(result.eta * problem.eta_factor))


def run(names: tuple[str, ...] = tuple(SAMPLERS), seeds: int = 4) -> list[dict[str, Any]]:
    """Compare every change with the unchanged problem, for each sampler."""
    results = []
    for name in names:
        clear_caches_if_full()
        sampler, n_replicates = SAMPLERS[name]
        base = make_problem(n_replicates)
        problems = {_UNCHANGED: base, **{change: apply(base) for change, apply in CHANGES.items()}}
        etas = {
            change: [log_eta(problem, sampler, seed) for seed in range(seeds)] for change, problem in problems.items()
        }
        variance = float(np.mean([np.var(values, ddof=1) for values in etas.values()]))
        for change in CHANGES:
            difference = float(np.mean(etas[change]) - np.mean(etas[_UNCHANGED]))
            se = (2 * variance / seeds) ** 0.5
            p = float(2 * stats.t(len(etas) * (seeds - 1)).sf(abs(difference) / se))
            identical = etas[change] == etas[_UNCHANGED]
            line = {"sampler": name, "change": change, "difference": difference, "se": se, "p": p}
            results.append(line | {"identical": identical, "n": seeds})
            suffix = "identical" if identical else ""
            print(name, change, f"{difference:+.5f}, standard error {se:.5f}, p {p:.3f}", suffix, flush=True)
    return results
