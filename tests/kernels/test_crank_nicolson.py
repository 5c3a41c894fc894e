"""Crank-Nicolson moves: the target stays where it is, particles forget theirs soon, and tails are let go."""

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

ROWS, M = 3, 8000
ETA = np.array([0.1, 0.25, 1.0])
"""With 40 observations: gamma shapes of 4 to 40, skewnesses of -0.53 to -0.16."""


@eqx.filter_jit
def run(key, target, eta, particles, kernel, adaptation, n_steps, adapt):
    """Particles and adaptation after some steps, and the mean acceptance on the way."""

    def body(i, carry):
        particles, adaptation, acceptance = carry
        keys = replicate_keys(jax.random.fold_in(key, i), target.n_replicates)
        particles, adaptation, info = kernel.step(keys, target, eta, particles, adaptation, adapt)
        return particles, adaptation, acceptance + info.acceptance / n_steps

    return jax.lax.fori_loop(0, n_steps, body, (particles, adaptation, jnp.zeros(target.n_replicates)))


def start(kernel, particles):
    return kernel.init(covariance(particles.theta, particles.weights))


@pytest.fixture(scope="module")
def skewed():
    """Exact draws at 0.3 eta, weighted for eta: an effective size of about 0.7 M, and exact all the same."""
    target, total, weighted = gamma_target(ROWS)
    draws = gamma_draws(np.random.default_rng(1), 0.3 * ETA * total, 0.3 * ETA * weighted, M)
    particles = evaluate(target, draws)
    step = jnp.asarray(0.7 * ETA, float)
    particles = particles.with_log_weights(eqx.filter_jit(reweight)(particles.log_weights, particles.risk, step))
    assert (ess(particles.log_weights) < 0.8 * M).all()
    return target, particles, log_gamma_moments(ETA * total, ETA * weighted)


def moments(particles, centre):
    """Weighted averages of the first three powers about a centre, and their errors: sum of w^2 (f - mean)^2."""
    weights = np.asarray(particles.weights, float)
    gap = np.asarray(particles.theta[0], float) - centre[:, None]
    powers = np.stack([gap, gap**2, gap**3])
    means = (weights * powers).sum(-1)
    return means, np.sqrt((weights**2 * (powers - means[..., None]) ** 2).sum(-1))


@pytest.mark.parametrize("which", ["adapting", "steps alone", "walks alone"])
def test_exact_draws_stay_exact(skewed, which, key):
    """Weighted draws of an asymmetric target on three rows keep their mean, variance and third moment.

    Both kinds of moves must do so by themselves: the other kind is made to go nowhere. Nine comparisons with errors as
    found: the largest normal deviate passes 4 once in 1,700 keys. The proposals are fitted to the 8,000 particles they
    move, which biases moments by no more than 1/M of their size.
    """
    target, particles, (mu, var, third) = skewed
    kernel = CrankNicolson()
    adaptation = start(kernel, particles)
    if which == "steps alone":
        adaptation = adaptation._replace(log_scale=jnp.full(ROWS, -20.0))
    if which == "walks alone":
        adaptation = adaptation._replace(logit_step=jnp.full(ROWS, -20.0))
    eta = jnp.asarray(ETA, float)
    moved, _, acceptance = run(key, target, eta, particles, kernel, adaptation, 30, which == "adapting")
    assert (acceptance > 0.5).all()
    assert (np.abs(np.asarray(moved.theta - particles.theta)) > 1e-3).mean() > 0.9
    np.testing.assert_array_equal(moved.log_weights, particles.log_weights)
    got, error = moments(moved, mu)
    exact = np.stack([np.zeros(ROWS), var, third])
    assert (np.abs(got - exact) < 4 * error).all()
    again = evaluate(target, moved.theta)
    np.testing.assert_allclose(moved.risk, again.risk, rtol=1e-4, atol=1e-3)


def test_eight_parameters_are_forgotten_in_a_few_moves(key):
    """After eight moves on a correlated normal the start hardly shows, where a random walk's still does.

    A correlation over 1,000 particles has an error of 1 / sqrt(1000) = 0.032, and the largest of 16 passes 4.5 errors,
    0.14, once in 9,000 keys. The random walk accepts a quarter of its steps, of 2.38 / sqrt(8) = 0.84 standard
    deviations: correlations of about 0.9 a move, 0.4 after eight.
    """
    rng = np.random.default_rng(0)
    n, dim, size = 64, 8, 1000
    x = rng.normal(size=(n, dim)) @ np.linalg.cholesky(0.3 * np.eye(dim) + 0.7).T
    y = x @ np.ones(dim) + rng.normal(size=n)
    model = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=100.0))
    counts = rng.multinomial(n, np.full(n, 1 / n), size=1)
    target = make_target(model, (x, y), counts, dim)
    draws = []
    for row in (np.ones(n), counts[0]):
        precision = x.T @ (row[:, None] * x)
        root = np.linalg.cholesky(np.linalg.inv(precision))
        draws.append(np.linalg.solve(precision, x.T @ (row * y))[:, None] + root @ rng.normal(size=(dim, size)))
    particles = evaluate(target, jnp.asarray(np.stack(draws, 1), float))
    remembered = {}
    for kernel in (CrankNicolson(), RWMH()):
        moved, *_ = run(key, target, jnp.ones(2), particles, kernel, start(kernel, particles), 8, True)
        pairs = [(a, b) for k in range(dim) for a, b in zip(particles.theta[k], moved.theta[k], strict=True)]
        remembered[type(kernel)] = np.array([np.corrcoef(a, b)[0, 1] for a, b in pairs])
    assert np.abs(remembered[CrankNicolson]).max() < 0.14
    assert remembered[RWMH].min() > 0.2


def test_adaptation_forgets_where_it_began(skewed, key):
    """Steps far too short and walks far too long, or the other way: both end up alike, and not at a limit for nothing.

    The gain after 200 moves is 4 * 200^-0.51 = 0.27, times a share of 2,000 walks known to 0.01: their scales agree to
    well within 0.1. Near a normal all steps are welcome: their length grows until it is hardly short of one.
    """
    target, particles, _ = skewed
    kernel, eta = CrankNicolson(), jnp.asarray(ETA, float)
    ends = []
    for step, scale in ((-6.0, 4.0), (2.0, -4.0)):
        adaptation = start(kernel, particles)
        adaptation = adaptation._replace(
            logit_step=jnp.full(ROWS, step), log_scale=adaptation.log_scale + jnp.asarray([scale] * ROWS)
        )
        ends.append(run(key, target, eta, particles, kernel, adaptation, 200, True)[1])
    np.testing.assert_allclose(ends[0].log_scale, ends[1].log_scale, atol=0.1)
    for end in ends:
        assert (jax.nn.sigmoid(end.logit_step) > 0.95).all()


def test_particles_in_heavy_tails_are_let_go(key):
    """Student's t with 3 degrees of freedom: the walk moves those that a step towards a normal never would.

    A walk (one move in four) is 2.38 standard deviations long and taken from a flat tail about every other time: after
    24 moves some (1 - 1/8)^24 = 4% are where they were.
    """
    model = cb.GibbsModel(lambda theta, datum: 0.0 * theta[0] * datum, cb.priors.StudentT(3.0), dim=1)
    target = make_target(model, np.ones(8), np.ones((1, 8)), 1)
    theta = np.random.default_rng(0).standard_t(3, (1, 2, 4000))
    particles = evaluate(target, jnp.asarray(theta, float))
    kernel = CrankNicolson()
    moved, *_ = run(key, target, jnp.ones(2), particles, kernel, start(kernel, particles), 24, True)
    tail = np.abs(theta) > 8
    assert tail.sum() > 20
    stuck = np.asarray(moved.theta == particles.theta)[tail].mean()
    assert stuck < 0.2
    # The population is none the worse for it: a share of 8,000 within 4 errors.
    share = 2 * stats.t(3).sf(3)
    assert abs((np.abs(moved.theta) > 3).mean() - share) < 4 * np.sqrt(share / 8000)


def test_row_moves_alone_as_among_others(skewed, key):
    target, particles, _ = skewed
    kernel = CrankNicolson()
    keys, eta = replicate_keys(key, ROWS), jnp.asarray(ETA, float)
    step = eqx.filter_jit(kernel.step)
    many, *_ = step(keys, target, eta, particles, start(kernel, particles), True)
    row = particles.replicate(2)
    one, *_ = step(keys[2:], target.replicate(2), eta[2:], row, start(kernel, row), True)
    np.testing.assert_allclose(many.theta[:, 2], one.theta[:, 0], rtol=1e-4, atol=1e-5)


def test_losses_that_are_no_numbers_are_rejected_and_counted(key):
    model = cb.GibbsModel(
        lambda theta, y: jnp.where(theta[0] > 0.5, jnp.nan, 0.5 * (y - theta[0]) ** 2), cb.priors.Normal(), dim=1
    )
    target = make_target(model, np.zeros(4), np.ones((1, 4)), 1)
    particles = evaluate(target, jnp.asarray(np.linspace(-1, 0.4, 600).reshape(1, 2, 300), float))
    kernel = CrankNicolson()
    moved, _, info = eqx.filter_jit(kernel.step)(
        replicate_keys(key, 2), target, jnp.ones(2), particles, start(kernel, particles), True
    )
    assert (moved.theta <= 0.5).all()
    assert np.isfinite(moved.risk).all()
    assert (info.invalid > 0).all()
