"""Methods that report draws of their own, and the nested bootstrap, on the heteroscedastic data of `test_methods`."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import calibayes as cb
from calibayes._core.curve import Curve
from calibayes._core.weights import Weights
from calibayes.methods import q_posterior
from calibayes.methods.double import inner_shares
from calibayes.methods.moments import sum_of_outer_products
from calibayes.methods.q_posterior import log_normal_density
from calibayes.methods.studentized import ReplicateMoments
from test_methods import DATA, GROUPS, MODEL, B, K, M, N, calibrate, closed_form, critical_and_matching

pytestmark = pytest.mark.filterwarnings("ignore::calibayes.CalibrationWarning")


@pytest.fixture(scope="module")
def comparison():
    methods = ["gpc", "gpc-double", "bayesbag", "posterior-bootstrap", "q-posterior"]
    settings = {"sampler": cb.Transport(n_particles=M), "bootstrap": cb.bootstrap.Multinomial(B)}
    return cb.compare(MODEL, DATA, methods, names=list("abcd"), seed=0, progress=False, **settings)


def fits_and_inverses(counts):
    """Return the estimate and the inverse Hessian of every replicate."""
    x, y = DATA
    precision = np.einsum("bn,nk,nj->bkj", counts, x, x)
    fits = np.linalg.solve(precision, np.einsum("bn,nk->bk", counts * y, x)[..., None])[..., 0]
    return fits, np.linalg.inv(precision)


def assert_same_covariance(draws, expected, n_effective, share=4.0):
    """Entries in units of the standard deviations; a correlation has an error of at most sqrt(2 / n_effective)."""
    scale = np.sqrt(np.diag(expected))
    difference = (np.cov(draws.T) - expected) / np.outer(scale, scale)
    assert np.abs(difference).max() < share * np.sqrt(2 / n_effective)


def test_bayesbag_adds_the_covariance_of_the_means_to_that_of_the_posteriors(comparison):
    """The replicates are those of the formula; the error is that of 4,000 draws."""
    result = comparison["bayesbag"]
    fits, inverses = fits_and_inverses(result.counts)
    expected = inverses.mean(0) + np.cov(fits.T)
    assert_same_covariance(result.draws, expected, 4000)
    np.testing.assert_allclose(result.draws.mean(0), fits.mean(0), atol=4 * np.sqrt(expected.max() / 4000))
    eta = K / np.trace(np.linalg.solve(closed_form()[0], expected))
    assert abs(result.eta - eta) < 4 * result.eta_se


def test_posterior_bootstrap_draws_are_the_least_squares_fits_of_the_replicates(comparison):
    result = comparison["posterior-bootstrap"]
    fits, _ = fits_and_inverses(result.counts)
    assert result.draws.shape == (B, K)
    spread = fits.std(0)
    np.testing.assert_allclose(np.sort(result.draws / spread, 0), np.sort(fits / spread, 0), atol=5e-3)
    bounds, ordered, tail = np.asarray(result.intervals()), np.sort(result.draws, 0), B // 40
    for position, bound in ((tail, bounds[:, 0]), (B - tail, bounds[:, 1])):
        assert (ordered[position - 2] <= bound).all()
        assert (bound <= ordered[position + 1]).all()


def test_q_posterior_agrees_with_importance_sampling_in_numpy(comparison):
    """Tail quantiles of 1,500 effective draws have an error of 7% of the standard deviation: four of those."""
    result, (x, y) = comparison["q-posterior"], DATA
    fit, sandwich = np.linalg.lstsq(x, y)[0], closed_form()[1]
    proposal = stats.multivariate_t(fit, 1.5 * sandwich, df=6, seed=0)
    theta = proposal.rvs(20_000)
    scores = -x[None] * (y - theta @ x.T)[:, :, None]
    totals, centred = scores.sum(1), scores - scores.mean(1, keepdims=True)
    products = np.einsum("mnk,mnj->mkj", centred, centred)
    forms = np.einsum("mk,mk->m", totals, np.linalg.solve(products, totals[..., None])[..., 0])
    log_weights = -0.5 * (np.linalg.slogdet(products)[1] + forms) - proposal.logpdf(theta)
    weights = np.exp(log_weights - log_weights.max())
    for k in range(K):
        expected = np.quantile(theta[:, k], [0.025, 0.5, 0.975], weights=weights, method="inverted_cdf")
        quantiles = np.quantile(result.draws[:, k], [0.025, 0.5, 0.975])
        np.testing.assert_allclose(quantiles, expected, atol=0.28 * np.sqrt(sandwich[k, k]))


def test_quadratic_form_uses_the_dependence_of_the_bootstrap():
    """Clusters by the covariance of their sums."""
    scores = np.random.default_rng(0).normal(size=(N, 2)) + 0.1
    bootstrap = cb.bootstrap.Cluster(10, groups=GROUPS)
    centred = scores - scores.mean(0)
    covariance = sum_of_outer_products(centred.T, bootstrap)
    sums = centred.reshape(24, 4, 2).sum(1)
    np.testing.assert_allclose(covariance, sums.T @ sums)
    expected = stats.multivariate_normal([0, 0], covariance).logpdf(scores.sum(0)) + np.log(2 * np.pi)
    assert log_normal_density(scores, bootstrap) == pytest.approx(expected)


def test_integer_weights_repeat_the_gradients():
    scores = np.random.default_rng(1).normal(size=(10, 2))
    repeats = np.arange(10) % 3 + 1
    repeated = log_normal_density(np.repeat(scores, repeats, axis=0), None)
    assert log_normal_density(scores, None, Weights(repeats.astype(float), repeats=True)) == pytest.approx(repeated)


def test_nested_bootstrap_matches_the_closed_form(comparison):
    """The quantile of the critical etas is that at which the replicates' own calibrated sets cover."""
    result = comparison["gpc-double"]
    critical, _, _ = critical_and_matching(result.counts)
    x, y = DATA
    fits, inverses = fits_and_inverses(result.counts)
    scores = np.einsum("bn,nk,nj->bkj", result.counts * (y - fits @ x.T) ** 2, x, x)
    squares = np.square(np.random.default_rng(1).normal(size=(K, 4000)))
    shares = np.array(
        [
            (np.linalg.eigvals(inverse @ score).real @ squares > stats.chi2(K).ppf(0.95) / eta).mean()
            for inverse, score, eta in zip(inverses, scores, critical, strict=True)
        ]
    )
    tail = np.quantile(shares, 0.05)
    assert tail < 0.05
    assert abs(result.eta - np.quantile(critical, tail)) < 1.5 * result.eta_se
    assert result.eta < comparison["gpc"].eta


def test_inner_replicates_of_one_parameter_are_chi_squared():
    """2,000 inner replicates: the error of a share is at most 1.1%."""
    critical, spreads = np.array([0.5, 1.0, 3.0]), np.array([1.0, 2.0, 0.7])
    shares = inner_shares(critical, spreads[:, None], 0.95)
    expected = stats.chi2(1).sf(stats.chi2(1).ppf(0.95) / (critical * spreads))
    np.testing.assert_allclose(shares, expected, atol=4 * 0.011)


def test_other_sets_of_a_nested_bootstrap_are_refused(comparison):
    result = comparison["gpc-double"]
    with pytest.raises(ValueError, match=r"got Box"):
        result.at(region="box")
    assert result.at(region=cb.regions.Interval(1)).status is cb.Status.COMPUTED


def normal_curve():
    """Return the coverage curve of normal posteriors with unit Hessian, whose estimates are normal quantiles."""
    etas, gaps = np.geomspace(0.1, 40.0, 200), stats.norm.ppf((np.arange(100) + 0.5) / 100)
    return Curve(etas, stats.chi2(1).cdf(etas[:, None] * np.square(gaps)), np.full(200, np.nan), 0.9)


def test_quantile_beyond_the_critical_etas_is_reported():
    """With inner replicates of a variance near zero, all calibrated sets contain the estimate, whatever the level."""
    for variance, codes in ((1.0, []), (1e-6, [cb.Code.NOT_RESOLVED])):
        moments = ReplicateMoments(np.ones((101, 1, 1)), np.full((101, 1, 1), variance))
        rate = cb.methods.DoubleGPC().rate(normal_curve(), 0.9, moments, None)
        assert [finding.code for finding in rate.findings] == codes


@pytest.mark.parametrize(
    ("n_flat", "severities"), [(0, []), (2, [cb.Severity.WARNING]), (3, [cb.Severity.ERROR])], ids=str
)
def test_replicates_without_gradients_are_reported_by_the_studentized_calibration(n_flat, severities):
    """Their ratios are zero, the others a chi-squared quantile over squared normal ones. Ten of 100 are outside."""
    sandwiches = np.ones((101, 1, 1))
    sandwiches[1 : n_flat + 1] = 0.0
    moments = ReplicateMoments(np.ones((101, 1, 1)), sandwiches)
    rate = cb.methods.StudentizedGPC().rate(normal_curve(), 0.9, moments, None)
    assert [finding.severity for finding in rate.findings] == severities
    gaps = np.square(stats.norm.ppf((np.arange(100) + 0.5) / 100))
    ratios = np.sort(np.where(np.arange(100) < n_flat, 0.0, stats.chi2(1).ppf(0.9) / gaps))
    assert rate.eta == pytest.approx(np.sqrt(ratios[9] * ratios[10]), rel=0.02)


def test_studentized_calibration_of_mostly_separable_replicates_names_the_cause():
    sandwiches = np.where(np.arange(101) < 12, 0.0, 1.0)[:, None, None]
    sandwiches[0] = 1.0
    moments = ReplicateMoments(np.ones((101, 1, 1)), sandwiches)
    with pytest.raises(ValueError, match="zero at the posterior means of 11 of 100 replicates"):
        cb.methods.StudentizedGPC().rate(normal_curve(), 0.9, moments, None)


@pytest.mark.parametrize("method", ["bayesbag", "posterior-bootstrap"])
def test_error_of_an_interval_contains_the_number_of_draws(comparison, method):
    """That of the calibration of the interval alone, which draws again."""
    result = comparison[method]
    alone = result.at(region=cb.regions.Interval(1))
    assert result.intervals().eta_se[1] == pytest.approx(alone.eta_se, rel=0.05)
    assert alone.eta_se > alone.eta * np.sqrt(2 / B)


def test_q_posterior_without_mass_near_the_estimate_is_refused(comparison, monkeypatch):
    calibration = comparison["q-posterior"].calibration
    monkeypatch.setattr(q_posterior, "CONFIG", replace(q_posterior.CONFIG, max_distance=0.0))
    with pytest.raises(ValueError, match="far from normal: 0 of 4,000"):
        cb.methods.QPosterior().draw(calibration.problem, calibration.iterate, calibration.draws)


def test_intervals_and_levels_are_those_of_the_draws(comparison):
    result = comparison["bayesbag"]
    np.testing.assert_allclose(np.asarray(result.intervals()), result.marginal_intervals(), atol=0.05)
    centre = result.draws.mean(0)
    assert result.level_of(centre) < 0.05
    sd = result.draws[:, 0].std()
    distant = result.level_of(centre + 4 * sd * np.eye(K)[0])
    assert 0.9 < distant <= 1.0
    assert np.ptp(result.at(level=0.5).intervals().bounds, 1).max() < np.ptp(result.intervals().bounds, 1).max()


def test_means_of_intervals_are_those_of_the_reported_draws(comparison):
    """Also for another estimate than the mean, of which the intervals cannot take the point estimate."""
    result = comparison["bayesbag"]
    calibration = result.calibration
    other = replace(calibration, problem=replace(calibration.problem, estimate="minimizer"))
    np.testing.assert_allclose(other.intervals(None, None).means, result.draws.mean(0), rtol=1e-6)


def test_methods_with_draws_of_their_own_use_the_clusters_of_the_bootstrap():
    """The covariance is that of the sums of clusters: 24 clusters of 4, whose fits are those of the replicates."""
    bootstrap = cb.bootstrap.Cluster(B, groups=GROUPS)
    settings = {"sampler": cb.Transport(n_particles=M), "bootstrap": bootstrap, "seed": 0, "progress": False}
    results = cb.compare(MODEL, DATA, ["posterior-bootstrap", "q-posterior"], **settings)
    independent = closed_form()[1]
    clustered = closed_form(lambda scores: scores.reshape(24, 4, K).sum(1))[1]
    assert np.abs(clustered / independent - 1).max() > 0.2
    fits, _ = fits_and_inverses(results["posterior-bootstrap"].counts)
    spread = fits.std(0)
    np.testing.assert_allclose(
        np.sort(results["posterior-bootstrap"].draws / spread, 0), np.sort(fits / spread, 0), atol=5e-3
    )
    assert_nearer(results["q-posterior"].draws, clustered, independent)


def test_q_posterior_uses_the_blocks_of_the_bootstrap():
    bootstrap = cb.bootstrap.Block(B, length=12)
    result = calibrate(method="q-posterior", bootstrap=bootstrap)
    x, y = DATA
    inverse, independent = closed_form()
    scores = x * (y - x @ np.linalg.lstsq(x, y)[0])[:, None]
    blocks = inverse @ sum_of_outer_products(scores.T, bootstrap) @ inverse
    assert_nearer(result.draws, blocks, independent)


def assert_nearer(draws, expected, other):
    """The shape of the core of the draws, by ranks, is nearer to the expected covariance than to another one."""
    low, high = np.quantile(draws, [0.25, 0.75], axis=0)
    ratios = [(high - low) / (1.349 * np.sqrt(np.diag(covariance))) for covariance in (expected, other)]
    errors = [np.abs(np.log(ratio / np.exp(np.log(ratio).mean()))).max() for ratio in ratios]
    assert errors[0] < errors[1]


def test_method_alone_gives_what_it_gives_in_a_comparison(comparison):
    alone = calibrate(method="bayesbag", names=list("abcd"))
    assert_same_covariance(alone.draws, np.cov(comparison["bayesbag"].draws.T), 2000)


@pytest.mark.parametrize("method", ["bayesbag", "posterior-bootstrap", "q-posterior"])
def test_shape_of_methods_with_draws_of_their_own_is_refused(method):
    with pytest.raises(ValueError, match="Use shape=None"):
        calibrate(method=method, shape="sandwich")


def test_results_are_saved_and_reported(comparison, tmp_path):
    result = comparison["bayesbag"]
    loaded = cb.load(result.save(tmp_path / "bag.nc"))
    np.testing.assert_array_equal(loaded.draws, result.draws)
    assert "bootstrap replicates" in loaded.report(tmp_path / "bag.html").read_text()


@pytest.mark.slow
def test_loss_without_a_derivative_is_refused_by_the_q_posterior():
    x, y = DATA
    indicator = lambda theta, datum: jnp.where(jnp.abs(datum[1] - datum[0] @ theta) > 1.0, 1.0, 0.0)
    model = cb.GibbsModel(indicator, cb.priors.Normal(scale=3.0), dim=K)
    with pytest.raises(ValueError, match="needs a loss with a derivative"):
        cb.calibrate(model, (x, y), method="q-posterior", bootstrap=50, sampler="transport", progress=False)
