"""The risk by matrix products, which GPUs use with more than a few parameters, against the scan over blocks."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._core import risk
from calibayes._core.counts import PoissonSpec
from calibayes._core.target import make_target

B, SIZE = 5, 50
LOSSES = {
    "quantile": cb.losses.Quantile(0.3),
    "huber": cb.losses.Huber(),
    "hinge": cb.losses.Hinge(),
    "logistic": cb.losses.Logistic(),
    "own": cb.losses.Linear(lambda f, y: jnp.where(f > 3, jnp.inf, jnp.abs(y - f) ** 1.5)),
}


def make_loss_target(loss, n=41, counts=None):
    x, y = cb.datasets.heart_disease() if loss.margin else cb.datasets.median_regression(n)
    counts = np.random.default_rng(1).poisson(1, size=(B - 1, n)) if counts is None else counts
    return make_target(cb.GibbsModel(loss, cb.priors.Normal()), (x[:n], y[:n]), counts, x.shape[1])


def risks(target, monkeypatch, chunk):
    """Return the risk by the scan and by matrix products of chunks of observations."""
    monkeypatch.setattr(risk, "CONFIG", replace(risk.CONFIG, gpu_chunk=chunk))
    theta = jnp.asarray(np.random.default_rng(0).normal(size=(target.dim, B, SIZE)), float)
    relative = theta - target.reference[:, None, None]
    arguments = (target.loss, relative, target.data, target.reference_loss, target.counts)
    return np.asarray(risk.risk_by_scan(*arguments)), np.asarray(risk.risk_by_products(*arguments))


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("chunk", [256, 16])
def test_products_equal_the_scan(monkeypatch, name, chunk):
    """Up to rounding. Losses are infinite only in replicates that contain the observation."""
    expected, computed = risks(make_loss_target(LOSSES[name]), monkeypatch, chunk)
    assert np.isfinite(expected).any()
    np.testing.assert_array_equal(np.isfinite(computed), np.isfinite(expected))
    np.testing.assert_allclose(computed, expected, rtol=1e-5, atol=2e-4)


def test_products_of_drawn_counts(monkeypatch):
    """Counts are drawn when they are needed, for a number of observations that is not a multiple of the chunk."""
    target = make_loss_target(LOSSES["quantile"], 107, PoissonSpec(jax.random.key(0), B - 1, 107))
    expected, computed = risks(target, monkeypatch, 32)
    np.testing.assert_allclose(computed, expected, rtol=1e-5, atol=5e-4)
