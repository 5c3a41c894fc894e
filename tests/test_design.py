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
    assert plain.scale[0] == pytest.approx(10 * y.std())
    labels = Design.of(COLUMNS).prior(cb.losses.Hinge(), np.array([-1.0, 1.0, 1.0]))
    assert (labels.loc[0], labels.scale[0]) == (0, 10)


def test_a_constant_column_has_a_prior():
    design = Design.of(np.ones((5, 1)))
    assert np.isfinite(design.prior(cb.losses.Squared(), np.arange(5.0)).scale).all()
