"""Effective sample sizes against closed forms of autoregressions and a slow copy of their definition."""

import re

import jaxtyping
import numpy as np
import pytest
from scipy.linalg import solve_discrete_lyapunov
from scipy.signal import lfilter

from calibayes.diagnostics import min_ess, multi_ess

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
