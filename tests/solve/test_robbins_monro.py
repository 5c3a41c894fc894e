"""Steps of `RobbinsMonro` against sequences computed by hand from the paper's rule, and how the search ends."""

import math

import jaxtyping
import numpy as np
import pytest

import calibayes as cb
from calibayes.solve.robbins_monro import INTERPOLATION
from calibayes.solve.search import Evaluation, Request

LEVEL = 0.9
# Errors +0.1 (coverage one), -0.1, -0.2, +0.05, +0.05, +0.1 (coverage one), -0.3: the direction changes at the second,
# fourth and seventh step.
COVERAGES = [1.0, 0.8, 0.7, 0.95, 0.95, 1.0, 0.6]


def observe(eta, coverage, tolerance=0.0, **fields):
    return Evaluation(eta=eta, coverage=coverage, level=LEVEL, tolerance=tolerance, **fields)


def visited_etas(search, eta, coverages):
    """Learning rates of a search that never stops, because its tolerance is zero."""
    state = search.init(eta)
    etas = [state.eta]
    for coverage in coverages:
        state = search.update(state, observe(state.eta, coverage))
        assert state.status is None
        assert state.request is Request.COVERAGE
        etas.append(state.eta)
    return np.array(etas)


def expected_etas(clocks, coverages=COVERAGES, eta=2.0, gain=1.0):
    steps = [gain * clock**-0.51 * (c - LEVEL) for clock, c in zip(clocks, coverages, strict=True)]
    return eta + np.concatenate([[0.0], np.cumsum(steps)])


def test_kesten_clock_advances_when_the_direction_changes():
    """The clock advances before the step is taken."""
    expected = expected_etas([1, 2, 2, 3, 3, 3, 4])
    np.testing.assert_allclose(visited_etas(cb.RobbinsMonro("kesten"), 2.0, COVERAGES), expected, rtol=1e-6)


def test_kesten_clock_does_not_advance_while_coverage_is_one():
    """Eta is then far below the answer, and the step must not shrink."""
    coverages = [0.7, 1.0, 0.8, 1.0, 0.95, 0.8]
    expected = expected_etas([1, 1, 2, 2, 2, 3], coverages)
    np.testing.assert_allclose(visited_etas(cb.RobbinsMonro("kesten"), 2.0, coverages), expected, rtol=1e-6)


def test_syring_martin_clock_advances_at_every_step():
    expected = expected_etas([1, 2, 3, 4, 5, 6, 7])
    np.testing.assert_allclose(visited_etas(cb.RobbinsMonro("syring-martin"), 2.0, COVERAGES), expected, rtol=1e-6)


def test_kesten_is_the_default():
    default, kesten = (visited_etas(rule, 2.0, COVERAGES) for rule in (cb.RobbinsMonro(), cb.RobbinsMonro("kesten")))
    np.testing.assert_array_equal(default, kesten)


@pytest.mark.parametrize(("coverage", "sign"), [(0.95, 1), (1.0, 1), (0.5, -1), (LEVEL, 0)])
def test_eta_increases_where_coverage_is_too_large(coverage, sign):
    before, after = visited_etas(cb.RobbinsMonro(), 2.0, [coverage])
    assert np.sign(after - before) == sign


def test_gain_multiplies_every_step():
    expected = expected_etas([1, 2, 2, 3, 3, 3, 4], gain=0.3)
    np.testing.assert_allclose(visited_etas(cb.RobbinsMonro("kesten", gain=0.3), 2.0, COVERAGES), expected, rtol=1e-6)


@pytest.mark.parametrize("step", ["kesten", "syring-martin"])
def test_eta_stays_positive(step):
    """A step to zero or below halves eta instead; the next step is an ordinary one."""
    etas = visited_etas(cb.RobbinsMonro(step), 0.5, [0.0, 0.0, 0.0])
    np.testing.assert_allclose(etas, [0.5, 0.25, 0.125, 0.0625])
    np.testing.assert_allclose(visited_etas(cb.RobbinsMonro(step), 0.9, [0.0]), [0.9, 0.45])
    np.testing.assert_allclose(visited_etas(cb.RobbinsMonro(step), 0.95, [0.0]), [0.95, 0.05], rtol=1e-5)


@pytest.mark.parametrize("step", ["kesten", "syring-martin"])
def test_search_converges_to_the_root(step):
    """Coverage `exp(-eta / 20)` is 0.9 at `20 log(10/9)`. Without noise the error decreases at every step."""
    search = cb.RobbinsMonro(step, gain=20.0)
    root = -20 * np.log(LEVEL)
    state = search.init(6.0)
    for _ in range(60):
        state = search.update(state, observe(state.eta, math.exp(-state.eta / 20)))
    assert abs(state.eta - root) < 5e-3 * root


def test_states_are_python_floats():
    """Search rules run on the host, in double precision."""
    state = cb.RobbinsMonro().init(1.0)
    state = cb.RobbinsMonro().update(state, observe(1.0, 0.123456789012))
    assert type(state.eta) is float
    assert state.eta == 1.0 + (0.123456789012 - LEVEL)


def test_coverage_within_the_tolerance_is_checked_on_refined_particles():
    """The first coverage near the level asks for refined particles; the coverage of those decides."""
    search = cb.RobbinsMonro(interpolate=False)
    near = search.update(search.init(2.0), observe(2.0, 0.904, tolerance=0.005))
    assert (near.eta, near.request, near.status) == (2.0, Request.REFINED_COVERAGE, None)
    converged = search.update(near, observe(2.0, 0.896, tolerance=0.005, refined=True))
    assert (converged.eta, converged.status, converged.from_curve) == (2.0, cb.Status.CONVERGED, False)
    assert not converged.diagnostics
    off = search.update(near, observe(2.0, 0.8, tolerance=0.005, refined=True))
    assert (off.status, off.request) == (None, Request.COVERAGE)
    assert off.eta == pytest.approx(1.9)


def test_coverage_at_the_tolerance_is_not_within_it():
    state = cb.RobbinsMonro().update(cb.RobbinsMonro().init(2.0), observe(2.0, 0.905000001, tolerance=0.005))
    assert state.request is Request.COVERAGE
    assert state.eta > 2.0


def start_of_interpolation(tolerance=0.005):
    """The state of a search that has stopped at eta = 2 and is about to refine its answer on a curve."""
    search = cb.RobbinsMonro()
    state = search.update(search.init(2.0), observe(2.0, 0.9, tolerance))
    state = search.update(state, observe(2.0, 0.9, tolerance, refined=True))
    assert (state.eta, state.request, state.status) == (2.0, Request.REFINED_CURVE_IF_CHEAP, None)
    return search, state


def test_answer_is_the_crossing_of_the_curve():
    search, state = start_of_interpolation()
    state = search.update(state, observe(2.0, 0.9, refined=True, crossing=2.2, half_width=0.5))
    assert (state.eta, state.status, state.from_curve) == (2.2, cb.Status.CONVERGED, True)
    assert not state.diagnostics


def test_refinement_moves_to_a_distant_crossing():
    """Reweighting does not reach a crossing beyond half of the curve's half-width: the particles are moved there."""
    search, state = start_of_interpolation()
    state = search.update(state, observe(2.0, 0.9, refined=True, crossing=2.8, half_width=0.5))
    assert (state.eta, state.request, state.status) == (2.8, Request.REFINED_CURVE, None)
    state = search.update(state, observe(2.8, 0.9, refined=True, crossing=2.7, half_width=0.5))
    assert (state.eta, state.status, state.from_curve) == (2.7, cb.Status.CONVERGED, True)


def test_failed_refinement_keeps_the_answer_of_the_stochastic_search():
    """Each curve places its crossing elsewhere: after `max_moves` learning rates the search gives up."""
    search, state = start_of_interpolation()
    etas = []
    while state.status is None:
        etas.append(state.eta)
        crossing = state.eta * (1.5 if len(etas) < 3 else 1.1)
        state = search.update(state, observe(state.eta, 0.9, refined=True, crossing=crossing, half_width=0.1))
    assert len(etas) == INTERPOLATION.max_moves
    assert (state.eta, state.status, state.from_curve) == (2.0, cb.Status.CONVERGED, False)
    assert [(d.code, d.severity) for d in state.diagnostics] == [(cb.Code.NOT_INTERPOLATED, cb.Severity.WARNING)]


def test_invalid_arguments_are_rejected(monkeypatch):
    # Without this the run-time type checker raises its own error first.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match="step must be 'kesten' or 'syring-martin'; got 'newton'"):
        cb.RobbinsMonro("newton")
    for gain in (0.0, -1.0, np.nan):
        with pytest.raises(ValueError, match="gain must be positive"):
            cb.RobbinsMonro(gain=gain)
