"""Models, priors and draws from elsewhere, against closed forms and NumPyro's own densities."""

from types import SimpleNamespace

import arviz_base
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
from calibayes._backend.jit import together
from calibayes._core.coordinates import Coordinates
from calibayes.interop import LogDensity, draws_from

RNG = np.random.default_rng(3)
X = np.column_stack([np.ones(50), RNG.normal(size=50)]).astype(np.float32)
Y = (X @ [1.0, 2.0] + RNG.normal(size=50)).astype(np.float32)
BINARY = (RNG.uniform(size=50) < 1 / (1 + np.exp(-Y))).astype(int)
GROUPS = np.resize(np.arange(3), 50)


@pytest.fixture(autouse=True, scope="module")
def _promotion():
    """NumPyro promotes types and ranks itself, and so do its users."""
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
def test_gaussian_location_is_the_one_written_by_hand(mu):
    model, theta = cb.GibbsModel.from_numpyro(location, Y), jnp.array([mu])
    by_hand = cb.GibbsModel.from_log_likelihood(
        lambda theta, y: jax.scipy.stats.norm.logpdf(y, theta[0], 2.0), cb.priors.Normal(1.0, 10.0), dim=1
    )
    assert (model.dim, model.prior.names) == (1, ["mu"])
    assert log_posterior(model, theta, Y) == pytest.approx(float(log_posterior(by_hand, theta, Y)), rel=1e-6)
    exact = stats.norm.logpdf(Y, mu, 2.0).sum() + stats.norm.logpdf(mu, 1.0, 10.0)
    assert log_posterior(model, theta, Y) == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("data", [(X, BINARY), {"x": X, "y": BINARY}, [X, BINARY > 0]], ids=["tuple", "dict", "list"])
def test_logistic_regression_is_the_loss(data):
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
def test_hierarchical_density_is_numpyros(nested, theta):
    assert nested.prior.names == ["mu", "tau", "effect[0]", "effect[1]", "effect[2]", "sigma"]
    theta = jnp.array(theta)
    expected, _ = log_density(hierarchical, (GROUPS, Y), {}, nested.prior.latents(theta))
    assert log_posterior(nested, theta, (GROUPS, Y)) == pytest.approx(float(expected), rel=1e-5)
    mu, tau, *effects, sigma = np.asarray(theta, float)
    prior = stats.norm.logpdf(mu, 0, 3) + stats.halfnorm.logpdf(tau, 0, 2) + stats.expon.logpdf(sigma)
    prior += stats.norm.logpdf(effects, mu, tau).sum()
    assert nested.prior.log_prob(theta) == pytest.approx(prior, rel=1e-5)


def test_hierarchical_draws(nested, key):
    draws = np.asarray(eqx.filter_jit(nested.prior.sample)(key, (50, 40, 6)), float).reshape(-1, 6)
    mu, tau, effects, sigma = draws[:, 0], draws[:, 1], draws[:, 2:5], draws[:, 5]
    for values, law in [(mu / 3, "norm"), (tau / 2, "halfnorm"), (sigma, "expon")]:
        assert stats.kstest(values, law).pvalue > 1e-4
    standard = (effects - mu[:, None]) / tau[:, None]
    assert stats.kstest(standard.ravel(), "norm").pvalue > 1e-4
    assert abs(np.corrcoef(standard.T)[0, 1]) < 4 / np.sqrt(len(draws))


def test_latents_by_site_are_what_predictive_takes(nested, key):
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


def of(priors):
    """A model with a latent site of every prior."""

    def model(y):
        total = sum(jnp.sum(numpyro.sample(name, prior)) for name, prior in priors.items())
        numpyro.sample("y", dist.Normal(total, 1.0), obs=y)

    return model


def test_bounds_and_names_of_every_support(key):
    prior = cb.GibbsModel.from_numpyro(of({name: case[0] for name, case in SUPPORTS.items()}), Y).prior
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
        (local, Y, "'u' has one value an observation"),
        (lambda x, y=None: logistic(x, y), (X,), "'y' has one value an observation.*data must hold what its obs= is"),
        (of({"theta": dist.Poisson(2.0)}), Y, "'theta' is discrete"),
        (of({"theta": dist.Dirichlet(jnp.ones(3))}), Y, "'theta' has support Simplex.*numpyro.deterministic"),
        (of({"theta": dist.ZeroSumNormal(1.0, (3,))}), Y, "'theta' has support ZeroSum"),
        (of({"theta": dist.ImproperUniform(dist.constraints.real, (), ())}), Y, "give it a proper prior"),
        (dependent_bounds, Y, "bounds of 'low' depend on other parameters"),
        (with_param, Y, r"'scale' is a numpyro\.param"),
        (fixed_plate, Y, "log-likelihood must be a sum over observations"),
        (centred, Y, "log-likelihood must be a sum over observations"),
        (prior_of_the_data, Y, "log-prior must be the same for all observations"),
        (x_from_outside, Y, "log-likelihood must be a sum over observations"),
        (x_to_multiply, Y, "not on one observation of them"),
        (unobserved, Y, "must have a sample site with obs="),
        (no_latents, Y, "and one without obs="),
        (logistic, (X, 2 * BINARY - 1), "'y' is observed where its distribution cannot be.*Boolean"),
        (logistic, (X, BINARY[:-1]), r"observations along the first axis; got \(50, 2\), \(49,\)"),
    ],
)
def test_models_that_cannot_be_taken(model, data, message):
    with pytest.raises(ValueError, match=message):
        cb.GibbsModel.from_numpyro(model, data)


def test_text_is_no_data():
    with pytest.raises(TypeError, match="arrays of numbers"):
        cb.GibbsModel.from_numpyro(location, np.array(["a", "b"]))


def test_masked_observations_may_be_anything():
    def model(y, seen):
        mu = numpyro.sample("mu", dist.Normal())
        with numpyro.handlers.mask(mask=seen):
            numpyro.sample("y", dist.Bernoulli(logits=mu), obs=y)

    seen = np.arange(50) % 5 > 0
    found = cb.GibbsModel.from_numpyro(model, (np.where(seen, BINARY, -9), seen))
    datum = lambda y, seen: (jnp.asarray(y), jnp.asarray(seen))
    assert found.loss(jnp.array([0.7]), datum(-9, False)) == 0
    assert found.loss(jnp.array([0.7]), datum(1, True)) == pytest.approx(np.log1p(np.exp(-0.7)), rel=1e-5)


def test_a_model_function_made_anew_does_not_compile_anew():
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
def test_a_bounded_model_calibrates_from_draws(scaled):
    """The reported draws are of the density at eta, integrated on a grid; the mean within four of its errors."""
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


def test_log_density_as_prior(key):
    """A Gamma(3) prior up to a constant, with draws of it."""
    fn, draw = lambda theta: (2 * jnp.log(theta) - theta).sum(), lambda key, shape: jax.random.gamma(key, 3.0, shape)
    prior = LogDensity(fn, draw, bounds=(0, np.inf))
    model = cb.GibbsModel.from_log_likelihood(lambda theta, y: -theta[0] * y, prior, dim=1)
    assert model.prior is prior
    assert prior.log_prob(jnp.array([2.0])) == pytest.approx(2 * np.log(2) - 2, rel=1e-6)
    assert stats.kstest(np.asarray(prior.sample(key, (500, 1)))[:, 0], "gamma", (3,)).pvalue > 1e-4
    coordinates = Coordinates.from_prior(prior, 1)
    assert float(coordinates.low[0]) == 0
    assert not coordinates.unbounded


def test_log_density_without_draws_must_be_given_some():
    model = cb.GibbsModel(lambda theta, y: (y - theta[0]) ** 2, LogDensity(lambda theta: -(theta**2).sum()), dim=1)
    with pytest.raises(TypeError, match=r"prior LogDensity has no sample.*draws="):
        cb.calibrate(model, Y, seed=0, bootstrap=20, progress=False, level=0.9)


MU, BETA = RNG.normal(size=(4, 100)), RNG.normal(size=(4, 100, 3))
W = RNG.normal(size=(4, 100, 2, 2))
NAMES = ["mu", "beta[0]", "beta[1]", "beta[2]", "w[0,0]", "w[0,1]", "w[1,0]", "w[1,1]"]
FLAT = np.column_stack([MU.reshape(400), BETA.reshape(400, 3), W.reshape(400, 4)])
CHAINS = {"mu": MU, "beta": BETA, "w": W}
MERGED = {name: values.reshape(400, *values.shape[2:]) for name, values in CHAINS.items()}
STAN_NAMES = ["mu", "beta[1]", "beta[2]", "beta[3]", "w[1,1]", "w[1,2]", "w[2,1]", "w[2,2]"]
# As CmdStanPy has it: bookkeeping in front, and matrices with the first index fastest.
STAN = pd.DataFrame({"lp__": 0.0, "chain__": 1.0} | dict(zip(STAN_NAMES, FLAT.T, strict=True)))
STAN = STAN[["lp__", "chain__", *STAN_NAMES[:5], "w[2,1]", "w[1,2]", "w[2,2]"]]
TREE = arviz_base.from_dict({"posterior": CHAINS, "log_likelihood": {"y": np.zeros((4, 100, 5))}})

SOURCES = {
    "NumPyro's samples": (MERGED, False, NAMES),
    "samples by chain": (CHAINS, True, NAMES),
    "NumPyro's MCMC": (SimpleNamespace(get_samples=lambda: MERGED), False, NAMES),
    "CmdStanPy's fit": (SimpleNamespace(stan_variables=lambda: MERGED), False, NAMES),
    "CmdStanPy's frame": (STAN, False, STAN_NAMES),
    "ArviZ": (TREE, False, NAMES),
    "PyMC's InferenceData": (SimpleNamespace(posterior=TREE.posterior.to_dataset()), False, NAMES),
    "a dataset": (TREE.posterior.to_dataset(), False, NAMES),
    "extracted": (TREE.posterior.to_dataset().stack(sample=("chain", "draw")), False, NAMES),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_draws_from(kind):
    source, chains, names = SOURCES[kind]
    draws, found = draws_from(source, chains=chains)
    assert found == names
    np.testing.assert_array_equal(draws, FLAT)


@pytest.mark.parametrize("kind", SOURCES)
def test_draws_of_some_variables_in_the_order_asked_for(kind):
    source, chains, names = SOURCES[kind]
    draws, found = draws_from(source, ["w", names[2], "mu"], chains=chains)
    assert found == [*names[4:], names[2], "mu"]
    np.testing.assert_array_equal(draws, FLAT[:, [4, 5, 6, 7, 2, 0]])


def test_columns_that_are_not_asked_for_may_be_anything():
    draws, names = draws_from(STAN.assign(run="first"), STAN_NAMES)
    assert names == STAN_NAMES
    np.testing.assert_array_equal(draws, FLAT)


def test_draws_in_the_order_of_a_model(nested):
    """NumPyro's samples come in alphabetical order, and with deterministic sites."""
    own = RNG.normal(size=(200, 6))
    samples = dict(sorted((nested.prior.latents(own) | {"extra": own[:, 0]}).items()))
    assert next(iter(samples)) == "effect"
    draws, names = draws_from(samples, nested.prior.names)
    np.testing.assert_array_equal(draws, own)
    assert names == nested.prior.names


@pytest.mark.parametrize(
    ("source", "options", "error", "message"),
    [
        (FLAT, {}, TypeError, r"got ndarray\. An \(M, K\) array is ready"),
        (CHAINS, {}, ValueError, "4 draws of 800 parameters are too few.*chains=True"),
        ({"mu": np.zeros(200)}, {"chains": True}, ValueError, r"'mu' must have chains and draws in front; got shape"),
        ({"mu": np.float64(1.0)}, {}, ValueError, r"'mu' must have draws in front; got shape \(\)"),
        (MERGED, {"names": ["mu", "gamma"]}, ValueError, "no draws of 'gamma', only of mu, beta"),
        (STAN, {"names": NAMES}, ValueError, r"no draws of 'beta\[0\]'.*Stan counts elements from 1"),
        (MERGED, {"names": ["beta", "beta[1]"]}, ValueError, "each parameter once"),
        ({"a": np.zeros(200), "b": np.zeros(300)}, {}, ValueError, r"same number of draws; got \[200, 300\]"),
        (pd.DataFrame({"mu": ["x"] * 200}), {}, TypeError, "draws of 'mu' must be numbers"),
        ({}, {}, ValueError, "there are no draws"),
    ],
)
def test_draws_that_cannot_be_taken(source, options, error, message):
    with pytest.raises(error, match=message):
        draws_from(source, **options)


def test_threads_do_not_mix_up_models():
    """NumPyro's handlers are shared by all threads: a model seen by two at once would have each site twice."""
    expected = cb.GibbsModel.from_numpyro(location, Y).prior.names
    found = []

    def look():
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            found.append(cb.GibbsModel.from_numpyro(location, Y).prior.names)

    together([look] * 4, at_once=4)
    assert found == 4 * [expected]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["model", "density"])
def test_side_by_side_is_as_alone(kind):
    """On the same counts what differs is rounding, and what a sampler makes of it: a tenth of eta and of a width."""
    prior = LogDensity(
        lambda t: -0.5 * (t**2).sum() / 100, sample=lambda key, shape: 10 * jax.random.normal(key, shape)
    )
    own = cb.GibbsModel(lambda theta, datum: 0.5 * (datum - theta[0]) ** 2, prior, dim=1)

    def calibrate(i):
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            y = np.roll(Y, i) + np.float32(i)
            model = own if kind == "density" else cb.GibbsModel.from_numpyro(location, y)
            return cb.calibrate(model, y, sampler="transport", bootstrap=100, seed=i, progress=False)

    alone, found = [calibrate(i) for i in range(2)], {}
    together([lambda i=i: found.update({i: calibrate(i)}) for i in range(2)], at_once=2)
    for i, result in enumerate(alone):
        assert found[i].eta == pytest.approx(result.eta, rel=0.1)
        width = np.diff(result.marginal_intervals())
        np.testing.assert_allclose(found[i].marginal_intervals(), result.marginal_intervals(), atol=0.1 * width[0, 0])
