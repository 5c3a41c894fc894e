"""`calibrate` as a whole: reproducibility, limits, interrupts, invalid problems, and how its parts work together."""

import os
import signal
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes.samplers.base import Sampler
from calibayes.solve import problem as problem_module
from calibayes.solve import verify as verify_module
from calibayes.solve.solver import SolverConfig
from example_results import run_findings

SMC = {"bootstrap": 100, "sampler": cb.SMC(n_particles=200, ess_target=0.99), "progress": False, "tolerance": 0.02}
"""GPC-SMC."""
AUTO = {"bootstrap": 100, "progress": False}
"""The default algorithm."""
ALGORITHMS = {"auto": AUTO, "smc": SMC}


def make_problem(n=60, seed=0):
    x, y = cb.datasets.median_regression(n, seed)
    return cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0)), (x, y)


def codes(result):
    return [finding.code for finding in run_findings(result)]


@pytest.fixture(scope="module", params=ALGORITHMS)
def options(request):
    return ALGORITHMS[request.param]


@pytest.fixture(scope="module")
def result(options):
    model, data = make_problem()
    return cb.calibrate(model, data, seed=0, **options)


# Random numbers and scales


def test_same_seed_gives_the_same_result(result, options):
    model, data = make_problem()
    same = cb.calibrate(model, data, seed=jax.random.key(0), **options)
    assert same.eta == result.eta
    np.testing.assert_array_equal(same.draws, result.draws)
    other = cb.calibrate(model, data, seed=1, **options)
    assert other.eta != result.eta


@pytest.mark.parametrize("seed", range(6))
def test_coverage_is_exact_with_few_replicates(seed):
    """With 100 replicates coverage equals the level from the fifth critical eta to the sixth."""
    model, data = make_problem()
    result = cb.calibrate(model, data, seed=seed, sampler="transport", **AUTO)
    assert result.converged
    assert result.coverage == 0.95


@pytest.mark.parametrize("unit", [300.0, 1e-6])
def test_default_start_does_not_depend_on_the_units(unit):
    """In other units eta is another number, and the posterior is the same."""
    model, (x, y) = make_problem()
    scaled_model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0 * unit))
    scaled = cb.calibrate(scaled_model, (x, unit * y), seed=0, **AUTO)
    usual = cb.calibrate(model, (x, y), seed=0, **AUTO)
    assert scaled.converged
    # The counts are the same. Rounding differs, and with it the Monte Carlo errors of the two runs.
    assert abs(np.log(unit * scaled.eta / usual.eta)) < 0.5 * usual.eta_se / usual.eta
    np.testing.assert_allclose(scaled.draws.std(0) / unit, usual.draws.std(0), rtol=0.1)


def test_replicates_far_from_the_data_are_started_from_the_prior():
    """At eta = 1 the replicates of a badly scaled problem lie hundreds of posterior widths apart, too far for MCMC.

    With y of scale 300 and a loss for unit variance the calibrated eta is near 300^-2, to within the bootstrap's error.
    """
    y = 300 * np.random.default_rng(0).normal(size=50)
    model = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=1e4))
    settings = SMC | {"search": cb.RobbinsMonro(gain=0.1), "region": cb.regions.Interval(0), "eta_init": 0.01}
    result = cb.calibrate(model, (np.ones((50, 1)), y), seed=0, **settings)
    assert result.converged
    assert abs(np.log(result.eta * y.var())) < 4 * result.eta_se / result.eta + 0.1


# Starts


class UnsampledPrior:
    """A flat prior, which cannot be sampled."""

    def log_prob(self, theta):
        return jnp.zeros(())


@pytest.mark.filterwarnings("ignore:calibration. Not audited. the prior cannot be sampled")
def test_given_draws_replace_the_start_from_the_prior(result, options):
    _, data = make_problem()
    rng = np.random.default_rng(0)
    draws = result.draws[rng.integers(0, 200, 300)] + rng.normal(0, 0.05, (300, 2))
    model = cb.GibbsModel(cb.losses.Quantile(0.5), UnsampledPrior())
    from_draws = cb.calibrate(model, data, draws=draws, seed=0, **options)
    assert from_draws.converged
    assert codes(from_draws) == ([cb.Code.NOT_AUDITED] if options is AUTO else [])
    difference = abs(np.log(from_draws.eta / result.eta))
    assert difference < 4 * np.hypot(from_draws.eta_se, result.eta_se) / result.eta


@pytest.mark.slow
def test_start_from_the_prior_agrees(result):
    """Another sampler with another start, on the same counts."""
    model, data = make_problem()
    sampler = cb.SMC(n_particles=200, ess_target=0.99, start="prior", resampling="systematic", n_moves=2)
    other = cb.calibrate(model, data, seed=3, **SMC | {"bootstrap": result.counts, "sampler": sampler})
    assert abs(np.log(other.eta / result.eta)) < 4 * result.eta_se / result.eta


@pytest.mark.slow
def test_initial_weights_as_printed_square_the_posterior():
    """The paper prints draws weighted by their posterior density: about twice the learning rate (section 2.3)."""
    model, data = make_problem()
    settings = {"seed": 0, "max_iterations": 1, "region": "box"} | SMC
    sd = {}
    for weights in ("uniform", "density"):
        sampler = cb.SMC(n_particles=2000, initial_weights=weights)
        with pytest.warns(cb.CalibrationWarning):
            stopped = cb.calibrate(model, data, **settings | {"sampler": sampler, "tolerance": 0.005})
        sd[weights] = stopped.draws.std(0)
    # Half the variance, to about 10% with 2,000 particles of which about 1,700 are effective.
    np.testing.assert_allclose(sd["density"] ** 2 / sd["uniform"] ** 2, 0.5, atol=0.12)


# Limits


def test_stochastic_search_stops_at_the_iteration_limit():
    model, data = make_problem()
    with pytest.warns(cb.NotConvergedWarning, match="stopped after 2 iterations"):
        stopped = cb.calibrate(model, data, seed=0, max_iterations=2, **SMC | {"tolerance": 0.005})
    assert stopped.status is cb.Status.MAX_ITERATIONS
    assert not stopped.converged
    assert cb.Code.MAX_ITERATIONS in codes(stopped)
    assert len(stopped.trace) == 2
    assert "NOT CONVERGED" in repr(stopped)
    assert "NOT CONVERGED" in stopped.summary()


def test_transport_stops_at_the_iteration_limit():
    model, data = make_problem()
    with pytest.warns(cb.NotConvergedWarning, match="stopped after 1 iterations"):
        stopped = cb.calibrate(model, data, seed=0, eta_init=8.0, max_iterations=1, sampler="transport", **AUTO)
    assert stopped.status is cb.Status.MAX_ITERATIONS
    # The first evaluation, and another one after the refinement.
    assert len(stopped.trace) <= 2
    assert stopped.eta == stopped.trace[0].eta == 8.0
    assert "NOT CONVERGED" in repr(stopped)


def test_limit_of_temperature_steps_ends_the_search():
    model, data = make_problem()
    limited = cb.SMC(n_particles=200, ess_target=0.9999, max_steps=1)
    with pytest.warns(cb.NotConvergedWarning, match="did not reach eta"):
        stopped = cb.calibrate(model, data, seed=0, **SMC | {"sampler": limited, "tolerance": 0.005})
    assert stopped.status is cb.Status.NOT_REACHED
    assert cb.Code.NOT_REACHED in codes(stopped)
    assert stopped.eta == 1.0


def test_one_sided_search_suggests_a_remedy():
    model, (x, y) = make_problem()
    with pytest.warns(cb.NotConvergedWarning, match=r"Eta must be larger still: start there \(eta_init=\)"):
        cb.calibrate(model, (x, 1e-3 * y), seed=0, max_iterations=3, **SMC)


# Interrupts


class InterruptedSMC(cb.SMC):
    """A sampler that is interrupted by SIGINT on its way to the third learning rate."""

    def move(self, target, state, eta, on_step):
        def interrupted_step(share):
            on_step(share)
            if eta > 1.05:
                os.kill(os.getpid(), signal.SIGINT)

        return super().move(target, state, eta, interrupted_step)


class InterruptedTransport(cb.Transport):
    """A sampler that is interrupted by SIGINT on its way to the second learning rate."""

    def move(self, target, state, eta, on_step):
        os.kill(os.getpid(), signal.SIGINT)
        return super().move(target, state, eta, on_step)


@pytest.mark.parametrize(
    "changes",
    [
        {"sampler": InterruptedSMC(n_particles=200, ess_target=0.99), "tolerance": 0.005},
        {"sampler": InterruptedTransport(), "eta_init": 8.0},
    ],
    ids=["smc", "transport"],
)
def test_interrupt_returns_the_best_result_so_far(changes):
    model, data = make_problem()
    assert threading.current_thread() is threading.main_thread()
    with pytest.warns(cb.NotConvergedWarning, match="was interrupted"):
        stopped = cb.calibrate(model, data, seed=0, **SMC | changes)
    assert stopped.status is cb.Status.INTERRUPTED
    assert len(stopped.trace) >= 1
    closest = min(stopped.trace, key=lambda record: (abs(record.coverage - 0.95), -record.iteration))
    assert stopped.eta == closest.eta
    assert len(stopped.draws) >= 100
    assert np.isfinite(stopped.draws).all()


@pytest.mark.parametrize(("options", "sampler_class"), [(AUTO, cb.Transport), (SMC, Sampler)], ids=ALGORITHMS)
def test_interrupt_before_the_first_evaluation_raises(monkeypatch, options, sampler_class):
    model, data = make_problem()

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(sampler_class, "draw_initial", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cb.calibrate(model, data, seed=0, **options)


@pytest.mark.parametrize("number", [1, 2])
def test_interrupt_during_a_curve_keeps_the_result(monkeypatch, options, number):
    """The search has evaluated a learning rate by then, which must not be lost."""
    model, data = make_problem()
    local_curve, calls = problem_module.local_curve, []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == number:
            os.kill(os.getpid(), signal.SIGINT)
        return local_curve(*args)

    monkeypatch.setattr(problem_module, "local_curve", interrupted)
    try:
        # From a distant learning rate every algorithm needs more than one curve.
        with pytest.warns(cb.NotConvergedWarning, match="interrupted"):
            stopped = cb.calibrate(model, data, seed=0, **options | {"eta_init": 5.0})
    except KeyboardInterrupt:  # Pytest would take it for its own.
        pytest.fail("the result was lost")
    assert len(calls) >= number
    assert stopped.status is cb.Status.INTERRUPTED
    assert (stopped.eta, stopped.coverage) in [(record.eta, record.coverage) for record in stopped.trace]
    assert np.isfinite(stopped.draws).all()


def test_interrupt_during_the_audit_keeps_the_result(monkeypatch):
    model, data = make_problem()

    def interrupted(*args):
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(verify_module, "audit", interrupted)
    with pytest.warns(cb.NotConvergedWarning, match="The audit did not end"):
        stopped = cb.calibrate(model, data, seed=0, **AUTO)
    assert stopped.status is cb.Status.INTERRUPTED
    assert codes(stopped)[-1] is cb.Code.NOT_AUDITED
    assert abs(stopped.coverage - 0.95) < 0.005
    assert 0 < stopped.eta_se < np.inf


# Problems with the model


def test_nan_losses_are_counted(options):
    """The loss fails in a part of the posterior's range: particles there get no weight, and are counted."""
    y = np.random.default_rng(0).normal(1.0, 1.0, 50)
    model = cb.GibbsModel(
        lambda theta, datum: jnp.where(theta[0] < 0.8, jnp.nan, 0.5 * (datum - theta[0]) ** 2),
        cb.priors.Normal(scale=3.0),
        dim=1,
    )
    with pytest.warns(cb.CalibrationWarning, match="NaN at"):
        result = cb.calibrate(model, y, region=cb.regions.Interval(0), seed=0, eta_init=0.5, **options)
    (finding,) = [finding for finding in result.diagnostics if finding.code is cb.Code.INVALID_LOSS]
    assert finding.count > 0
    assert np.isfinite(result.draws).all()
    assert (result.draws >= 0.8).all()
    # The bound is two standard errors below the mean, so that some particles would go there if they could.
    sd = (result.eta * len(y)) ** -0.5
    assert result.draws.min() < 0.8 + 0.3 * sd


def test_posterior_too_narrow_for_float32_is_computed_in_double_precision():
    _, (x, y) = make_problem()
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=1e7))
    near_zero = cb.calibrate(model, (x, y), seed=0, **AUTO)
    assert cb.Code.DOUBLE_PRECISION not in codes(near_zero)
    result = cb.calibrate(model, (x, 1e6 + y), seed=0, **AUTO)
    assert result.converged
    assert cb.Code.DOUBLE_PRECISION in codes(result)
    assert result.draws.dtype == np.float64
    # The same replicates, and other draws: a small part of the error of eta.
    assert abs(result.eta - near_zero.eta) < 0.5 * near_zero.eta_se
    sd = near_zero.draws.std(0)
    assert (np.abs(result.estimate - [1e6, 0] - near_zero.estimate) < 0.1 * sd).all()
    # Further questions are answered in double precision, too.
    assert (np.abs(result.intervals().bounds - near_zero.intervals().bounds - [[1e6], [0]]) < 0.3 * sd[:, None]).all()


def test_time_limit_before_any_answer_raises():
    model, data = make_problem()
    with pytest.raises(TimeoutError, match=r"time limit of 1e-06 s \(max_seconds=\) passed before the coverage"):
        cb.calibrate(model, data, max_seconds=1e-6, **AUTO)


def test_estimate_must_be_a_finite_vector(options):
    model, data = make_problem()
    for estimate in (lambda draws, weights: jnp.zeros(3), lambda draws, weights: jnp.full(2, jnp.nan)):
        with pytest.raises(ValueError, match="estimate must be 2 finite numbers"):
            cb.calibrate(model, data, seed=0, estimate=estimate, **options)


@pytest.mark.parametrize("options", [AUTO | {"sampler": "transport"}, SMC], ids=["transport", "smc"])
def test_undefined_functional_is_reported(options):
    model, data = make_problem()
    region = cb.regions.Functional(lambda theta: jnp.log(theta[0] - 2.0))
    with pytest.warns(cb.CalibrationWarning, match="level is NaN on"):
        result = cb.calibrate(model, data, seed=0, region=region, max_iterations=2, **options)
    assert not result.converged
    (finding,) = [finding for finding in result.diagnostics if finding.code is cb.Code.LEVEL_UNDEFINED]
    assert finding.count > 0


def test_unknown_standard_error_is_reported(result, monkeypatch):
    """For every interval that has none; that of the joint eta is not reported for the intervals."""
    monkeypatch.setattr("calibayes._core.curve.Curve.eta_se", lambda self, level=None: float("inf"))
    monkeypatch.setattr("calibayes.solve.solver.CONFIG", SolverConfig(slope_range=0.0))
    with pytest.warns(cb.CalibrationWarning, match="The standard error of eta could not be computed"):
        again = result.at()
    assert again.converged
    assert cb.Code.ETA_SE_UNKNOWN in codes(again)
    assert np.isinf(again.eta_se)
    with pytest.warns(cb.CalibrationWarning, match="The standard error of eta could not be computed"):
        intervals = result.intervals(0.9)
    for findings in intervals.diagnostics:
        assert cb.Code.ETA_SE_UNKNOWN in [finding.code for finding in findings]
