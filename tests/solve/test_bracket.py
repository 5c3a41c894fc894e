"""The bracketing search: its steps by hand, and calibrations that use it against a closed form."""

import math
from itertools import pairwise

import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from scipy.stats import norm

import calibayes as cb
from calibayes.solve.bracket import BracketState
from calibayes.solve.search import Evaluation, Request
from exact import gaussian_location_coverage

LEVEL = 0.95


def off_curve(eta, coverage, level=LEVEL, **fields):
    """An observation whose curve does not cross the level: only the coverage tells the direction."""
    crossing = math.inf if coverage >= level else 0.0
    return Evaluation(
        eta=eta, coverage=coverage, level=level, tolerance=math.nan, crossing=crossing, half_width=0.3, **fields
    )


def crossing_at(eta, crossing, half_width=0.5, refined=False):
    coverage = LEVEL + (0.01 if crossing >= eta else -0.01)
    return Evaluation(eta, coverage, LEVEL, math.nan, refined=refined, crossing=crossing, half_width=half_width)


def states_after(eta, coverages, level=LEVEL):
    """The first state, and the states after rough curves that do not cross the level."""
    search = cb.Bracket()
    states = [search.init(eta)]
    for coverage in coverages:
        states.append(search.update(states[-1], off_curve(states[-1].eta, coverage, level)))
    return states


def z_value(coverage):
    return norm.ppf(0.5 + np.asarray(coverage) / 2)


def test_next_eta_is_where_a_normal_posterior_would_cover():
    """`(z(coverage) / z(level))^2` times eta: larger from 0.99, smaller from 0.5."""
    for coverage in (0.99, 0.5):
        state = states_after(2.0, [coverage])[-1]
        assert state.eta == pytest.approx(2 * (z_value(coverage) / z_value(LEVEL)) ** 2, rel=1e-3)
        assert state.request is Request.ROUGH_CURVE
        assert type(state.eta) is float


def test_bracket_ends_are_visited_learning_rates():
    first, above, below, inside = states_after(1.0, [0.99, 0.8, 0.97])
    assert (first.low, first.high) == (0.0, math.inf)
    assert (above.low, above.high) == (1.0, math.inf)
    assert (below.low, below.high) == (1.0, above.eta)
    assert (inside.low, inside.high) == (below.eta, above.eta)


@pytest.mark.parametrize(("coverage", "factor"), [(0.951, 1.5), (0.95, 1.5), (0.949, 1 / 1.5)])
def test_smallest_move_without_a_crossing_is_by_half(coverage, factor):
    """Otherwise a coverage next to the level would not move eta."""
    assert states_after(3.0, [coverage])[-1].eta == pytest.approx(3 * factor, rel=1e-4)


@pytest.mark.parametrize(("coverage", "level", "factor"), [(1.0, 0.5, 16.0), (0.0, 0.95, 1 / 16), (0.2, 0.999, 1 / 16)])
def test_largest_move_is_sixteenfold(coverage, level, factor):
    """In both directions, and again for every further move while nothing is known on the other side."""
    etas = [state.eta for state in states_after(3.0, [coverage] * 3, level)]
    np.testing.assert_allclose(etas, 3 * factor ** np.arange(4), rtol=1e-4)


def test_coverage_of_one_gives_a_large_finite_move():
    """A coverage of one has no z value of its own; it is given one that is larger than all others, but finite."""
    etas = [state.eta for state in states_after(1.0, [1.0] * 3)]
    assert all(4 < after / before <= 16 for before, after in pairwise(etas))


def test_move_out_of_the_bracket_goes_to_its_geometric_mean():
    """The answer is between 1 and 4, and a coverage of 0.5 at 2 suggests 0.24: go to the middle of 1 and 2 instead."""
    search = cb.Bracket()
    state = BracketState(eta=2.0, first_eta=2.0, low=1.0, high=4.0, request=Request.ROUGH_CURVE)
    assert search.update(state, off_curve(2.0, 0.5)).eta == pytest.approx(2**0.5)
    assert search.update(state, off_curve(2.0, 0.9999)).eta == pytest.approx(8**0.5)


@pytest.mark.parametrize("first_eta", [1e-4, 0.3, 40.0, 3e4])
def test_bracket_closes_where_coverage_decreases_with_eta(first_eta):
    """Coverage that decreases more slowly than a normal posterior's: up to 14 doublings away it closes in 40 steps.

    Moves by a factor of 1.5 or more reach the other side in 24 steps, and from at most log 16 ten halvings reach 1%,
    the width below which a bracket of this `closeness` is too narrow to search further.
    """
    search, root = cb.Bracket(closeness=4 * math.log(1.01)), 1.7
    state = search.init(first_eta)
    for _ in range(40):
        coverage = float(np.clip(1 - (1 - LEVEL) * (state.eta / root) ** 0.4, 0, 1))
        state = search.update(state, off_curve(state.eta, coverage))
        assert state.low <= root * 1.0001
        assert state.high >= root * 0.9999
        if state.request is Request.REFINED_CURVE:
            break
    assert state.high < 1.01 * state.low
    assert state.eta == pytest.approx(root, rel=0.01)


def test_rough_curve_near_its_crossing_asks_for_a_full_curve():
    """Near is 1.5 times `closeness` for a rough curve, and half of the curve's half-width at most."""
    search = cb.Bracket(closeness=0.2)
    near = search.update(search.init(1.0), crossing_at(1.0, math.exp(0.29), half_width=0.6))
    assert (near.eta, near.request, near.status) == (1.0, Request.REFINED_CURVE, None)
    for crossing, half_width in ((math.exp(0.31), 0.65), (math.exp(0.2), 0.3)):
        far = search.update(search.init(1.0), crossing_at(1.0, crossing, half_width))
        assert (far.eta, far.request) == (crossing, Request.ROUGH_CURVE)


def test_full_curve_near_its_crossing_gives_the_answer():
    search = cb.Bracket(closeness=0.2)
    state = search.update(search.init(1.0), crossing_at(1.0, 1.1))
    state = search.update(state, crossing_at(1.0, math.exp(0.19), refined=True))
    assert (state.eta, state.status, state.from_curve) == (math.exp(0.19), cb.Status.CONVERGED, True)
    assert not state.diagnostics


@pytest.mark.parametrize("cheap", [True, False])
@pytest.mark.parametrize("crosses", [True, False])
def test_full_curves_that_disagree_close_the_bracket(cheap, crosses):
    """Full curves place the crossing on alternating sides until the bracket is too narrow to search further.

    The last curve then decides: its crossing is the answer, however far away it is, or there is none.
    """
    search, middle = cb.Bracket(), 1.1
    state, n_observations = search.init(1.0), 0
    while state.status is None:
        refined = state.request is Request.REFINED_CURVE or (cheap and state.request is Request.REFINED_CURVE_IF_CHEAP)
        narrow = state.bracketed and state.high < 1.05 * state.low
        crossing = state.eta * (1.3 if state.eta < middle else 1 / 1.3)
        if not refined:
            evaluation = crossing_at(state.eta, 1.05 * state.eta)
        elif narrow and not crosses:
            evaluation = off_curve(state.eta, 0.9, refined=True)
        else:
            evaluation = crossing_at(state.eta, crossing, refined=True, half_width=0.6)
        state = search.update(state, evaluation)
        n_observations += 1
    assert n_observations < 12
    assert state.status is (cb.Status.CONVERGED if crosses else cb.Status.NO_CROSSING)
    codes = [(finding.code, finding.severity) for finding in state.diagnostics]
    assert codes == ([] if crosses else [(cb.Code.NO_CROSSING, cb.Severity.ERROR)])


def test_rough_curves_that_disagree_end_without_a_crossing():
    """Rough and full curves place the crossing elsewhere until nothing is left between too low and too high."""
    search = cb.Bracket()
    state, n_observations = search.init(1.0), 0
    while state.status is None and n_observations < 100:
        factor = 1.5 if n_observations % 2 else 1 / 1.5
        refined = state.request is Request.REFINED_CURVE
        state = search.update(state, crossing_at(state.eta, state.eta * factor, refined=refined, half_width=0.6))
        n_observations += 1
    assert state.status is cb.Status.NO_CROSSING
    (finding,) = state.diagnostics
    assert (finding.code, finding.severity) == (cb.Code.NO_CROSSING, cb.Severity.ERROR)
    assert "does not decrease steadily" in finding.message


@pytest.mark.parametrize("crossing", [0.0, math.inf, 1.4])
def test_first_full_curve_leads_the_search_only_if_it_crosses_the_level(crossing):
    """Far from the answer rough curves cost less."""
    search = cb.Bracket()
    state = search.init(1.0)
    evaluation = crossing_at(1.0, crossing, refined=True)
    state = search.update(state, evaluation)
    requests = [state.request]
    while state.status is None:
        refined = state.request is Request.REFINED_CURVE
        state = search.update(state, crossing_at(state.eta, state.eta, refined=refined))
        requests.append(state.request)
    assert state.status is cb.Status.CONVERGED
    expected = [Request.REFINED_CURVE] if crossing == 1.4 else [Request.ROUGH_CURVE, Request.REFINED_CURVE]
    assert requests[:-1] == expected


def test_full_curve_overrules_the_bracket_of_rough_curves():
    """Rough curves place the answer above the first learning rate, and a full curve below it."""
    search = cb.Bracket()
    state, visits = search.init(1.0), []
    crossings = iter([(1.4, 0.5), (1.5, 0.5), (0.9, 0.5), (0.9, 0.5)])
    while state.status is None:
        refined = state.request is Request.REFINED_CURVE
        visits.append((state.eta, refined))
        crossing, half_width = next(crossings)
        state = search.update(state, crossing_at(state.eta, crossing, half_width, refined=refined))
    assert state.status is cb.Status.CONVERGED
    assert visits == [(1.0, False), (1.4, False), (1.4, True), (0.9, True)]


@pytest.mark.parametrize(("coverage", "sign", "search_range"), [(1.0, 1, 1e5), (0.0, -1, 1e9)])
def test_search_gives_up_beyond_its_range(coverage, sign, search_range):
    """It has then looked at learning rates over almost all of the range, in the direction of the level."""
    search = cb.Bracket()
    state, etas = search.init(2.0), []
    while state.status is None:
        etas.append(state.eta)
        state = search.update(state, off_curve(state.eta, coverage))
    assert state.status is cb.Status.NO_CROSSING
    assert (np.sign(np.diff(etas)) == sign).all()
    assert search_range / 100 < (etas[-1] / 2.0) ** sign < search_range
    # The solver, which knows the trace, describes what was found.
    assert not state.diagnostics


def test_invalid_closeness_is_rejected(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    for closeness in (0.0, -1.0, np.nan):
        with pytest.raises(ValueError, match="closeness must be positive"):
            cb.Bracket(closeness)


N, B, M = 40, 200, 500


def calibrate(prior_scale=1000.0, region=None, **options):
    """Calibrate a Gaussian location; return the result and the closed form's coverage at its eta."""
    rng = np.random.default_rng(0)
    y = rng.normal(1.0, 1.0, size=N)
    counts = rng.multinomial(N, np.full(N, 1 / N), size=B)
    result = cb.calibrate(
        cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=prior_scale)),
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
def from_default_start():
    return calibrate()


@pytest.mark.parametrize("factor", [30.0, 1 / 30])
def test_answer_does_not_depend_on_the_first_learning_rate(from_default_start, factor):
    """With the same replicates and seed only the particles differ, by less than `eta_se`.

    Over ten seeds, the root mean square of the difference is 0.12 and 0.16 of the standard error that 200 replicates
    cause.
    """
    expected, coverage = from_default_start
    assert abs(coverage - LEVEL) < 0.03
    result, _ = calibrate(eta_init=factor * expected.eta)
    assert result.converged
    assert result.trace[0].eta == pytest.approx(factor * expected.eta)
    assert 1 < len(result.trace) < 10
    assert abs(result.eta - expected.eta) < 0.5 * expected.eta_se


def test_default_first_learning_rate_is_near_the_answer(from_default_start):
    """It is within a factor of two, and the search takes few iterations."""
    result, _ = from_default_start
    assert 0.5 < result.trace[0].eta / result.eta < 2
    assert len(result.trace) <= 6


def test_point_estimate_outside_all_sets_has_no_learning_rate():
    """A point ten prior standard deviations away is in no set, however small eta is."""
    with pytest.warns(cb.NotConvergedWarning):
        result, _ = calibrate(prior_scale=10.0, estimate=lambda draws, weights: jnp.asarray([100.0]))
    assert result.status is cb.Status.NO_CROSSING
    (finding,) = [finding for finding in result.diagnostics if finding.code is cb.Code.NO_CROSSING]
    assert finding.severity is cb.Severity.ERROR
    assert "up covers at 0.95: the largest coverage is 0.000" in finding.message
    assert "The point estimate may lie where the posterior has no mass" in finding.message
    assert "NOT CONVERGED" in repr(result)
    assert result.coverage == 0


def test_sets_that_do_not_shrink_with_eta_have_no_learning_rate():
    """The interval of a constant contains its one value at every eta."""
    constant = cb.regions.Functional(lambda theta: 0.0 * theta[0])
    with pytest.warns(cb.NotConvergedWarning):
        result, _ = calibrate(region=constant)
    assert result.status is cb.Status.NO_CROSSING
    (finding,) = [finding for finding in result.diagnostics if finding.code is cb.Code.NO_CROSSING]
    assert finding.severity is cb.Severity.ERROR
    assert "still cover more than 0.95" in finding.message
    assert result.coverage == 1


def test_search_stops_at_the_iteration_limit(from_default_start):
    with pytest.warns(cb.NotConvergedWarning, match="stopped after 1 iterations"):
        result, _ = calibrate(eta_init=100 * from_default_start[0].eta, max_iterations=1)
    assert result.status is cb.Status.MAX_ITERATIONS
    assert cb.Code.MAX_ITERATIONS in [finding.code for finding in result.diagnostics]
