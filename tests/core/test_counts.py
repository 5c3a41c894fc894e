"""Counts drawn where they are needed are those that would be stored."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes import bootstrap
from calibayes._backend.rng import replicate_keys
from calibayes._core.counts import DrawnCounts, PoissonSpec, StoredCounts, poisson_counts
from calibayes._core.target import make_target
from calibayes.bootstrap import Multinomial, Poisson, draw_counts

N, ROWS = 41, 7
KEY = jax.random.key(3)
DATA = cb.datasets.median_regression(N)
MODEL = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))


@pytest.fixture
def stored():
    return np.asarray(Poisson(ROWS).counts(KEY, N))


@pytest.mark.parametrize("length", [8, 16])
def test_drawn_is_stored(stored, length):
    """Block by block, the data first, zero beyond the last observation; also of some rows in another order."""
    counts = DrawnCounts.from_spec(PoissonSpec(KEY, ROWS, N), length)
    expected = StoredCounts.from_array(stored, length)
    np.testing.assert_array_equal(counts.to_array(), expected.to_array())
    np.testing.assert_array_equal(counts.to_array()[:N, 0], 1)
    np.testing.assert_array_equal(counts.to_array()[N:], 0)
    some = jnp.asarray([5, 0, 5, 2])
    np.testing.assert_array_equal(counts.select(some).to_array(), expected.select(some).to_array())
    np.testing.assert_allclose(counts.totals(), [N, *stored.sum(1)])


def test_counts_follow_from_the_observation(stored):
    """What an observation counts does not depend on how many there are, nor on where a block begins."""
    np.testing.assert_array_equal(Poisson(ROWS).counts(KEY, N - 10), stored[:, : N - 10])
    np.testing.assert_array_equal(poisson_counts(replicate_keys(KEY, ROWS), jnp.asarray(16), 8), stored[:, 16:24].T)


def test_poisson_is_poisson():
    """Chi-squared over 400,000 counts, 0 to 5 and more; 6 degrees of freedom, at most 27.9 at one in 10,000."""
    counts = np.asarray(Poisson(400).counts(KEY, 1000)).astype(int)
    found = np.bincount(np.minimum(counts.ravel(), 6), minlength=7)
    share = np.exp(-1) / np.cumprod(np.maximum(np.arange(6), 1))
    expected = counts.size * np.append(share, 1 - share.sum())
    assert ((found - expected) ** 2 / expected).sum() < 27.9
    # Neighbours, which share a word of the generator, and rows are uncorrelated: 1 / sqrt(400,000) is 0.0016.
    for a, b in ((counts[:, 1:], counts[:, :-1]), (counts[1:], counts[:-1])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.008


def test_the_risk_is_the_same(stored):
    theta = jnp.asarray(np.random.default_rng(0).normal(size=(2, ROWS + 1, 30)), float)
    targets = [make_target(MODEL, DATA, rows, 2) for rows in (stored, PoissonSpec(KEY, ROWS, N))]
    np.testing.assert_array_equal(*[np.asarray(target.risk(theta)) for target in targets])


def test_calibration_by_drawn_counts(monkeypatch):
    """To the last digit, but that there is nothing to look at afterwards; and fresh rows are drawn likewise."""
    options = {"sampler": cb.Transport(n_particles=200), "seed": 1, "progress": False}
    expected = cb.calibrate(MODEL, DATA, bootstrap=Poisson(100), **options)
    monkeypatch.setattr(bootstrap, "CONFIG", bootstrap.BootstrapConfig(max_stored_counts=100))
    # A number of rows stands for Poisson's where the multinomial's would have to be stored.
    found = cb.calibrate(MODEL, DATA, bootstrap=100, **options)
    assert found.eta == expected.eta
    np.testing.assert_array_equal(found.draws, expected.draws)
    assert expected.counts is not None
    assert found.counts is None
    assert found.validate() == expected.validate()


def test_others_are_stored():
    assert isinstance(draw_counts(Multinomial(10), KEY, N), np.ndarray)
    assert isinstance(draw_counts(Poisson(10), KEY, N), np.ndarray)
    assert not isinstance(draw_counts(Poisson(200), KEY, 10**6), np.ndarray)
