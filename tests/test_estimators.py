"""Estimators: their attributes are those of the calibration, and they pass the checks of scikit-learn."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import calibayes as cb
from calibayes import design
from calibayes._core.curve import Curve
from calibayes._validate.data import check_data
from calibayes.estimators import (
    GibbsRegressor,
    HuberRegressor,
    LogisticClassifier,
    QuantileRegressor,
    SVMClassifier,
)
from calibayes.report.source import calibration_script
from example_results import make_result

QUICK = {"bootstrap": 100, "sampler": "transport"}
ESTIMATORS = [QuantileRegressor(**QUICK), HuberRegressor(**QUICK), GibbsRegressor(**QUICK)]
ESTIMATORS += [SVMClassifier(**QUICK), LogisticClassifier(**QUICK)]


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
    function = GibbsRegressor(loss=lambda prediction, y: 0.5 * (y - prediction) ** 2, **QUICK).fit(frame, y)
    builtin = GibbsRegressor(loss=cb.losses.Squared(), **QUICK).fit(frame, y)
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
    with pytest.raises(TypeError, match="loss must be one of"):
        GibbsRegressor(loss="squared").fit(*data)


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

    def calibrate(model, data, *, names, level, region, seed, **_):
        x, y = check_data(model, data, names).data
        theta = np.linalg.lstsq(x.T @ x + 1e-8 * np.eye(x.shape[1]), x.T @ y)[0]
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


EXACT_FIT = {"check_regressors_no_decision_function": "y is a column of X: the posterior is degenerate"}


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
