"""Transport against posteriors integrated on a grid, and the repair of replicates with degenerate weights."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._backend.functions import as_float
from calibayes._backend.time_limit import time_limit
from calibayes._core.particles import ess
from calibayes._core.target import make_target
from calibayes.regions import as_region, critical_levels
from calibayes.samplers.populations import N_POPULATIONS
from calibayes.samplers.transport import config, repair, sampler
from calibayes.samplers.transport.fitting import (
    FitGoal,
    refit,
    refit_replicates,
    transport,
    transport_and_fit,
)
from calibayes.samplers.transport.repair import has_degenerate_weights, sample_by_tempering
from exact import GridPosterior

N, N_BOOTSTRAP, M = 100, 120, 500


def no_progress(share):
    """Ignore the completed share of the work."""


@pytest.fixture(scope="module")
def problem(key):
    """Median regression on 120 bootstrap replicates, and on four that contain only half of the residuals.

    The posteriors of those four are about five standard deviations from that on the data.
    """
    x, y = cb.datasets.median_regression(N, seed=3)
    order = np.argsort(y - x @ np.linalg.lstsq(x, y)[0])
    halves = np.zeros((4, N))
    for counts_of_half, members in zip(halves, (order[50:], order[:50], order[60:], order[:60]), strict=True):
        counts_of_half[members] = N / len(members)
    counts = np.random.default_rng(11).multinomial(N, np.full(N, 1 / N), size=N_BOOTSTRAP)
    counts = np.concatenate([counts, halves])
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    initial = cb.Transport(n_particles=M).draw_initial(key, make_target(model, (x, y), counts, 2), None, None)
    return initial.target, initial, GridPosterior(x, y, counts)


@pytest.fixture(scope="module")
def searching(problem, key):
    """The state during the search."""
    target, initial, _ = problem
    return cb.Transport(n_particles=M).init(key, target, initial, initial.eta)


@pytest.fixture(scope="module")
def fitted(problem, searching):
    """The refined state."""
    return cb.Transport(n_particles=M).refine(problem[0], searching, no_progress)


@pytest.fixture(scope="module")
def unfitted(problem, key):
    """The state with the jackknife maps, which fail on the distant replicates, with all particles and no repair.

    They are the maps of posteriors that are not known to be log-concave.
    """
    target, initial, _ = problem
    transport = cb.Transport(n_particles=M, max_evaluations=1, repair=False)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sampler, "can_fit_normal", lambda target: False)
        return transport.refine(target, transport.init(key, target, initial, initial.eta), no_progress)


def change_config(monkeypatch, section, **changes):
    changed = replace(getattr(config.CONFIG, section), **changes)
    monkeypatch.setattr(config, "CONFIG", replace(config.CONFIG, **{section: changed}))


def sizes(state):
    return np.asarray(ess(state.particles.log_weights))


def standardised_means(state, grid):
    """Return the weighted means on every bootstrap replicate minus the exact ones, in standard errors."""
    weights = grid.weights(state.eta, grid.counts @ grid.losses)
    exact = weights @ grid.theta
    sd = np.sqrt(weights @ grid.theta**2 - exact**2)
    particles = state.particles
    means = (np.asarray(particles.theta, float) * np.asarray(particles.weights, float)).sum(-1)[:, 1:].T
    return (means - exact) / (sd / np.sqrt(sizes(state)[1:, None]))


def test_most_particles_are_effective_after_three_evaluations(fitted):
    assert fitted.evaluations <= 3
    assert np.median(sizes(fitted)) >= 0.85 * M
    assert (sizes(fitted) > 0.5 * M).mean() > 0.95
    # The last four replicates are far from the data by design.
    assert sizes(fitted)[:-4].min() > 0.2 * M
    # The tail of the weights of a replicate is found degenerate by chance now and then.
    assert fitted.repaired.mean() < 0.01


def test_pool_is_refitted_to_the_data_at_another_learning_rate(key):
    """A prior in conflict with the data, as informative as they are: a scaled pool is too narrow and off the mean."""
    x, y = cb.datasets.median_regression(N, seed=3)
    model = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(loc=3.0, scale=0.1))
    target = make_target(model, (x, y), np.ones((2, N)), 2)
    transport = cb.Transport(n_particles=M)
    initial = transport.draw_initial(key, target, None, None)
    state = transport.init(key, initial.target, initial, config.CONFIG.pool.eta_step**0.45 * initial.eta)
    assert state.current.pool.eta == initial.eta
    assert np.median(state.data_state.transported.ess) >= config.CONFIG.fit.good_ess * M


def test_replicates_have_the_exact_means(problem, fitted):
    """The largest of 248 normal deviates exceeds 4.7 for one key in 1,500; replicates form 20 groups by population.

    Weighted means are slightly worse than their effective sample size if weights and values are correlated: 1.25.
    """
    z = standardised_means(fitted, problem[2])
    assert np.abs(z).max() < 4.7
    assert z.std() < 1.25
    groups = np.array([z[np.arange(1, len(z) + 1) % N_POPULATIONS == g].mean(0) for g in range(N_POPULATIONS)])
    assert (np.abs(groups.mean(0)) < 4 * groups.std(0, ddof=1) / N_POPULATIONS**0.5).all()


@pytest.mark.parametrize("region", ["hpd", "ellipsoid", 1], ids=str)
def test_critical_levels_are_exact(problem, fitted, region):
    """A level L from an effective size S has a variance of at most (1 - L^2) / S, less for an ellipsoid or HPD set.

    The largest of 124 deviates exceeds 4.7 for one key in 3,000; 1 / M is the contribution of one particle at a level
    of one. The mean over 20 groups of replicates that share a population is within 4 estimated errors.
    """
    target, _, grid = problem
    eta = as_float(fitted.eta)
    point = grid.weights(fitted.eta, grid.losses.sum(0, keepdims=True))[0] @ grid.theta
    region_object = cb.regions.Interval(region) if isinstance(region, int) else as_region(region)
    levels = critical_levels(target, fitted.particles, eta, region_object, jnp.asarray(point, float))
    exact = grid.critical_levels(fitted.eta, region)
    differences = np.asarray(levels)[1:] - exact
    z = differences / np.sqrt((1 - exact**2 + 1 / M) / sizes(fitted)[1:])
    assert np.abs(z).max() < 4.7
    assert z.std() < 1.2
    groups = np.array([z[np.arange(1, len(z) + 1) % N_POPULATIONS == g].mean() for g in range(N_POPULATIONS)])
    assert abs(groups.mean()) < 4 * groups.std(ddof=1) / N_POPULATIONS**0.5


def test_data_are_one_replicate_of_all_populations(problem, fitted):
    """20 populations of 500 draws, with the accuracy of the pool."""
    _, _, grid = problem
    data = cb.Transport(n_particles=M).particles_on_data(fitted)
    assert data.theta.shape == (2, 1, N_POPULATIONS * M)
    weights = grid.weights(fitted.eta, grid.losses.sum(0, keepdims=True))[0]
    exact = weights @ grid.theta
    sd = np.sqrt(weights @ grid.theta**2 - exact**2)
    means = (np.asarray(data.theta, float) * np.asarray(data.weights, float)).sum(-1)[:, 0]
    assert (np.abs(means - exact) < 4 * sd / fitted.pool.ess**0.5).all()


CONFLICT = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(loc=3.0, scale=0.03))
"""A prior a hundred standard deviations from the data, so that the posterior moves as eta changes."""


def conflict_target():
    y = np.random.default_rng(0).normal(size=60)
    counts = np.random.default_rng(1).multinomial(60, np.full(60, 1 / 60), size=40)
    return y, make_target(CONFLICT, (np.ones((60, 1)), y - y.mean()), counts, 1)


def assert_conflict_posterior(data, eta):
    """Check mean and variance on the data against the closed form, within 4.5 errors of 5,000 effective draws."""
    precision = 60 * eta + 0.03**-2
    theta, weights = np.asarray(data.theta[0, 0], float), np.asarray(data.weights[0], float)
    mean = theta @ weights
    assert abs(mean - 3.0 / 0.03**2 / precision) < 4.5 / (precision * 5000) ** 0.5
    assert weights @ (theta - mean) ** 2 * precision == pytest.approx(1, abs=4.5 * (2 / 5000) ** 0.5)


@pytest.mark.parametrize("factor", [0.65, 1.0, 1.5, 40.0])
def test_draws_on_the_data_are_refitted(key, factor):
    """Between two pools the posterior on the data has another mean, to which scaling the pool does not lead."""
    _, target = conflict_target()
    transport = cb.Transport(n_particles=M)
    initial = transport.draw_initial(key, target, None, None)
    eta = factor * initial.eta
    state = transport.refine(initial.target, transport.init(key, initial.target, initial, eta), no_progress)
    assert_conflict_posterior(transport.particles_on_data(state), eta)
    assert transport.info(state, eta).diagnostics == ()


def test_degenerate_draws_on_the_data_are_repaired(key, monkeypatch):
    """If no refit and no new pool is allowed, weights on the data degenerate.

    The draws are sampled again, or reported as unreliable.
    """
    _, target = conflict_target()
    change_config(monkeypatch, "fit", data_evaluations=1, fair_ess=0.0)
    transport = cb.Transport(n_particles=M)
    initial = transport.draw_initial(key, target, None, None)
    eta = 1.5 * initial.eta
    first = transport.init(key, initial.target, initial, eta)
    assert first.data_state.transported.ess.max() < 0.5 * M
    state = transport.refine(initial.target, first, no_progress)
    assert state.data_state.repaired.any()
    assert_conflict_posterior(transport.particles_on_data(state), eta)
    (diagnostic,) = (d for d in transport.info(state, eta).diagnostics if d.code is cb.Code.DATA_REPAIRED)
    assert diagnostic.severity is cb.Severity.INFO
    unrepaired = cb.Transport(n_particles=M, repair=False)
    state = unrepaired.refine(initial.target, first, no_progress)
    (diagnostic,) = (d for d in unrepaired.info(state, eta).diagnostics if d.code is cb.Code.DATA_UNRELIABLE)
    assert diagnostic.severity is cb.Severity.ERROR


def test_pool_is_made_anew_where_maps_do_not_reach_the_data(key, monkeypatch):
    """Without refits, the maps of the nearest pool fail at another eta; a pool at that eta has good weights."""
    _, target = conflict_target()
    change_config(monkeypatch, "fit", data_evaluations=1)
    transport = cb.Transport(n_particles=M)
    initial = transport.draw_initial(key, target, None, None)
    eta = 1.5 * initial.eta
    state = transport.init(key, initial.target, initial, eta)
    assert state.pool.eta == eta
    assert state.data_state.transported.ess.min() > 0.9 * M
    assert_conflict_posterior(transport.particles_on_data(state), eta)


@pytest.mark.parametrize("factor", [1.2, 9.0, 0.1])
def test_state_does_not_depend_on_the_path(problem, searching, factor):
    """Maps are made from the pool, and pools from the initial draws: away and back gives the same bits."""
    target, initial, _ = problem
    transport = cb.Transport(n_particles=M)
    away = transport.move(target, searching, factor * initial.eta, no_progress)
    assert away.eta == factor * initial.eta
    assert np.abs(np.asarray(away.particles.theta) - np.asarray(searching.particles.theta)).max() > 1e-3
    back = transport.move(target, away, initial.eta, no_progress)
    for leaf, expected in zip(jax.tree.leaves(back.particles), jax.tree.leaves(searching.particles), strict=True):
        np.testing.assert_array_equal(leaf, expected)


@pytest.fixture(scope="module")
def distant(problem, searching):
    """Refined states at nine times eta, and at a tenth."""
    target, initial, _ = problem
    transport = cb.Transport(n_particles=M)
    moved = {f: transport.move(target, searching, f * initial.eta, no_progress) for f in (9.0, 0.1)}
    return {f: transport.refine(target, state, no_progress) for f, state in moved.items()}


@pytest.mark.parametrize("factor", [9.0, 0.1])
def test_pool_follows_eta_by_whole_steps(problem, distant, factor):
    """The pool is always near eta, at the same few learning rates on any path, and replicates are as exact as before.

    The maps rescale the pool from its eta to the requested one, so the deviates have the same distribution.
    """
    target, initial, grid = problem
    state = distant[factor]
    if factor < 1:
        grid = GridPosterior(grid.x, grid.y, grid.counts, width=30.0)
    assert 0.5 < state.eta / state.pool.eta < 2
    assert state.pool.eta != initial.eta
    direct = cb.Transport(n_particles=M).init(state.key, target, initial, 1.01 * state.eta)
    assert direct.pool.eta == state.pool.eta
    np.testing.assert_array_equal(direct.pool.particles.theta, state.pool.particles.theta)
    z = standardised_means(state, grid)
    assert np.abs(z).max() < 4.7
    assert z.std() < 1.25
    assert np.median(sizes(state)) > 0.7 * M


def test_replicates_with_degenerate_weights_are_repaired(problem, unfitted):
    """Only those: the others do not change. Repaired replicates have equal weights and exact means.

    With one evaluation some maps are inexact, and weights that are not degenerate may still have heavy tails. The
    deviates of the repaired replicates alone, twice 4 to 20 of them, are below 4.5.
    """
    target, _, grid = problem
    degenerate = has_degenerate_weights(unfitted.particles.log_weights, unfitted.transported.ess)
    assert degenerate[-4:].all()
    assert 4 <= degenerate.sum() < 30
    shares = []
    repaired = cb.Transport(n_particles=M, max_evaluations=1).refine(target, unfitted, shares.append)
    np.testing.assert_array_equal(repaired.repaired, degenerate)
    assert shares == [1.0] or shares[-1] == 1.0
    assert not repaired.not_mixed.any()
    np.testing.assert_allclose(sizes(repaired)[degenerate], M, rtol=1e-4)
    for new, old in zip(jax.tree.leaves(repaired.particles), jax.tree.leaves(unfitted.particles), strict=True):
        new, old = (np.moveaxis(np.asarray(leaf), -2, 0) for leaf in (new, old))
        np.testing.assert_array_equal(new[~degenerate], old[~degenerate])
    z = standardised_means(repaired, grid)[degenerate[1:]]
    assert np.abs(z).max() < 4.5
    in_sd = np.abs(standardised_means(unfitted, grid) / np.sqrt(sizes(unfitted)[1:, None]))[degenerate[1:]]
    assert in_sd.max() > 0.5 > 4.5 / M**0.5
    # A second refinement has nothing to do.
    assert cb.Transport(n_particles=M, max_evaluations=1).refine(target, repaired, no_progress) is repaired


def test_repair_starts_at_a_fraction_of_eta(problem, unfitted, monkeypatch, key):
    """The broadened particles have the weights of eta / 4 before any move could correct wrong weights.

    Variances on 20 replicates, relative to the exact ones, from about 150 effective particles each, have an error of
    sqrt(2 / (20 * 150)) = 0.026. With the weights of eta they would be near 1/4.
    """
    target, _, grid = problem
    indices, states = jnp.arange(1, N_POPULATIONS + 1), []
    monkeypatch.setattr(repair, "temper_to", lambda keys, target, state, eta: states.append(state) or state)
    mixed = jnp.ones(N_POPULATIONS, bool)
    monkeypatch.setattr(repair, "rejuvenate_until_mixed", lambda *args, min_moves: (states[0], mixed))
    maps = unfitted.transported.maps.select(np.asarray(indices))
    sample_by_tempering(key, target.select(indices), unfitted.current.whitened, maps, unfitted.eta)
    (state,) = states
    assert float(state.eta[0]) == pytest.approx(unfitted.eta / 4)
    theta, weights = (np.asarray(leaf, float) for leaf in (state.particles.theta, state.particles.weights))
    variance = (theta**2 * weights).sum(-1) - (theta * weights).sum(-1) ** 2
    exact = grid.weights(unfitted.eta / 4, grid.counts[:N_POPULATIONS] @ grid.losses)
    expected = (exact @ grid.theta**2 - (exact @ grid.theta) ** 2).T
    np.testing.assert_allclose((variance / expected).mean(1), 1, atol=0.15)


def test_many_degenerate_replicates_warn_before_the_repair(problem, unfitted, monkeypatch):
    target, _, _ = problem
    every_second = lambda log_weights, ess: np.arange(len(log_weights)) % 2 == 1
    monkeypatch.setattr(sampler, "has_degenerate_weights", every_second)

    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(sampler, "sample_again", interrupt)
    warned = pytest.warns(cb.LongRunWarning, match=r"weights of 62 of 125 replicates are degenerate.*is slow")
    with warned, pytest.raises(KeyboardInterrupt):
        cb.Transport(n_particles=M, max_evaluations=1).refine(target, unfitted, no_progress)


def test_info_reports_the_repair(problem, unfitted):
    target, _, _ = problem
    transport = cb.Transport(n_particles=M, max_evaluations=1)
    repaired = transport.refine(target, unfitted, no_progress)
    info = transport.info(repaired, repaired.eta)
    np.testing.assert_array_equal(info.repaired, repaired.repaired)
    np.testing.assert_allclose(info.ess, sizes(repaired), rtol=1e-5)
    assert not info.not_reached.any()
    assert info.invalid is None
    assert info.steps == 2
    assert info.diagnostics == ()


def test_nothing_changes_without_repair(problem, unfitted):
    target, _, _ = problem
    unchanged = cb.Transport(n_particles=M, max_evaluations=1, repair=False).refine(target, unfitted, no_progress)
    assert not unchanged.repaired.any()
    for new, old in zip(jax.tree.leaves(unchanged.particles), jax.tree.leaves(unfitted.particles), strict=True):
        np.testing.assert_array_equal(new, old)


def test_snapshots_are_other_populations_through_the_same_maps(problem, unfitted):
    """Repaired replicates have one set of particles; the others have one from every population."""
    target, _, _ = problem
    transport = cb.Transport(n_particles=M, max_evaluations=1)
    repaired = transport.refine(target, unfitted, no_progress)
    snapshots = list(transport.snapshots(target, repaired))
    assert len(snapshots) >= 3
    first, *others = (np.moveaxis(np.asarray(particles.theta), 1, 0) for _, particles in snapshots)
    for theta in others:
        np.testing.assert_array_equal(theta[repaired.repaired], first[repaired.repaired])
        assert (np.abs(theta - first)[~repaired.repaired].max((1, 2)) > 1e-3).all()
    assert np.abs(others[0] - others[1])[~repaired.repaired].max() > 1e-3


def test_arguments_are_checked_and_have_defaults():
    with pytest.raises(ValueError, match="max_evaluations must be at least 1; got 0"):
        cb.Transport(max_evaluations=0)
    assert cb.Transport().size(2) == 1000
    assert cb.Transport().size(50) == 2000
    assert cb.Transport(n_particles=300).size(50) == 300


def test_refit_of_some_replicates_agrees_with_a_refit_of_all(problem, unfitted):
    """They use the same populations, and other replicates do not change. Some indices are repeated."""
    target, _, _ = problem
    pool, eta = unfitted.whitened, unfitted.eta
    indices = np.resize(np.arange(30, 30 + N_POPULATIONS - 5), N_POPULATIONS)
    part = refit_replicates(target, pool, unfitted.transported, indices, eta)
    transported = unfitted.transported.with_replicates(indices, part)
    np.testing.assert_array_equal(part.ess, transported.ess[indices])
    np.testing.assert_array_equal(part.particles.log_weights, np.asarray(transported.particles.log_weights)[indices])
    refitted = refit(target, pool, unfitted.transported, eta)
    chosen = np.isin(np.arange(target.n_replicates), indices)
    expected = np.where(chosen[None, :, None], refitted.particles.theta, unfitted.particles.theta)
    np.testing.assert_allclose(transported.particles.theta, expected, rtol=1e-4, atol=1e-5)
    expected_sizes = np.where(chosen, refitted.ess, unfitted.transported.ess)
    np.testing.assert_allclose(transported.ess, expected_sizes, rtol=1e-3)
    np.testing.assert_allclose(
        transported.maps.centre,
        np.where(chosen[None], refitted.maps.centre, unfitted.transported.maps.centre),
        rtol=1e-4,
        atol=1e-5,
    )
    assert np.abs(np.asarray(refitted.particles.theta - unfitted.particles.theta))[:, chosen].max() > 1e-3


def test_search_uses_a_part_of_the_particles(problem, searching, fitted):
    """The first ones of every population; the refined state uses all of them."""
    assert searching.particles.theta.shape[-1] == 200
    assert fitted.particles.theta.shape[-1] == M
    np.testing.assert_array_equal(searching.whitened.u, fitted.whitened.u[:, :, :200])
    assert not searching.fitted


def test_problem_out_of_reach_is_refused_before_the_search_only(problem, searching, key, monkeypatch):
    """Unless there is a time limit. A search that has begun keeps its iterates."""
    target, initial, _ = problem
    change_config(monkeypatch, "fit", fair_share=2.0)
    change_config(monkeypatch, "repair", out_of_reach=-1.0, max_losses=-1, max_losses_on_accelerator=-1)
    transport = cb.Transport(n_particles=M)
    with pytest.raises(RuntimeError, match=r"set a time limit \(max_seconds=\)"):
        transport.init(key, target, initial, initial.eta)
    with time_limit(np.inf):
        transport.init(key, target, initial, initial.eta)
    assert transport.move(target, searching, 1.5 * initial.eta, no_progress).eta == 1.5 * initial.eta


def test_initial_draws_are_moved_to_another_learning_rate(problem, key):
    """To an eta four times smaller, where standard deviations are about twice as large, by the exact posterior."""
    _, initial, grid = problem
    eta = initial.eta / 4
    moved = cb.Transport(n_particles=M).move_initial(key, initial, eta)
    theta = np.asarray(moved.particles.theta, float).reshape(2, -1)
    weights = grid.weights(eta, grid.losses.sum(0, keepdims=True))
    mean = weights @ grid.theta
    sd = np.sqrt(weights @ grid.theta**2 - mean**2)[0]
    assert moved.eta == eta
    assert theta.shape[1] == N_POPULATIONS * M
    np.testing.assert_allclose(theta.mean(1), mean[0], atol=4 * sd.max() / theta.shape[1] ** 0.5)
    np.testing.assert_allclose(theta.std(1), sd, rtol=4 / (2 * theta.shape[1]) ** 0.5)
    assert (sd > 1.5 * np.asarray(initial.particles.theta, float).reshape(2, -1).std(1)).all()


def test_search_uses_all_particles_if_the_maps_are_poor(problem, key, monkeypatch):
    target, initial, _ = problem
    change_config(monkeypatch, "fit", fair_ess=2.0)
    state = cb.Transport(n_particles=M).init(key, target, initial, initial.eta)
    assert state.particles.theta.shape[-1] == M


@pytest.mark.parametrize("n_replicates", [3, N_POPULATIONS + 1])
def test_few_replicates(problem, key, n_replicates):
    """Fewer replicates than populations, and one more."""
    target, initial, grid = problem
    selected = target.select(jnp.arange(n_replicates))
    transport = cb.Transport(n_particles=M)
    state = transport.init(key, selected, initial._replace(target=selected), initial.eta)
    state = transport.refine(selected, state, no_progress)
    assert state.particles.theta.shape == (2, n_replicates, M)
    assert np.abs(standardised_means(state, grid.first_replicates(n_replicates - 1))).max() < 4.7


@pytest.mark.parametrize(
    ("min_ess", "share", "max_evaluations", "evaluations"), [(2.0, 1.0, 3, 3), (2.0, 1.0, 1, 1), (0.0, 1.0, 3, 1)]
)
def test_maps_are_refitted_until_the_goal_is_met(problem, unfitted, min_ess, share, max_evaluations, evaluations):
    """Or until the evaluations are used up; a refit that reduces the effective sample size too much is rejected."""
    target, pool, maps, eta = problem[0], unfitted.whitened, unfitted.transported.maps, unfitted.eta
    fitted, n = transport_and_fit(target, pool, maps, eta, FitGoal(min_ess, share, max_evaluations))
    assert n == evaluations
    first = transport(target, pool, maps, eta)
    if evaluations == 1:
        np.testing.assert_array_equal(fitted.ess, first.ess)
    else:
        assert np.median(fitted.ess) > np.median(first.ess)
        assert fitted.ess.min() > 10 * first.ess.min()
        assert (fitted.ess > 0.25 * first.ess).all()


def test_refits_that_lose_effective_particles_are_rejected(problem, unfitted, monkeypatch):
    """With a required ratio of 1.05, replicates that gain less keep their maps and particles."""
    target, pool, eta, old = problem[0], unfitted.whitened, unfitted.eta, unfitted.transported
    free = refit(target, pool, old, eta)
    change_config(monkeypatch, "fit", min_ess_ratio=1.05)
    new = refit(target, pool, old, eta)
    rejected = free.ess <= 1.05 * old.ess
    assert 0 < rejected.sum() < len(rejected)
    for result, expected in ((rejected, old), (~rejected, free)):
        np.testing.assert_array_equal(new.ess[result], expected.ess[result])
        np.testing.assert_array_equal(new.maps.root[result], expected.maps.root[result])
        np.testing.assert_array_equal(
            np.asarray(new.particles.theta)[:, result], np.asarray(expected.particles.theta)[:, result]
        )


def test_replicate_without_effective_particles_has_those_of_its_map(problem, unfitted):
    target, pool, maps, eta = problem[0], unfitted.whitened, unfitted.transported.maps, unfitted.eta
    impossible = eqx.tree_at(lambda p: p.log_density, pool, np.full_like(pool.log_density, -np.inf))
    transported, _ = transport_and_fit(target, impossible, maps, unfitted.eta, FitGoal(0.5, 1.0, 1))
    assert (transported.ess == 0).all()
    expected = transport(target, pool, maps, eta).particles.theta
    np.testing.assert_allclose(transported.particles.theta, expected, rtol=1e-5, atol=1e-5)
