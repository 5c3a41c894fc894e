"""Methods for log-likelihoods, on a normal location model with a conjugate prior and errors that are too wide."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibayes as cb
from calibayes._core.target import evaluate, make_target
from calibayes.methods.moments import Draws, DrawsOnData, LearningRate
from calibayes.methods.safe_bayes import CONFIG

N, TAU, ERROR = 40, 2.0, 1.7
PRIOR = cb.priors.Normal(scale=TAU)
Y = 1.0 + ERROR * np.random.default_rng(0).normal(size=N)
DATA = (np.ones((N, 1)), Y)
MODEL = cb.GibbsModel(cb.losses.Squared(), PRIOR)
GRID = (0.1, 0.25, 0.5, 1.0)
pytestmark = pytest.mark.filterwarnings("ignore::calibayes.CalibrationWarning")


@pytest.fixture(scope="module")
def comparison():
    methods = ["gpc", "holmes-walker", "q-posterior", cb.methods.SafeBayes(grid=GRID)]
    methods.append(cb.methods.SafeBayes("I-log", GRID))
    options = {"sampler": cb.Transport(n_particles=300), "bootstrap": 200, "seed": 0, "progress": False}
    return cb.compare(MODEL, DATA, methods, **options)


def sequential_losses(at_mean):
    """Return the sum of the losses of the next observation, from the conjugate posterior of those before it."""
    sums = []
    for eta in GRID:
        total = 0.0
        for i in range(1, N):
            variance = 1 / (1 / TAU**2 + eta * i)
            mean = variance * eta * Y[:i].sum()
            total += 0.5 * (Y[i] - mean) ** 2 + (0 if at_mean else 0.5 * variance)
        sums.append(total)
    return np.array(sums)


@pytest.mark.parametrize("variant", ["R-log", "I-log"])
def test_safe_bayes_is_the_best_sequential_prediction(comparison, variant):
    """Losses of 1,000 particles: the error of the first prediction, from one observation, is the largest."""
    method = cb.methods.SafeBayes(variant, GRID)
    result = comparison[cb.methods.label(method)]
    expected = sequential_losses(variant == "I-log")
    losses = method.predictive_losses(result.calibration.draws).mean(0)
    error = 4 * (TAU**2 / np.sqrt(2) + TAU * abs(Y[0])) / np.sqrt(CONFIG.n_particles) + 0.01 * expected.max()
    np.testing.assert_allclose(losses, expected, atol=error)
    assert expected[GRID.index(result.eta)] < expected.min() + error
    if variant == "R-log":
        assert np.ptp(expected) > 3 * error


def test_safe_bayes_intervals_are_at_its_learning_rate(comparison):
    result = comparison[cb.methods.label(cb.methods.SafeBayes(grid=GRID))]
    assert (result.intervals().eta == result.eta).all()


def test_holmes_walker_is_the_ratio_of_expected_squared_gradients(comparison):
    """With the squared gradient (x - theta)^2, and theta from the prior."""
    result = comparison["holmes-walker"]
    estimate = Y.mean()
    expected = np.sqrt((1 + estimate**2 + TAU**2) / (Y.var() + Y.mean() ** 2 + TAU**2))
    assert abs(result.eta - expected) < 4 * result.eta_se
    assert 0 < result.eta_se < 0.05
    assert result.eta < 1


def test_holmes_walker_simulates_poisson_regression():
    """The squared gradient is (exp(theta) - y)^2, with theta from the prior; y of the data is overdispersed."""
    y = np.random.default_rng(0).negative_binomial(2, 0.5, size=60).astype(float)
    model = cb.GibbsModel(cb.losses.Poisson(), cb.priors.Normal(scale=0.5))
    target = make_target(model, (np.ones((60, 1)), y), np.ones((1, 60)), 1)
    draws = Draws(evaluate(target, jnp.full((1, target.n_replicates, 10), np.log(y.mean()))).replicate(0), 1.0)
    rate = cb.methods.HolmesWalker().learning_rate(DrawsOnData(target, (draws,), None, key=jax.random.key(0)), None)
    first, second = np.exp([0.5**2 / 2, 2 * 0.5**2])
    in_data, in_model = (square - 2 * y.mean() * first + second for square in (np.mean(y**2), y.mean() + y.mean() ** 2))
    assert abs(rate.eta - np.sqrt(in_model / in_data)) < 4 * rate.eta_se
    assert rate.eta_se < 0.05
    assert rate.eta < 0.8


@pytest.mark.parametrize("method", ["holmes-walker", "safe-bayes"])
def test_learning_rate_of_all_sets_is_computed_once(comparison, monkeypatch, method):
    """At another level, and for an interval, it is the same without a computation; another method computes its own."""
    known = cb.methods.as_method(method) if method == "holmes-walker" else cb.methods.SafeBayes(grid=GRID)
    result = comparison[cb.methods.label(known)]
    calls = []
    for owner in (cb.methods.HolmesWalker, cb.methods.SafeBayes):
        monkeypatch.setattr(owner, "learning_rate", lambda *_: calls.append(1) or LearningRate(0.5, 0.0))
    for other in (result.at(level=0.8), result.at(region=cb.regions.Interval(0))):
        assert (other.eta, other.eta_se) == (result.eta, result.eta_se)
    assert not calls
    assert result.calibration.with_method(cb.methods.HolmesWalker()).iterate.eta == 0.5
    assert calls == [1]


def test_q_posterior_of_a_location_is_normal_with_the_sandwich_variance(comparison):
    """J does not depend on the location. The prior adds its precision. 4,000 draws have an error of 2.2%."""
    draws = comparison["q-posterior"].draws
    variance = 1 / (N / Y.var() + 1 / TAU**2)
    assert draws.var() == pytest.approx(variance, rel=0.09)
    assert draws.mean() == pytest.approx(variance * N * Y.mean() / Y.var(), abs=4 * np.sqrt(variance / 4000))


def test_simulation_by_the_user_gives_the_same_as_the_model_of_the_loss(comparison):
    model = cb.GibbsModel.from_log_likelihood(lambda theta, y: -0.5 * (y - theta[0]) ** 2, PRIOR, dim=1)
    method = cb.methods.HolmesWalker(lambda key, theta, y: theta[0] + jax.random.normal(key))
    options = {"sampler": cb.Transport(n_particles=300), "bootstrap": 100, "seed": 0, "progress": False}
    result, other = cb.calibrate(model, Y, method=method, **options), comparison["holmes-walker"]
    assert abs(result.eta - other.eta) < 4 * np.hypot(result.eta_se, other.eta_se)


CLUSTERS = cb.bootstrap.Cluster(50, groups=np.repeat(np.arange(10), 4))
BLOCKS = cb.bootstrap.Block(50, length=4)
DENSITY = cb.GibbsModel.from_log_likelihood(lambda theta, y: -((y[1] - theta[0]) ** 2), PRIOR, dim=1)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (MODEL, {"method": "safe-bayes", "bootstrap": CLUSTERS}, r"must be independent.*bootstrap\.Cluster"),
        (MODEL, {"method": "holmes-walker", "bootstrap": BLOCKS}, r"independent observations.*bootstrap\.Block"),
        (MODEL, {"method": "gpc-double", "bootstrap": BLOCKS}, r'"gpc-double" is not available for bootstrap\.Block'),
        (MODEL, {"method": "gpc-double", "region": "box"}, r"ellipsoid.*got Box"),
        (MODEL, {"method": "gpc-double", "region": "simultaneous"}, r"Interval and Linear only; got Simultaneous"),
        (cb.GibbsModel(cb.losses.Absolute(), PRIOR), {"method": "holmes-walker"}, "Absolute is not one"),
        (MODEL, {"method": "safe-bayes", "weights": np.arange(1, N + 1)}, "not defined for weighted observations"),
        (MODEL, {"method": "holmes-walker", "weights": np.linspace(0.5, 2, N)}, "not defined for weighted"),
        (DENSITY, {"method": "holmes-walker"}, r"cb\.methods\.HolmesWalker\(simulate\)"),
    ],
)
def test_methods_refuse_what_they_are_not_defined_for(model, options, message):
    with pytest.raises(ValueError, match=message):
        cb.calibrate(model, DATA, progress=False, **options)


def test_invalid_parameters_raise():
    with pytest.raises(ValueError, match="variant must be one of R-log, I-log"):
        cb.methods.SafeBayes("log")
    with pytest.raises(ValueError, match="at least two different"):
        cb.methods.SafeBayes(grid=[1.0, 1.0])
    with pytest.raises(TypeError, match="grid must be a sequence"):
        cb.methods.SafeBayes(grid=1.0)
    with pytest.raises(TypeError, match="simulate must be a function"):
        cb.methods.HolmesWalker("normal")
    with pytest.raises(ValueError, match="eta must be positive"):
        cb.methods.BayesBag(0.0)


class KnownLosses(cb.methods.SafeBayes):
    """The sums of predictive losses are passed with the draws."""

    def predictive_losses(self, draws):
        return np.asarray(draws.halves, float)


def draws_with(halves, loss=MODEL.loss):
    return SimpleNamespace(halves=halves, target=SimpleNamespace(loss=loss))


@pytest.mark.parametrize(
    ("grid", "halves", "eta", "codes"),
    [
        ((0.25, 0.5, 1.0), [[5, 3, 4], [5.5, 3.5, 4.5]], 0.5, []),
        ((0.25, 0.5, 1.0), [[5, 4, 3], [5, 4, 3]], 1.0, []),
        ((0.25, 0.5, 1.0), [[3, 4, 5], [3, 4, 5]], 0.25, [cb.Code.NOT_RESOLVED]),
        ((0.25, 0.5, 0.9), [[5, 4, 3], [5, 4, 3]], 0.9, [cb.Code.NOT_RESOLVED]),
        ((0.25, 0.5, 1.0), [[5, 1, 4], [2, 5, 4]], 0.5, [cb.Code.NOT_RESOLVED]),
        ((0.25, 0.5, 1.0), [[5, 3, np.inf], [5, 3, 4]], 0.5, []),
    ],
)
def test_safe_bayes_reports_a_learning_rate_that_its_sums_do_not_determine(grid, halves, eta, codes):
    """At an end of the grid, other than one, or where the halves differ by more than the learning rates."""
    rate = KnownLosses(grid=grid).learning_rate(draws_with(halves), None)
    assert (rate.eta, [finding.code for finding in rate.findings]) == (eta, codes)


@pytest.mark.parametrize(
    ("loss", "codes"),
    [
        (cb.losses.Absolute(), [cb.Code.NOT_RESOLVED]),
        (cb.GibbsModel(lambda theta, datum: theta[0], PRIOR, dim=1).loss, [cb.Code.NOT_RESOLVED]),
        (cb.GibbsModel.from_log_likelihood(lambda theta, datum: theta[0], PRIOR, dim=1).loss, []),
    ],
)
def test_safe_bayes_reports_one_at_the_end_of_the_grid_unless_the_loss_is_a_log_likelihood(loss, codes):
    rate = KnownLosses().learning_rate(draws_with(np.tile(np.arange(13.0, 0.0, -1.0), (2, 1)), loss), None)
    assert (rate.eta, [finding.code for finding in rate.findings]) == (1.0, codes)


def test_safe_bayes_needs_a_finite_predictive_loss():
    with pytest.raises(ValueError, match="infinite at every learning rate"):
        KnownLosses(grid=GRID).learning_rate(draws_with(np.full((2, 4), np.inf)), None)
