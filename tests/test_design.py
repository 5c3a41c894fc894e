"""The linear model's matrix and prior, whatever the units."""

import numpy as np
import pytest

import calibayes as cb
from calibayes.design import Design

COLUMNS = np.array([[1990.0, 3.0], [2000.0, 5.0], [2010.0, 10.0]])


def test_slopes_are_those_of_the_columns_as_they_were():
    design = Design.of(COLUMNS)
    matrix = design.matrix(COLUMNS)
    np.testing.assert_array_equal(matrix[:, 0], 1)
    np.testing.assert_allclose(matrix[:, 1:].mean(0), 0, atol=1e-12)
    theta = np.array([7.0, 2.0, -1.0])
    intercept = theta[0] - design.means @ theta[1:]
    np.testing.assert_allclose(matrix @ theta, intercept + COLUMNS @ theta[1:])
    # New rows are centred as the old ones were.
    np.testing.assert_allclose(design.matrix(COLUMNS[:1]), matrix[:1])
    assert design.names(["a", "b"]) == ["intercept", "a", "b"]


def test_without_an_intercept_nothing_is_centred():
    design = Design.of(COLUMNS, intercept=False)
    np.testing.assert_array_equal(design.matrix(COLUMNS), COLUMNS)
    assert design.names(["a", "b"]) == ["a", "b"]
    assert design.prior(cb.losses.Absolute(), COLUMNS[:, 0]).scale.shape == (2,)


def test_prior_follows_the_units():
    y = np.array([100.0, 300.0, 200.0])
    plain = Design.of(COLUMNS).prior(cb.losses.Quantile(0.5), y)
    scaled = Design.of(1000 * COLUMNS).prior(cb.losses.Quantile(0.5), y)
    np.testing.assert_allclose(scaled.scale[1:], plain.scale[1:] / 1000, rtol=1e-5)
    assert plain.loc[0] == 200
    assert plain.scale[0] == pytest.approx(10 * y.std(), rel=1e-5)
    labels = Design.of(COLUMNS).prior(cb.losses.Hinge(), np.array([-1.0, 1.0, 1.0]))
    assert (labels.loc[0], labels.scale[0]) == (0, 10)


def test_a_constant_column_has_a_prior():
    design = Design.of(np.ones((5, 1)))
    assert np.isfinite(design.prior(cb.losses.Squared(), np.arange(5.0)).scale).all()


def test_prior_without_an_intercept_reaches_what_is_far_from_zero():
    """With a column of ones of one's own, the coefficient of which is 1,000: it is well within the prior."""
    columns = np.column_stack([np.ones(50), np.linspace(-1, 1, 50)])
    y = 1000 + columns[:, 1]
    scale = np.asarray(Design.of(columns, intercept=False).prior(cb.losses.Quantile(0.5), y).scale)
    assert scale[0] == pytest.approx(10 * 1000, rel=0.01)


def test_a_constant_that_floats_round_is_constant():
    assert Design.of(np.full((80, 1), 0.1)).spreads[0] == 1
