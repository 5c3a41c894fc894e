"""Convergence diagnostics against closed forms, direct implementations of their definitions, and ArviZ."""

import math
import re

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from scipy.linalg import solve_discrete_lyapunov
from scipy.signal import lfilter
from scipy.stats import chi2

from calibayes._core.convergence import (
    batch_means_ess,
    multi_ess,
    pareto_k,
    pareto_k_limit,
    population_ess,
    r_hat,
    smallest_ess,
)

N = 40_000
# Neither symmetric nor diagonal, and one parameter mixes more slowly than the other.
PHI = np.array([[0.8, 0.3], [-0.1, 0.4]])
NOISE = np.array([[1.0, 0.4], [0.4, 2.0]])


def ar1(phi, n=N, seed=0):
    return lfilter([1.0], [1.0, -phi], np.random.default_rng(seed).normal(size=n + 500))[500:]


@pytest.fixture(scope="module")
def var1():
    rng = np.random.default_rng(3)
    noise = rng.multivariate_normal(np.zeros(2), NOISE, size=N + 500)
    chain = np.zeros_like(noise)
    for t in range(1, len(noise)):
        chain[t] = PHI @ chain[t - 1] + noise[t]
    return chain[500:]


def multi_ess_error(n, dim):
    """Return four standard errors: log|Wishart| of sqrt(n) batches has variance 2 K / sqrt(n), and is divided by K."""
    return 4 * np.sqrt(2 / (dim * np.sqrt(n)))


def direct_multi_ess(chain):
    """Compute the definition of Vats, Flegal and Jones (2019) by loops, on the last draws in complete batches."""
    n, dim = chain.shape
    size = int(np.floor(np.sqrt(n)))
    n_batches = n // size
    kept = chain[n - n_batches * size :]
    centre = kept.mean(0)
    sigma = np.zeros((dim, dim))
    for j in range(n_batches):
        gap = kept[j * size : (j + 1) * size].mean(0) - centre
        sigma += size * np.outer(gap, gap) / (n_batches - 1)
    draws = chain - chain.mean(0)
    covariance = draws.T @ draws / (n - 1)
    return n * (np.linalg.det(covariance) / np.linalg.det(sigma)) ** (1 / dim)


@pytest.mark.parametrize(("n", "dim"), [(400, 1), (1000, 3), (1037, 2), (5000, 6)])
def test_multi_ess_matches_its_definition(n, dim):
    """In float32 a determinant of K = 6 parameters is accurate to a few times 1e-5."""
    rng = np.random.default_rng(n)
    chain = np.cumsum(rng.normal(size=(n, dim)), 0) * 0.05
    chain += rng.exponential(size=(n, dim)) @ rng.normal(size=(dim, dim))
    assert multi_ess(chain) == pytest.approx(direct_multi_ess(chain), rel=1e-3)


@pytest.mark.parametrize("dim", [1, 4])
def test_ess_of_independent_draws_is_their_number(dim):
    """Of skewed draws. For `smallest_ess` a sum of some L = 4 correlations has standard error 2 sqrt(2 L / n) =
    0.03."""
    chain = np.random.default_rng(1).exponential(size=(N, dim))
    assert abs(np.log(multi_ess(chain) / N)) < multi_ess_error(N, dim)
    assert abs(smallest_ess(chain) / N - 1) < 4 * 0.03


@pytest.mark.parametrize("phi", [0.5, 0.9, -0.4])
def test_ess_of_an_autoregression(phi):
    """The integrated time is (1 + phi) / (1 - phi).

    Batches of b draws have a relative bias of 2 phi / (1 - phi^2) / b (5% at 0.9). A window of W lags has a relative
    standard error of sqrt(2 (2 W + 1) / n), with W about five times the integrated time: 4% at 0.9. The tolerance is
    four standard errors.
    """
    ess = N * (1 - phi) / (1 + phi)
    chain = ar1(phi)[:, None]
    bias = abs(2 * phi / (1 - phi**2)) / np.sqrt(N)
    assert abs(np.log(multi_ess(chain) / ess)) < multi_ess_error(N, 1) + bias
    window = 5 * (1 + abs(phi)) / (1 - abs(phi))
    assert abs(np.log(smallest_ess(chain) / ess)) < 4 * np.sqrt(2 * (2 * window + 1) / N)


def test_ess_of_a_vector_autoregression(var1):
    """Lambda solves a Lyapunov equation; Sigma = (I - Phi)^-1 Lambda + Lambda (I - Phi')^-1 - Lambda."""
    covariance = solve_discrete_lyapunov(PHI, NOISE)
    resolvent = np.linalg.inv(np.eye(2) - PHI)
    of_mean = resolvent @ covariance + covariance @ resolvent.T - covariance
    expected = N * np.sqrt(np.linalg.det(covariance) / np.linalg.det(of_mean))
    assert abs(np.log(multi_ess(var1) / expected)) < multi_ess_error(N, 2)
    # The slowest parameter determines smallest_ess; the window is about five times its integrated time, as above.
    times = np.diag(of_mean) / np.diag(covariance)
    assert abs(np.log(smallest_ess(var1) / (N / times.max()))) < 4 * np.sqrt(2 * (10 * times.max() + 1) / N)
    assert times.max() > 1.5 * times.min()


def test_multi_ess_is_invariant_to_affine_maps(var1):
    mixed = var1 @ np.array([[3.0, -1.0], [0.5, 0.2]]) + np.array([7.0, -30.0])
    assert multi_ess(mixed) == pytest.approx(multi_ess(var1), rel=1e-3)


def test_min_ess_is_that_of_the_slowest_parameter():
    columns = np.column_stack([ar1(0.1, seed=1), ar1(0.8, seed=2), ar1(0.4, seed=3)])
    assert (
        smallest_ess(columns) == min(smallest_ess(columns[:, [k]]) for k in range(3)) == smallest_ess(columns[:, [1]])
    )


def test_ess_of_a_constant_parameter():
    """multi_ess is zero, also for raw single-precision draws whose mean is rounded; smallest_ess is undefined."""
    constant = np.column_stack([np.arange(100.0), np.full(100, 2.0)])
    assert multi_ess(constant) == 0
    draws = np.random.default_rng(0).normal(size=1_000)
    for value in (3.3, 123.456):
        assert batch_means_ess(jnp.asarray(np.column_stack([draws, np.full(1_000, value)]), jnp.float32)) == 0
    with pytest.raises(ValueError, match="does not move"):
        smallest_ess(constant)


@pytest.mark.parametrize("ess", [multi_ess, smallest_ess])
@pytest.mark.parametrize("shape", [(15, 1), (50, 5), (3, 200), (1000,), (4, 100, 2)])
def test_chains_of_wrong_shape_are_rejected(ess, shape, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # otherwise the type checker raises first
    with pytest.raises(ValueError, match=rf"chain must be \(draws, parameters\).*got shape {re.escape(str(shape))}"):
        ess(np.random.default_rng(0).normal(size=shape))


@pytest.mark.parametrize("ess", [multi_ess, smallest_ess])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_chains_must_be_finite(ess, value):
    chain = np.random.default_rng(0).normal(size=(100, 2))
    chain[3, 1] = value
    with pytest.raises(ValueError, match="chain must be finite"):
        ess(chain)


def generalized_pareto(k, shape, seed=0):
    """Return logarithms of generalized Pareto draws; their excess over any threshold has the same shape k."""
    return np.log(np.expm1(k * np.random.default_rng(seed).exponential(size=shape)) / k)


def direct_pareto_k(log_weights):
    """Compute algorithm 1 of Vehtari et al. (2024) with the fit of Zhang and Stephens (2009), by loops."""
    weights = sorted(math.exp(log_weight - max(log_weights)) for log_weight in log_weights)
    size = math.ceil(min(0.2 * len(weights), 3 * len(weights) ** 0.5))
    threshold = weights[-size - 1]
    x = [weight - threshold for weight in weights[-size:] if weight > threshold]
    n, n_grid = len(x), 30 + math.floor(size**0.5)
    quartile = x[math.floor(n / 4 + 0.5) - 1]

    def shape(theta):
        return math.fsum(math.log(1 - theta * value) for value in x) / n

    thetas = [1 / x[-1] + (1 - (n_grid / (j - 0.5)) ** 0.5) / (3 * quartile) for j in range(1, n_grid + 1)]
    profile = [n * (math.log(-theta / shape(theta)) - shape(theta) - 1) for theta in thetas]
    posterior = [1 / sum(math.exp(other - own) for other in profile if other - own < 700) for own in profile]
    theta = sum(theta * p for theta, p in zip(thetas, posterior, strict=True)) / sum(posterior)
    return (n * shape(theta) + 5) / (n + 10)


@pytest.mark.parametrize("size", [25, 224, 225, 226, 1000])
@pytest.mark.parametrize("spread", [0.01, 1.0, 4.0])
def test_pareto_k_matches_its_definition(size, spread):
    log_weights = spread * np.random.default_rng(size).normal(size=(4, size)) - 500
    expected = [direct_pareto_k(weights) for weights in log_weights]
    np.testing.assert_allclose(pareto_k(log_weights), expected, atol=1e-8)


# Computed with arviz_stats 0.8.0: `array_stats.psislw(-log_weights)[1]`, for sizes at which 3 sqrt(M) and M / 5 are
# integers, because ArviZ rounds the size of the tail down and the published algorithm rounds it up.
ARVIZ = {
    (100, 0.05): 0.104056197,
    (100, 0.4): 0.449583342,
    (100, 1.2): 0.813736788,
    (225, 0.05): 0.065034154,
    (225, 0.4): 0.378809099,
    (225, 1.2): 1.008132974,
    (400, 0.05): 0.141142811,
    (400, 0.4): 0.451934001,
    (400, 1.2): 0.970349812,
    (900, 0.05): 0.091958413,
    (900, 0.4): 0.374975566,
    (900, 1.2): 1.086655639,
    (2500, 0.05): 0.090440182,
    (2500, 0.4): 0.432299744,
    (2500, 1.2): 1.127931527,
}


@pytest.mark.parametrize(("size", "power"), ARVIZ)
def test_pareto_k_matches_arviz(size, power):
    log_weights = -power * np.log((np.arange(size) * 7 % size + 0.5) / size) + np.sin(np.arange(size)) / 5
    assert pareto_k(log_weights[None])[0] == pytest.approx(ARVIZ[size, power], abs=1e-6)


@pytest.mark.parametrize("k", [0.2, 0.5, 0.9])
def test_pareto_k_of_generalized_pareto_draws(k):
    """Shrunk towards 1/2 with the weight of ten observations; standard error (1 + k) / sqrt(n), bias below 2 / n.

    The standard deviation over 2000 replicates has a relative standard error of 1 / sqrt(2 * 2000) = 1.6%, and six of
    these are allowed.
    """
    n_replicates, size = 2000, 2500
    n = 150
    shapes = pareto_k(generalized_pareto(k, (n_replicates, size)))
    error = (1 + k) / np.sqrt(n) * n / (n + 10)
    assert abs(shapes.mean() - (n * k + 5) / (n + 10)) < 4 * error / np.sqrt(n_replicates) + 2 / n
    assert shapes.std() == pytest.approx(error, rel=0.1)


def test_pareto_k_is_invariant_to_order_and_scale():
    log_weights = generalized_pareto(0.6, (8, 1000))
    expected = pareto_k(log_weights)
    shuffled = np.random.default_rng(1).permuted(log_weights, axis=1)
    np.testing.assert_array_equal(pareto_k(shuffled), expected)
    np.testing.assert_allclose(pareto_k(log_weights + np.linspace(-900, 900, 8)[:, None]), expected, rtol=1e-9)
    np.testing.assert_allclose(pareto_k(jnp.asarray(log_weights, float)), expected, atol=1e-4)  # float32
    np.testing.assert_array_equal(pareto_k(log_weights[:3]), expected[:3])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pareto_k_of_constant_weights_is_minus_infinity(dtype):
    """Constant up to rounding of the logarithms, or in the tail."""
    log_weights = generalized_pareto(0.6, (5, 1000))
    log_weights[0] = 0
    log_weights[1] = -np.log(1000) * (1 + np.finfo(dtype).eps * np.random.default_rng(0).binomial(10, 0.5, 1000))
    log_weights[2] = np.where(np.arange(1000) < 95, -3, -5)  # the tail has 95 weights
    log_weights[3] = np.where(np.arange(1000) < 200, -3, -np.inf)
    shapes = pareto_k(log_weights.astype(dtype))
    assert (shapes[:4] == -np.inf).all()
    assert 0 < shapes[4] < 1


def test_pareto_k_of_too_few_or_invalid_weights_is_infinite():
    log_weights = np.full((8, 1000), -np.inf)
    log_weights[1, :3] = 0.0, 1.0, 2.0
    log_weights[2, :4] = 0.0, 1.0, 2.0, 3.0
    log_weights[3, :5] = 0.0, 1.0, 2.0, 3.0, 4.0
    log_weights[4] = np.arange(1000) // 300
    log_weights[5], log_weights[5, 7] = np.arange(1000) / 100, np.nan
    log_weights[6] = -1000.0 * np.arange(1000)
    log_weights[7], log_weights[7, 7] = np.arange(1000) / 100, np.inf
    shapes = pareto_k(log_weights)
    assert (shapes[[0, 1, 2, 5, 6, 7]] == np.inf).all()
    assert shapes[4] == -np.inf  # all weights of the tail are equal
    assert shapes[3] == pytest.approx(direct_pareto_k(log_weights[3]), abs=1e-8)
    assert (pareto_k(generalized_pareto(0.5, (3, 20))) == np.inf).all()  # the tail has four weights


def test_pareto_k_leaves_out_weights_equal_to_the_threshold():
    """The threshold is zero, or another weight that occurs several times."""
    log_weights = generalized_pareto(0.6, (3, 1000))
    log_weights[0, 60:] = -np.inf
    log_weights[1] = np.maximum(log_weights[1], np.sort(log_weights[1])[-40])
    log_weights[2] = np.log(np.random.default_rng(0).integers(1, 200, 1000))
    np.testing.assert_allclose(pareto_k(log_weights), [direct_pareto_k(weights) for weights in log_weights], atol=1e-8)


def test_pareto_k_of_weights_on_a_gpu(monkeypatch):
    """The largest weights are found on the device, without NumPy."""
    log_weights = jnp.asarray(generalized_pareto(0.6, (5, 1000)), jnp.float32).at[2, 7].set(jnp.nan)
    log_weights = log_weights.at[3, 7].set(-jnp.nan)
    expected = pareto_k(log_weights)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(np, "partition", None)
    np.testing.assert_allclose(pareto_k(log_weights), expected, rtol=1e-12)
    assert (expected[2:4] == np.inf).all()


def test_pareto_k_of_extreme_weights_is_finite():
    """Differences of weights below the smallest normal number, and a grid point at which theta is exactly zero."""
    subnormal = np.r_[np.full(905, -np.inf), np.linspace(-736, -730, 90), 0, -1, -2, -3, -4]
    # With a tail of 20, n_grid = 34 and theta_9 = 1 / x_20 - 1 / (3 x_5) = 0 exactly.
    zero = np.log(np.r_[np.ones(80), 1.1, 1.2, 1.5, 1.75, np.full(12, 2.0), 2.5, 3, 3.5, 4.0])
    assert np.isfinite(pareto_k(subnormal[None])).all()
    assert np.isfinite(pareto_k(zero[None])).all()


def test_pareto_k_limit():
    """It reaches 0.7 at 10^(1 / (1 - 0.7)) = 2154.4 draws."""
    sizes = {10: 0.0, 100: 0.5, 1000: 2 / 3, 2154: 0.7, 2155: 0.7, 10**6: 0.7}
    assert {size: pareto_k_limit(size) for size in sizes} == pytest.approx(sizes, abs=1e-5)
    assert pareto_k_limit(2154) < 0.7 == pareto_k_limit(2155)
    with pytest.raises(ValueError, match="size must be at least 2; got 1"):
        pareto_k_limit(1)


@pytest.mark.parametrize("shape", [(100,), (3, 1), (2, 3, 100)])
def test_log_weights_of_wrong_shape_are_rejected(shape, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(
        ValueError, match=rf"log_weights must be \(replicates, draws\).*got shape {re.escape(str(shape))}"
    ):
        pareto_k(np.zeros(shape))


SHIFTS = np.array([[0.0, 0.0, 0.0, 0.0], [0.1, -0.2, 0.3, 0.0], [5.0, -1.0, 2.0, 2.0]])


@pytest.fixture(scope="module")
def shifted():
    """Draws with mean exactly zero and variance two, shifted in each of four populations."""
    draws = np.random.default_rng(2).exponential(size=(3, 4, 500))
    draws -= draws.mean(2, keepdims=True)
    return draws * np.sqrt(2) / draws.std(2, ddof=1, keepdims=True) + SHIFTS[:, :, None]


def test_r_hat_and_ess_of_shifted_populations(shifted):
    between = SHIFTS.var(1, ddof=1)
    np.testing.assert_allclose(r_hat(shifted), np.sqrt(499 / 500 + between / 2), rtol=1e-10)
    np.testing.assert_allclose(population_ess(shifted), [2000, *(4 * 2 / between[1:])], rtol=1e-10)
    scales = np.array([1e-6, 1.0, 1e6])[:, None, None]
    for moved in (1e4 + shifted, shifted * scales, shifted[:, ::-1, ::-1]):
        np.testing.assert_allclose(r_hat(moved), r_hat(shifted), rtol=1e-9)
        np.testing.assert_allclose(population_ess(moved), population_ess(shifted), rtol=1e-9)
    np.testing.assert_allclose(r_hat(jnp.asarray(shifted, float)), r_hat(shifted), rtol=1e-4)  # float32
    np.testing.assert_allclose(population_ess(jnp.asarray(shifted, float)), population_ess(shifted), rtol=1e-4)


def test_within_variance_is_averaged_over_populations():
    """Two draws +-a about zero have variance 2 a^2."""
    populations = np.array([[[1.0, -1.0], [3.0, -3.0], [5.0, -5.0]], [[1.0, -1.0], [3.0, 1.0], [8.0, 0.0]]])
    within, between = np.array([2 * 35 / 3, (2 + 2 + 32) / 3]), np.array([0.0, 4.0])
    np.testing.assert_allclose(r_hat(populations), np.sqrt(0.5 + between / within))
    np.testing.assert_allclose(population_ess(populations), [6, 6])
    populations[1, 2] += 20
    between = np.var([0, 2, 24], ddof=1)
    np.testing.assert_allclose(population_ess(populations), [6, 3 * 12 / between])


def test_r_hat_and_ess_of_independent_populations():
    """M Bm / W is chi-squared over its G - 1 degrees of freedom, up to the error sqrt(2 / (G M)) = 2% of W.

    The mean over 4000 quantities and shares of them within four standard errors; the error of W changes the mean by 2%
    squared.
    """
    n_replicates, groups, size = 4000, 5, 1000
    draws = np.random.default_rng(4).normal(size=(n_replicates, groups, size))
    scaled = size * (r_hat(draws) ** 2 - (size - 1) / size)
    assert abs(scaled.mean() - 1) < 4 * np.sqrt(2 / (groups - 1) / n_replicates) + 0.02**2
    ess = population_ess(draws)
    assert ess.max() == groups * size
    for share in (1.0, 0.75, 0.5):
        expected = chi2.sf((groups - 1) / share, groups - 1)
        assert abs((ess < share * groups * size).mean() - expected) < 4 * np.sqrt(
            expected * (1 - expected) / n_replicates
        )


def test_repeated_draws_do_not_increase_population_ess():
    """With each of L draws four times, W is on average 4 (L - 1) / (4 L - 1) of the variance, and Bm is 1 / L of it."""
    n_replicates, groups, length = 1000, 50, 250
    draws = np.repeat(np.random.default_rng(5).normal(size=(n_replicates, groups, length)), 4, axis=2)
    expected = groups * length * 4 * (length - 1) / (4 * length - 1)
    error = np.sqrt(2 / (groups - 1) / n_replicates)
    assert np.mean(1 / population_ess(draws)) * expected == pytest.approx(1, abs=4 * error)


def test_r_hat_and_ess_of_constant_populations():
    """The mean of 0.1 is rounded, but constants must have variance zero."""
    populations = np.full((3, 4, 1000), 0.1)
    populations[1] += np.arange(4)[:, None]
    populations[2, 1, 3] = 0.2
    values, ess = r_hat(populations), population_ess(populations)
    assert list(values[:2]) == [1, np.inf]
    assert list(ess[:2]) == [4000, 0]
    assert values[2] == pytest.approx(1, abs=1e-3)
    assert ess[2] == pytest.approx(4000)


@pytest.mark.parametrize("diagnostic", [r_hat, population_ess])
@pytest.mark.parametrize("shape", [(4, 100), (2, 1, 100), (2, 4, 1), (1, 2, 3, 4)])
def test_populations_of_wrong_shape_are_rejected(diagnostic, shape, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    message = rf"populations must be \(quantities, populations, draws\).*got shape {re.escape(str(shape))}"
    with pytest.raises(ValueError, match=message):
        diagnostic(np.random.default_rng(0).normal(size=shape))


@pytest.mark.parametrize("diagnostic", [r_hat, population_ess])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_populations_must_be_finite(diagnostic, value):
    populations = np.random.default_rng(0).normal(size=(2, 3, 10))
    populations[1, 2, 3] = value
    with pytest.raises(ValueError, match="populations must be finite"):
        diagnostic(populations)


@pytest.mark.parametrize("difference", [1.0, 1e-2, 3e-4])
def test_multi_ess_of_nearly_equal_parameters(difference):
    """Of independent draws it is their number, within the error of batch means of about sqrt(2 / 63) = 18%."""
    z = np.random.default_rng(5).normal(size=(4000, 2))
    assert 0.6 < multi_ess(np.column_stack([z[:, 0], z[:, 0] + difference * z[:, 1]])) / 4000 < 1.6
