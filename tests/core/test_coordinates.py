"""Unbounded coordinates of bounded parameters: the map and its inverse, its density, and posteriors sampled in them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import calibayes as cb
from calibayes._core.coordinates import Coordinates
from calibayes._core.particles import ess
from calibayes._core.target import evaluate, make_target
from calibayes.priors import as_prior
from calibayes.samplers.initial import init_at_prior, initial_draws, temper_from_prior

LOW = np.array([-np.inf, 2.0, -np.inf, -1.0])
HIGH = np.array([np.inf, np.inf, 0.5, 3.0])
EPS = np.finfo(np.float32).eps

constrain, unconstrain, log_jacobian = (
    eqx.filter_jit(method) for method in (Coordinates.constrain, Coordinates.unconstrain, Coordinates.log_jacobian)
)


class Bounded:
    bounds = (LOW, HIGH)


@pytest.fixture(scope="module")
def mixed():
    """One parameter of every kind: unbounded, with a lower bound, with an upper bound, with both."""
    return Coordinates.from_prior(Bounded(), 4)


def grid(shape):
    return np.random.default_rng(0).uniform(-5, 5, (4, *shape)).astype(np.float32)


@pytest.mark.parametrize("shape", [(), (3, 20)])
def test_unconstrain_inverts_constrain(mixed, shape):
    """A parameter is accurate to EPS of itself or of its bound, so a coordinate to that over |dtheta / dz|."""
    z = grid(shape)
    theta = np.asarray(constrain(mixed, z))
    side = (4, *(1,) * len(shape))
    assert (theta > LOW.reshape(side)).all()
    assert (theta < HIGH.reshape(side)).all()
    inverse = np.asarray(unconstrain(mixed, theta))
    s = 1 / (1 + np.exp(-z[3].astype(float)))
    slope = np.stack([np.ones(shape), np.exp(z[1]), np.exp(z[2]), 4 * s * (1 - s)])
    assert (np.abs(inverse - z) < 8 * EPS * (np.abs(theta) + 4) / slope).all()
    np.testing.assert_allclose(constrain(mixed, inverse), theta, rtol=4 * EPS, atol=8 * EPS)


def test_coordinates_have_their_closed_forms(mixed):
    """log(theta - a), log(b - theta), and the logit."""
    theta = np.array([1.7, 2.5, -1.5, 0.0], np.float32)
    expected = np.array([1.7, np.log(0.5), np.log(2.0), np.log(0.25 / 0.75)], np.float32)
    np.testing.assert_allclose(unconstrain(mixed, theta), expected, rtol=1e-5)
    np.testing.assert_allclose(constrain(mixed, expected), theta, rtol=1e-5, atol=1e-6)


def test_log_jacobian_is_that_of_the_map(mixed):
    z = grid((30,))
    jacobians = np.asarray(jax.jit(jax.vmap(jax.jacobian(mixed.constrain), 1))(z), float)
    np.testing.assert_allclose(log_jacobian(mixed, z), np.linalg.slogdet(jacobians)[1], rtol=1e-5, atol=1e-5)
    # Each kind separately, so that two errors cannot cancel; the map is diagonal.
    for k in range(4):
        one = Coordinates.from_prior(type("Prior", (), {"bounds": (LOW[k], HIGH[k])})(), 1)
        slope = np.abs(jacobians[:, k, k])
        np.testing.assert_allclose(log_jacobian(one, z[k : k + 1]), np.log(slope), rtol=1e-5, atol=1e-5)


def test_parameters_without_bounds_are_their_own_coordinates():
    for prior in (object(), cb.priors.Normal(), type("Prior", (), {"bounds": (-np.inf, np.inf)})()):
        coordinates = Coordinates.from_prior(prior, 4)
        assert coordinates.unbounded
        z = jnp.asarray(grid((3, 20)))
        assert coordinates.constrain(z) is z
        assert coordinates.unconstrain(z) is z
        np.testing.assert_array_equal(coordinates.log_jacobian(z), np.zeros((3, 20)))


def test_parameters_on_a_bound_and_extreme_coordinates_are_finite(mixed):
    """No coordinate leads outside the bounds."""
    on_bound = np.array([[0.0, 0.0], [2.0, 2.0], [0.5, 0.5], [-1.0, 3.0]], np.float32)
    assert np.isfinite(unconstrain(mixed, on_bound)).all()
    far = np.array([[-60.0, 60.0]] * 4, np.float32)
    theta = np.asarray(constrain(mixed, far))
    assert np.isfinite(theta).all()
    assert (theta >= LOW[:, None]).all()
    assert (theta <= HIGH[:, None]).all()
    assert np.isfinite(log_jacobian(mixed, far)).all()
    # Without clipping, rounding would move one in twelve of these outside the bounds.
    rng = np.random.default_rng(0)
    low, high = (rng.uniform(*ends, 200).astype(np.float32) for ends in ((-1, 1), (1, 2)))
    narrow = Coordinates.from_prior(type("Prior", (), {"bounds": (low, high)})(), 200)
    assert (np.asarray(constrain(narrow, np.full(200, 60, np.float32))) <= high).all()


@pytest.mark.parametrize("bounds", [(1.0, 1.0), (2.0, -1.0), ([0.0, 3.0], [1.0, 2.0]), (0.0, np.nan)])
def test_lower_bounds_must_be_below_upper_bounds(bounds):
    prior = type("Prior", (), {"bounds": bounds})()
    with pytest.raises(ValueError, match=r"prior\.bounds must be a pair \(low, high\) .* with low below high"):
        Coordinates.from_prior(prior, 2)


@pytest.mark.parametrize(
    ("distribution", "low", "high"),
    [
        (dist.HalfNormal(2.0), 0, np.inf),
        (dist.Gamma(2.0, 1.0), 0, np.inf),
        (dist.LogNormal(0.0, 1.0), 0, np.inf),
        (dist.Beta(2.0, 3.0), 0, 1),
        (dist.Uniform(-1.0, 4.0), -1, 4),
        (dist.Uniform(jnp.asarray([-1.0, 0.0]), jnp.asarray([4.0, 2.0])), [-1, 0], [4, 2]),
        (dist.HalfNormal(2.0).expand([2]).to_event(1), 0, np.inf),
        (dist.Normal(0.0, 1.0), -np.inf, np.inf),
        (dist.StudentT(3.0).expand([2]).to_event(1), -np.inf, np.inf),
    ],
    ids=lambda value: type(value).__name__,
)
def test_support_of_a_numpyro_prior_gives_the_bounds(distribution, low, high):
    coordinates = Coordinates.from_prior(as_prior(distribution), 2)
    np.testing.assert_array_equal(coordinates.low, np.broadcast_to(low, 2))
    np.testing.assert_array_equal(coordinates.high, np.broadcast_to(high, 2))


class BoundedPrior:
    """Exponential with mean 5 above 0; uniform between 0 and 1; standard normal below 1."""

    bounds = ([0.0, 0.0, -np.inf], [np.inf, 1.0, 1.0])

    def log_prob(self, theta):
        inside = (theta[0] >= 0) & (theta[1] >= 0) & (theta[1] <= 1) & (theta[2] <= 1)
        return jnp.where(inside, -theta[0] / 5 - 0.5 * jnp.square(theta[2]), -jnp.inf)

    def sample(self, key, shape):
        a, b, c = jax.random.split(key, 3)
        draws = (
            5 * jax.random.exponential(a, shape[:-1]),
            jax.random.uniform(b, shape[:-1]),
            jax.random.truncated_normal(c, -jnp.inf, 1.0, shape[:-1]),
        )
        return jnp.stack(draws, -1)


@pytest.fixture(scope="module")
def bounded_target():
    """Three location problems, on the data and one replicate, and their truncated normal posteriors."""
    n = 24
    x = np.tile(np.eye(3), (n // 3, 1))
    rng = np.random.default_rng(3)
    y = x @ [-0.1, 0.9, 0.95] + rng.normal(size=n)
    y += x @ (np.array([-0.1, 0.9, 0.95]) - x.T @ y / (n // 3))  # exact means
    counts = rng.multinomial(n, np.full(n, 1 / n), size=1)
    target = make_target(cb.GibbsModel(cb.losses.Squared(), BoundedPrior()), (x, y), counts, 3)
    eta = 1.5
    exact = []
    for weights in np.concatenate([np.ones((1, n)), counts]):
        precision = eta * weights @ x + [0, 0, 1]
        mean, sd = (eta * (weights * y) @ x - [1 / 5, 0, 0]) / precision, precision**-0.5
        edges = (np.array(BoundedPrior.bounds) - mean) / sd
        exact.append([stats.truncnorm(*edges[:, k], mean[k], sd[k]) for k in range(3)])
    return target, eta, exact


def assert_moments(theta, weights, exact, size, slack=1.5):
    """Check that mean, variance and third moment are within 4.5 standard errors of `size` independent draws.

    The errors are those of averages of (theta - mean)^j, whose variances are the exact moments of order 2 j. The
    largest of eighteen normal deviates exceeds 4.5 once in 8,000 keys; `slack` allows for resampling and correlated
    moves.
    """
    mean, sd = exact.mean(), exact.std()
    for power in (1, 2, 3):
        moment = exact.expect(lambda t, power=power: ((t - mean) / sd) ** power)
        square = exact.expect(lambda t, power=power: ((t - mean) / sd) ** (2 * power))
        estimate = (weights * ((theta - mean) / sd) ** power).sum()
        assert abs(estimate - moment) < slack * 4.5 * np.sqrt((square - moment**2) / size), power


def test_bounded_posteriors_have_their_exact_moments(bounded_target, key):
    """Tempered from the prior in unbounded coordinates: truncated normals with modes at their bounds or near them."""
    target, eta, exact = bounded_target
    assert not target.coordinates.unbounded
    particles = temper_from_prior(key, target, eta, 3000).particles
    drawn = target.constrained(particles)
    size = np.asarray(ess(drawn.log_weights))
    for b in range(2):
        for k in range(3):
            theta, weights = np.asarray(drawn.theta[k, b], float), np.asarray(drawn.weights[b], float)
            assert_moments(theta, weights, exact[b][k], size[b])


def test_tempering_starts_from_the_prior(bounded_target, key):
    """Exponential, uniform and truncated normal: a p-value of six KS tests is below 1e-3 in 6 of 1,000 keys."""
    target, _, _ = bounded_target
    _, state = init_at_prior(key, target, 3000)
    drawn = target.constrained(state.particles).theta
    for k, law in enumerate((stats.expon(scale=5), stats.uniform(), stats.truncnorm(-np.inf, 1))):
        for b in range(2):
            assert stats.kstest(np.asarray(drawn[k, b]), law.cdf).pvalue > 1e-3


def test_constrained_particles_have_the_prior_density_of_parameters(bounded_target, key):
    """`evaluate` gives the density of the coordinates, `constrained` that of the parameters, at the same points."""
    target, _, _ = bounded_target
    z = jax.random.normal(key, (3, 2, 40))
    particles = evaluate(target, z)
    drawn = target.constrained(particles)
    np.testing.assert_allclose(drawn.theta, constrain(target.coordinates, z), rtol=1e-6, atol=1e-7)
    prior = np.where(drawn.theta[0] >= 0, -np.asarray(drawn.theta[0]) / 5 - 0.5 * np.asarray(drawn.theta[2]) ** 2, 0)
    np.testing.assert_allclose(drawn.log_prior, prior, rtol=1e-4, atol=1e-5)
    jacobian = log_jacobian(target.coordinates, z)
    np.testing.assert_allclose(
        np.asarray(particles.log_prior) - np.asarray(drawn.log_prior), jacobian, rtol=1e-4, atol=1e-5
    )
    np.testing.assert_array_equal(drawn.risk, particles.risk)
    np.testing.assert_array_equal(drawn.log_weights, particles.log_weights)


def test_user_draws_are_parameters(bounded_target, key):
    """They are converted to coordinates and back without a change."""
    target, eta, exact = bounded_target
    draws = jnp.asarray(np.stack([law.rvs(200, random_state=k) for k, law in enumerate(exact[0])], -1), float)
    initial = initial_draws(key, target, eta, 200, draws)
    drawn = initial.target.replicate(0).constrained(initial.particles).theta[:, 0]
    np.testing.assert_allclose(np.sort(drawn, 1), np.sort(draws.T, 1), rtol=1e-4, atol=1e-6)
