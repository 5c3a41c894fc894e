"""Tempering by ASMC* is exact in both directions."""

import jax.numpy as jnp
import numpy as np
import pytest

from calibayes._backend.functions import as_float
from calibayes._backend.rng import replicate_keys
from calibayes._core.particles import ess, reweight
from calibayes._core.target import evaluate
from calibayes.kernels import RWMH
from calibayes.samplers import mixing
from calibayes.samplers.mixing import temper_to
from calibayes.samplers.tempering import (
    COARSE_SCHEDULE,
    TemperingSchedule,
    init_coarse,
    init_tempering,
    next_step,
    temper_steps,
)
from targets import assert_log_gamma_moments, gamma_draws, gamma_target, log_gamma_moments

M = 4000


def schedule(**changes):
    settings = {"ess_target": 0.99, "resample_below": 0.5, "n_moves": 1, "resampling": "stratified"} | changes
    return TemperingSchedule(RWMH(), **settings)


@pytest.mark.parametrize("resampling", ["stratified", "systematic"])
@pytest.mark.parametrize("resample_below", [0.5, 0.95])
def test_tempering_up_down_and_back_is_exact(resampling, resample_below, key):
    """1 -> 1.6 -> 0.5 -> 1 on an asymmetric target, with weights kept or resampled on the way."""
    target, total, weighted = gamma_target(n=12)
    theta = gamma_draws(np.random.default_rng(7), total, weighted, M)
    state = init_tempering(RWMH(), evaluate(target, theta), as_float(1.0))
    keys = replicate_keys(key, 3)
    settings = schedule(resampling=resampling, resample_below=resample_below)
    for eta in (1.6, 0.5, 1.0):
        state = temper_steps(keys, target, state, as_float(eta), settings, 500)
        assert (state.eta == as_float(eta)).all()
        assert_log_gamma_moments(state.particles, eta, total, weighted, inflation=1.3)
    assert (state.resampled > 0).all() == (resample_below == 0.95)


def test_reweighting_is_exact():
    """Reweighting without moves is importance sampling, exact for a larger and a smaller eta."""
    target, total, weighted = gamma_target(n=12)
    particles = evaluate(target, gamma_draws(np.random.default_rng(7), total, weighted, 20_000))
    for eta in (1.4, 0.7):
        log_weights = reweight(particles.log_weights, particles.risk, jnp.full(3, eta - 1.0))
        mu, var, _ = log_gamma_moments(eta * total, eta * weighted)
        estimated = (np.exp(log_weights) * particles.theta[0]).sum(1)
        assert (np.abs(estimated - mu) < 4 * np.sqrt(var / np.asarray(ess(log_weights)))).all()


@pytest.mark.parametrize("distance", [5.0, -0.99])
def test_step_leaves_the_target_effective_sample_size(distance):
    target, total, weighted = gamma_target(n=12)
    particles = evaluate(target, gamma_draws(np.random.default_rng(7), total, weighted, M))
    unequal = particles.with_log_weights(reweight(particles.log_weights, particles.risk, jnp.full(3, 0.2)))
    for before in (particles, unequal):
        step = next_step(before, jnp.full(3, distance), 0.9)
        assert (jnp.sign(step) == np.sign(distance)).all()
        after = ess(reweight(before.log_weights, before.risk, step))
        np.testing.assert_allclose(after, 0.9 * ess(before.log_weights), rtol=2e-3)


def test_short_distance_is_one_step():
    target, total, weighted = gamma_target(n=12)
    particles = evaluate(target, gamma_draws(np.random.default_rng(7), total, weighted, 500))
    np.testing.assert_array_equal(next_step(particles, jnp.full(3, 1e-4), 0.9), jnp.full(3, 1e-4))


def test_tempering_in_several_calls_is_the_same(key):
    """`max_steps` limits the steps of a call, and the next call continues: replicates that have arrived wait."""
    target, total, weighted = gamma_target(n=12)
    theta = gamma_draws(np.random.default_rng(7), total, weighted, 300)
    first = init_tempering(RWMH(), evaluate(target, theta), as_float(1.0))
    keys, eta = replicate_keys(key, 3), as_float(2.0)
    at_once = temper_steps(keys, target, first, eta, schedule(), 1000)
    in_parts = first
    while not (in_parts.eta == eta).all():
        in_parts = temper_steps(keys, target, in_parts, eta, schedule(), 3)
        assert (in_parts.steps <= at_once.steps).all()
    np.testing.assert_array_equal(at_once.particles.theta, in_parts.particles.theta)
    assert (temper_steps(keys, target, first, eta, schedule(), 1).steps == 1).all()


def test_replicates_are_tempered_independently(key):
    target, total, weighted = gamma_target(n=12)
    theta = gamma_draws(np.random.default_rng(7), total, weighted, 300)
    keys, eta = replicate_keys(key, 3), as_float(2.0)
    first = init_tempering(RWMH(), evaluate(target, theta), as_float(1.0))
    together = temper_steps(keys, target, first, eta, schedule(), 1000)
    single = target.replicate(1)
    alone = init_tempering(RWMH(), evaluate(single, theta[:, 1:2]), as_float(1.0))
    alone = temper_steps(keys[1:2], single, alone, eta, schedule(), 1000)
    assert together.steps[1] == alone.steps[0]
    np.testing.assert_allclose(together.particles.theta[:, 1], alone.particles.theta[:, 0], rtol=1e-3)


def test_unreached_eta_is_an_error(key, monkeypatch):
    monkeypatch.setattr(mixing, "_advance", lambda keys, target, state, monitor, *_: (0, state, monitor))
    target, total, weighted = gamma_target(n=12)
    theta = gamma_draws(np.random.default_rng(7), total, weighted, 20)
    state = init_coarse(evaluate(target, theta), 0.0)
    with pytest.raises(
        RuntimeError, match=r"tempering did not reach eta = 0.5 in 8000 moves.* choose one that agrees with them"
    ):
        temper_to(replicate_keys(key, 3), target, state, 0.5)


def test_program_that_also_rejuvenates_tempers_like_temperature_steps(key):
    target, total, weighted = gamma_target(n=12)
    particles = evaluate(target, gamma_draws(np.random.default_rng(7), total, weighted, 300))
    keys, kernel = replicate_keys(key, 3), COARSE_SCHEDULE.kernel
    state = temper_to(keys, target, init_coarse(particles, 1.0), 4.0)
    first = init_tempering(kernel, particles, as_float(1.0))
    expected = temper_steps(keys, target, first, as_float(4.0), COARSE_SCHEDULE, 100)
    for name in ("eta", "moves", "steps", "resampled"):
        np.testing.assert_array_equal(getattr(state, name), getattr(expected, name))
    np.testing.assert_allclose(state.particles.theta, expected.particles.theta, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(state.adaptation.logit_beta, expected.adaptation.logit_beta, rtol=1e-3, atol=1e-3)
