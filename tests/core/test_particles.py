"""Weighted particles against numpy's weighted formulas, and resampling against its promises."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calibayes import particles as ps
from calibayes._core.particles import RESAMPLING, Particles

RNG = np.random.default_rng(7)
K, B, M = 3, 4, 50
WEIGHTS = RNG.dirichlet(np.full(M, 0.5), size=B).astype(np.float32)
# Skewed and correlated, with another scale and location for every parameter.
THETA = np.einsum("kj,jbm->kbm", [[1.0, 0, 0], [0.5, 2, 0], [-1, 0.3, 0.1]], RNG.exponential(size=(K, B, M)))
THETA = (THETA + np.array([5.0, 0, -2])[:, None, None]).astype(np.float32)
RISK = RNG.gamma(2.0, size=(B, M)).astype(np.float32)


def some_particles():
    log_prior = -np.square(THETA).sum(0)
    return Particles(*map(jnp.asarray, (THETA, RISK, log_prior, np.log(WEIGHTS))))


def test_ess():
    expected = 1 / np.square(WEIGHTS).sum(-1)
    np.testing.assert_allclose(ps.ess(jnp.log(WEIGHTS)), expected, rtol=1e-5)
    # Not normalised, and far below what exp can hold; one particle; equal ones.
    np.testing.assert_allclose(ps.ess(jnp.log(WEIGHTS) - 1e3), expected, rtol=1e-3)
    assert ps.ess(jnp.array([0.0, -jnp.inf, -jnp.inf])) == 1
    assert ps.ess(ps.uniform_log_weights((1, 40)))[0] == pytest.approx(40)


def test_weights_after_a_step():
    """As by two functions; none where no particle has any."""
    step = jnp.asarray([0.5, -0.5, 0.0, 3.0])
    risk = jnp.asarray(RISK).at[1, 0].set(jnp.nan).at[3].set(jnp.inf)
    weights, sizes = ps.weights_after(jnp.log(WEIGHTS), risk, step)
    np.testing.assert_allclose(weights, jnp.exp(ps.reweight(jnp.log(WEIGHTS), risk, step)), rtol=1e-5)
    np.testing.assert_allclose(sizes, ps.ess_after(jnp.log(WEIGHTS), risk, step), rtol=1e-5)
    assert (weights[3] == 0).all()
    assert sizes[3] == 0
    # No weight, and a risk whose product with the step is beyond float32.
    none = jnp.log(jnp.asarray([[0.5, 0.5, 0.0]]))
    weights, sizes = ps.weights_after(none, jnp.asarray([[1.0, 1.0, 3e38]]), jnp.asarray([-2.0]))
    np.testing.assert_allclose(weights, [[0.5, 0.5, 0]])
    assert sizes == 2


def test_normalise():
    raw = jnp.array([[0.0, jnp.log(3.0), -jnp.inf], [500.0, 500.0, 501.0], [-jnp.inf] * 3])
    log_weights = ps.normalise(raw)
    e = np.e
    np.testing.assert_allclose(
        jnp.exp(log_weights[:2]), [[0.25, 0.75, 0], [1 / (2 + e), 1 / (2 + e), e / (2 + e)]], rtol=1e-5
    )
    assert (log_weights[2] == -jnp.inf).all()
    assert ps.ess(log_weights)[2] == 0


def test_reweight():
    """`w * exp(-step * risk)`, up in eta and down."""
    step = np.array([0.5, -0.5, 0.0, 3.0], np.float32)
    expected = WEIGHTS * np.exp(-step[:, None] * RISK)
    expected /= expected.sum(-1, keepdims=True)
    log_weights = ps.reweight(jnp.log(WEIGHTS), jnp.asarray(RISK), jnp.array(step))
    np.testing.assert_allclose(jnp.exp(log_weights), expected, rtol=1e-4)
    after = ps.ess_after(jnp.log(WEIGHTS), jnp.asarray(RISK), jnp.array(step))
    np.testing.assert_allclose(after, 1 / np.square(expected).sum(-1), rtol=1e-4)


@pytest.mark.parametrize("step", [1.0, -1.0])
@pytest.mark.parametrize("risk", [np.inf, np.nan])
def test_reweight_gives_up_what_cannot_be(step, risk):
    """A risk that is infinite or no number has no weight, whichever way eta moves; nor does one that had none."""
    log_weights = jnp.log(jnp.array([[0.25, 0.25, 0.5, 0.0]]))
    risks = jnp.array([[1.0, risk, 1.0, risk]])
    after = jnp.exp(ps.reweight(log_weights, risks, jnp.array([step])))
    np.testing.assert_allclose(after, [[1 / 3, 0, 2 / 3, 0]], rtol=1e-6)


def test_mean_and_covariance():
    mean = ps.mean(jnp.asarray(THETA), jnp.asarray(WEIGHTS))
    covariance = ps.covariance(jnp.asarray(THETA), jnp.asarray(WEIGHTS))
    for b in range(B):
        np.testing.assert_allclose(mean[:, b], np.average(THETA[:, b], axis=1, weights=WEIGHTS[b]), rtol=1e-5)
        expected = np.cov(THETA[:, b], aweights=WEIGHTS[b], ddof=0)
        np.testing.assert_allclose(covariance[b], expected, rtol=1e-4, atol=1e-5)


def test_factor():
    """A root of the covariance, up to the ridge of 1e-5; still a number where the covariance has collapsed."""
    covariance = ps.covariance(jnp.asarray(THETA), jnp.asarray(WEIGHTS))
    root = np.asarray(ps.factor(covariance))
    assert (np.triu(root, 1) == 0).all()
    scale = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    error = (root @ root.transpose(0, 2, 1) - covariance) / (scale[:, :, None] * scale[:, None, :])
    assert np.abs(error).max() < 3e-5
    singular = jnp.array([np.zeros((2, 2)), [[1.0, 2.0], [2.0, 4.0]]], float)
    roots = np.asarray(ps.factor(singular))
    assert np.isfinite(roots).all()
    np.testing.assert_allclose(roots[1] @ roots[1].T, singular[1], rtol=1e-4)


TIED = np.array([3.0, 1.0, 3.0, -2.0, 7.0, 3.0, 1.0, 9.0])
SIXTEENTHS = np.array([1, 2, 3, 2, 4, 1, 2, 1]) / 16  # exact in float32, and so are their sums


def sorted_quantile(values, weights, probability):
    order = np.argsort(values)
    cdf = np.cumsum(weights[order])
    return values[order][np.searchsorted(cdf, probability, side="left")]


# -2 has 2/16 of the weight, 1 has 4, 3 has 5, 7 has 4, 9 has 1.
@pytest.mark.parametrize("sixteenths", [0.5, 1.9, 2, 2.1, 6, 6.5, 11, 11.01, 15, 15.5])
def test_quantile_with_ties(sixteenths):
    """On a jump of the distribution function the smallest value counts. 40 halvings of a range of 11 leave 1e-11."""
    value = ps.quantile(jnp.array(TIED), jnp.array(SIXTEENTHS), jnp.float32(sixteenths / 16))
    assert value == pytest.approx(sorted_quantile(TIED, SIXTEENTHS, sixteenths / 16), abs=1e-6)


@pytest.mark.parametrize("probability", [0.013, 0.31, 0.5, 0.97])
def test_quantile_of_many(probability):
    values = ps.quantile(jnp.asarray(THETA[0]), jnp.asarray(WEIGHTS), jnp.full(B, probability))
    expected = [sorted_quantile(THETA[0, b], WEIGHTS[b], probability) for b in range(B)]
    np.testing.assert_allclose(values, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("point", "sixteenths"), [(-3, 0), (-2, 1), (0, 2), (1, 4), (2, 6), (3, 8.5), (8, 15), (9, 15.5), (10, 16)]
)
def test_share_below_counts_ties_half(point, sixteenths):
    assert ps.share_below(jnp.array(TIED), jnp.array(SIXTEENTHS), jnp.float32(point)) == sixteenths / 16


# Zeros in front, inside and behind; no expected number (24 w, a multiple of 3/8) is whole.
LOPSIDED = np.array([0, 0, 10, 0, 1, 1, 1, 3, 0, 0, 7, 1, 0, 5, 20, 2, 0, 0, 3, 5, 4, 1, 0, 0]) / 64


@pytest.fixture(scope="module")
def offspring(key):
    size = len(LOPSIDED)
    keys = jax.random.split(key, 4000)

    def count(scheme):
        draw = jax.vmap(lambda k: RESAMPLING[scheme](k, jnp.array(LOPSIDED)))
        ancestors = np.asarray(jax.jit(draw)(keys))
        assert (np.diff(ancestors) >= 0).all()
        return (ancestors[:, :, None] == np.arange(size)).sum(1)

    return {scheme: count(scheme) for scheme in RESAMPLING}


@pytest.mark.parametrize("scheme", RESAMPLING)
def test_expected_offspring(offspring, scheme):
    """M w each: five standard errors of a mean of 4000, as found; 1e-6 where the number does not vary."""
    counts = offspring[scheme]
    error = counts.std(0) / np.sqrt(len(counts))
    assert (np.abs(counts.mean(0) - len(LOPSIDED) * LOPSIDED) < 5 * error + 1e-6).all()


@pytest.mark.parametrize(("scheme", "slack"), [("stratified", 1), ("systematic", 0)])
def test_offspring_stay_close(offspring, scheme, slack):
    expected = len(LOPSIDED) * LOPSIDED
    counts = offspring[scheme]
    assert (counts.sum(1) == len(LOPSIDED)).all()
    assert (counts >= np.floor(expected) - slack).all()
    assert (counts <= np.ceil(expected) + slack).all()
    assert (counts[:, LOPSIDED == 0] == 0).all()
    assert counts.std(0).max() > 0.3


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-24])
def test_no_weight_no_offspring_at_the_edges(uniform):
    """The points of the extreme uniforms fall on the ends of the distribution function, or round past them."""
    weights = jnp.array(LOPSIDED) * 0.9999999
    ancestors = ps._inverse_cdf(weights, jnp.full(len(LOPSIDED), uniform))
    assert (LOPSIDED[np.asarray(ancestors)] > 0).all()


@pytest.mark.parametrize("scheme", RESAMPLING)
def test_resample_touches_chosen_rows_only(key, scheme):
    before = some_particles()
    keys = jax.random.split(key, B)
    chosen = np.array([True, False, True, False])
    after = ps.resample(keys, before, jnp.array(chosen), scheme)
    for name in ("theta", "risk", "log_prior", "log_weights"):
        old, new = (np.moveaxis(np.asarray(getattr(p, name)), -2, 0) for p in (before, after))
        np.testing.assert_array_equal(new[~chosen], old[~chosen])
    np.testing.assert_allclose(after.weights[chosen], 1 / M, rtol=1e-6)
    for b in np.flatnonzero(chosen):
        # A particle moves with all that was evaluated at it.
        ancestors = np.asarray(RESAMPLING[scheme](keys[b], before.weights[b]))
        np.testing.assert_array_equal(after.theta[:, b], THETA[:, b, ancestors])
        np.testing.assert_array_equal(after.risk[b], RISK[b, ancestors])
        np.testing.assert_array_equal(after.log_prior[b], before.log_prior[b, ancestors])
    untouched = ps.resample(keys, before, jnp.zeros(B, bool), scheme)
    assert all(map(np.array_equal, jax.tree.leaves(untouched), jax.tree.leaves(before)))


def test_row_keeps_its_axis():
    row = some_particles().replicate(2)
    assert row.theta.shape == (K, 1, M)
    np.testing.assert_array_equal(row.theta[:, 0], THETA[:, 2])
    np.testing.assert_array_equal(row.risk[0], RISK[2])


@pytest.mark.parametrize("scheme", ["stratified", "systematic"])
def test_many_particles_and_zero_weights(scheme, key):
    """With many particles a parallel sum of weights is not monotone; still no particle without weight is drawn."""
    rng = np.random.default_rng(0)
    weights = rng.exponential(size=20_000) * (rng.random(20_000) < 0.3)
    weights = jnp.asarray(weights / weights.sum(), float)
    ancestors = jax.vmap(RESAMPLING[scheme], (0, None))(jax.random.split(key, 100), weights)
    assert (weights[ancestors] > 0).all()


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_quantile_is_exact_whatever_the_range(backend, monkeypatch):
    """Bit by bit, and several at a time, as on a GPU."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    values = jnp.asarray([1.0, 2.0, -3e-20, 1e13, -5e30])
    weights = jnp.asarray([0.4, 0.3, 0.3, 0.0, 0.0])
    for probability, exact in ((0.2, -3e-20), (0.5, 1.0), (0.9, 2.0)):
        assert ps.quantile(values, weights, jnp.asarray(probability)) == jnp.asarray(exact)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize(
    "values", [[0.0, 0.0, 0.0], [-jnp.inf, -1.0, 3e38], [-3.4e38, 3.4e38, jnp.inf]], ids=["zeros", "low", "high"]
)
def test_quantile_at_the_ends(backend, values, monkeypatch):
    """The largest value where more is asked for than the weights sum to, rounded; none beyond it."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    weights = jnp.asarray([0.25, 0.5, 0.249999])
    found = [float(ps.quantile(jnp.asarray(values), weights, jnp.asarray(p))) for p in (0.0, 0.1, 0.5, 0.9, 1.0)]
    assert found == [float(jnp.float32(values[i])) for i in (0, 0, 1, 2, 2)]
