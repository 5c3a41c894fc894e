"""Programs in memory are dropped if an object that they were compiled for has changed."""

from dataclasses import dataclass
from types import SimpleNamespace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._backend import outdated
from calibayes._backend.jit import clear_programs, jit, n_programs
from calibayes._backend.outdated import drop_outdated_programs, record_states, state_of

FACTOR = 1.0


def scaled(theta):
    return FACTOR * theta.sum()


class Attribute:
    def __init__(self):
        self.factor = 1.0

    def log_prob(self, theta):
        return self.factor * theta.sum()


class Module(eqx.Module):
    def log_prob(self, theta):
        return scaled(theta)


class Static(eqx.Module):
    value: object = eqx.field(static=True)


@dataclass(frozen=True)
class FrozenDataclass:
    def log_prob(self, theta):
        return scaled(theta)


log_prob = jit(lambda prior, theta: prior.log_prob(theta))
call = jit(lambda fn, theta: fn(theta))


def change_attribute(prior, monkeypatch):
    prior.factor = 3.0


def change_global(_, monkeypatch):
    monkeypatch.setitem(globals(), "FACTOR", 3.0)


def change_method(prior, monkeypatch):
    monkeypatch.setattr(type(prior), "log_prob", lambda self, theta: 3 * theta.sum())


CASES = [
    (Attribute, change_attribute),
    (Attribute, change_method),
    (Module, change_global),
    (FrozenDataclass, change_global),
]


@pytest.mark.parametrize(("make", "change"), CASES, ids=["attribute", "method", "module", "dataclass"])
def test_calibrate_does_not_use_the_programs_of_an_object_that_has_changed(monkeypatch, make, change):
    """The call ends with an error about the level, after it has dropped the programs."""
    prior, theta = make(), jnp.ones(1)
    model = cb.GibbsModel(lambda t, y: jnp.abs(y - t[0]), prior, dim=1)

    def value():
        with pytest.raises(ValueError, match="level"):
            cb.calibrate(model, jnp.arange(20.0), level=2.0, draws=jnp.ones((1000, 1)))
        return float(log_prob(prior, theta)), float(call(prior.log_prob, theta))

    assert value() == (1.0, 1.0)
    before = n_programs()
    assert value() == (1.0, 1.0)
    assert n_programs() == before
    change(prior, monkeypatch)
    assert value() == (3.0, 3.0)


def test_equal_numbers_of_different_types_are_different_states():
    """A static field of 1 is equal to one of 1.0 or True, but another program."""

    class Power(eqx.Module):
        exponent: float = eqx.field(static=True)

    assert not drop_outdated_programs(Power(1))
    assert drop_outdated_programs(Power(1.0))
    assert not drop_outdated_programs(Power(1.0))


def test_arrays_of_an_object_are_not_part_of_its_state():
    """They are arguments of the programs."""
    assert state_of(cb.priors.Normal(scale=1.0)) == state_of(cb.priors.Normal(scale=2.0))
    assert state_of(cb.priors.Normal(scale=1.0)) != state_of(cb.priors.Laplace(scale=1.0))


def test_value_that_an_object_keeps_during_a_calibration_is_no_change():
    prior = Attribute()
    drop_outdated_programs(prior)
    prior.kept = 2.0
    record_states(prior)
    assert not drop_outdated_programs(prior)


def test_object_without_a_digest_is_always_outdated():
    class Unknown:
        def __getstate__(self):
            raise RuntimeError

        def __array__(self, dtype=None, copy=None):
            raise RuntimeError

    unknown = Unknown()
    assert state_of(unknown) is None
    assert [drop_outdated_programs(unknown) for _ in range(3)] == [False, True, True]


def test_object_without_a_hash_is_ignored():
    assert not drop_outdated_programs(SimpleNamespace(a=1))
    assert not drop_outdated_programs(SimpleNamespace(a=2))


@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
def test_objects_that_cannot_be_compared_are_different():
    """The equality of two arrays has no truth value."""
    assert not any(drop_outdated_programs(Static(value)) for value in (np.zeros(3), np.zeros(3), 1))


def test_number_of_recorded_states_is_bounded(monkeypatch):
    clear_programs()
    monkeypatch.setattr(outdated, "CONFIG", outdated.OutdatedConfig(max_recorded=2))
    log_prob(Attribute(), jnp.ones(1))
    for _ in range(4):
        drop_outdated_programs(Attribute())
    assert n_programs() == 0
