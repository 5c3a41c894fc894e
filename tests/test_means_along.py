"""The means to be covered move with eta, also where they are found by the program that asks for them."""

import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._core.target import evaluate, make_target
from calibayes.solve.curve import local_curve
from calibayes.solve.estimate import points_along

ETAS = np.array([1.2, 2.0, 3.2])


@pytest.mark.parametrize("region", [cb.regions.Interval(0), cb.regions.HPD()], ids=["interval", "hpd"])
def test_levels_of_means_are_those_of_the_points_they_are(region, key):
    """A skewed posterior that the particles are not of, whose mean moves as they are reweighted."""
    y = np.random.default_rng(0).exponential(size=20)
    model = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=0.5))
    counts = np.random.default_rng(2).multinomial(20, np.full(20, 0.05), size=30)
    target = make_target(model, (np.ones((20, 1)), y), counts, 1)
    theta = np.random.default_rng(1).gamma(2.0, 0.5, (1, target.n_replicates, 500))
    rows = evaluate(target, jnp.asarray(theta, float))
    data = rows.replicate(0)
    curve = lambda points: local_curve(target, [(data, rows)], 2.0, ETAS, region, points, 0.95).critical_levels
    by_points = curve(lambda data, etas: points_along("mean", key, target, data, 2.0, etas))
    np.testing.assert_allclose(curve(lambda data, etas: None), by_points, atol=1e-5)
    standing = points_along("mean", key, target, data, 2.0, np.full(3, 2.0))
    assert np.abs(curve(lambda data, etas: standing) - by_points)[[0, 2]].mean() > 0.02
