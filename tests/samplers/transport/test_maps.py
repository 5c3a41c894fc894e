"""Affine maps from a pool to replicates: exact for normal posteriors, unbiased for others.

The pools of the normal problems are symmetric about the posterior mean and have exactly the posterior covariance, so a
map to the mean and covariance of a replicate is exact, and the only noise comes from fourth moments.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._backend.functions import as_float, host_array
from calibayes._core.particles import Particles, ess
from calibayes._core.target import Target, evaluate, make_target
from calibayes.samplers.populations import N_POPULATIONS
from calibayes.samplers.transport import refit as refitting
from calibayes.samplers.transport.maps import AffineMaps, WhitenedPool, transport_and_weight
from calibayes.samplers.transport.refit import refit_maps
from targets import gamma_draws, gamma_target, log_gamma_moments

N_REPLICATES = 45
"""The data and 44 others: every population is used at least twice, and some three times."""


class Problem(NamedTuple):
    target: Target
    particles: Particles
    pool: WhitenedPool
    eta: float
    means: np.ndarray
    """Exact posterior mean of every replicate."""
    roots: np.ndarray
    """Cholesky factor of the exact posterior covariance of every replicate."""

    @property
    def exact_maps(self):
        return AffineMaps(host_array(self.means.T), host_array(self.roots))

    @property
    def unshifted_maps(self):
        """Maps of every replicate to the posterior on the data."""
        return AffineMaps.around(self.pool.centre, self.pool.root, np.ones(N_REPLICATES))


def least_squares(dim, n, size, eta=1.0, scale=50.0):
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(n), rng.normal(size=(n, dim - 1))])
    y = x @ np.ones(dim) + rng.normal(size=n)
    counts = rng.multinomial(n, np.full(n, 1 / n), size=N_REPLICATES - 1)
    target = make_target(cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=scale)), (x, y), counts, dim)
    all_counts = np.concatenate([np.ones((1, n)), counts])
    precision = eta * np.einsum("bn,nk,nj->bkj", all_counts, x, x) + np.eye(dim) / scale**2
    means = np.linalg.solve(precision, eta * np.einsum("bn,nk->bk", all_counts * y, x)[..., None])[..., 0]
    roots = np.linalg.cholesky(np.linalg.inv(precision))
    half = rng.normal(size=(N_POPULATIONS, dim, size // 2))
    u = np.concatenate([half, -half], -1)
    u = np.linalg.solve(np.linalg.cholesky(u @ u.transpose(0, 2, 1) / size), u)
    theta = jnp.asarray(np.moveaxis(means[0][:, None] + roots[0] @ u, 0, 1), float)
    particles = evaluate(target.select(jnp.zeros(N_POPULATIONS, int)), theta)
    return Problem(target, particles, WhitenedPool.from_particles(particles, eta), eta, means, roots)


def refit(pool, maps, log_weights):
    return refit_maps(pool, maps, log_weights, np.asarray(ess(log_weights)))


# Parameters, observations, particles. Moments require 25 effective particles per parameter. If these are less than a
# tenth of all particles, moments are used alone; if they are more than all, regression alone; in between, either,
# depending on the replicate.
SHAPES = {"moments": (2, 40, 1000), "either": (2, 40, 400), "regression": (6, 300, 150)}


@pytest.fixture(scope="module", params=SHAPES)
def problem(request):
    return least_squares(*SHAPES[request.param])


def test_exact_maps_have_equal_weights(problem):
    """Up to rounding, because both densities are the same function of u up to a constant. Other maps do not."""
    size = problem.particles.risk.shape[-1]
    eta = as_float(problem.eta)
    particles, sizes = transport_and_weight(problem.target, problem.pool, problem.exact_maps, eta)
    np.testing.assert_allclose(particles.log_weights, -np.log(size), atol=1e-3)
    np.testing.assert_allclose(sizes, size, rtol=1e-4)
    _, unshifted_sizes = transport_and_weight(problem.target, problem.pool, problem.unshifted_maps, eta)
    assert np.median(unshifted_sizes) < 0.3 * size
    assert unshifted_sizes[0] == pytest.approx(size, rel=1e-3)  # The data need no map.


def test_refits_converge_to_the_exact_posteriors(problem):
    """Three refits from the posterior on the data: replicates with almost no effective particles become nearly exact.

    The mean has no noise, since the pool is symmetric; the remainder of a start several standard deviations away is
    below 0.1. The maps are widened on purpose, by less than a factor of two in variance. Apart from that, an entry of
    the covariance has an error of sqrt(2 / size), and the average over 20 populations one of sqrt(2 / (20 size)).
    """
    dim, _, size = problem.particles.theta.shape
    eta, pool, maps = as_float(problem.eta), problem.pool, problem.unshifted_maps
    particles, first_sizes = transport_and_weight(problem.target, pool, maps, eta)
    for fit in range(3):
        maps = refit(pool, maps, particles.log_weights)
        pool = pool.rotated()
        particles, sizes = transport_and_weight(problem.target, pool, maps, eta)
        whitened = np.linalg.solve(problem.roots, (np.asarray(maps.centre).T - problem.means)[..., None])[..., 0]
        if fit == 0:
            # Regression is exact for quadratic log-weights, except for noise in Q: one fit is almost enough.
            assert np.sqrt(np.mean(whitened**2)) < (0.13 if dim > 2 else 0.3)
    low = np.asarray(first_sizes) < 0.05 * size
    assert low.sum() >= 5
    assert (np.asarray(sizes)[low] > 0.7 * size).all()
    assert np.median(sizes) > 0.84 * size
    assert np.abs(whitened).max() < 0.1
    spread = np.linalg.solve(problem.roots, np.asarray(maps.root))
    spread = spread @ spread.transpose(0, 2, 1)
    error = np.sqrt(2 / (0.8 * size))
    widening = np.trace(spread.mean(0)) / dim
    assert 1 - 4 * error / N_POPULATIONS**0.5 < widening < 2
    assert np.abs(spread / widening - np.eye(dim)).max() < 5 * error
    assert np.abs(spread.mean(0) / widening - np.eye(dim)).max() < 5 * error / N_POPULATIONS**0.5


def test_replicates_are_refitted_independently(problem):
    """The map of a replicate depends on its own weights only, also among replicates with degenerate weights."""
    eta = as_float(problem.eta)
    particles, _ = transport_and_weight(problem.target, problem.pool, problem.unshifted_maps, eta)
    expected = refit(problem.pool, problem.unshifted_maps, particles.log_weights)
    degenerate = particles.log_weights.at[1::2].set(-jnp.inf).at[1::2, 0].set(0.0)
    refitted = refit(problem.pool, problem.unshifted_maps, degenerate)
    np.testing.assert_allclose(refitted.centre[:, ::2], expected.centre[:, ::2], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(refitted.root[::2], expected.root[::2], rtol=1e-4, atol=1e-6)
    assert np.isfinite(refitted.centre).all()
    assert np.isfinite(refitted.root).all()


def test_effective_sample_size_selects_moments_or_regression():
    """For four parameters, moments require 100 of 500 effective particles; other replicates use the regression."""
    problem = least_squares(4, 60, 500)
    rng = np.random.default_rng(5)
    too_few = np.arange(N_REPLICATES) % 3 == 0
    log_weights = jnp.asarray(np.where(too_few, 3.0, 0.1)[:, None] * rng.normal(size=(N_REPLICATES, 500)), float)
    np.testing.assert_array_equal(np.asarray(ess(log_weights)) < 100, too_few)
    maps, every = problem.unshifted_maps, np.ones(N_REPLICATES, bool)
    by_regression = refitting._regression_moments(problem.pool, log_weights, every)[0]
    by_moments = refitting._weighted_moments(problem.pool, log_weights, too_few, every)[0]
    steps = np.where(too_few[:, None], by_regression, by_moments)
    expected = np.asarray(maps.centre) + np.einsum("bkj,bj->kb", maps.root, steps)
    np.testing.assert_allclose(refit(problem.pool, maps, log_weights).centre, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 40, 1000), (4, 60, 500), (6, 300, 150)], ids=["moments", "either", "regression"])
def test_accelerators_compute_the_sums_of_the_host(shape, monkeypatch):
    """The compiled sums agree with those of NumPy, also where some replicates have no weight at all."""
    problem = least_squares(*shape)
    particles, _ = transport_and_weight(problem.target, problem.pool, problem.unshifted_maps, host_array(problem.eta))
    log_weights = particles.log_weights.at[7].set(-jnp.inf)
    expected = refit(problem.pool, problem.unshifted_maps, log_weights)
    monkeypatch.setattr(refitting.jax, "default_backend", lambda: "gpu")
    refitted = refit(problem.pool, problem.unshifted_maps, log_weights)
    # Regression on log-weights over a wide range amplifies rounding.
    np.testing.assert_allclose(refitted.centre, expected.centre, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(refitted.root, expected.root, rtol=1e-2, atol=1e-3)


def test_populations_are_assigned_cyclically(problem):
    """Replicate b uses population b mod 20; in the rotated pool the next one; after twenty rotations its own."""
    pool = problem.pool
    identity = AffineMaps(np.zeros_like(problem.exact_maps.centre), np.tile(np.eye(len(pool.u)), (N_REPLICATES, 1, 1)))
    identity = AffineMaps(host_array(identity.centre), host_array(identity.root))
    indices = np.arange(N_REPLICATES)
    for rotation, rotated in ((0, pool), (1, pool.rotated())):
        particles, _ = transport_and_weight(problem.target, rotated, identity, host_array(problem.eta))
        expected = pool.u[:, (indices + rotation) % N_POPULATIONS]
        np.testing.assert_allclose(particles.theta, expected, atol=1e-6)
        density = -problem.eta * np.asarray(particles.risk, np.float64) + np.asarray(particles.log_prior)
        log_weights = density - pool.log_density[(indices + rotation) % N_POPULATIONS]
        log_weights -= log_weights.max(-1, keepdims=True)
        computed = np.asarray(particles.log_weights) - np.asarray(particles.log_weights).max(-1, keepdims=True)
        np.testing.assert_allclose(computed, log_weights, rtol=1e-3, atol=1e-2)
    chosen = pool.for_replicates(indices)
    np.testing.assert_array_equal(chosen.u, pool.u[:, indices % N_POPULATIONS])
    np.testing.assert_array_equal(chosen.log_density, pool.log_density[indices % N_POPULATIONS])
    rotated = pool.rotated()
    assert (np.abs(rotated.u - pool.u).max((0, 2)) > 0.1).all()
    np.testing.assert_array_equal(rotated.root, pool.root)
    for _ in range(N_POPULATIONS - 1):
        rotated = rotated.rotated()
    np.testing.assert_array_equal(rotated.u, pool.u)


def test_each_population_is_whitened():
    """Each has mean zero and unit covariance; centre and root include the variance between populations."""
    problem = least_squares(*SHAPES["moments"])
    rng = np.random.default_rng(5)
    theta = np.asarray(problem.particles.theta) + 0.1 * rng.normal(size=(2, N_POPULATIONS, 1))
    shifted = evaluate(problem.target.select(jnp.zeros(N_POPULATIONS, int)), jnp.asarray(theta, float))
    pool = WhitenedPool.from_particles(shifted, 2.5)
    np.testing.assert_allclose(pool.u.mean(-1), 0, atol=1e-4)
    covariance = np.einsum("krm,jrm->rkj", pool.u, pool.u) / theta.shape[-1]
    np.testing.assert_allclose(covariance, np.broadcast_to(np.eye(2), covariance.shape), atol=1e-3)
    merged = theta.reshape(2, -1)
    np.testing.assert_allclose(pool.centre, merged.mean(1), rtol=1e-4)
    np.testing.assert_allclose(pool.root @ pool.root.T, np.cov(merged, bias=True), rtol=1e-3)
    expected = -2.5 * np.asarray(shifted.risk) + np.asarray(shifted.log_prior)
    np.testing.assert_allclose(pool.log_density, expected, rtol=1e-5, atol=1e-4)


def test_maps_are_combined_by_a_mask():
    ones, twos = (AffineMaps(np.full((2, 3), v), np.full((3, 2, 2), v)) for v in (1.0, 2.0))
    for combined in (
        ones.where(np.array([True, False, True]), twos),
        ones.with_replicates(np.array([1]), twos.select(np.array([1]))),
    ):
        np.testing.assert_array_equal(combined.centre, [[1, 2, 1]] * 2)
        np.testing.assert_array_equal(combined.root[:, 0, 0], [1, 2, 1])
    np.testing.assert_array_equal(ones.centre, np.ones((2, 3)))


def test_scaled_maps_have_scaled_variances():
    maps = AffineMaps(np.ones((2, 3)), np.tril(np.arange(1.0, 13).reshape(3, 2, 2)))
    scaled = maps.scaled(0.25)
    np.testing.assert_array_equal(scaled.centre, maps.centre)
    np.testing.assert_allclose(scaled.root @ scaled.root.mT, 0.25 * maps.root @ maps.root.mT, rtol=1e-6)


def test_weighted_particles_have_the_moments_of_a_skewed_posterior():
    """Exact draws on the data, transported to replicates by inexact maps at another learning rate.

    Replicates 0 to 19 use independent populations: 3 x 45 comparisons exceed 4.5 standard errors for one seed in 1,000.
    The average over the 20 populations has an error smaller by 1 / sqrt(20), and a bias of 1 / M of the spread, or
    about 1 / sqrt(M) = 0.03 of a standard error.
    """
    size, eta, pool_eta = 1000, 0.4, 0.3
    target, total, weighted = gamma_target(N_REPLICATES)
    rng = np.random.default_rng(2)
    shape, rate = (np.repeat(pool_eta * value[:1], N_POPULATIONS) for value in (total, weighted))
    draws = evaluate(target.select(jnp.zeros(N_POPULATIONS, int)), gamma_draws(rng, shape, rate, size))
    pool = WhitenedPool.from_particles(draws, pool_eta)
    mu, var, third = log_gamma_moments(eta * total, eta * weighted)
    sd = np.sqrt(var)
    maps = AffineMaps(
        host_array((mu + rng.uniform(-0.4, 0.4, N_REPLICATES) * sd)[None]),
        host_array((sd * rng.uniform(1.1, 1.5, N_REPLICATES))[:, None, None]),
    )
    particles, sizes = transport_and_weight(target, pool, maps, as_float(eta))
    assert (sizes > 0.4 * size).all()
    assert np.median(sizes) < 0.95 * size
    weights, deviation = np.asarray(particles.weights, float), np.asarray(particles.theta[0], float) - mu[:, None]
    for power, exact in ((1, np.zeros(N_REPLICATES)), (2, var), (3, third)):
        value = deviation**power
        estimated = (weights * value).sum(-1)
        error = np.sqrt((weights**2 * (value - estimated[:, None]) ** 2).sum(-1))
        z = (estimated - exact) / error
        assert np.abs(z).max() < 4.5, power
        populations = np.array([z[p::N_POPULATIONS].mean() for p in range(N_POPULATIONS)])
        assert abs(populations.mean()) < 4 * populations.std(ddof=1) / N_POPULATIONS**0.5, power
