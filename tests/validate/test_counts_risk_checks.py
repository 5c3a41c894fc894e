"""Errors of risks that do not satisfy what a calibration relies on, before anything is sampled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb

Y = np.linspace(-1.0, 3.0, 12)


def run(risk, data=Y, prior=None, **options):
    model = cb.GibbsModel.from_risk(risk, prior or cb.priors.Normal(scale=2.0), dim=1, **options)
    return cb.calibrate(model, data, bootstrap=50, progress=False)


def until_convergence(theta, data, counts):
    start = counts @ jnp.square(data - theta[0])
    return jax.lax.while_loop(lambda v: v > 1e9, lambda v: v / 2, start)


def sorted_without_order(theta, data, counts):
    return counts @ jnp.abs(data - theta[0])


@pytest.mark.parametrize(
    ("risk", "error", "message"),
    [
        (lambda theta, data, counts: jnp.sum((data - theta[0]) ** 2), ValueError, "does not depend on the counts"),
        (lambda theta, data, counts: counts @ jnp.abs(data - theta[0]) / len(data) + data.mean(), ValueError, "zero"),
        (
            lambda theta, data, counts: counts @ (jnp.arange(1.0 * len(data)) * (data - theta[0]) ** 2),
            ValueError,
            "order",
        ),
        (lambda theta, data, counts: jnp.log(-counts @ (data - theta[0]) ** 2), ValueError, "risk.*is nan"),
        (lambda theta, data, counts: counts * (data - theta[0]) ** 2, ValueError, "must be a scalar; got shape"),
        (lambda theta, data, counts: counts @ np.abs(data - theta[0]), TypeError, "use jax.numpy instead of"),
        (lambda theta, data, counts: jnp.sqrt(counts).sum() * (data @ counts - theta[0]) ** 2, ValueError, "derivat"),
        (until_convergence, TypeError, "differentiable in the counts"),
    ],
)
def test_invalid_risk_is_an_error(risk, error, message):
    with pytest.raises(error, match=message):
        run(risk)


def test_prepared_data_must_keep_the_order_of_the_counts():
    with pytest.raises(ValueError, match="depends on"):
        run(sorted_without_order, prepare=np.sort)


def test_options_are_checked():
    with pytest.raises(TypeError, match="risk must be a function; got int"):
        cb.GibbsModel.from_risk(3, cb.priors.Normal(), dim=1)
    with pytest.raises(ValueError, match="dim, the number of parameters, is required"):
        cb.GibbsModel.from_risk(sorted_without_order, cb.priors.Normal())
    with pytest.raises(TypeError, match="define them as methods"):
        cb.GibbsModel.from_risk(cb.losses.Cox(), cb.priors.Normal(), dim=1, prepare=np.sort)
