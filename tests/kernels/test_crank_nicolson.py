"""The Crank-Nicolson kernel leaves the target invariant, mixes in a few moves, and leaves heavy tails."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import calibayes as cb
from calibayes._backend.rng import replicate_keys
from calibayes._core.particles import covariance, ess, reweight
from calibayes._core.target import evaluate, make_target
from calibayes.kernels import RWMH, CrankNicolson
from targets import gamma_draws, gamma_target, log_gamma_moments

N_REPLICATES, M = 3, 8000
ETA = np.array([0.1, 0.25, 1.0])
"""With 40 observations: gamma shapes from 4 to 40, skewness from -0.53 to -0.16."""


@eqx.filter_jit
def run(key, target, eta, particles, kernel, adaptation, n_steps, adapt):
    """Return the particles and the adaptation after `n_steps` steps, and the mean acceptance rate."""

    def body(i, carry):
        particles, adaptation, acceptance = carry
        keys = replicate_keys(jax.random.fold_in(key, i), target.n_replicates)
        particles, adaptation, info = kernel.step(keys, target, eta, particles, adaptation, adapt)
        return particles, adaptation, acceptance + info.acceptance / n_steps

    return jax.lax.fori_loop(0, n_steps, body, (particles, adaptation, jnp.zeros(target.n_replicates)))


def initial_adaptation(kernel, particles):
    return kernel.init(covariance(particles.theta, particles.weights))


@pytest.fixture(scope="module")
def skewed():
    """Exact draws at 0.3 eta, weighted to represent eta, with an effective sample size of about 0.7 M."""
    target, total, weighted = gamma_target(N_REPLICATES)
    draws = gamma_draws(np.random.default_rng(1), 0.3 * ETA * total, 0.3 * ETA * weighted, M)
    particles = evaluate(target, draws)
    step = jnp.asarray(0.7 * ETA, float)
    particles = particles.with_log_weights(eqx.filter_jit(reweight)(particles.log_weights, particles.risk, step))
    assert (ess(particles.log_weights) < 0.8 * M).all()
    return target, particles, log_gamma_moments(ETA * total, ETA * weighted)


def moments(particles, centre):
    """Return weighted means of the first three powers about a centre, and their standard errors."""
    weights = np.asarray(particles.weights, float)
    gap = np.asarray(particles.theta[0], float) - centre[:, None]
    powers = np.stack([gap, gap**2, gap**3])
    means = (weights * powers).sum(-1)
    return means, np.sqrt((weights**2 * (powers - means[..., None]) ** 2).sum(-1))


@pytest.mark.parametrize("moves", ["adapting", "steps only", "walks only"])
def test_weighted_target_is_invariant(skewed, moves, key):
    """Weighted draws of an asymmetric target keep their mean, variance and third moment.

    Each kind of move must leave the target invariant on its own; the other kind is given a step size of zero. There are
    nine comparisons: the largest normal deviate exceeds 4 for one key in 1,700. The proposals are fitted to the 8,000
    particles that they move, which biases moments by at most 1 / M of their size.
    """
    target, particles, (mu, var, third) = skewed
    kernel = CrankNicolson()
    adaptation = initial_adaptation(kernel, particles)
    if moves == "steps only":
        adaptation = adaptation._replace(log_scale=jnp.full(N_REPLICATES, -20.0))
    if moves == "walks only":
        adaptation = adaptation._replace(logit_beta=jnp.full(N_REPLICATES, -20.0))
    eta = jnp.asarray(ETA, float)
    moved, _, acceptance = run(key, target, eta, particles, kernel, adaptation, 30, moves == "adapting")
    assert (acceptance > 0.5).all()
    assert (np.abs(np.asarray(moved.theta - particles.theta)) > 1e-3).mean() > 0.9
    np.testing.assert_array_equal(moved.log_weights, particles.log_weights)
    estimated, error = moments(moved, mu)
    exact = np.stack([np.zeros(N_REPLICATES), var, third])
    assert (np.abs(estimated - exact) < 4 * error).all()
    evaluated = evaluate(target, moved.theta)
    np.testing.assert_allclose(moved.risk, evaluated.risk, rtol=1e-4, atol=1e-3)


def test_mixes_in_eight_moves_with_eight_parameters(key):
    """After eight moves on a correlated normal the particles are uncorrelated with their start, unlike a random walk's.

    A correlation over 1,000 particles has an error of 1 / sqrt(1000) = 0.032; the largest of 16 exceeds 4.5 errors, or
    0.14, for one key in 9,000. The random walk accepts a quarter of its steps, of 2.38 / sqrt(8) = 0.84 standard
    deviations, which gives correlations of about 0.9 after one move and 0.4 after eight.
    """
    rng = np.random.default_rng(0)
    n, dim, size = 64, 8, 1000
    x = rng.normal(size=(n, dim)) @ np.linalg.cholesky(0.3 * np.eye(dim) + 0.7).T
    y = x @ np.ones(dim) + rng.normal(size=n)
    model = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=100.0))
    counts = rng.multinomial(n, np.full(n, 1 / n), size=1)
    target = make_target(model, (x, y), counts, dim)
    draws = []
    for weights in (np.ones(n), counts[0]):
        precision = x.T @ (weights[:, None] * x)
        root = np.linalg.cholesky(np.linalg.inv(precision))
        draws.append(np.linalg.solve(precision, x.T @ (weights * y))[:, None] + root @ rng.normal(size=(dim, size)))
    particles = evaluate(target, jnp.asarray(np.stack(draws, 1), float))
    correlations = {}
    for kernel in (CrankNicolson(), RWMH()):
        moved, *_ = run(key, target, jnp.ones(2), particles, kernel, initial_adaptation(kernel, particles), 8, True)
        pairs = [(a, b) for k in range(dim) for a, b in zip(particles.theta[k], moved.theta[k], strict=True)]
        correlations[type(kernel)] = np.array([np.corrcoef(a, b)[0, 1] for a, b in pairs])
    assert np.abs(correlations[CrankNicolson]).max() < 0.14
    assert correlations[RWMH].min() > 0.2


def test_adaptation_does_not_depend_on_its_start(skewed, key):
    """From steps far too short and walks far too long, or the reverse, the adaptation reaches the same values.

    The gain after 200 moves is 4 * 200^-0.51 = 0.27, times an acceptance rate of 2,000 walks with an error of 0.01, so
    the scales agree to well within 0.1. Near a normal target the step grows until it is close to one.
    """
    target, particles, _ = skewed
    kernel, eta = CrankNicolson(), jnp.asarray(ETA, float)
    adapted = []
    for step, scale in ((-6.0, 4.0), (2.0, -4.0)):
        adaptation = initial_adaptation(kernel, particles)
        adaptation = adaptation._replace(
            logit_beta=jnp.full(N_REPLICATES, step),
            log_scale=adaptation.log_scale + jnp.asarray([scale] * N_REPLICATES),
        )
        adapted.append(run(key, target, eta, particles, kernel, adaptation, 200, True)[1])
    np.testing.assert_allclose(adapted[0].log_scale, adapted[1].log_scale, atol=0.1)
    for adaptation in adapted:
        assert (jax.nn.sigmoid(adaptation.logit_beta) > 0.95).all()


def test_particles_leave_heavy_tails(key):
    """On a Student t with 3 degrees of freedom the random walk moves particles that Crank-Nicolson steps would not.

    A walk (one move in four) has a length of 2.38 standard deviations, and is accepted in a flat tail about every
    other time: after 24 moves about (1 - 1/8)^24 = 4% of the particles have not moved.
    """
    model = cb.GibbsModel(lambda theta, datum: 0.0 * theta[0] * datum, cb.priors.StudentT(3.0), dim=1)
    target = make_target(model, np.ones(8), np.ones((1, 8)), 1)
    theta = np.random.default_rng(0).standard_t(3, (1, 2, 4000))
    particles = evaluate(target, jnp.asarray(theta, float))
    kernel = CrankNicolson()
    moved, *_ = run(key, target, jnp.ones(2), particles, kernel, initial_adaptation(kernel, particles), 24, True)
    tail = np.abs(theta) > 8
    assert tail.sum() > 20
    stuck = np.asarray(moved.theta == particles.theta)[tail].mean()
    assert stuck < 0.2
    # The tail probability is preserved: a share of 8,000 draws within 4 errors.
    share = 2 * stats.t(3).sf(3)
    assert abs((np.abs(moved.theta) > 3).mean() - share) < 4 * np.sqrt(share / 8000)


def test_crank_nicolson_moves_replicates_independently(skewed, key):
    target, particles, _ = skewed
    kernel = CrankNicolson()
    keys, eta = replicate_keys(key, N_REPLICATES), jnp.asarray(ETA, float)
    step = eqx.filter_jit(kernel.step)
    together, *_ = step(keys, target, eta, particles, initial_adaptation(kernel, particles), True)
    single = particles.replicate(2)
    alone, *_ = step(keys[2:], target.replicate(2), eta[2:], single, initial_adaptation(kernel, single), True)
    np.testing.assert_allclose(together.theta[:, 2], alone.theta[:, 0], rtol=1e-4, atol=1e-5)


def test_crank_nicolson_rejects_and_counts_nan_losses(key):
    model = cb.GibbsModel(
        lambda theta, y: jnp.where(theta[0] > 0.5, jnp.nan, 0.5 * (y - theta[0]) ** 2), cb.priors.Normal(), dim=1
    )
    target = make_target(model, np.zeros(4), np.ones((1, 4)), 1)
    particles = evaluate(target, jnp.asarray(np.linspace(-1, 0.4, 600).reshape(1, 2, 300), float))
    kernel = CrankNicolson()
    moved, _, info = eqx.filter_jit(kernel.step)(
        replicate_keys(key, 2), target, jnp.ones(2), particles, initial_adaptation(kernel, particles), True
    )
    assert (moved.theta <= 0.5).all()
    assert np.isfinite(moved.risk).all()
    assert (info.invalid > 0).all()
