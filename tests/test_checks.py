"""Bad input is refused by name, before any sampler runs."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pandas as pd
import polars as pl
import pytest

import calibayes as cb
from calibayes._validate import checks
from calibayes._validate import functions as sound
from calibayes._validate.checks import as_key, check_data, check_search_settings
from calibayes.solve import seek

N = 30
RNG = np.random.default_rng(8)
X = np.column_stack([np.ones(N), RNG.exponential(size=N)])
Y = X @ [1.0, 2.0] + RNG.normal(size=N)
LABELS = np.where(Y > 3, 1.0, -1.0)
MODEL = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=10.0))
HINGE = cb.GibbsModel(cb.losses.Hinge(), cb.priors.Normal(scale=10.0))
COUNTS = RNG.multinomial(N, np.full(N, 1 / N), size=100)


def linear(theta, datum):
    return theta[0] * datum[1]


def own(fn, prior=None, dim=2):
    return cb.GibbsModel(fn or cb.losses.Squared(), prior or cb.priors.Normal(), dim=dim)


def put(array, index, value):
    return np.asarray(jnp.asarray(array, float).at[index].set(value), float)


class OnlyDensity:
    def log_prob(self, theta):
        return -jnp.square(theta).sum()


class WrongShape(OnlyDensity):
    def sample(self, key, shape):
        return jax.random.normal(key, shape[:1])


@pytest.fixture
def calibrate(monkeypatch):
    """`calibrate` as users have it, without the type checker, and with samplers that must not be reached."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)

    def reached(*args, **kwargs):
        raise AssertionError("a sampler was started")

    monkeypatch.setattr(seek, "run", reached)

    def run(model=MODEL, data=(X, Y), **options):
        return cb.calibrate(model, data, **({"seed": 0, "progress": False, "bootstrap": 100} | options))

    return run


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"model": HINGE, "data": (X, LABELS)},
        {"model": own(linear), "data": X},
        {"model": own(linear, OnlyDensity()), "data": X, "draws": np.zeros((100, 2))},
        {"model": own(None, cb.priors.Uniform(0.0, 5.0)), "draws": np.ones((100, 2))},
        {"search": cb.Bracket()},
        *({"sampler": sampler} for sampler in ("auto", "transport", "smc", "mcmc", cb.Transport(n_particles=100))),
    ],
)
def test_good_input_reaches_the_sampler(calibrate, options):
    """Without this the errors below would prove nothing."""
    with pytest.raises(AssertionError, match="a sampler was started"):
        calibrate(**options)


VALUE_ERRORS = {
    "NaN in X": ({"data": (put(X, (4, 1), np.nan), Y)}, "X must be finite; 1 of 60 values .* row 4, column 1"),
    "inf in X": ({"data": (put(X, (0, 1), -np.inf), Y)}, "X must be finite"),
    "NaN in y": ({"data": (X, put(Y, 7, np.nan))}, "y must be finite; 1 of 30 values .* row 7"),
    "inf in y": ({"data": (X, put(Y, 7, np.inf))}, "y must be finite"),
    "lengths": ({"data": (X, Y[:-1])}, "X and y must have the same length; got 30 and 29"),
    "one observation": ({"data": (np.ones((1, 1)), Y[:1])}, "data must hold at least two observations; got 1"),
    "no observation": ({"data": (X[:0], Y[:0])}, "X is empty"),
    "empty frame": ({"data": (pd.DataFrame(), pd.Series(dtype=float))}, "X is empty"),
    "X a vector": ({"data": (Y, Y)}, r"X must have two dimensions.*got shape \(30,\)"),
    "y a matrix": ({"data": (X, X)}, r"y must have one dimension; got shape \(30, 2\)"),
    "labels": ({"model": HINGE, "data": (X, Y > 3)}, r"y must be -1 or 1 for Hinge; got 0, 1\. Use 2 \* y - 1"),
    "columns": ({"model": own(None, dim=3)}, "X has 2 columns, but the model is for 3 parameters"),
    "loss a vector": (
        {"model": own(lambda t, d: t * d[1]), "data": X},
        r"loss\(theta, datum\) must be a scalar.*\(2,\)",
    ),
    "loss a pair": ({"model": own(lambda t, d: (t[0], t[1])), "data": X}, r"loss\(theta, datum\) must be a scalar"),
    "loss NaN": ({"model": own(lambda t, d: jnp.nan * t[0]), "data": X}, "loss is NaN at every one of 32 draws of the"),
    "prior's shape": ({"model": own(linear, WrongShape()), "data": X}, r"prior.sample\(key, \(32, 2\)\).*got \(32,\)"),
    "level 0": ({"level": 0.0}, "level must be between 0 and 1"),
    "level 1": ({"level": 1}, "level must be between 0 and 1"),
    "level in percent": ({"level": 95.0}, "level must be .* got 95.0. For 95% write 0.95"),
    "B": ({"bootstrap": 19}, "bootstrap needs at least 20 rows .* got 19"),
    "B of a bootstrap": ({"bootstrap": cb.bootstrap.Poisson(10)}, "bootstrap needs at least 20 rows"),
    "B of counts": ({"bootstrap": COUNTS[:5]}, "bootstrap needs at least 20 rows"),
    "block": ({"bootstrap": cb.bootstrap.Block(100, length=31)}, "length of a block must be between 1 and N = 30"),
    "M": ({"sampler": cb.SMC(n_particles=99)}, "the sampler's particles or draws .* at least 100 .* got 99"),
    "M of transport": ({"sampler": cb.Transport(n_particles=99)}, "the sampler's particles .* at least 100 .* got 99"),
    "MCMC draws": ({"sampler": cb.MCMC(n_draws=50)}, "the sampler's particles or draws .* got 50"),
    "few draws": ({"draws": np.zeros((99, 2))}, r"draws must be \(M, 2\) with M at least 100; got shape \(99, 2\)"),
    "draws of 3": ({"draws": np.zeros((200, 3))}, r"draws must be \(M, 2\)"),
    "NaN in draws": ({"draws": np.full((200, 2), np.nan)}, "draws must be finite"),
    "draws beyond a wall": (
        {"model": own(None, cb.priors.Uniform(0.0, 5.0)), "draws": np.tile([1.0, 6.0], (200, 1))},
        "draws of parameter 1 must lie within the prior's bounds, 0 to 5",
    ),
    "counts of another N": ({"bootstrap": COUNTS[:, 1:]}, r"bootstrap counts must be \(B, 30\)"),
    "counts of one row": ({"bootstrap": COUNTS[0]}, r"bootstrap counts must be \(B, 30\)"),
    "negative counts": ({"bootstrap": put(COUNTS, (3, 3), -1)}, "bootstrap counts must not be negative; .* -1"),
    "NaN in counts": ({"bootstrap": put(COUNTS, (3, 3), np.nan)}, "bootstrap must be finite"),
    "counts of nothing": ({"bootstrap": put(COUNTS, 3, 0)}, "bootstrap counts of some row are all zero"),
    "eta_init 0": ({"eta_init": 0}, "eta_init must be positive and finite; got 0"),
    "eta_init below": ({"eta_init": -1.0}, "eta_init must be positive"),
    "eta_init inf": ({"eta_init": np.inf}, "eta_init must be positive and finite"),
    "tolerance 0": ({"tolerance": 0.0}, "tolerance must be positive"),
    "tolerance": (
        {"bootstrap": 25, "sampler": "smc"},
        "tolerance = 0.005 cannot be met: with 25 bootstrap rows .* 0.95 is 0.01 away",
    ),
    "max_iterations": ({"max_iterations": 0}, "max_iterations must be at least 1"),
    "region": ({"region": "ball"}, "region must be one of hpd, ellipsoid.* got 'ball'"),
    "interval": ({"region": cb.regions.Interval(2)}, r"Interval\(2\) is out of range"),
    "functional": ({"region": cb.regions.Functional(lambda t: 2 * t)}, r"Functional\(fn\) needs .* scalar"),
    "sampler": ({"sampler": "gibbs"}, "sampler must be one of auto, transport, smc, mcmc, .* got 'gibbs'"),
    "estimate": ({"estimate": "median"}, "estimate must be one of mean, mode, minimizer .* got 'median'"),
    "names": ({"names": ["a", "b", "c"]}, "names must name each of 2 parameters; got 3"),
}


@pytest.mark.parametrize("case", VALUE_ERRORS)
def test_value_errors(calibrate, case):
    options, message = VALUE_ERRORS[case]
    with pytest.raises(ValueError, match=message):
        calibrate(**options)


TEXT = {"one": np.ones(N), "city": ["Ulm", "Bonn"] * 15, "age": X[:, 1]}
TYPE_ERRORS = {
    "pandas text": ({"data": (pd.DataFrame(TEXT), Y)}, r"X must hold numbers; these columns do not: city\. Encode"),
    "polars text": ({"data": (pl.DataFrame(TEXT), Y)}, r"X must hold numbers; these columns do not: city\. Encode"),
    "text y": ({"data": (X, TEXT["city"])}, "y must hold numbers"),
    "X alone": ({"data": X}, r"data must be a pair \(X, y\) for Quantile; got ndarray"),
    "dict": ({"data": {"X": X, "y": Y}}, r"data must be a pair \(X, y\) for Quantile; got dict"),
    "model": ({"model": cb.losses.Quantile(0.5)}, r"model must be a GibbsModel\(loss, prior\); got Quantile"),
    "no sample": ({"model": own(linear, OnlyDensity()), "data": X}, "prior OnlyDensity has no sample"),
    "search": ({"search": "bracket"}, r"search must be a Bracket\(...\) or a RobbinsMonro\(...\); got 'bracket'"),
    "no seed": ({"seed": None}, "seed must be an int or one JAX key; got NoneType"),
    "seed 0.5": ({"seed": 0.5}, "seed must be an int or one JAX key; got float"),
    "seed True": ({"seed": True}, "seed must be an int or one JAX key; got bool"),
    "two keys": ({"seed": jax.random.split(jax.random.key(0))}, "seed must be an int or one JAX key"),
}


@pytest.mark.parametrize("case", TYPE_ERRORS)
def test_type_errors(calibrate, case):
    options, message = TYPE_ERRORS[case]
    with pytest.raises(TypeError, match=message):
        calibrate(**options)


def test_seeds_are_ints_or_keys():
    expected = jax.random.key_data(jax.random.key(3))
    for seed in (3, np.int32(3), jax.random.key(3), jax.random.PRNGKey(3)):
        np.testing.assert_array_equal(jax.random.key_data(as_key(seed)), expected)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (np.full(N, 3.0), "X: column 2 is constant"),
        (np.zeros(N), "X: column 2 is constant"),
        (2 * X[:, 1] - 1, "X: its columns are collinear"),
    ],
)
def test_redundant_columns_warn(column, message):
    with pytest.warns(cb.CalibrationWarning, match=message):
        check_data(MODEL, (np.column_stack([X, column]), Y), None)


def test_redundant_columns_of_many_rows(monkeypatch):
    """Some rows are looked at first; where these leave doubts, all: warnings are errors here."""
    monkeypatch.setattr(checks, "_TELLING", N // 4)
    same = 2 * X[:, 1] - 1
    for column in (same, np.zeros(N)):
        with pytest.warns(cb.CalibrationWarning, match="collinear|constant"):
            check_data(MODEL, (np.column_stack([X, column]), Y), None)
    looked_at, of_full_rank = [], checks._of_full_rank
    monkeypatch.setattr(checks, "_of_full_rank", lambda x: looked_at.append(len(x)) or of_full_rank(x))
    # Other than the rest in one row that is not among the first.
    check_data(MODEL, (np.column_stack([X, same + (np.arange(N) == 1)]), Y), None)
    check_data(MODEL, (X, Y), None)
    assert looked_at == [8, N, 8]


@pytest.mark.parametrize("scale", [1e-16, 1e16])
def test_scale_is_not_collinearity(scale):
    """Warnings are errors here: a column in other units must pass."""
    assert check_data(MODEL, (X * np.array([1.0, scale]), Y), None).dim == 2


@pytest.mark.parametrize(("frame", "series"), [(pd.DataFrame, pd.Series), (pl.DataFrame, pl.Series)])
def test_frames_keep_their_names(frame, series):
    table = frame({"intercept": np.ones(N, int), "dose": X[:, 1]})
    found = check_data(MODEL, (table, series(Y)), None)
    assert (found.n, found.dim, found.names) == (N, 2, ["intercept", "dose"])
    np.testing.assert_array_equal(found.data[0], X)
    np.testing.assert_array_equal(found.data[1], Y)
    assert check_data(MODEL, (table, Y), ["a", "b"]).names == ["a", "b"]
    assert check_data(MODEL, (X, frame({"y": Y})), None).names == ["theta[0]", "theta[1]"]


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_frame_names_the_column_of_a_missing_value(frame):
    table = frame({"intercept": np.ones(N), "dose": put(X[:, 1], 5, np.nan)})
    with pytest.raises(ValueError, match=r"X must be finite.*row 5, column dose"):
        check_data(MODEL, (table, Y), None)


def test_own_losses_take_any_pytree():
    model = own(lambda t, d: t[0] * d["x"][1] + d["y"])
    found = check_data(model, {"x": pd.DataFrame(X), "y": pl.Series(Y)}, None)
    assert (found.n, found.dim, found.names) == (N, 2, ["theta[0]", "theta[1]"])
    for data, message in [
        ({"x": X, "y": Y[1:]}, "data must be arrays of the same length; got 29, 30"),
        ({"x": X, "y": put(Y, 0, np.nan)}, "array 1 of data must be finite"),
        ({}, "data is empty"),
        ({"x": X, "y": 3.0}, r"array 1 of data must have observations along its first axis; got shape \(\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            check_data(model, data, None)


def test_integer_data_of_a_generic_loss_are_welcome():
    model = cb.GibbsModel(lambda theta, datum: theta[0] * datum.astype(float), cb.priors.Normal(), dim=1)
    assert check_data(model, np.arange(10), None).data.dtype.kind == "i"


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (["1.0", "2.0"], TypeError, "must hold numbers"),
        ([1j, 2.0], TypeError, "must hold numbers"),
        (pd.to_datetime(["2020-01-01", "2021-01-01"]), TypeError, "must hold numbers"),
    ],
)
def test_what_is_no_number_is_refused(bad, error, message):
    model = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal())
    with pytest.raises(error, match=message):
        check_data(model, (np.ones((2, 1)), bad), None)
    with pytest.raises(error, match="these columns do not: when"):
        check_data(model, (pd.DataFrame({"one": [1.0, 1.0], "when": bad}), [1.0, 2.0]), None)


def test_missing_values_of_pandas_integers_are_named():
    frame = pd.DataFrame({"one": [1.0, 1.0, 1.0], "age": pd.array([3, None, 4], dtype="Int64")})
    with pytest.raises(ValueError, match="row 1, column age"):
        check_data(cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal()), (frame, [1.0, 2.0, 3.0]), None)


def test_seed_that_does_not_fit():
    with pytest.raises(ValueError, match="seed must fit"):
        as_key(2**70)


@pytest.mark.parametrize(
    ("loss", "dim"),
    [
        (lambda theta, datum: theta @ jnp.ones(3), 2),
        (lambda theta, datum: np.sin(theta[0]) * datum, 1),
        (lambda theta, datum: datum if theta[0] > 0 else -datum, 1),
    ],
    ids=["dim", "numpy", "if"],
)
def test_loss_that_jax_cannot_take_is_explained(loss, dim):
    with pytest.raises(TypeError, match=r"loss\(theta, datum\) failed .* check dim"):
        check_data(cb.GibbsModel(loss, cb.priors.Normal(), dim=dim), np.ones(5), None)


def test_numbers_that_do_not_fit():
    generic = cb.GibbsModel(lambda theta, datum: theta[0] * datum.astype(float), cb.priors.Normal(), dim=1)
    with pytest.raises(ValueError, match="integers too large"):
        check_data(generic, np.array([1, 2**33 + 5]), None)
    with pytest.raises(ValueError, match="beyond float32"):
        check_data(cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal()), (np.ones((2, 1)), [1.0, 1e300]), None)


@pytest.mark.parametrize(
    ("level", "tolerance", "n_rows", "message"),
    [
        (0.999, 0.0005, 100, "rows are too few"),
        (0.95, 0.06, 100, "must be below 0.05"),
        ("0.95", 0.005, 500, "level must"),
    ],
)
def test_level_tolerance_and_rows_must_fit(level, tolerance, n_replicates, message, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises((ValueError, TypeError), match=message):
        check_search_settings(level, tolerance, None, 10, n_replicates, to_tolerance=True)


@pytest.fixture
def traced(monkeypatch):
    """What is traced to see whether it is a real number."""
    names, require = [], sound._require_scalar
    monkeypatch.setattr(sound, "_SOUND", set())
    monkeypatch.setattr(sound, "_require_scalar", lambda name, *args: names.append(name) or require(name, *args))
    return names


def a_model(power):
    return cb.GibbsModel(lambda theta, datum: jnp.abs(theta[0] - jnp.sum(datum)) ** power, cb.priors.Normal(), dim=1)


def test_functions_are_traced_once(traced):
    """The same code that saw the same numbers, on data of the same shape; not another."""
    y = np.arange(5.0)
    for model in (a_model(2), a_model(2)):
        check_data(model, y, None)
    assert traced == ["loss(theta, datum)", "prior.log_prob(theta)"]
    check_data(a_model(3), y, None)
    assert len(traced) == 4
    check_data(a_model(3), np.ones((5, 2)), None)
    assert len(traced) == 6


def test_what_may_change_is_traced_again(traced):
    """A callable of which nothing is known."""

    class Loss:
        def __call__(self, theta, datum):
            return jnp.square(theta[0] - datum)

    model = cb.GibbsModel(Loss(), cb.priors.Normal(), dim=2)
    for _ in range(2):
        check_data(model, np.arange(5.0), None)
    assert len(traced) == 4


def test_what_cannot_come_again_is_not_remembered(traced):
    """A function over an array is equal to no other."""
    power = np.array([2.0])
    model = cb.GibbsModel(lambda theta, datum: jnp.abs(theta[0] - datum) ** power[0], cb.priors.Normal(), dim=1)
    check_data(model, np.arange(5.0), None)
    assert len(traced) == 2
    assert not sound._SOUND


def test_what_failed_fails_again(traced):
    model = cb.GibbsModel(lambda theta, datum: theta + datum, cb.priors.Normal(), dim=2)
    for _ in range(2):
        with pytest.raises((TypeError, ValueError), match="loss"):
            check_data(model, np.arange(5.0), None)
    assert len(traced) == 2


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("seed", [0, 1, -1, 2**31, 2**32 - 1, 2**32, 2**40 + 7, -(2**35), 2**63 - 1, -(2**63)])
def test_seeds_are_those_of_jax(seed, x64):
    with jax.enable_x64(x64):
        expected = jax.random.key_data(jax.random.key(seed))
        np.testing.assert_array_equal(jax.random.key_data(as_key(seed)), expected)
