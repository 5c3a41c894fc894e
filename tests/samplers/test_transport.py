"""Transport against posteriors integrated on a grid, row by row; and the rows that it must not leave to its weights."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._backend.functions import as_float
from calibayes._core.particles import ess
from calibayes._core.target import make_target
from calibayes.regions import as_region, critical_levels
from calibayes.samplers import carry as carry_room
from calibayes.samplers import transport
from calibayes.samplers.initial import N_POPULATIONS
from calibayes.samplers.transport.maps import refit, weigh
from calibayes.samplers.transport.sampler import failing
from calibayes.samplers.transport.transfer import Carried, Wanted, _better, carry, fit_on, refit_some, some_maps
from exact import GridPosterior

N, DRAWN, M = 100, 120, 500


def nothing(share):
    """No one to tell how far it is."""


@pytest.fixture(scope="module")
def problem(key):
    """Median regression: 120 bootstrap rows, and four that count one half of the residuals only.

    Those have their posterior five standard deviations from the data's, some more and some less.
    """
    x, y = cb.datasets.median_regression(N, seed=3)
    order = np.argsort(y - x @ np.linalg.lstsq(x, y)[0])
    halves = np.zeros((4, N))
    for row, members in zip(halves, (order[50:], order[:50], order[60:], order[:60]), strict=True):
        row[members] = N / len(members)
    counts = np.random.default_rng(11).multinomial(N, np.full(N, 1 / N), size=DRAWN)
    counts = np.concatenate([counts, halves])
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    start = cb.Transport(n_particles=M).draw_initial(key, make_target(model, (x, y), counts, 2), None, None)
    return start.target, start, GridPosterior(x, y, counts)


@pytest.fixture(scope="module")
def begun(problem, key):
    target, start, _ = problem
    return cb.Transport(n_particles=M).init(key, target, start, start.eta)


@pytest.fixture(scope="module")
def fitted(problem, begun):
    return cb.Transport(n_particles=M).refine(problem[0], begun, nothing)


@pytest.fixture(scope="module")
def unfitted(problem, key):
    """The jackknife's maps, which fail on the rows that lie far away, with all particles, and nothing repaired."""
    target, start, _ = problem
    sampler = cb.Transport(n_particles=M, max_evaluations=1, repair=False)
    return sampler.refine(target, sampler.init(key, target, start, start.eta), nothing)


def sizes(state):
    return np.asarray(ess(state.particles.log_weights))


def deviates(state, grid):
    """Weighted means of both parameters on every bootstrap row against the grid's, in their standard errors."""
    weights = grid.weights(state.eta, grid.counts @ grid.losses)
    exact = weights @ grid.theta
    sd = np.sqrt(weights @ grid.theta**2 - exact**2)
    particles = state.particles
    means = (np.asarray(particles.theta, float) * np.asarray(particles.weights, float)).sum(-1)[:, 1:].T
    return (means - exact) / (sd / np.sqrt(sizes(state)[1:, None]))


def test_most_particles_count_after_three_evaluations(fitted):
    assert fitted.evaluations <= 3
    assert np.median(sizes(fitted)) >= 0.85 * M
    assert sizes(fitted).min() > 0.5 * M
    assert not fitted.repaired.any()


def test_rows_have_their_own_posterior(problem, fitted):
    """248 means: the largest normal deviate passes 4.7 once in 1,500 keys. Those that share populations, in 20 groups.

    Weighted means are a little worse than their effective size says where weights and values go together: 1.25.
    """
    z = deviates(fitted, problem[2])
    assert np.abs(z).max() < 4.7
    assert z.std() < 1.25
    groups = np.array([z[np.arange(1, len(z) + 1) % N_POPULATIONS == g].mean(0) for g in range(N_POPULATIONS)])
    assert (np.abs(groups.mean(0)) < 4 * groups.std(0, ddof=1) / N_POPULATIONS**0.5).all()


@pytest.mark.parametrize("region", ["hpd", "ellipsoid", 1], ids=str)
def test_levels_are_the_grids(problem, fitted, region):
    """A level L from an effective size S has the variance (1 - L^2) / S at most, an ellipsoid's and an HPD set's less.

    The largest of 124 deviates passes 4.7 once in 3,000 keys; 1 / M is what one particle can do at a level of one.
    The mean over rows in 20 groups that share a population has 4 errors as found.
    """
    target, _, grid = problem
    eta = as_float(fitted.eta)
    point = grid.weights(fitted.eta, grid.losses.sum(0, keepdims=True))[0] @ grid.theta
    as_asked = cb.regions.Interval(region) if isinstance(region, int) else as_region(region)
    got = critical_levels(target, fitted.particles, eta, as_asked, jnp.asarray(point, float))
    exact = grid.critical_levels(fitted.eta, region)
    gaps = np.asarray(got)[1:] - exact
    z = gaps / np.sqrt((1 - exact**2 + 1 / M) / sizes(fitted)[1:])
    assert np.abs(z).max() < 4.7
    assert z.std() < 1.2
    groups = np.array([z[np.arange(1, len(z) + 1) % N_POPULATIONS == g].mean() for g in range(N_POPULATIONS)])
    assert abs(groups.mean()) < 4 * groups.std(ddof=1) / N_POPULATIONS**0.5


def test_the_data_are_one_row_of_all_populations(problem, fitted):
    """Pooled: 20 populations of 500, known as well as the pool itself."""
    _, _, grid = problem
    data = cb.Transport(n_particles=M).data(fitted)
    assert data.theta.shape == (2, 1, N_POPULATIONS * M)
    weights = grid.weights(fitted.eta, grid.losses.sum(0, keepdims=True))[0]
    exact = weights @ grid.theta
    sd = np.sqrt(weights @ grid.theta**2 - exact**2)
    means = (np.asarray(data.theta, float) * np.asarray(data.weights, float)).sum(-1)[:, 0]
    assert (np.abs(means - exact) < 4 * sd / fitted.pool.ess**0.5).all()


@pytest.mark.parametrize("factor", [1.2, 9.0, 0.1])
def test_away_and_back_is_where_it_was(problem, begun, factor):
    """Maps are made from the pool, pools from the first: what is found does not depend on the way, to the last bit."""
    target, start, _ = problem
    sampler = cb.Transport(n_particles=M)
    away = sampler.move(target, begun, factor * start.eta, nothing)
    assert away.eta == factor * start.eta
    assert np.abs(np.asarray(away.particles.theta) - np.asarray(begun.particles.theta)).max() > 1e-3
    back = sampler.move(target, away, start.eta, nothing)
    for leaf, other in zip(jax.tree.leaves(back.particles), jax.tree.leaves(begun.particles), strict=True):
        np.testing.assert_array_equal(leaf, other)


@pytest.fixture(scope="module")
def far(problem, begun):
    """Nine times eta, and a tenth."""
    target, start, _ = problem
    sampler = cb.Transport(n_particles=M)
    return {f: sampler.refine(target, sampler.move(target, begun, f * start.eta, nothing), nothing) for f in (9.0, 0.1)}


@pytest.mark.parametrize("factor", [9.0, 0.1])
def test_the_pool_follows_by_whole_steps(problem, far, factor):
    """It is never far from eta, and at the same few learning rates whatever the way; rows are as exact as at home.

    Weights reach from the pool's eta to this one by the maps' scale alone, so the deviates are as they were.
    """
    target, start, grid = problem
    state = far[factor]
    if factor < 1:
        grid = GridPosterior(grid.x, grid.y, grid.counts, width=30.0)
    assert 0.5 < state.eta / state.pool.eta < 2
    assert state.pool.eta != start.eta
    direct = cb.Transport(n_particles=M).init(state.key, target, start, 1.01 * state.eta)
    assert direct.pool.eta == state.pool.eta
    np.testing.assert_array_equal(direct.pool.particles.theta, state.pool.particles.theta)
    z = deviates(state, grid)
    assert np.abs(z).max() < 4.7
    assert z.std() < 1.25
    assert np.median(sizes(state)) > 0.7 * M


def test_rows_whose_weights_fail_are_sampled(problem, unfitted):
    """Those alone: the others are untouched. Sampled rows have equal weights and their exact means.

    With one evaluation some maps are far off, and weights that do not fail may still have heavy tails: of the sampled
    rows alone the deviates are held against a normal's, twice 4 to 20 of them, below 4.5.
    """
    target, _, grid = problem
    failed = failing(unfitted.particles.log_weights, unfitted.carried.ess)
    assert failed[-4:].all()
    assert 4 <= failed.sum() < 30
    told = []
    mended = cb.Transport(n_particles=M, max_evaluations=1).refine(target, unfitted, told.append)
    np.testing.assert_array_equal(mended.repaired, failed)
    assert told == [1.0] or told[-1] == 1.0
    assert not mended.not_mixed.any()
    np.testing.assert_allclose(sizes(mended)[failed], M, rtol=1e-4)
    for new, old in zip(jax.tree.leaves(mended.particles), jax.tree.leaves(unfitted.particles), strict=True):
        new, old = (np.moveaxis(np.asarray(leaf), -2, 0) for leaf in (new, old))
        np.testing.assert_array_equal(new[~failed], old[~failed])
    z = deviates(mended, grid)[failed[1:]]
    assert np.abs(z).max() < 4.5
    in_sd = np.abs(deviates(unfitted, grid) / np.sqrt(sizes(unfitted)[1:, None]))[failed[1:]]
    assert in_sd.max() > 0.5 > 4.5 / M**0.5
    # And once mended it is done.
    assert cb.Transport(n_particles=M, max_evaluations=1).refine(target, mended, nothing) is mended


def test_a_repair_begins_at_the_learning_rate_it_says(problem, unfitted, monkeypatch, key):
    """Spread out and weighted for a fraction of eta, before any move could make up for wrong weights.

    Variances on 20 rows, in units of the grid's, from some 150 particles that count: sqrt(2 / (20 * 150)) = 0.026.
    Weighted for the whole of eta they would be near 1/4.
    """
    target, _, grid = problem
    rows, begun = jnp.arange(1, N_POPULATIONS + 1), []
    monkeypatch.setattr(transport, "climb_to", lambda keys, target, walkers, eta: begun.append(walkers) or walkers)
    monkeypatch.setattr(transport, "by_mcmc", lambda *args, at_least: (begun[0], jnp.ones(N_POPULATIONS, bool)))
    transport._finish(key, target.select(rows), some_maps(unfitted.carried.maps, rows), unfitted)
    (walkers,) = begun
    assert float(walkers.eta[0]) == pytest.approx(unfitted.eta / 4)
    theta, weights = (np.asarray(leaf, float) for leaf in (walkers.particles.theta, walkers.particles.weights))
    variance = (theta**2 * weights).sum(-1) - (theta * weights).sum(-1) ** 2
    exact = grid.weights(unfitted.eta / 4, grid.counts[:N_POPULATIONS] @ grid.losses)
    expected = (exact @ grid.theta**2 - (exact @ grid.theta) ** 2).T
    np.testing.assert_allclose((variance / expected).mean(1), 1, atol=0.15)


def test_many_rows_to_sample_are_told_of_before(problem, unfitted, monkeypatch):
    """It may take long, and nobody knows while it does."""
    target, _, _ = problem
    monkeypatch.setattr(transport, "failing", lambda log_weights, ess: np.arange(len(log_weights)) % 2 == 1)

    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(transport, "_finish", stop)
    with pytest.warns(cb.LongRunWarning, match=r"fail on 62 of 125 rows.*long"), pytest.raises(KeyboardInterrupt):
        cb.Transport(n_particles=M, max_evaluations=1).refine(target, unfitted, nothing)


def test_reach_says_what_happened(problem, unfitted):
    target, _, _ = problem
    sampler = cb.Transport(n_particles=M, max_evaluations=1)
    mended = sampler.refine(target, unfitted, nothing)
    reach = sampler.info(mended, mended.eta)
    np.testing.assert_array_equal(reach.repaired, mended.repaired)
    np.testing.assert_allclose(reach.ess, sizes(mended), rtol=1e-5)
    assert not reach.not_reached.any()
    assert reach.invalid is None
    assert reach.steps == 2
    assert reach.concerns == ()


def test_without_repair_rows_stay_as_they_are(problem, unfitted):
    target, _, _ = problem
    left = cb.Transport(n_particles=M, max_evaluations=1, repair=False).refine(target, unfitted, nothing)
    assert not left.repaired.any()
    for new, old in zip(jax.tree.leaves(left.particles), jax.tree.leaves(unfitted.particles), strict=True):
        np.testing.assert_array_equal(new, old)


def test_snapshots_are_other_populations_on_the_same_maps(problem, unfitted):
    """Rows that were sampled have but one set of particles; the others have another from every population."""
    target, _, _ = problem
    sampler = cb.Transport(n_particles=M, max_evaluations=1)
    mended = sampler.refine(target, unfitted, nothing)
    snapshots = list(sampler.snapshots(target, mended))
    assert len(snapshots) >= 3
    first, *others = (np.moveaxis(np.asarray(rows.theta), 1, 0) for _, rows in snapshots)
    for theta in others:
        np.testing.assert_array_equal(theta[mended.repaired], first[mended.repaired])
        assert (np.abs(theta - first)[~mended.repaired].max((1, 2)) > 1e-3).all()
    assert np.abs(others[0] - others[1])[~mended.repaired].max() > 1e-3


def test_errors():
    with pytest.raises(ValueError, match="max_evaluations must be at least 1; got 0"):
        cb.Transport(max_evaluations=0)
    assert cb.Transport().size(2) == 1000
    assert cb.Transport().size(50) == 2000
    assert cb.Transport(n_particles=300).size(50) == 300


def test_rows_fitted_on_are_as_if_all_were(problem, unfitted):
    """From the same populations; and the others are untouched. Some come twice, as in a crew that is not full."""
    target, _, _ = problem
    base, eta = unfitted.base, as_float(unfitted.eta)
    rows = np.resize(np.arange(30, 30 + N_POPULATIONS - 5), N_POPULATIONS)
    carried, some = refit_some(target, base, unfitted.carried, jnp.asarray(rows), eta)
    np.testing.assert_array_equal(some.ess, np.asarray(carried.ess)[rows])
    np.testing.assert_array_equal(some.particles.log_weights, np.asarray(carried.particles.log_weights)[rows])
    maps = refit(base, unfitted.carried.maps, unfitted.particles.log_weights)
    whole = _better(Carried(maps, *weigh(target, base, maps, eta)), unfitted.carried)
    chosen = np.isin(np.arange(target.n_replicates), rows)
    expected = np.where(chosen[None, :, None], whole.particles.theta, unfitted.particles.theta)
    np.testing.assert_allclose(carried.particles.theta, expected, rtol=1e-4, atol=1e-5)
    sizes = np.where(chosen, whole.ess, unfitted.carried.ess)
    np.testing.assert_allclose(carried.ess, sizes, rtol=1e-3)
    np.testing.assert_allclose(
        carried.maps.centre,
        np.where(chosen[None], whole.maps.centre, unfitted.carried.maps.centre),
        rtol=1e-4,
        atol=1e-5,
    )
    assert np.abs(np.asarray(whole.particles.theta - unfitted.particles.theta))[:, chosen].max() > 1e-3


def test_some_search_and_all_answer(problem, begun, fitted):
    """A part of the pool, the first of every population, on the way; all of it at the end."""
    assert begun.particles.theta.shape[-1] == 200
    assert fitted.particles.theta.shape[-1] == M
    np.testing.assert_array_equal(begun.base.u, fitted.base.u[:, :, :200])
    assert not begun.fitted


def test_maps_that_do_badly_are_searched_by_with_all(problem, key, monkeypatch):
    target, start, _ = problem
    monkeypatch.setattr(transport, "_FAIR", 2.0)
    state = cb.Transport(n_particles=M).init(key, target, start, start.eta)
    assert state.particles.theta.shape[-1] == M


@pytest.mark.parametrize("n_rows", [3, N_POPULATIONS + 1])
def test_few_rows(problem, key, n_replicates):
    """Fewer than a crew, and hardly more."""
    target, start, grid = problem
    some = target.select(jnp.arange(n_replicates))
    sampler = cb.Transport(n_particles=M)
    state = sampler.refine(some, sampler.init(key, some, start._replace(target=some), start.eta), nothing)
    assert state.particles.theta.shape == (2, n_replicates, M)
    assert np.abs(deviates(state, grid.first_replicates(n_replicates - 1))).max() < 4.7


@pytest.mark.parametrize(
    ("wanted", "share", "limit", "evaluations"), [(2.0, 1.0, 3, 3), (2.0, 1.0, 1, 1), (0.0, 1.0, 3, 1)]
)
def test_carried_in_one_go_is_step_by_step(problem, unfitted, wanted, share, limit, evaluations):
    """Until what is wanted is there, or to the limit."""
    target, base, maps, eta = problem[0], unfitted.base, unfitted.carried.maps, as_float(unfitted.eta)
    expected = Carried(maps, *weigh(target, base, maps, eta))
    for _ in range(evaluations - 1):
        expected = fit_on(target, base, expected, eta)
    found, n = carry(target, base, maps, as_float(Wanted(wanted, share, limit).told(unfitted.eta, target, base)))
    assert int(n) == evaluations
    # Chaotic where few particles count: rounding of weights is magnified there by a fit to them.
    good = np.asarray(expected.ess) > 0.3 * M
    assert good.mean() > 0.9
    np.testing.assert_allclose(np.asarray(found.ess)[good], np.asarray(expected.ess)[good], rtol=1e-3)
    theta = np.asarray(found.particles.theta)[:, good]
    np.testing.assert_allclose(theta, np.asarray(expected.particles.theta)[:, good], rtol=1e-3, atol=1e-3)


def test_a_row_where_nothing_counts_has_the_particles_of_its_map(problem, unfitted):
    target, base, maps, eta = problem[0], unfitted.base, unfitted.carried.maps, as_float(unfitted.eta)
    nowhere = eqx.tree_at(lambda b: b.log_density, base, jnp.full_like(base.log_density, -jnp.inf))
    found, _ = carry(target, nowhere, maps, as_float(Wanted(0.5, 1.0, 1).told(unfitted.eta, target, base)))
    assert (np.asarray(found.ess) == 0).all()
    np.testing.assert_allclose(found.particles.theta, weigh(target, base, maps, eta)[0].theta, rtol=1e-5, atol=1e-5)


def test_long_evaluations_come_one_at_a_time(problem, key, monkeypatch):
    """For there to be a moment to be interrupted in; and to the same end."""
    target, start, _ = problem
    at_once, told = cb.Transport(n_particles=M).init(key, target, start, start.eta), []
    monkeypatch.setattr(carry_room, "_LONG", 0)
    fit = transport.fit_on
    monkeypatch.setattr(transport, "fit_on", lambda *args: told.append(1) or fit(*args))
    one_by_one = cb.Transport(n_particles=M).init(key, target, start, start.eta)
    assert one_by_one.evaluations == at_once.evaluations == 1 + len(told)
    assert told
    np.testing.assert_allclose(one_by_one.carried.ess, at_once.carried.ess, rtol=1e-3)
