"""What few calibrations come by: many parameters, a ladder that ends too early, labels for two classes."""

import dataclasses
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._backend import treefile
from calibayes._core.target import make_target
from calibayes.design import Design
from calibayes.estimators import GibbsRegressor
from calibayes.progress import LiveLine
from calibayes.result import Intervals
from calibayes.solve import seek
from calibayes.solve.loop import Loop

MODEL = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
DATA = cb.datasets.median_regression(60, 0)


def test_nodes_of_a_hostile_file():
    with pytest.raises(ValueError, match="no node is a 'file'"):
        treefile._made(["file", 0], [], [np.zeros(2)], None)
    with pytest.raises(ValueError, match="the reference of another target"):
        treefile._moved(None, np.zeros(2))
    assert treefile._moved(None) is None


@pytest.fixture(scope="module")
def result():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cb.CalibrationWarning)
        return cb.calibrate(MODEL, DATA, seed=0, bootstrap=100, progress=False)


def test_a_posterior_from_particles_that_had_not_settled_says_so(result, monkeypatch):
    module = sys.modules["calibayes.requery"]
    moved = lambda key, target, particles, *_: (particles, np.zeros(1, bool))
    monkeypatch.setattr(module, "moved", moved)
    with pytest.warns(cb.CalibrationWarning, match="had not settled at eta = 1.234: what is said"):
        result.posterior(1.234)


def test_coverage_that_does_not_fall_steadily_is_no_answer(result, monkeypatch):
    """Every curve says that the answer is elsewhere, until there is no room left between too low and too high."""
    loop, found = result.calibration.loop, result.calibration.found
    turns = iter(range(1000))
    reading = lambda self, found, *_, **__: (found.eta * (1.5 if next(turns) % 2 else 1 / 1.5), False)
    monkeypatch.setattr(Loop, "reading", reading)
    fresh = dataclasses.replace(loop, trace=[], best=None)
    with LiveLine(False, 1) as live:
        ended = seek.solve(fresh, found.state, found.sampled, cb.Bracket(), 100, live)
    assert not ended.converged
    assert "coverage does not fall steadily with eta: it meets 0.95 nowhere near" in ended.outcome


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("meets", [True, False])
def test_fitted_curves_that_disagree_close_in_too(result, monkeypatch, meets, quick):
    """The rough one is near, if there is one, and fitted ones point to and fro until no room is left: the last has the
    say.
    """
    monkeypatch.setattr(cb.Transport, "quick", lambda *_: quick)
    loop, found = result.calibration.loop, result.calibration.found

    def reading(self, found, closeness, rough):
        answer = found.eta * (1.3 if found.eta < middle else 1 / 1.3)
        found.curve = curve
        return answer, rough or bool(meets and closeness == np.inf)

    middle, curve = found.sampled * 1.1, found.curve
    monkeypatch.setattr(Loop, "reading", reading)
    monkeypatch.setattr(Loop, "move", lambda self, state, eta, live: state)
    fresh = dataclasses.replace(loop, trace=[], best=None)
    with LiveLine(False, 1) as live:
        ended = seek.solve(fresh, found.state, found.sampled, cb.Bracket(), 20, live)
    assert not ended.limited
    assert ended.converged == meets
    assert len(fresh.trace) < 12


@pytest.mark.parametrize("loss", [None, cb.losses.Absolute(), lambda prediction, y: jnp.abs(prediction - y)])
def test_the_loss_of_a_regressor(loss):
    kind = {type(None): cb.losses.Squared, cb.losses.Absolute: cb.losses.Absolute}.get(type(loss), cb.losses.Linear)
    assert type(GibbsRegressor(loss=loss)._loss()) is kind


def test_a_region_seen_through_other_coordinates_is_checked(result):
    view = Design.from_columns(DATA[0][:, 1:]).reparametrization(0.0)
    with pytest.raises(ValueError, match="is out of range: there are 2"):
        view.transform_region(cb.regions.Interval(7)).check(2)


@pytest.mark.filterwarnings("ignore::calibayes.CalibrationWarning")
def test_fresh_rows_after_smc():
    """Coverage on fresh rows, of a sampler that begins on them as it began: within four errors of both sets of rows."""
    sampler = cb.SMC(n_particles=200)
    result = cb.calibrate(MODEL, DATA, seed=0, bootstrap=100, sampler=sampler, tolerance=0.03, progress=False)
    fresh = result.validate(100, seed=5)
    assert fresh.n_replicates == 100
    assert abs(fresh - result.coverage) < 4 * (2 * 0.95 * 0.05 / 100) ** 0.5


def test_interrupted_before_the_first_look(result, monkeypatch):
    """While rows are mended at once: what is known of the state then is the result."""
    loop, found = result.calibration.loop, result.calibration.found

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cb.Transport, "quick", lambda *_: True)
    monkeypatch.setattr(cb.Transport, "mend", interrupted)
    fresh = dataclasses.replace(loop, trace=[], best=None)
    with LiveLine(False, 1) as live:
        ended = fresh.guarded(lambda: seek.solve(fresh, found.state, found.sampled, cb.Bracket(), 5, live))
    assert not ended.converged
    assert ended.eta == found.sampled
    assert "interrupted" in ended.outcome
    assert [record.eta for record in fresh.trace] == [found.sampled]


@pytest.mark.parametrize("answer", [0.0, np.inf, 1.4])
def test_a_first_fitted_curve_leads_on_if_it_meets_the_level(result, monkeypatch, answer):
    """Else rough ones do, which cost less far away."""
    loop, found = result.calibration.loop, result.calibration.found
    seen = []

    def reading(self, found, closeness, rough):
        seen.append(rough)
        found.curve = curve
        return (found.eta * answer if len(seen) == 1 else found.eta), len(seen) > 1

    curve = found.curve
    monkeypatch.setattr(cb.Transport, "quick", lambda *_: True)
    monkeypatch.setattr(Loop, "reading", reading)
    monkeypatch.setattr(Loop, "move", lambda self, state, eta, live: state)
    fresh = dataclasses.replace(loop, trace=[], best=None)
    with LiveLine(False, 1) as live:
        assert seek.solve(fresh, found.state, found.sampled, cb.Bracket(), 5, live).converged
    assert seen == ([False, False] if answer == 1.4 else [False, True, False])


def test_a_fitted_curve_is_not_held_to_what_rough_ones_said(result, monkeypatch):
    """Rough ones say that the answer is above the first learning rate; a fitted one, that it is below."""
    loop, found = result.calibration.loop, result.calibration.found
    curve, first, seen = found.curve, found.sampled, []

    def reading(self, found, closeness, rough):
        seen.append((found.eta / first, rough))
        found.curve = curve
        says = {1: (1.4 * first, False), 2: (1.5 * first, True), 3: (0.9 * first, False)}
        return says.get(len(seen), (found.eta, True))

    monkeypatch.setattr(cb.Transport, "quick", lambda *_: False)
    monkeypatch.setattr(Loop, "reading", reading)
    monkeypatch.setattr(Loop, "move", lambda self, state, eta, live: state)
    fresh = dataclasses.replace(loop, trace=[], best=None)
    with LiveLine(False, 1) as live:
        assert seek.solve(fresh, found.state, first, cb.Bracket(), 5, live).converged
    etas, rough = zip(*seen, strict=True)
    assert etas == pytest.approx([1.0, 1.4, 1.4, 0.9], rel=1e-5)
    assert rough == (True, True, False, False)
