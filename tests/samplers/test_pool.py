"""The pool: draws on the data at a learning rate that no one had to guess, from populations that check each other."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._core.target import evaluate, make_target
from calibayes.samplers.initial import N_POPULATIONS, InitialDraws
from calibayes.samplers.transport.pool import R_HAT_LIMIT, make_pool, moved_draws, rough_draws
from exact import gaussian_location_coverage, gaussian_location_etas

N, ROWS, M = 40, 200, 500
LOCATION = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=1000.0))


def location(scale=1.0):
    rng = np.random.default_rng(0)
    y = scale * rng.normal(1.0, 1.0, size=N)
    return (np.ones((N, 1)), y), rng.multinomial(N, np.full(N, 1 / N), size=ROWS)


@pytest.fixture(scope="module")
def target():
    data, counts = location()
    return make_target(LOCATION, data, counts, 1)


@pytest.fixture(scope="module")
def rough(target, key):
    return rough_draws(key, target, M, None)


@pytest.fixture(scope="module")
def pool(rough):
    return make_pool(jax.random.key(2), rough, M)


def assert_location(pool, eta, y):
    """Normal about the mean with variance 1 / (eta N): mean and variance within 4.5 errors of the effective size."""
    theta = np.asarray(pool.particles.theta[0], float)
    sd = (eta * N) ** -0.5
    assert abs(theta.mean() - y.mean()) < 4.5 * sd / pool.ess**0.5
    assert abs(theta.var() / sd**2 - 1) < 4.5 * (2 / pool.ess) ** 0.5


def test_the_pool_is_at_the_matching_learning_rate(pool):
    """One over the variance of the residuals for a location; from 4,000 rough draws, known to sqrt(2 / 4,000) = 2.2%.

    At worst a third of those count where the ladder ends: 4 errors of 3.9%.
    """
    _, y = location()[0]
    assert pool.eta == pytest.approx(1 / y.var(), rel=0.16)
    assert_location(pool, pool.eta, y)


def test_populations_agree_and_are_not_the_same(pool):
    """Means of 500 draws each: R-hat is 1 on average if they are independent, and no less than sqrt(1 - 1 / 500).

    The effective size, from a variance of 20 means, is right to a factor of 1 +- sqrt(2 / 19).
    """
    assert pool.particles.theta.shape == (1, N_POPULATIONS, M)
    assert (1 - 1 / M) ** 0.5 <= pool.r_hat < 1.005
    assert 0.3 * N_POPULATIONS * M < pool.ess <= N_POPULATIONS * M
    assert pool.concerns == []
    assert len(np.unique(pool.particles.theta)) > 0.9 * N_POPULATIONS * M
    # The target's reference is among the draws, so that risks are of the order of the posterior's spread.
    theta = np.asarray(pool.particles.theta)
    assert theta.min() < float(pool.target.reference[0]) < theta.max()
    populations = pool.target.select(jnp.zeros(N_POPULATIONS, int))
    np.testing.assert_allclose(
        evaluate(populations, pool.particles.theta).risk, pool.particles.risk, rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("factor", [0.4, 2.5])
def test_draws_move_to_another_learning_rate(rough, factor):
    moved = make_pool(jax.random.key(2), moved_draws(jax.random.key(1), rough, factor * rough.eta), M)
    assert moved.eta == factor * rough.eta
    assert moved.concerns == []
    assert_location(moved, moved.eta, location()[0][1])


def test_the_pool_from_the_users_draws(target, key):
    """At the user's learning rate, though far from the matching one; fewer draws than particles will do."""
    (_, y), eta = location()[0], 30.0
    draws = np.random.default_rng(3).normal(y.mean(), (eta * N) ** -0.5, (400, 1))
    pool = make_pool(jax.random.key(2), rough_draws(key, target, M, (jnp.asarray(draws, float), eta)), M)
    assert pool.eta == eta
    assert pool.concerns == []
    assert_location(pool, eta, y)
    assert len(np.unique(pool.particles.theta)) > 0.9 * N_POPULATIONS * M


@pytest.fixture(scope="module")
def scaled():
    """The same data in other units, with no hint of where eta is."""
    results = {}
    for scale in (1.0, 100.0, 0.01):
        data, counts = location(scale)
        results[scale] = cb.calibrate(
            LOCATION,
            data,
            region=cb.regions.Interval(0),
            sampler=cb.Transport(n_particles=4 * M),
            bootstrap=counts,
            seed=0,
            progress=False,
        )
    return results


@pytest.mark.parametrize("scale", [1.0, 100.0, 0.01])
def test_learning_rates_of_any_size_are_found_without_a_hint(scaled, scale):
    """Learning rates near 1, 1e-4 and 1e4, against the closed form on the same counts.

    A level near 0.95 from 500 particles (there are four times as many), averaged over three populations, has an error
    of 2 sqrt(0.025 * 0.975 / 1500) = 0.008 on each row: some 200 * 0.008 * 0.4 rows are misjudged each way, less than
    one, 0.005 of coverage; and eta may lie anywhere between order statistics, one row from the level. Two rows and four
    errors: 0.03.
    """
    (_, y), counts = location(scale)
    result = scaled[scale]
    assert result.converged
    assert abs(gaussian_location_coverage(y, counts, result.eta) - 0.95) < 0.03
    low, high = gaussian_location_etas(y, counts)
    assert low - result.eta_se < result.eta < high + result.eta_se


@pytest.mark.parametrize("scale", [100.0, 0.01])
def test_eta_has_the_unit_of_one_over_the_loss(scaled, scale):
    """In units of 1/scale^2 all find the same, on the same rows: they differ by the particles' error alone.

    That is below the error of the rows, `eta_se`: half of it.
    """
    assert abs(scaled[scale].eta * scale**2 - scaled[1.0].eta) < 0.5 * scaled[1.0].eta_se
    assert scaled[scale].eta_se * scale**2 == pytest.approx(scaled[1.0].eta_se, rel=0.5)


class Welsch(eqx.Module):
    """A loss that hardly minds what is far away, so that two clusters make two modes; nothing, where its size is 0."""

    size: jax.Array

    def __call__(self, theta, datum):
        return self.size * (1 - jnp.exp(-0.5 * jnp.square(datum - theta[0])))


def two_modes(size):
    rng = np.random.default_rng(0)
    y = np.concatenate([rng.normal(-2, 0.7, 20), rng.normal(2, 0.7, 20)])
    model = cb.GibbsModel(Welsch(jnp.asarray(size)), cb.priors.Normal(scale=3.0), dim=1)
    return y, make_target(model, y, np.ones((20, N)), 1)


def test_a_loss_that_ignores_its_parameters_is_told(key):
    _, target = two_modes(0.0)
    with pytest.raises(RuntimeError, match=r"does not follow the data.*does the loss depend on the parameters"):
        rough_draws(key, target, M, None)


def test_two_modes_have_their_weights_or_are_told(key):
    """From the prior every population sees both modes: the share of the left one is the exact one, or they disagree.

    The share is a mean of 20 independent ones, whose error is as found.
    """
    y, target = two_modes(1.0)
    pool = make_pool(jax.random.key(2), rough_draws(key, target, M, None), M)
    grid = np.linspace(-10, 10, 4001)
    log_density = -pool.eta * (1 - np.exp(-0.5 * (y[:, None] - grid) ** 2)).sum(0) - 0.5 * (grid / 3) ** 2
    weights = np.exp(log_density - log_density.max())
    exact = weights[grid < 0].sum() / weights.sum()
    assert 0.02 < exact < 0.98
    shares = (np.asarray(pool.particles.theta[0]) < 0).mean(1)
    error = shares.std(ddof=1) / N_POPULATIONS**0.5
    assert pool.concerns or abs(shares.mean() - exact) < 4 * error
    assert error < 0.03


def test_populations_in_different_modes_are_told(key):
    """Half of them in one mode and half in the other, at a learning rate where no move leads across."""
    _, target = two_modes(1.0)
    rng = np.random.default_rng(1)
    theta = rng.normal(0, 0.1, (1, N_POPULATIONS, M)) + np.where(np.arange(N_POPULATIONS) % 2, 2.0, -2.0)[:, None]
    particles = evaluate(target.select(jnp.zeros(N_POPULATIONS, int)), jnp.asarray(theta, float))
    stuck = make_pool(key, InitialDraws(target, particles, 20.0), M)
    assert stuck.r_hat > 3 > R_HAT_LIMIT
    assert stuck.ess < 100
    (concern,) = stuck.concerns
    assert "20 populations of draws on the data" in concern
    assert "several modes" in concern
