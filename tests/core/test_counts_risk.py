"""Risks that are functions of the counts: for a sum of losses everything equals the path for losses."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._core import counts_risk
from calibayes._core.counts import PoissonSpec
from calibayes._core.sandwich import influences
from calibayes._core.scores import cluster_score_products, observation_scores, score_products, score_sums
from calibayes._core.target import evaluate, is_log_concave, make_target
from calibayes._core.weights import Weights
from calibayes.losses import CountsRisk
from calibayes.samplers.normal import NormalFit, _derivatives_on_data, fit_to_replicates

N, K, B, M = 43, 2, 5, 30
PRIOR = cb.priors.Normal(scale=3.0)


def smooth_loss(theta, datum):
    x, y = datum
    return jnp.log1p((y - x @ theta) ** 2)


def smooth_risk(theta, data, counts):
    x, y = data
    return counts @ jnp.log1p((y - x @ theta) ** 2)


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(N), rng.normal(size=N)])
    data = (x, x @ [1.0, 2.0] + rng.standard_t(3, N))
    counts = rng.multinomial(N, np.full(N, 1 / N), size=B - 1)
    theta = jnp.asarray(np.array([1.0, 2.0])[:, None, None] + 0.3 * rng.normal(size=(K, B, M)), float)
    return data, counts, theta


def targets(data, counts, weights=None):
    additive = cb.GibbsModel(smooth_loss, PRIOR, dim=K)
    of_counts = cb.GibbsModel.from_risk(smooth_risk, PRIOR, dim=K)
    return [make_target(model, data, counts, K, weights=weights) for model in (additive, of_counts)]


def test_additive_risk_equals_the_sum_of_losses(problem):
    data, counts, theta = problem
    additive, of_counts = (evaluate(target, theta) for target in targets(data, counts))
    np.testing.assert_allclose(of_counts.risk, additive.risk, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(of_counts.log_prior, additive.log_prior)


@pytest.mark.parametrize("weights", [None, Weights(np.arange(N) % 3 + 0.5, False), Weights(np.arange(N) % 3.0, True)])
def test_derivatives_equal_those_of_the_losses(problem, weights):
    """Influences, scores and their products, for repetitions and survey weights."""
    data, counts, theta = problem
    if weights is not None:
        counts = counts * weights.values
    both = targets(data, counts, weights)
    eta, points = 0.7, np.asarray(theta[:, :, 0])

    def computed(target):
        particles = evaluate(target.select(jnp.zeros(3, int)), theta[:, :3])
        result = influences(target, particles, eta)
        products = (score_products(target, points), score_sums(target, points))
        groups = jnp.asarray(np.arange(N) // 4)
        clusters = cluster_score_products(target, points, groups, int(groups.max()) + 1)
        scores = observation_scores(target, points)[:, :N]
        return result.values[:, :N], result.matching_eta, *products, clusters, scores

    for expected, value in zip(*(computed(target) for target in both), strict=True):
        scale = np.abs(np.asarray(expected)).max()
        np.testing.assert_allclose(value, expected, rtol=1e-3, atol=2e-5 * scale)


def test_risk_in_batches_equals_the_risk_at_once(problem, monkeypatch):
    """Of replicates, and of particles of one replicate; 1 + dim of them are left for the last batch."""
    data, counts, theta = problem
    target = targets(data, counts)[1]
    particles = evaluate(target.select(jnp.zeros(3, int)), theta[:, :3])
    whole, influence = target.risk(theta), influences(target, particles, 1.0).values
    monkeypatch.setattr(counts_risk, "memory", lambda: 7 * target.n_stored)
    jax.clear_caches()
    np.testing.assert_allclose(jax.jit(lambda t: target.risk(t))(theta), whole, rtol=1e-5, atol=1e-5)
    again = replace(target, coordinates=target.coordinates)
    args = (again.loss, theta[:, 0], jnp.ones((1, M)), again.counts_data)
    in_chunks = counts_risk.weighted_count_derivatives(*args)
    monkeypatch.undo()
    np.testing.assert_allclose(in_chunks, counts_risk.weighted_count_derivatives(*args), rtol=1e-4, atol=1e-4)
    assert influence.shape == (K, target.n_stored)


def test_padding_contributes_nothing(problem):
    data, counts, theta = problem
    model = cb.GibbsModel.from_risk(smooth_risk, PRIOR, dim=K)
    risks = [make_target(model, data, counts, K, pad).risk(theta) for pad in (True, False)]
    np.testing.assert_allclose(risks[0], risks[1], rtol=1e-4, atol=1e-4)


def test_counts_drawn_on_demand_give_the_same_risk_as_stored_ones(problem):
    data, _, theta = problem
    model = cb.GibbsModel.from_risk(smooth_risk, PRIOR, dim=K)
    key = jax.random.key(5)
    drawn = make_target(model, data, PoissonSpec(key, B - 1, N), K)
    stored = make_target(model, data, np.asarray(drawn.counts.to_array())[:N, 1:].T, K)
    np.testing.assert_allclose(drawn.risk(theta), stored.risk(theta), rtol=1e-5, atol=1e-5)


class WeightedVariance(CountsRisk):
    """Half the count times the logarithm of the variance around a linear prediction: a risk that is not a sum."""

    convex = False

    def __call__(self, theta, data, counts, nuisance=None):
        x, y = data
        return 0.5 * counts.sum() * jnp.log(counts @ jnp.square(y - x @ theta) / counts.sum())


def test_scores_are_derivatives_of_the_minimizer(problem):
    """The minimizer of the risk moves by -H^-1 times the score if a count increases, by central differences."""
    data, counts, _ = problem
    x, y = data
    target = make_target(cb.GibbsModel(WeightedVariance(), PRIOR, dim=K), data, counts, K)
    fit = lambda weights: np.linalg.lstsq(x * weights[:, None] ** 0.5, y * weights**0.5)[0]
    estimate = fit(np.ones(N))
    scores = np.asarray(observation_scores(target, estimate[:, None].astype(np.float32)))[0, :N]
    variance = np.mean((y - x @ estimate) ** 2)
    step, changes = 1e-4, []
    for i in range(N):
        moved = np.eye(N)[i] * step
        changes.append((fit(1 + moved) - fit(1 - moved)) / (2 * step))
    np.testing.assert_allclose(-scores @ np.linalg.inv(x.T @ x / variance), changes, rtol=1e-3, atol=1e-5)


def centred_risk(theta, data, counts, nuisance):
    return counts @ jnp.square(data - nuisance["mean"] - theta[0])


def weighted_mean(data, counts):
    return {"mean": counts @ data / counts.sum()}


@pytest.mark.parametrize("on_host", [False, True])
def test_nuisance_parameters_are_fitted_to_every_replicate(on_host):
    rng = np.random.default_rng(1)
    y, counts = rng.normal(2.0, size=21), rng.multinomial(21, np.full(21, 1 / 21), size=3)
    nuisance = weighted_mean
    if on_host:

        def nuisance(data, counts):
            return {"mean": np.average(np.asarray(data), weights=counts)}

    model = cb.GibbsModel.from_risk(centred_risk, PRIOR, dim=1, nuisance=nuisance, nuisance_on_host=on_host)
    target = make_target(model, y, counts, 1)
    with_data = np.concatenate([np.ones((1, 21)), counts])
    means = with_data @ y / with_data.sum(1)
    np.testing.assert_allclose(target.nuisance["mean"], means, rtol=1e-5)
    np.testing.assert_allclose(target.select(np.array([2, 0])).nuisance["mean"], means[[2, 0]], rtol=1e-5)
    risk = target.risk(jnp.full((1, 4, 1), 0.5, float))[:, 0]
    np.testing.assert_allclose(risk, 0.25 * with_data.sum(1), rtol=1e-4)
    # The estimate is zero whatever the counts, because the nuisance parameter moves with them.
    scores = np.asarray(observation_scores(target, np.zeros((1, 1), np.float32)))[0, :21, 0]
    expected = -2 * (y - means[0]) if on_host else np.zeros(21)
    np.testing.assert_allclose(scores, expected, atol=1e-4)


def test_replicates_are_divided_between_devices_but_observations_are_not(problem):
    data, counts, theta = problem
    model = cb.GibbsModel.from_risk(smooth_risk, PRIOR, dim=K)
    alone = make_target(model, data, counts, K).risk(theta)
    with cb.mesh(replicates=2):
        divided = make_target(model, data, counts, K)
    assert divided.mesh is not None
    np.testing.assert_allclose(evaluate(divided, theta).risk, alone, rtol=1e-4, atol=1e-4)
    with cb.mesh(observations=2), pytest.raises(ValueError, match="cannot be divided between 2 devices"):
        make_target(model, data, counts, K)


def logistic_risk(theta, data, counts):
    x, y = data
    return counts @ jax.nn.softplus(-y * (x @ theta))


def test_convex_risk_has_the_normal_fits_of_the_loss(problem):
    """Those of the loss are of a risk that is smoothed over the posterior, by 1% of the posterior's width here."""
    (x, y), counts, _ = problem
    data = (x, np.where(y > np.median(y), 1.0, -1.0))
    prior = cb.priors.Normal(scale=1.0)
    linear = make_target(cb.GibbsModel(cb.losses.Logistic(), prior), data, counts, K)
    convex = make_target(cb.GibbsModel.from_risk(logistic_risk, prior, dim=K, convex=True), data, counts, K)
    assert is_log_concave(convex)
    centre, narrow = np.array([[0.1], [0.8]], np.float32), 1e-2 * np.eye(K, dtype=np.float32)
    expected, values = (_derivatives_on_data(target.replicate(0), centre, narrow) for target in (linear, convex))
    for a, b in zip(expected, values, strict=True):
        np.testing.assert_allclose(b, a, rtol=5e-3, atol=5e-3 * float(jnp.abs(a).max()))
    fit = NormalFit(centre[:, 0].astype(float), 0.01 * np.eye(K), 10.0)
    fits = [fit_to_replicates(target, fit) for target in (linear, convex)]
    np.testing.assert_allclose(fits[1].centre, fits[0].centre, atol=0.02)


def test_subclass_does_not_inherit_convexity():
    class Other(cb.losses.Cox):
        def __call__(self, theta, data, counts, nuisance=None):
            return -super().__call__(theta, data, counts)

    data = cb.losses.Cox().check((np.arange(6.0)[:, None], np.arange(1.0, 7.0), np.ones(6)))
    counts = np.ones((1, 6))
    assert is_log_concave(make_target(cb.GibbsModel(cb.losses.Cox(), PRIOR), data, counts, 1))
    assert not is_log_concave(make_target(cb.GibbsModel(Other(), PRIOR), data, counts, 1))
