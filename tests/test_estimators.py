"""Estimators: their attributes are those of the calibration, and they pass the checks of scikit-learn."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import calibayes as cb
from calibayes import design
from calibayes._core.curve import Curve
from calibayes._validate.data import check_data
from calibayes.estimators import (
    ExpectileRegressor,
    GibbsRegressor,
    HuberRegressor,
    LogisticClassifier,
    MultiQuantileRegressor,
    PoissonRegressor,
    QuantileRegressor,
    SVMClassifier,
)
from calibayes.report.source import calibration_script
from example_results import make_result

QUICK = {"bootstrap": 100, "sampler": "transport"}
ESTIMATORS = [QuantileRegressor(**QUICK), HuberRegressor(**QUICK), GibbsRegressor(**QUICK)]
ESTIMATORS += [SVMClassifier(**QUICK), LogisticClassifier(**QUICK), ExpectileRegressor(**QUICK)]
ESTIMATORS += [PoissonRegressor(**QUICK), MultiQuantileRegressor(**QUICK)]


def table(n=80, seed=0):
    """Simulate y = 100 + 3 a - 20 b + noise, with columns in different units."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"a": 2000 + 10 * rng.normal(size=n), "b": 0.1 * rng.normal(size=n)})
    return frame, 100 + 3 * frame["a"] - 20 * frame["b"] + rng.normal(size=n)


@pytest.fixture(scope="module")
def data():
    return table()


@pytest.fixture(scope="module")
def fitted(data):
    return QuantileRegressor(**QUICK).fit(*data)


def test_coefficients_are_close_to_the_truth(fitted, data):
    """Tolerance: five posterior standard deviations."""
    spread = fitted.result_.draws.std(0)[1:]
    assert (np.abs(fitted.coef_ - [3, -20]) < 5 * spread).all()
    np.testing.assert_allclose(fitted.predict(data[0]), fitted.intercept_ + data[0].to_numpy() @ fitted.coef_)
    assert np.abs(fitted.predict(data[0]) - data[1]).mean() < 1.2
    assert list(fitted.feature_names_in_) == ["a", "b"]
    assert fitted.result_.names == ["intercept", "a", "b"]
    assert fitted.eta_ == fitted.result_.eta


def test_coefficient_intervals_are_calibrated_separately(fitted):
    intervals = fitted.result_.intervals()
    np.testing.assert_array_equal(fitted.coef_interval_, intervals.bounds[1:])
    np.testing.assert_array_equal(fitted.coef_eta_, intervals.eta[1:])
    assert fitted.coef_interval_.shape == (2, 2)
    assert (fitted.coef_interval_[:, 0] < fitted.coef_).all()
    assert (fitted.coef_ < fitted.coef_interval_[:, 1]).all()


def test_intercept_is_the_prediction_at_zero_columns(fitted, data):
    """In the draws, in the intervals, in a region and in predictions."""
    result, zero = fitted.result_, pd.DataFrame({"a": [0.0], "b": [0.0]})
    intervals = result.intervals()
    np.testing.assert_array_equal(fitted.intercept_interval_, intervals.bounds[0])
    np.testing.assert_allclose(fitted.predict_interval(zero)[0], intervals.bounds[0], rtol=1e-6)
    assert fitted.predict(zero)[0] == fitted.intercept_ == result.estimate[0]
    # Far from the centre of the data, the uncertainty of the line is that of the slope.
    centre = data[0].mean().to_numpy()
    assert np.diff(intervals.bounds[0])[0] == pytest.approx(centre[0] * np.diff(intervals.bounds[1])[0], rel=0.05)
    assert (result.draws @ [1, *centre]).std() < 0.01 * result.draws[:, 0].std()
    # Eta from the particles of the joint region and from a separate search: over seeds they differ by 6%, up to 16%.
    separate = result.at(region=cb.regions.Interval(0))
    assert separate.eta == pytest.approx(intervals.eta[0], rel=0.25)
    assert separate.region == cb.regions.Interval(0)
    assert result.level_of(result.estimate) < 0.2
    np.testing.assert_array_equal(result.posterior(result.eta), result.draws)


def test_large_offset_of_y_changes_only_the_intercept(fitted, data):
    """At 1e7 the spacing of float32 is 1, as large as the noise. Tolerance: a tenth of the width of an interval."""
    frame, y = data
    shifted = QuantileRegressor(**QUICK).fit(frame, y + 1e7)
    for name in ("coef_", "intercept_"):
        width = np.diff(getattr(fitted, f"{name[:-1]}_interval_"), axis=-1).squeeze(-1)
        shift = 1e7 * (name == "intercept_")
        assert (np.abs(getattr(shifted, name) - shift - getattr(fitted, name)) < 0.1 * width).all()
        difference = getattr(shifted, f"{name[:-1]}_interval_") - shift - getattr(fitted, f"{name[:-1]}_interval_")
        assert (np.abs(difference) < 0.1 * width[..., None]).all()
    np.testing.assert_allclose(shifted.predict(frame) - 1e7, fitted.predict(frame), atol=0.05)
    expected, moved_back = fitted.predict_interval(frame[:3]), shifted.predict_interval(frame[:3]) - 1e7
    np.testing.assert_allclose(moved_back, expected, atol=0.1 * np.diff(expected).max())
    np.testing.assert_array_equal(shifted.result_.data[1], y + 1e7)


def test_script_of_the_report_repeats_the_fit(fitted, data):
    names = {"X": data[0], "y": data[1]}
    exec(calibration_script(fitted.result_.at(level=0.8, region="box")), names)
    assert names["result"].eta == fitted.result_.at(level=0.8, region="box").eta
    source = QuantileRegressor(0.9, prior=cb.priors.Normal(scale=5.0))._source(7).splitlines()
    assert source[0] == "import calibayes as cb"
    assert "QuantileRegressor(prior=cb.priors.Normal(scale=5.0), random_state=7, tau=0.9).fit(X, y)" in source[-1]


def test_predict_interval_is_the_interval_of_the_linear_combination(fitted, data):
    rows = data[0].iloc[[0, 3, 0]]
    bounds = fitted.predict_interval(rows)
    np.testing.assert_array_equal(bounds[0], bounds[2])
    vector = np.array([1.0, *rows.iloc[1]])
    np.testing.assert_allclose(bounds[1], fitted.result_.intervals(of=[vector]).bounds[0], rtol=1e-6)
    assert (np.diff(fitted.predict_interval(rows, level=0.5)) < np.diff(bounds)).all()
    assert ((bounds[:, 0] < fitted.predict(rows)) & (fitted.predict(rows) < bounds[:, 1])).all()


def test_fit_is_equivariant_under_a_change_of_units(fitted, data):
    """With y and a in thousandths the posterior is the same. Tolerance: a tenth of the width of an interval."""
    frame, y = data
    rescaled = QuantileRegressor(**QUICK).fit(frame.assign(a=1000 * frame["a"]), 1000 * y)
    width = np.diff(fitted.coef_interval_)[:, 0]
    np.testing.assert_allclose(rescaled.coef_interval_[0], fitted.coef_interval_[0], atol=0.1 * width[0])
    np.testing.assert_allclose(rescaled.coef_interval_[1] / 1000, fitted.coef_interval_[1], atol=0.1 * width[1])
    assert rescaled.eta_ * 1000 == pytest.approx(fitted.eta_, rel=0.1)


def test_pickled_estimator_gives_the_same_intervals(fitted, data):
    copied = pickle.loads(pickle.dumps(fitted))
    rows = data[0][:2]
    np.testing.assert_array_equal(copied.predict(rows), fitted.predict(rows))
    np.testing.assert_allclose(copied.predict_interval(rows), fitted.predict_interval(rows), rtol=1e-6)
    np.testing.assert_allclose(copied.coef_interval_, fitted.coef_interval_, rtol=1e-6)


def test_estimator_works_in_a_pipeline_and_in_cross_validation(data, least_squares):
    pipe = make_pipeline(StandardScaler(), QuantileRegressor(**QUICK))
    assert cross_val_score(pipe, *data, cv=2).min() > 0.95


@pytest.mark.slow
def test_gibbs_regressor_with_a_function_matches_the_builtin_loss(data):
    frame, y = data
    # With fewer replicates a standard error of eta can be unknown, which is a warning.
    enough = QUICK | {"bootstrap": 500}
    function = GibbsRegressor(loss=lambda prediction, y: 0.5 * (y - prediction) ** 2, **enough).fit(frame, y)
    builtin = GibbsRegressor(loss=cb.losses.Squared(), **enough).fit(frame, y)
    assert (np.abs(function.coef_ - builtin.coef_) < 0.1 * np.diff(builtin.coef_interval_)[:, 0]).all()


def test_default_huber_delta_follows_the_noise(data, least_squares):
    """1.345 standard deviations of the noise, whose estimate from 80 residuals has a standard error of about 15%."""
    frame, y = data
    assert HuberRegressor(**QUICK).fit(frame, y).delta_ == pytest.approx(1.345, rel=0.45)
    assert HuberRegressor(delta=2.0, **QUICK).fit(frame, y).delta_ == 2.0


def labels(data):
    frame, y = data
    return frame, np.where(y - 3 * frame["a"] > 100, "high", "low")


@pytest.mark.slow
def test_classifier_intervals_contain_the_predictions(data):
    frame, label = labels(data)
    logistic = LogisticClassifier(**QUICK).fit(frame, label)
    probability = logistic.predict_proba(frame)[:3, 1]
    low, high = logistic.predict_interval(frame[:3]).T
    assert ((low > 0) & (low < probability) & (probability < high) & (high < 1)).all()
    margin = SVMClassifier(**QUICK).fit(frame, label)
    low, high = margin.predict_interval(frame[:3]).T
    assert ((low < margin.decision_function(frame[:3])) & (margin.decision_function(frame[:3]) < high)).all()


def test_classifiers_predict_labels_and_probabilities(data, least_squares):
    frame, label = labels(data)
    logistic = LogisticClassifier(**QUICK).fit(frame, label)
    assert list(logistic.classes_) == ["high", "low"]
    assert logistic.score(frame, label) > 0.8
    probability = logistic.predict_proba(frame)
    np.testing.assert_allclose(probability.sum(1), 1)
    np.testing.assert_array_equal(logistic.predict(frame) == "low", probability[:, 1] > 0.5)
    svm = SVMClassifier(**QUICK).fit(frame, label)
    assert svm.score(frame, label) > 0.8
    assert not hasattr(svm, "predict_proba")
    with pytest.raises(ValueError, match="Only binary"):
        svm.fit(frame, np.arange(len(frame)) % 3)


def test_fit_without_intercept(data, least_squares):
    frame, y = data
    plain = QuantileRegressor(fit_intercept=False, **QUICK).fit(frame, y)
    assert plain.intercept_ == 0
    assert plain.result_.names == ["a", "b"]
    np.testing.assert_array_equal(plain.intercept_interval_, 0)
    np.testing.assert_allclose(plain.predict(frame), frame.to_numpy() @ plain.coef_)


def test_invalid_loss_is_rejected(data):
    with pytest.raises(ValueError, match=r"loss must be one of quantile, absolute, .*got 'cubic'"):
        GibbsRegressor(loss="cubic").fit(*data)
    with pytest.raises(TypeError, match=r"loss must be one of calibayes\.losses, its name, or a function"):
        GibbsRegressor(loss=3).fit(*data)


@pytest.mark.parametrize("dtype", ["object", "string", "category"])
def test_columns_of_text_are_named(data, dtype):
    frame, y = data
    frame = frame.assign(site=pd.Series(["a", "b"] * (len(y) // 2), dtype=dtype))
    for estimator, target in ((QuantileRegressor(), y), (SVMClassifier(), y > y.median())):
        with pytest.raises(ValueError, match=r"these columns do not: site\. Encode them"):
            estimator.fit(frame, target)


def test_losses_are_available_by_name(data, least_squares):
    fitted = GibbsRegressor(loss="huber", **QUICK).fit(*data)
    assert isinstance(fitted._loss(), cb.losses.Huber)
    assert 'loss="huber"' in fitted._source(0)


def test_sample_weight_reaches_design_and_calibration(data, monkeypatch):
    """An integer weight repeats a row also in the centring, the default prior and the default threshold of Huber."""
    calls = []

    def calibrate(model, arrays, *, weights=None, **_):
        calls.append((model, arrays, weights))
        raise RuntimeError

    monkeypatch.setattr(design, "calibrate", calibrate)
    frame, y = data
    repeats = np.random.default_rng(1).integers(0, 3, len(y))
    for columns, response, weights in (
        (frame, y, repeats),
        (frame.loc[frame.index.repeat(repeats)], np.repeat(y, repeats), None),
    ):
        with pytest.raises(RuntimeError):
            HuberRegressor(**QUICK).fit(columns, response, sample_weight=weights)
    (weighted, arrays, weights), (expected, expanded, none) = calls
    np.testing.assert_array_equal(weights, repeats)
    assert none is None
    assert float(weighted.loss.delta) == pytest.approx(float(expected.loss.delta), rel=1e-5)
    np.testing.assert_allclose(weighted.prior.scale, expected.prior.scale, rtol=1e-5)
    np.testing.assert_allclose(np.repeat(arrays[0], repeats, axis=0), expanded[0], atol=1e-9)
    np.testing.assert_allclose(np.repeat(arrays[1], repeats), expanded[1])
    assert "fit(X, y, sample_weight=weights)" in HuberRegressor()._source(0, weighted=True)


def test_score_and_search_route_weights_and_parameters(data, least_squares):
    """Grid search over a parameter of the loss, with weights of the rows."""
    frame, y = data
    search = GridSearchCV(QuantileRegressor(**QUICK), {"tau": [0.25, 0.5]}, cv=2)
    search.fit(frame, y, sample_weight=np.arange(len(y)) % 3)
    assert search.best_params_["tau"] in (0.25, 0.5)
    with config_context(enable_metadata_routing=True):
        estimator = QuantileRegressor(**QUICK).set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        scores = cross_validate(estimator, frame, y, cv=2, params={"sample_weight": np.ones(len(y))})
    assert scores["test_score"].min() > 0.9
    assert QuantileRegressor(random_state=None, **QUICK).fit(frame, y).score(frame, y, np.ones(len(y))) > 0.9


def test_class_without_weight_is_rejected(data):
    frame, label = labels(data)
    with pytest.raises(ValueError, match="only one class where sample_weight is positive"):
        SVMClassifier(**QUICK).fit(frame, label, sample_weight=(label == "high").astype(float))


def test_predicted_quantiles_do_not_cross(data, monkeypatch, least_squares):
    """All quantiles are those of the same estimator here; lines that cross are counted, and predictions sorted."""
    frame, y = data
    model = MultiQuantileRegressor([0.25, 0.75], **QUICK).fit(frame, y)
    assert model.n_crossings_ == 0
    assert model.coef_.shape == (2, 2)
    model.coef_[1] *= -1
    assert (np.diff(model.predict(frame), axis=1) >= 0).all()
    for taus in ([0.5, 0.25], [0.5, 1.5], []):
        with pytest.raises(ValueError, match="taus"):
            MultiQuantileRegressor(taus).fit(frame, y)


@pytest.mark.slow
def test_poisson_intervals_contain_the_truth():
    """Counts with a logarithmic mean, also far from zero. Tolerance: four standard errors."""
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(200, 2)) * [1, 5]
    for intercept in (0.0, 4.0):
        counts = rng.poisson(np.exp(intercept + columns @ [0.5, 0.1]))
        model = PoissonRegressor(**QUICK).fit(columns, counts)
        errors = np.ptp(model.coef_interval_, 1) / 4
        assert (np.abs(model.coef_ - [0.5, 0.1]) < 4 * errors).all()
        low, high = model.predict_interval(columns[:3]).T
        assert ((low > 0) & (low < model.predict(columns[:3])) & (model.predict(columns[:3]) < high)).all()
    with pytest.raises(ValueError, match="y must not be negative for Poisson; the smallest is -1"):
        PoissonRegressor(**QUICK).fit(columns, -(counts > 0).astype(float))


def test_unfitted_estimator_raises(data):
    for access in (lambda m: m.coef_interval_, lambda m: m.predict_interval(data[0]), lambda m: m.predict(data[0])):
        with pytest.raises(NotFittedError):
            access(QuantileRegressor())


def test_clone_keeps_the_parameters(data):
    model = QuantileRegressor(0.9, level=0.8, region="box", random_state=3)
    assert clone(model).get_params() == model.get_params()
    assert model.get_params()["tau"] == 0.9


@pytest.fixture
def least_squares(monkeypatch):
    """Replace the calibration, which would compile for every shape in the checks of scikit-learn."""

    def calibrate(model, data, *, names, level, region, seed, weights=None, **_):
        x, y = check_data(model, data, names).data
        y = np.log(np.maximum(y, 0.5)) if model.loss.log_link else y
        scaled = x if weights is None else x * weights[:, None] / weights.mean()
        theta = np.linalg.lstsq(scaled.T @ x + 1e-8 * np.eye(x.shape[1]), scaled.T @ y)[0]
        draws = theta + np.zeros((100, 1))
        return make_result(
            eta=1.0,
            eta_se=0.1,
            coverage=cb.Coverage(95, 100),
            trace=[],
            draws=draws,
            risk=np.zeros(100),
            curve=Curve.empty(100, level),
            estimate=theta,
            level=level,
            names=list(names),
            repaired_replicates=np.zeros(0, int),
            region=cb.regions.as_region(region),
            settings={"seed": seed},
            versions={},
        )

    monkeypatch.setattr(design, "calibrate", calibrate)


EXACT_FIT = {
    "check_regressors_no_decision_function": "y is a column of X: the posterior is degenerate",
    "check_sample_weights_shape": "y is a linear function of X: the posterior is degenerate",
    "check_sample_weights_not_overwritten": "y is a linear function of X: the posterior is degenerate",
    "check_sample_weight_equivalence_on_dense_data": "X determines y; otherwise equal up to Monte Carlo error",
}


@pytest.mark.filterwarnings("ignore::calibayes.CalibrationWarning")
@parametrize_with_checks(ESTIMATORS, expected_failed_checks=lambda estimator: EXACT_FIT)
def test_scikit_learn_checks(estimator, check, least_squares):
    """Input validation, errors, cloning and predictions; `pytest -m slow` repeats them with calibrations."""
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::calibayes.CalibrationWarning")
@parametrize_with_checks(ESTIMATORS, expected_failed_checks=lambda estimator: EXACT_FIT)
def test_scikit_learn_checks_with_calibrations(estimator, check):
    check(estimator)


def test_method_and_shape_are_those_of_the_calibration(data):
    """Cloned, written out as code, and used by the intervals."""
    estimator = clone(GibbsRegressor(method="matching", shape="sandwich", **QUICK)).fit(*data)
    result = estimator.result_
    assert result.status is cb.Status.COMPUTED
    assert result.settings["shape"] == "sandwich"
    np.testing.assert_allclose(estimator.coef_eta_, estimator.eta_)
    assert all(part in calibration_script(result) for part in ('method="matching"', 'shape="sandwich"'))
