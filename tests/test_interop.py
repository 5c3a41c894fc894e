"""Models, priors and draws of other libraries, against closed forms and NumPyro's densities."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro.infer import Predictive
from numpyro.infer.util import log_density
from scipy import stats

import calibayes as cb
from calibayes._core.coordinates import Coordinates
from calibayes.interop import LogDensity, draws_from

arviz_base = pytest.importorskip("arviz_base")

RNG = np.random.default_rng(3)
X = np.column_stack([np.ones(50), RNG.normal(size=50)]).astype(np.float32)
Y = (X @ [1.0, 2.0] + RNG.normal(size=50)).astype(np.float32)
BINARY = (RNG.uniform(size=50) < 1 / (1 + np.exp(-Y))).astype(int)
GROUPS = np.resize(np.arange(3), 50)


@pytest.fixture(autouse=True, scope="module")
def _promotion():
    """NumPyro and its models rely on type and rank promotion."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def location(y):
    mu = numpyro.sample("mu", dist.Normal(1.0, 10.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(mu, 2.0), obs=y)


def logistic(x, y):
    beta = numpyro.sample("beta", dist.Normal(0, 5).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


def spread(y):
    sigma = numpyro.sample("sigma", dist.HalfNormal(3.0))
    numpyro.sample("y", dist.Normal(0.0, sigma), obs=y)


def hierarchical(group, y):
    mu = numpyro.sample("mu", dist.Normal(0, 3))
    tau = numpyro.sample("tau", dist.HalfNormal(2))
    with numpyro.plate("groups", 3):
        effect = numpyro.sample("effect", dist.Normal(mu, tau))
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    with numpyro.plate("data", len(y)), numpyro.handlers.scale(scale=0.5):
        numpyro.sample("y", dist.StudentT(4, effect[group], sigma), obs=y)


def log_posterior(model, theta, data):
    risk = eqx.filter_jit(jax.vmap(model.loss, (None, 0)))(theta, jax.tree.map(jnp.asarray, data)).sum()
    return model.prior.log_prob(theta) - risk


@pytest.mark.parametrize("mu", [-1.5, 0.0, 4.0])
def test_gaussian_location_model_matches_the_closed_form(mu):
    model, theta = cb.GibbsModel.from_numpyro(location, Y), jnp.array([mu])
    by_hand = cb.GibbsModel.from_log_likelihood(
        lambda theta, y: jax.scipy.stats.norm.logpdf(y, theta[0], 2.0), cb.priors.Normal(1.0, 10.0), dim=1
    )
    assert (model.dim, model.prior.names) == (1, ["mu"])
    assert log_posterior(model, theta, Y) == pytest.approx(float(log_posterior(by_hand, theta, Y)), rel=1e-6)
    exact = stats.norm.logpdf(Y, mu, 2.0).sum() + stats.norm.logpdf(mu, 1.0, 10.0)
    assert log_posterior(model, theta, Y) == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("data", [(X, BINARY), {"x": X, "y": BINARY}, [X, BINARY > 0]], ids=["tuple", "dict", "list"])
def test_logistic_regression_matches_the_logistic_loss(data):
    model = cb.GibbsModel.from_numpyro(logistic, data)
    assert model.prior.names == ["beta[0]", "beta[1]"]
    loss = cb.losses.Logistic()
    for theta in ([0.0, 0.0], [1.0, -2.0], [-0.3, 4.0]):
        values = jax.vmap(model.loss, (None, 0))(jnp.array(theta), jax.tree.map(jnp.asarray, data))
        expected = loss.rho(X @ jnp.array(theta), jnp.asarray(2.0 * BINARY - 1))
        np.testing.assert_allclose(values, expected, rtol=2e-5, atol=2e-6)
        prior = stats.norm.logpdf(theta, 0, 5).sum()
        assert model.prior.log_prob(jnp.array(theta)) == pytest.approx(prior, rel=1e-6)


@pytest.fixture(scope="module")
def nested():
    return cb.GibbsModel.from_numpyro(hierarchical, (GROUPS, Y))


@pytest.mark.parametrize("theta", [[0.5, 1.0, -1.0, 0.2, 2.0, 1.5], [-2.0, 0.1, 3.0, 0.0, 0.1, 0.4]])
def test_hierarchical_density_matches_numpyro(nested, theta):
    assert nested.prior.names == ["mu", "tau", "effect[0]", "effect[1]", "effect[2]", "sigma"]
    theta = jnp.array(theta)
    expected, _ = log_density(hierarchical, (GROUPS, Y), {}, nested.prior.latents(theta))
    assert log_posterior(nested, theta, (GROUPS, Y)) == pytest.approx(float(expected), rel=1e-5)
    mu, tau, *effects, sigma = np.asarray(theta, float)
    prior = stats.norm.logpdf(mu, 0, 3) + stats.halfnorm.logpdf(tau, 0, 2) + stats.expon.logpdf(sigma)
    prior += stats.norm.logpdf(effects, mu, tau).sum()
    assert nested.prior.log_prob(theta) == pytest.approx(prior, rel=1e-5)


def test_prior_draws_of_a_hierarchical_model(nested, key):
    draws = np.asarray(eqx.filter_jit(nested.prior.sample)(key, (50, 40, 6)), float).reshape(-1, 6)
    mu, tau, effects, sigma = draws[:, 0], draws[:, 1], draws[:, 2:5], draws[:, 5]
    for values, law in [(mu / 3, "norm"), (tau / 2, "halfnorm"), (sigma, "expon")]:
        assert stats.kstest(values, law).pvalue > 1e-4
    standard = (effects - mu[:, None]) / tau[:, None]
    assert stats.kstest(standard.ravel(), "norm").pvalue > 1e-4
    assert abs(np.corrcoef(standard.T)[0, 1]) < 4 / np.sqrt(len(draws))


def test_latents_are_accepted_by_predictive(nested, key):
    draws = np.arange(12.0, dtype=np.float32).reshape(2, 6) + 1
    latents = nested.prior.latents(draws)
    np.testing.assert_array_equal(latents["effect"], draws[:, 2:5])
    np.testing.assert_array_equal(latents["sigma"], draws[:, 5])
    assert Predictive(hierarchical, latents)(key, GROUPS, Y)["y"].shape == (2, 50)


SUPPORTS = {
    "real": (dist.Normal(), -np.inf, np.inf),
    "vector": (dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2)), [-np.inf] * 2, [np.inf] * 2),
    "positive": (dist.LogNormal(), 0, np.inf),
    "unit": (dist.Beta(2, 3), 0, 1),
    "interval": (dist.Uniform(jnp.array([1.0, 2.0]), 3.0), [1, 2], [3, 3]),
    "above": (dist.TruncatedNormal(low=-1.0), -1, np.inf),
    "below": (dist.TruncatedNormal(high=2.0), -np.inf, 2),
    "matrix": (dist.Gamma(2.0).expand([2, 2]).to_event(2), [0] * 4, [np.inf] * 4),
}


def model_with_latents(priors):
    """Return a model with one latent site per prior."""

    def model(y):
        total = sum(jnp.sum(numpyro.sample(name, prior)) for name, prior in priors.items())
        numpyro.sample("y", dist.Normal(total, 1.0), obs=y)

    return model


def test_bounds_and_names_of_each_support(key):
    prior = cb.GibbsModel.from_numpyro(model_with_latents({name: case[0] for name, case in SUPPORTS.items()}), Y).prior
    names = ["real", "vector[0]", "vector[1]", "positive", "unit", "interval[0]", "interval[1]", "above", "below"]
    assert prior.names == [*names, "matrix[0,0]", "matrix[0,1]", "matrix[1,0]", "matrix[1,1]"]
    expected = [np.concatenate([np.ravel(case[side]) for case in SUPPORTS.values()]) for side in (1, 2)]
    np.testing.assert_array_equal(prior.bounds, expected)
    draws = np.asarray(eqx.filter_jit(prior.sample)(key, (200, prior.size)))
    assert ((draws > expected[0]) & (draws < expected[1])).all()


def local(y):
    with numpyro.plate("data", len(y)):
        u = numpyro.sample("u", dist.Normal())
        numpyro.sample("y", dist.Normal(u, 1.0), obs=y)


def dependent_bounds(y):
    high = numpyro.sample("high", dist.HalfNormal())
    low = numpyro.sample("low", dist.Uniform(0.0, high))
    numpyro.sample("y", dist.Normal(low, high), obs=y)


def with_param(y):
    scale = numpyro.param("scale", 1.0)
    numpyro.sample("y", dist.Normal(numpyro.sample("mu", dist.Normal()), scale), obs=y)


def fixed_plate(y):
    mu = numpyro.sample("mu", dist.Normal())
    with numpyro.plate("data", 50):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def centred(y):
    numpyro.sample("y", dist.Normal(numpyro.sample("mu", dist.Normal()), 1.0), obs=y - y.mean())


def prior_of_the_data(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0 + jnp.abs(y).sum()))
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def x_from_outside(y):
    beta = numpyro.sample("beta", dist.Normal().expand([2]))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(X @ beta, 1.0), obs=y)


def x_to_multiply(y):
    beta = numpyro.sample("beta", dist.Normal().expand([2]))
    numpyro.factor("fit", (X @ beta) @ y)


def unobserved(y):
    numpyro.sample("mu", dist.Normal(y.mean(), 1.0))


def no_latents(y):
    numpyro.sample("y", dist.Normal(), obs=y)


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (local, Y, "'u' has one value per observation"),
        (lambda x, y=None: logistic(x, y), (X,), "'y' has one value per observation.*data must hold its obs= array"),
        (model_with_latents({"theta": dist.Poisson(2.0)}), Y, "'theta' is discrete"),
        (
            model_with_latents({"theta": dist.Dirichlet(jnp.ones(3))}),
            Y,
            "'theta' has support Simplex.*numpyro.deterministic",
        ),
        (model_with_latents({"theta": dist.ZeroSumNormal(1.0, (3,))}), Y, "'theta' has support ZeroSum"),
        (
            model_with_latents({"theta": dist.ImproperUniform(dist.constraints.real, (), ())}),
            Y,
            "give it a proper prior",
        ),
        (dependent_bounds, Y, "bounds of 'low' depend on other parameters"),
        (with_param, Y, r"'scale' is a numpyro\.param"),
        (fixed_plate, Y, "log-likelihood must be a sum over observations"),
        (centred, Y, "log-likelihood must be a sum over observations"),
        (prior_of_the_data, Y, "log-prior must be the same for all observations"),
        (x_from_outside, Y, "log-likelihood must be a sum over observations"),
        (x_to_multiply, Y, "but not on one observation"),
        (unobserved, Y, "must have a sample site with obs="),
        (no_latents, Y, "and one without obs="),
        (logistic, (X, 2 * BINARY - 1), "'y' has observed values outside the support of its distribution, Boolean"),
        (logistic, (X, BINARY[:-1]), r"observations along the first axis; got \(50, 2\), \(49,\)"),
    ],
)
def test_unsupported_models_are_rejected(model, data, message):
    with pytest.raises(ValueError, match=message):
        cb.GibbsModel.from_numpyro(model, data)


def test_text_data_are_rejected():
    with pytest.raises(TypeError, match="arrays of numbers"):
        cb.GibbsModel.from_numpyro(location, np.array(["a", "b"]))


def test_masked_observations_are_not_checked():
    def model(y, observed):
        mu = numpyro.sample("mu", dist.Normal())
        with numpyro.handlers.mask(mask=observed):
            numpyro.sample("y", dist.Bernoulli(logits=mu), obs=y)

    observed = np.arange(50) % 5 > 0
    gibbs = cb.GibbsModel.from_numpyro(model, (np.where(observed, BINARY, -9), observed))
    datum = lambda y, observed: (jnp.asarray(y), jnp.asarray(observed))
    assert gibbs.loss(jnp.array([0.7]), datum(-9, False)) == 0
    assert gibbs.loss(jnp.array([0.7]), datum(1, True)) == pytest.approx(np.log1p(np.exp(-0.7)), rel=1e-5)


PRIOR_SCALE = 10.0


def with_global_scale(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, PRIOR_SCALE))
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def test_model_whose_global_variable_has_changed_is_an_error(monkeypatch):
    """Programs that were compiled for the recorded value would be used for the new one."""
    model = cb.GibbsModel.from_numpyro(with_global_scale, Y)
    monkeypatch.setitem(globals(), "PRIOR_SCALE", 1.0)
    with pytest.raises(ValueError, match="PRIOR_SCALE, which the function with_global_scale uses, has changed"):
        model.prior.log_prob(jnp.zeros(1))
    with pytest.raises(ValueError, match="PRIOR_SCALE, which the function with_global_scale uses, has changed"):
        model.loss(jnp.zeros(1), jnp.asarray(Y)[0])


def test_redefined_model_function_does_not_recompile():
    traces = []

    @eqx.filter_jit
    def density(model):
        traces.append(model)
        return model.prior.log_prob(jnp.zeros(1)) - model.loss(jnp.zeros(1), jnp.zeros(()))

    def model(scale):
        def fn(y):
            numpyro.sample("y", dist.Normal(numpyro.sample("mu", dist.Normal()), scale), obs=y)

        return cb.GibbsModel.from_numpyro(fn, Y)

    first = density(model(1.0))
    assert density(model(1.0)) == first
    assert len(traces) == 1
    assert density(model(2.0)) != first


@pytest.fixture(scope="module")
def scaled():
    y = np.random.default_rng(0).normal(size=60).astype(np.float32) * 1.7
    model = cb.GibbsModel.from_numpyro(spread, {"y": y})
    draws, names = draws_from({"sigma": np.abs(stats.norm(1.7, 0.15).rvs((2, 500), random_state=0))}, chains=True)
    options = {"bootstrap": 200, "sampler": "transport", "seed": 0, "progress": False}
    return cb.calibrate(model, {"y": y}, draws=draws, names=names, **options), y


@pytest.mark.slow
def test_bounded_model_calibrates_from_given_draws(scaled):
    """The draws have the mean and spread of the density at eta, integrated on a grid. Tolerance: four errors."""
    result, y = scaled
    assert result.converged, result.message
    assert result.names == ["sigma"]
    assert (result.draws > 0).all()
    grid = np.linspace(0.5, 5, 4000)
    log_p = result.eta * stats.norm.logpdf(y[:, None], 0, grid).sum(0) + stats.halfnorm.logpdf(grid, 0, 3)
    p = np.exp(log_p - log_p.max())
    mean = (grid * p).sum() / p.sum()
    sd = np.sqrt(((grid - mean) ** 2 * p).sum() / p.sum())
    assert abs(result.draws.mean() - mean) < 4 * sd / np.sqrt(500)
    assert result.draws.std() == pytest.approx(sd, rel=0.1)


def test_log_density_is_a_prior(key):
    """A Gamma(3) prior up to a constant, with a function that draws from it."""
    fn, sample = lambda theta: (2 * jnp.log(theta) - theta).sum(), lambda key, shape: jax.random.gamma(key, 3.0, shape)
    prior = LogDensity(fn, sample, bounds=(0, np.inf))
    model = cb.GibbsModel.from_log_likelihood(lambda theta, y: -theta[0] * y, prior, dim=1)
    assert model.prior is prior
    assert prior.log_prob(jnp.array([2.0])) == pytest.approx(2 * np.log(2) - 2, rel=1e-6)
    assert stats.kstest(np.asarray(prior.sample(key, (500, 1)))[:, 0], "gamma", (3,)).pvalue > 1e-4
    coordinates = Coordinates.from_prior(prior, 1)
    assert float(coordinates.low[0]) == 0
    assert not coordinates.unbounded


def test_log_density_without_sample_requires_draws():
    model = cb.GibbsModel(lambda theta, y: (y - theta[0]) ** 2, LogDensity(lambda theta: -(theta**2).sum()), dim=1)
    with pytest.raises(TypeError, match=r"prior LogDensity has no method sample.*draws="):
        cb.calibrate(model, Y, seed=0, bootstrap=20, progress=False, level=0.9)


MU, BETA = RNG.normal(size=(4, 100)), RNG.normal(size=(4, 100, 3))
W = RNG.normal(size=(4, 100, 2, 2))
NAMES = ["mu", "beta[0]", "beta[1]", "beta[2]", "w[0,0]", "w[0,1]", "w[1,0]", "w[1,1]"]
FLAT = np.column_stack([MU.reshape(400), BETA.reshape(400, 3), W.reshape(400, 4)])
CHAINS = {"mu": MU, "beta": BETA, "w": W}
MERGED = {name: values.reshape(400, *values.shape[2:]) for name, values in CHAINS.items()}
STAN_NAMES = ["mu", "beta[1]", "beta[2]", "beta[3]", "w[1,1]", "w[1,2]", "w[2,1]", "w[2,2]"]
# The order of CmdStanPy: diagnostics first, and matrices with the first index fastest.
STAN = pd.DataFrame({"lp__": 0.0, "chain__": 1.0} | dict(zip(STAN_NAMES, FLAT.T, strict=True)))
STAN = STAN[["lp__", "chain__", *STAN_NAMES[:5], "w[2,1]", "w[1,2]", "w[2,2]"]]
TREE = arviz_base.from_dict({"posterior": CHAINS, "log_likelihood": {"y": np.zeros((4, 100, 5))}})

SOURCES = {
    "NumPyro samples": (MERGED, False, NAMES),
    "NumPyro samples by chain": (CHAINS, True, NAMES),
    "NumPyro MCMC": (SimpleNamespace(get_samples=lambda: MERGED), False, NAMES),
    "CmdStanPy fit": (SimpleNamespace(stan_variables=lambda: MERGED), False, NAMES),
    "CmdStanPy data frame": (STAN, False, STAN_NAMES),
    "ArviZ DataTree": (TREE, False, NAMES),
    "PyMC InferenceData": (SimpleNamespace(posterior=TREE.posterior.to_dataset()), False, NAMES),
    "xarray Dataset": (TREE.posterior.to_dataset(), False, NAMES),
    "stacked Dataset": (TREE.posterior.to_dataset().stack(sample=("chain", "draw")), False, NAMES),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_draws_from_returns_draws_and_names(kind):
    source, chains, names = SOURCES[kind]
    draws, parameters = draws_from(source, chains=chains)
    assert parameters == names
    np.testing.assert_array_equal(draws, FLAT)


@pytest.mark.parametrize("kind", SOURCES)
def test_draws_from_selects_variables_in_the_requested_order(kind):
    source, chains, names = SOURCES[kind]
    draws, parameters = draws_from(source, ["w", names[2], "mu"], chains=chains)
    assert parameters == [*names[4:], names[2], "mu"]
    np.testing.assert_array_equal(draws, FLAT[:, [4, 5, 6, 7, 2, 0]])


def test_unselected_columns_are_not_checked():
    draws, names = draws_from(STAN.assign(run="first"), STAN_NAMES)
    assert names == STAN_NAMES
    np.testing.assert_array_equal(draws, FLAT)


def test_draws_from_orders_parameters_as_the_model(nested):
    """NumPyro returns samples in alphabetical order and with deterministic sites."""
    theta = RNG.normal(size=(200, 6))
    samples = dict(sorted((nested.prior.latents(theta) | {"extra": theta[:, 0]}).items()))
    assert next(iter(samples)) == "effect"
    draws, names = draws_from(samples, nested.prior.names)
    np.testing.assert_array_equal(draws, theta)
    assert names == nested.prior.names


@pytest.mark.parametrize(
    ("source", "options", "error", "message"),
    [
        (FLAT, {}, TypeError, r"got ndarray\. Pass a \(D, K\) array to calibrate"),
        (CHAINS, {}, ValueError, "4 draws of 800 parameters are too few.*chains=True"),
        (
            {"mu": np.zeros(200)},
            {"chains": True},
            ValueError,
            r"'mu' must start with axes of chains and draws; got shape",
        ),
        ({"mu": np.float64(1.0)}, {}, ValueError, r"'mu' must start with an axis of draws; got shape \(\)"),
        (MERGED, {"names": ["mu", "gamma"]}, ValueError, "no draws of 'gamma', only of mu, beta"),
        (STAN, {"names": NAMES}, ValueError, r"no draws of 'beta\[0\]'.*Stan counts elements from 1"),
        (MERGED, {"names": ["beta", "beta[1]"]}, ValueError, "each parameter once"),
        ({"a": np.zeros(200), "b": np.zeros(300)}, {}, ValueError, r"same number of draws; got \[200, 300\]"),
        (pd.DataFrame({"mu": ["x"] * 200}), {}, TypeError, "draws of 'mu' must be numbers"),
        ({}, {}, ValueError, "there are no draws"),
    ],
)
def test_invalid_draws_are_rejected(source, options, error, message):
    with pytest.raises(error, match=message):
        draws_from(source, **options)


def test_models_can_be_made_in_several_threads():
    """NumPyro's handlers are shared by all threads: without a lock a model would record each site twice."""
    expected = cb.GibbsModel.from_numpyro(location, Y).prior.names

    def names(_):
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return cb.GibbsModel.from_numpyro(location, Y).prior.names

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(names, range(4))) == 4 * [expected]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["model", "density"])
def test_parallel_calibrations_agree_with_sequential_ones(kind):
    """On the same counts only rounding differs. Tolerance: a tenth of eta and of the width of an interval."""
    prior = LogDensity(
        lambda t: -0.5 * (t**2).sum() / 100, sample=lambda key, shape: 10 * jax.random.normal(key, shape)
    )
    density = cb.GibbsModel(lambda theta, datum: 0.5 * (datum - theta[0]) ** 2, prior, dim=1)

    def calibrate(i):
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            y = np.roll(Y, i) + np.float32(i)
            model = density if kind == "density" else cb.GibbsModel.from_numpyro(location, y)
            return cb.calibrate(model, y, sampler="transport", bootstrap=100, seed=i, progress=False)

    sequential = [calibrate(i) for i in range(2)]
    with ThreadPoolExecutor(2) as pool:
        parallel = list(pool.map(calibrate, range(2)))
    for i, result in enumerate(sequential):
        assert parallel[i].eta == pytest.approx(result.eta, rel=0.1)
        width = np.diff(result.marginal_intervals())
        np.testing.assert_allclose(
            parallel[i].marginal_intervals(), result.marginal_intervals(), atol=0.1 * width[0, 0]
        )
