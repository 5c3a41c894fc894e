"""The GPU kernel, in Pallas' interpreter, against the scan."""

from dataclasses import replace
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._core import risk_gpu
from calibayes._core.counts import PoissonSpec
from calibayes._core.risk_gpu import fused_risk, is_supported, risk_by_kernel
from calibayes._core.target import make_target

B, SIZE = 5, 50
LOSSES = {
    "quantile": cb.losses.Quantile(0.3),
    "huber": cb.losses.Huber(),
    "expectile": cb.losses.Expectile(0.2),
    "hinge": cb.losses.Hinge(),
    "logistic": cb.losses.Logistic(),
    "own": cb.losses.Linear(lambda f, y: jnp.where(f > 3, jnp.inf, jnp.abs(y - f) ** 1.5)),
}


@pytest.fixture
def interpreted(monkeypatch):
    monkeypatch.setattr(risk_gpu, "fused_risk", lambda *args: fused_risk(*args, interpret=True))


def make_loss_target(loss, n=41):
    x, y = cb.datasets.heart_disease() if loss.margin else cb.datasets.median_regression(n)
    counts = np.random.default_rng(1).poisson(1, size=(B - 1, n))
    return make_target(cb.GibbsModel(loss, cb.priors.Normal()), (x[:n], y[:n]), counts, x.shape[1])


def kernel_risk(target, theta):
    with patch("calibayes._core.target.linear_risk", risk_by_kernel):
        return target.risk(theta)


@pytest.mark.parametrize("name", LOSSES)
def test_kernel_equals_the_scan(interpreted, name):
    """Up to rounding, with 50 particles padded to 64. Losses are infinite only in replicates with the observation."""
    target = make_loss_target(LOSSES[name])
    theta = jnp.asarray(np.random.default_rng(0).normal(size=(target.dim, B, SIZE)), float)
    expected, computed = np.asarray(target.risk(theta)), np.asarray(kernel_risk(target, theta))
    assert np.isfinite(expected).any()
    np.testing.assert_array_equal(np.isfinite(computed), np.isfinite(expected))
    np.testing.assert_allclose(computed, expected, rtol=1e-5, atol=2e-4)


def test_observations_in_several_calls(interpreted, monkeypatch):
    """The last call has fewer observations; counts are drawn when they are needed."""
    monkeypatch.setattr(risk_gpu, "CONFIG", replace(risk_gpu.CONFIG, observations_per_call=32))
    x, y = cb.datasets.median_regression(107)
    model = cb.GibbsModel(LOSSES["quantile"], cb.priors.Normal())
    target = make_target(model, (x, y), PoissonSpec(jax.random.key(0), B - 1, 107), 2)
    theta = jnp.asarray(np.random.default_rng(0).normal(size=(2, B, SIZE)), float)
    np.testing.assert_allclose(kernel_risk(target, theta), target.risk(theta), rtol=1e-5, atol=2e-4)


def test_observations_divided_between_programs(interpreted, monkeypatch):
    """Unevenly: with 15 programs and one tile for each of five replicates, 14 steps are divided into three parts."""
    target = make_loss_target(LOSSES["own"], 107)
    theta = jnp.asarray(np.random.default_rng(0).normal(size=(2, B, SIZE)), float)
    expected = np.asarray(target.risk(theta))
    for programs in (1, 15):
        monkeypatch.setattr(risk_gpu, "CONFIG", replace(risk_gpu.CONFIG, target_programs=programs))
        computed = np.asarray(kernel_risk(target, theta))
        np.testing.assert_array_equal(np.isfinite(computed), np.isfinite(expected))
        np.testing.assert_allclose(computed, expected, rtol=1e-5, atol=4e-4)


def test_kernel_supports_simple_losses_of_many_particles_on_a_gpu(monkeypatch):
    """Not on a CPU, nor for few particles, many parameters, or losses with other operations or captured arrays."""
    theta = jnp.zeros((2, B, SIZE))
    rho = LOSSES["quantile"].rho
    assert not is_supported(rho, theta)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert all(is_supported(loss.rho, theta) for loss in LOSSES.values())
    assert is_supported(rho, theta[:, :, :1])
    assert not is_supported(rho, jnp.zeros((100, B, SIZE)))
    assert not is_supported(lambda f, y: jax.lax.lgamma(jnp.abs(f - y)), theta)
    table = jnp.arange(3.0)
    assert not is_supported(lambda f, y: jnp.interp(f - y, table, table), theta)
