"""Weights: integer weights repeat observations, others multiply the risk."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import calibayes as cb
from calibayes import resampling
from calibayes._core.counts import DrawnCounts, PoissonSpec, StoredCounts
from calibayes._core.particles import Particles, uniform_log_weights
from calibayes._core.sandwich import influences
from calibayes._core.scores import cluster_score_products, score_products
from calibayes._core.target import make_target
from calibayes._core.weights import Weights
from calibayes._validate.settings import check_weights
from calibayes.bootstrap import Bayesian, Block, Cluster, Multinomial, Poisson, Stratified
from calibayes.methods.moments import host_weights, sum_of_outer_products
from calibayes.resampling import draw_counts

KEY = jax.random.key(5)
REPEATS = np.array([2, 0, 1, 3, 1, 1, 2, 1])
SURVEY = np.array([0.5, 1.5, 2.0, 0.25, 1.0, 1.25, 3.0, 0.75])
N = len(REPEATS)
GROUPS = np.array(list("aabbccdd"))
STRATA = np.array([0, 0, 0, 0, 1, 1, 1, 1])
SCHEMES = {
    "multinomial": Multinomial(30),
    "m out of n": Multinomial(30, size=5, rate=1 / 3),
    "bayesian": Bayesian(30),
    "poisson": Poisson(30),
    "block": Block(30, length=3),
    "stratified": Stratified(30, STRATA),
    "cluster": Cluster(30, GROUPS),
    "cluster in strata": Cluster(30, GROUPS, STRATA),
}
MODEL = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=100.0))
WEIGHTED_MODEL = cb.GibbsModel(
    lambda theta, datum: datum[2] * 0.5 * (datum[1] - datum[0] @ theta) ** 2, cb.priors.Normal(scale=100.0), dim=2
)


def simulate(n, dim=2):
    rng = np.random.default_rng(n)
    x = np.column_stack([np.ones(n), rng.normal(size=(n, dim - 1))])
    return x, x.sum(1) + rng.normal(size=n)


def repeat(arrays, repeats):
    return tuple(np.repeat(array, repeats, axis=0) for array in arrays)


def sum_copies(values, repeats):
    """Add the values of the copies of each observation, along the last axis."""
    owner = np.repeat(np.arange(len(repeats)), repeats)
    return np.stack([np.bincount(owner, row, len(repeats)) for row in values])


@pytest.mark.parametrize("name", SCHEMES)
def test_replicates_of_integer_weights_are_those_of_the_repeated_data(name, monkeypatch):
    """With the same key, and however many are drawn at once. Fractional counts are rounded in another order."""
    scheme = SCHEMES[name]
    expected = sum_copies(np.asarray(scheme.repeated(REPEATS).counts(KEY, int(REPEATS.sum()))), REPEATS)
    for drawn_at_once in (2**24, 50):
        monkeypatch.setattr(resampling, "CONFIG", replace(resampling.CONFIG, drawn_at_once=drawn_at_once))
        counts = draw_counts(scheme, KEY, N, Weights(REPEATS.astype(float), repeats=True))
        np.testing.assert_allclose(counts, expected, rtol=1e-6)
    assert (counts[:, 1] == 0).all()


@pytest.mark.parametrize("name", SCHEMES)
def test_survey_weights_multiply_the_counts(name):
    counts = draw_counts(SCHEMES[name], KEY, N, Weights(SURVEY, repeats=False))
    np.testing.assert_allclose(counts, SURVEY * np.asarray(SCHEMES[name].counts(KEY, N)), rtol=1e-6)


def test_data_have_their_weights_as_counts():
    """Stored and drawn on demand, also for selected replicates; padding has none."""
    weights = Weights(SURVEY, repeats=False)
    stored = StoredCounts.from_array(draw_counts(Poisson(5), KEY, N, weights), 6, weights=weights)
    drawn = DrawnCounts.from_spec(PoissonSpec(KEY, 5, N), 6, weights=weights)
    np.testing.assert_allclose(stored.to_array()[:, 0], np.append(SURVEY, np.zeros(4)))
    np.testing.assert_allclose(drawn.to_array(), stored.to_array(), rtol=1e-6)
    indices = jnp.asarray([0, 3, 3])
    np.testing.assert_allclose(drawn.select(indices).to_array(), stored.select(indices).to_array(), rtol=1e-6)


def make_particles(size=400):
    """Return draws of one population."""
    theta = np.random.default_rng(1).normal(size=(2, 1, size)) * 0.3 + 1.0
    zeros = jnp.zeros((1, size))
    return Particles(jnp.asarray(theta, float), zeros, zeros, uniform_log_weights((1, size)))


@pytest.mark.parametrize("bootstrap", [None, *(SCHEMES[name] for name in ("block", "stratified", "cluster"))])
@pytest.mark.parametrize("kind", ["repetitions", "survey"])
def test_sandwich_covariance_respects_weights(kind, bootstrap):
    """Integer weights give that of the repeated data, survey weights that of weighted losses; also their matching eta.

    A copy of an observation has the influence of the observation; one with weight w has w times its influence.
    """
    data, unit_counts = simulate(N), np.ones((1, N))
    if kind == "repetitions":
        weights, expanded = Weights(REPEATS.astype(float), repeats=True), repeat(data, REPEATS)
        reference = make_target(MODEL, expanded, np.ones((1, len(expanded[0]))), 2)
        scheme = None if bootstrap is None else bootstrap.repeated(REPEATS)
        expected_of = lambda values: np.repeat(values, REPEATS, axis=1)
    else:
        weights, scheme = Weights(SURVEY, repeats=False), bootstrap
        reference = make_target(WEIGHTED_MODEL, (*data, SURVEY), unit_counts, 2)
        expected_of = lambda values: values * SURVEY
    target = make_target(MODEL, data, weights.values[None], 2, weights=weights)
    own, other = (influences(each, make_particles(), 1.0) for each in (target, reference))
    n_reference = int(reference.counts.n)
    values, expected = np.asarray(own.values)[:, :N], np.asarray(other.values)[:, :n_reference]
    np.testing.assert_allclose(expected_of(values), expected, atol=2e-5)
    assert own.matching_eta == pytest.approx(other.matching_eta, rel=1e-4)
    np.testing.assert_allclose(
        sum_of_outer_products(values.astype(float), bootstrap, host_weights(target)),
        sum_of_outer_products(expected.astype(float), scheme),
        rtol=1e-3,
        atol=1e-5,
    )


@pytest.mark.parametrize("kind", ["repetitions", "survey"])
def test_products_of_scores_respect_weights(kind):
    """On the data and on a replicate, for independent observations and for clusters."""
    data, cluster = simulate(N), SCHEMES["cluster"]
    if kind == "repetitions":
        weights, scheme = Weights(REPEATS.astype(float), repeats=True), cluster.repeated(REPEATS)
        reference = lambda counts: make_target(MODEL, repeat(data, REPEATS), counts, 2)
        n_reference = int(REPEATS.sum())
    else:
        weights, scheme, n_reference = Weights(SURVEY, repeats=False), cluster, N
        reference = lambda counts: make_target(WEIGHTED_MODEL, (*data, SURVEY), counts, 2)
    theta = np.full((2, 31), 0.7, np.float32)
    for each, other in ((Multinomial(30), Multinomial(30)), (cluster, scheme)):
        target = make_target(MODEL, data, draw_counts(each, KEY, N, weights), 2, weights=weights)
        expected = reference(np.asarray(other.counts(KEY, n_reference)))
        if each is cluster:
            own = cluster_score_products(target, theta, each.groups, each.n_groups)
            of_reference = cluster_score_products(expected, theta, other.groups, other.n_groups)
        else:
            own, of_reference = score_products(target, theta), score_products(expected, theta)
        np.testing.assert_allclose(own, of_reference, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("devices", [{}, {"observations": 2}])
@pytest.mark.parametrize("stored", [True, False], ids=["stored", "drawn"])
def test_weights_stay_with_their_observations(devices, stored, key):
    """In blocks on several devices, and in a subsample. The second column holds the weights."""
    n = 2**12
    values = np.linspace(0.5, 2.0, n)
    weights, x = Weights(values, repeats=False), np.column_stack([np.ones(n), values])
    spec = PoissonSpec(KEY, 3, n)
    counts = draw_counts(Poisson(3), KEY, n, weights) if stored else spec
    with cb.mesh(**devices):
        target = make_target(MODEL, (x, values), counts, 2, weights=weights)
    subsample = target.subsample(key, 64)
    np.testing.assert_allclose(
        subsample.counts.to_array()[:, 0], np.asarray(subsample.data[0][..., 1]).ravel(), rtol=1e-6
    )
    theta = jnp.asarray(np.random.default_rng(1).normal(size=(2, 4, 5)), float)
    losses = 0.5 * np.square(np.tensordot(x, np.asarray(theta, float), 1) - values[:, None, None])
    drawn = np.vstack([np.ones(n), np.asarray(Poisson(3).counts(KEY, n))]) * values
    reference = 0.5 * np.square(x @ np.asarray(target.reference, float) - values)
    expected = np.einsum("bn,nbm->bm", drawn, losses - reference[:, None, None])
    np.testing.assert_allclose(target.risk(theta), expected, rtol=1e-4)


@pytest.mark.parametrize("kind", ["repetitions", "survey"])
def test_learning_rate_of_weighted_data_is_exact(kind):
    """Gaussian location: a replicate has a normal posterior about its weighted mean, with variance 1 / (eta x total).

    The critical etas are known, so that eta is between two order statistics; the tolerance is three standard errors.
    """
    n = 40
    y = np.random.default_rng(2).normal(size=n)
    weights = np.random.default_rng(3).integers(0, 4, n) if kind == "repetitions" else np.linspace(0.1, 3, n)
    options = {"sampler": cb.Transport(n_particles=2000), "bootstrap": 400, "progress": False}
    result = cb.calibrate(MODEL, (np.ones((n, 1)), y), weights=weights, **options)
    expected = draw_counts(Multinomial(400), _counts_key(0), n, check_weights(weights, n))
    np.testing.assert_array_equal(result.counts, expected)
    distance = np.abs(result.counts @ y / result.counts.sum(1) - np.average(y, weights=weights))
    critical = (norm.ppf(0.975) / distance) ** 2 / result.counts.sum(1)
    assert result.eta == pytest.approx(np.quantile(critical, 0.05), abs=3 * result.eta_se)
    assert result.estimate[0] == pytest.approx(np.average(y, weights=weights), abs=0.02)
    assert result.validate() == pytest.approx(0.95, abs=4 * np.sqrt(0.95 * 0.05 / 400) + 0.02)


def _counts_key(seed):
    return jax.random.split(jax.random.key(seed), 3)[0]


def test_weights_of_one_change_nothing():
    assert check_weights(np.ones(5), 5) is None
    assert check_weights([1, 1, 1], 3) is None


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(3), r"one number for each of 8 observations; got shape \(3,\)"),
        (-REPEATS, "must not be negative; weight 3 is -3"),
        (np.where(REPEATS == 0, np.nan, 1.5), "weights must be finite; 1 of 8"),
        (np.zeros(8), "positive for at least two observations; 0 of 8"),
        (np.eye(8)[0], "positive for at least two observations; 1 of 8"),
        (1e7 * np.arange(8), "at most 16,777,216 are possible. Divide survey weights by their mean"),
        (["a"] * 8, "weights must hold numbers"),
    ],
)
def test_invalid_weights_are_rejected(weights, message):
    with pytest.raises((ValueError, TypeError), match=message):
        cb.calibrate(MODEL, simulate(N), weights=weights)


def test_integer_weights_need_stored_counts(monkeypatch):
    monkeypatch.setattr(resampling, "CONFIG", replace(resampling.CONFIG, max_stored_counts=100))
    with pytest.raises(ValueError, match="Repeat the observations, or use fewer replicates"):
        cb.calibrate(MODEL, simulate(N), weights=REPEATS, bootstrap=50)


def test_replicates_without_weight_are_rejected():
    """A replicate of eight observations misses the only two of positive weight with probability 0.75^8 = 0.1."""
    weights = np.where(np.arange(N) < 2, 0.5, 0.0)
    with pytest.raises(ValueError, match="contain only observations of weight zero"):
        cb.calibrate(MODEL, simulate(N), weights=weights, bootstrap=100)


def test_checkpoint_belongs_to_the_weights(tmp_path):
    path, data = tmp_path / "run.ckpt", (np.ones((40, 1)), simulate(40)[1])
    options = {"sampler": cb.Transport(n_particles=2000), "bootstrap": 400, "progress": False, "checkpoint": path}
    cb.calibrate(MODEL, data, weights=np.linspace(0.1, 3, 40), **options)
    with pytest.raises(cb.CheckpointError, match="weights"):
        cb.calibrate(MODEL, data, weights=np.linspace(0.2, 3, 40), **options)
