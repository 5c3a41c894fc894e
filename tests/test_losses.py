"""Losses against their formulas, written piecewise in NumPy."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes import losses

# Residuals y - prediction of both signs and of different sizes, so that a sign error is detected.
PREDICTION = np.array([-3.0, -0.4, 0.0, 0.3, 1.1, 2.5, 7.0])
Y_REAL = np.array([1.5, -0.5, 0.2, 4.0, 1.0, -2.0, 6.5])
Y_SIGN = np.array([1.0, -1.0, 1.0, 1.0, -1.0, 1.0, -1.0])


def check(residual, tau):
    return np.where(residual >= 0, tau * residual, (1 - tau) * -residual)


def huber(residual, delta):
    size = np.abs(residual)
    return np.where(size <= delta, residual**2 / 2, delta * size - delta**2 / 2)


def expectile(residual, tau):
    return np.where(residual >= 0, tau, 1 - tau) * residual**2


CASES = {
    "quantile 0.2": (losses.Quantile(0.2), Y_REAL, lambda f, y: check(y - f, 0.2)),
    "quantile 0.7": (losses.Quantile(0.7), Y_REAL, lambda f, y: check(y - f, 0.7)),
    "absolute": (losses.Absolute(), Y_REAL, lambda f, y: np.abs(f - y)),
    "squared": (losses.Squared(), Y_REAL, lambda f, y: (f - y) ** 2 / 2),
    "huber": (losses.Huber(), Y_REAL, lambda f, y: huber(y - f, 1.345)),
    "huber 0.5": (losses.Huber(0.5), Y_REAL, lambda f, y: huber(y - f, 0.5)),
    "expectile 0.2": (losses.Expectile(0.2), Y_REAL, lambda f, y: expectile(y - f, 0.2)),
    "hinge": (losses.Hinge(), Y_SIGN, lambda f, y: np.where(y * f < 1, 2 - 2 * y * f, 0.0)),
    "logistic": (losses.Logistic(), Y_SIGN, lambda f, y: np.log1p(np.exp(-y * f))),
}


def rho(loss, prediction, y):
    return np.array([loss.rho(jnp.float32(f), jnp.float32(v)) for f, v in zip(prediction, y, strict=True)])


@pytest.mark.parametrize("name", CASES)
def test_rho_matches_formula(name):
    """Tolerance: float32 rounding, a few times 6e-8 of a loss of order ten."""
    loss, y, formula = CASES[name]
    np.testing.assert_allclose(rho(loss, PREDICTION, y), formula(PREDICTION, y), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_decomposition_sums_to_the_loss(name):
    loss, y, formula = CASES[name]
    nonlinear, slope = loss.decompose()
    values = np.array([nonlinear(jnp.float32(f), jnp.float32(v)) for f, v in zip(PREDICTION, y, strict=True)])
    slope = 0.0 if slope is None else float(slope)
    np.testing.assert_allclose(values + slope * (PREDICTION - y), formula(PREDICTION, y), rtol=1e-5, atol=1e-5)


def test_subclass_with_its_own_rho_does_not_inherit_the_decomposition():
    class Twice(losses.Quantile):
        def rho(self, prediction, y):
            return 2 * super().rho(prediction, y)

    nonlinear, slope = Twice(0.2).decompose()
    assert slope is None
    assert float(nonlinear(jnp.float32(0.0), jnp.float32(3.0))) == pytest.approx(1.2)


@pytest.mark.parametrize("name", CASES)
def test_rho_is_elementwise_in_the_predictions(name):
    """One response and a block of predictions: the losses have the shape of the predictions."""
    loss, y, formula = CASES[name]
    block = PREDICTION[:6].reshape(2, 3)
    values = loss.rho(jnp.asarray(block, float), jnp.float32(y[0]))
    np.testing.assert_allclose(values, formula(block, y[0]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[0].location])
def test_location_losses_depend_on_the_residual_alone(name):
    loss, y, _ = CASES[name]
    np.testing.assert_allclose(rho(loss, PREDICTION + 4, y + 4), rho(loss, PREDICTION, y), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("loss", [losses.Hinge(), losses.Logistic()])
def test_margin_losses_are_not_location_losses(loss):
    """Location losses allow y to be centred, which would destroy labels."""
    assert not loss.location


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_huber_is_continuous_with_continuous_slope(sign):
    delta, step = 0.8, 1e-3
    residuals = sign * np.array([delta - step, delta, delta + step])
    below, middle, above = rho(losses.Huber(delta), np.zeros(3), residuals)
    # The slope is delta on both sides, up to the curvature inside (step / 2) and rounding (1e-7 / step).
    assert middle - below == pytest.approx(delta * step, abs=step * (step / 2 + 3e-4))
    assert above - middle == pytest.approx(delta * step, abs=step * 3e-4)


def test_special_cases_agree():
    np.testing.assert_allclose(
        rho(losses.Expectile(0.5), PREDICTION, Y_REAL), rho(losses.Squared(), PREDICTION, Y_REAL), rtol=1e-6
    )
    np.testing.assert_allclose(
        2 * rho(losses.Quantile(0.5), PREDICTION, Y_REAL), rho(losses.Absolute(), PREDICTION, Y_REAL), rtol=1e-6
    )
    assert losses.Hinge().rho(jnp.float32(0.0), jnp.float32(1.0)) == 2
    # With a large delta, Huber is Squared.
    np.testing.assert_allclose(
        rho(losses.Huber(100.0), PREDICTION, Y_REAL), rho(losses.Squared(), PREDICTION, Y_REAL), rtol=1e-6
    )


def test_logistic_does_not_overflow_at_large_margins():
    value = losses.Logistic().rho(jnp.float32(-1e4), jnp.float32(1.0))
    assert value == pytest.approx(1e4)


def test_linear_loss_of_a_function_matches_the_builtin_loss():
    loss = losses.Linear(lambda prediction, y: jnp.where(y < prediction, -0.8, 0.2) * (y - prediction))
    np.testing.assert_allclose(
        rho(loss, PREDICTION, Y_REAL), rho(losses.Quantile(0.2), PREDICTION, Y_REAL), rtol=1e-6, atol=1e-7
    )
    block = jnp.asarray(PREDICTION[:6].reshape(2, 3), float)
    np.testing.assert_allclose(loss.rho(block, jnp.float32(0.5)), check(0.5 - np.asarray(block), 0.2), rtol=1e-6)


def test_function_of_a_linear_loss_receives_scalars():
    shapes = []

    def fn(prediction, y):
        shapes.append((prediction.shape, y.shape))
        return jnp.abs(prediction - y)

    losses.Linear(fn).rho(jnp.zeros((2, 3)), jnp.zeros(()))
    assert set(shapes) == {((), ())}


@pytest.mark.parametrize("kind", [losses.Quantile, losses.Expectile])
@pytest.mark.parametrize("tau", [0.0, 1.0, -0.1, 1.5, np.nan])
def test_tau_must_be_between_0_and_1(kind, tau):
    with pytest.raises(ValueError, match="tau must be a number between 0 and 1"):
        kind(tau)


@pytest.mark.parametrize("delta", [0.0, -1.0, np.nan])
def test_delta_must_be_positive(delta):
    with pytest.raises(ValueError, match="delta must be one positive and finite number"):
        losses.Huber(delta)


@pytest.mark.parametrize("loss", [losses.Hinge(), losses.Logistic()])
def test_margin_losses_require_labels_of_plus_or_minus_one(loss):
    name = type(loss).__name__
    with pytest.raises(ValueError, match=rf"y must be -1 or 1 for {name}; got 0, 1\. Use 2 \* y - 1\."):
        loss.check(np.array([0.0, 1.0, 1.0]))
    with pytest.raises(ValueError, match=rf"y must be -1 or 1 for {name}; got 1, 2\. Recode"):
        loss.check(np.array([1.0, 2.0, 1.0]))
    loss.check(np.array([1.0, -1.0, -1.0]))


@pytest.mark.parametrize("loss", [losses.Quantile(0.5), losses.Squared()])
def test_location_losses_accept_any_y(loss):
    loss.check(np.array([0.0, 1.0, 2.5]))


@pytest.mark.parametrize(("kind", "values"), [("Quantile", (0.2, 0.9)), ("Expectile", (0.2, 0.9)), ("Huber", (1, 2.5))])
def test_new_parameter_value_does_not_recompile(kind, values):
    traces = []

    @eqx.filter_jit
    def apply(loss):
        traces.append(1)
        return loss.rho(jnp.float32(0.0), jnp.float32(3.0))

    first, second = (float(apply(getattr(cb.losses, kind)(value))) for value in values)
    assert first != second
    assert len(traces) == 1


def test_generic_loss_of_a_log_likelihood_is_its_negative():
    fn = lambda theta, datum: theta[0] * datum
    theta, datum = jnp.array([3.0]), jnp.float32(-2.0)
    assert losses.Generic(fn)(theta, datum) == -6
    assert losses.Generic(fn, sign=-1)(theta, datum) == 6
