"""Invariances: the same problem in other words has the same learning rate.

The same seeds and the same rows of counts, so that only rounding differs, which may yet turn a proposal down that was
taken, and then all that follows differs by Monte Carlo error. That error is measured, as the spread of log eta over
seeds on the same rows, and means over seeds are compared by Student's t. Where not a bit differs, that is said.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy import stats

import calibayes as cb
from calibayes._backend.room import make_room

_SCALE = 8.0
_CONSTANT = 3.0
_TAU = 0.3


class Problem(NamedTuple):
    x: np.ndarray
    y: np.ndarray
    counts: np.ndarray
    loc: np.ndarray
    """Of the prior, which is informative: what is not transformed along shows."""
    scale: np.ndarray
    loss: Any
    factor: float = 1.0
    """What eta is to be multiplied by to compare."""


def _quantile(prediction: Any, y: Any) -> Any:
    residual = y - prediction
    return jnp.maximum(_TAU * residual, (_TAU - 1) * residual)


def _scaled(prediction: Any, y: Any) -> Any:
    return _SCALE * _quantile(prediction, y)


def _raised(prediction: Any, y: Any) -> Any:
    return _quantile(prediction, y) + _CONSTANT


def problem(n_replicates: int, n: int = 50) -> Problem:
    rng = np.random.default_rng(3)
    x = np.column_stack([np.ones(n), rng.normal(size=n), rng.exponential(size=n)])
    y = x @ [1.0, 0.5, -1.0] + rng.normal(size=n)
    counts = rng.multinomial(n, np.full(n, 1 / n), size=n_replicates).astype(float)
    loc, scale = np.array([0.5, 0.5, -0.5]), np.array([0.5, 0.3, 1.0])
    return Problem(x, y, counts, loc, scale, cb.losses.Linear(_quantile))


def _permuted(of: Problem) -> Problem:
    order = np.random.default_rng(1).permutation(len(of.y))
    return of._replace(x=of.x[order], y=of.y[order], counts=of.counts[:, order])


def _relabelled(of: Problem) -> Problem:
    order = np.array([2, 0, 1])
    return of._replace(x=of.x[:, order], loc=of.loc[order], scale=of.scale[order])


def _stretched(of: Problem) -> Problem:
    by = np.array([1.0, 250.0, 0.04])
    return of._replace(x=of.x * by, loc=of.loc / by, scale=of.scale / by)


def _in_other_units(of: Problem) -> Problem:
    return of._replace(y=30 * of.y, loc=30 * of.loc, scale=30 * of.scale, factor=30.0)


CHANGES: dict[str, Callable[[Problem], Problem]] = {
    "observations permuted": _permuted,
    "parameters relabelled": _relabelled,
    "columns of X scaled": _stretched,
    "y in other units": _in_other_units,
    "loss times 8": lambda of: of._replace(loss=cb.losses.Linear(_scaled), factor=_SCALE),
    "loss plus 3": lambda of: of._replace(loss=cb.losses.Linear(_raised)),
}
SAMPLERS = {
    "transport": (cb.Transport(n_particles=500), 400),
    "SMC": (cb.SMC(n_particles=300, ess_target=0.9), 100),
    "MCMC": (cb.MCMC(n_draws=1500, n_warmup=300), 100),
}
"""With their numbers of rows."""


def calibrated(of: Problem, sampler: Any, seed: int) -> float:
    """Log eta, in the first problem's units."""
    model = cb.GibbsModel(of.loss, cb.priors.Normal(of.loc, of.scale))
    first = None if isinstance(sampler, cb.Transport) else 2.0 / of.factor
    options = {"bootstrap": of.counts, "sampler": sampler, "search": cb.Bracket(), "eta_init": first}
    result = cb.calibrate(model, (of.x, of.y), level=0.9, region="ellipsoid", seed=seed, progress=False, **options)
    if not result.converged:
        raise RuntimeError(f"not calibrated: {result.message}")
    return float(np.log(result.eta * of.factor))


def run(names: tuple[str, ...] = tuple(SAMPLERS), seeds: int = 4) -> list[dict[str, Any]]:
    found = []
    for name in names:
        make_room()
        sampler, n_replicates = SAMPLERS[name]
        base = problem(n_replicates)
        told = {change: apply(base) for change, apply in {"as it is": lambda of: of, **CHANGES}.items()}
        etas = {change: [calibrated(of, sampler, seed) for seed in range(seeds)] for change, of in told.items()}
        variance = float(np.mean([np.var(own, ddof=1) for own in etas.values()]))
        for change in CHANGES:
            away = float(np.mean(etas[change]) - np.mean(etas["as it is"]))
            error = (2 * variance / seeds) ** 0.5
            p = float(2 * stats.t(len(etas) * (seeds - 1)).sf(abs(away) / error))
            same = etas[change] == etas["as it is"]
            line = {"sampler": name, "change": change, "difference": away, "error": error, "p": p}
            found.append(line | {"same": same, "n": seeds})
            print(name, change, f"{away:+.5f}, error {error:.5f}, p {p:.3f}", "not a bit" if same else "", flush=True)
    return found
