"""Checks of initial draws, and of the loss at them."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import calibayes as cb
from calibayes._core.target import make_target
from calibayes._validate.start import check_initial_draws, check_initial_risk
from calibayes.samplers.initial import init_at_prior, start_at_prior


def log_of_first(theta, datum):
    """Loss that is NaN for negative parameters."""
    return jnp.log(theta[0]) + jnp.abs(datum - theta[0])


def test_draws_of_complex_numbers_or_text_are_rejected(monkeypatch):
    """Conversion to float would discard the imaginary part."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    for draws in (np.zeros((200, 2), complex), np.full((200, 2), "a")):
        with pytest.raises(TypeError, match="draws must hold numbers"):
            check_initial_draws(draws, cb.priors.Normal(), 2)


def test_draws_at_which_the_loss_is_not_finite_are_rejected():
    model = cb.GibbsModel(log_of_first, cb.priors.Normal(), dim=1)
    target = make_target(model, np.arange(5.0), np.ones((3, 5)), 1)
    with pytest.raises(ValueError, match="infinite or NaN at 1 of 3 draws, which therefore are not draws of the"):
        check_initial_risk(target, np.array([[1.0], [-1.0], [2.0]]))


def test_prior_under_which_the_loss_is_nowhere_finite_is_rejected():
    model = cb.GibbsModel(log_of_first, cb.priors.Uniform(-2.0, -1.0), dim=1)
    target = make_target(model, np.arange(5.0), np.ones((3, 5)), 1)
    with pytest.raises(ValueError, match=r"all but 0 of 50 draws of the prior\. Choose a prior nearer"):
        init_at_prior(jax.random.key(0), target, 50)


def test_distant_reference_is_moved_to_the_best_draw():
    """Risks must stay small numbers; a reference with moderate risks is kept."""
    y = np.full(5, 1e3)
    target = make_target(
        cb.GibbsModel(lambda theta, datum: jnp.square(datum - theta[0]), cb.priors.Normal(scale=1e3), dim=1),
        y,
        np.ones((3, 5)),
        1,
    )
    draws = np.array([[0.0], [999.0], [500.0]])
    moved, on_device = check_initial_risk(target, draws)
    assert float(target.reference[0]) == 0.0
    assert float(moved.reference[0]) == 999.0
    np.testing.assert_array_equal(on_device, draws)
    kept, _ = check_initial_risk(moved, np.array([[999.0], [998.0]]))
    assert float(kept.reference[0]) == 999.0


def test_distant_reference_is_moved_to_the_best_draw_of_the_prior():
    model = cb.GibbsModel(lambda theta, datum: jnp.square(datum - theta[0]), cb.priors.Normal(scale=1e3), dim=1)
    target = make_target(model, np.full(50, 1e3), np.ones((3, 50)), 1)
    _, moved, state = start_at_prior(jax.random.key(0), target, 200)
    assert float(moved.reference[0]) == pytest.approx(1e3, abs=100)
    assert float(state.particles.risk.min()) == pytest.approx(0, abs=1)
    _, kept, _ = start_at_prior(jax.random.key(0), moved, 200)
    assert kept is moved
