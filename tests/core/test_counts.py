"""Counts that are drawn when they are needed equal stored counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes import resampling
from calibayes._backend.rng import replicate_keys
from calibayes._core.counts import DrawnCounts, PoissonSpec, StoredCounts, poisson_counts
from calibayes._core.target import make_target
from calibayes.bootstrap import Multinomial, Poisson
from calibayes.resampling import draw_counts

N, B = 41, 7
KEY = jax.random.key(3)
DATA = cb.datasets.median_regression(N)
MODEL = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))


@pytest.fixture
def stored():
    return np.asarray(Poisson(B).counts(KEY, N))


@pytest.mark.parametrize("length", [8, 16])
def test_drawn_counts_equal_stored_counts(stored, length):
    """With the data first and a padding of zeros; also for selected replicates."""
    counts = DrawnCounts.from_spec(PoissonSpec(KEY, B, N), length)
    expected = StoredCounts.from_array(stored, length)
    np.testing.assert_array_equal(counts.to_array(), expected.to_array())
    np.testing.assert_array_equal(counts.to_array()[:N, 0], 1)
    np.testing.assert_array_equal(counts.to_array()[N:], 0)
    indices = jnp.asarray([5, 0, 5, 2])
    np.testing.assert_array_equal(counts.select(indices).to_array(), expected.select(indices).to_array())


def test_count_depends_on_the_index_of_the_observation_only(stored):
    """Neither on the number of observations nor on the first observation of a block."""
    np.testing.assert_array_equal(Poisson(B).counts(KEY, N - 10), stored[:, : N - 10])
    np.testing.assert_array_equal(poisson_counts(replicate_keys(KEY, B), jnp.asarray(16), 8), stored[:, 16:24].T)


def test_counts_have_a_poisson_distribution():
    """Chi-squared test of 400,000 counts in 7 classes; with 6 degrees of freedom 27.9 has a p-value of 1e-4."""
    counts = np.asarray(Poisson(400).counts(KEY, 1000)).astype(int)
    observed = np.bincount(np.minimum(counts.ravel(), 6), minlength=7)
    share = np.exp(-1) / np.cumprod(np.maximum(np.arange(6), 1))
    expected = counts.size * np.append(share, 1 - share.sum())
    assert ((observed - expected) ** 2 / expected).sum() < 27.9
    # Adjacent observations, which share a call of the generator, and replicates are uncorrelated: the standard error
    # is 1 / sqrt(400,000) = 0.0016.
    for a, b in ((counts[:, 1:], counts[:, :-1]), (counts[1:], counts[:-1])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.008


def test_risk_of_drawn_counts_equals_that_of_stored_counts(stored):
    theta = jnp.asarray(np.random.default_rng(0).normal(size=(2, B + 1, 30)), float)
    targets = [make_target(MODEL, DATA, counts, 2) for counts in (stored, PoissonSpec(KEY, B, N))]
    np.testing.assert_array_equal(*[np.asarray(target.risk(theta)) for target in targets])


def test_calibration_with_drawn_counts_equals_that_with_stored_counts(monkeypatch):
    """Bit for bit, also on new replicates; but the result holds no counts."""
    options = {"sampler": cb.Transport(n_particles=200), "seed": 1, "progress": False}
    expected = cb.calibrate(MODEL, DATA, bootstrap=Poisson(100), **options)
    monkeypatch.setattr(resampling, "CONFIG", resampling.ResamplingConfig(max_stored_counts=100))
    # A number of replicates means the Poisson bootstrap if multinomial counts are too many to be stored.
    drawn = cb.calibrate(MODEL, DATA, bootstrap=100, **options)
    assert drawn.eta == expected.eta
    np.testing.assert_array_equal(drawn.draws, expected.draws)
    assert expected.counts is not None
    assert drawn.counts is None
    assert drawn.validate() == expected.validate()


def test_only_large_poisson_bootstraps_are_not_stored():
    assert isinstance(draw_counts(Multinomial(10), KEY, N), np.ndarray)
    assert isinstance(draw_counts(Poisson(10), KEY, N), np.ndarray)
    assert not isinstance(draw_counts(Poisson(200), KEY, 10**6), np.ndarray)
