"""Cox's partial likelihood against its definition on repeated rows, and against published fits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._core.counts_risk import scores_of

N, K = 37, 3

REMISSION = cb.datasets.remission()
# lifelines 0.30.3: coefficients and standard errors of CoxPHFitter().fit(frame, "t", "status") on these data; and,
# after adding i / 1000 weeks to the time of row i, so that there are no ties, with robust=True.
LIFELINES_COEF, LIFELINES_SE = [1.386075497624978, 1.690890352191172], [0.42479839112625045, 0.33589758677531256]
UNTIED_COEF, UNTIED_ROBUST_SE = [1.3274950192513282, 1.7248133181128387], [0.3421084158994881, 0.3453447840618903]


def partial_likelihood(theta, data, counts, ties):
    """Return minus the log partial likelihood of the rows repeated `counts` times, by its definition."""
    rows = np.repeat(np.arange(len(counts)), counts)
    x, time, event, entry, strata = (values[rows] for values in data)
    predictor, risk = x @ theta, 0.0
    for stratum, t in {(s, t) for s, t, e in zip(strata, time, event, strict=True) if e}:
        at_risk = (strata == stratum) & (time >= t) & (entry < t)
        events = (strata == stratum) & (time == t) & (event == 1)
        total, of_events, d = np.exp(predictor[at_risk]).sum(), np.exp(predictor[events]).sum(), events.sum()
        share = of_events / d if ties == "efron" else 0.0
        risk += sum(np.log(total - k * share) for k in range(d)) - predictor[events].sum()
    return risk


def make_data(truncated, stratified, n=N):
    rng = np.random.default_rng(0)
    time = np.ceil(rng.exponential(size=n) * 6) / 2
    entry = np.floor(time * rng.uniform(size=n) * 1.9) / 2 if truncated else np.zeros(n)
    strata = rng.integers(3, size=n) if stratified else np.zeros(n, int)
    return rng.normal(size=(n, K)), time, (rng.uniform(size=n) < 0.6) * 1.0, entry, strata


def risk_function(risk, data, dtype):
    prepared = risk.prepare(risk.check(data))
    cast = lambda leaf: jnp.asarray(leaf, dtype) if leaf.dtype.kind == "f" else jnp.asarray(leaf)
    prepared = jax.tree.map(cast, prepared)
    return lambda theta, counts: risk(jnp.asarray(theta, dtype), prepared, jnp.asarray(counts, dtype)), prepared


def test_times_may_be_unsigned_integers():
    x, time, event, entry, _ = make_data(True, False)
    value_at = lambda dtype: risk_function(
        cb.losses.Cox(), (x, (2 * time).astype(dtype), event, (2 * entry).astype(dtype)), np.float32
    )[0](np.ones(K), np.ones(N))
    np.testing.assert_allclose(value_at(np.uint16), value_at(np.float64), rtol=1e-6)


@pytest.mark.parametrize("ties", ["efron", "breslow"])
@pytest.mark.parametrize(("truncated", "stratified"), [(False, False), (True, True)])
def test_risk_is_that_of_repeated_rows(ties, truncated, stratified):
    """Up to a constant, which differences of risks do not contain; in both float types."""
    data, rng = make_data(truncated, stratified), np.random.default_rng(1)
    counts = rng.poisson(1.0, N)
    thetas = 0.7 * rng.normal(size=(3, K))
    exact = np.array([partial_likelihood(theta, data, counts, ties) for theta in thetas])
    with jax.enable_x64(True):
        risk, _ = risk_function(cb.losses.Cox(ties), data, np.float64)
        values = np.array([risk(theta, counts) for theta in thetas])
        np.testing.assert_allclose(values - values[0], exact - exact[0], atol=1e-8)
    single, _ = risk_function(cb.losses.Cox(ties), data, np.float32)
    values = np.array([single(theta, counts) for theta in thetas])
    np.testing.assert_allclose(values - values[0], exact - exact[0], atol=3e-4 if truncated else 3e-5)


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_form_with_fast_derivatives_is_the_same_function(ties):
    data, rng = make_data(True, True), np.random.default_rng(2)
    risk = cb.losses.Cox(ties)
    with jax.enable_x64(True):
        of_rows, prepared = risk_function(risk, data, np.float64)
        theta, counts = jnp.asarray(rng.normal(size=K)), jnp.asarray(rng.exponential(size=N))
        expected, derivatives = jax.value_and_grad(of_rows, (0, 1))(theta, counts)
        value, fast = jax.value_and_grad(risk.differentiable_risk, (0, 2))(theta, prepared, counts)
        np.testing.assert_allclose(value, expected, rtol=1e-12)
        for a, b in zip(derivatives, fast, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-10)


def test_risk_of_many_observations_is_accurate_in_single_precision():
    """60,000 hazards are added up; without compensation the sum of the logarithms is wrong by more than 0.1."""
    rng, n = np.random.default_rng(3), 60_000
    data = (rng.normal(size=(n, 1)), rng.exponential(size=n), np.ones(n))
    values = []
    for dtype in (np.float32, np.float64):
        with jax.enable_x64(dtype == np.float64):
            risk, _ = risk_function(cb.losses.Cox("breslow"), data, dtype)
            values.append(float(jax.jit(risk)([0.03], np.ones(n)) - jax.jit(risk)([0.0], np.ones(n))))
    assert abs(values[0] - values[1]) < 0.02


def test_risk_is_finite_at_extreme_parameters():
    """Linear predictors of several hundred, as those of draws from a wide prior."""
    cox = cb.losses.Cox()
    risk, data = risk_function(cox, make_data(False, False), np.float32)
    theta = jnp.asarray([200.0, -300.0, 100.0])
    value, derivative = jax.value_and_grad(cox.differentiable_risk)(theta, data, jnp.ones(N))
    assert np.isfinite(risk(theta, np.ones(N)))
    assert np.isfinite(value)
    assert np.isfinite(derivative).all()


def fit_by_newton(ties, data):
    """Return the estimate, its covariance by the Hessian, and the scores of the observations there."""
    risk = cb.losses.Cox(ties)
    with jax.enable_x64(True):
        _, prepared = risk_function(risk, data, np.float64)
        of_theta = lambda theta: risk.differentiable_risk(theta, prepared, jnp.ones(42))
        theta, derivatives = (
            jnp.zeros(2),
            jax.jit(lambda theta: (jax.grad(of_theta)(theta), jax.hessian(of_theta)(theta))),
        )
        for _ in range(8):
            gradient, hessian = derivatives(theta)
            theta = theta - jnp.linalg.solve(hessian, gradient)
        return (
            np.asarray(theta),
            np.linalg.inv(hessian),
            np.asarray(scores_of(risk, prepared)(theta, jnp.ones(42), None)),
        )


def test_estimates_and_standard_errors_are_those_of_lifelines():
    theta, covariance, _ = fit_by_newton("efron", REMISSION)
    np.testing.assert_allclose(theta, LIFELINES_COEF, rtol=1e-5)
    np.testing.assert_allclose(np.sqrt(np.diagonal(covariance)), LIFELINES_SE, rtol=1e-4)


@pytest.mark.parametrize(("ties", "tolerance"), [("breslow", 1e-5), ("efron", 0.05)])
def test_derivatives_in_counts_give_the_robust_standard_errors_of_lifelines(ties, tolerance):
    """With Efron's ties they also contain the change of the correction for ties, a few percent with 42 patients."""
    x, time, event = REMISSION
    theta, covariance, scores = fit_by_newton(ties, (x, time + np.arange(42) / 1000, event))
    np.testing.assert_allclose(theta, UNTIED_COEF, rtol=1e-5)
    robust = np.sqrt(np.diagonal(covariance @ scores.T @ scores @ covariance))
    np.testing.assert_allclose(robust, UNTIED_ROBUST_SE, rtol=tolerance)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({1: -np.ones(N)}, "time must be positive; 37"),
        ({2: np.zeros(N)}, "event is 0 for all"),
        ({2: np.arange(N)}, "event must be 0"),
        ({3: np.full(N, 99.0)}, "entry must be at least 0 and before time; in 37"),
        ({1: np.ones((N, 2))}, "time must have one dimension"),
        ({0: np.ones(N)}, "X must have two dimensions"),
        ({0: np.full((N, 1), np.nan)}, "must be finite"),
    ],
)
def test_invalid_data_are_an_error(change, message):
    data = [change.get(i, part) for i, part in enumerate(make_data(False, False))]
    with pytest.raises(ValueError, match=message):
        cb.calibrate(cb.GibbsModel(cb.losses.Cox(), cb.priors.Normal()), tuple(data), progress=False)


def test_survey_weights_need_ties_of_breslow():
    model = cb.GibbsModel(cb.losses.Cox(), cb.priors.Normal(scale=10.0))
    with pytest.raises(ValueError, match=r'weights that are not integers.*Use ties="breslow"'):
        cb.calibrate(model, REMISSION, weights=np.full(42, 2.5), progress=False)
    cb.losses.Cox().check_weights(are_repetitions=True)
    cb.losses.Cox("breslow").check_weights(are_repetitions=False)


def test_calibration_has_robust_intervals():
    """About those of lifelines. The bootstrap of 42 patients is wider than the sandwich, by up to a third."""
    model = cb.GibbsModel(cb.losses.Cox("breslow"), cb.priors.Normal(scale=10.0))
    options = {"bootstrap": 200, "sampler": "transport", "progress": False, "names": ["placebo", "log wbc"]}
    result = cb.calibrate(model, REMISSION, **options)
    assert result.converged
    widths = np.ptp(result.intervals().bounds, 1) / 3.92
    assert (np.abs(np.log(widths / UNTIED_ROBUST_SE)) < np.log(1.6)).all()


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["smc", "mcmc", "auto"])
@pytest.mark.parametrize("method", ["gpc", "matching", "gpc-studentized", "lyddon-holmes-walker", "q-posterior"])
def test_samplers_and_methods_agree(sampler, method):
    """Within the error of eta for the same method; SMC and MCMC with the search rule of transport."""
    model = cb.GibbsModel(cb.losses.Cox("breslow"), cb.priors.Normal(scale=10.0))
    options = {"bootstrap": 200, "progress": False, "method": method, "region": "box"}
    expected = cb.calibrate(model, REMISSION, sampler="transport", **options)
    search = None if sampler == "auto" else cb.Bracket()
    result = cb.calibrate(model, REMISSION, sampler=sampler, search=search, **options)
    error = np.hypot(result.eta_se / result.eta, expected.eta_se / expected.eta)
    assert abs(np.log(result.eta / expected.eta)) < 4 * error + 0.02
