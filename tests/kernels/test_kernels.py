"""Markov kernels leave their target invariant, and their adaptation reaches its goal."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from scipy import stats

import calibayes as cb
from calibayes._backend.rng import replicate_keys
from calibayes._core.particles import covariance
from calibayes._core.target import evaluate, make_target
from calibayes.kernels import RAM, RWMH, PolsonScott
from calibayes.kernels.polson_scott import inverse_gaussian
from calibayes.samplers.mixing import rejuvenate_until_mixed
from targets import gamma_draws, gamma_target, log_gamma_moments, svm_target


@eqx.filter_jit
def run(key, target, eta, particles, kernel, adaptation, n_steps, adapt):
    """Return the particles and the adaptation after `n_steps` steps, and the mean acceptance rate."""

    def body(i, carry):
        particles, adaptation, acceptance = carry
        keys = replicate_keys(jax.random.fold_in(key, i), target.n_replicates)
        particles, adaptation, info = kernel.step(keys, target, eta, particles, adaptation, adapt)
        return particles, adaptation, acceptance + info.acceptance / n_steps

    return jax.lax.fori_loop(0, n_steps, body, (particles, adaptation, jnp.zeros(target.n_replicates)))


def steps(key, target, eta, particles, kernel, n_steps, adapt):
    adaptation = kernel.init(covariance(particles.theta, particles.weights))
    return run(key, target, eta, particles, kernel, adaptation, n_steps, adapt)


@pytest.mark.parametrize("kernel", [RWMH(), RAM()], ids=lambda k: type(k).__name__)
def test_target_is_invariant(kernel, key):
    """Exact draws of an asymmetric target, moved without adaptation, have the same distribution: KS test."""
    target, total, weighted = gamma_target()
    eta = np.array([0.3, 1.0, 2.5])
    theta = gamma_draws(np.random.default_rng(1), eta * total, eta * weighted, 8000)
    moved, _, acceptance = steps(key, target, jnp.asarray(eta, float), evaluate(target, theta), kernel, 5, False)
    assert (acceptance > 0.1).all()
    for b in range(3):
        exact = stats.gamma(eta[b] * total[b], scale=1 / (eta[b] * weighted[b]))
        # Three KS tests of independent draws: one fails for three keys in a thousand.
        assert stats.kstest(np.exp(moved.theta[0, b]), exact.cdf).pvalue > 1e-3
    evaluated = target.evaluate(moved.theta)
    np.testing.assert_allclose(moved.risk, evaluated.risk, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kernel", [RWMH(), RAM()], ids=lambda k: type(k).__name__)
def test_adaptation_reaches_the_target_acceptance(kernel, key):
    """From proposals far too wide on one replicate and too narrow on the other, which tests the sign of the update."""
    target, total, weighted = gamma_target(n_replicates=2)
    theta = gamma_draws(np.random.default_rng(1), total, weighted, 500)
    particles, eta = evaluate(target, theta), jnp.ones(2)
    if isinstance(kernel, RWMH):
        adaptation = kernel.init(covariance(theta, particles.weights))
        adaptation = adaptation._replace(log_scale=adaptation.log_scale + jnp.asarray([3.0, -3.0]))
    else:
        adaptation = kernel.init(covariance(theta, particles.weights) * jnp.asarray([4.0, 0.25])[:, None, None])
    particles, adaptation, _ = run(key, target, eta, particles, kernel, adaptation, 1500, True)
    _, _, rates = run(key, target, eta, particles, kernel, adaptation, 50, False)
    # The mean of 500 acceptances, averaged over 50 steps, has an error of about 0.02 / sqrt(50); 0.03 allows for drift.
    target_acceptance = 0.25 if isinstance(kernel, RWMH) else 0.44
    np.testing.assert_allclose(rates, target_acceptance, atol=0.03)


def test_rwmh_as_printed_diverges(key):
    """The printed sign drives the scale away from the target acceptance rate."""
    target, total, weighted = gamma_target(n_replicates=2)
    particles = evaluate(target, gamma_draws(np.random.default_rng(1), total, weighted, 500))
    _, adaptation, _ = steps(key, target, jnp.ones(2), particles, RWMH(as_printed=True), 300, True)
    _, correct, _ = steps(key, target, jnp.ones(2), particles, RWMH(), 300, True)
    assert (jnp.abs(adaptation.log_scale - correct.log_scale) > 2).all()


def test_ram_learns_the_covariance(key):
    """On a correlated normal target, from a spherical proposal, the proposal acquires the correlation."""
    rng = np.random.default_rng(0)
    x = rng.multivariate_normal([0, 0], [[1, 0.9], [0.9, 1]], size=200)
    model = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=100.0))
    target = make_target(model, (x, x @ np.ones(2) + rng.normal(size=200)), np.ones((1, 200)), 2)
    exact = np.linalg.inv(x.T @ x)
    particles = evaluate(target, jnp.ones((2, 2, 10)))
    guess = jnp.broadcast_to(jnp.eye(2) * 1e-4, (2, 2, 2))
    _, adaptation, _ = run(key, target, jnp.ones(2), particles, RAM(), RAM().init(guess), 4000, True)
    learned = adaptation.root[0] @ adaptation.root[0].T
    correlation = learned[0, 1] / np.sqrt(learned[0, 0] * learned[1, 1])
    expected = exact[0, 1] / np.sqrt(exact[0, 0] * exact[1, 1])
    # The factor still fluctuates with a gain of 2 * 4000^(-2/3) = 0.008, averaged over ten chains.
    assert abs(correlation - expected) < 0.1


@pytest.mark.parametrize("eta", [pytest.param(0.1, marks=pytest.mark.slow), 1.0])
def test_polson_scott_agrees_with_metropolis(eta, key):
    """Means and variances of the SVM posterior, on the data and on two bootstrap replicates."""
    target = svm_target()
    n_chains, n_sweeps = 150, 60
    start = 0.3 * jax.random.normal(key, (8, 3, 1000))
    metropolis, mixed = rejuvenate_until_mixed(key, target, evaluate(target, start), eta)
    assert mixed.all()
    gibbs, _, _ = steps(
        key,
        target,
        jnp.full(3, eta),
        evaluate(target, metropolis.particles.theta[:, :, :n_chains] + 0.3),
        PolsonScott(),
        n_sweeps,
        False,
    )
    sd = np.sqrt(np.var(metropolis.particles.theta, -1))
    error = sd * np.sqrt(1 / n_chains + 1 / 700)
    gap = np.abs(gibbs.theta.mean(-1) - metropolis.particles.theta.mean(-1)) / error
    assert gap.max() < 4  # The largest of 24 normal deviates exceeds 4 for one key in 600.
    ratio = np.var(gibbs.theta, -1) / sd**2
    assert np.abs(ratio - 1).max() < 4.5 * np.sqrt(2 / n_chains + 2 / 700)


def test_polson_scott_rejects_other_models():
    target, *_ = gamma_target()
    with pytest.raises(TypeError, match=r"Hinge with priors\.Laplace"):
        PolsonScott().check(target)
    svm = svm_target()
    with pytest.raises(ValueError, match="non-negative counts"):
        PolsonScott().check(replace(svm, counts=replace(svm.counts, array=svm.counts.array - 0.1)))


@pytest.mark.parametrize(("mu", "shape"), [(0.05, 1.0), (2.0, 1.0), (300.0, 1.0), (5.0, 0.04)])
def test_inverse_gaussian_distribution(mu, shape, key):
    draws = inverse_gaussian(key, jnp.full(20_000, 1 / mu), jnp.full(20_000, shape))
    assert stats.kstest(draws, stats.invgauss(mu / shape, scale=shape).cdf).pvalue > 1e-3


def test_inverse_gaussian_limit_of_infinite_mean(key):
    """With a mean of 1e6, draws far below the mean are distributed as 1 / chi-squared."""
    draws = np.asarray(inverse_gaussian(key, jnp.zeros(20_000), jnp.ones(20_000)))
    quantiles = np.quantile(1 / draws, [0.25, 0.5, 0.75])
    np.testing.assert_allclose(quantiles, stats.chi2(1).ppf([0.25, 0.5, 0.75]), rtol=0.06)


def test_replicate_does_not_depend_on_the_others(key):
    """A replicate moves alone as it does among others."""
    target, total, weighted = gamma_target(n_replicates=3)
    theta = gamma_draws(np.random.default_rng(1), total, weighted, 200)
    together = evaluate(target, theta)
    keys = replicate_keys(key, 3)
    kernel = RWMH()
    step = eqx.filter_jit(kernel.step)
    all_moved, *_ = step(keys, target, jnp.ones(3), together, kernel.init(covariance(theta, together.weights)), True)
    alone = evaluate(target.replicate(2), theta[:, 2:])
    one_moved, *_ = step(
        keys[2:], target.replicate(2), jnp.ones(1), alone, kernel.init(covariance(alone.theta, alone.weights)), True
    )
    np.testing.assert_allclose(all_moved.theta[:, 2], one_moved.theta[:, 0], rtol=1e-5)


def test_nan_proposals_are_rejected_and_counted(key):
    model = cb.GibbsModel(
        lambda theta, y: jnp.where(theta[0] > 0.5, jnp.nan, 0.5 * (y - theta[0]) ** 2), cb.priors.Normal(), dim=1
    )
    target = make_target(model, np.zeros(4), np.ones((1, 4)), 1)
    particles = evaluate(target, jnp.zeros((1, 2, 300)) + jnp.linspace(-1, 0.4, 300)[None, None])
    moved, _, _ = steps(key, target, jnp.ones(2), particles, RWMH(), 3, True)
    assert (moved.theta <= 0.5).all()
    assert jnp.isfinite(moved.risk).all()
    _, _, info = RWMH().step(
        replicate_keys(key, 2),
        target,
        jnp.ones(2),
        particles,
        RWMH().init(covariance(particles.theta, particles.weights)),
        True,
    )
    assert (info.invalid > 0).all()


def test_moments_helper_matches_draws():
    """The closed-form moments used by these tests, against exact draws."""
    mu, var, skew = log_gamma_moments(12.0, 3.0)
    draws = np.log(np.random.default_rng(0).gamma(12.0, 1 / 3.0, 400_000))
    assert abs(draws.mean() - mu) < 4 * np.sqrt(var / 4e5)
    assert abs(draws.var() - var) < 0.01 * var
    assert abs(((draws - mu) ** 3).mean() - skew) < 0.1 * abs(skew)


@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_inverse_gaussian_scales_with_its_shape(scale, key):
    """The latent variables of the prior have shape 1 / scale^2; in units of the shape the distribution is the same."""
    shape = 1 / scale**2
    inverse_means = jnp.full(20_000, 0.7 / shape)
    draws = inverse_gaussian(key, inverse_means, jnp.full(20_000, shape))
    assert stats.kstest(np.asarray(draws) / shape, stats.invgauss(1 / 0.7).cdf).pvalue > 1e-3


@pytest.mark.parametrize("sampler", [cb.SMC, cb.MCMC])
def test_samplers_check_their_kernel(sampler, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(TypeError, match="kernel must be an instance"):
        sampler(kernel=RAM)
    target, *_ = gamma_target()
    with pytest.raises(TypeError, match="PolsonScott samples"):
        sampler(kernel=PolsonScott()).check(target)


@pytest.mark.parametrize("kernel", [RWMH(), cb.kernels.CrankNicolson()], ids=lambda k: type(k).__name__)
def test_mcmc_rejects_kernels_that_need_a_population(kernel):
    """The covariance of a single particle is zero."""
    with pytest.raises(TypeError, match=f"kernel {type(kernel).__name__} learns from a population"):
        cb.MCMC(kernel=kernel)
