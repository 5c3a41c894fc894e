"""Influences of observations, and the learning rate that matches the sandwich covariance, against closed forms.

Particles are not random draws. They are pairs symmetric about the mean, so that third moments vanish, with exactly the
posterior covariance; or a grid with the posterior weights. Therefore only rounding errors remain.
"""

import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._core.particles import normalise
from calibayes._core.sandwich import influences, mean_shifts
from calibayes._core.target import evaluate, make_target

N, K, SCALE, ETA = 45, 3, 5.0, 0.7
"""45 observations leave three places of the last block empty, which must not count. The prior has a small effect."""
N_POPULATIONS = 3


def mirrored(rng, mean, covariance, size):
    """Return weighted points in symmetric pairs about the mean with exactly this covariance."""
    weights = np.tile(rng.dirichlet(np.full(size // 2, 2.0)), 2) / 2
    half = rng.exponential(size=(len(mean), size // 2))
    u = np.concatenate([half, -half], 1)
    u = np.linalg.solve(np.linalg.cholesky((u * weights) @ u.T), u)
    return mean[:, None] + np.linalg.cholesky(covariance) @ u, weights


@pytest.fixture(scope="module")
def regression():
    """Heteroscedastic least squares, for which the sandwich differs from the inverse information; seven replicates."""
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(N), rng.normal(size=(N, K - 1))])
    y = x @ [1.0, 2.0, -1.0] + rng.normal(size=N) * (0.3 + np.abs(x[:, 1]))
    y[-1] += 3.0  # the padding repeats this observation, so that an error would be visible
    drawn = rng.multinomial(N, np.full(N, 1 / N), size=2).astype(float)
    # Bootstrap replicates; multiples of one of them; replicates close to the data.
    counts = np.stack([*drawn, 2 * drawn[1], 0.3 * drawn[1], *(1 + 0.02 * (drawn - 1)), 1.7 + 0.034 * (drawn[0] - 1)])
    model = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=SCALE))
    target = make_target(model, (x, y), counts, K, pad=False)
    precision = ETA * x.T @ x + np.eye(K) / SCALE**2
    mean = np.linalg.solve(precision, ETA * x.T @ y)
    drawn_populations = [mirrored(rng, mean, np.linalg.inv(precision), 40) for _ in range(N_POPULATIONS)]
    points, weights = zip(*drawn_populations, strict=True)
    populations = target.select(jnp.zeros(N_POPULATIONS, int))
    particles = evaluate(populations, jnp.asarray(np.stack(points, 1), float))
    particles = particles.with_log_weights(jnp.asarray(np.log(weights), float))
    return x, y, counts, target, particles


def exact_influences(x, y, eta):
    """Return `eta Sigma x_i e_i`, where e are the residuals at the posterior mean."""
    precision = eta * x.T @ x + np.eye(K) / SCALE**2
    mean = np.linalg.solve(precision, eta * x.T @ y)
    return eta * np.linalg.solve(precision, x.T) * (y - x @ mean)


def test_influences_on_a_normal_posterior_are_exact(regression):
    """From all populations together, to 2e-4 of the largest in float32."""
    x, y, _, target, particles = regression
    computed = np.asarray(influences(target, particles, ETA).values)
    assert computed.shape == (K, 48)
    exact = exact_influences(x, y, ETA)
    np.testing.assert_allclose(computed[:, :N], exact, rtol=2e-3, atol=2e-4 * np.abs(exact).max())
    # With a weak prior they are close to those of least squares, (X'X)^-1 x_i e_i.
    least_squares = np.linalg.solve(x.T @ x, x.T) * (y - x @ np.linalg.lstsq(x, y)[0])
    assert np.abs(computed[:, :N] - least_squares).max() < 0.05 * np.abs(least_squares).max()


def test_influences_are_derivatives_of_the_mean():
    """For a loss without a gradient and an asymmetric posterior on a grid, by central differences in the counts.

    A central difference with step 0.05 has an error of order 0.05^2, about 1e-3 of the largest influence.
    """
    rng = np.random.default_rng(1)
    y, eta, step = rng.exponential(size=11), 1.4, 0.05
    grid = np.linspace(-2, 6, 2001)
    losses = np.abs(y[:, None] - grid)

    def log_density(counts):
        return -eta * counts @ losses - 0.5 * (grid / 3) ** 2

    def mean(counts):
        value = log_density(counts)
        weights = np.exp(value - value.max())
        return weights @ grid / weights.sum()

    model = cb.GibbsModel(cb.losses.Absolute(), cb.priors.Normal(scale=3.0))
    target = make_target(model, (np.ones((11, 1)), y), np.ones((1, 11)), 1).replicate(0)
    particles = evaluate(target, jnp.asarray(grid[None, None], float))
    particles = particles.with_log_weights(normalise(jnp.asarray(log_density(np.ones(11))[None], float)))
    computed = np.asarray(influences(target, particles, eta).values)[0, :11]
    changes = step * np.eye(11)
    exact = np.array([(mean(1 + change) - mean(1 - change)) / (2 * step) for change in changes])
    np.testing.assert_allclose(computed, exact, atol=2e-3 * np.abs(exact).max())


def test_matching_eta_equates_posterior_and_sandwich_covariance(regression):
    """`K / tr(Sigma^-1 V)` with Sigma at eta = 1, to 2e-3 because of the ridge of the factor and float32."""
    x, y, _, target, particles = regression
    moves = exact_influences(x, y, ETA)
    covariance = ETA * np.linalg.inv(ETA * x.T @ x + np.eye(K) / SCALE**2)
    exact = K / np.trace(np.linalg.solve(covariance, moves @ moves.T))
    assert influences(target, particles, ETA).matching_eta == pytest.approx(exact, rel=2e-3)
    # Without the prior it is K divided by the sum of leverage times squared residual.
    leverage = np.einsum("ik,ki->i", x, np.linalg.solve(x.T @ x, x.T))
    residual = y - x @ np.linalg.lstsq(x, y)[0]
    assert exact == pytest.approx(K / (leverage * residual**2).sum(), rel=0.05)


def test_shifts_are_first_order_changes_of_the_mean(regression):
    """Against least squares on each replicate.

    The error is of second order in counts - 1: for counts 1 + 0.02 (c - 1) about 0.02 times the shift. For bootstrap
    replicates the shift still has the direction of the change of the mean.
    """
    x, y, counts, target, _ = regression
    influence = jnp.pad(jnp.asarray(exact_influences(x, y, 1e3), float), ((0, 0), (0, 3)))
    computed = np.asarray(mean_shifts(target, influence)[0])
    fit = np.linalg.lstsq(x, y)[0]
    exact = np.stack([np.linalg.solve(x.T @ (c[:, None] * x), x.T @ (c * y)) - fit for c in counts], 1)
    np.testing.assert_allclose(computed[:, 0], 0, atol=1e-5)
    near = slice(4, 7)
    size = np.linalg.norm(exact[:, near], axis=0)
    assert (np.linalg.norm(computed[:, 1:][:, near] - exact[:, near], axis=0) < 0.02 * size).all()
    for b in range(2):
        shift, change = computed[:, 1 + b], exact[:, b]
        cosine = shift @ change / np.linalg.norm(shift) / np.linalg.norm(change)
        assert cosine > 0.9


def test_shift_does_not_depend_on_the_total_of_the_counts(regression):
    """Replicates whose counts are multiples of each other have the same mean, and the same shift."""
    x, y, counts, target, _ = regression
    influence = jnp.pad(jnp.asarray(exact_influences(x, y, 1.0), float), ((0, 0), (0, 3)))
    shifts, relative_totals = mean_shifts(target, influence)
    computed = np.asarray(shifts)[:, 1:]
    np.testing.assert_allclose(relative_totals, [1, *counts.sum(1) / N], rtol=1e-6)
    np.testing.assert_allclose(computed[:, 2], computed[:, 1], rtol=1e-4)
    np.testing.assert_allclose(computed[:, 3], computed[:, 1], rtol=1e-4)
    assert counts[2].sum() == 2 * N
    assert np.abs(computed[:, 1]).max() > 0.01


def test_padding_has_no_influence(regression):
    """Neither the shifts nor the matching learning rate depend on the padding of the last block."""
    _, _, _, target, particles = regression
    computed = np.asarray(influences(target, particles, 1.0).values)
    assert computed.shape[1] > N
    assert (computed[:, N:] == 0).all()
    assert (computed[:, :N] != 0).any(0).all()


def test_infinite_losses_are_ignored():
    """Particles at which an observation is impossible do not contribute to its influence."""
    model = cb.GibbsModel(
        lambda theta, y: jnp.where(theta[0] > 0, jnp.square(y - theta[0]), jnp.inf), cb.priors.Normal(), dim=1
    )
    target = make_target(model, np.arange(5.0), np.ones((1, 5)), 1).replicate(0)
    particles = evaluate(target, jnp.asarray(np.linspace(-1, 3, 80)[None, None], float))
    values, matching = influences(target, particles, 1.0)
    assert np.isfinite(values).all()
    assert np.isfinite(matching)


def test_matching_eta_is_infinite_if_no_observation_matters():
    model = cb.GibbsModel(lambda theta, y: 0.0 * theta[0] * y, cb.priors.Normal(), dim=1)
    target = make_target(model, np.arange(5.0), np.ones((1, 5)), 1).replicate(0)
    particles = evaluate(target, jnp.asarray(np.linspace(-1, 3, 80)[None, None], float))
    assert influences(target, particles, 1.0).matching_eta == np.inf


def test_shifts_and_matching_eta_do_not_depend_on_the_padding(regression):
    """Bit for bit, with 48 and 256 stored observations; the shift of the data is exactly zero."""
    x, y, counts, target, particles = regression
    padded = make_target(cb.GibbsModel(target.loss, target.prior), (x, y), counts, K)
    assert padded.reference_loss.size > target.reference_loss.size
    results = []
    for t in (target, padded):
        influence, matching = influences(t, particles, ETA)
        shifts, relative_totals = mean_shifts(t, influence)
        results.append((influence[:, :N], shifts, relative_totals, matching))
        assert not np.asarray(shifts)[:, 0].any()
    for expected, computed in zip(*results, strict=True):
        np.testing.assert_array_equal(computed, expected)


def test_influences_do_not_depend_on_the_size_of_the_loss():
    """Residuals of 1 at draws within 1e-5 of a mean of 1, with weights whose sum differs from one by rounding.

    The influence of observation i is -eta Cov(theta, r_i). If the mean of the draws were off by the rounding error of
    the weights, 1e-7, eta times that and the loss would be added, hundreds of times the influence.
    """
    eta, sd, size = 4e3, 2e-5, 1000
    half = sd * np.random.default_rng(0).normal(size=size // 2)
    draws = np.float32(1 + np.concatenate([half, -half]))
    y = np.array([0.0, 0.0, 2.0, 2.0, 2.0])
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    target = make_target(model, (np.ones((5, 1)), y), np.ones((1, 5)), 1).recentre(jnp.ones(1)).replicate(0)
    particles = evaluate(target, jnp.asarray(draws[None, None]))
    weights = np.exp(np.asarray(particles.log_weights, np.float64)).sum()
    assert abs(weights - 1) > 1e-8
    exact = -eta * 0.5 * np.sign(1 - y) * draws.astype(np.float64).var()
    # The losses, near 0.5, have rounding errors of 3e-8, and vary by 1e-5.
    computed = np.asarray(influences(target, particles, eta).values)[0, :5]
    np.testing.assert_allclose(computed, exact, rtol=0.01)
