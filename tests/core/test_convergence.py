"""Diagnostics against closed forms, slow copies of their definitions, and values of other programs."""

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
    min_ess,
    multi_ess,
    batch_means_ess,
    pareto_k,
    pareto_k_limit,
    population_ess,
    r_hat,
)

N = 40_000
# Neither symmetric nor diagonal, with one parameter slower than the other.
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
    """Four standard errors: log|Wishart| of sqrt(n) batches has variance 2 K / sqrt(n), and is divided by K."""
    return 4 * np.sqrt(2 / (dim * np.sqrt(n)))


def slow_multi_ess(chain):
    """Vats, Flegal and Jones (2019), by loops: the last floor(sqrt n) * floor(n / floor(sqrt n)) draws in batches."""
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
def test_multi_ess_is_its_definition(n, dim):
    """To float32: a determinant of K = 6 is right to a few times 1e-5."""
    rng = np.random.default_rng(n)
    chain = np.cumsum(rng.normal(size=(n, dim)), 0) * 0.05
    chain += rng.exponential(size=(n, dim)) @ rng.normal(size=(dim, dim))
    assert multi_ess(chain) == pytest.approx(slow_multi_ess(chain), rel=1e-3)


@pytest.mark.parametrize("dim", [1, 4])
def test_independent_draws_count_in_full(dim):
    """Skewed draws. For min_ess the sum of L = 4 or so estimated correlations has error 2 sqrt(2 L / n) = 0.03."""
    chain = np.random.default_rng(1).exponential(size=(N, dim))
    assert abs(np.log(multi_ess(chain) / N)) < multi_ess_error(N, dim)
    assert abs(min_ess(chain) / N - 1) < 4 * 0.03


@pytest.mark.parametrize("phi", [0.5, 0.9, -0.4])
def test_autoregression(phi):
    """The integrated time is (1 + phi) / (1 - phi).

    Batches of b draws miss 2 phi / (1 - phi^2) / b of it (5% at 0.9). A window of W lags has relative error
    sqrt(2 (2 W + 1) / n), with W some five times the integrated time: 4% at 0.9, and 4 of those are allowed.
    """
    ess = N * (1 - phi) / (1 + phi)
    chain = ar1(phi)[:, None]
    bias = abs(2 * phi / (1 - phi**2)) / np.sqrt(N)
    assert abs(np.log(multi_ess(chain) / ess)) < multi_ess_error(N, 1) + bias
    window = 5 * (1 + abs(phi)) / (1 - abs(phi))
    assert abs(np.log(min_ess(chain) / ess)) < 4 * np.sqrt(2 * (2 * window + 1) / N)


def test_vector_autoregression(var1):
    """Lambda solves a Lyapunov equation; Sigma = (I - Phi)^-1 Lambda + Lambda (I - Phi')^-1 - Lambda."""
    covariance = solve_discrete_lyapunov(PHI, NOISE)
    resolvent = np.linalg.inv(np.eye(2) - PHI)
    of_mean = resolvent @ covariance + covariance @ resolvent.T - covariance
    expected = N * np.sqrt(np.linalg.det(covariance) / np.linalg.det(of_mean))
    assert abs(np.log(multi_ess(var1) / expected)) < multi_ess_error(N, 2)
    # The slowest parameter decides min_ess; the window is some 5 times its integrated time, as above.
    times = np.diag(of_mean) / np.diag(covariance)
    assert abs(np.log(min_ess(var1) / (N / times.max()))) < 4 * np.sqrt(2 * (10 * times.max() + 1) / N)
    assert times.max() > 1.5 * times.min()


def test_multi_ess_does_not_see_coordinates(var1):
    mixed = var1 @ np.array([[3.0, -1.0], [0.5, 0.2]]) + np.array([7.0, -30.0])
    assert multi_ess(mixed) == pytest.approx(multi_ess(var1), rel=1e-3)


def test_min_ess_is_of_the_worst_parameter():
    columns = np.column_stack([ar1(0.1, seed=1), ar1(0.8, seed=2), ar1(0.4, seed=3)])
    assert min_ess(columns) == min(min_ess(columns[:, [k]]) for k in range(3)) == min_ess(columns[:, [1]])


def test_chain_that_does_not_move():
    still = np.column_stack([np.arange(100.0), np.full(100, 2.0)])
    assert multi_ess(still) == 0
    draws = np.random.default_rng(0).normal(size=1_000)
    for value in (3.3, 123.456):  # As MCMC passes them: raw, in single precision, where their mean is rounded.
        assert batch_means_ess(jnp.asarray(np.column_stack([draws, np.full(1_000, value)]), jnp.float32)) == 0
    with pytest.raises(ValueError, match="does not move"):
        min_ess(still)


@pytest.mark.parametrize("ess", [multi_ess, min_ess])
@pytest.mark.parametrize("shape", [(15, 1), (50, 5), (3, 200), (1000,), (4, 100, 2)])
def test_too_few_draws_or_axes(ess, shape, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # else the type checker is first to complain
    with pytest.raises(ValueError, match=rf"chain must be \(draws, parameters\).*got shape {re.escape(str(shape))}"):
        ess(np.random.default_rng(0).normal(size=shape))


@pytest.mark.parametrize("ess", [multi_ess, min_ess])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_chain_must_be_finite(ess, value):
    chain = np.random.default_rng(0).normal(size=(100, 2))
    chain[3, 1] = value
    with pytest.raises(ValueError, match="chain must be finite"):
        ess(chain)


def generalized_pareto(k, shape, seed=0):
    """Logs of draws with distribution function 1 - (1 + k x)^(-1/k); what exceeds any threshold has the same k."""
    return np.log(np.expm1(k * np.random.default_rng(seed).exponential(size=shape)) / k)


def slow_pareto_k(log_weights):
    """Algorithm 1 of Vehtari et al. (2024) with Zhang and Stephens (2009), by loops over one row."""
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
def test_pareto_k_is_its_definition(size, spread):
    log_weights = spread * np.random.default_rng(size).normal(size=(4, size)) - 500
    slow = [slow_pareto_k(row) for row in log_weights]
    np.testing.assert_allclose(pareto_k(log_weights), slow, atol=1e-8)


# By arviz_stats 0.8.0: `array_stats.psislw(-log_weights)[1]`. Sizes at which 3 sqrt(M) and M / 5 are integers:
# it rounds the size of the tail down, and PSIS as published up.
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
def test_pareto_k_is_that_of_arviz(size, power):
    log_weights = -power * np.log((np.arange(size) * 7 % size + 0.5) / size) + np.sin(np.arange(size)) / 5
    assert pareto_k(log_weights[None])[0] == pytest.approx(ARVIZ[size, power], abs=1e-6)


@pytest.mark.parametrize("k", [0.2, 0.5, 0.9])
def test_pareto_k_of_generalized_pareto(k):
    """Drawn towards 1/2 like ten more numbers; the standard error of n is (1 + k) / sqrt(n), and its bias below 2 / n.

    The spread of 2000 rows is known to 1 / sqrt(2 * 2000) = 1.6%, and six of those are allowed.
    """
    n_replicates, size = 2000, 2500
    n = 150
    found = pareto_k(generalized_pareto(k, (n_replicates, size)))
    error = (1 + k) / np.sqrt(n) * n / (n + 10)
    assert abs(found.mean() - (n * k + 5) / (n + 10)) < 4 * error / np.sqrt(n_replicates) + 2 / n
    assert found.std() == pytest.approx(error, rel=0.1)


def test_pareto_k_does_not_see_order_or_constants():
    log_weights = generalized_pareto(0.6, (8, 1000))
    expected = pareto_k(log_weights)
    shuffled = np.random.default_rng(1).permuted(log_weights, axis=1)
    np.testing.assert_array_equal(pareto_k(shuffled), expected)
    np.testing.assert_allclose(pareto_k(log_weights + np.linspace(-900, 900, 8)[:, None]), expected, rtol=1e-9)
    np.testing.assert_allclose(pareto_k(jnp.asarray(log_weights, float)), expected, atol=1e-4)  # float32
    np.testing.assert_array_equal(pareto_k(log_weights[:3]), expected[:3])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_pareto_k_of_constant_weights(dtype):
    """Constant up to rounding of their logs, or in the tail, among rows that have a k."""
    rows = generalized_pareto(0.6, (5, 1000))
    rows[0] = 0
    rows[1] = -np.log(1000) * (1 + np.finfo(dtype).eps * np.random.default_rng(0).binomial(10, 0.5, 1000))
    rows[2] = np.where(np.arange(1000) < 95, -3, -5)  # a tail of 95
    rows[3] = np.where(np.arange(1000) < 200, -3, -np.inf)
    found = pareto_k(rows.astype(dtype))
    assert (found[:4] == -np.inf).all()
    assert 0 < found[4] < 1


def test_pareto_k_of_too_few_weights():
    rows = np.full((8, 1000), -np.inf)
    rows[1, :3] = 0.0, 1.0, 2.0
    rows[2, :4] = 0.0, 1.0, 2.0, 3.0
    rows[3, :5] = 0.0, 1.0, 2.0, 3.0, 4.0
    rows[4] = np.arange(1000) // 300
    rows[5], rows[5, 7] = np.arange(1000) / 100, np.nan
    rows[6] = -1000.0 * np.arange(1000)
    rows[7], rows[7, 7] = np.arange(1000) / 100, np.inf
    found = pareto_k(rows)
    assert (found[[0, 1, 2, 5, 6, 7]] == np.inf).all()
    assert found[4] == -np.inf  # the tail is of one weight
    assert found[3] == pytest.approx(slow_pareto_k(rows[3]), abs=1e-8)
    assert (pareto_k(generalized_pareto(0.5, (3, 20))) == np.inf).all()  # a tail of four


def test_pareto_k_leaves_out_what_is_tied_with_the_threshold():
    """Weights of zero, or some other one: the tail is what is above."""
    rows = generalized_pareto(0.6, (3, 1000))
    rows[0, 60:] = -np.inf
    rows[1] = np.maximum(rows[1], np.sort(rows[1])[-40])
    rows[2] = np.log(np.random.default_rng(0).integers(1, 200, 1000))
    np.testing.assert_allclose(pareto_k(rows), [slow_pareto_k(row) for row in rows], atol=1e-8)


def test_pareto_k_finds_the_largest_itself(monkeypatch):
    """Where the weights are on a GPU, as there."""
    log_weights = jnp.asarray(generalized_pareto(0.6, (5, 1000)), jnp.float32).at[2, 7].set(jnp.nan)
    log_weights = log_weights.at[3, 7].set(-jnp.nan)
    expected = pareto_k(log_weights)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(np, "partition", None)
    np.testing.assert_allclose(pareto_k(log_weights), expected, rtol=1e-12)
    assert (expected[2:4] == np.inf).all()


def test_pareto_k_far_from_even():
    """Gaps of weights below the smallest normal number, and a grid point at which theta is exactly zero."""
    subnormal = np.r_[np.full(905, -np.inf), np.linspace(-736, -730, 90), 0, -1, -2, -3, -4]
    # A tail of 20: n_grid = 34, and theta_9 = 1 / x_20 - 1 / (3 x_5), with weights that are exact numbers.
    zero = np.log(np.r_[np.ones(80), 1.1, 1.2, 1.5, 1.75, np.full(12, 2.0), 2.5, 3, 3.5, 4.0])
    assert np.isfinite(pareto_k(subnormal[None])).all()
    assert np.isfinite(pareto_k(zero[None])).all()


def test_limit_of_pareto_k():
    """At k = 0.7 it takes 10^(1 / (1 - 0.7)) = 2154.4 draws."""
    sizes = {10: 0.0, 100: 0.5, 1000: 2 / 3, 2154: 0.7, 2155: 0.7, 10**6: 0.7}
    assert {size: pareto_k_limit(size) for size in sizes} == pytest.approx(sizes, abs=1e-5)
    assert pareto_k_limit(2154) < 0.7 == pareto_k_limit(2155)
    with pytest.raises(ValueError, match="size must be at least 2; got 1"):
        pareto_k_limit(1)


@pytest.mark.parametrize("shape", [(100,), (3, 1), (2, 3, 100)])
def test_log_weights_are_rows(shape, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=rf"log_weights must be \(rows, draws\).*got shape {re.escape(str(shape))}"):
        pareto_k(np.zeros(shape))


SHIFTS = np.array([[0.0, 0.0, 0.0, 0.0], [0.1, -0.2, 0.3, 0.0], [5.0, -1.0, 2.0, 2.0]])


@pytest.fixture(scope="module")
def shifted():
    """Draws of mean zero and variance two to rounding, but for the shifts of four populations."""
    draws = np.random.default_rng(2).exponential(size=(3, 4, 500))
    draws -= draws.mean(2, keepdims=True)
    return draws * np.sqrt(2) / draws.std(2, ddof=1, keepdims=True) + SHIFTS[:, :, None]


def test_shifted_populations(shifted):
    between = SHIFTS.var(1, ddof=1)
    np.testing.assert_allclose(r_hat(shifted), np.sqrt(499 / 500 + between / 2), rtol=1e-10)
    np.testing.assert_allclose(population_ess(shifted), [2000, *(4 * 2 / between[1:])], rtol=1e-10)
    scales = np.array([1e-6, 1.0, 1e6])[:, None, None]
    for moved in (1e4 + shifted, shifted * scales, shifted[:, ::-1, ::-1]):
        np.testing.assert_allclose(r_hat(moved), r_hat(shifted), rtol=1e-9)
        np.testing.assert_allclose(population_ess(moved), population_ess(shifted), rtol=1e-9)
    np.testing.assert_allclose(r_hat(jnp.asarray(shifted, float)), r_hat(shifted), rtol=1e-4)  # float32
    np.testing.assert_allclose(population_ess(jnp.asarray(shifted, float)), population_ess(shifted), rtol=1e-4)


def test_populations_of_different_variance():
    """W is a mean of variances: of two draws +-a about zero they are 2 a^2."""
    populations = np.array([[[1.0, -1.0], [3.0, -3.0], [5.0, -5.0]], [[1.0, -1.0], [3.0, 1.0], [8.0, 0.0]]])
    within, between = np.array([2 * 35 / 3, (2 + 2 + 32) / 3]), np.array([0.0, 4.0])
    np.testing.assert_allclose(r_hat(populations), np.sqrt(0.5 + between / within))
    np.testing.assert_allclose(population_ess(populations), [6, 6])
    populations[1, 2] += 20
    between = np.var([0, 2, 24], ddof=1)
    np.testing.assert_allclose(population_ess(populations), [6, 3 * 12 / between])


def test_independent_populations():
    """M Bm / W is chi-squared over its G - 1 degrees of freedom, but for W's error of sqrt(2 / (G M)) = 2%.

    Mean over 4000 quantities and shares of them, to four standard errors; for W, 2% squared is left of the mean.
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


def test_population_ess_of_repeated_draws():
    """Each of L draws four times: W is 4 (L - 1) / (4 L - 1) of the variance on average, and Bm is 1 / L of it."""
    n_replicates, groups, length = 1000, 50, 250
    draws = np.repeat(np.random.default_rng(5).normal(size=(n_replicates, groups, length)), 4, axis=2)
    expected = groups * length * 4 * (length - 1) / (4 * length - 1)
    error = np.sqrt(2 / (groups - 1) / n_replicates)
    assert np.mean(1 / population_ess(draws)) * expected == pytest.approx(1, abs=4 * error)


def test_populations_that_do_not_move():
    """0.1 has no exact mean: constants must be told from rounding."""
    populations = np.full((3, 4, 1000), 0.1)
    populations[1] += np.arange(4)[:, None]
    populations[2, 1, 3] = 0.2
    found, ess = r_hat(populations), population_ess(populations)
    assert list(found[:2]) == [1, np.inf]
    assert list(ess[:2]) == [4000, 0]
    assert found[2] == pytest.approx(1, abs=1e-3)
    assert ess[2] == pytest.approx(4000)


@pytest.mark.parametrize("diagnostic", [r_hat, population_ess])
@pytest.mark.parametrize("shape", [(4, 100), (2, 1, 100), (2, 4, 1), (1, 2, 3, 4)])
def test_populations_are_quantities_groups_and_draws(diagnostic, shape, monkeypatch):
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


@pytest.mark.parametrize("apart", [1.0, 1e-2, 3e-4])
def test_parameters_that_all_but_agree_are_no_chain_that_stands_still(apart):
    """Independent draws: all of them count, to within batch means' own error of some sqrt(2 / 63) = 18% here."""
    z = np.random.default_rng(5).normal(size=(4000, 2))
    assert 0.6 < multi_ess(np.column_stack([z[:, 0], z[:, 0] + apart * z[:, 1]])) / 4000 < 1.6
