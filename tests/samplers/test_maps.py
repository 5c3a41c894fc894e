"""Affine maps from a pool to rows: exact where the posterior is normal, unbiased where it is not.

Pools of the normal problems are mirrored about the mean and have the posterior's very covariance, so that a map to a
row's mean and covariance is exact and what noise there is comes from fourth moments alone.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._backend.functions import as_float
from calibayes._core.particles import Particles, ess
from calibayes._core.target import Target, evaluate, make_target
from calibayes.samplers import maps as maps_module
from calibayes.samplers.initial import N_POPULATIONS
from calibayes.samplers.transport.maps import Base, Maps, refit, weigh
from targets import gamma_draws, gamma_target, log_gamma_moments

ROWS = 45
"""The data and 44 others: populations are dealt more than twice, the last round cut short."""


class Problem(NamedTuple):
    target: Target
    pool: Particles
    base: Base
    eta: float
    means: np.ndarray
    roots: np.ndarray
    """Of the exact posterior on every row, and factors of its covariance."""

    @property
    def exact(self):
        return Maps(jnp.asarray(self.means.T, float), jnp.asarray(self.roots, float))

    @property
    def untouched(self):
        """The pool as it is, on every row."""
        centre = np.repeat(np.asarray(self.base.centre)[:, None], ROWS, 1)
        return Maps(jnp.asarray(centre), jnp.asarray(np.repeat(np.asarray(self.base.root)[None], ROWS, 0)))


def least_squares(dim, n, size, eta=1.0, scale=50.0):
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(n), rng.normal(size=(n, dim - 1))])
    y = x @ np.ones(dim) + rng.normal(size=n)
    counts = rng.multinomial(n, np.full(n, 1 / n), size=ROWS - 1)
    target = make_target(cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=scale)), (x, y), counts, dim)
    rows = np.concatenate([np.ones((1, n)), counts])
    precision = eta * np.einsum("bn,nk,nj->bkj", rows, x, x) + np.eye(dim) / scale**2
    means = np.linalg.solve(precision, eta * np.einsum("bn,nk->bk", rows * y, x)[..., None])[..., 0]
    roots = np.linalg.cholesky(np.linalg.inv(precision))
    half = rng.normal(size=(N_POPULATIONS, dim, size // 2))
    u = np.concatenate([half, -half], -1)
    u = np.linalg.solve(np.linalg.cholesky(u @ u.transpose(0, 2, 1) / size), u)
    theta = jnp.asarray(np.moveaxis(means[0][:, None] + roots[0] @ u, 0, 1), float)
    pool = evaluate(target.select(jnp.zeros(N_POPULATIONS, int)), theta)
    return Problem(target, pool, Base.of(pool, as_float(eta)), eta, means, roots)


# Parameters, observations, particles: 25 effective ones a parameter are enough for moments. Less than a tenth of all:
# by moments alone; not all: by either, as a row has them; more than there are: by regression alone.
SHAPES = {"moments": (2, 40, 1000), "either": (2, 40, 400), "regression": (6, 300, 150)}


@pytest.fixture(scope="module", params=SHAPES)
def problem(request):
    return least_squares(*SHAPES[request.param])


def test_weights_are_even_where_the_map_is_exact(problem):
    """To rounding: the densities are the same function of u up to a constant. And they are not where it is not."""
    size = problem.pool.risk.shape[-1]
    even, sizes = weigh(problem.target, problem.base, problem.exact, as_float(problem.eta))
    np.testing.assert_allclose(even.log_weights, -np.log(size), atol=1e-3)
    np.testing.assert_allclose(sizes, size, rtol=1e-4)
    _, uneven = weigh(problem.target, problem.base, problem.untouched, as_float(problem.eta))
    assert np.median(uneven) < 0.3 * size
    assert uneven[0] == pytest.approx(size, rel=1e-3)  # the data's own row needs no map


def test_refits_end_at_the_rows_exact_posteriors(problem):
    """Three refits from the pool as it is: rows with next to no effective size end up nearly exact.

    The mean has no noise of its own, since the pool is mirrored: what is left of a start several standard deviations
    away is below 0.1. The maps are meant to be wider than fits, by some factor below two in variance; but for that, an
    entry of the covariance has an error of sqrt(2 / size), and the average over 20 populations one of
    sqrt(2 / (20 size)).
    """
    dim, _, size = problem.pool.theta.shape
    eta, base, maps = as_float(problem.eta), problem.base, problem.untouched
    particles, first = weigh(problem.target, base, maps, eta)
    for fit in range(3):
        maps = refit(base, maps, particles.log_weights)
        base = base.turned()
        particles, sizes = weigh(problem.target, base, maps, eta)
        whitened = np.linalg.solve(problem.roots, (np.asarray(maps.centre).T - problem.means)[..., None])[..., 0]
        if fit == 0:
            # Regression is exact for log-weights that are quadratic, but for noise in Q: one fit is all but enough.
            assert np.sqrt(np.mean(whitened**2)) < (0.13 if dim > 2 else 0.3)
    low = np.asarray(first) < 0.05 * size
    assert low.sum() >= 5
    assert (np.asarray(sizes)[low] > 0.7 * size).all()
    assert np.median(sizes) > 0.84 * size
    assert np.abs(whitened).max() < 0.1
    spread = np.linalg.solve(problem.roots, np.asarray(maps.root))
    spread = spread @ spread.transpose(0, 2, 1)
    error = np.sqrt(2 / (0.8 * size))
    wider = np.trace(spread.mean(0)) / dim
    assert 1 - 4 * error / N_POPULATIONS**0.5 < wider < 2
    assert np.abs(spread / wider - np.eye(dim)).max() < 5 * error
    assert np.abs(spread.mean(0) / wider - np.eye(dim)).max() < 5 * error / N_POPULATIONS**0.5


def test_refit_moves_no_row_by_another(problem):
    """A row's map comes from its own weights: refitted among others that are worse off, it is the same."""
    eta = as_float(problem.eta)
    particles, _ = weigh(problem.target, problem.base, problem.untouched, eta)
    together = refit(problem.base, problem.untouched, particles.log_weights)
    spoilt = particles.log_weights.at[1::2].set(-jnp.inf).at[1::2, 0].set(0.0)
    among = refit(problem.base, problem.untouched, spoilt)
    np.testing.assert_allclose(among.centre[:, ::2], together.centre[:, ::2], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(among.root[::2], together.root[::2], rtol=1e-4, atol=1e-6)
    assert np.isfinite(among.centre).all()
    assert np.isfinite(among.root).all()


def test_a_row_is_fitted_by_moments_if_enough_of_its_particles_count():
    """And by regression if not, beside the others: 100 of 500 are enough for four parameters."""
    given = least_squares(4, 60, 500)
    rng = np.random.default_rng(5)
    few = np.arange(ROWS) % 3 == 0
    log_weights = jnp.asarray(np.where(few, 3.0, 0.1)[:, None] * rng.normal(size=(ROWS, 500)), float)
    np.testing.assert_array_equal(np.asarray(ess(log_weights)) < 100, few)
    u, _ = given.base.on_rows(ROWS)
    maps = given.untouched
    steps = np.where(
        few[None], maps_module._regression(u, log_weights)[0], maps_module._moments(u, log_weights, 100)[0]
    )
    expected = np.asarray(maps.centre) + np.einsum("bkj,jb->kb", maps.root, steps)
    np.testing.assert_allclose(refit(given.base, maps, log_weights).centre, expected, rtol=1e-4, atol=1e-5)


def test_populations_are_dealt_in_turn(problem):
    """Row b has population b mod 20; turned, the one after; after twenty turns, its own again."""
    base = problem.base
    u, density = base.on_rows(ROWS)
    assert u.shape[1] == len(density) == ROWS
    np.testing.assert_array_equal(u, base.u[:, np.arange(ROWS) % N_POPULATIONS])
    np.testing.assert_array_equal(density, base.log_density[np.arange(ROWS) % N_POPULATIONS])
    turned = base.turned()
    next_u, next_density = turned.on_rows(ROWS)
    np.testing.assert_array_equal(next_u, base.u[:, (np.arange(ROWS) + 1) % N_POPULATIONS])
    np.testing.assert_array_equal(next_density, base.log_density[(np.arange(ROWS) + 1) % N_POPULATIONS])
    assert (np.abs(np.asarray(next_u) - np.asarray(u)).max((0, 2)) > 0.1).all()
    np.testing.assert_array_equal(turned.root, base.root)
    for _ in range(N_POPULATIONS - 1):
        turned = turned.turned()
    np.testing.assert_array_equal(turned.u, base.u)


def test_base_is_whitened_population_by_population():
    """Each has mean zero and unit covariance; centre and root are of all together, their means' spread included."""
    problem = least_squares(*SHAPES["moments"])
    rng = np.random.default_rng(5)
    theta = np.asarray(problem.pool.theta) + 0.1 * rng.normal(size=(2, N_POPULATIONS, 1))
    moved = evaluate(problem.target.select(jnp.zeros(N_POPULATIONS, int)), jnp.asarray(theta, float))
    base = Base.of(moved, as_float(2.5))
    np.testing.assert_allclose(base.u.mean(-1), 0, atol=1e-4)
    covariance = np.einsum("krm,jrm->rkj", base.u, base.u) / theta.shape[-1]
    np.testing.assert_allclose(covariance, np.broadcast_to(np.eye(2), covariance.shape), atol=1e-3)
    everything = theta.reshape(2, -1)
    np.testing.assert_allclose(base.centre, everything.mean(1), rtol=1e-4)
    np.testing.assert_allclose(base.root @ base.root.T, np.cov(everything, bias=True), rtol=1e-3)
    expected = -2.5 * np.asarray(moved.risk) + np.asarray(moved.log_prior)
    np.testing.assert_allclose(base.log_density, expected, rtol=1e-5, atol=1e-4)


def test_maps_of_chosen_rows():
    one, other = (Maps(jnp.full((2, 3), v), jnp.full((3, 2, 2), v)) for v in (1.0, 2.0))
    mixed = one.where(jnp.asarray([True, False, True]), other)
    np.testing.assert_array_equal(mixed.centre, [[1, 2, 1]] * 2)
    np.testing.assert_array_equal(mixed.root[:, 0, 0], [1, 2, 1])


def test_weighted_particles_speak_for_a_skewed_posterior():
    """Exact draws on the data, carried to rows by maps that are off, at another learning rate: moments in closed form.

    Errors of the weighted moments as found, of a mean over a row's population. Rows of a round have independent
    populations: 3 x 45 comparisons pass 4.5 errors once in 1,000 seeds. The average over the 20 populations has an
    error 1/sqrt(20) of that, and a bias of 1/M of the spread, some 1 / sqrt(M) = 0.03 of one error.
    """
    size, eta, of_pool = 1000, 0.4, 0.3
    target, total, weighted = gamma_target(ROWS)
    rng = np.random.default_rng(2)
    of_data = np.repeat(of_pool * total[:1], N_POPULATIONS), np.repeat(of_pool * weighted[:1], N_POPULATIONS)
    pool = evaluate(target.select(jnp.zeros(N_POPULATIONS, int)), gamma_draws(rng, *of_data, size))
    base = Base.of(pool, as_float(of_pool))
    mu, var, third = log_gamma_moments(eta * total, eta * weighted)
    sd = np.sqrt(var)
    maps = Maps(
        jnp.asarray((mu + rng.uniform(-0.4, 0.4, ROWS) * sd)[None], float),
        jnp.asarray((sd * rng.uniform(1.1, 1.5, ROWS))[:, None, None], float),
    )
    particles, sizes = weigh(target, base, maps, as_float(eta))
    assert (sizes > 0.4 * size).all()
    assert np.median(sizes) < 0.95 * size
    weights, gap = np.asarray(particles.weights, float), np.asarray(particles.theta[0], float) - mu[:, None]
    for power, exact in ((1, np.zeros(ROWS)), (2, var), (3, third)):
        value = gap**power
        got = (weights * value).sum(-1)
        error = np.sqrt((weights**2 * (value - got[:, None]) ** 2).sum(-1))
        z = (got - exact) / error
        assert np.abs(z).max() < 4.5, power
        populations = np.array([z[p::N_POPULATIONS].mean() for p in range(N_POPULATIONS)])
        assert abs(populations.mean()) < 4 * populations.std(ddof=1) / N_POPULATIONS**0.5, power
