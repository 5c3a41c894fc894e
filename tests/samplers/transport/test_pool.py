"""The pool has draws of the posterior on the data, in populations that check each other."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._core.precision import PrecisionError
from calibayes._core.status import Code
from calibayes._core.target import evaluate, make_target
from calibayes.samplers.initial import InitialDraws
from calibayes.samplers.populations import N_POPULATIONS
from calibayes.samplers.transport import config, matching
from calibayes.samplers.transport.matching import initial_populations, move_populations
from calibayes.samplers.transport.pool import _repeat_draws, make_pool
from exact import gaussian_location_coverage, gaussian_location_etas

N, N_REPLICATES, M = 40, 200, 500
LOCATION = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=1000.0))


def location(scale=1.0):
    """Return data and counts of a Gaussian location problem."""
    rng = np.random.default_rng(0)
    y = scale * rng.normal(1.0, 1.0, size=N)
    return (np.ones((N, 1)), y), rng.multinomial(N, np.full(N, 1 / N), size=N_REPLICATES)


@pytest.fixture(scope="module")
def target():
    data, counts = location()
    return make_target(LOCATION, data, counts, 1)


@pytest.fixture(scope="module")
def initial(target, key):
    return initial_populations(key, target, M)


@pytest.fixture(scope="module")
def pool(initial):
    return make_pool(jax.random.key(2), initial, M)


def assert_location_posterior(pool, eta, y):
    """Normal about the mean with variance 1 / (eta N): mean and variance within 4.5 errors of the effective size."""
    theta = np.asarray(pool.particles.theta[0], float)
    sd = (eta * N) ** -0.5
    assert abs(theta.mean() - y.mean()) < 4.5 * sd / pool.ess**0.5
    assert abs(theta.var() / sd**2 - 1) < 4.5 * (2 / pool.ess) ** 0.5


@pytest.mark.parametrize(
    ("n_particles", "indices"), [(4, [0, 1, 3, 4]), (6, [0, 1, 2, 3, 4, 5]), (8, [0, 1, 2, 3, 4, 5, 0, 1])]
)
def test_draws_are_repeated_or_thinned_evenly(target, n_particles, indices):
    theta = jnp.asarray(np.random.default_rng(0).normal(size=(1, 3, 6)), float)
    particles = evaluate(target.select(jnp.arange(3)), theta)
    repeated = _repeat_draws(particles, n_particles)
    for new, old in (
        (repeated.theta, theta),
        (repeated.risk, particles.risk),
        (repeated.log_prior, particles.log_prior),
    ):
        np.testing.assert_array_equal(new, old[..., jnp.asarray(indices)])
    np.testing.assert_allclose(repeated.weights, 1 / n_particles, rtol=1e-6)


def test_pool_is_at_the_matching_learning_rate(pool):
    """For a location, one over the variance of the residuals.

    Estimated from 4,000 initial draws it has an error of sqrt(2 / 4,000) = 2.2%. At worst a third of those are
    effective: 4 errors of 3.9%.
    """
    _, y = location()[0]
    assert pool.eta == pytest.approx(1 / y.var(), rel=0.16)
    assert_location_posterior(pool, pool.eta, y)


def test_matching_learning_rate_is_found_by_importance_sampling(target, key, monkeypatch):
    """Without normal fits, as for the check loss; the tolerance is that of the test above."""
    monkeypatch.setattr(matching, "can_fit_normal", lambda target: False)
    initial = initial_populations(key, target, M)
    assert initial.independent
    assert initial.eta == pytest.approx(1 / location()[0][1].var(), rel=0.16)


def test_populations_agree_and_differ(pool):
    """Means of 500 draws each: R-hat is 1 on average if they are independent, and at least sqrt(1 - 1 / 500).

    The effective sample size, from the variance of 20 means, has a relative error of sqrt(2 / 19).
    """
    assert pool.particles.theta.shape == (1, N_POPULATIONS, M)
    assert (1 - 1 / M) ** 0.5 <= pool.r_hat < 1.005
    assert 0.3 * N_POPULATIONS * M < pool.ess <= N_POPULATIONS * M
    assert pool.diagnostics == ()
    assert len(np.unique(pool.particles.theta)) > 0.9 * N_POPULATIONS * M
    # The reference of the target is among the draws, so that risks are of the order of the posterior spread.
    theta = np.asarray(pool.particles.theta)
    assert theta.min() < float(pool.target.reference[0]) < theta.max()
    populations = pool.target.select(jnp.zeros(N_POPULATIONS, int))
    evaluated = evaluate(populations, pool.particles.theta)
    np.testing.assert_allclose(evaluated.risk, pool.particles.risk, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("factor", [0.4, 2.5])
def test_populations_move_to_another_learning_rate(initial, factor):
    moved = make_pool(jax.random.key(2), move_populations(jax.random.key(1), initial, factor * initial.eta), M)
    assert moved.eta == factor * initial.eta
    assert moved.diagnostics == ()
    assert_location_posterior(moved, moved.eta, location()[0][1])


def test_pool_from_the_users_draws(target, key):
    """At the user's learning rate, though far from the matching one, and from fewer draws than particles."""
    (_, y), eta = location()[0], 30.0
    draws = np.random.default_rng(3).normal(y.mean(), (eta * N) ** -0.5, (400, 1))
    initial = initial_populations(key, target, M, jnp.asarray(draws, float), eta)
    pool = make_pool(jax.random.key(2), initial, M)
    assert pool.eta == eta
    assert pool.diagnostics == ()
    assert_location_posterior(pool, eta, y)
    assert len(np.unique(pool.particles.theta)) > 0.9 * N_POPULATIONS * M


@pytest.fixture(scope="module")
def scaled():
    """Calibrations of the same data in other units, without a starting value for eta."""
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
def test_eta_of_any_magnitude_is_found_without_a_starting_value(scaled, scale):
    """Learning rates near 1, 1e-4 and 1e4, against the closed form on the same counts.

    A level near 0.95 from 500 particles (there are four times as many), averaged over three populations, has an error
    of 2 sqrt(0.025 * 0.975 / 1500) = 0.008. About 200 * 0.008 * 0.4 replicates are misclassified in each direction,
    fewer than one, or 0.005 of coverage; and eta may lie anywhere between two order statistics. Two replicates and four
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
    """In units of 1 / scale^2 the answers on the same replicates differ by the error of the particles alone.

    That is below the error due to the replicates, `eta_se`; half of it is allowed.
    """
    assert abs(scaled[scale].eta * scale**2 - scaled[1.0].eta) < 0.5 * scaled[1.0].eta_se
    assert scaled[scale].eta_se * scale**2 == pytest.approx(scaled[1.0].eta_se, rel=0.5)


class Welsch(eqx.Module):
    """A bounded loss, with which two clusters make two modes; constant if `size` is 0."""

    size: jax.Array

    def __call__(self, theta, datum):
        return self.size * (1 - jnp.exp(-0.5 * jnp.square(datum - theta[0])))


def two_modes(size):
    rng = np.random.default_rng(0)
    y = np.concatenate([rng.normal(-2, 0.7, 20), rng.normal(2, 0.7, 20)])
    model = cb.GibbsModel(Welsch(jnp.asarray(size)), cb.priors.Normal(scale=3.0), dim=1)
    return y, make_target(model, y, np.ones((20, N)), 1)


def test_constant_loss_is_an_error(key):
    _, target = two_modes(0.0)
    with pytest.raises(PrecisionError, match="the same at all draws of the prior in single precision"):
        initial_populations(key, target, M)


def test_two_modes_have_their_probabilities_or_populations_disagree(key):
    """From the prior every population finds both modes: the probability of the left one is exact, or they disagree.

    The probability is a mean of 20 independent ones, with an estimated standard error.
    """
    y, target = two_modes(1.0)
    pool = make_pool(jax.random.key(2), initial_populations(key, target, M), M)
    grid = np.linspace(-10, 10, 4001)
    log_density = -pool.eta * (1 - np.exp(-0.5 * (y[:, None] - grid) ** 2)).sum(0) - 0.5 * (grid / 3) ** 2
    weights = np.exp(log_density - log_density.max())
    exact = weights[grid < 0].sum() / weights.sum()
    assert 0.02 < exact < 0.98
    shares = (np.asarray(pool.particles.theta[0]) < 0).mean(1)
    error = shares.std(ddof=1) / N_POPULATIONS**0.5
    assert pool.diagnostics or abs(shares.mean() - exact) < 4 * error
    assert error < 0.03


def test_populations_in_different_modes_are_reported(key):
    """Half of them in each mode, at a learning rate at which no move connects the modes."""
    _, target = two_modes(1.0)
    rng = np.random.default_rng(1)
    theta = rng.normal(0, 0.1, (1, N_POPULATIONS, M)) + np.where(np.arange(N_POPULATIONS) % 2, 2.0, -2.0)[:, None]
    particles = evaluate(target.select(jnp.zeros(N_POPULATIONS, int)), jnp.asarray(theta, float))
    stuck = make_pool(key, InitialDraws(target, particles, 20.0), M)
    assert stuck.r_hat > 3 > config.CONFIG.pool.max_r_hat
    assert stuck.ess < 100
    (diagnostic,) = stuck.diagnostics
    assert diagnostic.code == Code.POPULATIONS_DISAGREE
    assert "20 populations of initial draws" in diagnostic.message
    assert "several modes" in diagnostic.message
