"""The weighted risk against sums in float64, for every loss and for many observations."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import calibayes as cb
from calibayes._core import risk
from calibayes._core import target as target_module
from calibayes._core.counts import PoissonSpec
from calibayes._core.target import Target, log_density, make_target

PRIOR = cb.priors.Normal(0.5, 10.0)
LOSSES = {
    "quantile": (cb.losses.Quantile(0.2), lambda f, y: (y - f) * (0.2 - (y < f))),
    "absolute": (cb.losses.Absolute(), lambda f, y: np.abs(y - f)),
    "squared": (cb.losses.Squared(), lambda f, y: (y - f) ** 2 / 2),
    "huber": (cb.losses.Huber(2.0), lambda f, y: np.where(abs(y - f) < 2, (y - f) ** 2 / 2, 2 * abs(y - f) - 2)),
    "expectile": (cb.losses.Expectile(0.8), lambda f, y: np.where(y < f, 0.2, 0.8) * (y - f) ** 2),
    "hinge": (cb.losses.Hinge(), lambda f, y: 2 * np.maximum(0, 1 - y * f)),
    "logistic": (cb.losses.Logistic(), lambda f, y: np.logaddexp(0, -y * f)),
    "own": (cb.losses.Linear(lambda f, y: jnp.exp(0.3 * (f - y))), lambda f, y: np.exp(0.3 * (f - y))),
}
risk_of = eqx.filter_jit(Target.risk)


def make_data(name, n, k, n_replicates=3, seed=0):
    """Return skewed covariates, labels or values of y, and counts with zeros."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(n), rng.exponential(size=(n, k - 1))])
    y = 1 + x @ rng.normal(size=k) / k + rng.standard_t(4, size=n)
    y = np.where(y > np.median(y), 1.0, -1.0) if name in ("hinge", "logistic") else y
    return x, y, rng.multinomial(n, np.full(n, 1 / n), size=n_replicates)


def make_theta(k, n_replicates, m=5, seed=1):
    return np.random.default_rng(seed).normal(0.3, 0.7, size=(k, n_replicates, m)).astype(np.float32)


def direct_risk(rho, x, y, counts, theta):
    with_data = np.concatenate([np.ones((1, len(y))), counts])
    losses = rho(np.einsum("nk,kbm->nbm", x, theta.astype(np.float64)), y[:, None, None])
    return np.einsum("bn,nbm->bm", with_data, losses)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(("n", "k"), [(21, 3), (16, 1), (43, 20)], ids=["odd", "one parameter", "matrix product"])
def test_risk_matches_direct_sum(name, n, k):
    """Sums of n terms in float32: a relative error of about 1e-7 sqrt(n) of the largest risk, and 1e-5 allowed."""
    loss, rho = LOSSES[name]
    x, y, counts = make_data(name, n, k)
    theta = make_theta(k, 4)
    target = make_target(cb.GibbsModel(loss, PRIOR), (x, y), counts, k)
    assert (target.dim, target.n_replicates, target.linear) == (k, 4, True)
    reference = np.broadcast_to(np.asarray(target.reference)[:, None, None], theta.shape)
    total = direct_risk(rho, x, y, counts, theta)
    expected = total - direct_risk(rho, x, y, counts, reference)
    np.testing.assert_allclose(risk_of(target, jnp.asarray(theta)), expected, atol=1e-5 * np.abs(total).max())


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "drawn"])
@pytest.mark.parametrize("k", [3, 70], ids=["unrolled", "matrix product"])
@pytest.mark.parametrize("name", [*LOSSES, "generic"])
def test_risk_does_not_depend_on_the_padding(name, k, stored, on_gpu):
    """Bit for bit, also after recentring: 43 observations are stored as 48 or as 256.

    A GPU adds the terms of a longer chunk in another order.
    """
    x, y, counts = make_data(name, 43, k)
    loss = (lambda t, datum: jnp.abs(datum[1] - datum[0] @ t)) if name == "generic" else LOSSES[name][0]
    model = cb.GibbsModel(loss, PRIOR, dim=k if name == "generic" else None)
    specified = counts if stored else PoissonSpec(jax.random.key(3), 3, 43)
    theta, new = jnp.asarray(make_theta(k, 4)), jnp.asarray(make_theta(k, 1, m=1, seed=5)[:, 0, 0])
    plain, padded = (make_target(model, (x, y), specified, k, pad) for pad in (False, True))
    assert (plain.reference_loss.size, padded.reference_loss.size) == (48, 256)
    for a, b in ((plain, padded), (plain.recentre(new), padded.recentre(new))):
        expected = np.asarray(risk_of(a, theta))
        tolerance = {"rtol": 1e-5, "atol": 1e-5 * np.abs(expected).max()} if on_gpu else {"rtol": 0}
        np.testing.assert_allclose(risk_of(b, theta), expected, **tolerance)


@pytest.mark.parametrize("name", ["quantile", "hinge"])
def test_generic_loss_equals_linear_one(name):
    loss, _ = LOSSES[name]
    x, y, counts = make_data(name, 21, 3)
    theta = jnp.asarray(make_theta(3, 4))
    linear = make_target(cb.GibbsModel(loss, PRIOR), (x, y), counts, 3)
    model = cb.GibbsModel(lambda t, datum: loss.rho(datum["x"] @ t, datum["y"]), PRIOR, dim=3)
    generic = make_target(model, {"x": x, "y": y}, counts, 3).recentre(linear.reference)
    assert not generic.linear
    a, b = risk_of(linear, theta), risk_of(generic, theta)
    np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(a).max())


@pytest.mark.parametrize("name", ["quantile", "squared", "logistic", "own"])
@pytest.mark.parametrize("k", [3, 20], ids=["unrolled", "matrix product"])
def test_recentring_shifts_every_replicate_by_a_constant(name, k):
    """The constant is the risk of the new reference; at the reference itself the risk is zero, to rounding."""
    loss, rho = LOSSES[name]
    x, y, counts = make_data(name, 43, k)
    theta = make_theta(k, 4)
    target = make_target(cb.GibbsModel(loss, PRIOR), (x, y), counts, k)
    new = jnp.asarray(make_theta(k, 1, m=1, seed=5)[:, 0, 0])
    shift = risk_of(target, jnp.asarray(theta)) - risk_of(target.recentre(new), jnp.asarray(theta))
    old = np.asarray(target.reference)
    references = [np.broadcast_to(np.asarray(r)[:, None, None], (k, 4, 1)) for r in (new, old)]
    expected = direct_risk(rho, x, y, counts, references[0]) - direct_risk(rho, x, y, counts, references[1])
    scale = np.abs(direct_risk(rho, x, y, counts, theta)).max()
    np.testing.assert_allclose(shift, np.broadcast_to(expected, shift.shape), atol=1e-5 * scale)
    np.testing.assert_allclose(risk_of(target.recentre(new), jnp.asarray(references[0])), 0, atol=1e-6 * scale)


def test_target_of_one_replicate():
    x, y, counts = make_data("quantile", 21, 3)
    target = make_target(cb.GibbsModel(LOSSES["quantile"][0], PRIOR), (x, y), counts, 3)
    theta = jnp.asarray(make_theta(3, 4))
    alone = risk_of(target.replicate(2), theta[:, 2:3])
    np.testing.assert_allclose(alone[0], risk_of(target, theta)[2], rtol=1e-6, atol=1e-5)


def test_initial_reference_of_many_observations(monkeypatch):
    """Fitted to every tenth observation; to all of them if these do not determine a parameter."""
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(1000), rng.normal(size=1000)])
    y = x @ [3.0, -2.0] + rng.normal(size=1000)
    monkeypatch.setattr(target_module, "CONFIG", target_module.TargetConfig(reference_observations=100))
    np.testing.assert_allclose(target_module.initial_reference(x, y), np.linalg.lstsq(x[::10], y[::10])[0], rtol=1e-5)
    rare = np.column_stack([x, np.arange(1000) == 7])
    np.testing.assert_allclose(target_module.initial_reference(rare, y), np.linalg.lstsq(rare, y)[0], rtol=1e-5)


@pytest.mark.cpu("a GPU evaluates all replicates at once")
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("batch", [1, 3, 4])
def test_batches_of_replicates_give_the_same_risk(stored, batch, monkeypatch):
    """Eight replicates in batches of one, three or four: to rounding of the sum over 21 observations."""
    x, y, counts = make_data("quantile", 21, 3, n_replicates=7)
    model = cb.GibbsModel(LOSSES["quantile"][0], PRIOR)
    target = make_target(model, (x, y), counts if stored else PoissonSpec(jax.random.key(3), 7, 21), 3)
    theta = jnp.asarray(make_theta(3, 8))
    expected = risk_of(target, theta)
    batches = []
    slice_replicates = type(target.counts).slice_replicates
    monkeypatch.setattr(
        type(target.counts),
        "slice_replicates",
        lambda self, first, n: batches.append(n) or slice_replicates(self, first, n),
    )
    monkeypatch.setattr(risk, "CONFIG", replace(risk.CONFIG, cached_numbers=batch * 5 * theta.shape[-1]))
    batched, rounding = eqx.filter_jit(lambda t, theta: t.risk(theta))(target, theta), 21 * np.finfo(np.float32).eps
    np.testing.assert_allclose(batched, expected, rtol=0, atol=rounding * np.abs(expected).max())
    assert batches == ([batch] if batch < 4 else [])


def test_log_density_is_that_of_the_posterior():
    x, y, counts = make_data("squared", 21, 3)
    target = make_target(cb.GibbsModel(LOSSES["squared"][0], PRIOR), (x, y), counts, 3)
    theta = make_theta(3, 4)
    eta = np.array([0.5, 1.0, 2.0, 0.0], np.float32)
    particles = target.evaluate(jnp.asarray(theta))
    np.testing.assert_allclose(particles.weights, 1 / 5, rtol=1e-6)
    log_prior = (-0.5 * ((theta - 0.5) / 10.0) ** 2 - np.log(10.0 * np.sqrt(2 * np.pi))).sum(0)
    np.testing.assert_allclose(particles.log_prior, log_prior, rtol=1e-5)
    expected = -eta[:, None] * np.asarray(particles.risk) + log_prior
    np.testing.assert_allclose(log_density(particles, jnp.asarray(eta)), expected, rtol=1e-5)


def one_sided(sign):
    """Return a loss that is infinite (`sign` 1), minus infinite (-1) or NaN (nan) for predictions above y."""
    return cb.losses.Linear(lambda f, y: jnp.where(f > y, sign * jnp.inf, y - f))


@pytest.mark.parametrize("generic", [False, True])
def test_infinite_loss_of_an_absent_observation_is_ignored(generic):
    """Observation 3 is impossible at theta = 2. The replicate without it is finite; the others have density zero."""
    y = np.array([4.0, 6.0, 5.0, 1.0, 7.0])
    counts = np.array([[1, 2, 1, 0, 1], [1, 1, 1, 1, 1]])
    loss = one_sided(1)
    model = cb.GibbsModel(lambda t, d: loss.rho(t[0], d), PRIOR, dim=1) if generic else cb.GibbsModel(loss, PRIOR)
    data = y if generic else (np.ones((5, 1)), y)
    target = make_target(model, data, counts, 1)
    particles = target.evaluate(jnp.full((1, 3, 1), 2.0))
    # Relative to theta = 0, where every loss is y: five counts of -2.
    np.testing.assert_allclose(particles.risk[:, 0], [np.inf, -10, np.inf])
    density = log_density(particles, jnp.ones(3))
    assert np.isfinite(density[1, 0])
    assert (density[np.array([0, 2]), 0] == -jnp.inf).all()


@pytest.mark.parametrize("sign", [-1, np.nan])
def test_failed_loss_gives_a_risk_of_nan_and_density_zero(sign):
    """Minus infinity is a failure too, since it would win every comparison."""
    model = cb.GibbsModel(one_sided(sign), PRIOR)
    target = make_target(model, (np.ones((3, 1)), np.array([1.0, 5.0, 6.0])), np.ones((1, 3)), 1)
    particles = target.evaluate(jnp.full((1, 2, 1), 2.0))
    assert np.isnan(particles.risk).all()
    assert (log_density(particles, jnp.ones(2)) == -jnp.inf).all()


def test_infinite_loss_at_the_reference_is_ignored():
    """The initial reference zero may be impossible for an observation; risks elsewhere are finite."""
    y = np.array([-1.0, 2.0, 3.0])
    target = make_target(cb.GibbsModel(one_sided(1), PRIOR), (np.ones((3, 1)), y), np.ones((1, 3)), 1)
    risk = risk_of(target, jnp.array([[[-1.5, -2.0], [-1.5, -2.0]]]))
    assert np.isfinite(risk).all()
    np.testing.assert_allclose(risk[:, 1] - risk[:, 0], 1.5, rtol=1e-6)


def test_new_data_and_loss_parameters_do_not_recompile():
    traces = []

    @eqx.filter_jit
    def risk(target, theta):
        traces.append(1)
        return target.risk(theta)

    theta = jnp.asarray(make_theta(3, 4))
    for seed, tau in ((0, 0.2), (1, 0.6)):
        x, y, counts = make_data("quantile", 21, 3, seed=seed)
        risk(make_target(cb.GibbsModel(cb.losses.Quantile(tau), PRIOR), (x, y), counts, 3), theta)
    assert len(traces) == 1


@pytest.mark.parametrize("name", ["quantile", "squared", "hinge", "logistic"])
def test_float32_is_accurate_for_a_million_observations(name):
    """Differences of risks within a posterior are of order one; an error of 1e-2 changes a density by 1%."""
    n = 1_000_000
    x, y, counts = make_data(name, n, 2, n_replicates=1)
    y = y + 1e3 if name == "squared" else y
    loss, rho = LOSSES[name]
    fit = np.linalg.lstsq(x, y)[0]
    simplex = fit + np.array([[0, 0], [0.1, 0], [0, 0.1]])
    options = {"initial_simplex": simplex, "xatol": 1e-4, "fatol": 0.1}
    centre = minimize(lambda t: rho(x @ t, y).sum(), fit, method="Nelder-Mead", options=options).x
    target = make_target(cb.GibbsModel(loss, PRIOR), (x, y), counts, 2)
    if name != "squared":  # whose initial reference is its minimum
        target = target.recentre(jnp.asarray(centre, float))
    theta = (centre + np.random.default_rng(2).normal(size=(5, 2)) / np.sqrt(n)).T.astype(np.float32)
    risk = np.asarray(risk_of(target, jnp.asarray(np.repeat(theta[:, None], 2, 1))), float)
    losses = rho(x @ theta.astype(np.float64), y[:, None])
    exact = np.stack([losses.sum(0), counts[0] @ losses])
    assert np.abs((risk - risk[:, :1]) - (exact - exact[:, :1])).max() < 1e-2
    assert (np.ptp(exact, axis=1) > 0.1).all()


def test_large_offset_of_y_costs_no_precision():
    """With y near 1e6 and an intercept, differences of risks are accurate to float32 of the residuals.

    Particles are multiples of 1/16, the spacing of float32 near 1e6, so that they are represented exactly.
    """
    rng = np.random.default_rng(0)
    y = 1e6 + rng.normal(size=100)
    model = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=1e7))
    target = make_target(model, (np.ones((100, 1)), y), np.ones((1, 100)), 1)
    theta = 1e6 + np.arange(-8, 8) / 16
    exact = 0.5 * ((y[:, None] - theta) ** 2).sum(0)
    computed = np.asarray(target.risk(jnp.asarray(np.broadcast_to(theta, (1, 2, 16)), float)), np.float64)[0]
    np.testing.assert_allclose(computed - computed[0], exact - exact[0], atol=1e-3)


def test_large_linear_part_of_a_loss_costs_no_precision():
    """Float32 against float64 for a loss whose linear part is large and cancels.

    A posterior resolves differences of order one in the risk; the error must be below a hundredth of that.
    """
    n, tau = 2**18, 0.95
    y = np.random.default_rng(0).normal(size=n)
    model = cb.GibbsModel(cb.losses.Quantile(tau), PRIOR)
    target = make_target(model, (np.ones((n, 1)), y), np.ones((1, n)), 1)
    target = target.recentre(jnp.asarray([np.quantile(y, tau)], float))
    spread = np.sqrt(tau * (1 - tau) / n) / 0.1031
    theta = np.float32(target.reference[0]) + np.linspace(-2, 2, 9, dtype=np.float32) * np.float32(spread)
    computed = np.asarray(target.replicate(0).risk(jnp.asarray(theta, float)[None, None]))[0]
    residual = theta.astype(float)[:, None] - y
    exact = np.maximum(-tau * residual, (1 - tau) * residual).sum(1)
    error = computed - exact
    assert (error - error.mean()).std() < 0.01


@pytest.mark.parametrize("dim", [2, 19, risk.CONFIG.max_unrolled_dim + 3])
def test_predictions_of_many_parameters(dim):
    """Unrolled for few parameters and as matrix products for many, to the rounding of sums of `dim` terms."""
    rng = np.random.default_rng(0)
    theta = rng.normal(size=(dim, 3, 5))
    x, y, counts = rng.normal(size=(40, dim)), rng.normal(size=40), rng.integers(0, 3, (2, 40))
    target = make_target(cb.GibbsModel(cb.losses.Absolute(), cb.priors.Normal()), (x, y), counts, dim)
    residual = np.abs(y[:, None, None] - np.einsum("ik,kbm->ibm", x, theta))
    weights = np.concatenate([np.ones((1, 40)), counts])
    expected = np.einsum("bi,ibm->bm", weights, residual)
    computed = np.asarray(target.risk(jnp.asarray(theta, float)), np.float64)
    # Risks are relative to the reference, a constant of each replicate.
    np.testing.assert_allclose(np.diff(computed), np.diff(expected), atol=1e-5 * np.abs(expected).max() * dim**0.5)
