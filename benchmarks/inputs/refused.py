"""Arguments that are wrong: each must be refused by name before anything is compiled."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Any

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
class Bad:
    """A call with one thing wrong, and words of which the error must have one."""

    argument: str
    words: tuple[str, ...]
    call: Callable[[], Any]
    """Makes its arguments too: a prior may be refused before there is a calibration."""
    display: str

    def __repr__(self) -> str:
        return f"{self.argument}: {self.display}"


def calibrate(**given: Any) -> cb.Result:
    """A calibration that is in order but for what is given."""
    usual = {"model": _model(), "data": (X, Y), "seed": 0, "progress": False, "bootstrap": B}
    options = usual | given
    return cb.calibrate(options.pop("model"), options.pop("data"), **options)


def _model(loss: Any = None, prior: Any = None, dim: Any = None) -> cb.GibbsModel:
    return cb.GibbsModel(loss or cb.losses.Quantile(0.5), prior or cb.priors.Normal(scale=10.0), dim=dim)


def _bad(argument: str, values: SearchStrategy, *words: str, make: Callable[[Any], Any] | None = None) -> Any:
    """Calls with a wrong value of an argument; `make` turns it into one."""

    def call(value: Any) -> Bad:
        made = lambda: calibrate(**{argument: value if make is None else make(value)})
        return Bad(argument, words or (argument,), made, repr(value)[:200])

    return values.map(call)


anything_else = st.one_of(
    st.text(max_size=5),
    st.binary(max_size=5),
    st.complex_numbers(),
    st.lists(st.floats(), max_size=3),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
    st.sampled_from([object(), len, np.zeros(3), np.array("a"), date(2020, 1, 1), pd.NaT, {1, 2}, range(3)]),
)
no_number = anything_else | st.booleans()
no_finite = st.sampled_from([np.nan, np.inf, -np.inf, np.float32("nan")])
below = st.floats(max_value=0.0) | st.integers(max_value=0)
beyond_floats = st.floats(min_value=1e39, max_value=1e308) | st.integers(min_value=10**39, max_value=10**420)
too_small = st.floats(min_value=5e-324, max_value=1e-39)
not_positive = no_number | no_finite | below | beyond_floats
no_integer = no_number | no_finite | st.floats()
no_size = no_integer | st.integers(max_value=0)
no_fraction = no_number | no_finite | below | st.floats(min_value=1.0) | st.integers(min_value=1)
few = 1 / B - 1e-9


_NO_LOSS: dict[str, Any] = {
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
no_loss = st.sampled_from(list(_NO_LOSS))


def _numbers() -> list[SearchStrategy]:
    near_the_ends = st.floats(1e-300, few) | st.floats(1 - few, 1, exclude_max=True)
    return [
        _bad("level", no_fraction | st.none() | near_the_ends, "level"),
        _bad("tolerance", not_positive | st.none() | too_small),
        _bad("eta_init", not_positive | too_small),
        _bad("max_iterations", no_size | st.none()),
        _bad("seed", no_integer | st.none() | st.integers(min_value=2**64) | st.integers(max_value=-(2**64))),
    ]


def _choices() -> list[SearchStrategy]:
    other = anything_else | st.booleans() | st.integers() | st.none()
    many = st.lists(st.text(max_size=3), max_size=6).filter(lambda names: len(set(names)) != K)
    letter = st.sampled_from([cb.SMC, cb.Bracket, cb.regions.HPD, cb.priors.Normal])
    return [
        _bad("region", other | letter),
        _bad("sampler", other | letter),
        _bad("search", anything_else | st.booleans() | st.integers() | letter),
        _bad("estimate", other.filter(lambda value: not callable(value))),
        _bad("names", many | st.integers() | st.text(max_size=3) | st.sampled_from([3.5, object(), ["a", "a"]])),
        _bad("region", st.integers(min_value=K) | st.integers(max_value=-1) | no_integer, "Interval", make=_interval),
        _bad("region", no_number | no_finite | st.integers(), "vector", make=lambda v: cb.regions.Linear([v, 1, 2])),
        _bad("region", no_loss, "Functional", make=lambda k: cb.regions.Functional(_NO_LOSS[k])),
        _bad("sampler", no_size, "n_particles", make=lambda v: cb.SMC(n_particles=v)),
        _bad("sampler", no_size, "n_particles", make=lambda v: cb.Transport(n_particles=v)),
        _bad("sampler", no_size, "n_draws", make=lambda v: cb.MCMC(n_draws=v)),
        _bad("sampler", st.integers(1, 99), "sampler", make=lambda v: cb.SMC(n_particles=v)),
        _bad("sampler", st.integers(10**10, 10**30), "GB", make=lambda v: cb.SMC(n_particles=v)),
        _bad("sampler", st.integers(10**10, 10**30), "GB", make=lambda v: cb.MCMC(n_draws=v)),
        _bad("sampler", no_fraction, "ess_target", make=lambda v: cb.SMC(ess_target=v)),
        _bad("sampler", no_fraction, "target_acceptance", make=lambda v: cb.SMC(kernel=cb.kernels.RWMH(v))),
        _bad("search", not_positive, "gain", make=lambda v: cb.RobbinsMonro(gain=v)),
        _bad("search", not_positive, "closeness", make=lambda v: cb.Bracket(closeness=v)),
    ]


def _interval(index: Any) -> cb.regions.Interval:
    return cb.regions.Interval(index)


def _bootstraps() -> list[SearchStrategy]:
    of = cb.bootstrap
    kinds = st.sampled_from([of.Multinomial, of.Bayesian, of.Poisson])
    rows = no_integer | st.integers(max_value=19)
    too_many = st.integers(10**10, 10**400)
    spoilt = st.tuples(st.integers(0, B - 1), st.integers(0, N - 1), no_finite | st.floats(-1e9, -1e-9))
    no_groups = [[None] * N, [1.0, None] * 15, [np.nan] * N, [7] * N]
    shapes = st.tuples(st.integers(0, 120), st.integers(0, 60)).filter(lambda shape: shape[1] != N or shape[0] < 20)
    return [
        _bad("bootstrap", rows),
        _bad("bootstrap", too_many, "GB"),
        _bad("bootstrap", st.tuples(kinds, rows), make=lambda v: v[0](v[1])),
        _bad("bootstrap", st.tuples(kinds, too_many), "GB", make=lambda v: v[0](v[1])),
        _bad("bootstrap", shapes, make=np.ones),
        _bad("bootstrap", st.sampled_from([(B,), (B, N, 1), (1, B, N)]), make=np.ones),
        _bad("bootstrap", spoilt, make=lambda v: _with(COUNTS, v[:2], v[2])),
        _bad("bootstrap", st.integers(0, B - 1), make=lambda b: _with(COUNTS, b, 0.0)),
        _bad("bootstrap", st.sampled_from(["U", "c16", "M8[s]", "S"]), make=COUNTS.astype(int).astype),
        _bad("bootstrap", no_size | st.integers(N + 1, 10**30), "length", make=lambda v: of.Block(B, v)),
        _bad("bootstrap", no_size | st.integers(N + 1, 10**30), "size", make=lambda v: of.Multinomial(B, v)),
        _bad("bootstrap", not_positive, "rate", make=lambda v: of.Multinomial(B, None, v)),
        _bad("bootstrap", st.integers(0, 99).filter(lambda n: n != N), "groups", make=_clusters),
        _bad("bootstrap", st.sampled_from(no_groups), "groups", make=_groups),
    ]


def _clusters(n: int) -> cb.bootstrap.Cluster:
    return _groups(np.arange(n))


def _groups(labels: Any) -> cb.bootstrap.Cluster:
    return cb.bootstrap.Cluster(B, labels)


def _with(array: np.ndarray, where: Any, value: Any) -> np.ndarray:
    array = array.copy()
    array[where] = value
    return array


def _as_data(x: Any = X, y: Any = Y) -> tuple[Any, Any]:
    return x, y


_WRONG_KIND = ["U", "S", "c16", "M8[s]", "m8[s]", "V8"]
_FRAMES = {
    "text": lambda frame: frame({"one": np.ones(N), "city": ["Ulm", "Bonn"] * 15}),
    "nothing": lambda frame: frame({"one": np.ones(N), "gone": [None] * N}),
    "lists": lambda frame: frame({"one": np.ones(N), "two": [[1.0, 2.0]] * N}),
    "dates": lambda frame: frame({"one": np.ones(N), "day": [date(2020, 1, 1)] * N}),
    "empty": lambda frame: frame({}),
    "three": lambda frame: frame({"a": X[:, 0], "b": X[:, 1]})[: N - 1],
}
_ODD = {
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


def _data() -> list[SearchStrategy]:
    at, value = st.tuples(st.integers(0, N - 1), st.integers(0, K - 1)), no_finite | st.floats(1e39, 1e308)
    pairs = anything_else | st.none() | st.integers() | st.sampled_from([X, (X,), (X, Y, Y), [], {"X": X, "y": Y}])
    shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple).filter(lambda shape: len(shape) != 2 or 0 in shape)
    frames = st.tuples(st.sampled_from([pd.DataFrame, pl.DataFrame]), st.sampled_from(list(_FRAMES)))
    short = st.integers(0, N - 1)
    return [
        _bad("data", st.tuples(at, value), "X", make=lambda v: _as_data(_with(X, *v))),
        _bad("data", st.tuples(at, value), "y", make=lambda v: _as_data(y=_with(Y, v[0][0], v[1]))),
        _bad("data", pairs, "data", "X"),
        _bad("data", shapes, "X", "data", make=lambda shape: (np.ones(shape), np.ones(shape[:1] or 2))),
        _bad("data", short, "X", "data", make=lambda n: (X[:n], Y)),
        _bad("data", short, "y", "data", make=lambda n: (X, Y[:n])),
        _bad("data", st.integers(0, 1), "X", "data", make=lambda n: (X[:n], Y[:n])),
        _bad("data", st.sampled_from(_WRONG_KIND), "X", make=lambda kind: _as_data(_of_kind(X, kind))),
        _bad("data", st.sampled_from(_WRONG_KIND), "y", make=lambda kind: _as_data(y=_of_kind(Y, kind))),
        _bad("data", frames, "X", make=lambda v: _as_data(_FRAMES[v[1]](v[0]))),
        _bad("data", st.sampled_from(list(_ODD)), "X", make=lambda name: _as_data(_ODD[name]())),
    ]


def _of_kind(array: np.ndarray, kind: str) -> np.ndarray:
    return array.astype(kind) if kind[0] in "USc" else array.astype(np.int64).view("i8").astype(kind)


def _models() -> list[SearchStrategy]:
    priors, of = cb.priors, cb.losses
    family = st.sampled_from([priors.Normal, priors.Laplace, partial(priors.StudentT, 3.0)])
    other = anything_else | st.none() | st.integers()
    no_length = st.integers(0, 7).filter(lambda n: n != K)
    no_tau = no_fraction | st.none() | too_small
    # Lists of the right length may be right.
    no_scale = (not_positive | st.none() | too_small).filter(np.isscalar)
    no_place = (no_number | no_finite | st.none() | beyond_floats).filter(np.isscalar)
    span = st.tuples(st.floats(-1e9, 1e9, width=32), st.floats(0, 1e9, width=32)).map(lambda v: (v[0] + v[1], v[0]))
    return [
        _bad("model", other, "model"),
        _bad("model", st.tuples(family, no_scale), "scale", make=lambda v: _model(None, v[0](scale=v[1]))),
        _bad("model", st.tuples(family, no_place), "loc", make=lambda v: _model(None, v[0](loc=v[1]))),
        _bad("model", no_scale, "df", "prior", make=lambda v: _model(None, priors.StudentT(v))),
        _bad("model", span, "low", make=lambda v: _model(None, priors.Uniform(*v))),
        _bad("model", no_length, "prior", make=lambda n: _model(None, priors.Normal(scale=np.ones(n)))),
        _bad("model", other, "prior", make=lambda v: cb.GibbsModel(of.Absolute(), v)),
        _bad("model", no_tau, "tau", make=lambda v: _model(of.Quantile(v))),
        _bad("model", no_tau, "tau", make=lambda v: _model(of.Expectile(v))),
        _bad("model", no_scale, "delta", make=lambda v: _model(of.Huber(v))),
        _bad("model", no_size, "dim", make=lambda v: _model(lambda theta, datum: theta[0] * datum[1], dim=v)),
        _bad("model", st.integers(3, 10**30), "dim", make=lambda v: _model(None, dim=v)),
        _bad("model", no_loss.filter(lambda k: k != "a vector"), "rho", make=lambda k: _model(of.Linear(_NO_LOSS[k]))),
    ]


def _draws() -> list[SearchStrategy]:
    shapes = st.lists(st.integers(0, 150), max_size=3).map(tuple)
    shapes = shapes.filter(lambda shape: shape[1:] != (K,) or shape[0] < 100)
    spoilt = st.tuples(st.integers(0, 199), st.integers(0, K - 1), no_finite | st.floats(1e39, 1e308))
    return [
        _bad("draws", anything_else | st.booleans() | st.integers() | st.floats()),
        _bad("draws", shapes, make=np.zeros),
        _bad("draws", spoilt, make=lambda v: _with(np.zeros((200, K)), v[:2], v[2])),
        _bad("draws", st.sampled_from(["U", "S", "c16", "M8[s]"]), make=np.zeros((200, K), int).astype),
    ]


_OF_ESTIMATORS = ("level", "region", "sampler", "bootstrap")


def _estimators() -> list[SearchStrategy]:
    """The same by way of scikit-learn, which looks at X and y first."""
    kinds = st.sampled_from([QuantileRegressor, HuberRegressor, SVMClassifier, LogisticClassifier])
    other = {"random_state": anything_else, "prior": anything_else}
    others = {name: no_fraction if name == "level" else anything_else for name in _OF_ESTIMATORS} | other
    told = st.sampled_from(list(others)).flatmap(lambda name: st.tuples(kinds, st.just(name), others[name]))
    at, value = st.tuples(st.integers(0, N - 1), st.integers(0, K - 1)), no_finite
    return [
        told.map(
            lambda v: Bad(f"estimator {v[1]}", (v[1], "seed"), partial(_fit, v[0], X, **{v[1]: v[2]}), repr(v)[:200])
        ),
        st.tuples(kinds, at, value).map(
            lambda v: Bad("estimator X", ("X",), partial(_fit, v[0], _with(X, v[1], v[2])), repr(v)[:200])
        ),
        st.tuples(kinds, anything_else).map(
            lambda v: Bad("estimator X", ("",), partial(_fit, v[0], v[1]), repr(v)[:200])
        ),
    ]


def _fit(kind: Any, x: Any, **options: Any) -> Any:
    return kind(**options).fit(x, Y > 3 if issubclass(kind, SVMClassifier) else Y)


def _own(name: str) -> cb.Result:
    return calibrate(model=_model(_NO_LOSS[name], dim=K), data=X)


def bad_calls() -> SearchStrategy:
    """Any argument, wrong in any of these ways."""
    own = no_loss.map(lambda k: Bad("model", ("loss",), partial(_own, k), k))
    families = ([own], _estimators(), _numbers(), _choices(), _bootstraps(), _data(), _models(), _draws())
    return st.integers(0, len(families) - 1).flatmap(lambda i: st.one_of(families[i]))
