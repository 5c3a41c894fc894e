"""Calls that run side by side get what they would get alone."""

import contextlib
import signal
import threading
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes.curve import critical_levels
from calibayes.functions import as_float
from calibayes.kernels.base import metropolis, random_walk_noise
from calibayes.noise import row_keys
from calibayes.samplers.asmc import climb, start_walking, stay
from calibayes.samplers.maps import Base, first_maps, jackknifed, refit, weigh
from calibayes.samplers.mcmc import _run
from calibayes.samplers.start import COARSE
from calibayes.studies.runner import _compilations
from calibayes.target import evaluate, make_target
from calibayes.together import _Meeting, jit, side_by_side, together


class Scale(eqx.Module):
    by: jax.Array
    name: str = eqx.field(static=True, default="a")


@pytest.fixture
def counted():
    """A function, and a list that grows whenever it is traced."""
    traced = []

    @jit
    def fn(scale, x, power):
        traced.append(x.shape)
        return Scale(scale.by * x.sum() ** power, scale.name)

    return fn, traced


def expected(i):
    return 2.0 * i * float(i + (i + 1) + (i + 2)) ** 2


def test_each_gets_its_own(counted):
    fn, _ = counted
    found = {}

    def call(i):
        assert side_by_side()
        found[i] = float(fn(Scale(jnp.asarray(2.0 * i)), np.arange(3.0, dtype=np.float32) + np.float32(i), 2).by)

    together([lambda i=i: call(i) for i in range(10)], at_once=4)
    assert found == {i: pytest.approx(expected(i)) for i in range(10)}
    assert not side_by_side()


def test_what_meets_is_run_as_one(counted, monkeypatch):
    fn, _ = counted
    groups = []
    as_one = _Meeting._serve_as_one
    spy = lambda self, group: (groups.append(len(group)), as_one(self, group))[1]
    monkeypatch.setattr(_Meeting, "_serve_as_one", spy)
    together([lambda i=i: fn(Scale(jnp.asarray(1.0 * i)), jnp.ones(3), 1) for i in range(8)], at_once=8)
    assert groups == [8]


def test_one_program_for_all_and_one_for_those_left_alone(counted):
    fn, traced = counted

    def call(i):
        for j in range(1 + i % 5):
            fn(Scale(jnp.asarray(1.0)), jnp.full(3, float(j)), 1)

    together([lambda i=i: call(i) for i in range(23)], at_once=8)
    assert len(traced) == 2


def test_what_is_not_an_array_comes_back_too(counted):
    fn, _ = counted
    names = []
    together([lambda: names.append(fn(Scale(jnp.ones(()), "b"), jnp.ones(3), 1).name)] * 3, at_once=3)
    assert names == ["b"] * 3


def test_nothing_is_compiled_for_a_place(counted):
    """Stacking and taking apart belong to the one program."""
    fn, _ = counted
    call = lambda: jax.block_until_ready(fn(Scale(jnp.ones(())), jnp.ones(3), 1))
    together([call] * 4, at_once=4)
    before = _compilations()
    together([call] * 4, at_once=4)
    assert _compilations() == before


def test_without_memory_for_all_they_go_one_by_one(counted, monkeypatch):
    fn, _ = counted
    found = []

    def full(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED")

    def call(i):
        found.append(float(fn(Scale(jnp.ones(())), jnp.full(3, float(i)), 1).by))

    monkeypatch.setattr(eqx, "filter_vmap", full)
    together([lambda i=i: call(i) for i in range(4)], at_once=4)
    assert sorted(found) == [0.0, 3.0, 6.0, 9.0]


def test_arguments_that_cannot_be_compared_fail_where_they_come_from(counted):
    fn, _ = counted

    class Odd:
        __hash__ = None

    def call(i):
        with pytest.raises(TypeError, match="unhashable") if i == 0 else contextlib.nullcontext():
            fn(Scale(jnp.ones(())), jnp.ones(3), Odd() if i == 0 else 1)

    together([lambda i=i: call(i) for i in range(3)], at_once=3)


def test_other_shapes_other_static_arguments_and_other_names_do_not_mix(counted):
    fn, _ = counted
    found = {}

    def call(i):
        x = jnp.ones(3 if i % 2 else 5)
        out = fn(Scale(jnp.asarray(1.0), "a" if i < 4 else "b"), x, 1 if i % 4 < 2 else 2)
        found[i] = (float(out.by), out.name)

    together([lambda i=i: call(i) for i in range(8)], at_once=8)
    for i, (value, name) in found.items():
        assert value == (3 if i % 2 else 5) ** (1 if i % 4 < 2 else 2)
        assert name == ("a" if i < 4 else "b")


def test_within_compiled_functions_nobody_waits(counted):
    fn, _ = counted
    outer = jax.jit(lambda x: fn(Scale(jnp.ones(())), x, 1).by)
    found = []
    together([lambda: found.append(float(outer(jnp.ones(3))))] * 3, at_once=3)
    assert found == [3.0, 3.0, 3.0]


@pytest.mark.parametrize("error", [ValueError("wrong"), KeyboardInterrupt()])
def test_an_error_ends_them_all(counted, error):
    fn, _ = counted
    done = []

    def call(i):
        fn(Scale(jnp.ones(())), jnp.ones(3), 1)
        if i == 2:
            raise error
        fn(Scale(jnp.ones(())), jnp.ones(3), 1)
        done.append(i)

    before = threading.active_count()
    with pytest.raises(type(error)):
        together([lambda i=i: call(i) for i in range(50)], at_once=4)
    assert len(done) < 10
    assert threading.active_count() == before


def test_ctrl_c_ends_them_all(counted):
    fn, _ = counted
    started = []

    def call(i):
        started.append(i)
        fn(Scale(jnp.ones(())), jnp.ones(3), 1)
        if i == 4:
            signal.raise_signal(signal.SIGINT)
        time.sleep(0.05)
        fn(Scale(jnp.ones(())), jnp.ones(3), 1)

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        together([lambda i=i: call(i) for i in range(200)], at_once=4)
    assert len(started) < 200
    # Python 3.11 may take a thread for ended whose join was interrupted: give it the moment it needs.
    for _ in range(100):
        if threading.active_count() == before:
            break
        time.sleep(0.05)
    assert threading.active_count() == before


def test_an_error_in_the_function_is_everyones(counted):
    @jit
    def fails(x):
        raise TypeError("no such thing")

    def call():
        with pytest.raises(TypeError, match="no such thing"):
            fails(jnp.ones(2))

    together([call] * 4, at_once=4)


def make(i):
    """A target of its own for each, with particles in it."""
    data = cb.datasets.median_regression(24, i)
    counts = np.random.default_rng(i).multinomial(24, np.full(24, 1 / 24), size=19)
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=10.0))
    target = make_target(model, data, counts, 2)
    theta = np.array([2.0, 1.0])[:, None, None] + 0.3 * np.random.default_rng(i + 9).normal(size=(2, 20, 50))
    return target, jnp.asarray(theta, jnp.float32), row_keys(jax.random.key(i), 20)


def everything(i):
    """What samplers and curves compute, one after another."""
    target, theta, keys = make(i)
    eta = as_float(0.5 + 0.1 * i)
    particles = evaluate(target, theta)
    walkers = start_walking(COARSE.kernel, particles, eta)
    moved = stay(keys, target, walkers, COARSE.kernel, jnp.asarray(1), jnp.zeros(20, bool))
    climbed = climb(keys, target, walkers, as_float(0.6 + 0.1 * i), COARSE, 1)
    base = Base.of(particles, eta)
    maps = first_maps(target, base, jackknifed(target, particles, eta), as_float(1.0))
    weighted, sizes = weigh(target, base, maps, eta)
    fitted = refit(base, maps, weighted.log_weights)
    levels = critical_levels(target, particles, eta, cb.regions.Box(), theta[:, 0, 0])
    chain = _run(
        keys, target, jnp.full(20, eta), evaluate(target, theta[:, :, :1]), (), jnp.asarray(0), Still(), 2, False
    )
    return particles, moved.particles, climbed.particles, maps, weighted, sizes, fitted, levels, chain


class Still(cb.kernels.Kernel):
    def init(self, covariance):
        return ()

    def step(self, keys, target, eta, particles, adaptation, adapt):
        noise, log_uniforms = random_walk_noise(keys, particles.theta)
        move = metropolis(log_uniforms, target, eta, particles, particles.theta + 0.1 * noise)
        return move.particles, adaptation, move.info


@pytest.mark.slow
def test_what_is_computed_is_the_same_to_rounding():
    """One move each: no acceptance is so close that rounding would turn it."""
    alone = [everything(i) for i in range(3)]
    found = {}
    together([lambda i=i: found.update({i: everything(i)}) for i in range(3)], at_once=3)
    for i in range(3):
        for ours, theirs in zip(jax.tree.leaves(found[i]), jax.tree.leaves(alone[i]), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::calibayes.CalibrationWarning")
@pytest.mark.parametrize(
    "sampler",
    [
        pytest.param(cb.Transport(n_particles=200), id="transport"),
        pytest.param(cb.SMC(n_particles=200, ess_target=0.99), id="smc"),
        pytest.param(cb.MCMC(n_draws=2000, n_warmup=500), id="mcmc"),
    ],
)
def test_calibrations_agree_with_those_alone(sampler):
    """On the same counts only the samplers' errors are between them: rounding can flip an acceptance.

    Levels from 200 particles have an error of 2 sqrt(0.025 * 0.975 / 200) = 0.022, near 0.95 some 0.3 of log eta; over
    the rows near the quantile, and snapshots where there are some, less than half of it: 0.3 is two of those.
    """
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))

    def calibrate(i):
        data = cb.datasets.median_regression(60, i)
        return cb.calibrate(
            model, data, region="box", sampler=sampler, bootstrap=100, tolerance=0.02, seed=i, progress=False
        )

    alone = calibrate(1)
    found = {}
    together([lambda i=i: found.update({i: calibrate(i)}) for i in range(3)], at_once=3)
    np.testing.assert_array_equal(found[1].counts, alone.counts)
    assert all(result.converged for result in found.values())
    assert abs(np.log(found[1].eta / alone.eta)) < 0.3
    assert len({result.eta for result in found.values()}) == 3
