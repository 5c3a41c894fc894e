"""Steps of the search against sequences worked out by hand from the paper's rule."""

import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import calibayes as cb

LEVEL = 0.9
# Errors +0.1 (coverage one), -0.1, -0.2, +0.05, +0.05, +0.1 (one), -0.3: eta turns at the 2nd, 4th and 7th.
COVERAGES = [1.0, 0.8, 0.7, 0.95, 0.95, 1.0, 0.6]


def path(search, eta, coverages, level=LEVEL):
    state = search.init(jnp.asarray(eta, float))
    etas = [np.asarray(state.eta)]
    for coverage in coverages:
        state = search.update(state, jnp.broadcast_to(jnp.asarray(coverage, float), state.eta.shape), level)
        etas.append(np.asarray(state.eta))
    return np.array(etas)


def by_hand(clocks, coverages=COVERAGES, eta=2.0, gain=1.0):
    steps = [gain * clock**-0.51 * (c - LEVEL) for clock, c in zip(clocks, coverages, strict=True)]
    return eta + np.concatenate([[0.0], np.cumsum(steps)])


def test_kesten():
    """The clock moves when the direction turns, before the step is taken."""
    expected = by_hand([1, 2, 2, 3, 3, 3, 4])
    np.testing.assert_allclose(path(cb.RobbinsMonro("kesten"), 2.0, COVERAGES), expected, rtol=1e-6)


def test_kesten_clock_waits_while_coverage_is_one():
    """Turning up with coverage one is no turn: eta is far below, and the step must not shrink for it."""
    coverages = [0.7, 1.0, 0.8, 1.0, 0.95, 0.8]
    expected = by_hand([1, 1, 2, 2, 2, 3], coverages)
    np.testing.assert_allclose(path(cb.RobbinsMonro("kesten"), 2.0, coverages), expected, rtol=1e-6)


def test_syring_martin():
    """The clock moves at every step, whatever the direction."""
    expected = by_hand([1, 2, 3, 4, 5, 6, 7])
    np.testing.assert_allclose(path(cb.RobbinsMonro("syring-martin"), 2.0, COVERAGES), expected, rtol=1e-6)


def test_kesten_is_the_default():
    default, kesten = (path(search, 2.0, COVERAGES) for search in (cb.RobbinsMonro(), cb.RobbinsMonro("kesten")))
    np.testing.assert_array_equal(default, kesten)


@pytest.mark.parametrize(("coverage", "sign"), [(0.95, 1), (1.0, 1), (0.5, -1), (LEVEL, 0)])
def test_direction(coverage, sign):
    """Too much coverage: sets are too wide, eta goes up."""
    before, after = path(cb.RobbinsMonro(), 2.0, [coverage])
    assert np.sign(after - before) == sign


def test_gain_multiplies_every_step():
    expected = by_hand([1, 2, 2, 3, 3, 3, 4], gain=0.3)
    np.testing.assert_allclose(path(cb.RobbinsMonro("kesten", gain=0.3), 2.0, COVERAGES), expected, rtol=1e-6)


@pytest.mark.parametrize("step", ["kesten", "syring-martin"])
def test_eta_stays_positive(step):
    """A step to zero or below halves eta instead; the step after is the ordinary one."""
    etas = path(cb.RobbinsMonro(step), 0.5, [0.0, 0.0, 0.0])
    np.testing.assert_allclose(etas, [0.5, 0.25, 0.125, 0.0625])
    np.testing.assert_allclose(path(cb.RobbinsMonro(step), 0.9, [0.0]), [0.9, 0.45])
    np.testing.assert_allclose(path(cb.RobbinsMonro(step), 0.95, [0.0]), [0.95, 0.05], rtol=1e-5)


@pytest.mark.parametrize("step", ["kesten", "syring-martin"])
def test_vector_states_are_searches_side_by_side(step):
    search = cb.RobbinsMonro(step)
    starts = [2.0, 0.1, 5.0]
    columns = [COVERAGES, [0.0, 1.0, 0.3, 0.95, 0.9, 0.2, 1.0], [0.92, 0.88] * 3 + [0.7]]
    together = path(search, starts, np.array(columns).T)
    assert together.shape == (8, 3)
    for i, (start, column) in enumerate(zip(starts, columns, strict=True)):
        np.testing.assert_allclose(together[:, i], path(search, start, column), rtol=1e-6)


@pytest.mark.parametrize(("step", "final"), [("kesten", 5e-3), ("syring-martin", 5e-3)])
def test_converges_to_the_root(step, final):
    """Coverage `exp(-eta / 20)` is 0.9 at `20 log(10/9)`: without noise the error shrinks at every step."""
    search = cb.RobbinsMonro(step, gain=20.0)
    root = -20 * np.log(LEVEL)
    state = search.init(jnp.float32(6.0))
    for _ in range(60):
        state = search.update(state, jnp.exp(-state.eta / 20), LEVEL)
    assert abs(float(state.eta) - root) < final * root


def test_errors(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # else the type checker is first to complain
    with pytest.raises(ValueError, match="step must be 'kesten' or 'syring-martin'; got 'newton'"):
        cb.RobbinsMonro("newton")
    for gain in (0.0, -1.0, np.nan):
        with pytest.raises(ValueError, match="gain must be positive"):
            cb.RobbinsMonro(gain=gain)
