"""Calls that run side by side get what they would get alone."""

import threading

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes.together import _Meeting, jit, side_by_side, together


class Scale(eqx.Module):
    by: jax.Array
    name: str = eqx.field(static=True, default="a")


@pytest.fixture
def counted():
    """A function, and how often it was traced with how many leading axes."""
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
    as_one = _Meeting._as_one
    monkeypatch.setattr(_Meeting, "_as_one", lambda self, group: (groups.append(len(group)), as_one(self, group))[1])
    together([lambda i=i: fn(Scale(jnp.asarray(1.0 * i)), jnp.ones(3), 1) for i in range(8)], at_once=8)
    assert groups == [8]


def test_one_program_for_all_and_one_for_those_left_alone(counted):
    fn, traced = counted

    def call(i):
        for j in range(1 + i % 5):
            fn(Scale(jnp.asarray(1.0)), jnp.full(3, float(j)), 1)

    together([lambda i=i: call(i) for i in range(23)], at_once=8)
    assert 1 <= len(traced) <= 2


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

    with pytest.raises(type(error)):
        together([lambda i=i: call(i) for i in range(50)], at_once=4)
    assert len(done) < 10
    assert threading.active_count() < 5


def test_an_error_in_the_function_is_everyones(counted):
    @jit
    def fails(x):
        raise TypeError("no such thing")

    def call():
        with pytest.raises(TypeError, match="no such thing"):
            fails(jnp.ones(2))

    together([call] * 4, at_once=4)


@pytest.mark.filterwarnings("ignore::calibayes.CalibrationWarning")
@pytest.mark.parametrize(
    "sampler",
    [
        pytest.param(cb.Transport(n_particles=200), id="transport", marks=pytest.mark.slow),
        pytest.param(cb.SMC(n_particles=200, ess_target=0.99), id="smc"),
        pytest.param(cb.MCMC(n_draws=2000, n_warmup=500), id="mcmc", marks=pytest.mark.slow),
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
