"""Invalid arguments of `calibrate` and of classes are rejected by name, before any sampler runs."""

import sys

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pandas as pd
import pytest

import calibayes as cb
import example_results
from calibayes._core.target import make_target
from calibayes.solve.solver import Solver

pl = pytest.importorskip("polars")

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


def make_model(loss, prior=None, dim=2):
    return cb.GibbsModel(loss or cb.losses.Squared(), prior or cb.priors.Normal(), dim=dim)


def replaced(array, index, value):
    return np.asarray(jnp.asarray(array, float).at[index].set(value), float)


class OnlyDensity:
    def log_prob(self, theta):
        return -jnp.square(theta).sum()


class WrongShape(OnlyDensity):
    def sample(self, key, shape):
        return jax.random.normal(key, shape[:1])


@pytest.fixture
def _without_type_checker(monkeypatch):
    """Users run without the type checker of the tests."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture
def calibrate(monkeypatch, _without_type_checker):
    """`calibrate` with a solver that fails when it is reached."""

    def draw_initial(*args, **kwargs):
        raise AssertionError("the solver was started")

    monkeypatch.setattr(Solver, "draw_initial", draw_initial)

    def run(model=MODEL, data=(X, Y), **options):
        return cb.calibrate(model, data, **({"seed": 0, "progress": False, "bootstrap": 100} | options))

    return run


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"model": HINGE, "data": (X, LABELS)},
        {"model": make_model(linear), "data": X},
        {"model": make_model(linear, OnlyDensity()), "data": X, "draws": np.zeros((100, 2))},
        {"model": make_model(None, cb.priors.Uniform(0.0, 5.0)), "draws": np.ones((100, 2))},
        {"search": cb.Bracket()},
        *({"sampler": sampler} for sampler in ("auto", "transport", "smc", "mcmc", cb.Transport(n_particles=100))),
    ],
)
def test_valid_arguments_reach_the_solver(calibrate, options):
    """Without this the tests of errors would prove nothing."""
    with pytest.raises(AssertionError, match="the solver was started"):
        calibrate(**options)


VALUE_ERRORS = {
    "NaN in X": ({"data": (replaced(X, (4, 1), np.nan), Y)}, "X must be finite; 1 of 60 values .* row 4, column 1"),
    "inf in X": ({"data": (replaced(X, (0, 1), -np.inf), Y)}, "X must be finite"),
    "NaN in y": ({"data": (X, replaced(Y, 7, np.nan))}, "y must be finite; 1 of 30 values .* row 7"),
    "inf in y": ({"data": (X, replaced(Y, 7, np.inf))}, "y must be finite"),
    "lengths": ({"data": (X, Y[:-1])}, "X and y must have the same length; got 30 and 29"),
    "one observation": ({"data": (np.ones((1, 1)), Y[:1])}, "data must hold at least two observations; got 1"),
    "no observation": ({"data": (X[:0], Y[:0])}, "X is empty"),
    "empty frame": ({"data": (pd.DataFrame(), pd.Series(dtype=float))}, "X is empty"),
    "X a vector": ({"data": (Y, Y)}, r"X must have two dimensions.*got shape \(30,\)"),
    "y a matrix": ({"data": (X, X)}, r"y must have one dimension; got shape \(30, 2\)"),
    "labels": ({"model": HINGE, "data": (X, Y > 3)}, r"y must be -1 or 1 for Hinge; got 0, 1\. Use 2 \* y - 1"),
    "columns": ({"model": make_model(None, dim=3)}, "X has 2 columns, but the model has 3 parameters"),
    "loss a vector": (
        {"model": make_model(lambda t, d: t * d[1]), "data": X},
        r"loss\(theta, datum\) must be a scalar.*\(2,\)",
    ),
    "loss a pair": (
        {"model": make_model(lambda t, d: (t[0], t[1])), "data": X},
        r"loss\(theta, datum\) must be a scalar",
    ),
    "prior's shape": (
        {"model": make_model(linear, WrongShape()), "data": X},
        r"prior.sample\(key, \((\d+), 2\)\).*got \(\1,\)",
    ),
    "level 0": ({"level": 0.0}, "level must be between 0 and 1"),
    "level 1": ({"level": 1}, "level must be between 0 and 1"),
    "level in percent": ({"level": 95.0}, "level must be .* got 95.0. For 95% write 0.95"),
    "B": ({"bootstrap": 19}, "bootstrap needs at least 20 replicates .* got 19"),
    "B of a bootstrap": ({"bootstrap": cb.bootstrap.Poisson(10)}, "bootstrap needs at least 20 replicates"),
    "B of counts": ({"bootstrap": COUNTS[:5]}, "bootstrap needs at least 20 replicates"),
    "block": ({"bootstrap": cb.bootstrap.Block(100, length=31)}, "length of a block must be between 1 and N = 30"),
    "M": ({"sampler": cb.SMC(n_particles=99)}, "the sampler needs at least 100 particles or draws .* got 99"),
    "M of transport": (
        {"sampler": cb.Transport(n_particles=99)},
        "the sampler needs at least 100 particles .* got 99",
    ),
    "MCMC draws": ({"sampler": cb.MCMC(n_draws=50)}, "the sampler needs at least 100 particles or draws .* got 50"),
    "few draws": ({"draws": np.zeros((99, 2))}, r"draws must be \(D, 2\) with D at least 100; got shape \(99, 2\)"),
    "draws of 3": ({"draws": np.zeros((200, 3))}, r"draws must be \(D, 2\)"),
    "NaN in draws": ({"draws": np.full((200, 2), np.nan)}, "draws must be finite"),
    "draws out of bounds": (
        {"model": make_model(None, cb.priors.Uniform(0.0, 5.0)), "draws": np.tile([1.0, 6.0], (200, 1))},
        "draws of parameter 1 must lie within the prior's bounds, 0 to 5",
    ),
    "counts of another N": ({"bootstrap": COUNTS[:, 1:]}, r"bootstrap counts must be \(B, 30\)"),
    "counts a vector": ({"bootstrap": COUNTS[0]}, r"bootstrap counts must be \(B, 30\)"),
    "negative counts": ({"bootstrap": replaced(COUNTS, (3, 3), -1)}, "bootstrap counts must not be negative; .* -1"),
    "NaN in counts": ({"bootstrap": replaced(COUNTS, (3, 3), np.nan)}, "bootstrap must be finite"),
    "counts of zero": ({"bootstrap": replaced(COUNTS, 3, 0)}, "bootstrap counts of replicate 3 are all zero"),
    "eta_init 0": ({"eta_init": 0}, "eta_init must be positive and finite; got 0"),
    "eta_init negative": ({"eta_init": -1.0}, "eta_init must be positive"),
    "eta_init inf": ({"eta_init": np.inf}, "eta_init must be positive and finite"),
    "tolerance 0": ({"tolerance": 0.0}, "tolerance must be positive"),
    "tolerance": (
        {"bootstrap": 25, "sampler": "smc"},
        "tolerance = 0.005 cannot be met: with 25 bootstrap replicates .* 0.95 is 0.01 away",
    ),
    "max_iterations": ({"max_iterations": 0}, "max_iterations must be at least 1"),
    "max_seconds": ({"max_seconds": 0}, "max_seconds must be positive"),
    "region": ({"region": "ball"}, "region must be one of hpd, ellipsoid.* got 'ball'"),
    "interval": ({"region": cb.regions.Interval(2)}, r"Interval\(2\) is out of range: there are 2 parameters"),
    "functional": ({"region": cb.regions.Functional(lambda t: 2 * t)}, r"Functional\(fn\) needs .* scalar"),
    "sampler": ({"sampler": "gibbs"}, "sampler must be one of auto, transport, smc, mcmc, .* got 'gibbs'"),
    "estimate": ({"estimate": "median"}, "estimate must be one of mean, mode, minimizer .* got 'median'"),
    "names": ({"names": ["a", "b", "c"]}, "names must name each of 2 parameters; got 3"),
}


@pytest.mark.parametrize("case", VALUE_ERRORS)
def test_invalid_values_are_rejected(calibrate, case):
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
    "no sample": ({"model": make_model(linear, OnlyDensity()), "data": X}, "prior OnlyDensity has no method sample"),
    "search": ({"search": "bracket"}, r"search must be a Bracket\(...\) or a RobbinsMonro\(...\); got 'bracket'"),
    "max_seconds": ({"max_seconds": "1 h"}, "max_seconds must be a number; got '1 h'"),
    "no seed": ({"seed": None}, "seed must be an int or one JAX key; got NoneType"),
    "seed 0.5": ({"seed": 0.5}, "seed must be an int or one JAX key; got float"),
    "seed True": ({"seed": True}, "seed must be an int or one JAX key; got bool"),
    "two keys": ({"seed": jax.random.split(jax.random.key(0))}, "seed must be an int or one JAX key"),
}


@pytest.mark.parametrize("case", TYPE_ERRORS)
def test_invalid_types_are_rejected(calibrate, case):
    options, message = TYPE_ERRORS[case]
    with pytest.raises(TypeError, match=message):
        calibrate(**options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cb.SMC(resample_below=1.5), "resample_below must be above 0 and at most 1; got 1.5"),
        (lambda: cb.SMC(start="middle"), "start must be one of mcmc, prior; got 'middle'"),
        (lambda: cb.kernels.RAM(target_acceptance=1.2), "target_acceptance must"),
        (lambda: cb.GibbsModel(3, cb.priors.Normal()), "loss must be one of calibayes.losses or a function"),
        (lambda: cb.MCMC(n_draws=8).check(make_target(MODEL, (X, Y), np.ones((3, N)), 2)), "n_draws must be above 8"),
        (
            lambda: cb.regions.UnavailableRegion("Own").check(2),
            "region Own of a loaded result is known only by its name",
        ),
        (lambda: cb.gpc_smc(MODEL, (X, Y), seed=0, sampler="smc"), "To choose another one, use calibrate"),
        (lambda: cb.gpc_mcmc(MODEL, (X, Y), seed=0, sampler="smc"), "To choose another one, use calibrate"),
        (lambda: cb.bootstrap.Cluster(100, [None, 1, 2]), "groups must have a label for every .* 1 are missing"),
        (lambda: cb.bootstrap.Cluster(100, np.array([1, "a", 2], object)), "groups must be labels of one kind"),
        (
            lambda: cb.bootstrap.Cluster(100, [np.nan, 1, 2]),
            "groups must have a label for every observation; 1 are missing",
        ),
        (
            lambda: cb.regions.Functional(lambda theta: 1 / 0).check(2),
            r"Functional\(fn\) failed on 2 parameters",
        ),
        (lambda: cb.regions.Functional(lambda theta: jax.lax.complex(theta[0], theta[0])).check(2), "real value"),
    ],
)
@pytest.mark.usefixtures("_without_type_checker")
def test_invalid_arguments_of_classes_are_rejected(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_priors_over_matrices_are_rejected():
    dist = pytest.importorskip("numpyro.distributions")
    with pytest.raises(ValueError, match=r"over one vector of parameters; its draws have shape \(2, 3\)"):
        cb.GibbsModel(cb.losses.Squared(), dist.Normal(0.0, 1.0).expand([2, 3]))


def test_paper_algorithms_have_the_settings_of_the_paper(monkeypatch):
    calls = []

    def calibrate(*_, **options):
        calls.append(options)
        return example_results.make_result()

    monkeypatch.setattr(sys.modules["calibayes.calibrate"], "calibrate", calibrate)
    cb.gpc_smc(MODEL, (X, Y), seed=1, n_particles=300)
    cb.gpc_mcmc(MODEL, (X, Y), seed=1, n_draws=400, region="hpd")
    cb.gpc_mcmc(MODEL, (X, Y), seed=1, kernel=cb.kernels.PolsonScott())
    smc, ram, polson = calls
    assert (smc["sampler"].n_particles, smc["region"], smc["bootstrap"], smc["eta_init"]) == (300, "box", 500, 1.0)
    assert (ram["sampler"].n_draws, ram["region"]) == (400, "hpd")
    assert isinstance(ram["sampler"].kernel, cb.kernels.RAM)
    assert isinstance(polson["sampler"].kernel, cb.kernels.PolsonScott)
    assert all(isinstance(options["search"], cb.RobbinsMonro) for options in calls)
