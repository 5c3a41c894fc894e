"""What a user holds in hand after a calibration."""

import copy
import dataclasses
import os
import pickle
import signal
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import calibayes as cb
from calibayes._core.curve import Curve
from calibayes.result import Coverage
from calibayes.solve import seek
from calibayes.solve.found import UNKNOWN_ERROR

SMALL = {"bootstrap": 100, "sampler": cb.SMC(n_particles=200, ess_target=0.99), "progress": False, "tolerance": 0.02}
"""GPC-SMC."""
AUTO = {"bootstrap": 100, "progress": False}
"""What users get who choose nothing."""
ALGORITHMS = {"auto": AUTO, "smc": SMALL}


def problem(n=60, seed=0):
    x, y = cb.datasets.median_regression(n, seed)
    return cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0)), (x, y)


@pytest.fixture(scope="module", params=ALGORITHMS)
def algorithm(request):
    return request.param


@pytest.fixture(scope="module")
def options(algorithm):
    return ALGORITHMS[algorithm]


@pytest.fixture(scope="module")
def result(options):
    model, (x, y) = problem()
    frame = pd.DataFrame(x, columns=["one", "age"])
    return cb.calibrate(model, (frame, pd.Series(y)), seed=0, **options)


def test_fields(result, algorithm):
    assert result.converged
    assert 0.5 < result.eta < 6
    assert 0 < result.eta_se < result.eta
    assert result.draws.shape[1] == 2
    assert 200 <= len(result.draws) <= 4000
    assert result.names == ["one", "age"]
    assert result.counts.shape == (100, 60)
    low, high = result.coverage.interval
    assert low < result.coverage < high
    assert abs(result.coverage - 0.95) <= 0.02
    assert [record.iteration for record in result.trace] == list(range(1, len(result.trace) + 1))
    assert (result.trace[0].eta == 1.0) == (algorithm == "smc")
    assert result.curve.coverage().shape == result.curve.etas.shape
    assert (np.diff(result.curve.coverage()) <= 0.01).all()
    assert result.settings["seed"] == 0
    assert isinstance(result.settings["sampler"], cb.Transport if algorithm == "auto" else cb.SMC)
    assert isinstance(result.settings["search"], cb.Bracket if algorithm == "auto" else cb.RobbinsMonro)
    # Weights fail on one row of some hundreds here, by chance.
    assert len(result.repaired_replicates) <= 1


def test_repr_and_summary(result):
    assert f"{result.eta:.4g}" in repr(result)
    assert "NOT CONVERGED" not in repr(result)
    text = result.summary()
    assert "converged" in text
    assert "age" in text
    assert "95% low" in text
    low, high = result.marginal_intervals()[1]
    assert f"{low:.4g}" in text
    assert f"{high:.4g}" in text


def test_datatree(result):
    tree = result.to_datatree()
    assert tree["posterior"]["theta"].shape == (1, *result.draws.shape)
    assert list(tree["posterior"]["parameter"].values) == ["one", "age"]
    assert tree["posterior"].attrs["eta"] == result.eta


def test_wilson_interval():
    """Against scipy's, on an asymmetric share."""
    from scipy.stats import binomtest

    exact = binomtest(470, 500).proportion_ci(method="wilson")
    np.testing.assert_allclose(Coverage(470, 500).interval, (exact.low, exact.high), rtol=1e-6)
    assert Coverage(500, 500).interval[1] == 1


def test_same_seed_same_result(result, options):
    model, (x, y) = problem()
    again = cb.calibrate(model, (x, y), seed=jax.random.key(0), **options)
    assert again.eta == result.eta
    np.testing.assert_array_equal(again.draws, result.draws)
    other = cb.calibrate(model, (x, y), seed=1, **options)
    assert other.eta != result.eta


def test_iteration_cap_is_said():
    model, data = problem()
    with pytest.warns(cb.CalibrationWarning, match="stopped after 2 iterations"):
        stopped = cb.calibrate(model, data, seed=0, max_iterations=2, **SMALL | {"tolerance": 0.005})
    assert not stopped.converged
    assert len(stopped.trace) == 2
    assert "NOT CONVERGED" in repr(stopped)
    assert "NOT CONVERGED" in stopped.summary()


def test_iteration_cap_of_transport_is_said():
    model, data = problem()
    with pytest.warns(cb.CalibrationWarning, match="eta had not settled after 1 iteration"):
        stopped = cb.calibrate(model, data, seed=0, eta_init=8.0, max_iterations=1, sampler="transport", **AUTO)
    assert not stopped.converged
    # One look, and once more with the maps fitted.
    assert len(stopped.trace) <= 2
    assert stopped.eta == stopped.trace[0].eta == 8.0
    assert "NOT CONVERGED" in repr(stopped)


def test_cap_on_rungs_is_said():
    model, data = problem()
    capped = cb.SMC(n_particles=200, ess_target=0.9999, max_steps=1)
    with pytest.warns(cb.CalibrationWarning, match="did not reach eta"):
        stopped = cb.calibrate(model, data, seed=0, **SMALL | {"sampler": capped, "tolerance": 0.005})
    assert not stopped.converged
    assert stopped.eta == 1.0


class StopInSecondMove(cb.SMC):
    """A sampler that is interrupted on its way to the third learning rate, as by Ctrl-C."""

    def move(self, target, state, eta, on_step):
        def told(share):
            on_step(share)
            if eta > 1.05:
                os.kill(os.getpid(), signal.SIGINT)

        return super().move(target, state, eta, told)


class StopInMove(cb.Transport):
    """Interrupted on its way to the second learning rate."""

    def move(self, target, state, eta, on_step):
        os.kill(os.getpid(), signal.SIGINT)
        return super().move(target, state, eta, on_step)


@pytest.mark.parametrize(
    "changes",
    [
        {"sampler": StopInSecondMove(n_particles=200, ess_target=0.99), "tolerance": 0.005},
        {"sampler": StopInMove(), "eta_init": 8.0},
    ],
    ids=["smc", "transport"],
)
def test_ctrl_c_leaves_the_best_result_so_far(changes):
    model, data = problem()
    assert threading.current_thread() is threading.main_thread()
    with pytest.warns(cb.CalibrationWarning, match="interrupted after iteration"):
        stopped = cb.calibrate(model, data, seed=0, **SMALL | changes)
    assert not stopped.converged
    assert len(stopped.trace) >= 1
    closest = min(stopped.trace, key=lambda record: (abs(record.coverage - 0.95), -record.iteration))
    assert stopped.eta == closest.eta
    assert len(stopped.draws) >= 100
    assert np.isfinite(stopped.draws).all()


@pytest.mark.parametrize(
    ("options", "begin"),
    [(AUTO, "calibayes.samplers.transport.sampler.initial_populations"), (SMALL, "calibayes.samplers.base.initial_draws")],
    ids=ALGORITHMS,
)
def test_ctrl_c_before_anything_is_an_interrupt(monkeypatch, options, begin):
    model, data = problem()

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(begin, interrupted)
    with pytest.raises(KeyboardInterrupt):
        cb.calibrate(model, data, seed=0, **options)


def test_losses_that_are_nan_for_some_particles_are_counted(options):
    """A loss that fails on a part of the posterior's range: those particles get no weight, and are counted."""
    y = np.random.default_rng(0).normal(1.0, 1.0, 50)
    model = cb.GibbsModel(
        lambda theta, datum: jnp.where(theta[0] < 0.8, jnp.nan, 0.5 * (datum - theta[0]) ** 2),
        cb.priors.Normal(scale=3.0),
        dim=1,
    )
    with pytest.warns(cb.CalibrationWarning, match="NaN at"):
        found = cb.calibrate(model, y, region=cb.regions.Interval(0), seed=0, eta_init=0.5, **options)
    assert np.isfinite(found.draws).all()
    assert (found.draws >= 0.8).all()
    # Two standard errors below the mean, so that a few particles would go there if they could.
    sd = (found.eta * len(y)) ** -0.5
    assert found.draws.min() < 0.8 + 0.3 * sd


@pytest.mark.slow
def test_printed_initial_weights_square_the_posterior():
    """As printed, draws of the posterior are weighted by its density: about twice the learning rate (section 2.3)."""
    model, data = problem()
    common = {"seed": 0, "max_iterations": 1, "region": "box"} | SMALL
    spread = {}
    for weights in ("uniform", "density"):
        sampler = cb.SMC(n_particles=2000, initial_weights=weights)
        with pytest.warns(cb.CalibrationWarning):
            spread[weights] = cb.calibrate(model, data, **common | {"sampler": sampler, "tolerance": 0.005}).draws.std(
                0
            )
    # Half the variance, to about 10% with 2,000 particles of which some 1,700 count.
    np.testing.assert_allclose(spread["density"] ** 2 / spread["uniform"] ** 2, 0.5, atol=0.12)


@pytest.mark.filterwarnings("ignore:calibration. .* not audited. the prior cannot be sampled.$")
def test_start_from_draws(result, options):
    """A posterior sample from elsewhere replaces the start from the prior, which may then lack `sample`."""

    class Flat:
        def log_prob(self, theta):
            return jnp.zeros(())

    _, data = problem()
    rng = np.random.default_rng(0)
    draws = result.draws[rng.integers(0, 200, 300)] + rng.normal(0, 0.05, (300, 2))
    found = cb.calibrate(cb.GibbsModel(cb.losses.Quantile(0.5), Flat()), data, draws=draws, seed=0, **options)
    assert found.converged
    assert abs(np.log(found.eta / result.eta)) < 4 * np.hypot(found.eta_se, result.eta_se) / result.eta


@pytest.mark.slow
def test_start_from_the_prior_agrees(result):
    """Another sampler, by another way, on the same counts."""
    model, data = problem()
    sampler = cb.SMC(n_particles=200, ess_target=0.99, start="prior", resampling="systematic", n_moves=2)
    found = cb.calibrate(model, data, seed=3, **SMALL | {"bootstrap": result.counts, "sampler": sampler})
    assert abs(np.log(found.eta / result.eta)) < 4 * result.eta_se / result.eta


def test_result_survives_copying_and_pickling(result):
    for copied in (copy.deepcopy(result.coverage), pickle.loads(pickle.dumps(result.coverage))):
        assert copied == result.coverage
        assert copied.interval == result.coverage.interval
    for copied in (copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
        assert copied.eta == result.eta
        assert copied.summary() == result.summary()
        np.testing.assert_array_equal(copied.curve.coverage(0.9), result.curve.coverage(0.9))


@pytest.mark.parametrize("seed", range(6))
def test_few_rows_are_solved_too(seed):
    """With 100 rows coverage is the level itself all the way from the fifth critical eta to the sixth."""
    model, data = problem()
    found = cb.calibrate(model, data, seed=seed, sampler="transport", **AUTO)
    assert found.converged
    assert found.coverage == 0.95


def test_final_draws_hardly_repeat(result):
    """They come from several snapshots of the particles, so resampling to equal weights need not repeat them."""
    assert len(np.unique(result.draws, axis=0)) > 0.92 * len(result.draws)


@pytest.mark.parametrize("at", [1, 2])
def test_interrupt_at_the_curve_keeps_the_result(monkeypatch, options, at):
    """The search has assessed a learning rate by then, and that must not be lost."""
    model, data = problem()
    loop = sys.modules["calibayes.solve.loop"]
    draw, calls = loop.local_curve, []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == at:
            os.kill(os.getpid(), signal.SIGINT)
        return draw(*args)

    monkeypatch.setattr(loop, "local_curve", interrupted)
    try:
        with pytest.warns(cb.CalibrationWarning, match="interrupted"):
            stopped = cb.calibrate(model, data, seed=0, **options)
    except KeyboardInterrupt:  # Or pytest would take it for its own.
        pytest.fail("the result was lost")
    assert len(calls) >= at
    assert not stopped.converged
    assert (stopped.eta, stopped.coverage) in [(record.eta, record.coverage) for record in stopped.trace]
    assert np.isfinite(stopped.draws).all()


def test_interrupt_in_the_audit_keeps_the_result(monkeypatch):
    """What was found and not yet audited is handed over, and said to be so."""
    model, data = problem()

    def interrupted(*args):
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(sys.modules["calibayes.solve.fallback"], "audit", interrupted)
    with pytest.warns(cb.CalibrationWarning, match="interrupted"):
        stopped = cb.calibrate(model, data, seed=0, **AUTO)
    assert not stopped.converged
    assert abs(stopped.coverage - 0.95) < 0.005
    assert 0 < stopped.eta_se < np.inf


def test_cap_on_rungs_is_the_cap():
    from calibayes.samplers.initial import pilot
    from targets import gamma_target

    target, *_ = gamma_target(n=12)
    sampler = cb.SMC(n_particles=200, ess_target=0.9999, max_steps=3)
    state = sampler.init(jax.random.key(0), target, pilot(jax.random.key(1), target, 1.0, 1000, None), 1.0)
    state = sampler.move(target, state, 5.0, lambda _: None)
    reach = sampler.info(state, 5.0)
    assert reach.steps == 3
    assert reach.not_reached.all()


def test_rows_far_from_the_data_are_started_from_the_prior():
    """At eta 1 the rows of a badly scaled problem lie hundreds of posterior widths apart: no walk gets there.

    With y of scale 300 and unit-variance loss the calibrated eta is near 300^-2, to within the bootstrap's error.
    """
    rng = np.random.default_rng(0)
    y = 300 * rng.normal(size=50)
    model = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=1e4))
    options = SMALL | {"search": cb.RobbinsMonro(gain=0.1)}
    found = cb.calibrate(model, (np.ones((50, 1)), y), region=cb.regions.Interval(0), seed=0, eta_init=0.01, **options)
    assert found.converged
    assert abs(np.log(found.eta * y.var())) < 4 * found.eta_se / found.eta + 0.1


@pytest.mark.parametrize("unit", [300.0, 1e-6])
def test_no_hint_of_the_scale_is_needed(unit):
    """In other units eta is another number, and the posterior the same. Nobody need tell the search where to begin."""
    _, (x, y) = problem()
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0 * unit))
    found = cb.calibrate(model, (x, unit * y), seed=0, **AUTO)
    usual = cb.calibrate(problem()[0], (x, y), seed=0, **AUTO)
    assert found.converged
    # The same counts: what is between them is rounding, and the Monte Carlo error of paths that it parted.
    assert abs(np.log(unit * found.eta / usual.eta)) < 0.5 * usual.eta_se / usual.eta
    np.testing.assert_allclose(found.draws.std(0) / unit, usual.draws.std(0), rtol=0.1)


def test_too_narrow_for_float32_is_said(options):
    _, (x, y) = problem()
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=1e7))
    with pytest.raises(ValueError, match="too narrow for float32"):
        cb.calibrate(model, (x, 1e6 + y), seed=0, **options)


def test_bad_estimate_is_said(options):
    model, data = problem()
    for estimate in (lambda draws, weights: jnp.zeros(3), lambda draws, weights: jnp.full(2, jnp.nan)):
        with pytest.raises(ValueError, match="estimate must be 2 finite numbers"):
            cb.calibrate(model, data, seed=0, estimate=estimate, **options)


@pytest.mark.parametrize("options", [AUTO | {"sampler": "transport"}, SMALL], ids=["transport", "smc"])
def test_undefined_functional_is_said(options):
    model, data = problem()
    region = cb.regions.Functional(lambda theta: jnp.log(theta[0] - 2.0))
    with pytest.warns(cb.CalibrationWarning, match="level is NaN on"):
        found = cb.calibrate(model, data, seed=0, region=region, max_iterations=2, **options)
    assert not found.converged


def test_one_sided_search_gives_a_way_out():
    model, (x, y) = problem()
    with pytest.warns(cb.CalibrationWarning, match=r"eta must be larger still; start there \(eta_init=\)"):
        cb.calibrate(model, (x, 1e-3 * y), seed=0, max_iterations=3, **SMALL)


def test_an_unknown_error_of_eta_is_said(result, monkeypatch):
    monkeypatch.setattr(Curve, "eta_se", lambda self, level=None: float("inf"))
    found = dataclasses.replace(result.calibration.found, concerns=[], converged=True)
    again = result.calibration.loop.guarded(lambda: found)
    assert again.concerns == [UNKNOWN_ERROR]
    assert UNKNOWN_ERROR in again.message
    with pytest.warns(cb.CalibrationWarning, match="the error of eta is unknown"):
        assert all(UNKNOWN_ERROR in message for message in result.intervals(0.9).messages)


def test_a_search_that_met_the_level_elsewhere_says_so(result):
    loop, found = result.calibration.loop, result.calibration.found
    low = dataclasses.replace(found, coverage=Coverage(10, 100), eta=1e-5)
    assert max(record.coverage for record in loop.trace) >= 0.95
    assert "coverage does not fall steadily" in seek._unreachable(loop, low)
    assert "do not shrink with eta" in seek._unreachable(loop, dataclasses.replace(found, coverage=Coverage(99, 100)))
