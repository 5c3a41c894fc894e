"""Design matrix and default prior of a linear model do not depend on the units."""

import numpy as np
import pytest

import calibayes as cb
from calibayes.design import Design

COLUMNS = np.array([[1990.0, 3.0], [2000.0, 5.0], [2010.0, 10.0]])


def test_centring_preserves_the_slopes():
    design = Design.from_columns(COLUMNS)
    matrix = design.matrix(COLUMNS)
    np.testing.assert_array_equal(matrix[:, 0], 1)
    np.testing.assert_allclose(matrix[:, 1:].mean(0), 0, atol=1e-12)
    theta = np.array([7.0, 2.0, -1.0])
    intercept = theta[0] - design.means @ theta[1:]
    np.testing.assert_allclose(matrix @ theta, intercept + COLUMNS @ theta[1:])
    # New rows are centred by the means of the original columns.
    np.testing.assert_allclose(design.matrix(COLUMNS[:1]), matrix[:1])
    assert design.names(["a", "b"]) == ["intercept", "a", "b"]


def test_columns_are_not_centred_without_intercept():
    design = Design.from_columns(COLUMNS, intercept=False)
    np.testing.assert_array_equal(design.matrix(COLUMNS), COLUMNS)
    assert design.names(["a", "b"]) == ["a", "b"]
    assert design.prior(cb.losses.Absolute(), COLUMNS[:, 0]).scale.shape == (2,)


@pytest.mark.parametrize("weights", [None, [1, 2, 1], [0.5, 1.5, 1.0]])
def test_model_without_columns_has_an_intercept_only(weights):
    design = Design.from_columns(np.zeros((3, 0)), weights=weights)
    np.testing.assert_array_equal(design.matrix(np.zeros((3, 0))), np.ones((3, 1)))
    assert design.names([]) == ["intercept"]


def test_rows_of_weight_zero_do_not_make_a_column_vary():
    """A prior for the coefficient would have an infinite scale."""
    columns, y = np.array([[1.0], [1.0], [5.0]]), np.array([2.0, 2.0, 9.0])
    design = Design.from_columns(columns, weights=[1, 1, 0])
    np.testing.assert_array_equal(design.spreads, 1)
    np.testing.assert_array_equal(design.prior(cb.losses.Squared(), y).scale, 10)


def test_prior_scale_follows_the_units():
    y = np.array([100.0, 300.0, 200.0])
    plain = Design.from_columns(COLUMNS).prior(cb.losses.Quantile(0.5), y)
    scaled = Design.from_columns(1000 * COLUMNS).prior(cb.losses.Quantile(0.5), y)
    np.testing.assert_allclose(scaled.scale[1:], plain.scale[1:] / 1000, rtol=1e-5)
    assert plain.loc[0] == 200
    assert plain.scale[0] == pytest.approx(10 * y.std(), rel=1e-5)
    labels = Design.from_columns(COLUMNS).prior(cb.losses.Hinge(), np.array([-1.0, 1.0, 1.0]))
    assert (labels.loc[0], labels.scale[0]) == (0, 10)


def test_prior_of_a_constant_column_is_finite():
    design = Design.from_columns(np.ones((5, 1)))
    assert np.isfinite(design.prior(cb.losses.Squared(), np.arange(5.0)).scale).all()


def test_prior_without_intercept_covers_large_coefficients():
    """A column of ones in the data has the coefficient 1,000, which is well within the prior."""
    columns = np.column_stack([np.ones(50), np.linspace(-1, 1, 50)])
    y = 1000 + columns[:, 1]
    scale = np.asarray(Design.from_columns(columns, intercept=False).prior(cb.losses.Quantile(0.5), y).scale)
    assert scale[0] == pytest.approx(10 * 1000, rel=0.01)


def test_constant_column_is_detected_despite_rounding():
    assert Design.from_columns(np.full((80, 1), 0.1)).spreads[0] == 1


def test_column_with_the_name_of_the_intercept_is_an_error():
    assert Design.from_columns(COLUMNS, intercept=False).names(["a", "intercept"]) == ["a", "intercept"]
    with pytest.raises(
        ValueError, match=r"a column is called 'intercept'.*Rename the column, or fit without an intercept"
    ):
        Design.from_columns(COLUMNS).names(["a", "intercept"])


def test_threshold_of_hubers_loss_is_that_of_repeated_rows():
    """Most residuals are equal, so that their median absolute deviation is zero."""
    weights, y = np.array([20, 20, 1, 1]), np.array([0.0, 0.0, 1.0, 9.0])
    weighted = Design.from_columns(np.zeros((4, 0)), weights=weights).default_huber_delta(np.zeros((4, 0)), y)
    repeated = Design.from_columns(np.zeros((42, 0))).default_huber_delta(np.zeros((42, 0)), np.repeat(y, weights))
    assert weighted == pytest.approx(repeated)
