"""Minimizers of the risk on replicates against linear programs, and draws near bounds of the prior in closed form."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.optimize import linprog

import calibayes as cb
from calibayes._core.target import evaluate, make_target
from calibayes.methods import q_posterior
from calibayes.methods.moments import Draws, DrawsOnData
from calibayes.methods.posterior_bootstrap import minimizers

N, K, B = 60, 3, 30
RNG = np.random.default_rng(5)
X = np.column_stack([np.ones(N), RNG.normal(size=(N, K - 1))])
COUNTS = RNG.dirichlet(np.ones(N), size=B) * N
PRIOR = cb.priors.Normal(scale=100.0)


def particles_around(target, centre, covariance):
    """Return normal draws of every posterior around the same centre, as wide as those of a learning rate of one."""
    noise = np.random.default_rng(0).multivariate_normal(np.zeros(len(centre)), covariance, 400)
    theta = np.repeat((centre + noise).T[:, None], target.n_replicates, 1)
    return evaluate(target, target.coordinates.unconstrain(jnp.asarray(theta, float)))


def regression_minimizers(model, y, centre):
    target = make_target(model, (X, y), COUNTS, K)
    # About as wide as the distribution of the minimizers.
    result = minimizers(target, particles_around(target, centre, 3 / N * np.eye(K)), 1.0)
    return result.theta[:, 1:].T, result.converged


def by_linear_program(costs, matrix, bounds):
    """Minimize costs @ max(matrix @ theta - bounds, 0) over theta."""
    n_terms, dim = matrix.shape
    objective = np.concatenate([np.zeros(dim), costs])
    constraint = np.concatenate([matrix, -np.eye(n_terms)], 1)
    limits = [(None, None)] * dim + [(0, None)] * n_terms
    return linprog(objective, A_ub=constraint, b_ub=bounds, bounds=limits, method="highs").x[:dim]


@pytest.mark.parametrize("tau", [0.5, 0.9])
def test_minimizers_of_check_losses_are_those_of_linear_programs(tau):
    """Up to 2% (root mean square) of their standard deviation; smoothing at a posterior's width gives about 30%."""
    y = X.sum(1) + np.random.default_rng(6).normal(size=N)
    model = cb.GibbsModel(cb.losses.Quantile(tau), PRIOR)
    ours, converged = regression_minimizers(model, y, np.array([1 + stats.norm.ppf(tau), 1.0, 1.0]))
    signs, bounds = np.concatenate([-X, X]), np.concatenate([-y, y])
    exact = [by_linear_program(np.concatenate([tau * row, (1 - tau) * row]), signs, bounds) for row in COUNTS]
    errors = (ours - exact) / np.std(exact, axis=0)
    assert np.sqrt(np.square(errors).mean()) < 0.02
    assert converged.all()


def test_minimizers_of_the_hinge_loss_are_those_of_linear_programs():
    y = np.where(X[:, 1] + stats.logistic.rvs(size=N, random_state=1) > 0, 1.0, -1.0)
    ours, _ = regression_minimizers(cb.GibbsModel(cb.losses.Hinge(), PRIOR), y, np.array([0.0, 0.5, 0.0]))
    exact = [by_linear_program(row, -y[:, None] * X, -np.ones(N)) for row in COUNTS]
    errors = (ours - exact) / np.std(exact, axis=0)
    assert np.sqrt(np.square(errors).mean()) < 0.02


@pytest.mark.parametrize("smooth", [True, False])
def test_minimizers_of_a_function_without_a_derivative_have_not_converged(smooth):
    """Squared errors and absolute errors, as functions of theta."""
    y = X.sum(1) + np.random.default_rng(6).normal(size=N)
    size = (lambda u: 0.5 * u**2) if smooth else jnp.abs
    model = cb.GibbsModel(lambda theta, datum: size(datum[1] - datum[0] @ theta), PRIOR, dim=K)
    ours, converged = regression_minimizers(model, y, np.ones(K))
    assert converged.all() if smooth else converged.mean() < 0.1
    if smooth:
        fits = np.linalg.solve(np.einsum("bn,nk,nj->bkj", COUNTS, X, X), (COUNTS * y @ X)[..., None])[..., 0]
        np.testing.assert_allclose(ours, fits, atol=5e-3 / np.sqrt(N))


def test_minimizers_of_a_risk_without_a_finite_gradient_have_not_converged():
    """The derivative of the square root at zero is infinite, times zero."""
    y = X.sum(1) + np.random.default_rng(6).normal(size=N)

    def risk(theta, data, counts):
        x, y = data
        return 0.5 * counts @ (y - x @ theta) ** 2 + jnp.sqrt(0 * theta[0])

    _, converged = regression_minimizers(cb.GibbsModel.from_risk(risk, PRIOR, dim=K), y, np.ones(K))
    assert not converged.any()


def test_minimizers_of_a_concave_loss_of_a_linear_prediction_have_not_converged():
    model = cb.GibbsModel(cb.losses.Linear(lambda prediction, y: -jnp.abs(y - prediction)), PRIOR)
    assert not regression_minimizers(model, X.sum(1), np.ones(K))[1].any()


@pytest.mark.parametrize("linear", [True, False])
def test_posterior_bootstrap_needs_a_derivative(linear):
    """The derivative of a 0-1 loss is zero."""
    outside = lambda prediction, y: jnp.where(jnp.abs(y - prediction) > 1.0, 1.0, 0.0)
    loss = cb.losses.Linear(outside) if linear else lambda theta, datum: outside(datum[0] @ theta, datum[1])
    y = X.sum(1) + np.random.default_rng(6).normal(size=N)
    target = make_target(cb.GibbsModel(loss, PRIOR, dim=K), (X, y), COUNTS, K)
    particles = particles_around(target, np.ones(K), 3 / N * np.eye(K))
    on_data = evaluate(target.replicate(0), particles.theta[:, :1])
    draws = DrawsOnData(target, (Draws(on_data, 1.0),), None, key=jax.random.key(0))
    iterate = SimpleNamespace(state=SimpleNamespace(particles=particles), sampled_eta=1.0)
    with pytest.raises(ValueError, match='method "posterior-bootstrap" needs a loss with a derivative'):
        cb.methods.PosteriorBootstrap().draw(SimpleNamespace(target=target, level=0.95), iterate, draws)


def bounded_location(n=30, shift=-0.12):
    """Return y with mean `shift` for a mean bounded to (0, 5), the target, and its draws at a learning rate of one."""
    y = np.random.default_rng(0).normal(size=n)
    y += shift - y.mean()
    counts = np.random.default_rng(1).multinomial(n, np.full(n, 1 / n), size=200)
    model = cb.GibbsModel(cb.losses.Squared(), cb.priors.Uniform(0.0, 5.0))
    target = make_target(model, (np.ones((n, 1)), y), counts, 1)
    sd = n**-0.5
    theta = stats.truncnorm(-shift / sd, (5 - shift) / sd, shift, sd).ppf((np.arange(2000) + 0.5) / 2000)
    theta = np.random.default_rng(2).permutation(theta)
    z = target.coordinates.unconstrain(jnp.asarray(theta, float)[None, None])
    draws = Draws(evaluate(target.replicate(0), z), 1.0)
    return y, counts, target, DrawsOnData(target, (draws,), None, key=jax.random.key(0))


def theta_of(target, reported):
    return np.asarray(target.constrained(reported.particles).theta, float)[0, 0]


def test_q_posterior_at_a_bound_is_a_truncated_normal_distribution():
    """J does not depend on the location. Quantiles of 4,000 draws have an error of at most 0.03 standard deviations."""
    y, _, target, draws = bounded_location()
    reported = cb.methods.QPosterior().draw(SimpleNamespace(target=target), None, draws)
    theta, sd, mean = theta_of(target, reported), y.std() / len(y) ** 0.5, y.mean()
    expected = stats.truncnorm(-mean / sd, (5 - mean) / sd, mean, sd).ppf([0.1, 0.5, 0.9, 0.975])
    assert theta.min() > 0
    np.testing.assert_allclose(np.quantile(theta, [0.1, 0.5, 0.9, 0.975]), expected, atol=0.12 * sd)


def test_q_posterior_is_centred_at_the_minimizer_of_a_risk_that_is_not_proportional_to_the_counts():
    """J does not depend on the location, so that the density is symmetric around the minimizer."""
    n, y = 30, np.random.default_rng(0).normal(size=30)

    def risk(theta, data, counts):
        return 0.5 * counts @ (data - theta[0]) ** 2 + 3 * theta[0] * jnp.log(counts.sum())

    target = make_target(cb.GibbsModel.from_risk(risk, PRIOR, dim=1), y, np.ones((1, n)), 1)
    minimizer = y.mean() - 3 * np.log(n) / n
    below, at, above = q_posterior._log_density(target, minimizer + np.array([[-0.2], [0.0], [0.2]]), None)
    assert at - below == pytest.approx(0.5 * (0.2 * n) ** 2 / (n * y.var()), rel=1e-3)
    assert above == pytest.approx(below, rel=1e-3)


def test_q_posterior_is_zero_where_the_risk_is_infinite():
    """The gradients are finite there: those of the squared error of the mean, which must be positive."""
    y = np.random.default_rng(0).normal(size=30)
    bound = lambda theta: jax.lax.stop_gradient(jnp.where(theta[0] > 0, 0.0, jnp.inf))
    model = cb.GibbsModel(lambda theta, y: 0.5 * (y - theta[0]) ** 2 + bound(theta), PRIOR, dim=1)
    target = make_target(model, y, np.ones((1, 30)), 1)
    values = q_posterior._log_density(target, np.array([[0.1], [-0.1]]), None)
    assert np.isfinite(values[0])
    assert values[1] == -np.inf


@pytest.mark.parametrize(("shift", "severities"), [(-0.12, [cb.Severity.ERROR]), (1.0, [])])
def test_minimizers_beyond_a_bound_are_reported_at_the_bound(shift, severities):
    """The minimizer of a replicate is the larger of its mean and zero."""
    y, counts, target, draws = bounded_location(shift=shift)
    particles = particles_around(target, np.array([max(shift, 0.3)]), np.array([[0.03]]))
    iterate = SimpleNamespace(state=SimpleNamespace(particles=particles), sampled_eta=1.0)
    problem = SimpleNamespace(target=target, level=0.95)
    reported = cb.methods.PosteriorBootstrap().draw(problem, iterate, draws)
    np.testing.assert_allclose(theta_of(target, reported), np.maximum(counts @ y / len(y), 0), atol=1e-3)
    assert [finding.severity for finding in reported.findings] == severities
    assert [finding.count for finding in reported.findings] == [int((counts @ y < 0).sum())] * len(severities)
