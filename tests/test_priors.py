"""Priors against the densities and distribution functions of SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

from calibayes import priors
from calibayes.priors import as_prior

LOC, SCALE = np.array([-1.0, 0.5, 3.0]), np.array([0.3, 1.0, 4.0])
DF = np.array([3.0, 8.0, 30.0])
THETA = np.array([-0.9, 0.1, 5.0])

# A prior and the SciPy distribution of its components: scalar arguments, then one value per parameter.
CASES = {
    "normal": (priors.Normal(0.5, 2.0), stats.norm(0.5, 2.0)),
    "normals": (priors.Normal(LOC, SCALE), stats.norm(LOC, SCALE)),
    "normals, one scale": (priors.Normal(LOC, 2.0), stats.norm(LOC, 2.0)),
    "laplace": (priors.Laplace(0.5, 2.0), stats.laplace(0.5, 2.0)),
    "laplaces": (priors.Laplace(LOC, SCALE), stats.laplace(LOC, SCALE)),
    "student": (priors.StudentT(4.0, 0.5, 2.0), stats.t(4.0, 0.5, 2.0)),
    "students": (priors.StudentT(DF, LOC, SCALE), stats.t(DF, LOC, SCALE)),
    "uniform": (priors.Uniform(-2.0, 6.0), stats.uniform(-2.0, 8.0)),
    "uniforms": (priors.Uniform(LOC - 2, LOC + SCALE), stats.uniform(LOC - 2, SCALE + 2)),
    "numpyro normal": (as_prior(dist.Normal(0.5, 2.0)), stats.norm(0.5, 2.0)),
    "numpyro normals": (as_prior(dist.Normal(jnp.array(LOC), jnp.array(SCALE))), stats.norm(LOC, SCALE)),
}
COVARIANCE = np.array([[2.0, -0.9, 0.0], [-0.9, 1.0, 0.3], [0.0, 0.3, 0.5]])


@pytest.mark.parametrize("name", CASES)
def test_log_prob_is_the_sum_over_components(name):
    prior, reference = CASES[name]
    value = prior.log_prob(jnp.array(THETA))
    assert value.shape == ()
    assert value == pytest.approx(reference.logpdf(THETA).sum(), rel=1e-5)


def test_default_priors_are_standard_distributions():
    for prior, reference in [(priors.Normal(), stats.norm), (priors.Laplace(), stats.laplace)]:
        assert prior.log_prob(jnp.array(THETA)) == pytest.approx(reference.logpdf(THETA).sum(), rel=1e-5)


@pytest.mark.parametrize("theta", [[0.5, 1.5], [-0.1, 0.5]])
def test_uniform_is_zero_outside_its_bounds(theta):
    assert priors.Uniform(0.0, 1.0).log_prob(jnp.array(theta)) == -jnp.inf


@pytest.mark.parametrize("name", CASES)
def test_samples_have_the_prior_distribution(name, key):
    """Kolmogorov-Smirnov test at 1e-4 and tail frequency of each parameter; rank correlation of each pair.

    Tolerances are four standard errors: binomial for the tails of 2% in total, 1 / sqrt(n - 1) for the correlations.
    """
    prior, reference = CASES[name]
    n = 4000
    with jax.numpy_rank_promotion(
        "allow" if name.startswith("numpyro") else "raise"
    ):  # NumPyro relies on rank promotion.
        draws = np.asarray(prior.sample(key, (n, 3)), float)
    assert draws.shape == (n, 3)
    cdf = reference.cdf(draws)
    for k in range(3):
        assert stats.kstest(cdf[:, k], "uniform").pvalue > 1e-4
    assert (np.abs((np.abs(cdf - 0.5) > 0.49).mean(0) - 0.02) < 4 * np.sqrt(0.02 * 0.98 / n)).all()
    correlation = stats.spearmanr(draws).statistic[np.triu_indices(3, 1)]
    assert np.abs(correlation).max() < 4 / np.sqrt(n - 1)


def test_sample_allows_several_leading_axes(key):
    """The last axis is that of the parameters. The standard error of a standard deviation is scale / sqrt(2 n)."""
    draws = priors.Normal(LOC, SCALE).sample(key, (5, 800, 3))
    assert draws.shape == (5, 800, 3)
    assert np.abs(np.std(draws, axis=(0, 1)) / SCALE - 1).max() < 4 / np.sqrt(2 * 4000)


def test_multivariate_numpyro_distribution_is_a_prior(key):
    """Tolerance: four standard errors; entries of the sample covariance have variance (s_ij^2 + s_ii s_jj) / n."""
    prior = as_prior(dist.MultivariateNormal(jnp.array(LOC), jnp.array(COVARIANCE)))
    reference = stats.multivariate_normal(LOC, COVARIANCE)
    value = prior.log_prob(jnp.array(THETA))
    assert value.shape == ()
    assert value == pytest.approx(reference.logpdf(THETA), rel=1e-4)
    n = 4000
    with jax.numpy_rank_promotion("allow"):
        draws = np.asarray(prior.sample(key, (n, 3)))
    assert draws.shape == (n, 3)
    variance = np.diag(COVARIANCE)
    assert (np.abs(draws.mean(0) - LOC) < 4 * np.sqrt(variance / n)).all()
    error = np.sqrt((COVARIANCE**2 + np.outer(variance, variance)) / n)
    assert (np.abs(np.cov(draws.T) - COVARIANCE) < 4 * error).all()


@pytest.mark.parametrize("name", ["normals", "students", "uniforms", "laplaces"])
def test_size_is_the_length_of_vector_arguments(name):
    assert CASES[name][0].size == 3
    assert priors.Normal(0.0, 2.0).size is None


def test_arguments_of_different_lengths_are_rejected():
    with pytest.raises(ValueError, match=r"Normal was given parameters of different lengths: \[2, 3\]"):
        priors.Normal(loc=np.zeros(2), scale=np.ones(3)).size  # noqa: B018


@pytest.mark.parametrize("kind", [priors.Normal, priors.Laplace])
@pytest.mark.parametrize("scale", [0.0, -1.0, np.array([1.0, -0.5])])
def test_scale_must_be_positive(kind, scale):
    with pytest.raises(ValueError, match="scale must be positive"):
        kind(scale=scale)


def test_degrees_of_freedom_must_be_positive():
    with pytest.raises(ValueError, match="df must be positive"):
        priors.StudentT(0.0)


@pytest.mark.parametrize("parameters", [{"loc": np.inf}, {"scale": np.nan}, {"loc": np.zeros((2, 2))}])
def test_arguments_must_be_finite_scalars_or_vectors(parameters):
    (name,) = parameters
    with pytest.raises(ValueError, match=f"{name} must be a finite scalar or one value per parameter"):
        priors.Normal(**parameters)


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (2.0, 1.0), (np.array([0.0, 3.0]), 2.0)])
def test_low_must_be_below_high(low, high):
    with pytest.raises(ValueError, match="low must be below high"):
        priors.Uniform(low, high)


@pytest.mark.parametrize("prior", [3.0, None, "normal", stats.norm()])
def test_objects_without_log_prob_are_rejected(prior):
    with pytest.raises(TypeError, match=f"prior must have log_prob.*got {type(prior).__name__}"):
        as_prior(prior)


def test_user_defined_prior_is_returned_unchanged():
    class LaplaceUpToAConstant:
        def log_prob(self, theta):
            return -jnp.abs(theta).sum()

    prior = LaplaceUpToAConstant()
    assert as_prior(prior) is prior


def test_new_scale_does_not_recompile():
    traces = []

    @jax.jit
    def log_prob(prior):
        traces.append(1)
        return prior.log_prob(jnp.array(THETA))

    values = {float(log_prob(priors.Normal(scale=scale))) for scale in (1.0, 2.0)}
    assert len(values) == 2
    assert len(traces) == 1
