"""User-defined losses that are NaN or infinite somewhere, integers, or constant."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp

import calibayes as cb
from benchmarks.inputs.unusual import PARTICLES, REPLICATES, Unusual, Y

LOSSES: dict[str, Callable[..., Any]] = {
    "NaN above the data": lambda theta, y: jnp.where(theta[0] > 20, jnp.nan, jnp.abs(y - theta[0])),
    "NaN above the median": lambda theta, y: jnp.where(theta[0] > 2, jnp.nan, jnp.abs(y - theta[0])),
    "infinite below a bound": lambda theta, y: jnp.where(theta[0] < 1, jnp.inf, jnp.abs(y - theta[0])),
    "minus infinite above a bound": lambda theta, y: jnp.where(theta[0] > 20, -jnp.inf, jnp.abs(y - theta[0])),
    "infinite everywhere": lambda theta, y: jnp.inf + theta[0] * y,
    "NaN everywhere": lambda theta, y: jnp.nan * theta[0] * y,
    "integer": lambda theta, y: (y > theta[0]).astype(int) + 2 * (y < theta[0]),
    "boolean": lambda theta, y: jnp.abs(y - theta[0]) > 1,
    "falling like a square": lambda theta, y: -jnp.square(y - theta[0]),
    "falling like a logarithm": lambda theta, y: -jnp.log1p(jnp.abs(y - theta[0])),
    "linear": lambda theta, y: y * theta[0],
    "depends on the data only": lambda theta, y: jnp.abs(y) + 0.0 * theta[0],
    "very small": lambda theta, y: 1e-30 * jnp.abs(y - theta[0]),
    "very large": lambda theta, y: 1e30 * jnp.abs(y - theta[0]),
    "Python number": lambda theta, y: 1,  # noqa: ARG005
    "constant": lambda theta, y: jnp.float32(3.0),  # noqa: ARG005
    "large constant added": lambda theta, y: 1e12 + jnp.abs(y - theta[0]),
    "unbounded below": lambda theta, y: -jnp.abs(y - theta[0]),
}


def user_losses() -> list[Unusual]:
    """Return a calibration for each loss."""
    return [Unusual("user-defined loss", name, partial(_run, fn)) for name, fn in LOSSES.items()]


def _run(fn: Callable[..., Any]) -> cb.Result:
    model = cb.GibbsModel(fn, cb.priors.Normal(scale=10.0), dim=1)
    sampler = cb.Transport(n_particles=PARTICLES, audit=True)
    return cb.calibrate(model, Y, bootstrap=REPLICATES, sampler=sampler, seed=0, progress=False)
