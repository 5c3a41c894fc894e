"""The GPU's kernel, interpreted, against the scan."""

from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._core import risk_gpu
from calibayes._core.counts import PoissonSpec
from calibayes._core.risk_gpu import fused_risk, risk_in_chunks, suits
from calibayes._core.target import make_target

ROWS, SIZE = 5, 50
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


def target_of(loss, n=41):
    x, y = cb.datasets.heart_disease() if loss.margin else cb.datasets.median_regression(n)
    counts = np.random.default_rng(1).poisson(1, size=(ROWS - 1, n))
    return make_target(cb.GibbsModel(loss, cb.priors.Normal()), (x[:n], y[:n]), counts, x.shape[1])


def by_kernel(target, theta):
    with patch("calibayes._core.target.linear_risk", risk_in_chunks):
        return target.risk(theta)


@pytest.mark.parametrize("name", LOSSES)
def test_kernel_is_the_scan(interpreted, name):
    """Up to rounding, 50 particles filled up to 64; where the loss is infinite, only on rows that hold the datum."""
    target = target_of(LOSSES[name])
    theta = jnp.asarray(np.random.default_rng(0).normal(size=(target.dim, ROWS, SIZE)), float)
    expected, found = np.asarray(target.risk(theta)), np.asarray(by_kernel(target, theta))
    assert np.isfinite(expected).any()
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(expected))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-4)


def test_chunks(interpreted, monkeypatch):
    """Observations taken some at a time, the last chunk shorter; with counts drawn as they come."""
    monkeypatch.setattr(risk_gpu, "_AT_ONCE", 32)
    x, y = cb.datasets.median_regression(107)
    model = cb.GibbsModel(LOSSES["quantile"], cb.priors.Normal())
    target = make_target(model, (x, y), PoissonSpec(jax.random.key(0), ROWS - 1, 107), 2)
    theta = jnp.asarray(np.random.default_rng(0).normal(size=(2, ROWS, SIZE)), float)
    np.testing.assert_allclose(by_kernel(target, theta), target.risk(theta), rtol=1e-5, atol=2e-4)


def test_observations_are_split(interpreted, monkeypatch):
    """Between programs, unevenly: five rows with a tile each leave room for three shares of 14 blocks."""
    target = target_of(LOSSES["own"], 107)
    theta = jnp.asarray(np.random.default_rng(0).normal(size=(2, ROWS, SIZE)), float)
    expected = np.asarray(target.risk(theta))
    for programs in (1, 15):
        monkeypatch.setattr(risk_gpu, "_PROGRAMS", programs)
        found = np.asarray(by_kernel(target, theta))
        np.testing.assert_array_equal(np.isfinite(found), np.isfinite(expected))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=4e-4)


def test_what_suits(monkeypatch):
    """Not a processor, not a few particles, not a loss with operations or arrays that the kernel may not have."""
    theta = jnp.zeros((2, ROWS, SIZE))
    rho = LOSSES["quantile"].rho
    assert not suits(rho, theta)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert all(suits(loss.rho, theta) for loss in LOSSES.values())
    assert not suits(rho, theta[:, :, :1])
    assert not suits(rho, jnp.zeros((100, ROWS, SIZE)))
    assert not suits(lambda f, y: jax.lax.lgamma(jnp.abs(f - y)), theta)
    table = jnp.arange(3.0)
    assert not suits(lambda f, y: jnp.interp(f - y, table, table), theta)
