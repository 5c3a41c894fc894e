"""Invalid arguments: each must raise an error that names the argument, before anything is compiled."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

import calibayes as cb
from calibayes.estimators import HuberRegressor, LogisticClassifier, QuantileRegressor, SVMClassifier

N, K, B = 30, 2, 100
_RNG = np.random.default_rng(8)
X = np.column_stack([np.ones(N), _RNG.exponential(size=N)])
Y = X @ [1.0, 2.0] + _RNG.normal(size=N)
COUNTS = _RNG.multinomial(N, np.full(N, 1 / N), size=B).astype(float)


@dataclass(frozen=True)
class Invalid:
    """A call with one invalid argument."""

    argument: str
    words: tuple[str, ...]
    """Words of which the error message must contain at least one."""
    call: Callable[[], Any]
    """Creates the arguments and calibrates: an invalid prior, for example, is rejected on creation."""
    description: str

    def __repr__(self) -> str:
        return f"{self.argument}: {self.description}"


Calls = SearchStrategy[Invalid]


def calibrate(**changes: Any) -> cb.Result:
    """Calibrate with valid arguments except for the given changes."""
    valid = {"model": _model(), "data": (X, Y), "seed": 0, "progress": False, "bootstrap": B}
    options = valid | changes
    return cb.calibrate(options.pop("model"), options.pop("data"), **options)


def _model(loss: Any = None, prior: Any = None, dim: Any = None) -> cb.GibbsModel:
    return cb.GibbsModel(loss or cb.losses.Quantile(0.5), prior or cb.priors.Normal(scale=10.0), dim=dim)


def _invalid(argument: str, values: SearchStrategy, *words: str, make: Callable[[Any], Any] | None = None) -> Calls:
    """Return calls with an invalid argument: a value, or the object that `make` creates from it."""

    def call(value: Any) -> Invalid:
        run = lambda: calibrate(**{argument: value if make is None else make(value)})
        return Invalid(argument, words or (argument,), run, repr(value)[:200])

    return values.map(call)


anything_else = st.one_of(
    st.text(max_size=5),
    st.binary(max_size=5),
    st.complex_numbers(),
    st.lists(st.floats(), max_size=3),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
    st.sampled_from([object(), len, np.zeros(3), np.array("a"), date(2020, 1, 1), pd.NaT, {1, 2}, range(3)]),
)
not_number = anything_else | st.booleans()
not_finite = st.sampled_from([np.nan, np.inf, -np.inf, np.float32("nan")])
not_above_zero = st.floats(max_value=0.0) | st.integers(max_value=0)
beyond_floats = st.floats(min_value=1e39, max_value=1e308) | st.integers(min_value=10**39, max_value=10**420)
too_small = st.floats(min_value=5e-324, max_value=1e-39)
not_positive = not_number | not_finite | not_above_zero | beyond_floats
not_integer = not_number | not_finite | st.floats()
not_size = not_integer | st.integers(max_value=0)
not_fraction = not_number | not_finite | not_above_zero | st.floats(min_value=1.0) | st.integers(min_value=1)
level_margin = 1 / B - 1e-9
"""Levels within this of 0 or 1 cannot be told apart with B replicates."""


_INVALID_LOSSES: dict[str, Any] = {
    "a vector": lambda theta, *_: theta,
    "a pair": lambda theta, *_: (theta[0], theta[1]),
    "nothing": lambda *_: None,
    "text": lambda *_: "a",
    "complex": lambda theta, *_: theta[0] * 1j if theta.ndim else theta * 1j,
    "fails": lambda *_: 1 / 0,
    "numpy": lambda theta, *_: np.sin(theta[0]),
    "branches": lambda theta, *_: 1.0 if theta[0] > 0 else 0.0,
    "another shape": lambda theta, *_: theta @ jnp.ones(7),
    "no argument": lambda: 1.0,
}
invalid_loss = st.sampled_from(list(_INVALID_LOSSES))


def _numbers() -> list[Calls]:
    extreme = st.floats(1e-300, level_margin) | st.floats(1 - level_margin, 1, exclude_max=True)
    return [
        _invalid("level", not_fraction | st.none() | extreme, "level"),
        _invalid("tolerance", not_positive | st.none() | too_small),
        _invalid("eta_init", not_positive | too_small),
        _invalid("max_iterations", not_size | st.none()),
        _invalid("seed", not_integer | st.none() | st.integers(min_value=2**64) | st.integers(max_value=-(2**64))),
    ]


def _choices() -> list[Calls]:
    other = anything_else | st.booleans() | st.integers() | st.none()
    wrong_names = st.lists(st.text(max_size=3), max_size=6).filter(lambda names: len(set(names)) != K)
    classes = st.sampled_from([cb.SMC, cb.Bracket, cb.regions.HPD, cb.priors.Normal])
    return [
        _invalid("region", other | classes),
        _invalid("sampler", other | classes),
        _invalid("search", anything_else | st.booleans() | st.integers() | classes),
        _invalid("estimate", other.filter(lambda value: not callable(value))),
        _invalid(
            "names", wrong_names | st.integers() | st.text(max_size=3) | st.sampled_from([3.5, object(), ["a", "a"]])
        ),
        _invalid(
            "region", st.integers(min_value=K) | st.integers(max_value=-1) | not_integer, "Interval", make=_interval
        ),
        _invalid(
            "region", not_number | not_finite | st.integers(), "vector", make=lambda v: cb.regions.Linear([v, 1, 2])
        ),
        _invalid("region", invalid_loss, "Functional", make=lambda k: cb.regions.Functional(_INVALID_LOSSES[k])),
        _invalid("sampler", not_size, "n_particles", make=lambda v: cb.SMC(n_particles=v)),
        _invalid("sampler", not_size, "n_particles", make=lambda v: cb.Transport(n_particles=v)),
        _invalid("sampler", not_size, "n_draws", make=lambda v: cb.MCMC(n_draws=v)),
        _invalid("sampler", st.integers(1, 99), "sampler", make=lambda v: cb.SMC(n_particles=v)),
        _invalid("sampler", st.integers(10**10, 10**30), "GB", make=lambda v: cb.SMC(n_particles=v)),
        _invalid("sampler", st.integers(10**10, 10**30), "GB", make=lambda v: cb.MCMC(n_draws=v)),
        _invalid("sampler", not_fraction, "ess_target", make=lambda v: cb.SMC(ess_target=v)),
        _invalid("sampler", not_fraction, "target_acceptance", make=lambda v: cb.SMC(kernel=cb.kernels.RWMH(v))),
        _invalid("search", not_positive, "gain", make=lambda v: cb.RobbinsMonro(gain=v)),
        _invalid("search", not_positive, "closeness", make=lambda v: cb.Bracket(closeness=v)),
    ]


def _interval(index: Any) -> cb.regions.Interval:
    return cb.regions.Interval(index)


def _bootstraps() -> list[Calls]:
    module = cb.bootstrap
    kinds = st.sampled_from([module.Multinomial, module.Bayesian, module.Poisson])
    n_replicates = not_integer | st.integers(max_value=19)
    too_many = st.integers(10**10, 10**400)
    invalid_entries = st.tuples(st.integers(0, B - 1), st.integers(0, N - 1), not_finite | st.floats(-1e9, -1e-9))
    invalid_groups = [[None] * N, [1.0, None] * 15, [np.nan] * N, [7] * N]
    shapes = st.tuples(st.integers(0, 120), st.integers(0, 60)).filter(lambda shape: shape[1] != N or shape[0] < 20)
    return [
        _invalid("bootstrap", n_replicates),
        _invalid("bootstrap", too_many, "GB"),
        _invalid("bootstrap", st.tuples(kinds, n_replicates), make=lambda v: v[0](v[1])),
        _invalid("bootstrap", st.tuples(kinds, too_many), "GB", make=lambda v: v[0](v[1])),
        _invalid("bootstrap", shapes, make=np.ones),
        _invalid("bootstrap", st.sampled_from([(B,), (B, N, 1), (1, B, N)]), make=np.ones),
        _invalid("bootstrap", invalid_entries, make=lambda v: _with_entry(COUNTS, v[:2], v[2])),
        _invalid("bootstrap", st.integers(0, B - 1), make=lambda b: _with_entry(COUNTS, b, 0.0)),
        _invalid("bootstrap", st.floats(1e6, 1e37) | st.floats(1e-37, 1e-6), "sum to", make=lambda s: s * COUNTS),
        _invalid("bootstrap", st.floats(1e7, 1e37), "sum to", make=lambda s: _with_entry(COUNTS, (3, 4), s)),
        _invalid("bootstrap", st.sampled_from(["U", "c16", "M8[s]", "S"]), make=COUNTS.astype(int).astype),
        _invalid("bootstrap", not_size | st.integers(N + 1, 10**30), "length", make=lambda v: module.Block(B, v)),
        _invalid("bootstrap", not_size | st.integers(N + 1, 10**30), "size", make=lambda v: module.Multinomial(B, v)),
        _invalid("bootstrap", not_positive, "rate", make=lambda v: module.Multinomial(B, None, v)),
        _invalid("bootstrap", st.integers(0, 99).filter(lambda n: n != N), "groups", make=_distinct_groups),
        _invalid("bootstrap", st.sampled_from(invalid_groups), "groups", make=_cluster),
    ]


def _distinct_groups(n: int) -> cb.bootstrap.Cluster:
    return _cluster(np.arange(n))


def _cluster(labels: Any) -> cb.bootstrap.Cluster:
    return cb.bootstrap.Cluster(B, labels)


def _with_entry(array: np.ndarray, index: Any, value: Any) -> np.ndarray:
    array = array.copy()
    array[index] = value
    return array


def _as_data(x: Any = X, y: Any = Y) -> tuple[Any, Any]:
    return x, y


_INVALID_DTYPES = ["U", "S", "c16", "M8[s]", "m8[s]", "V8"]
_FRAMES = {
    "text": lambda frame: frame({"one": np.ones(N), "city": ["Ulm", "Bonn"] * 15}),
    "nothing": lambda frame: frame({"one": np.ones(N), "gone": [None] * N}),
    "lists": lambda frame: frame({"one": np.ones(N), "two": [[1.0, 2.0]] * N}),
    "dates": lambda frame: frame({"one": np.ones(N), "day": [date(2020, 1, 1)] * N}),
    "empty": lambda frame: frame({}),
    "three": lambda frame: frame({"a": X[:, 0], "b": X[:, 1]})[: N - 1],
}
_INVALID_X = {
    "twice": lambda: pd.DataFrame(X, columns=["a", "a"]),
    "lazy": lambda: pl.LazyFrame({"a": X[:, 0]}),
    "masked": lambda: np.ma.masked_array(X, X > 1),
    "ragged": lambda: [[1.0], [1.0, 2.0]] * 15,
    "structured": lambda: X.view([("a", float), ("b", float)]),
    "generator": lambda: (row for row in X),
    "categories": lambda: pd.DataFrame({"a": pd.Categorical(["u", "v"] * 15)}),
    "huge": lambda: np.broadcast_to(np.zeros(2), (10**12, 2)),
    "huge integers": lambda: np.broadcast_to(np.zeros(2, np.int8), (10**12, 2)),
}


def _data() -> list[Calls]:
    index = st.tuples(st.integers(0, N - 1), st.integers(0, K - 1))
    value = not_finite | st.floats(1e39, 1e308)
    pairs = anything_else | st.none() | st.integers() | st.sampled_from([X, (X,), (X, Y, Y), [], {"X": X, "y": Y}])
    shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple).filter(lambda shape: len(shape) != 2 or 0 in shape)
    frames = st.tuples(st.sampled_from([pd.DataFrame, pl.DataFrame]), st.sampled_from(list(_FRAMES)))
    too_few = st.integers(0, N - 1)
    return [
        _invalid("data", st.tuples(index, value), "X", make=lambda v: _as_data(_with_entry(X, *v))),
        _invalid("data", st.tuples(index, value), "y", make=lambda v: _as_data(y=_with_entry(Y, v[0][0], v[1]))),
        _invalid("data", pairs, "data", "X"),
        _invalid("data", shapes, "X", "data", make=lambda shape: (np.ones(shape), np.ones(shape[:1] or 2))),
        _invalid("data", too_few, "X", "data", make=lambda n: (X[:n], Y)),
        _invalid("data", too_few, "y", "data", make=lambda n: (X, Y[:n])),
        _invalid("data", st.integers(0, 1), "X", "data", make=lambda n: (X[:n], Y[:n])),
        _invalid("data", st.sampled_from(_INVALID_DTYPES), "X", make=lambda dtype: _as_data(_as_dtype(X, dtype))),
        _invalid("data", st.sampled_from(_INVALID_DTYPES), "y", make=lambda dtype: _as_data(y=_as_dtype(Y, dtype))),
        _invalid("data", frames, "X", make=lambda v: _as_data(_FRAMES[v[1]](v[0]))),
        _invalid("data", st.sampled_from(list(_INVALID_X)), "X", make=lambda name: _as_data(_INVALID_X[name]())),
    ]


def _as_dtype(array: np.ndarray, dtype: str) -> np.ndarray:
    return array.astype(dtype) if dtype[0] in "USc" else array.astype(np.int64).view("i8").astype(dtype)


class _UserPrior:
    """A prior whose density is a given function."""

    def __init__(self, log_prob: Callable[..., Any]):
        self.log_prob = log_prob

    def sample(self, key: Any, shape: tuple[int, ...]) -> Any:
        return jax.random.normal(key, shape)


class _Bounded(_UserPrior):
    """A normal prior with given bounds."""

    def __init__(self, bounds: object):
        super().__init__(lambda theta: -0.5 * jnp.square(theta).sum())
        self.bounds = bounds


def _models() -> list[Calls]:
    priors, losses = cb.priors, cb.losses
    family = st.sampled_from([priors.Normal, priors.Laplace, partial(priors.StudentT, 3.0)])
    other = anything_else | st.none() | st.integers()
    wrong_length = st.integers(0, 7).filter(lambda n: n != K)
    not_tau = not_fraction | st.none() | too_small
    # Lists of the right length can be valid and are left out.
    not_scale = (not_positive | st.none() | too_small).filter(np.isscalar)
    not_location = (not_number | not_finite | st.none() | beyond_floats).filter(np.isscalar)
    reversed_bounds = st.tuples(st.floats(-1e9, 1e9, width=32), st.floats(0, 1e9, width=32)).map(
        lambda v: (v[0] + v[1], v[0])
    )
    not_side = st.sampled_from([None, "a", np.nan, 1j, [0.0] * 3, {}, object()])
    not_bounds = st.one_of(
        st.sampled_from(
            [3, "ab", (), (0.0,), (0.0, 1.0, 2.0), [[0.0, 1.0], [1.0]], {"low": 0.0, "high": 1.0}, object()]
        ),
        st.tuples(not_side, st.floats(-1e9, 1e9)),
        st.tuples(st.floats(-1e9, 1e9), not_side),
        st.floats(-1e9, 1e9).flatmap(lambda low: st.tuples(st.just(low), st.floats(max_value=low))),
    )
    return [
        _invalid("model", other, "model"),
        _invalid("model", st.tuples(family, not_scale), "scale", make=lambda v: _model(None, v[0](scale=v[1]))),
        _invalid("model", st.tuples(family, not_location), "loc", make=lambda v: _model(None, v[0](loc=v[1]))),
        _invalid("model", not_scale, "df", "prior", make=lambda v: _model(None, priors.StudentT(v))),
        _invalid("model", reversed_bounds, "low", make=lambda v: _model(None, priors.Uniform(*v))),
        _invalid("model", wrong_length, "prior", make=lambda n: _model(None, priors.Normal(scale=np.ones(n)))),
        _invalid("model", other, "prior", make=lambda v: cb.GibbsModel(losses.Absolute(), v)),
        _invalid("model", not_bounds, "prior.bounds", make=lambda v: _model(None, _Bounded(v))),
        _invalid("model", invalid_loss, "prior", make=lambda k: _model(None, _UserPrior(_INVALID_LOSSES[k]))),
        _invalid("model", not_tau, "tau", make=lambda v: _model(losses.Quantile(v))),
        _invalid("model", not_tau, "tau", make=lambda v: _model(losses.Expectile(v))),
        _invalid("model", not_scale, "delta", make=lambda v: _model(losses.Huber(v))),
        _invalid("model", not_size, "dim", make=lambda v: _model(lambda theta, datum: theta[0] * datum[1], dim=v)),
        _invalid("model", st.integers(3, 10**30), "dim", make=lambda v: _model(None, dim=v)),
        _invalid(
            "model",
            invalid_loss.filter(lambda k: k != "a vector"),
            "rho",
            make=lambda k: _model(losses.Linear(_INVALID_LOSSES[k])),
        ),
    ]


def _draws() -> list[Calls]:
    shapes = st.lists(st.integers(0, 150), max_size=3).map(tuple)
    shapes = shapes.filter(lambda shape: shape[1:] != (K,) or shape[0] < 100)
    invalid_entries = st.tuples(st.integers(0, 199), st.integers(0, K - 1), not_finite | st.floats(1e39, 1e308))
    return [
        _invalid("draws", anything_else | st.booleans() | st.integers() | st.floats()),
        _invalid("draws", shapes, make=np.zeros),
        _invalid("draws", invalid_entries, make=lambda v: _with_entry(np.zeros((200, K)), v[:2], v[2])),
        _invalid("draws", st.sampled_from(["U", "S", "c16", "M8[s]"]), make=np.zeros((200, K), int).astype),
    ]


_ESTIMATOR_PARAMETERS = ("level", "region", "sampler", "bootstrap")


def _estimators() -> list[Calls]:
    """Return invalid calls of the estimators; scikit-learn checks X and y first."""
    kinds = st.sampled_from([QuantileRegressor, HuberRegressor, SVMClassifier, LogisticClassifier])
    values = {"random_state": anything_else, "prior": anything_else}
    values |= {name: not_fraction if name == "level" else anything_else for name in _ESTIMATOR_PARAMETERS}
    parameters = st.sampled_from(list(values)).flatmap(lambda name: st.tuples(kinds, st.just(name), values[name]))
    index = st.tuples(st.integers(0, N - 1), st.integers(0, K - 1))
    return [
        parameters.map(
            lambda v: Invalid(
                f"estimator {v[1]}", (v[1], "seed"), partial(_fit, v[0], X, **{v[1]: v[2]}), repr(v)[:200]
            )
        ),
        st.tuples(kinds, index, not_finite).map(
            lambda v: Invalid("estimator X", ("X",), partial(_fit, v[0], _with_entry(X, v[1], v[2])), repr(v)[:200])
        ),
        st.tuples(kinds, anything_else).map(
            lambda v: Invalid("estimator X", ("",), partial(_fit, v[0], v[1]), repr(v)[:200])
        ),
    ]


def _fit(kind: Any, x: Any, **options: Any) -> Any:
    return kind(**options).fit(x, Y > 3 if kind in (SVMClassifier, LogisticClassifier) else Y)


def _user_loss(name: str) -> cb.Result:
    return calibrate(model=_model(_INVALID_LOSSES[name], dim=K), data=X)


def invalid_calls() -> SearchStrategy[Invalid]:
    """Return a strategy that draws a group of arguments, and then an invalid call of that group."""
    user_losses = invalid_loss.map(lambda k: Invalid("model", ("loss",), partial(_user_loss, k), k))
    families = ([user_losses], _estimators(), _numbers(), _choices(), _bootstraps(), _data(), _models(), _draws())
    return st.integers(0, len(families) - 1).flatmap(lambda i: st.one_of(families[i]))
