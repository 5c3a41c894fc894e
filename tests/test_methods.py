"""Methods that set the learning rate, on heteroscedastic least squares, where all of them have closed forms."""

import jax
import numpy as np
import pytest
from scipy import stats

import calibayes as cb
from calibayes.compare import compare_with
from calibayes.methods import as_method, label
from calibayes.methods.base import describe_host_nuisance
from calibayes.methods.moments import LearningRate, sum_of_outer_products, unresolved
from calibayes.methods.shape import require_near_normal
from calibayes.methods.studentized import chi_squared_quantile
from calibayes.report import write

N, K, B, M = 96, 4, 400, 500
MODEL = cb.GibbsModel(cb.losses.Squared(), cb.priors.Normal(scale=100.0))
GROUPS = np.repeat(np.arange(24), 4)
pytestmark = pytest.mark.filterwarnings("ignore::calibayes.CalibrationWarning")


def make_data():
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(N), rng.normal(size=(N, K - 1))])
    return x, x @ [1.0, 2.0, 0.0, -1.0] + rng.normal(size=N) * (0.3 + 1.5 * np.abs(x[:, 1]))


DATA = make_data()


def calibrate(**options):
    settings = {"sampler": cb.Transport(n_particles=M), "bootstrap": cb.bootstrap.Multinomial(B)}
    return cb.calibrate(MODEL, DATA, **settings | {"seed": 0, "progress": False} | options)


def closed_form(sums=lambda scores: scores):
    """Return H^-1 and H^-1 J H^-1 of least squares; `sums` adds up the gradients of dependent observations."""
    x, y = DATA
    fit = np.linalg.lstsq(x, y)[0]
    scores = sums(x * (y - x @ fit)[:, None])
    inverse = np.linalg.inv(x.T @ x)
    return inverse, inverse @ scores.T @ scores @ inverse


def critical_and_matching(counts, vector=None):
    """Return the critical eta and the matching eta of every replicate, and the matching eta of the data."""
    x, y = DATA
    precision = np.einsum("bn,nk,nj->bkj", counts, x, x)
    fits = np.linalg.solve(precision, np.einsum("bn,nk->bk", counts * y, x)[..., None])[..., 0]
    gaps, inverse = fits - np.linalg.lstsq(x, y)[0], np.linalg.inv(precision)
    scores = np.einsum("bn,nk,nj->bkj", counts * (y - fits @ x.T) ** 2, x, x)
    bread, sandwich = closed_form()
    if vector is None:
        critical = stats.chi2(K).ppf(0.95) / np.einsum("bk,bkj,bj->b", gaps, precision, gaps)
        own = K / np.trace(inverse @ scores, axis1=1, axis2=2)
        return critical, own, K / np.trace(np.linalg.solve(bread, sandwich))
    variance, robust = inverse @ vector @ vector, inverse @ scores @ inverse @ vector @ vector
    critical = stats.chi2(1).ppf(0.95) * variance / np.square(gaps @ vector)
    return critical, variance / robust, (bread @ vector @ vector) / (sandwich @ vector @ vector)


def studentized(counts, vector=None):
    critical, own, of_data = critical_and_matching(counts, vector)
    low, high = np.sort(critical / own)[[B // 20 - 1, B // 20]]
    return of_data * np.sqrt(low * high)


@pytest.fixture(scope="module")
def matched():
    return calibrate(method="matching")


@pytest.fixture(scope="module")
def comparison():
    settings = {"sampler": cb.Transport(n_particles=M), "bootstrap": cb.bootstrap.Multinomial(B)}
    methods = ["matching", "gpc", "gpc-studentized", "lyddon-holmes-walker", cb.methods.Fixed(0.2)]
    return cb.compare(MODEL, DATA, methods, names=list("abcd"), seed=0, progress=False, **settings)


def test_matching_is_the_ratio_of_posterior_and_sandwich(matched):
    """The error of 10,000 draws is 1.3%, which the result states: four of those."""
    inverse, sandwich = closed_form()
    expected = K / np.trace(np.linalg.solve(inverse, sandwich))
    assert abs(matched.eta - expected) < 4 * matched.eta_se
    assert 0.002 < matched.eta_se / matched.eta < 0.03
    assert matched.status is cb.Status.COMPUTED
    assert matched.converged


def test_intervals_have_the_variance_of_the_sandwich(matched):
    inverse, sandwich = closed_form()
    intervals = matched.intervals()
    assert (np.abs(intervals.eta - np.diag(inverse) / np.diag(sandwich)) < 5 * intervals.eta_se).all()
    np.testing.assert_allclose(np.ptp(intervals.bounds, axis=1), 3.92 * np.sqrt(np.diag(sandwich)), rtol=0.08)


def test_interval_region_has_the_learning_rate_of_its_parameter(matched):
    of_slope = matched.at(region=cb.regions.Interval(1))
    assert of_slope.status is cb.Status.COMPUTED
    np.testing.assert_allclose(of_slope.eta, matched.intervals().eta[1], rtol=1e-6)


def test_error_about_the_learning_rate_of_an_interval_makes_it_unreliable(matched, monkeypatch):
    findings = unresolved("Three replicates failed.", cb.Severity.ERROR, 3)
    rates = [LearningRate(matched.eta, 0.1, findings), *[LearningRate(matched.eta, 0.1)] * (K - 1)]
    monkeypatch.setattr(cb.methods.Matching, "interval_etas", lambda *_: rates)
    intervals = matched.intervals(level=0.7)
    assert intervals.status == [cb.Status.UNRELIABLE, *[cb.Status.COMPUTED] * (K - 1)]
    assert intervals.diagnostics == [list(findings), *[[]] * (K - 1)]


def test_lyddon_holmes_walker_is_the_ratio_of_the_traces(comparison):
    result = comparison["lyddon-holmes-walker"]
    inverse, sandwich = closed_form()
    expected = np.trace(np.linalg.inv(sandwich)) / np.trace(np.linalg.inv(inverse))
    assert abs(result.eta - expected) < 4 * result.eta_se
    assert cb.Code.COVERAGE_OFF_LEVEL in {finding.code for finding in result.diagnostics}


def test_studentized_calibration_matches_the_closed_form(comparison):
    """The replicates are the same; critical levels of 500 particles have errors of 3% of eta, and the Hessians too."""
    result, intervals = comparison["gpc-studentized"], comparison["gpc-studentized"].intervals()
    counts = comparison["gpc"].counts
    np.testing.assert_allclose(result.eta, studentized(counts), rtol=0.12)
    expected = [studentized(counts, vector) for vector in np.eye(K)]
    np.testing.assert_allclose(intervals.eta, expected, rtol=0.15)
    assert result.coverage > 0.95


def test_gpc_is_the_default_and_its_method_does_not_change_it(comparison):
    default = calibrate(names=list("abcd"))
    assert default.eta == comparison["gpc"].eta
    np.testing.assert_array_equal(default.draws, comparison["gpc"].draws)
    np.testing.assert_array_equal(np.asarray(default.intervals()), np.asarray(comparison["gpc"].intervals()))


def test_comparison_is_a_table_of_all_methods(comparison):
    frame = comparison.to_frame()
    labels = ["matching", "gpc", "gpc-studentized", "lyddon-holmes-walker", "fixed(0.2)"]
    assert list(frame.index) == list(comparison) == labels
    widths = [f"width {name}" for name in "abcd"]
    assert list(frame.columns) == ["eta", "eta_se", "coverage", *widths, "seconds", "status", "diagnostics"]
    assert frame.loc["fixed(0.2)", "eta"] == 0.2
    assert frame.loc["gpc", "status"] == "CONVERGED"
    assert frame.notna().all(axis=None)
    assert all(label in text for label in labels for text in (repr(comparison), comparison._repr_html_()))


def test_methods_after_the_first_share_its_particles(comparison, matched):
    """The comparison reads matching off the draws and the curve of the first method."""
    np.testing.assert_allclose(comparison["matching"].eta, matched.eta, rtol=0.02)
    assert comparison.to_frame().loc["matching", "seconds"] < comparison.to_frame().loc["gpc", "seconds"]


def test_method_that_fails_is_reported_in_the_table():
    """Blocks have no studentized calibration."""
    bootstrap = cb.bootstrap.Block(B, length=4)
    options = {"bootstrap": bootstrap, "sampler": cb.Transport(n_particles=M), "progress": False}
    comparison = cb.compare(MODEL, DATA, ["gpc-studentized", "matching", "safe-bayes"], **options)
    # Also if it is the first one.
    assert list(comparison.to_frame()["status"]) == ["FAILED", "COMPUTED", "FAILED"]
    with pytest.raises(ValueError, match=r"bootstrap\.Block"):
        comparison["gpc-studentized"]
    with pytest.raises(ValueError, match=r"bootstrap\.Block"):
        calibrate(method="gpc-studentized", bootstrap=bootstrap)
    with pytest.raises(ValueError, match=r"bootstrap\.Block"):
        cb.compare(MODEL, DATA, ["gpc-studentized", "safe-bayes"], **options)


def test_sandwich_without_the_nuisance_parameters_is_a_warning():
    """Those that are fitted on the host are not differentiated."""
    centred = lambda theta, data, counts, mean: 0.5 * counts @ (data - mean - theta[0]) ** 2
    mean = lambda data, counts: jax.numpy.asarray(np.average(np.asarray(data), weights=np.asarray(counts)))
    risks = [
        cb.GibbsModel.from_risk(centred, MODEL.prior, dim=1, nuisance=mean, nuisance_on_host=on_host).loss
        for on_host in (True, False)
    ]
    chosen = ["gpc", "bayesbag", cb.methods.Fixed(1.0), "matching", "gpc-studentized", "gpc-double", "q-posterior"]
    findings = [describe_host_nuisance(risks[0], as_method(method), False) for method in chosen]
    assert [len(of_method) for of_method in findings] == [0, 0, 0, 1, 1, 1, 1]
    assert findings[3][0].severity is cb.Severity.WARNING
    assert "orthogonal score" in findings[3][0].message
    assert len(describe_host_nuisance(risks[0], as_method("gpc"), True)) == 1
    assert not describe_host_nuisance(risks[1], as_method("matching"), True)


def test_result_with_nuisance_parameters_on_the_host_has_the_warning():
    centred = lambda theta, data, counts, mean: 0.5 * counts @ (data - 0.0 * mean - theta[0]) ** 2
    mean = lambda data, counts: jax.numpy.asarray(np.average(np.asarray(data), weights=np.asarray(counts)))
    model = cb.GibbsModel.from_risk(centred, MODEL.prior, dim=1, nuisance=mean, nuisance_on_host=True)
    result = cb.calibrate(
        model, DATA[1], method="matching", bootstrap=50, sampler=cb.Transport(n_particles=M), progress=False
    )
    assert cb.Code.NOT_RESOLVED in {finding.code for finding in result.diagnostics}
    fixed = compare_with(result, [cb.methods.Fixed(1.0)])["fixed(1)"]
    assert cb.Code.NOT_RESOLVED not in {finding.code for finding in fixed.diagnostics}


def test_fixed_and_coarsened_use_their_numbers():
    fixed = calibrate(method=cb.methods.Coarsened(24.0))
    assert fixed.eta == 24.0 / (24.0 + N)
    assert fixed.eta_se == 0
    assert (fixed.intervals().eta == fixed.eta).all()


def test_sandwich_shape_calibrates_all_intervals_at_once():
    """At the matching learning rate the covariance of the draws is the sandwich, and every interval is nominal."""
    shaped = calibrate(method="matching", shape="sandwich")
    _, sandwich = closed_form()
    covariance = np.cov(shaped.draws.T)
    scale = np.sqrt(np.diag(sandwich))
    np.testing.assert_allclose(covariance / np.outer(scale, scale), sandwich / np.outer(scale, scale), atol=0.12)
    np.testing.assert_allclose(shaped.intervals().eta, shaped.eta)
    etas = calibrate(shape="sandwich").intervals().eta
    assert etas.max() / etas.min() < 1.4 < calibrate().intervals().eta.max() / calibrate().intervals().eta.min()


def test_shape_of_a_posterior_far_from_normal_is_refused():
    rng = np.random.default_rng(0)
    weights = np.full(4000, 1 / 4000)
    require_near_normal(rng.normal(size=(2, 4000)), weights)
    for z in (np.log(rng.exponential(size=(1, 4000))), rng.normal(size=(1, 4000)) + rng.choice([-5, 5], 4000)):
        with pytest.raises(ValueError, match="near normal"):
            require_near_normal(z, weights)


def test_dependent_observations_are_summed_before_the_outer_product():
    """Clusters by their sums; circular blocks as the variance of the circular block bootstrap, by enumeration."""
    influences = np.random.default_rng(0).normal(size=(2, 12))
    groups = np.repeat(np.arange(4), 3)
    sums = influences.reshape(2, 4, 3).sum(2)
    np.testing.assert_allclose(
        sum_of_outer_products(influences, cb.bootstrap.Cluster(10, groups=groups)), sums @ sums.T
    )
    blocks = np.stack([np.roll(influences, -s, axis=1)[:, :3].sum(1) for s in range(12)])
    expected = 4 * np.mean([np.outer(block, block) for block in blocks], axis=0)
    np.testing.assert_allclose(sum_of_outer_products(influences, cb.bootstrap.Block(10, length=3)), expected)
    np.testing.assert_allclose(
        sum_of_outer_products(influences, cb.bootstrap.Block(10, length=1)), sum_of_outer_products(influences, None)
    )


@pytest.mark.parametrize("clustered", [False, True])
def test_outer_products_within_strata_are_the_covariance_of_the_bootstrap(clustered):
    """The variance of sums of influences times counts, with strata of two and three units; by 20,000 replicates."""
    influences = np.random.default_rng(0).normal(size=(2, 10))
    units, strata = np.repeat(np.arange(5), 2), np.repeat([0, 1], [4, 6])
    bootstrap = cb.bootstrap.Cluster(20_000, units, strata) if clustered else cb.bootstrap.Stratified(20_000, strata)
    sums = np.asarray(bootstrap.counts(jax.random.key(0), 10), float) @ influences.T
    centred = sums - influences.sum(1)
    products = centred[:, :, None] * centred[:, None, :]
    error = products.std(0) / len(sums) ** 0.5
    assert (np.abs(products.mean(0) - sum_of_outer_products(influences, bootstrap)) < 5 * error).all()


def test_matching_uses_the_clusters_of_the_bootstrap():
    result = calibrate(method="matching", bootstrap=cb.bootstrap.Cluster(B, groups=GROUPS))
    inverse, sandwich = closed_form(lambda scores: scores.reshape(24, 4, K).sum(1))
    expected = K / np.trace(np.linalg.solve(inverse, sandwich))
    assert abs(result.eta - expected) < 4 * result.eta_se


def test_other_methods_are_saved_and_reported(matched, tmp_path):
    matched.intervals()
    loaded = cb.load(matched.save(tmp_path / "matched.nc"))
    assert (loaded.eta, loaded.eta_se, loaded.status) == (matched.eta, matched.eta_se, cb.Status.COMPUTED)
    for result in (matched, loaded):
        page = result.report(tmp_path / "matched.html").read_text()
        assert "sandwich covariance" in page
        assert "method=&quot;matching&quot;" in page or 'method="matching"' in page


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "gcp"}, "method must be one of gpc, gpc-studentized, gpc-double, matching"),
        ({"method": "fixed"}, r"use cb\.methods\.Fixed\(eta\)"),
        ({"shape": "round"}, 'shape must be None or "sandwich"'),
    ],
)
def test_invalid_names_raise_before_anything_is_compiled(options, message):
    with pytest.raises(ValueError, match=message):
        calibrate(**options)


def test_invalid_numbers_and_lists_of_methods_raise():
    with pytest.raises(ValueError, match="eta must be positive"):
        cb.methods.Fixed(-1.0)
    with pytest.raises(ValueError, match="different from each other"):
        cb.compare(MODEL, DATA, ["gpc", "gpc"])
    with pytest.raises(TypeError, match="list of methods"):
        cb.compare(MODEL, DATA, "gpc")


@pytest.mark.parametrize("dim", [1, 2, 10])
def test_chi_squared_quantile(dim):
    probabilities = np.array([0.5, 0.9, 0.95, 0.999])
    ours = [chi_squared_quantile(p, dim) for p in probabilities]
    np.testing.assert_allclose(ours, stats.chi2(dim).ppf(probabilities), rtol=0.03)


def test_finished_calibration_is_compared_with_other_methods(matched, tmp_path):
    """The method of the result comes first. The report contains the table."""
    comparison = compare_with(matched, [cb.methods.Fixed(0.2)], seconds=1.5)
    assert list(comparison) == ["matching", "fixed(0.2)"]
    assert comparison["matching"] is matched
    assert comparison.rows[0].seconds >= 1.5
    page = write(matched, tmp_path / "page.html", comparison=comparison).read_text()
    assert "Comparison of methods" in page
    assert all(f">{text}</" in page for row in comparison.cells() for text in row if text)
    loaded = cb.load(matched.save(tmp_path / "matched.nc"))
    with pytest.raises(RuntimeError, match="no particles"):
        compare_with(loaded)


def test_labels_state_parameters_that_are_not_the_default():
    assert label(cb.methods.SafeBayes()) == "safe-bayes"
    assert label(cb.methods.SafeBayes("I-log", [0.5, 1.0])) == "safe-bayes(I-log, (0.5, 1.0))"
    assert label(cb.methods.BayesBag(0.5)) == "bayesbag(0.5)"


def test_gradients_of_the_check_loss_are_not_averaged_over_the_posterior():
    """J is X'X / 4 exactly: covariances of draws and losses would give a quarter less for 50 observations."""
    x, y = cb.datasets.median_regression(50, seed=0)
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    options = {"sampler": cb.Transport(n_particles=M), "bootstrap": 50, "seed": 0, "progress": False}
    estimates = cb.calibrate(model, (x, y), method="matching", **options).calibration.draws.moments
    hessian = np.linalg.inv(estimates.moments.inverse_hessian)
    np.testing.assert_allclose(hessian @ estimates.moments.sandwich @ hessian, x.T @ x / 4, rtol=1e-4)
    assert estimates.uses_derivative
    by_derivative, by_covariance = estimates.traces
    assert by_covariance < 0.95 * by_derivative


@pytest.mark.slow
def test_moments_of_median_regression_are_those_of_normal_errors():
    """H is f(0) X'X with the normal density f, and J is X'X / 4.

    Draws have an error of 2%. The risk of these data bends at about 300 residuals that are within a standard deviation
    of the posterior of zero, so that its Hessian differs from the expected one by about 6%, and eta by as much.
    """
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(100_000), rng.normal(size=(100_000, 2))])
    y = x @ [1.0, 2.0, -1.0] + rng.normal(size=100_000)
    model = cb.GibbsModel(cb.losses.Quantile(0.5), cb.priors.Normal(scale=100.0))
    result = cb.calibrate(model, (x, y), method="matching", bootstrap=50, seed=0, progress=False)
    moments, gram, density = result.calibration.draws.moments.moments, x.T @ x, stats.norm.pdf(0)
    hessian = np.linalg.inv(moments.inverse_hessian)
    unit = np.sqrt(np.outer(np.diag(gram), np.diag(gram)))
    np.testing.assert_allclose(hessian / (density * unit), gram / unit, atol=0.24)
    np.testing.assert_allclose(hessian @ moments.sandwich @ hessian / (0.25 * unit), gram / unit, atol=0.1)
    assert result.eta == pytest.approx(4 * density, rel=0.15)
