"""Rejuvenation until mixed: particles forget their start, and replicates that do not are reported."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np

import calibayes as cb
from calibayes._core.target import evaluate, make_target
from calibayes.samplers import mixing
from calibayes.samplers.mixing import rejuvenate_until_mixed
from targets import assert_log_gamma_moments, gamma_draws, gamma_target

M = 4000


def test_particles_forget_a_distant_start(key):
    """Particles of another posterior reach this one, and are reported as mixed."""
    target, total, weighted = gamma_target(n=12)
    distant = gamma_draws(np.random.default_rng(7), total, weighted, M) + 1.0
    state, mixed = rejuvenate_until_mixed(key, target, evaluate(target, distant), 2.0)
    assert mixed.all()
    assert_log_gamma_moments(state.particles, 2.0, total, weighted, inflation=1.3)


def test_unmixed_replicates_are_reported(key):
    target, total, weighted = gamma_target(n=12)
    theta = gamma_draws(np.random.default_rng(7), total, weighted, 500)
    _, mixed = rejuvenate_until_mixed(key, target, evaluate(target, theta), 1.0, max_moves=0)
    assert not mixed.any()


def test_last_replicates_continue_alone_as_they_would_together(key, monkeypatch):
    """They use the same random numbers, so the result is the same up to rounding, and the others do not move."""
    rng = np.random.default_rng(0)
    n_replicates, size = 30, 200
    target = make_target(
        cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=10.0)),
        (np.ones((16, 1)), rng.normal(size=16)),
        rng.multinomial(16, np.full(16, 1 / 16), size=n_replicates - 1),
        1,
    )
    # Some replicates start far away, and have not mixed when the others have.
    offset = np.where(np.arange(n_replicates) % 10 == 3, 1e4, 0.0)
    theta = rng.normal(size=(1, n_replicates, size)) + offset[None, :, None]
    start = evaluate(target, jnp.asarray(theta, jnp.float32))

    def run(moves_before_batching):
        monkeypatch.setattr(mixing, "CONFIG", replace(mixing.CONFIG, moves_before_batching=moves_before_batching))
        return rejuvenate_until_mixed(key, target, start, 1.0, max_moves=24, min_moves=0)

    (together, together_mixed), (alone, alone_mixed) = run(10**9), run(12)
    assert not np.all(together_mixed)
    assert np.sum(together_mixed) >= 10
    np.testing.assert_array_equal(together_mixed, alone_mixed)
    np.testing.assert_array_equal(together.moves, alone.moves)
    np.testing.assert_allclose(together.particles.theta, alone.particles.theta, rtol=1e-3, atol=1e-3)


def test_moves_end_early_between_separate_modes(key):
    """Two wells with a barrier of 100 between them: no particle crosses it, and 2,000 moves are not made."""
    target = make_target(
        cb.GibbsModel(lambda theta, y: jnp.square(jnp.abs(theta[0]) - y), cb.priors.Normal(scale=10.0), dim=1),
        np.full(4, 5.0),
        np.ones((1, 4)),
        1,
    )
    sign = np.where(np.arange(400) % 2, 1.0, -1.0)
    theta = 5 * sign + 0.2 * np.random.default_rng(0).normal(size=(1, 2, 400))
    state, mixed = rejuvenate_until_mixed(key, target, evaluate(target, jnp.asarray(theta, jnp.float32)), 1.0)
    assert not mixed.any()
    assert np.max(state.moves) < 1000


def test_expected_moves_follow_a_geometric_decay():
    """Correlations that halve, that stay, that are forgotten, and of a test that started again."""

    def record(moves, correlations, start_moves):
        forgotten = np.array([False, False, True, False])
        return mixing._MixingRecord(np.array(correlations), np.full(4, moves), np.array(start_moves), forgotten)

    first = record(100, [0.8, 0.8, 0.05, 0.8], [0, 0, 0, 0])
    second = record(200, [0.4, 0.8, 0.05, 0.8], [0, 0, 0, 150])
    expected = mixing._expected_moves(first, second)
    np.testing.assert_allclose(expected, [200 + 100 * np.log2(4), np.inf, 0.0, 0.0])
