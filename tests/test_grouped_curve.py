"""Curves from rows that share particles, and what else is asked of rows: some of them, all as one, points along eta."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import calibayes as cb
from calibayes import particles as ps
from calibayes._backend.linalg import lower_inverse
from calibayes._core.curve import Coverage, Curve
from calibayes._core.particles import Particles
from calibayes._core.target import evaluate, make_target
from calibayes.solve.estimate import points_along

ROWS, GROUPS = 500, 20


def grouped_curve(seed, shared):
    """Gaussian location, where each group of rows has its particles' own error in how far away the point seems.

    The level at eta of a row at distance d is P(|Z| < d sqrt(eta)); `shared` is the spread of log d over groups.
    """
    rng = np.random.default_rng(seed)
    group = np.arange(1, ROWS + 1) % GROUPS
    distance = np.abs(rng.normal(size=ROWS)) * np.exp(shared * rng.normal(size=GROUPS))[group]
    etas = np.exp(np.linspace(-0.5, 0.5, 15))
    levels = 2 * norm.cdf(distance[None] * np.sqrt(etas)[:, None]) - 1
    return Curve(etas, levels, np.full(15, 1000.0), 0.95, GROUPS, levels[7])


@pytest.fixture(scope="module")
def curves():
    return {shared: [grouped_curve(seed, shared) for seed in range(300)] for shared in (0.0, 0.25)}


def test_band_holds_the_coverage_and_narrows_with_rows():
    curve = replace(grouped_curve(0, 0.0), n_groups=1)
    for level in (None, 0.9, 0.5):
        band, coverage = curve.band(level), curve.coverage(level)
        assert band.shape == (15, 2)
        assert (band[:, 0] < coverage).all()
        assert (coverage < band[:, 1]).all()
        expected = [Coverage(round(share * ROWS), ROWS).interval for share in coverage]
        np.testing.assert_allclose(band, expected)
    assert (curve.band(0.5)[:, 0] < curve.band(0.9)[:, 0]).all()
    fewer = Curve(curve.etas, curve.critical_levels[:, :50], curve.ess, 0.95)
    assert (np.diff(fewer.band(0.5)) > 2 * np.diff(curve.band(0.5))).all()
    assert Curve.empty(50, 0.95).band().shape == (0, 2)


def test_band_is_wider_where_rows_share_particles():
    curve = grouped_curve(0, 1.0)
    assert curve._design_effect(0.95) > 1.5
    alone = replace(curve, n_groups=1)
    assert (np.diff(curve.band())[5:10] > 1.15 * np.diff(alone.band())[5:10]).all()


def test_band_holds_the_probability_behind_it(curves):
    """Pointwise 95%: of 300 curves the band at eta 1 holds P(d < 1.96) = 0.95 in 95%, give or take 4 errors of 1.3%."""
    held = [curve.band()[7] for curve in curves[0.0]]
    share = np.mean([low <= 0.95 <= high for low, high in held])
    assert abs(share - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 300)


def test_design_effect_of_independent_rows_is_about_one(curves):
    """A ratio of variances with 19 degrees of freedom, averaged over levels that go together, and never below one.

    It scatters by at most sqrt(2 / 19) = 0.32: the part above one adds 0.4 * 0.32 = 0.13 at most to the mean of 300.
    """
    found = np.array([curve._design_effect(0.95) for curve in curves[0.0]])
    assert (found >= 1).all()
    assert np.median(found) < 1.05
    assert found.mean() < 1.15


def test_design_effect_is_the_growth_of_the_variance(curves):
    """Against the variance of coverage over 300 sets of rows, itself known to sqrt(2 / 300) = 8%.

    The estimate averages over levels from 0.90 to 0.975, where the growth is not quite the same: 25%.
    """
    coverage = np.array([(curve.in_groups <= 0.95).mean() for curve in curves[0.25]])
    p = coverage.mean()
    grown = coverage.var() * ROWS / (p * (1 - p))
    assert grown > 1.5
    found = np.mean([curve._design_effect(0.95) for curve in curves[0.25]])
    assert abs(found / grown - 1) < 0.25


def test_eta_se_allows_for_shared_errors(curves):
    """The median standard error is the spread of eta-hat over 300 sets of rows, to 20%; by rows alone it is too small.

    The spread is known to 1 / sqrt(600) = 4%, and the design effect to the 25% above, 12% of its root.
    """
    etas = np.array([curve.eta_hat() for curve in curves[0.25]])
    errors = np.array([curve.eta_se() for curve in curves[0.25]])
    assert abs(np.median(errors) / etas.std() - 1) < 0.2
    alone = [Curve(c.etas, c.critical_levels, c.ess, 0.95).eta_se() for c in curves[0.25]]
    assert np.median(alone) < 0.85 * np.median(errors)


def test_curve_without_groups_has_no_design_effect():
    curve = grouped_curve(0, 0.25)
    assert Curve(curve.etas, curve.critical_levels, curve.ess, 0.95)._design_effect(0.95) == 1
    # All rows covered, or none: nothing to compare.
    for level in (0.0, 0.9999):
        flat = Curve(curve.etas, curve.critical_levels, curve.ess, 0.95, GROUPS, np.full(ROWS, level))
        assert flat._design_effect(0.95) == 1


K, B, M = 3, 4, 60


@pytest.fixture(scope="module")
def some():
    rng = np.random.default_rng(7)
    theta = rng.normal(size=(K, B, M)) * np.array([1.0, 2.0, 0.3])[:, None, None]
    risk, log_prior = rng.gamma(2.0, size=(B, M)), rng.normal(size=(B, M))
    weights = rng.dirichlet(np.full(M, 0.5), size=B)
    return Particles(*(jnp.asarray(leaf, float) for leaf in (theta, risk, log_prior, np.log(weights))))


def leaves(particles):
    """What particles hold, rows leading."""
    return [np.moveaxis(np.asarray(leaf), -2, 0) for leaf in jax.tree.leaves(particles)]


def test_some_rows_of_particles(some):
    chosen = np.array([3, 0, 3])
    for part, whole in zip(leaves(some.select(jnp.asarray(chosen))), leaves(some), strict=True):
        np.testing.assert_array_equal(part, whole[chosen])


def test_rows_replaced(some):
    others = Particles(some.theta + 1, some.risk + 2, some.log_prior + 3, some.log_weights - 4).select(
        jnp.asarray([0, 1])
    )
    mixed = some.with_replicates(jnp.asarray([2, 0]), others)
    for new, old, given in zip(leaves(mixed), leaves(some), leaves(others), strict=True):
        np.testing.assert_array_equal(new[[1, 3]], old[[1, 3]])
        np.testing.assert_array_equal(new[[2, 0]], given)


def test_rows_as_one(some):
    """Four populations of weight one each are one population, a quarter of the weight from each."""
    flat = some.merge_replicates()
    assert flat.theta.shape == (K, 1, B * M)
    np.testing.assert_allclose(flat.weights.sum(), 1, rtol=1e-5)
    together = (np.asarray(some.theta) * np.asarray(some.weights)).sum(-1).mean(-1)
    mean = (np.asarray(flat.theta) * np.asarray(flat.weights)).sum(-1)[:, 0]
    np.testing.assert_allclose(mean, together, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(flat.risk[0], np.asarray(some.risk).reshape(-1))
    np.testing.assert_array_equal(flat.theta[1, 0], np.asarray(some.theta[1]).reshape(-1))
    np.testing.assert_array_equal(flat.log_prior[0], np.asarray(some.log_prior).reshape(-1))


def test_products_of_any_sign(some):
    weights = np.random.default_rng(1).normal(size=(B, M)).astype(np.float32)
    expected = np.einsum("kbm,bm,jbm->bkj", some.theta, weights, some.theta)
    np.testing.assert_allclose(eqx.filter_jit(ps.outer_products)(some.theta, weights), expected, rtol=1e-3, atol=1e-3)


def test_inverse_of_factors(some):
    roots = eqx.filter_jit(lambda p: ps.factor(ps.covariance(p.theta, p.weights)))(some)
    product = np.asarray(eqx.filter_jit(lower_inverse)(roots)) @ np.asarray(roots)
    np.testing.assert_allclose(product, np.broadcast_to(np.eye(K), (B, K, K)), atol=1e-5)


@pytest.mark.parametrize("step", [0.7, -0.7])
def test_shift_is_one_step_for_all_rows(some, step):
    shifted = ps.reweight_particles(some, jnp.asarray(step))
    expected = np.asarray(some.weights) * np.exp(-step * np.asarray(some.risk))
    np.testing.assert_allclose(shifted.weights, expected / expected.sum(-1, keepdims=True), rtol=1e-3)
    np.testing.assert_array_equal(shifted.theta, some.theta)


class Walled:
    """Two parameters above zero, one without bounds."""

    bounds = ([0.0, 0.0, -np.inf], np.inf)

    def log_prob(self, theta):
        return -theta[:2].sum() - 0.5 * jnp.square(theta[2])


@pytest.fixture(scope="module", params=["linear", "generic"])
def target(request):
    """Least squares in bounded parameters, as a linear loss and as any function; eleven observations, four rows."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(11, K))
    data = (x, x @ np.ones(K) + rng.normal(size=11))
    counts = rng.multinomial(11, np.full(11, 1 / 11), size=B - 1)
    loss = cb.losses.Squared()
    if request.param == "generic":
        loss = lambda theta, datum: 0.5 * jnp.square(datum[1] - datum[0] @ theta)
    return data, counts, make_target(cb.GibbsModel(loss, Walled(), dim=K), data, counts, K)


def test_some_rows_of_a_target(target):
    """The density of some rows, in another order and one of them twice."""
    _, _, whole = target
    z = jnp.asarray(np.random.default_rng(0).normal(size=(K, B, 20)), float)
    chosen = jnp.asarray([2, 0, 2])
    part = evaluate(whole.select(chosen), z[:, chosen])
    np.testing.assert_allclose(part.risk, evaluate(whole, z).risk[chosen], rtol=1e-4, atol=1e-3)
    assert whole.select(chosen).n_replicates == 3


def test_losses_observation_by_observation(target):
    """Of free coordinates: the loss at the parameters they stand for."""
    (x, y), _, whole = target
    z = np.random.default_rng(0).normal(size=(K, 1, 20))
    theta = np.concatenate([np.exp(z[:2]), z[2:]])[:, 0]
    expected = 0.5 * (y[:, None] - x @ theta) ** 2
    losses = eqx.filter_jit(lambda target, z, block: jnp.stack(target.losses(z)(block)))
    blocks = [
        losses(whole, z.astype(np.float32), jax.tree.map(lambda leaf, g=g: leaf[g], whole.data)) for g in range(2)
    ]
    got = np.concatenate(blocks)[:11, 0]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def located():
    """Particles of a location problem on the data, at eta 2."""
    y = np.random.default_rng(0).exponential(size=20)
    model = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=0.5))
    target = make_target(model, (np.ones((20, 1)), y), np.ones((1, 20)), 1).replicate(0)
    theta = np.random.default_rng(1).normal(0.8, 0.15, (1, 1, 500))
    return target, evaluate(target, jnp.asarray(theta, float))


ETAS = np.array([1.5, 2.0, 2.6])


def reweighted(particles, function):
    values = []
    for eta in ETAS:
        weights = np.exp(-(eta - 2.0) * (np.asarray(particles.risk[0], float) - float(particles.risk[0, 0])))
        values.append(function(np.asarray(particles.theta[:, 0], float).T, weights / weights.sum()))
    return np.array(values)


@pytest.mark.parametrize(
    "estimate", ["mean", lambda draws, weights: weights @ jnp.exp(draws)], ids=["mean", "function"]
)
def test_points_along_are_those_of_reweighted_particles(located, estimate, key):
    target, particles = located
    got = points_along(estimate, key, target, particles, 2.0, ETAS)
    of = (lambda draws, weights: weights @ draws) if estimate == "mean" else (lambda d, w: w @ np.exp(d))
    expected = reweighted(particles, of)
    np.testing.assert_allclose(got, expected, rtol=1e-4)
    assert np.ptp(expected) > 1e-3


def test_points_along_of_an_optimum_stand_still(located, key):
    """The mode is taken once, where the particles are: a little short of the mean of y, towards the prior's."""
    target, particles = located
    modes = np.asarray(points_along("mode", key, target, particles, 2.0, ETAS))
    np.testing.assert_array_equal(modes, np.repeat(modes[:1], len(ETAS), 0))
    exact = 2.0 * 20 * float(target.reference[0]) / (2.0 * 20 + 4)
    np.testing.assert_allclose(modes, exact, atol=1e-3)
