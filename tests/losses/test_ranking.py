"""Areas under the ROC curve against sums over pairs, DeLong's variance and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._core.counts_risk import scores_of
from calibayes._core.sandwich import influences
from calibayes._core.target import evaluate, make_target

N = 60


def make_marker(seed=0, n=N):
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=n)
    return np.round(rng.normal(size=n) + y, 1), y


def area_of_pairs(marker, y, counts):
    """Return the share of pairs in the right order, ties counted half, and the components of DeLong's variance."""
    order = (marker[:, None] > marker) + 0.5 * (marker[:, None] == marker)
    pairs = np.outer(counts * (y == 1), counts * (y == 0))
    area = (order * pairs).sum() / pairs.sum()
    positive = (order * (counts * (y == 0))).sum(1) / (counts * (y == 0)).sum()
    negative = (order * (counts * (y == 1))[:, None]).sum(0) / (counts * (y == 1)).sum()
    return area, np.where(y == 1, positive, negative)


def test_area_is_the_share_of_ordered_pairs():
    marker, y = make_marker()
    counts = np.random.default_rng(1).poisson(1.0, N)
    assert abs(cb.losses.AUC.empirical(marker, y) - area_of_pairs(marker, y, np.ones(N))[0]) < 1e-6
    assert abs(cb.losses.AUC.empirical(marker, 2 * y - 1, counts) - area_of_pairs(marker, y, counts)[0]) < 1e-6


def test_matching_learning_rate_gives_delong_variance():
    """The posterior variance at the matching eta is that of DeLong, with divisors m and n, not m - 1 and n - 1."""
    marker, y = make_marker()
    area, components = area_of_pairs(marker, y, np.ones(N))
    delong = sum(np.var(components[y == label]) / (y == label).sum() for label in (0, 1))
    model = cb.GibbsModel(cb.losses.AUC(), cb.priors.Normal(scale=10.0))
    data = model.loss.check((marker, y))
    target = make_target(model, data, np.ones((1, N)), 1)
    draws = area + 0.05 * np.array([-1.0, 1.0])
    particles = evaluate(target.select(np.zeros(1, int)), jnp.asarray(draws[None, None], float))
    eta = 1 / (N * 0.05**2)
    np.testing.assert_allclose(influences(target, particles, eta).matching_eta, 1 / (N * delong), rtol=1e-3)
    with jax.enable_x64(True):
        prepared = jax.tree.map(jnp.asarray, model.loss.prepare(data))
        scores = np.asarray(scores_of(model.loss, prepared)(jnp.asarray([area]), jnp.ones(N), None))[:, 0]
    expected = (components - area) / np.where(y == 1, y.sum(), N - y.sum())
    np.testing.assert_allclose(-scores / N, expected, atol=1e-12)


@pytest.mark.parametrize("surrogate", ["logistic", "sigmoid"])
def test_surrogates_are_means_over_pairs(surrogate):
    rng = np.random.default_rng(2)
    marker, y = make_marker()
    x, counts = np.column_stack([marker, rng.normal(size=N)]), rng.poisson(1.0, N)
    risk = cb.losses.AUC(surrogate, bandwidth=0.5)
    theta = np.array([0.7, -0.3])[: risk.n_parameters((x, y))]
    score = x @ (theta if surrogate == "logistic" else [1.0, *theta])
    gaps = score[y == 1][:, None] - score[y == 0]
    losses = np.log1p(np.exp(-gaps)) if surrogate == "logistic" else 1 / (1 + np.exp(gaps / 0.5))
    pairs = np.outer(counts[y == 1], counts[y == 0])
    with jax.enable_x64(True):
        value = risk(
            jnp.asarray(theta), jax.tree.map(jnp.asarray, risk.prepare(risk.check((x, y)))), jnp.asarray(counts * 1.0)
        )
    np.testing.assert_allclose(value, counts.sum() * (losses * pairs).sum() / pairs.sum(), rtol=1e-10)


def test_interval_is_about_that_of_delong():
    """Their widths differ by the error of eta, 5%, and by the difference between bootstrap and DeLong's variance."""
    marker, y = make_marker(3, 200)
    area, components = area_of_pairs(marker, y, np.ones(200))
    delong = np.sqrt(sum(np.var(components[y == label], ddof=1) / (y == label).sum() for label in (0, 1)))
    model = cb.GibbsModel(cb.losses.AUC(), cb.priors.Uniform(0.0, 1.0))
    result = cb.calibrate(model, (marker, y), bootstrap=500, seed=0, progress=False)
    assert result.converged
    assert abs(np.ptp(result.intervals().bounds) / (3.92 * delong) - 1) < 0.2
    assert abs(result.estimate[0] - area) < 0.2 * delong


@pytest.mark.parametrize("surrogate", ["none", "logistic"])
def test_risk_of_a_replicate_with_one_class_is_zero(surrogate):
    """Its derivatives are finite, too: the calibration needs those in the counts."""
    marker, y = make_marker()
    risk = cb.losses.AUC(surrogate)
    data = risk.prepare(risk.check((marker if surrogate == "none" else marker[:, None], y)))
    prepared = jax.tree.map(jnp.asarray, data)
    for label in (0, 1):
        counts = jnp.asarray(y == label, float)
        value, derivatives = jax.value_and_grad(risk, (0, 2))(jnp.array([0.4]), prepared, counts)
        assert value == 0
        assert all(np.isfinite(leaf).all() for leaf in derivatives)


def test_calibration_needs_replicates_with_both_classes():
    rng = np.random.default_rng(0)
    y = np.arange(40) < 3
    model = cb.GibbsModel(cb.losses.AUC(), cb.priors.Uniform(0.0, 1.0))
    with pytest.raises(ValueError, match=r"bootstrap replicates contain .* one class only.*Stratified\(2000, y\)"):
        cb.calibrate(model, (rng.normal(size=40) + y, y), bootstrap=200, progress=False)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((np.arange(5.0), [0, 1, 0, 1]), r"equal lengths; got shapes \(5,\), \(4,\) and \(5,\)"),
        (([0, np.nan, 1, 2], [0, 1, 0, 1]), "marker must be finite; 1 values are not"),
        (([0, 1, 2, 3], [0, 1, 0, 1], [1, 1, -1, 1]), "counts must be finite and at least 0"),
        (([0, 1, 2, 3], [0, 1, 0, 1], [1, 0, 1, 0]), "counts are zero for all observations of a class"),
        (([0, 1, 2, 3], np.ones(4, bool)), "y has only one class, 1"),
    ],
)
def test_invalid_arguments_of_the_empirical_area_are_an_error(args, message):
    with pytest.raises(ValueError, match=message):
        cb.losses.AUC.empirical(*args)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((np.arange(4.0), np.ones(4)), "y has only one class, 1"),
        ((np.arange(4.0), np.arange(4)), "y must hold labels"),
        ((np.ones((4, 2)), np.array([0, 1, 0, 1])), r"shape \(observations,\) for AUC; got \(4, 2\)"),
    ],
)
def test_invalid_data_are_an_error(data, message):
    with pytest.raises(ValueError, match=message):
        cb.calibrate(cb.GibbsModel(cb.losses.AUC(), cb.priors.Normal()), data, progress=False)


def test_options_are_checked():
    with pytest.raises(ValueError, match="surrogate must be one of none, logistic, sigmoid; got 'hinge'"):
        cb.losses.AUC("hinge")
