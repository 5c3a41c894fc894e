"""Importance sampling of log-concave posteriors, against closed forms, and its failures."""

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
from calibayes.samplers.initial import InitialDraws
from calibayes.samplers.mixing import rejuvenate_until_mixed
from calibayes.samplers.populations import N_POPULATIONS, population_target
from calibayes.samplers.transport import importance, pool
from calibayes.samplers.transport.importance import (
    DegenerateWeightsError,
    Proposal,
    draw_populations,
    supports,
)
from calibayes.samplers.transport.pool import make_pool

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


class TruncatedSquared(cb.losses.Squared):
    """A subclass of a convex loss that is not convex."""

    def rho(self, prediction, y):
        return jnp.minimum(jnp.square(prediction - y), 1.0)


class RenamedSquared(cb.losses.Squared):
    """A subclass that overrides nothing inherits convexity."""


class MixturePrior(cb.priors.Normal):
    """A subclass of a log-concave prior with two modes."""

    def log_prob(self, theta):
        return jnp.logaddexp(super().log_prob(theta), super().log_prob(theta - 5.0))


class BoundedNormal(cb.priors.Normal):
    """A subclass that adds bounds."""

    @property
    def bounds(self):
        return 0.0, np.inf


class DecomposedSquared(cb.losses.Squared):
    """A subclass whose evaluated decomposition is not convex."""

    def decompose(self):
        return (lambda prediction, y: jnp.minimum(jnp.square(prediction - y), 1.0)), None


def small_target(model, dim=1):
    data = np.ones(4) if isinstance(model.loss, Generic) else (np.ones((4, dim)), np.array([-1.0, 1.0, 1.0, -1.0]))
    return make_target(model, data, np.ones((2, 4), int), dim)


@pytest.fixture(scope="module")
def problem():
    """Least squares with a normal prior: the posterior is normal at any learning rate."""
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(N), rng.normal(size=(N, K - 1)) @ [[1.0, 0.8], [0.0, 0.6]]])
    y = x @ [1.0, -2.0, 0.5] + rng.normal(size=N)
    counts = rng.multinomial(N, np.full(N, 1 / N), size=20)
    return make_target(MODEL, (x, y), counts, K), x, y


def exact(x, y, eta):
    """Return mean and covariance of the posterior on the data."""
    precision = eta * x.T @ x + np.eye(K) / PRIOR**2
    covariance = np.linalg.inv(precision)
    return covariance @ (eta * x.T @ y), covariance


def whitened(particles, x, y, eta):
    mean, covariance = exact(x, y, eta)
    theta = np.asarray(particles.theta, np.float64).reshape(K, -1)
    return np.linalg.solve(np.linalg.cholesky(covariance), theta - mean[:, None])


def assert_standard_normal(u, size):
    """Check means, products and kurtosis within 4.5 errors of `size` independent draws."""
    assert np.abs(u.mean(1)).max() < 4.5 / size**0.5
    assert np.abs(u @ u.T / u.shape[1] - np.eye(K)).max() < 4.5 * (2 / size) ** 0.5
    # The kurtosis distinguishes a Student t (4.5) from a normal (3).
    assert np.abs((u**4).mean(1) - 3).max() < 4.5 * (96 / size) ** 0.5 < 1


@pytest.fixture(scope="module")
def exact_draws(problem):
    target, x, y = problem
    mean, covariance = exact(x, y, ETA)
    normal = np.random.default_rng(1).normal(size=(K, N_POPULATIONS * M))
    theta = mean[:, None] + np.linalg.cholesky(covariance) @ normal
    return evaluate(population_target(target), jnp.asarray(theta.reshape(K, N_POPULATIONS, M), float))


def test_populations_are_nearly_independent_draws(problem, exact_draws):
    """Four draws of the proposal for each one that is kept: nearly all kept draws are different."""
    target, x, y = problem
    drawn, (r_hat, size) = draw_populations(jax.random.key(3), target, exact_draws, ETA, M)
    assert 1 <= r_hat < 1.01
    # The smallest of four effective sample sizes, each with a relative error of sqrt(2 / 19).
    assert 0.25 * N_POPULATIONS * M < size <= N_POPULATIONS * M
    assert drawn.theta.shape == (K, N_POPULATIONS, M)
    np.testing.assert_array_equal(drawn.log_weights, uniform_log_weights((N_POPULATIONS, M)))
    assert_standard_normal(whitened(drawn, x, y, ETA), 0.8 * N_POPULATIONS * M)
    assert len(np.unique(drawn.theta[0])) > 0.95 * N_POPULATIONS * M


def test_proposal_is_a_student_t(problem):
    """Draws have the covariance of the t, df / (df - 2) times its scale matrix, and with their weights the posterior's.

    The variance of the square of a t variable is (3 (df - 2) / (df - 4) - 1) times its squared variance: 3.5 for 8 df.
    """
    target, x, y = problem
    mean, covariance = exact(x, y, ETA)
    centre = jnp.asarray(mean + 0.3 * covariance.diagonal() ** 0.5, float)
    proposal = Proposal(centre, jnp.asarray(np.linalg.cholesky(1.5 * covariance), float))
    keys = replicate_keys(jax.random.key(4), N_POPULATIONS)
    weighted = importance._draw_and_weight(keys, population_target(target), proposal, as_float(ETA), M)
    offset = np.linalg.solve(np.linalg.cholesky(covariance), np.asarray(proposal.centre) - mean)
    u = whitened(weighted, x, y, ETA) - offset.reshape(K, 1)
    assert np.abs((u**2).mean(1) / (1.5 * 8 / 6) - 1).max() < 4.5 * (3.5 / (N_POPULATIONS * M)) ** 0.5
    weights = np.exp(np.asarray(weighted.log_weights, np.float64)).ravel() / N_POPULATIONS
    assert weights.sum() == pytest.approx(1, rel=1e-4)
    size = 1 / (weights**2).sum()
    u = whitened(weighted, x, y, ETA)
    assert size > 0.4 * N_POPULATIONS * M
    # The error of a weighted mean is that of the effective sample size, or slightly larger: a factor of 1.25.
    assert np.abs(u @ weights).max() < 1.25 * 4.5 / size**0.5
    assert np.abs((u * weights) @ u.T - np.eye(K)).max() < 1.25 * 4.5 * (2 / size) ** 0.5


def shifted(target, draws):
    """Return draws far away from the posterior."""
    theta = draws.theta + 30 * np.asarray(draws.theta).std()
    return evaluate(population_target(target), theta)


def test_bad_proposal_is_an_error(problem, exact_draws):
    target, _, _ = problem
    with pytest.raises(DegenerateWeightsError):
        draw_populations(jax.random.key(3), target, shifted(target, exact_draws), ETA, M)


def test_pool_uses_markov_chains_if_weights_are_degenerate(problem, exact_draws, monkeypatch):
    target, x, y = problem
    calls = []

    def recorded(*args, **options):
        calls.append(1)
        return rejuvenate_until_mixed(*args, **options)

    monkeypatch.setattr(pool, "rejuvenate_until_mixed", recorded)
    make_pool(jax.random.key(5), InitialDraws(target, exact_draws, ETA), M)
    assert not calls
    recovered = make_pool(jax.random.key(5), InitialDraws(target, shifted(target, exact_draws), ETA), M)
    assert calls
    # From so far away the particles mix slowly; it suffices that they have returned.
    assert np.abs(whitened(recovered.particles, x, y, ETA).mean(1)).max() < 1


def test_nan_losses_are_an_error(problem, exact_draws):
    """No draw is effective."""
    target, _, _ = problem
    broken = replace(target, data=jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), target.data))
    with pytest.raises(DegenerateWeightsError):
        draw_populations(jax.random.key(3), broken, exact_draws, ETA, M)


@pytest.mark.parametrize("loss", [*CONVEX, RenamedSquared()], ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("prior", [cb.priors.Normal(), cb.priors.Laplace()], ids=["normal", "laplace"])
def test_log_concave_posteriors_are_supported(loss, prior):
    assert supports(small_target(cb.GibbsModel(loss, prior)))


@pytest.mark.parametrize(
    "loss",
    [
        TruncatedSquared(),
        DecomposedSquared(),
        cb.losses.Linear(lambda f, y: jnp.square(f - y)),
        lambda theta, datum: jnp.square(theta[0] - datum),
    ],
    ids=["subclass", "decomposition", "linear", "generic"],
)
def test_losses_of_unknown_convexity_are_not_supported(loss):
    assert not supports(small_target(cb.GibbsModel(loss, cb.priors.Normal(), dim=1)))


@pytest.mark.parametrize(
    "prior",
    [MixturePrior(), BoundedNormal(), cb.priors.StudentT(3.0), cb.priors.Uniform(-1.0, 1.0)],
    ids=["subclass", "bounded subclass", "t", "uniform"],
)
def test_other_priors_are_not_supported(prior):
    """A bounded prior may be log-concave, but not in the unconstrained coordinates of the particles."""
    assert not supports(small_target(cb.GibbsModel(cb.losses.Squared(), prior)))


def test_many_parameters_are_not_supported():
    model = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal())
    assert supports(small_target(model, 50))
    assert not supports(small_target(model, 51))


@pytest.mark.parametrize("loss", CONVEX, ids=lambda loss: type(loss).__name__)
def test_losses_declared_convex_are_convex(loss):
    """Second differences between -5 and 5 are non-negative."""
    predictions = jnp.linspace(-5, 5, 201)
    for y in (-1.0, 1.0):
        value = np.asarray(loss.rho(predictions, jnp.asarray(y)), np.float64)
        assert np.diff(value, 2).min() > -1e-5
