"""Normal approximations of log-concave posteriors, against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import calibayes as cb
from calibayes._core.target import make_target
from calibayes._core.weights import Weights
from calibayes.losses import LinearLoss
from calibayes.samplers.importance import first_proposal
from calibayes.samplers.normal import (
    NormalFit,
    NotNormalError,
    can_fit_normal,
    fit_to_data,
    fit_to_replicates,
    smoothed_derivatives,
)

B, N, SCALE = 30, 90, 2.0


def regression(dim):
    rng = np.random.default_rng(dim)
    x = np.column_stack([np.ones(N), rng.normal(size=(N, dim - 1))])
    return x, x.sum(1) + rng.normal(size=N) * (1 + np.abs(x[:, -1]))


def counts_of_replicates():
    return np.random.default_rng(1).multinomial(N, np.full(N, 1 / N), size=B - 1)


def target_of(loss, x, y, scale=SCALE, weights=None):
    model, counts = cb.GibbsModel(loss, cb.priors.Normal(scale=scale)), counts_of_replicates()
    if weights is not None:
        counts = counts * weights.values
    return make_target(model, (x, y), counts, x.shape[1], weights=weights)


def start_of(target):
    proposal = first_proposal(target)
    return proposal.centre[:, 0], proposal.scale[0]


def exact_posteriors(x, y, eta, counts):
    """Return the means and covariances for half the squared error, whose posteriors are normal."""
    precisions = [eta * (x.T * c) @ x + np.eye(x.shape[1]) / SCALE**2 for c in counts]
    covariances = np.linalg.inv(precisions)
    return np.stack([v @ (eta * (x.T * c) @ y) for v, c in zip(covariances, counts, strict=True)]), covariances


@pytest.mark.parametrize("dim", [2, 12])
def test_fits_of_a_squared_loss_are_the_exact_posteriors(dim):
    x, y = regression(dim)
    target = target_of(cb.losses.Squared(), x, y)
    # The factor of half the squared error.
    ratio = float(cb.losses.Squared().rho(jnp.asarray(2.0), jnp.asarray(0.0))) / 2.0
    eta = 0.7
    fit = fit_to_data(target, *start_of(target), eta)
    means, covariances = exact_posteriors(x, y, eta * ratio, np.vstack([np.ones(N), counts_of_replicates()]))
    np.testing.assert_allclose(fit.centre, means[0], atol=2e-3 * np.sqrt(np.diag(covariances[0])).max())
    np.testing.assert_allclose(fit.covariance, covariances[0], rtol=2e-3, atol=1e-4 * covariances[0].max())
    fits = fit_to_replicates(target, fit)
    assert fits.centre.shape == (dim, B)
    np.testing.assert_allclose(fits.centre.T, means, atol=5e-3 * np.sqrt(np.diag(covariances[0])).max())
    np.testing.assert_allclose(
        fits.root @ np.swapaxes(fits.root, 1, 2), covariances, rtol=5e-3, atol=2e-3 * covariances[0].max()
    )


def test_the_learning_rate_matches_the_sandwich_covariance():
    """With a flat prior and half the squared error, eta = K / tr(H^-1 J) has a closed form."""
    x, y = regression(3)
    target = target_of(cb.losses.Squared(), x, y, scale=1e4)
    ratio = float(cb.losses.Squared().rho(jnp.asarray(2.0), jnp.asarray(0.0))) / 2.0
    residuals = y - x @ np.linalg.lstsq(x, y)[0]
    scores = ratio * x * residuals[:, None]
    exact = 3 / np.trace(np.linalg.solve(ratio * x.T @ x, scores.T @ scores))
    assert fit_to_data(target, *start_of(target), None).eta == pytest.approx(exact, rel=5e-3)


@pytest.mark.parametrize("repeats", [True, False])
def test_the_learning_rate_respects_the_kind_of_weights(repeats):
    """J is the sum of w g g' for numbers of repetitions, and of w^2 g g' for survey weights."""
    x, y = regression(3)
    weights = Weights(np.random.default_rng(2).integers(1, 30, N).astype(float), repeats)
    target = target_of(cb.losses.Squared(), x, y, 1e4, weights)
    ratio = float(cb.losses.Squared().rho(jnp.asarray(2.0), jnp.asarray(0.0))) / 2.0
    w = weights.values
    residuals = y - x @ np.linalg.solve((x.T * w) @ x, (x.T * w) @ y)
    scores = ratio * x * residuals[:, None]
    products = (scores.T * w * (1.0 if repeats else w)) @ scores
    exact = 3 / np.trace(np.linalg.solve(ratio * (x.T * w) @ x, products))
    assert fit_to_data(target, *start_of(target), None).eta == pytest.approx(exact, rel=5e-3)


def test_smoothed_derivatives_of_the_check_loss():
    """The mean of its derivative is a normal distribution function, and of its curvature a normal density."""
    prediction = np.linspace(-3, 3, 601)
    scale = np.full(601, 0.8)
    loss = cb.losses.Quantile(0.3)
    first, second = smoothed_derivatives(
        loss.rho, *(jnp.asarray(v, float) for v in (prediction[:, None], np.zeros(601), scale))
    )
    first, second = np.asarray(first)[:, 0], np.asarray(second)[:, 0]
    rise = float(loss.rho(jnp.asarray(1.0), jnp.asarray(0.0)) + loss.rho(jnp.asarray(-1.0), jnp.asarray(0.0)))
    exact = rise * norm.cdf(prediction / 0.8) - float(loss.rho(jnp.asarray(-1.0), jnp.asarray(0.0)))
    np.testing.assert_allclose(first, exact, atol=0.08 * rise)
    density = rise * norm.pdf(prediction / 0.8) / 0.8
    np.testing.assert_allclose(second, density, atol=0.15 * density.max())
    # Errors at single points average out over the points.
    assert second.mean() == pytest.approx(density.mean(), rel=0.01)


def test_maps_from_normal_fits_need_no_refit():
    """With 12 parameters nearly all particles are effective on every replicate after one evaluation of the risk."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 12))
    y = np.where(rng.uniform(size=400) < 1 / (1 + np.exp(-x.sum(1) / 4)), 1.0, -1.0)
    counts = rng.multinomial(400, np.full(400, 1 / 400), size=B - 1)
    model = cb.GibbsModel(cb.losses.Logistic(), cb.priors.Normal(scale=10.0))
    sampler, key = cb.Transport(n_particles=500), jax.random.key(0)
    initial = sampler.draw_initial(key, make_target(model, (x, y), counts, 12), None, None)
    state = sampler.init(key, initial.target, initial, initial.eta)
    assert state.evaluations == 1
    assert state.transported.ess.min() > 0.8 * state.transported.n_particles


def test_replicates_without_a_fit_have_the_fit_to_the_data():
    """From a fit far from the posterior, the steps do not end."""
    x, y = regression(2)
    target = target_of(cb.losses.Quantile(0.5), x, y)
    far = NormalFit(np.array([1e3, -1e3]), 1e-4 * np.eye(2), 1.0)
    fits = fit_to_replicates(target, far)
    np.testing.assert_allclose(fits.centre, np.broadcast_to(far.centre[:, None], (2, B)), rtol=1e-6)
    np.testing.assert_allclose(fits.root, np.broadcast_to(1e-2 * np.eye(2), (B, 2, 2)), rtol=1e-3, atol=1e-6)


def test_loss_without_values_has_no_fit():
    class Undefined(LinearLoss):
        convex = True

        def rho(self, prediction, y):
            return jnp.sqrt(-1 - jnp.square(prediction - y))

    x, y = regression(2)
    target = target_of(Undefined(), x, y)
    assert can_fit_normal(target)
    with pytest.raises(NotNormalError):
        fit_to_data(target, np.zeros(2), np.eye(2), 1.0)


def test_posteriors_that_may_not_be_log_concave_are_not_fitted():
    x, y = regression(2)
    assert not can_fit_normal(target_of(cb.losses.Linear(lambda f, y: jnp.log1p(jnp.square(y - f))), x, y))
