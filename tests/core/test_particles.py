"""Weighted particles against NumPy, and properties of resampling schemes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calibayes._core import particles as ps
from calibayes._core.particles import RESAMPLING, Particles

RNG = np.random.default_rng(7)
K, B, M = 3, 4, 50
WEIGHTS = RNG.dirichlet(np.full(M, 0.5), size=B).astype(np.float32)
# Skewed and correlated, with a different scale and location for every parameter.
THETA = np.einsum("kj,jbm->kbm", [[1.0, 0, 0], [0.5, 2, 0], [-1, 0.3, 0.1]], RNG.exponential(size=(K, B, M)))
THETA = (THETA + np.array([5.0, 0, -2])[:, None, None]).astype(np.float32)
RISK = RNG.gamma(2.0, size=(B, M)).astype(np.float32)


def make_particles():
    log_prior = -np.square(THETA).sum(0)
    return Particles(*map(jnp.asarray, (THETA, RISK, log_prior, np.log(WEIGHTS))))


def test_ess_matches_numpy():
    expected = 1 / np.square(WEIGHTS).sum(-1)
    np.testing.assert_allclose(ps.ess(jnp.log(WEIGHTS)), expected, rtol=1e-5)
    # Weights that are not normalised and underflow exp; a single particle; equal weights.
    np.testing.assert_allclose(ps.ess(jnp.log(WEIGHTS) - 1e3), expected, rtol=1e-3)
    assert ps.ess(jnp.array([0.0, -jnp.inf, -jnp.inf])) == 1
    assert ps.ess(ps.uniform_log_weights((1, 40)))[0] == pytest.approx(40)


def test_weights_after_a_step_equal_reweight_and_ess():
    """They are zero in a replicate where no particle has weight."""
    step = jnp.asarray([0.5, -0.5, 0.0, 3.0])
    risk = jnp.asarray(RISK).at[1, 0].set(jnp.nan).at[3].set(jnp.inf)
    weights, sizes = ps.weights_after(jnp.log(WEIGHTS), risk, step)
    np.testing.assert_allclose(weights, jnp.exp(ps.reweight(jnp.log(WEIGHTS), risk, step)), rtol=1e-5)
    np.testing.assert_allclose(sizes, ps.ess_after(jnp.log(WEIGHTS), risk, step), rtol=1e-5)
    assert (weights[3] == 0).all()
    assert sizes[3] == 0
    # A particle without weight whose risk times the step is beyond float32.
    log_weights = jnp.log(jnp.asarray([[0.5, 0.5, 0.0]]))
    weights, sizes = ps.weights_after(log_weights, jnp.asarray([[1.0, 1.0, 3e38]]), jnp.asarray([-2.0]))
    np.testing.assert_allclose(weights, [[0.5, 0.5, 0]])
    assert sizes == 2


def test_normalised_weights_sum_to_one():
    raw = jnp.array([[0.0, jnp.log(3.0), -jnp.inf], [500.0, 500.0, 501.0], [-jnp.inf] * 3])
    log_weights = ps.normalise(raw)
    e = np.e
    np.testing.assert_allclose(
        jnp.exp(log_weights[:2]), [[0.25, 0.75, 0], [1 / (2 + e), 1 / (2 + e), e / (2 + e)]], rtol=1e-5
    )
    assert (log_weights[2] == -jnp.inf).all()
    assert ps.ess(log_weights)[2] == 0


def test_reweight_multiplies_by_the_exponential_of_the_risk():
    """`w * exp(-step * risk)`, for increasing and decreasing eta."""
    step = np.array([0.5, -0.5, 0.0, 3.0], np.float32)
    expected = WEIGHTS * np.exp(-step[:, None] * RISK)
    expected /= expected.sum(-1, keepdims=True)
    log_weights = ps.reweight(jnp.log(WEIGHTS), jnp.asarray(RISK), jnp.array(step))
    np.testing.assert_allclose(jnp.exp(log_weights), expected, rtol=1e-4)
    after = ps.ess_after(jnp.log(WEIGHTS), jnp.asarray(RISK), jnp.array(step))
    np.testing.assert_allclose(after, 1 / np.square(expected).sum(-1), rtol=1e-4)


@pytest.mark.parametrize("step", [1.0, -1.0])
@pytest.mark.parametrize("risk", [np.inf, np.nan])
def test_particles_without_a_finite_risk_lose_their_weight(step, risk):
    """Whether eta increases or decreases; and a particle without weight gets none."""
    log_weights = jnp.log(jnp.array([[0.25, 0.25, 0.5, 0.0]]))
    risks = jnp.array([[1.0, risk, 1.0, risk]])
    after = jnp.exp(ps.reweight(log_weights, risks, jnp.array([step])))
    np.testing.assert_allclose(after, [[1 / 3, 0, 2 / 3, 0]], rtol=1e-6)


def test_mean_and_covariance_match_numpy():
    mean = ps.mean(jnp.asarray(THETA), jnp.asarray(WEIGHTS))
    covariance = ps.covariance(jnp.asarray(THETA), jnp.asarray(WEIGHTS))
    for b in range(B):
        np.testing.assert_allclose(mean[:, b], np.average(THETA[:, b], axis=1, weights=WEIGHTS[b]), rtol=1e-5)
        expected = np.cov(THETA[:, b], aweights=WEIGHTS[b], ddof=0)
        np.testing.assert_allclose(covariance[b], expected, rtol=1e-4, atol=1e-5)


def test_host_functions_agree_with_compiled_ones():
    """Weights, reweighting, means and covariances by NumPy; weights that are all zero stay so."""
    log_weights = jnp.log(jnp.asarray(WEIGHTS))
    particles = ps.Particles(jnp.asarray(THETA), jnp.asarray(RISK), jnp.zeros((B, M)), log_weights)
    np.testing.assert_allclose(ps.host_means(particles), ps.mean(particles.theta, particles.weights), rtol=1e-5)
    means, covariances = ps.host_moments(particles)
    np.testing.assert_allclose(means, ps.host_means(particles))
    np.testing.assert_allclose(covariances, ps.covariance(particles.theta, particles.weights), rtol=1e-3, atol=1e-4)
    for step in (0.7, -0.7):
        expected = ps.reweight_particles(particles, jnp.asarray(step))
        np.testing.assert_allclose(ps.host_reweight(particles, step).weights, expected.weights, rtol=1e-4, atol=1e-7)
    shifted = np.asarray(log_weights) + 100
    shifted[1], shifted[2, 0] = -np.inf, -np.inf
    np.testing.assert_allclose(ps.host_normalise(shifted), ps.normalise(jnp.asarray(shifted)), rtol=1e-5)


@pytest.mark.parametrize("risk", [np.inf, np.nan])
def test_host_reweighting_drops_particles_without_a_finite_risk(risk):
    theta, log_weights = jnp.zeros((1, 1, 4)), jnp.log(jnp.array([[0.25, 0.25, 0.5, 0.0]]))
    particles = ps.Particles(theta, jnp.array([[1.0, risk, 1.0, risk]]), jnp.zeros((1, 4)), log_weights)
    np.testing.assert_allclose(ps.host_reweight(particles, -1.0).weights, [[1 / 3, 0, 2 / 3, 0]], rtol=1e-6)


TIED = np.array([3.0, 1.0, 3.0, -2.0, 7.0, 3.0, 1.0, 9.0])
SIXTEENTHS = np.array([1, 2, 3, 2, 4, 1, 2, 1]) / 16  # exact in float32, as are their sums


def sorted_quantile(values, weights, probability):
    order = np.argsort(values)
    cdf = np.cumsum(weights[order])
    return values[order][np.searchsorted(cdf, probability, side="left")]


# The weight of -2 is 2/16, of 1 it is 4/16, of 3 it is 5/16, of 7 it is 4/16, of 9 it is 1/16.
@pytest.mark.parametrize("sixteenths", [0.5, 1.9, 2, 2.1, 6, 6.5, 11, 11.01, 15, 15.5])
def test_quantile_of_tied_values(sixteenths):
    """At a jump of the distribution function it is the smallest value."""
    value = ps.quantile(jnp.array(TIED), jnp.array(SIXTEENTHS), jnp.float32(sixteenths / 16))
    assert value == pytest.approx(sorted_quantile(TIED, SIXTEENTHS, sixteenths / 16), abs=1e-6)


@pytest.mark.parametrize("probability", [0.013, 0.31, 0.5, 0.97])
def test_quantiles_of_several_replicates(probability):
    values = ps.quantile(jnp.asarray(THETA[0]), jnp.asarray(WEIGHTS), jnp.full(B, probability))
    expected = [sorted_quantile(THETA[0, b], WEIGHTS[b], probability) for b in range(B)]
    np.testing.assert_allclose(values, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("point", "sixteenths"), [(-3, 0), (-2, 1), (0, 2), (1, 4), (2, 6), (3, 8.5), (8, 15), (9, 15.5), (10, 16)]
)
def test_share_below_counts_ties_half(point, sixteenths):
    assert ps.share_below(jnp.array(TIED), jnp.array(SIXTEENTHS), jnp.float32(point)) == sixteenths / 16


# Zeros at the start, in the middle and at the end; no expected number of offspring (24 w) is an integer.
UNEVEN = np.array([0, 0, 10, 0, 1, 1, 1, 3, 0, 0, 7, 1, 0, 5, 20, 2, 0, 0, 3, 5, 4, 1, 0, 0]) / 64


@pytest.fixture(scope="module")
def offspring(key):
    size = len(UNEVEN)
    keys = jax.random.split(key, 4000)

    def count(scheme):
        draw = jax.vmap(lambda k: RESAMPLING[scheme](k, jnp.array(UNEVEN)))
        ancestors = np.asarray(jax.jit(draw)(keys))
        assert (np.diff(ancestors) >= 0).all()
        return (ancestors[:, :, None] == np.arange(size)).sum(1)

    return {scheme: count(scheme) for scheme in RESAMPLING}


@pytest.mark.parametrize("scheme", RESAMPLING)
def test_resampling_is_unbiased(offspring, scheme):
    """The expected number of offspring is M w: within five standard errors of a mean of 4000, or 1e-6."""
    counts = offspring[scheme]
    error = counts.std(0) / np.sqrt(len(counts))
    assert (np.abs(counts.mean(0) - len(UNEVEN) * UNEVEN) < 5 * error + 1e-6).all()


@pytest.mark.parametrize(("scheme", "slack"), [("stratified", 1), ("systematic", 0)])
def test_numbers_of_offspring_are_close_to_their_expectation(offspring, scheme, slack):
    expected = len(UNEVEN) * UNEVEN
    counts = offspring[scheme]
    assert (counts.sum(1) == len(UNEVEN)).all()
    assert (counts >= np.floor(expected) - slack).all()
    assert (counts <= np.ceil(expected) + slack).all()
    assert (counts[:, UNEVEN == 0] == 0).all()
    assert counts.std(0).max() > 0.3


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-24])
def test_particles_without_weight_have_no_offspring(uniform):
    """The points of extreme uniforms are at the ends of the distribution function, or beyond them by rounding."""
    weights = jnp.array(UNEVEN) * 0.9999999
    ancestors = ps._inverse_cdf(weights, jnp.full(len(UNEVEN), uniform))
    assert (UNEVEN[np.asarray(ancestors)] > 0).all()


@pytest.mark.parametrize("scheme", RESAMPLING)
def test_resample_changes_chosen_replicates_only(key, scheme):
    before = make_particles()
    keys = jax.random.split(key, B)
    chosen = np.array([True, False, True, False])
    after = ps.resample(keys, before, jnp.array(chosen), scheme)
    for name in ("theta", "risk", "log_prior", "log_weights"):
        old, new = (np.moveaxis(np.asarray(getattr(p, name)), -2, 0) for p in (before, after))
        np.testing.assert_array_equal(new[~chosen], old[~chosen])
    np.testing.assert_allclose(after.weights[chosen], 1 / M, rtol=1e-6)
    for b in np.flatnonzero(chosen):
        # A particle keeps the risk and the prior density that were evaluated at it.
        ancestors = np.asarray(RESAMPLING[scheme](keys[b], before.weights[b]))
        np.testing.assert_array_equal(after.theta[:, b], THETA[:, b, ancestors])
        np.testing.assert_array_equal(after.risk[b], RISK[b, ancestors])
        np.testing.assert_array_equal(after.log_prior[b], before.log_prior[b, ancestors])
    untouched = ps.resample(keys, before, jnp.zeros(B, bool), scheme)
    assert all(map(np.array_equal, jax.tree.leaves(untouched), jax.tree.leaves(before)))


def test_replicate_keeps_its_axis():
    one = make_particles().replicate(2)
    assert one.theta.shape == (K, 1, M)
    np.testing.assert_array_equal(one.theta[:, 0], THETA[:, 2])
    np.testing.assert_array_equal(one.risk[0], RISK[2])


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize(("size", "n"), [(2, 2), (37, 37), (64, 9), (1000, 3000)])
def test_ancestors_invert_the_distribution_function(size, n, backend, monkeypatch, key):
    """At all points but those within a rounding error (n / 2^24 of a stratum) of a step."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    weights = np.random.default_rng(size).gamma(0.3, size=size).astype(np.float32)
    ancestors = np.asarray(jax.jit(ps.stratified, static_argnums=2)(key, jnp.asarray(weights), n))
    points = (np.arange(n) + np.asarray(jax.random.uniform(key, (n,)), np.float64)) / n
    cdf = np.cumsum(weights, dtype=np.float64) / weights.sum(dtype=np.float64)
    expected = np.searchsorted(cdf, points, side="right")
    assert (np.diff(ancestors) >= 0).all()
    near = np.abs(points[:, None] - cdf[None]).min(1) < 1e-6
    np.testing.assert_array_equal(ancestors[~near], expected[~near])
    assert near.mean() < 0.02


def test_normalise_with_ess_equals_both(key):
    log_weights = 3 * jax.random.normal(key, (3, 50)) - jnp.array([0.0, 1e4, jnp.inf])[:, None]
    normalised, sizes = ps.normalise_with_ess(log_weights)
    np.testing.assert_array_equal(normalised, ps.normalise(log_weights))
    np.testing.assert_allclose(sizes, ps.ess(log_weights), rtol=1e-6)
    np.testing.assert_allclose(jnp.exp(normalised).sum(-1), [1, 1, 0], rtol=1e-5)


@pytest.mark.parametrize("scheme", ["stratified", "systematic"])
def test_no_particle_without_weight_is_drawn_from_many(scheme, key):
    """With many particles a parallel cumulative sum of weights is not monotone."""
    rng = np.random.default_rng(0)
    weights = rng.exponential(size=20_000) * (rng.random(20_000) < 0.3)
    weights = jnp.asarray(weights / weights.sum(), float)
    ancestors = jax.vmap(RESAMPLING[scheme], (0, None))(jax.random.split(key, 100), weights)
    assert (weights[ancestors] > 0).all()


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_quantile_is_exact_whatever_the_range(backend, monkeypatch):
    """One bit at a time as on a CPU, and several as on a GPU."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    values = jnp.asarray([1.0, 2.0, -3e-20, 1e13, -5e30])
    weights = jnp.asarray([0.4, 0.3, 0.3, 0.0, 0.0])
    for probability, exact in ((0.2, -3e-20), (0.5, 1.0), (0.9, 2.0)):
        assert ps.quantile(values, weights, jnp.asarray(probability)) == jnp.asarray(exact)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize(
    "values", [[0.0, 0.0, 0.0], [-jnp.inf, -1.0, 3e38], [-3.4e38, 3.4e38, jnp.inf]], ids=["zeros", "low", "high"]
)
def test_quantiles_of_extreme_probabilities(backend, values, monkeypatch):
    """The largest value if the probability is above the rounded sum of the weights, and never beyond it."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    weights = jnp.asarray([0.25, 0.5, 0.249999])
    quantiles = [float(ps.quantile(jnp.asarray(values), weights, jnp.asarray(p))) for p in (0.0, 0.1, 0.5, 0.9, 1.0)]
    assert quantiles == [float(jnp.float32(values[i])) for i in (0, 0, 1, 2, 2)]


@pytest.mark.parametrize("dim", [2, ps.CONFIG.max_unrolled_dim + 3, 67])
def test_transform_is_a_matrix_product(dim):
    """Unrolled for few parameters and as a matrix product for many, to the rounding of sums of `dim` terms."""
    rng = np.random.default_rng(0)
    matrix, theta = rng.normal(size=(3, dim, dim)), rng.normal(size=(dim, 3, 5))
    product = ps.transform(jnp.asarray(matrix, float), jnp.asarray(theta, float))
    np.testing.assert_allclose(product, np.einsum("bkj,jbm->kbm", matrix, theta), atol=1e-5 * dim)
