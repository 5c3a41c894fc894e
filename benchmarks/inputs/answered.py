"""Data that are odd but could be right: laid out or typed otherwise, in other units, degenerate, at the ends of floats.

All have one shape, so that little is compiled. What is only written otherwise must give the same numbers; in other
units the answer is known: a loss that grows by c has eta shrink by c.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

import calibayes as cb

N, ROWS, PARTICLES = 40, 60, 200
_RNG = np.random.default_rng(3)
# Eighths, so that every float type has them all.
X = np.column_stack([np.ones(N), np.round(8 * _RNG.normal(size=N)) / 8])
Y = np.round(8 * (X @ [1.0, 2.0] + _RNG.exponential(size=N))) / 8
WEAK = 64.0
CLOSE = 0.2
"""Of eta, relative: five deviations of a difference; over 30 seeds, on the same counts, eta varies by 2.7%."""


@dataclass(frozen=True)
class Odd:
    """A calibration, and what its answer must be, if that is known."""

    kind: str
    display: str
    call: Callable[[], cb.Result]
    same: bool = False
    """To the bit, as the usual one's."""
    unit: float | None = None
    """Eta must be the usual one's over this."""

    def __repr__(self) -> str:
        return f"{self.kind}: {self.display}"


def _normal(place: float = 0.0, scale: Any = WEAK) -> cb.priors.Normal:
    return cb.priors.Normal(np.full(2, place), np.broadcast_to(scale, 2))


def run(x: Any = X, y: Any = Y, loss: Any = None, prior: Any = None, **options: Any) -> cb.Result:
    model = cb.GibbsModel(loss or cb.losses.Quantile(0.5), prior or _normal())
    sampler = cb.Transport(n_particles=PARTICLES, audit=True)
    return cb.calibrate(
        model, (x, y), **{"bootstrap": ROWS, "sampler": sampler, "seed": 0, "progress": False} | options
    )


def _frozen(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


LAYOUTS: dict[str, Callable[[np.ndarray], Any]] = {
    "Fortran order": np.asfortranarray,
    "negative strides": lambda a: a[::-1].copy()[::-1],
    "every other row": lambda a: np.repeat(a, 2, axis=0)[::2],
    "read-only": _frozen,
    "unaligned": lambda a: np.frombuffer(b"\0" + a.tobytes(), dtype=np.uint8)[1:].view(a.dtype).reshape(a.shape),
    "other byte order": lambda a: a.astype(a.dtype.newbyteorder()),
    "float16": lambda a: a.astype(np.float16),
    "float32": lambda a: a.astype(np.float32),
    "long double": lambda a: a.astype(np.longdouble),
    "objects": lambda a: a.astype(object),
    "lists": lambda a: a.tolist(),
    "matrix of JAX": jnp.asarray,
    "bfloat16": lambda a: jnp.asarray(a, jnp.bfloat16),
    "no mask": np.ma.masked_array,
    "pandas": lambda a: pd.Series(a) if a.ndim == 1 else pd.DataFrame(a, columns=["a", "b"]),
    "pandas, mixed": lambda a: pd.Series(a) if a.ndim == 1 else pd.DataFrame({"a": a[:, 0].astype(int), "b": a[:, 1]}),
    "pandas, nullable": lambda a: pd.Series(a, dtype="Float64") if a.ndim == 1 else pd.DataFrame(a).astype("Float64"),
    "pandas, odd index": lambda a: (pd.Series if a.ndim == 1 else pd.DataFrame)(a, index=np.arange(N)[::-1]),
    "polars": lambda a: pl.Series(a) if a.ndim == 1 else pl.DataFrame(a),
    "polars, mixed": lambda a: pl.Series(a) if a.ndim == 1 else pl.DataFrame({"a": a[:, 0] == 1, "b": a[:, 1]}),
}


def _laid_out(names: tuple[str, str]) -> Odd:
    of_x, of_y = (LAYOUTS[name] for name in names)
    return Odd("laid out otherwise", f"X {names[0]}, y {names[1]}", lambda: run(of_x(X), of_y(Y)), same=True)


def _in_units(powers: tuple[int, int]) -> Odd:
    """X's column and y times powers of two, the prior along with them."""
    of_x, of_y = (2.0**power for power in powers)
    prior = lambda: _normal(scale=WEAK * of_y / np.array([1.0, of_x]))
    call = lambda: run(X * np.array([1.0, of_x]), Y * of_y, prior=prior())
    return Odd("other units", f"X times {of_x:.1g}, y times {of_y:.1g}", call, unit=of_y)


_ROW = np.arange(N)
SHAPES: dict[str, Callable[[float], tuple[np.ndarray, np.ndarray]]] = {
    "y constant": lambda s: (X, np.full(N, s)),
    "a column constant": lambda s: (np.column_stack([X[:, 0], np.full(N, s)]), Y),
    "columns the same": lambda s: (s * X[:, [1, 1]], Y),
    "columns nearly collinear": lambda s: (np.column_stack([X[:, 1], X[:, 1] * (1 + 1e-7 * s)]), Y),
    "X zero": lambda s: (0 * X, s * Y),
    "one row not zero": lambda s: (np.where((_ROW == 3)[:, None], s * X, 0), Y),
    "y an exact fit": lambda s: (X, s * X @ [1.0, 2.0]),
    "an outlier in y": lambda s: (X, np.where(_ROW == 3, s, Y)),
    "an outlier in X": lambda s: (np.where((_ROW == 3)[:, None], [1.0, s], X), Y),
    "y far from zero": lambda s: (X, Y + s),
    "X far from zero": lambda s: (X + np.array([0.0, s]), Y),
    "y in other units": lambda s: (X, s * Y),
    "X in other units": lambda s: (s * X, Y),
    "y of two values": lambda s: (X, s * (Y > 2)),
    "y of whole numbers": lambda s: (X, np.round(Y / max(s, 1)) * max(s, 1)),
}
scales = st.integers(-12, 12).map(lambda power: 10.0**power)


def _degenerate(case: tuple[str, float]) -> Odd:
    return Odd(case[0], f"{case[1]:.0e}", lambda: run(*SHAPES[case[0]](case[1])))


SETTINGS: dict[str, Callable[[float], dict[str, Any]]] = {
    "scale of the prior": lambda s: {"prior": _normal(scale=s)},
    "place of the prior": lambda s: {"prior": _normal(s)},
    "eta_init": lambda s: {"eta_init": s},
    "level": lambda s: {"level": float(np.clip(s, 0.01, 0.99))},
    "tau": lambda s: {"loss": cb.losses.Quantile(float(np.clip(s, 1e-6, 1 - 1e-6)))},
    "seed": lambda s: {"seed": int(s) if s >= 1 else -int(1 / s)},
}


def _set(case: tuple[str, float]) -> Odd:
    return Odd(case[0], f"{case[1]:.0e}", lambda: run(**SETTINGS[case[0]](case[1])))


def odd_calls() -> SearchStrategy:
    layout, power = st.sampled_from(list(LAYOUTS)), st.integers(-40, 40)
    families = (
        st.tuples(layout, layout).map(_laid_out),
        st.tuples(power, power).map(_in_units),
        st.tuples(st.sampled_from(list(SHAPES)), scales).map(_degenerate),
        st.tuples(st.sampled_from(list(SETTINGS)), scales).map(_set),
    )
    return st.integers(0, len(families) - 1).flatmap(lambda i: families[i])
