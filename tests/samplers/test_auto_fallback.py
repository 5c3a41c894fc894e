"""Posteriors that no affine map can follow: transport alone is wrong, and `sampler="auto"` detects and corrects it.

Two modes whose weights vary between replicates; a loss that is a step function; a bound that the prior does not state.
All three have one parameter, and so an exact answer on a grid. They share one loss class and one prior class, so that
they share compiled programs.
"""

import warnings
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._core.status import Code, Severity

N, N_REPLICATES = 56, 200
MODES, STEPS, BOUND = range(3)


def losses(kind, theta, x, y, xp):
    """Return Welsch's location loss; the misclassification by the sign of x - theta; or half the squared error."""
    return [
        lambda: 1 - xp.exp(-0.5 * (y - theta) ** 2),
        lambda: xp.where(xp.where(theta <= x, 1.0, -1.0) != y, 1.0, 0.0),
        lambda: 0.5 * (y - theta) ** 2,
    ][kind]()


class Loss(eqx.Module):
    kind: jax.Array

    def __call__(self, theta, datum):
        return jnp.stack([losses(kind, theta[0], *datum, jnp) for kind in range(3)])[self.kind]


class Prior(eqx.Module):
    """Normal, or exponential on the positive half-line without stating its bound."""

    scale: jax.Array
    bounded: jax.Array

    def log_prob(self, theta):
        exponential = jnp.where(theta >= 0, -theta / self.scale, -jnp.inf)
        return jnp.where(self.bounded, exponential, -0.5 * jnp.square(theta / self.scale)).sum()

    def sample(self, key, shape):
        return self.scale * jnp.where(self.bounded, jax.random.exponential(key, shape), jax.random.normal(key, shape))


class PriorWithBounds(Prior):
    """The same, but it states its bound."""

    bounds = (0.0, np.inf)


class Problem(NamedTuple):
    model: cb.GibbsModel
    data: tuple
    counts: np.ndarray
    grid: np.ndarray
    risk: np.ndarray
    log_prior: np.ndarray

    def coverage(self, eta):
        """Return the exact coverage of the 95% intervals on these replicates, by integration on the grid."""
        value = -eta * self.risk + self.log_prior
        weights = np.exp(value - value.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        cdf = np.cumsum(weights[1:], 1) - 0.5 * weights[1:]
        below = np.array([np.interp(weights[0] @ self.grid, self.grid, values) for values in cdf])
        return (np.abs(2 * below - 1) <= 0.95).mean()

    def calibrate(self, sampler):
        """Return the result, and the texts of its warnings."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", cb.CalibrationWarning)
            result = cb.calibrate(
                self.model,
                self.data,
                region=cb.regions.Interval(0),
                sampler=sampler,
                bootstrap=self.counts,
                seed=1,
                progress=False,
            )
        return result, [str(warning.message) for warning in caught]


def make_problem(kind, prior=Prior):
    rng = np.random.default_rng({MODES: 1, STEPS: 2, BOUND: 0}[kind])
    x = rng.normal(size=N)
    if kind == MODES:
        y = np.concatenate([rng.normal(-2, 0.7, N // 2 + 1), rng.normal(2, 0.7, N // 2 - 1)])
        grid, scale = np.linspace(-10, 10, 2001), 3.0
    elif kind == STEPS:
        y = np.where(rng.uniform(size=N) < np.where(x > 0, 0.8, 0.2), 1.0, -1.0)
        grid, scale = np.linspace(-7, 7, 7001), 2.0
    else:
        y = rng.normal(size=N)
        y += -0.1 - y.mean()
        grid, scale = np.linspace(0, 5, 5001), 5.0
    counts = rng.multinomial(N, np.full(N, 1 / N), size=N_REPLICATES)
    risk = np.concatenate([np.ones((1, N)), counts]) @ losses(kind, grid, x[:, None], y[:, None], np)
    log_prior = -grid / scale if kind == BOUND else -0.5 * (grid / scale) ** 2
    model = cb.GibbsModel(Loss(jnp.asarray(kind)), prior(jnp.asarray(scale), jnp.asarray(kind == BOUND)), dim=1)
    return Problem(model, (x, y), counts, grid, risk, log_prior)


def coverage_error(problem, result):
    return abs(problem.coverage(result.eta) - 0.95)


THREE_REPLICATES = 3.01 / N_REPLICATES
"""Allowed error of the coverage, 0.015. A level near 0.95 from 1,000 particles has an error of 0.01, and the mean of
eight correlated snapshots perhaps half of that. Of 200 replicates 200 * 0.005 * 0.4, fewer than one, is misclassified
in each direction, and eta lies between two replicates. Three replicates are three such errors."""


SLOW = pytest.mark.slow


@pytest.mark.parametrize("kind", [MODES, pytest.param(STEPS, marks=SLOW), BOUND], ids=["modes", "steps", "bound"])
def test_auto_is_right_where_transport_is_wrong(kind):
    problem = make_problem(kind)
    plain, _ = problem.calibrate(cb.Transport(repair=False))
    assert coverage_error(problem, plain) > 0.02 or not plain.converged
    assert len(plain.repaired_replicates) == 0
    result, warned = problem.calibrate("auto")
    assert result.converged
    assert coverage_error(problem, result) < THREE_REPLICATES
    # It reports the repaired replicates and, if these are all of them, the reason.
    assert len(result.repaired_replicates) > 0
    findings = {diagnostic.code: diagnostic for diagnostic in result.diagnostics}
    if len(result.repaired_replicates) < N_REPLICATES:
        assert findings[Code.REPAIRED].count == len(result.repaired_replicates)
        assert findings[Code.REPAIRED].message in result.message
        return
    # A warning that many replicates are repaired may come first.
    message = warned[-1]
    assert "All replicates were therefore sampled again by SMC" in findings[Code.FALLBACK].message
    assert Code.AUDIT_FAILED in findings or Code.NO_CROSSING in findings
    serious = [diagnostic.message for diagnostic in result.diagnostics if diagnostic.severity >= Severity.WARNING]
    assert message == f"calibration: {' '.join(serious)}"


@pytest.mark.slow
def test_stated_bound_needs_no_fallback():
    """In unconstrained coordinates affine maps can follow the posterior: no repair, no warning, no fallback."""
    problem = make_problem(BOUND, PriorWithBounds)
    result, warned = problem.calibrate(cb.Transport(repair=False))
    assert result.converged
    assert warned == []
    assert coverage_error(problem, result) < THREE_REPLICATES
    assert (result.draws > 0).all()


def test_only_audited_transport_has_a_fallback():
    for sampler in (cb.SMC(), cb.MCMC(), cb.Transport()):
        assert sampler.fallback(2) is None
    fallback = cb.Transport(n_particles=300, audit=True).fallback(2)
    assert isinstance(fallback, cb.SMC)
    assert (fallback.n_particles, fallback.start) == (300, "prior")
