"""ASMC* is exact in both directions."""

import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._backend.functions import as_float
from calibayes._backend.rng import replicate_keys
from calibayes._core.particles import ess, reweight
from calibayes._core.target import evaluate, make_target
from calibayes.kernels import RWMH
from calibayes.samplers import start as starts
from calibayes.samplers.initial import rejuvenate_until_mixed, temper_from_prior
from calibayes.samplers.tempering import TemperingSchedule, init_tempering, next_step, temper_steps
from targets import gamma_draws, gamma_target, log_gamma_moments

M = 4000


def ladder(**changes):
    settings = {"ess_target": 0.99, "resample_below": 0.5, "n_moves": 1, "resampling": "stratified"} | changes
    return TemperingSchedule(RWMH(), **settings)


def assert_moments(walkers, eta, total, weighted, slack=1.0):
    """Mean, spread and skewness of the log-gamma target, within 4 errors of a sample of the effective size.

    The particles come close to independent draws of their number's effective size; `slack` allows for what
    resampling and correlated moves cost, as an inflation of the error.
    """
    weights, theta = np.asarray(walkers.particles.weights, float), np.asarray(walkers.particles.theta[0], float)
    size = np.asarray(ess(walkers.particles.log_weights))
    mu, var, third = log_gamma_moments(eta * total, eta * weighted)
    m = (weights * theta).sum(1)
    v = (weights * (theta - mu[:, None]) ** 2).sum(1)
    t = (weights * (theta - mu[:, None]) ** 3).sum(1)
    assert (np.abs(m - mu) < slack * 4 * np.sqrt(var / size)).all()
    assert (np.abs(v / var - 1) < slack * 4 * np.sqrt(2.5 / size)).all()
    # The variance of a third power is 15 sd^6 for a normal.
    assert (np.abs(t - third) < slack * 4 * np.sqrt(15 / size) * var**1.5).all()


@pytest.mark.parametrize("resampling", ["stratified", "systematic"])
@pytest.mark.parametrize("resample_below", [0.5, 0.95])
def test_up_down_and_back(resampling, resample_below, key):
    """1 -> 1.6 -> 0.5 -> 1 on an asymmetric target, weights carried or resampled on the way."""
    target, total, weighted = gamma_target(n=12)
    theta = gamma_draws(np.random.default_rng(7), total, weighted, M)
    walkers = init_tempering(RWMH(), evaluate(target, theta), as_float(1.0))
    keys = replicate_keys(key, 3)
    for eta in (1.6, 0.5, 1.0):
        walkers = temper_steps(
            keys, target, walkers, as_float(eta), ladder(resampling=resampling, resample_below=resample_below), 500
        )
        assert (walkers.eta == as_float(eta)).all()
        assert_moments(walkers, eta, total, weighted, slack=1.3)
    assert (walkers.resampled > 0).all() == (resample_below == 0.95)


def test_weights_alone_carry_the_target():
    """Reweighting without moves is importance sampling: exact on the way up and down."""
    target, total, weighted = gamma_target(n=12)
    particles = evaluate(target, gamma_draws(np.random.default_rng(7), total, weighted, 20_000))
    for eta in (1.4, 0.7):
        log_weights = reweight(particles.log_weights, particles.risk, jnp.full(3, eta - 1.0))
        mu, var, _ = log_gamma_moments(eta * total, eta * weighted)
        got = (np.exp(log_weights) * particles.theta[0]).sum(1)
        assert (np.abs(got - mu) < 4 * np.sqrt(var / np.asarray(ess(log_weights)))).all()


@pytest.mark.parametrize("distance", [5.0, -0.99])
def test_step_leaves_the_wanted_effective_size(distance):
    target, total, weighted = gamma_target(n=12)
    particles = evaluate(target, gamma_draws(np.random.default_rng(7), total, weighted, M))
    uneven = particles.with_log_weights(reweight(particles.log_weights, particles.risk, jnp.full(3, 0.2)))
    for start in (particles, uneven):
        step = next_step(start, jnp.full(3, distance), 0.9)
        assert (jnp.sign(step) == np.sign(distance)).all()
        after = ess(reweight(start.log_weights, start.risk, step))
        np.testing.assert_allclose(after, 0.9 * ess(start.log_weights), rtol=2e-3)


def test_short_way_is_taken_in_one_step():
    target, total, weighted = gamma_target(n=12)
    particles = evaluate(target, gamma_draws(np.random.default_rng(7), total, weighted, 500))
    np.testing.assert_array_equal(next_step(particles, jnp.full(3, 1e-4), 0.9), jnp.full(3, 1e-4))


def test_cap_on_rungs_and_resuming(key):
    """A ladder in pieces is the ladder in one: rows wait where they are."""
    target, total, weighted = gamma_target(n=12)
    theta = gamma_draws(np.random.default_rng(7), total, weighted, 300)
    start = init_tempering(RWMH(), evaluate(target, theta), as_float(1.0))
    keys, eta = replicate_keys(key, 3), as_float(2.0)
    whole = temper_steps(keys, target, start, eta, ladder(), 1000)
    pieces = start
    while not (pieces.eta == eta).all():
        pieces = temper_steps(keys, target, pieces, eta, ladder(), 3)
        assert (pieces.steps <= whole.steps).all()
    np.testing.assert_array_equal(whole.particles.theta, pieces.particles.theta)
    assert (temper_steps(keys, target, start, eta, ladder(), 1).steps == 1).all()


def test_row_does_not_depend_on_the_others(key):
    target, total, weighted = gamma_target(n=12)
    theta = gamma_draws(np.random.default_rng(7), total, weighted, 300)
    keys, eta = replicate_keys(key, 3), as_float(2.0)
    many = temper_steps(
        keys, target, init_tempering(RWMH(), evaluate(target, theta), as_float(1.0)), eta, ladder(), 1000
    )
    one_target = target.replicate(1)
    one = init_tempering(RWMH(), evaluate(one_target, theta[:, 1:2]), as_float(1.0))
    one = temper_steps(keys[1:2], one_target, one, eta, ladder(), 1000)
    assert many.steps[1] == one.steps[0]
    np.testing.assert_allclose(many.particles.theta[:, 1], one.particles.theta[:, 0], rtol=1e-3)


@pytest.mark.parametrize("eta", [0.05, 3.0])
def test_start_from_the_prior(eta, key):
    target, total, weighted = gamma_target(n=12)
    assert_moments(temper_from_prior(key, target, eta, M), eta, total, weighted, slack=1.5)


def test_start_by_mcmc_forgets_a_start_elsewhere(key):
    """Particles of another posterior end up in this one, and say that they forgot."""
    target, total, weighted = gamma_target(n=12)
    elsewhere = gamma_draws(np.random.default_rng(7), total, weighted, M) + 1.0
    walkers, forgot = rejuvenate_until_mixed(key, target, evaluate(target, elsewhere), 2.0)
    assert forgot.all()
    assert_moments(walkers, 2.0, total, weighted, slack=1.3)


def test_start_by_mcmc_reports_rows_that_do_not_forget(key):
    target, total, weighted = gamma_target(n=12)
    theta = gamma_draws(np.random.default_rng(7), total, weighted, 500)
    _, forgot = rejuvenate_until_mixed(key, target, evaluate(target, theta), 1.0, max_moves=0)
    assert not forgot.any()


def test_a_few_restless_rows_go_on_alone_as_they_would_together(key, monkeypatch):
    """The same random numbers move them: what they come to is the same up to rounding, and the others stand still."""
    rng = np.random.default_rng(0)
    n_replicates, size = 30, 200
    target = make_target(
        cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=10.0)),
        (np.ones((16, 1)), rng.normal(size=16)),
        rng.multinomial(16, np.full(16, 1 / 16), size=n_replicates - 1),
        1,
    )
    # Some rows begin far away, and are not settled when the others are.
    theta = (
        rng.normal(size=(1, n_replicates, size)) + np.where(np.arange(n_replicates) % 10 == 3, 1e4, 0.0)[None, :, None]
    )
    begun = evaluate(target, jnp.asarray(theta, jnp.float32))
    together, alone = (
        (
            monkeypatch.setattr(starts, "_PATIENCE", patience),
            rejuvenate_until_mixed(key, target, begun, 1.0, max_moves=24, at_least=0),
        )[1]
        for patience in (10**9, 12)
    )
    assert not np.all(together[1])
    assert np.sum(together[1]) >= 10
    np.testing.assert_array_equal(together[1], alone[1])
    np.testing.assert_array_equal(together[0].moves, alone[0].moves)
    np.testing.assert_allclose(together[0].particles.theta, alone[0].particles.theta, rtol=1e-3, atol=1e-3)
