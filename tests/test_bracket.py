"""The bracketing search: its steps by hand, and what it finds from far off."""

from itertools import pairwise

import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from scipy.stats import norm

import calibayes as cb
from exact import gaussian_location_coverage

LEVEL = 0.95


def path(eta, coverages, level=LEVEL):
    """States after each coverage."""
    search = cb.Bracket()
    states = [search.init(jnp.asarray(eta, float))]
    for coverage in coverages:
        at = jnp.broadcast_to(jnp.asarray(coverage, float), states[-1].eta.shape)
        states.append(search.update(states[-1], at, level))
    return states


def z(coverage):
    return norm.ppf(0.5 + np.asarray(coverage) / 2)


def test_next_eta_is_where_a_normal_posterior_would_cover():
    """`(z(coverage) / z(level))^2` times eta: up from 0.99, down from 0.5."""
    for coverage in (0.99, 0.5):
        state = path(2.0, [coverage])[-1]
        assert float(state.eta) == pytest.approx(2 * (z(coverage) / z(LEVEL)) ** 2, rel=1e-3)


def test_bounds_are_what_was_seen():
    first, up, down, again = path(1.0, [0.99, 0.8, 0.97])
    assert (float(first.low), float(first.high)) == (0.0, np.inf)
    assert (float(up.low), float(up.high)) == (1.0, np.inf)
    assert (float(down.low), float(down.high)) == (1.0, float(up.eta))
    assert (float(again.low), float(again.high)) == (float(down.eta), float(up.eta))


@pytest.mark.parametrize(("coverage", "factor"), [(0.951, 1.5), (0.95, 1.5), (0.949, 1 / 1.5)])
def test_a_step_is_no_shorter_than_by_half(coverage, factor):
    """A coverage next to the level, or at it, would else keep eta where it is."""
    assert float(path(3.0, [coverage])[-1].eta) == pytest.approx(3 * factor, rel=1e-4)


@pytest.mark.parametrize(("coverage", "level", "factor"), [(1.0, 0.5, 16.0), (0.0, 0.95, 1 / 16), (0.2, 0.999, 1 / 16)])
def test_a_step_is_sixteenfold_at_most(coverage, level, factor):
    """Whichever way; and so is the next, as long as nothing is on the other side."""
    etas = [float(state.eta) for state in path(3.0, [coverage] * 3, level)]
    np.testing.assert_allclose(etas, 3 * factor ** np.arange(4), rtol=1e-4)


def test_sets_that_always_cover_are_left_fast():
    """Coverage one has no z of its own: some z beyond all others, finite, and several times the level's."""
    etas = [float(state.eta) for state in path(1.0, [1.0] * 3)]
    assert all(4 < after / before <= 16 for before, after in pairwise(etas))


def test_a_step_out_of_the_bracket_goes_to_its_middle():
    """Known to be between 1 and 4, and 0.5 at 2 asks for 0.24: the middle of 1 and 2 instead."""
    search = cb.Bracket()
    state = search.init(jnp.asarray(2.0))
    state = type(state)(state.eta, jnp.asarray(1.0), jnp.asarray(4.0))
    below = search.update(state, jnp.asarray(0.5), LEVEL)
    assert float(below.eta) == pytest.approx(2**0.5)
    above = search.update(state, jnp.asarray(0.9999), LEVEL)
    assert float(above.eta) == pytest.approx(8**0.5)


def test_vector_states_are_searches_side_by_side():
    starts = [2.0, 0.1, 50.0]
    columns = [[0.99, 0.9, 0.97, 0.93], [1.0, 1.0, 0.2, 0.99], [0.0, 0.5, 0.96, 1.0]]
    together = path(starts, np.array(columns).T)
    for i, (start, column) in enumerate(zip(starts, columns, strict=True)):
        alone = path(start, column)
        for name in ("eta", "low", "high"):
            np.testing.assert_allclose(
                [getattr(s, name)[i] for s in together], [getattr(s, name) for s in alone], rtol=1e-6
            )


@pytest.mark.parametrize("start", [1e-4, 0.3, 40.0, 3e4])
def test_a_coverage_that_falls_with_eta_is_closed_in_on(start):
    """Coverage that falls more slowly than a normal's: up to 14 doublings away the bracket closes in 40 steps.

    Steps of 1.5 at the least bring it to both sides in 24, and halvings of at most log 16 take ten more to 1%.
    """
    search, root = cb.Bracket(), 1.7
    state = search.init(jnp.asarray(start))
    for _ in range(40):
        coverage = np.clip(1 - (1 - LEVEL) * (float(state.eta) / root) ** 0.4, 0, 1)
        state = search.update(state, jnp.asarray(coverage, float), LEVEL)
        assert float(state.low) <= root * 1.0001
        assert float(state.high) >= root * 0.9999
        if float(state.high) < 1.01 * float(state.low):
            break
    assert float(state.high) < 1.01 * float(state.low)
    assert float(state.eta) == pytest.approx(root, rel=0.01)


def test_errors(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    for closeness in (0.0, -1.0, np.nan):
        with pytest.raises(ValueError, match="closeness must be positive"):
            cb.Bracket(closeness)


N, ROWS, M = 40, 200, 500


def calibrate(prior=1000.0, region=None, **options):
    rng = np.random.default_rng(0)
    y = rng.normal(1.0, 1.0, size=N)
    counts = rng.multinomial(N, np.full(N, 1 / N), size=ROWS)
    result = cb.calibrate(
        cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=prior)),
        (np.ones((N, 1)), y),
        region=region or cb.regions.Interval(0),
        sampler=cb.Transport(n_particles=M),
        bootstrap=counts,
        seed=0,
        progress=False,
        **options,
    )
    return result, gaussian_location_coverage(y, counts, result.eta)


@pytest.fixture(scope="module")
def at_home():
    return calibrate()


@pytest.mark.parametrize("factor", [30.0, 1 / 30])
def test_the_answer_does_not_depend_on_where_the_search_began(at_home, factor):
    """On the same rows, with the same seed: the particles differ where the pool had to follow, by less than `eta_se`.

    Of 1,500 particles a row, in three snapshots: 0.3 of the error that 200 rows have.
    """
    expected, coverage = at_home
    assert abs(coverage - LEVEL) < 0.03
    result, _ = calibrate(eta_init=factor * expected.eta)
    assert result.converged
    assert result.trace[0].eta == pytest.approx(factor * expected.eta)
    assert 1 < len(result.trace) < 10
    assert abs(result.eta - expected.eta) < 0.3 * expected.eta_se


def test_the_first_look_is_near_enough(at_home):
    """Without a hint the search begins within a factor of two of its answer, and needs two looks, or a few."""
    result, _ = at_home
    assert 0.5 < result.trace[0].eta / result.eta < 2
    assert len(result.trace) <= 6


def test_an_estimate_that_no_set_holds_is_told():
    """A point ten prior standard deviations away is in no set, however small eta is."""
    with pytest.warns(cb.CalibrationWarning, match="no learning rate from .* up covers at 0.95: the sets cover 0.000"):
        result, _ = calibrate(prior=10.0, estimate=lambda draws, weights: jnp.asarray([100.0]))
    assert not result.converged
    assert "The estimate may lie where the posterior has no mass" in result.message
    assert "NOT CONVERGED" in repr(result)
    assert result.coverage == 0


def test_sets_that_do_not_shrink_are_told():
    """An interval of a constant holds its one value at every eta."""
    constant = cb.regions.Functional(lambda theta: 0.0 * theta[0])
    with pytest.warns(
        cb.CalibrationWarning, match=r"still cover more than 0.95 at eta = .*they do not shrink with eta"
    ):
        result, _ = calibrate(region=constant)
    assert not result.converged
    assert result.coverage == 1


def test_too_few_iterations_are_told(at_home):
    with pytest.warns(cb.CalibrationWarning, match="eta had not settled after 1 iterations"):
        result, _ = calibrate(eta_init=100 * at_home[0].eta, max_iterations=1)
    assert not result.converged
