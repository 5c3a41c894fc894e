"""What one observation does to a posterior, and the learning rate that follows, against closed forms.

Particles here are no random draws. They come in pairs on either side of the mean, so that third moments vanish, and
have exactly the covariance asked for; or they are a grid with the posterior's weights. Then only rounding is left.
"""

import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._core.particles import normalise
from calibayes._core.sandwich import influences, matching_eta, mean_shifts
from calibayes._core.target import evaluate, make_target

N, K, SCALE = 45, 3, 5.0
"""45 observations leave three places of the last block empty, which must not count. The prior is felt a little."""
ETAS = np.array([0.5, 1.0, 3.0])


def mirrored(rng, mean, covariance, size):
    """Weighted points in pairs about the mean, with this very covariance, and weights shared by a pair."""
    weights = np.tile(rng.dirichlet(np.full(size // 2, 2.0)), 2) / 2
    half = rng.exponential(size=(len(mean), size // 2))
    u = np.concatenate([half, -half], 1)
    u = np.linalg.solve(np.linalg.cholesky((u * weights) @ u.T), u)
    return mean[:, None] + np.linalg.cholesky(covariance) @ u, weights


@pytest.fixture(scope="module")
def regression():
    """Least squares with a spread that grows with x, so that the sandwich is not the information; four rows."""
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(N), rng.normal(size=(N, K - 1))])
    y = x @ [1.0, 2.0, -1.0] + rng.normal(size=N) * (0.3 + np.abs(x[:, 1]))
    y[-1] += 3.0  # what fills up the last block is like this one, and would show
    drawn = rng.multinomial(N, np.full(N, 1 / N), size=2).astype(float)
    # Whole bootstrap rows; rows of which each is a multiple of the one before; rows that hardly differ from the data.
    rows = np.stack([*drawn, 2 * drawn[1], 0.3 * drawn[1], *(1 + 0.02 * (drawn - 1)), 1.7 + 0.034 * (drawn[0] - 1)])
    target = make_target(cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=SCALE)), (x, y), rows, K)
    points, weights = [], []
    for eta in ETAS:
        precision = eta * x.T @ x + np.eye(K) / SCALE**2
        mean = np.linalg.solve(precision, eta * x.T @ y)
        theta, weight = mirrored(rng, mean, np.linalg.inv(precision), 40)
        points.append(theta)
        weights.append(weight)
    populations = target.select(jnp.zeros(len(ETAS), int))
    particles = evaluate(populations, jnp.asarray(np.stack(points, 1), float))
    particles = particles.with_log_weights(jnp.asarray(np.log(weights), float))
    return x, y, rows, target, particles


def exact_influences(x, y, eta):
    """`eta Sigma x_i e_i`, with e the residuals at the posterior mean: there r_i = (e_i - x_i'd)^2 / 2 of a step d."""
    precision = eta * x.T @ x + np.eye(K) / SCALE**2
    mean = np.linalg.solve(precision, eta * x.T @ y)
    return eta * np.linalg.solve(precision, x.T) * (y - x @ mean)


def test_influences_on_a_normal_posterior(regression):
    """Populations at three learning rates have the average of their influences; float32 leaves 1e-4 of the largest."""
    x, y, _, target, particles = regression
    got = np.asarray(influences(target, particles, jnp.asarray(ETAS, float)))
    assert got.shape == (K, 48)
    exact = np.mean([exact_influences(x, y, eta) for eta in ETAS], 0)
    np.testing.assert_allclose(got[:, :N], exact, rtol=2e-3, atol=2e-4 * np.abs(exact).max())
    # With next to no prior they are those of least squares, (X'X)^-1 x_i e_i: here to a few per cent.
    least_squares = np.linalg.solve(x.T @ x, x.T) * (y - x @ np.linalg.lstsq(x, y)[0])
    assert np.abs(got[:, :N] - least_squares).max() < 0.05 * np.abs(least_squares).max()


def test_influences_are_derivatives_of_the_mean():
    """For a loss without gradient and a lopsided posterior: how the mean on a grid moves with an observation's count.

    A central difference with steps of 0.05 is wrong by its square times a third derivative; 1e-3 of the largest.
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
    got = np.asarray(influences(target, particles, jnp.full(1, eta)))[0, :11]
    bumps = step * np.eye(11)
    exact = np.array([(mean(1 + bump) - mean(1 - bump)) / (2 * step) for bump in bumps])
    np.testing.assert_allclose(got, exact, atol=2e-3 * np.abs(exact).max())


def test_matching_eta_is_where_the_sandwich_is_the_posterior(regression):
    """`K / tr(Sigma^-1 V)` with Sigma for an eta of one; the factor's ridge of 1e-5 and float32 leave 1e-3."""
    x, y, _, target, particles = regression
    moves = np.mean([exact_influences(x, y, eta) for eta in ETAS], 0)
    covariances = [eta * np.linalg.inv(eta * x.T @ x + np.eye(K) / SCALE**2) for eta in ETAS]
    exact = K / np.trace(np.linalg.solve(np.mean(covariances, 0), moves @ moves.T))
    assert float(matching_eta(target, particles, jnp.asarray(ETAS, float))) == pytest.approx(exact, rel=2e-3)
    # And that is the textbook's, K / sum of leverage times squared residual, but for the prior.
    leverage = np.einsum("ik,ki->i", x, np.linalg.solve(x.T @ x, x.T))
    residual = y - x @ np.linalg.lstsq(x, y)[0]
    assert exact == pytest.approx(K / (leverage * residual**2).sum(), rel=0.05)


def test_shifts_are_the_means_of_the_rows_to_first_order(regression):
    """Against least squares on each row.

    What is left is of second order in counts - 1: of rows 1 + 0.02 (c - 1), with c multinomial, 0.02 times some number
    of order one, times the shift. On whole bootstrap rows the shift still points where the mean went.
    """
    x, y, rows, target, _ = regression
    influence = jnp.pad(jnp.asarray(exact_influences(x, y, 1e3), float), ((0, 0), (0, 3)))
    got = np.asarray(mean_shifts(target, influence))
    fit = np.linalg.lstsq(x, y)[0]
    exact = np.stack([np.linalg.solve(x.T @ (row[:, None] * x), x.T @ (row * y)) - fit for row in rows], 1)
    np.testing.assert_allclose(got[:, 0], 0, atol=1e-5)
    near = slice(4, 7)
    size = np.linalg.norm(exact[:, near], axis=0)
    assert (np.linalg.norm(got[:, 1:][:, near] - exact[:, near], axis=0) < 0.02 * size).all()
    for b in range(2):
        cosine = got[:, 1 + b] @ exact[:, b] / np.linalg.norm(got[:, 1 + b]) / np.linalg.norm(exact[:, b])
        assert cosine > 0.9


def test_the_total_of_a_row_does_not_move_it(regression):
    """Rows that are multiples of each other have one mean, and one shift, whatever their counts sum to."""
    x, y, rows, target, _ = regression
    influence = jnp.pad(jnp.asarray(exact_influences(x, y, 1.0), float), ((0, 0), (0, 3)))
    got = np.asarray(mean_shifts(target, influence))[:, 1:]
    np.testing.assert_allclose(got[:, 2], got[:, 1], rtol=1e-4)
    np.testing.assert_allclose(got[:, 3], got[:, 1], rtol=1e-4)
    assert rows[2].sum() == 2 * N
    assert np.abs(got[:, 1]).max() > 0.01


def test_places_that_no_observation_fills_do_not_count(regression):
    """What fills up the last block has no influence, so neither shifts nor the match know of it."""
    _, _, _, target, particles = regression
    got = np.asarray(influences(target, particles, jnp.ones(particles.risk.shape[0])))
    assert got.shape[1] > N
    assert (got[:, N:] == 0).all()
    assert (got[:, :N] != 0).any(0).all()


def test_infinite_losses_leave_numbers():
    """Particles at which an observation is impossible say nothing of it, and spoil nothing."""
    model = cb.GibbsModel(
        lambda theta, y: jnp.where(theta[0] > 0, jnp.square(y - theta[0]), jnp.inf), cb.priors.Normal(), dim=1
    )
    target = make_target(model, np.arange(5.0), np.ones((1, 5)), 1).replicate(0)
    particles = evaluate(target, jnp.asarray(np.linspace(-1, 3, 80)[None, None], float))
    assert np.isfinite(influences(target, particles, jnp.ones(1))).all()
    assert np.isfinite(matching_eta(target, particles, jnp.ones(1)))
