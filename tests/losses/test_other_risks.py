"""Risks of moments, discrepancies, tails and pairs against their definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import norm

import calibayes as cb
from calibayes._core.scores import score_sums
from calibayes._core.target import in_default_float_type, make_target
from calibayes._validate.data import check_data

N = 40
PRIOR = cb.priors.Normal(scale=10.0)


def in_double(risk, theta, data, counts):
    """Return the risk of raw data in double precision."""
    with jax.enable_x64(True):
        risk = in_default_float_type(risk)
        prepared = jax.tree.map(jnp.asarray, risk.prepare(risk.check(data)))
        return float(risk(jnp.asarray(theta, float), prepared, jnp.asarray(counts, float)))


def two_means(theta, datum):
    return datum - theta[0] * jnp.array([1.0, 2.0], datum.dtype)


def test_moment_risk_is_the_quadratic_form_of_mean_moments():
    rng = np.random.default_rng(0)
    z, counts = rng.normal([1.0, 2.0], size=(N, 2)), rng.poisson(1.0, N)
    weight = np.array([[2.0, 0.5], [0.5, 1.0]])
    rows = np.repeat(z, counts, 0)
    g = rows - 0.8 * np.array([1.0, 2.0])
    mean, n = g.mean(0), len(rows)
    fixed = in_double(cb.losses.GMM(two_means, weight), [0.8], z, counts)
    np.testing.assert_allclose(fixed, 0.5 * n * mean @ weight @ mean, rtol=1e-6)
    updated = in_double(cb.losses.GMM(two_means), [0.8], z, counts)
    np.testing.assert_allclose(updated, 0.5 * n * mean @ np.linalg.solve(np.cov(g.T, ddof=0), mean), rtol=1e-9)


def test_moments_are_checked():
    with pytest.raises(ValueError, match="weight must be a symmetric positive definite matrix"):
        cb.losses.GMM(two_means, [[1.0, 2.0], [2.0, 1.0]])
    with pytest.raises(ValueError, match='weight must be "continuous" or a matrix'):
        cb.losses.GMM(two_means, "identity")
    model = cb.GibbsModel(cb.losses.GMM(lambda theta, datum: datum[0] - theta[0]), PRIOR, dim=1)
    with pytest.raises(TypeError, match="moments must return a vector"):
        cb.calibrate(model, np.ones((N, 2)), progress=False)


def test_efficient_moments_have_a_learning_rate_near_one():
    """At eta = 1 the continuously updated risk is half the chi-squared statistic of the sandwich covariance."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(150, 2))
    y = x @ [1.0, -0.5] + rng.normal(size=150) * (0.5 + np.abs(x[:, 0]))

    def moments(theta, datum):
        x, y = datum
        return x * (y - x @ theta)

    model = cb.GibbsModel(cb.losses.GMM(moments), cb.priors.Normal(scale=1.0), dim=2)
    result = cb.calibrate(model, (x, y), bootstrap=300, seed=0, progress=False)
    assert abs(np.log(result.eta)) < 0.25


def shift(theta, noise):
    return theta[0] + noise


def test_discrepancy_is_the_difference_of_mean_kernels():
    rng = np.random.default_rng(2)
    y, noise, counts = rng.normal(size=N), rng.normal(size=12), rng.poisson(1.0, N)
    kernel = lambda a, b: np.exp(-((a[:, None] - b[None]) ** 2) / (2 * 0.7**2))
    x, rows = 0.3 + noise, np.repeat(y, counts)
    within = (kernel(x, x).sum() - 12) / (12 * 11)
    expected = len(rows) * (within - 2 * kernel(x, rows).mean())
    np.testing.assert_allclose(in_double(cb.losses.MMD(0.7, shift, noise), [0.3], y, counts), expected, rtol=1e-6)
    custom = lambda a, b: jnp.exp(-((a - b) ** 2) / (2 * 0.7**2))
    np.testing.assert_allclose(in_double(cb.losses.MMD(custom, shift, noise), [0.3], y, counts), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        (("gaussian", shift, np.ones(3)), TypeError, "kernel must be a function"),
        ((1.0, 3, np.ones(3)), TypeError, "simulator must be a function"),
        ((1.0, shift, np.ones(1)), ValueError, "noise must hold finite random numbers of two or more"),
        ((-1.0, shift, np.ones(3)), ValueError, "kernel must be positive"),
    ],
)
def test_arguments_of_the_discrepancy_are_checked(args, error, message):
    with pytest.raises(error, match=message):
        cb.losses.MMD(*args)


@pytest.mark.parametrize("alpha", [0.05, 0.25])
def test_expected_loss_is_minimal_at_value_at_risk_and_expected_shortfall(alpha):
    """Of a normal distribution, by quadrature. The minimum is found to the accuracy of the grid."""
    quantile = norm.ppf(alpha)
    shortfall = -norm.pdf(quantile) / alpha
    grid = np.linspace(-9, 9, 40_001)
    weights = norm.pdf(grid) * (grid[1] - grid[0])
    with jax.enable_x64(True):
        loss = cb.losses.FisslerZiegel(alpha)
        mean = jax.jit(lambda theta: jnp.asarray(weights) @ jax.vmap(lambda y: loss(theta, y))(jnp.asarray(grid)))
        start = np.array([1.2 * quantile, 1.2 * shortfall])
        minimizer = minimize(lambda theta: float(mean(jnp.asarray(theta))), start, method="Nelder-Mead").x
        np.testing.assert_allclose(minimizer, [quantile, shortfall], atol=2e-3)
        assert np.isinf(mean(jnp.asarray([shortfall, quantile])))
        x = jnp.array([1.0, 0.5])
        by_columns = loss(jnp.array([-1.0, -0.5, -2.0, -0.2]), (x, jnp.asarray(-3.0)))
        np.testing.assert_allclose(by_columns, loss(jnp.array([-1.25, -2.1]), jnp.asarray(-3.0)), rtol=1e-12)


def test_tail_probability_is_checked():
    with pytest.raises(ValueError, match="alpha must be a number between 0 and 1"):
        cb.losses.FisslerZiegel(1.5)


def log_density(theta, first, second):
    (s, y), (t, z) = first, second
    return -theta[0] * jnp.abs(y - z) - jnp.abs(s - t)


def test_composite_risk_is_the_sum_over_near_pairs():
    """Counts of both observations of a pair enter by their harmonic mean."""
    rng = np.random.default_rng(3)
    s, y, counts = rng.uniform(size=N), rng.normal(size=N), rng.poisson(1.0, N).astype(float)
    expected = 0.0
    for i in range(N):
        for j in range(i):
            if abs(s[i] - s[j]) <= 0.2 and counts[i] * counts[j]:
                weight = 2 * counts[i] * counts[j] / (counts[i] + counts[j])
                expected += weight * (0.7 * abs(y[i] - y[j]) + abs(s[i] - s[j]))
    risk = cb.losses.Composite(log_density, 0.2)
    np.testing.assert_allclose(in_double(risk, [0.7], (s, y), counts), expected, rtol=1e-10)


def normal_log_density(theta, first, second):
    (s, y), (t, z) = first, second
    r = jnp.exp(-jnp.abs(s - t) / jnp.exp(theta[0]))
    return -0.5 * jnp.log1p(-(r**2)) - 0.5 * (y**2 - 2 * r * y * z + z**2) / (1 - r**2)


def test_gradient_of_a_composite_risk_is_not_changed_by_padding():
    """Copies of the last observation are perfectly correlated, so that their density is infinite."""
    n = 20
    risk, data = cb.losses.Composite(normal_log_density, 2.0), (np.arange(float(n)), np.ones(n))
    target = make_target(cb.GibbsModel(risk, PRIOR, dim=1), data, np.ones((1, n)), 1)
    assert target.n_stored > n
    prepared = jax.tree.map(jnp.asarray, risk.prepare(data))
    expected = jax.grad(risk)(jnp.array([0.7]), prepared, jnp.ones(n))
    np.testing.assert_allclose(score_sums(target, np.full((1, 2), 0.7)), np.tile(expected, (1, 2)), rtol=1e-4)


def test_composite_needs_pairs():
    model = cb.GibbsModel(cb.losses.Composite(log_density, 0.1), PRIOR, dim=1)
    with pytest.raises(ValueError, match=r"no two observations are within max_distance = 0\.1"):
        cb.calibrate(model, (np.arange(5.0), np.ones(5)), progress=False)
    with pytest.raises(ValueError, match="max_distance must be positive"):
        cb.losses.Composite(log_density, 0.0)


def test_risks_pass_the_checks_of_a_calibration():
    """Each with the data that it is for: padding, order, counts and derivatives."""
    rng = np.random.default_rng(4)
    problems = [
        (cb.losses.GMM(two_means), rng.normal(size=(N, 2)), 1),
        (cb.losses.MMD(1.0, shift, rng.normal(size=10)), rng.normal(size=N), 1),
        (cb.losses.Composite(log_density, 0.2), (rng.uniform(size=N), rng.normal(size=N)), 1),
        (cb.losses.AUC("sigmoid"), (rng.normal(size=(N, 2)), rng.integers(2, size=N)), None),
        (cb.losses.Cox(), (rng.normal(size=(N, 2)), rng.exponential(size=N), rng.integers(2, size=N)), None),
    ]
    for risk, data, dim in problems:
        assert check_data(cb.GibbsModel(risk, PRIOR, dim=dim), data, None).n == N
