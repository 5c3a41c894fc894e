"""Draws of a log-concave posterior by weights alone: against closed forms, and where they must give way."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._backend.functions import as_float
from calibayes._backend.rng import replicate_keys
from calibayes._core.particles import uniform_log_weights
from calibayes._core.target import evaluate, make_target
from calibayes.losses import Generic
from calibayes.samplers import one_mode, pool
from calibayes.samplers.initial import N_POPULATIONS, InitialDraws, population_target, rejuvenate_until_mixed
from calibayes.samplers.transport.importance import (
    NoFitError,
    drawn_by_weights,
    has_one_mode,
    matched_by_weights,
    moved_by_weights,
)
from calibayes.samplers.transport.pool import make_pool, rough_draws

N, K, M, ETA, PRIOR = 50, 3, 500, 0.7, 10.0
MODEL = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=PRIOR))

CONVEX = [
    cb.losses.Quantile(0.3),
    cb.losses.Absolute(),
    cb.losses.Squared(),
    cb.losses.Huber(),
    cb.losses.Expectile(0.3),
    cb.losses.Hinge(),
    cb.losses.Logistic(),
]


class Bent(cb.losses.Squared):
    """Not convex any more."""

    def rho(self, prediction, y):
        return jnp.minimum(jnp.square(prediction - y), 1.0)


class Scaled(cb.losses.Squared):
    """What is said of a loss holds where it is the same."""


class Twice(cb.priors.Normal):
    def log_prob(self, theta):
        return jnp.logaddexp(super().log_prob(theta), super().log_prob(theta - 5.0))


class Half(cb.priors.Normal):
    """Says what its density is where it is not zero."""

    @property
    def bounds(self):
        return 0.0, np.inf


class Apart(cb.losses.Squared):
    """What is evaluated is not what is said to be convex."""

    def parts(self):
        return (lambda prediction, y: jnp.minimum(jnp.square(prediction - y), 1.0)), None


def a_target(model, dim=1):
    data = np.ones(4) if isinstance(model.loss, Generic) else (np.ones((4, dim)), np.array([-1.0, 1.0, 1.0, -1.0]))
    return make_target(model, data, np.ones((2, 4), int), dim)


@pytest.fixture(scope="module")
def problem():
    """Least squares with a normal prior: normal at any learning rate."""
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(N), rng.normal(size=(N, K - 1)) @ [[1.0, 0.8], [0.0, 0.6]]])
    y = x @ [1.0, -2.0, 0.5] + rng.normal(size=N)
    counts = rng.multinomial(N, np.full(N, 1 / N), size=20)
    return make_target(MODEL, (x, y), counts, K), x, y


def exact(x, y, eta):
    precision = eta * x.T @ x + np.eye(K) / PRIOR**2
    covariance = np.linalg.inv(precision)
    return covariance @ (eta * x.T @ y), covariance


def whitened(particles, x, y, eta):
    mean, covariance = exact(x, y, eta)
    theta = np.asarray(particles.theta, np.float64).reshape(K, -1)
    return np.linalg.solve(np.linalg.cholesky(covariance), theta - mean[:, None])


def assert_normal(u, size):
    """Standard normal, as far as `size` independent draws tell: 4.5 errors of each mean and product."""
    assert np.abs(u.mean(1)).max() < 4.5 / size**0.5
    assert np.abs(u @ u.T / u.shape[1] - np.eye(K)).max() < 4.5 * (2 / size) ** 0.5
    # Kurtosis, which tells a t from a normal: 3 and not 4.5.
    assert np.abs((u**4).mean(1) - 3).max() < 4.5 * (96 / size) ** 0.5 < 1


@pytest.fixture(scope="module")
def matched(problem, key):
    return matched_by_weights(key, problem[0], M)


def test_from_the_prior(problem, matched):
    """Of equal weight at the end; resampled from draws of which most count, so worth a third of their number."""
    target, x, y = problem
    particles, eta = matched
    np.testing.assert_array_equal(particles.log_weights, uniform_log_weights((N_POPULATIONS, M)))
    assert_normal(whitened(particles, x, y, eta), N_POPULATIONS * M / 3)
    again = evaluate(population_target(target), particles.theta)
    np.testing.assert_allclose(particles.risk, again.risk, rtol=1e-4, atol=1e-3)


def test_to_the_matching_learning_rate(problem, matched):
    """K / tr(Sigma^-1 V) times eta, which squared loss has in closed form: the influence of observation i is
    eta Sigma x_i r_i, with residuals r from the posterior's mean, where Sigma and r are of that eta itself.

    Of 10,000 draws, worth a third, Sigma is known to sqrt(2 K / 3,000) and V to about as much: 4.5 of 6%, both.
    """
    _, x, y = problem
    _, eta = matched
    mean, covariance = exact(x, y, eta)
    influences = eta * covariance @ (x * (y - x @ mean)[:, None]).T
    matching = eta * K / np.trace(np.linalg.solve(covariance, influences @ influences.T))
    assert eta == pytest.approx(matching, rel=0.27)


def test_up_and_back(problem, key, rough):
    """Down as well as up, and with other random numbers."""
    target, x, y = problem
    up = moved_by_weights(key, target, rough, ETA, 40 * ETA)
    assert_normal(whitened(up, x, y, 40 * ETA), up.risk.size / 3)
    down = moved_by_weights(key, target, up, 40 * ETA, ETA)
    assert_normal(whitened(down, x, y, ETA), down.risk.size / 3)
    assert abs(np.corrcoef(np.ravel(down.theta[0]), np.ravel(rough.theta[0]))[0, 1]) < 0.1


@pytest.fixture(scope="module")
def rough(problem, key):
    target, x, y = problem
    mean, covariance = exact(x, y, ETA)
    normal = np.random.default_rng(1).normal(size=(K, N_POPULATIONS * M))
    theta = mean[:, None] + np.linalg.cholesky(covariance) @ normal
    return evaluate(population_target(target), jnp.asarray(theta.reshape(K, N_POPULATIONS, M), float))


def test_draws(problem, rough):
    """Four for each that is kept, of which most count: nearly independent, and nearly all different."""
    target, x, y = problem
    drawn, (r_hat, size) = drawn_by_weights(jax.random.key(3), target, rough, ETA, M)
    assert 1 <= r_hat < 1.01
    # Right to a factor of 1 +- sqrt(2 / 19) each, and the smallest of four.
    assert 0.25 * N_POPULATIONS * M < size <= N_POPULATIONS * M
    assert drawn.theta.shape == (K, N_POPULATIONS, M)
    np.testing.assert_array_equal(drawn.log_weights, uniform_log_weights((N_POPULATIONS, M)))
    assert_normal(whitened(drawn, x, y, ETA), 0.8 * N_POPULATIONS * M)
    assert len(np.unique(drawn.theta[0])) > 0.95 * N_POPULATIONS * M


def test_weights_are_those_of_a_t(problem, rough):
    """Draws have the t's covariance, df / (df - 2) of the fitted one, and with their weights the posterior's.

    The variance of a t's square is (3 (df - 2) / (df - 4) - 1) of its variance squared: for 8 df, 3.5.
    """
    target, x, y = problem
    mean, covariance = exact(x, y, ETA)
    fit = one_mode._Fit(jnp.asarray(mean + 0.3 * covariance.diagonal() ** 0.5, float), None)
    fit = fit._replace(root=jnp.asarray(np.linalg.cholesky(1.5 * covariance), float))
    weighted = one_mode._weighted(
        replicate_keys(jax.random.key(4), N_POPULATIONS), population_target(target), fit, as_float(ETA), M
    )
    u = whitened(weighted, x, y, ETA) - np.linalg.solve(
        np.linalg.cholesky(covariance), np.asarray(fit.centre) - mean
    ).reshape(K, 1)
    assert np.abs((u**2).mean(1) / (1.5 * 8 / 6) - 1).max() < 4.5 * (3.5 / (N_POPULATIONS * M)) ** 0.5
    weights = np.exp(np.asarray(weighted.log_weights, np.float64)).ravel()
    assert weights.sum() == pytest.approx(1, rel=1e-4)
    size = 1 / (weights**2).sum()
    u = whitened(weighted, x, y, ETA)
    assert size > 0.4 * N_POPULATIONS * M
    # A weighted mean is no better than its effective size says, and hardly worse where tails weigh less: 1.25.
    assert np.abs(u @ weights).max() < 1.25 * 4.5 / size**0.5
    assert np.abs((u * weights) @ u.T - np.eye(K)).max() < 1.25 * 4.5 * (2 / size) ** 0.5


def moved_away(target, rough):
    theta = rough.theta + 30 * np.asarray(rough.theta).std()
    return evaluate(population_target(target), theta)


def test_a_fit_that_fails_is_told(problem, rough):
    target, _, _ = problem
    with pytest.raises(NoFitError):
        drawn_by_weights(jax.random.key(3), target, moved_away(target, rough), ETA, M)


def test_a_pool_gives_way_to_chains(problem, rough, monkeypatch):
    """Which find back from anywhere."""
    target, x, y = problem
    asked = []
    monkeypatch.setattr(
        pool, "by_mcmc", lambda *args, **options: asked.append(1) or rejuvenate_until_mixed(*args, **options)
    )
    make_pool(jax.random.key(5), InitialDraws(target, rough, ETA), M)
    assert not asked
    found = make_pool(jax.random.key(5), InitialDraws(target, moved_away(target, rough), ETA), M)
    assert asked
    # From so far away the particles settle, but slowly: it is enough that they are back.
    assert np.abs(whitened(found.particles, x, y, ETA).mean(1)).max() < 1


def test_rows_that_weights_do_badly_on_are_seen(problem, rough):
    """Losses that are no number leave nothing that counts, and no loop goes on for it."""
    target, _, _ = problem
    broken = replace(target, data=jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), target.data))
    with pytest.raises(NoFitError):
        drawn_by_weights(jax.random.key(3), broken, rough, ETA, M)
    with pytest.raises(NoFitError):
        moved_by_weights(jax.random.key(3), broken, rough, ETA, 2 * ETA)
    with pytest.raises(NoFitError):
        matched_by_weights(jax.random.key(3), broken, M)


def test_a_ladder_takes_over(problem, key, monkeypatch):
    """And comes to the same learning rate, to the 4 errors of `test_pool`, of either: 1.4 times 16%."""
    target, _, _ = problem
    by_weights = rough_draws(key, target, M, None)

    tried = []

    def fails(*args):
        tried.append(args)
        raise NoFitError

    monkeypatch.setattr(pool, "matched_by_weights", fails)
    by_ladder = rough_draws(key, target, M, None)
    assert len(tried) == 1
    assert not np.array_equal(by_weights.particles.theta, by_ladder.particles.theta)
    assert by_weights.eta == pytest.approx(by_ladder.eta, rel=0.23)


@pytest.mark.parametrize("loss", [*CONVEX, Scaled()], ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("prior", [cb.priors.Normal(), cb.priors.Laplace()], ids=["normal", "laplace"])
def test_one_mode(loss, prior):
    assert has_one_mode(a_target(cb.GibbsModel(loss, prior)))


@pytest.mark.parametrize(
    "loss",
    [
        Bent(),
        Apart(),
        cb.losses.Linear(lambda f, y: jnp.square(f - y)),
        lambda theta, datum: jnp.square(theta[0] - datum),
    ],
    ids=["subclass", "parts of its own", "linear", "generic"],
)
def test_nothing_is_known_of_other_losses(loss):
    assert not has_one_mode(a_target(cb.GibbsModel(loss, cb.priors.Normal(), dim=1)))


@pytest.mark.parametrize(
    "prior",
    [Twice(), Half(), cb.priors.StudentT(3.0), cb.priors.Uniform(-1.0, 1.0)],
    ids=["subclass", "bounded subclass", "t", "uniform"],
)
def test_nor_of_other_priors(prior):
    """A bounded one is log-concave, but not in the coordinates that particles live in."""
    assert not has_one_mode(a_target(cb.GibbsModel(cb.losses.Squared(), prior)))


def test_nor_can_weights_be_even_with_many_parameters():
    model = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal())
    assert has_one_mode(a_target(model, 50))
    assert not has_one_mode(a_target(model, 51))


@pytest.mark.parametrize("loss", CONVEX, ids=lambda loss: type(loss).__name__)
def test_what_is_said_of_losses_is_true(loss):
    """Below its chords, from -5 to 5."""
    at = jnp.linspace(-5, 5, 201)
    for y in (-1.0, 1.0):
        value = np.asarray(loss.rho(at, jnp.asarray(y)), np.float64)
        assert np.diff(value, 2).min() > -1e-5
