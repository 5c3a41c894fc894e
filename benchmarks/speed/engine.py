"""The risk engine against a loop compiled by hand, against the machine's peak, and with a loss it knows nothing of."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import calibayes as cb
from benchmarks.speed.measured import Measured, Ratio, best_of
from benchmarks.speed.peak import Chains, bandwidth, chains
from benchmarks.speed.problems import Data, Sizes, heart_disease, median_regression, rows_of
from calibayes._backend.jit import jit
from calibayes._core.target import Target, make_target

_risk = jit(Target.risk)


def median_loss(theta: Any, datum: Any) -> Any:
    """The check loss, as a user who knows nothing of linear losses writes it."""
    x, y = datum
    residual = y - x @ theta
    return jnp.maximum(0.5 * residual, -0.5 * residual)


def hinge_loss(theta: Any, datum: Any) -> Any:
    x, y = datum
    return 2 * jnp.maximum(0, 1 - y * (x @ theta))


def measure(sizes: Sizes) -> Measured:
    found = Measured(quick=sizes.quick)
    ways = chains(found)
    found.figures["roofline"] = {"bandwidth": bandwidth(sizes.repeats), "shapes": []}
    for data, generic in ((median_regression(sizes.large), median_loss), (heart_disease(), hinge_loss)):
        _one(data, generic, sizes, ways, found)
    if jax.default_backend() != "cpu":
        # As many particles as the paper has for it, which fill an accelerator.
        _one(heart_disease(), hinge_loss, sizes._replace(particles=4 * sizes.particles), ways, found)
    return found


def _one(data: Data, generic: Callable[..., Any], sizes: Sizes, ways: list[Chains], found: Measured) -> None:
    (n, dim), shape = data.x.shape, (sizes.rows, sizes.particles)
    counts = rows_of(n, sizes.rows - 1)
    theta = np.random.default_rng(1).normal(size=(dim, *shape)).astype(np.float32)
    on_device = jnp.asarray(theta)
    target = make_target(data.model, (data.x, data.y), counts, dim)
    ours = partial(_risk, target, on_device)
    own = make_target(cb.GibbsModel(generic, data.model.prior, dim=dim), (data.x, data.y), counts, dim)
    calls: list[Callable[[], Any]] = [ours, partial(_risk, own, on_device), *(way.call for way in ways)]
    by_hand = _by_hand(data, counts, theta, found)
    if by_hand is not None:
        gap = np.asarray(ours()) - by_hand()
        if np.ptp(gap, axis=1).max() > 1e-3 * np.ptp(by_hand()):
            raise AssertionError("the engine and the loop by hand do not compute the same.")
        calls.append(by_hand)
    seconds, slow, *others = best_of(calls, sizes.repeats)
    peak = max(way.operations / took for way, took in zip(ways, others, strict=False))
    name = f"risk engine, {data.shape}, K {dim}, M {sizes.particles:,}"
    operations = (2 * dim + 4) * n * sizes.rows * sizes.particles
    counted = (
        f"{2 * dim + 4} operations for each observation and particle, {operations / seconds / 1e9:.0f} of "
        f"{peak / 1e9:.0f} GFLOP/s"
    )
    # Particles and what is found of each, counts and the data: all once.
    numbers = (dim + 1) * sizes.rows * sizes.particles + n * (sizes.rows + dim + 3)
    roof = {"what": name, "operations": operations, "bytes": 4 * numbers, "peak": peak, "seconds": seconds}
    found.figures["roofline"]["shapes"].append(roof)
    on_cpu = jax.default_backend() == "cpu"
    of_peak = None if on_cpu or generic is not hinge_loss else 0.3
    aim = 0.25 if on_cpu else None
    found.ratios += [
        Ratio(name, "measured peak", seconds, operations / peak, of_peak, counted),
        *(Ratio(name, "loop by hand (numba)", seconds, theirs, 0.6) for theirs in others[len(ways) :]),
        Ratio(
            f"fn(theta, datum), {data.shape}, M {sizes.particles:,}", "the same as a linear loss", slow, seconds, aim
        ),
    ]


def _by_hand(data: Data, counts: np.ndarray, theta: np.ndarray, found: Measured) -> Callable[[], np.ndarray] | None:
    if jax.default_backend() != "cpu":
        _skip(found, "the loop by hand is for processors.")
        return None
    try:
        from benchmarks.speed import handwritten
    except ImportError:
        _skip(found, "numba is not installed: no loop by hand.")
        return None
    n, dim = data.x.shape
    rows = np.concatenate([np.ones((1, n)), counts])
    x, y, rows = (np.asarray(a, np.float32) for a in (data.x, data.y, rows))
    out = np.zeros(theta.shape[1:], np.float32)
    loop = partial(handwritten.quantile_2, tau=np.float32(0.5)) if dim == 2 else handwritten.hinge_8

    def call() -> np.ndarray:
        loop(theta, x, y, rows, out=out)
        return out

    return call


def _skip(found: Measured, why: str) -> None:
    if why not in found.skipped:
        found.skipped.append(why)
