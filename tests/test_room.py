"""A process that has compiled too much for its maps forgets it."""

import sys

import jax
import jax.numpy as jnp
import pytest

import calibayes as cb
from calibayes._backend import memory
from calibayes._backend.memory import clear_caches_if_full


@pytest.fixture
def full(tmp_path, monkeypatch):
    """No map is left."""
    (tmp_path / "limit").write_text("10\n")
    monkeypatch.setattr(room, "_LIMIT", tmp_path / "limit")


def jit(fn):
    return fn._cache_size()


def test_room_is_made_where_there_is_none(full):
    fn = jax.jit(lambda x: x + 1)
    fn(jnp.zeros(3))
    assert jit(fn) == 1
    assert clear_caches_if_full()
    assert jit(fn) == 0
    assert float(fn(jnp.zeros(3))[0]) == 1


def test_nothing_is_forgotten_while_there_is(monkeypatch, tmp_path):
    fn = jax.jit(lambda x: x + 2)
    fn(jnp.zeros(3))
    assert not clear_caches_if_full(1.0)
    assert jit(fn) == 1
    monkeypatch.setattr(room, "_LIMIT", tmp_path / "not there")
    assert not clear_caches_if_full(0.0)


def test_calibrations_make_room(monkeypatch):
    """Before anything else, so that a loop over shapes goes on."""
    asked = []
    monkeypatch.setattr(sys.modules["calibayes.calibrate"], "clear_caches_if_full", lambda every: asked.append(every))
    with pytest.raises(ValueError, match="level"):
        cb.calibrate(
            cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal()),
            cb.datasets.median_regression(20),
            level=2.0,
            seed=0,
        )
    assert asked == [1.0]


def test_looks_are_not_too_often(full):
    """What a look costs, a small calibration would notice."""
    assert clear_caches_if_full()
    assert not clear_caches_if_full(min_interval=60.0)
    assert clear_caches_if_full()
