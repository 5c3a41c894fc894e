"""Losses of one's own that are no numbers somewhere, or whole numbers, or do not depend on anything."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

import calibayes as cb
from benchmarks.inputs.answered import PARTICLES, ROWS, Odd, Y

LOSSES: dict[str, Callable[..., Any]] = {
    "NaN above the data": lambda theta, y: jnp.where(theta[0] > 20, jnp.nan, jnp.abs(y - theta[0])),
    "NaN above the median": lambda theta, y: jnp.where(theta[0] > 2, jnp.nan, jnp.abs(y - theta[0])),
    "infinite beyond a wall": lambda theta, y: jnp.where(theta[0] < 1, jnp.inf, jnp.abs(y - theta[0])),
    "minus infinite somewhere": lambda theta, y: jnp.where(theta[0] > 20, -jnp.inf, jnp.abs(y - theta[0])),
    "infinite everywhere": lambda theta, y: jnp.inf + theta[0] * y,
    "NaN everywhere": lambda theta, y: jnp.nan * theta[0] * y,
    "an integer": lambda theta, y: (y > theta[0]).astype(int) + 2 * (y < theta[0]),
    "a truth value": lambda theta, y: jnp.abs(y - theta[0]) > 1,
    "a Python number": lambda theta, y: 1,  # noqa: ARG005
    "a constant": lambda theta, y: jnp.float32(3.0),  # noqa: ARG005
    "far from zero": lambda theta, y: 1e12 + jnp.abs(y - theta[0]),
    "below zero without end": lambda theta, y: -jnp.abs(y - theta[0]),
}


def own_losses() -> list[Odd]:
    return [Odd("a loss of one's own", name, lambda fn=fn: _run(fn)) for name, fn in LOSSES.items()]


def _run(fn: Callable[..., Any]) -> cb.Result:
    model = cb.GibbsModel(fn, cb.priors.Normal(scale=10.0), dim=1)
    sampler = cb.Transport(n_particles=PARTICLES, audit=True)
    return cb.calibrate(model, Y, bootstrap=ROWS, sampler=sampler, seed=0, progress=False)
