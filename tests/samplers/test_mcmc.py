"""GPC-MCMC's chains: segments of a run, and the random numbers of each step."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import calibayes as cb
from calibayes.samplers import mcmc
from calibayes.samplers.initial import initial_draws
from targets import gamma_target

N_WARMUP, N_DRAWS = 30, 60


def run(length, monkeypatch):
    """Return the draws of chains that are computed in segments of `length` steps."""
    monkeypatch.setattr(mcmc, "CONFIG", replace(mcmc.CONFIG, draws_per_call=length))
    target, *_ = gamma_target()
    initial = initial_draws(jax.random.key(1), target, 1.0, 200, None)
    sampler = cb.MCMC(n_draws=N_DRAWS, n_warmup=N_WARMUP)
    return np.asarray(sampler.init(jax.random.key(2), target, initial, 1.0).particles.theta)


@pytest.mark.parametrize("length", [30, 7])
def test_segments_do_not_change_a_chain(length, monkeypatch):
    """Every step has random numbers of its own, whichever segment it belongs to."""
    draws = run(length, monkeypatch)
    assert draws.shape == (1, 3, N_DRAWS)
    np.testing.assert_array_equal(draws, run(1_000, monkeypatch))
