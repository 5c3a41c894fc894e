"""Operations on replicates of particles and targets: selection, replacement, merging and reweighting."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._backend.linalg import factor, inverse_factor
from calibayes._core.particles import (
    Particles,
    covariance,
    map_replicates,
    mean_and_covariance,
    reweight_particles,
    transform,
)
from calibayes._core.target import evaluate, make_target

K, B, M = 3, 4, 60


@pytest.fixture(scope="module")
def particles():
    rng = np.random.default_rng(7)
    theta = rng.normal(size=(K, B, M)) * np.array([1.0, 2.0, 0.3])[:, None, None]
    risk, log_prior = rng.gamma(2.0, size=(B, M)), rng.normal(size=(B, M))
    weights = rng.dirichlet(np.full(M, 0.5), size=B)
    return Particles(*(jnp.asarray(leaf, float) for leaf in (theta, risk, log_prior, np.log(weights))))


def leaves(particles):
    """Return the arrays of particles, with the axis of replicates first."""
    return [np.moveaxis(np.asarray(leaf), -2, 0) for leaf in jax.tree.leaves(particles)]


def test_select_returns_replicates_in_the_given_order(particles):
    indices = np.array([3, 0, 3])
    for part, full in zip(leaves(particles.select(jnp.asarray(indices))), leaves(particles), strict=True):
        np.testing.assert_array_equal(part, full[indices])


def test_with_replicates_replaces_only_the_given_ones(particles):
    shifted = Particles(particles.theta + 1, particles.risk + 2, particles.log_prior + 3, particles.log_weights - 4)
    new = shifted.select(jnp.asarray([0, 1]))
    mixed = particles.with_replicates(jnp.asarray([2, 0]), new)
    for mixed_leaf, old_leaf, new_leaf in zip(leaves(mixed), leaves(particles), leaves(new), strict=True):
        np.testing.assert_array_equal(mixed_leaf[[1, 3]], old_leaf[[1, 3]])
        np.testing.assert_array_equal(mixed_leaf[[2, 0]], new_leaf)


def test_merged_replicates_have_equal_shares_of_the_weight(particles):
    merged = particles.merge_replicates()
    assert merged.theta.shape == (K, 1, B * M)
    np.testing.assert_allclose(merged.weights.sum(), 1, rtol=1e-5)
    expected = (np.asarray(particles.theta) * np.asarray(particles.weights)).sum(-1).mean(-1)
    mean = (np.asarray(merged.theta) * np.asarray(merged.weights)).sum(-1)[:, 0]
    np.testing.assert_allclose(mean, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(merged.risk[0], np.asarray(particles.risk).reshape(-1))
    np.testing.assert_array_equal(merged.theta[1, 0], np.asarray(particles.theta[1]).reshape(-1))
    np.testing.assert_array_equal(merged.log_prior[0], np.asarray(particles.log_prior).reshape(-1))


def test_mean_and_covariance_match_their_definitions(particles):
    theta, weights = np.asarray(particles.theta, np.float64), np.asarray(particles.weights, np.float64)
    means, covariances = eqx.filter_jit(mean_and_covariance)(particles.theta, particles.weights)
    expected = np.einsum("kbm,bm->kb", theta, weights)
    np.testing.assert_allclose(means, expected, rtol=1e-4, atol=1e-5)
    centred = theta - expected[:, :, None]
    np.testing.assert_allclose(covariances, np.einsum("kbm,bm,jbm->bkj", centred, weights, centred), atol=1e-4)


def test_map_replicates_stacks_results_along_the_first_axis(particles):
    """Weights may be negative."""
    weights = np.random.default_rng(1).normal(size=(B, M)).astype(np.float32)
    highest = jax.lax.Precision.HIGHEST
    fn = lambda theta, weights: (jnp.matmul(theta * weights[None], theta.T, precision=highest), weights.sum())
    products, sums = eqx.filter_jit(lambda *args: map_replicates(fn, *args))(particles.theta, weights)
    expected = np.einsum("kbm,bm,jbm->bkj", particles.theta, weights, particles.theta)
    np.testing.assert_allclose(products, expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(sums, weights.sum(-1), rtol=1e-3)


def test_inverse_of_covariance_factors(particles):
    """Of regular matrices, and of zero, whose factor is diagonal."""
    matrices = jnp.concatenate([covariance(particles.theta, particles.weights), jnp.zeros((1, K, K))])
    roots, inverses = eqx.filter_jit(lambda matrices: (factor(matrices), inverse_factor(matrices)))(matrices)
    product = np.asarray(inverses) @ np.asarray(roots)
    np.testing.assert_allclose(product, np.broadcast_to(np.eye(K), (B + 1, K, K)), atol=1e-5)


@pytest.mark.parametrize("dim", [1, 3, 9])
def test_transform_multiplies_the_particles_of_each_replicate(dim):
    """Unrolled for few parameters, in a loop for many."""
    rng = np.random.default_rng(dim)
    matrices, theta = rng.normal(size=(B, dim, dim)), rng.normal(size=(dim, B, M))
    expected = np.einsum("bkj,jbm->kbm", matrices, theta)
    transformed = eqx.filter_jit(transform)(jnp.asarray(matrices, float), jnp.asarray(theta, float))
    np.testing.assert_allclose(transformed, expected, atol=1e-4)


@pytest.mark.parametrize("step", [0.7, -0.7])
def test_reweighting_takes_one_step_in_all_replicates(particles, step):
    shifted = reweight_particles(particles, jnp.asarray(step))
    expected = np.asarray(particles.weights) * np.exp(-step * np.asarray(particles.risk))
    np.testing.assert_allclose(shifted.weights, expected / expected.sum(-1, keepdims=True), rtol=1e-3)
    np.testing.assert_array_equal(shifted.theta, particles.theta)


class BoundedPrior:
    """Two positive parameters, and one without bounds."""

    bounds = ([0.0, 0.0, -np.inf], np.inf)

    def log_prob(self, theta):
        return -theta[:2].sum() - 0.5 * jnp.square(theta[2])


@pytest.fixture(scope="module", params=["linear", "generic"])
def bounded_problem(request):
    """Least squares with bounded parameters, as a linear loss and as a function; 11 observations, 4 replicates."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(11, K))
    data = (x, x @ np.ones(K) + rng.normal(size=11))
    counts = rng.multinomial(11, np.full(11, 1 / 11), size=B - 1)
    loss = cb.losses.Squared()
    if request.param == "generic":
        loss = lambda theta, datum: 0.5 * jnp.square(datum[1] - datum[0] @ theta)
    return data, make_target(cb.GibbsModel(loss, BoundedPrior(), dim=K), data, counts, K)


def test_selected_replicates_of_a_target_have_the_same_risk(bounded_problem):
    """In another order, and one of them twice."""
    _, target = bounded_problem
    z = jnp.asarray(np.random.default_rng(0).normal(size=(K, B, 20)), float)
    indices = jnp.asarray([2, 0, 2])
    part = evaluate(target.select(indices), z[:, indices])
    np.testing.assert_allclose(part.risk, evaluate(target, z).risk[indices], rtol=1e-4, atol=1e-3)
    assert target.select(indices).n_replicates == 3


def test_losses_are_evaluated_at_the_constrained_parameters(bounded_problem):
    """One loss per observation, for unconstrained coordinates z: positive parameters are exp(z)."""
    (x, y), target = bounded_problem
    z = np.random.default_rng(0).normal(size=(K, 1, 20))
    theta = np.concatenate([np.exp(z[:2]), z[2:]])[:, 0]
    expected = 0.5 * (y[:, None] - x @ theta) ** 2
    losses = eqx.filter_jit(lambda target, z, block: jnp.stack(target.losses(z)(block)))
    blocks = [
        losses(target, z.astype(np.float32), jax.tree.map(lambda leaf, g=g: leaf[g], target.data)) for g in range(2)
    ]
    computed = np.concatenate(blocks)[:11, 0]
    np.testing.assert_allclose(computed, expected, rtol=1e-4, atol=1e-4)


def test_programs_do_not_grow_with_the_number_of_parameters():
    def n_lines(fn, *args):
        return len(jax.jit(fn).lower(*args).as_text().splitlines())

    def sizes(dim):
        matrices, theta, weights = jnp.ones((B, dim, dim)), jnp.ones((dim, B, M)), jnp.ones((B, M))
        data = (np.ones((20, dim)), np.ones(20))
        model = cb.GibbsModel(cb.losses.Quantile(0.3), cb.priors.Normal(), dim=dim)
        target = make_target(model, data, np.ones((B - 1, 20)), dim)
        return (
            n_lines(transform, matrices, theta),
            n_lines(mean_and_covariance, theta, weights),
            n_lines(factor, matrices),
            n_lines(inverse_factor, matrices),
            n_lines(lambda theta: target.risk(theta), theta),
        )

    assert sizes(20) == sizes(40)
