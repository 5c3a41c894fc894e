"""The loss of `GibbsRegressor`: the default, a loss of the library, or a function of prediction and response."""

import jax.numpy as jnp
import pytest

import calibayes as cb
from calibayes.estimators import GibbsRegressor


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (None, cb.losses.Squared),
        (cb.losses.Absolute(), cb.losses.Absolute),
        (lambda prediction, y: jnp.abs(prediction - y), cb.losses.Linear),
    ],
    ids=["default", "library", "function"],
)
def test_loss_of_a_regressor(loss, expected):
    assert type(GibbsRegressor(loss=loss)._loss()) is expected
