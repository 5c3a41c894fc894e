"""Unusual but possibly valid data: other layouts and types, other units, degenerate data, extremes of the float range.

Almost all have one shape, so that little is compiled. Data in another layout or type must give identical results. In
other units the answer is known: if the loss is multiplied by c, eta is divided by c.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

import calibayes as cb

N, REPLICATES, PARTICLES = 40, 60, 200
_RNG = np.random.default_rng(3)
# Multiples of 1/8, which every float type represents exactly.
X = np.column_stack([np.ones(N), np.round(8 * _RNG.normal(size=N)) / 8])
Y = np.round(8 * (X @ [1.0, 2.0] + _RNG.exponential(size=N))) / 8
WEAK_SCALE = 64.0
"""Scale of a weakly informative prior."""
TOLERANCE = 0.2
"""Relative tolerance on eta: five standard deviations of a difference. Over 30 seeds on the same counts the standard
deviation of eta is 2.7%."""


@dataclass(frozen=True)
class Unusual:
    """A calibration, and its answer relative to that of the usual data, if that is known."""

    kind: str
    description: str
    call: Callable[[], cb.Result]
    identical: bool = False
    """Whether the result must be identical to the usual one."""
    unit: float | None = None
    """Factor by which eta must be smaller than the usual one."""

    def __repr__(self) -> str:
        return f"{self.kind}: {self.description}"


def _normal(loc: float = 0.0, scale: Any = WEAK_SCALE) -> cb.priors.Normal:
    return cb.priors.Normal(np.full(2, loc), np.broadcast_to(scale, 2))


def run(x: Any = X, y: Any = Y, loss: Any = None, prior: Any = None, option: Any = None, **settings: Any) -> cb.Result:
    """Calibrate the usual data with some changes, and perhaps an option of JAX turned on."""
    model = cb.GibbsModel(loss or cb.losses.Quantile(0.5), prior or _normal())
    sampler = cb.Transport(n_particles=PARTICLES, audit=True)
    settings = {"bootstrap": REPLICATES, "sampler": sampler, "seed": 0, "progress": False} | settings
    with nullcontext() if option is None else option(True):
        return cb.calibrate(model, (x, y), **settings)


def _read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


LAYOUTS: dict[str, Callable[[np.ndarray], Any]] = {
    "Fortran order": np.asfortranarray,
    "negative strides": lambda a: a[::-1].copy()[::-1],
    "every other row": lambda a: np.repeat(a, 2, axis=0)[::2],
    "read-only": _read_only,
    "unaligned": lambda a: np.frombuffer(b"\0" + a.tobytes(), dtype=np.uint8)[1:].view(a.dtype).reshape(a.shape),
    "other byte order": lambda a: a.astype(a.dtype.newbyteorder()),
    "float16": lambda a: a.astype(np.float16),
    "float32": lambda a: a.astype(np.float32),
    "long double": lambda a: a.astype(np.longdouble),
    "object": lambda a: a.astype(object),
    "list": lambda a: a.tolist(),
    "JAX array": jnp.asarray,
    "bfloat16": lambda a: jnp.asarray(a, jnp.bfloat16),
    "masked array without mask": np.ma.masked_array,
    "pandas": lambda a: pd.Series(a) if a.ndim == 1 else pd.DataFrame(a, columns=["a", "b"]),
    "pandas, mixed": lambda a: pd.Series(a) if a.ndim == 1 else pd.DataFrame({"a": a[:, 0].astype(int), "b": a[:, 1]}),
    "pandas, nullable": lambda a: pd.Series(a, dtype="Float64") if a.ndim == 1 else pd.DataFrame(a).astype("Float64"),
    "pandas, reversed index": lambda a: (pd.Series if a.ndim == 1 else pd.DataFrame)(a, index=np.arange(N)[::-1]),
    "polars": lambda a: pl.Series(a) if a.ndim == 1 else pl.DataFrame(a),
    "polars, mixed": lambda a: pl.Series(a) if a.ndim == 1 else pl.DataFrame({"a": a[:, 0] == 1, "b": a[:, 1]}),
}


def _in_layout(names: tuple[str, str]) -> Unusual:
    x_layout, y_layout = (LAYOUTS[name] for name in names)
    call = lambda: run(x_layout(X), y_layout(Y))
    return Unusual("other layout or type", f"X {names[0]}, y {names[1]}", call, identical=True)


def _in_units(powers: tuple[int, int]) -> Unusual:
    """Multiply the regressor and y by powers of two, and the prior accordingly."""
    x_unit, y_unit = (2.0**power for power in powers)
    prior = lambda: _normal(scale=WEAK_SCALE * y_unit / np.array([1.0, x_unit]))
    call = lambda: run(X * np.array([1.0, x_unit]), Y * y_unit, prior=prior())
    return Unusual("other units", f"X times {x_unit:.1g}, y times {y_unit:.1g}", call, unit=y_unit)


_INDEX = np.arange(N)
_FEW = np.random.default_rng(4).normal(size=(6, 8))
DEGENERATE: dict[str, Callable[[float], tuple[np.ndarray, np.ndarray]]] = {
    "constant y": lambda s: (X, np.full(N, s)),
    "constant column": lambda s: (np.column_stack([X[:, 0], np.full(N, s)]), Y),
    "identical columns": lambda s: (s * X[:, [1, 1]], Y),
    "nearly collinear columns": lambda s: (np.column_stack([X[:, 1], X[:, 1] * (1 + 1e-7 * s)]), Y),
    "X zero": lambda s: (0 * X, s * Y),
    "X zero except in one row": lambda s: (np.where((_INDEX == 3)[:, None], s * X, 0), Y),
    "y an exact fit": lambda s: (X, s * X @ [1.0, 2.0]),
    "outlier in y": lambda s: (X, np.where(_INDEX == 3, s, Y)),
    "outlier in X": lambda s: (np.where((_INDEX == 3)[:, None], [1.0, s], X), Y),
    "y far from zero": lambda s: (X, Y + s),
    "X far from zero": lambda s: (X + np.array([0.0, s]), Y),
    "y in other units": lambda s: (X, s * Y),
    "X in other units": lambda s: (s * X, Y),
    "y with two values": lambda s: (X, s * (Y > 2)),
    "more columns than rows": lambda s: (_FEW, s * _FEW[:, 0] + np.arange(6)),
    "separable classes": lambda s: (X + np.array([0.0, 0.01 * s]), np.sign(X[:, 1] + 0.0625)),
    "rounded y": lambda s: (X, np.round(Y / max(s, 1)) * max(s, 1)),
}
scales = st.integers(-30, 30).map(lambda power: 10.0**power)


def _degenerate(case: tuple[str, float]) -> Unusual:
    name, scale = case
    loss = cb.losses.Hinge() if name == "separable classes" else None
    prior = cb.priors.Normal(scale=WEAK_SCALE)
    return Unusual(name, f"{scale:.0e}", lambda: run(*DEGENERATE[name](scale), loss=loss, prior=prior))


COUNTS = _RNG.multinomial(N, np.full(N, 1 / N), size=REPLICATES).astype(float)
OPTIONS = (jax.debug_nans, jax.debug_infs, jax.disable_jit)


class _UserPrior:
    """Draws of a standard normal distribution, with any density."""

    size = 2

    def __init__(self, log_prob: Callable[..., Any]):
        self.log_prob = log_prob

    def sample(self, key: Any, shape: tuple[int, ...]) -> Any:
        return jax.random.normal(key, shape)


SETTINGS: dict[str, Callable[[float], dict[str, Any]]] = {
    "scale of the prior": lambda s: {"prior": _normal(scale=s)},
    "location of the prior": lambda s: {"prior": _normal(s)},
    "eta_init": lambda s: {"eta_init": s},
    "level": lambda s: {"level": float(np.clip(s, 0.01, 0.99))},
    "tau": lambda s: {"loss": cb.losses.Quantile(float(np.clip(s, 1e-6, 1 - 1e-6)))},
    "size of the counts": lambda s: {"bootstrap": s * COUNTS},
    "prior density NaN above": lambda s: {"prior": _UserPrior(lambda t: jnp.where(t[0] > s, jnp.nan, -t @ t / 2))},
    "prior density zero below": lambda s: {"prior": _UserPrior(lambda t: jnp.where(t[0] < -s, -jnp.inf, -t @ t / 2))},
    "debugging option of JAX": lambda s: {"option": OPTIONS[round(abs(np.log10(s))) % len(OPTIONS)]},
    "seed": lambda s: {"seed": int(s) if s >= 1 else -int(1 / s)},
}


def _with_setting(case: tuple[str, float]) -> Unusual:
    return Unusual(case[0], f"{case[1]:.0e}", lambda: run(**SETTINGS[case[0]](case[1])))


def unusual_calls() -> SearchStrategy[Unusual]:
    """Return a strategy that draws a kind of unusual call, and then one of that kind."""
    layout, power = st.sampled_from(list(LAYOUTS)), st.integers(-100, 100)
    # The scale of the prior must be within the range of single precision.
    powers = st.tuples(power, power).filter(lambda powers: abs(powers[1] - powers[0]) <= 110)
    families = (
        st.tuples(layout, layout).map(_in_layout),
        powers.map(_in_units),
        st.tuples(st.sampled_from(list(DEGENERATE)), scales).map(_degenerate),
        st.tuples(st.sampled_from(list(SETTINGS)), scales).map(_with_setting),
    )
    return st.integers(0, len(families) - 1).flatmap(lambda i: families[i])
