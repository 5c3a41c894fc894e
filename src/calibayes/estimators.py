"""scikit-learn estimators: linear models whose intervals cover as often as they say.

`fit` centres the columns, adds an intercept and a weak prior (`calibayes.design`), and calibrates the posterior of the
loss. `coef_` is the posterior mean. `eta_` is the joint learning rate of `region`; intervals, of a coefficient or of a
prediction, are each calibrated by themselves, at a learning rate of their own.

All take `level`, `region`, `prior`, `bootstrap` and `sampler` as `calibrate` does, `fit_intercept`, and `random_state`,
an int or what scikit-learn makes of it; unless told, two fits of the same data are the same. The intercept is the
prediction where every column is zero, in `intercept_`, in its interval and in `result_` alike. Only a prior of your own
is for the prediction at the columns' means, followed by the coefficients.
"""

from abc import abstractmethod
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets, type_of_target
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError("calibayes.estimators needs scikit-learn: pip install 'calibayes[sklearn]'.") from error

from calibayes import losses
from calibayes.design import Design
from calibayes.losses import LinearLoss
from calibayes.report.source import source
from calibayes.result import Intervals, Result


class _Linear(BaseEstimator):
    """What all of them share. A subclass names its parameters, and makes its loss of them."""

    @abstractmethod
    def _loss(self) -> LinearLoss:
        """Of its parameters."""

    def _calibrate(self, columns: np.ndarray, y: np.ndarray) -> Any:
        design = Design.of(columns, self.fit_intercept)
        named = getattr(self, "feature_names_in_", [f"x{k}" for k in range(columns.shape[1])])
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(2**31 - 1)
        self._fit = partial(
            design.calibrate,
            self._loss(),
            columns,
            y,
            names=[str(name) for name in named],
            call=self._call(int(seed)),
            level=self.level,
            region=self.region,
            prior=self.prior,
            bootstrap=self.bootstrap,
            sampler=self.sampler,
            seed=int(seed),
            progress=False,
        )
        self._design = design
        self.result_: Result = self._fit()
        self.eta_ = self.result_.eta
        theta = self.result_.estimate
        self.coef_ = theta[1:] if self.fit_intercept else theta
        self.intercept_ = float(theta[0]) if self.fit_intercept else 0.0
        return self

    def _call(self, seed: int) -> str:
        """The code that fits it, with whatever is not as usual."""
        usual = type(self)().get_params(deep=False)
        given = self.get_params(deep=False) | {"random_state": seed}
        told = [f"{name}={source(value, name)}" for name, value in given.items() if value is not usual[name]]
        name = type(self).__name__
        made = f"result = {name}({', '.join(told)}).fit(X, y).result_"
        needed = ["import calibayes as cb"] if "cb." in made else []
        return "\n".join([*needed, f"from calibayes.estimators import {name}", "", made])

    def _asked(self) -> Result:
        """The result with its particles, which a copy or a pickle has lost: calibrated again, to the same numbers."""
        check_is_fitted(self)
        if self.result_.calibration is None:
            self.result_ = self._fit()
        return self.result_

    @property
    def coef_interval_(self) -> Float[np.ndarray, "P 2"]:
        """The coefficients' intervals at `level`, each at a learning rate of its own; found when first asked for."""
        return self._intervals.bounds[int(self._design.intercept) :]

    @property
    def coef_eta_(self) -> Float[np.ndarray, " P"]:
        """Those learning rates."""
        return self._intervals.eta[int(self._design.intercept) :]

    @property
    def intercept_interval_(self) -> Float[np.ndarray, " 2"]:
        """The intercept's interval, likewise: of the prediction where every column is zero."""
        check_is_fitted(self)
        return self._intervals.bounds[0] if self._design.intercept else np.zeros(2)

    @property
    def _intervals(self) -> Intervals:
        check_is_fitted(self)
        return (self._asked() if self.result_.kept is None else self.result_).intervals()

    def _predictions(self, X: Any) -> Float[np.ndarray, " N"]:
        check_is_fitted(self)
        columns = validate_data(self, X, dtype=np.float64, reset=False)
        return columns @ self.coef_ + self.intercept_

    def predict_interval(self, X: Any, level: float | None = None) -> Float[np.ndarray, "N 2"]:
        """Intervals for what is fitted at each row of X, not for a new y; each at a learning rate of its own."""
        result = self._asked()
        columns = validate_data(self, X, dtype=np.float64, reset=False)
        rows, where = np.unique(self._design.plain(columns), axis=0, return_inverse=True)
        return result.intervals(level, of=rows).bounds[where.reshape(-1)]


class _Regressor(RegressorMixin, _Linear):
    def fit(self, X: Any, y: Any) -> Any:
        columns, target = validate_data(self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2)
        return self._calibrate(columns, np.asarray(target, np.float64))

    def predict(self, X: Any) -> Float[np.ndarray, " N"]:
        return self._predictions(X)


class QuantileRegressor(_Regressor):
    """A quantile of y given X: the median, unless told."""

    def __init__(
        self,
        tau=0.5,
        *,
        level=0.95,
        region="hpd",
        prior=None,
        bootstrap=None,
        sampler="auto",
        fit_intercept=True,
        random_state=0,
    ):
        self.tau = tau
        self.level = level
        self.region = region
        self.prior = prior
        self.bootstrap = bootstrap
        self.sampler = sampler
        self.fit_intercept = fit_intercept
        self.random_state = random_state

    def _loss(self):
        return losses.Quantile(self.tau)


class HuberRegressor(_Regressor):
    """A mean of y given X that outliers cannot drag: residuals beyond `delta` count linearly.

    `delta` is in units of y; unless told it is 1.345 times a robust standard deviation of the least-squares residuals.
    """

    def __init__(
        self,
        delta=None,
        *,
        level=0.95,
        region="hpd",
        prior=None,
        bootstrap=None,
        sampler="auto",
        fit_intercept=True,
        random_state=0,
    ):
        self.delta = delta
        self.level = level
        self.region = region
        self.prior = prior
        self.bootstrap = bootstrap
        self.sampler = sampler
        self.fit_intercept = fit_intercept
        self.random_state = random_state

    def _loss(self):
        return losses.Huber(self.delta_)

    def _calibrate(self, columns, y):
        self.delta_ = self.delta
        if self.delta is None:
            self.delta_ = Design.of(columns, self.fit_intercept).usual_delta(columns, y)
        return super()._calibrate(columns, y)


class GibbsRegressor(_Regressor):
    """Any linear loss: one of `calibayes.losses`, or a function `rho(prediction, y)` of your own."""

    def __init__(
        self,
        loss=None,
        *,
        level=0.95,
        region="hpd",
        prior=None,
        bootstrap=None,
        sampler="auto",
        fit_intercept=True,
        random_state=0,
    ):
        self.loss = loss
        self.level = level
        self.region = region
        self.prior = prior
        self.bootstrap = bootstrap
        self.sampler = sampler
        self.fit_intercept = fit_intercept
        self.random_state = random_state

    def _loss(self):
        if self.loss is None:
            return losses.Squared()
        if isinstance(self.loss, LinearLoss):
            return self.loss
        if not callable(self.loss):
            raise TypeError(
                f"loss must be one of calibayes.losses or a function rho(prediction, y); got {self.loss!r}."
            )
        return losses.Linear(self.loss)


class _Classifier(ClassifierMixin, _Linear):
    def fit(self, X: Any, y: Any) -> Any:
        columns, target = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(target)
        kind = type_of_target(target, input_name="y")
        if kind != "binary":
            raise ValueError(f"Only binary classification is supported. The type of the target is {kind}.")
        self.classes_ = np.unique(target)
        if len(self.classes_) < 2:
            raise ValueError(f"y has only one class, {self.classes_[0]!r}: a classifier needs two.")
        return self._calibrate(columns, np.where(target == self.classes_[1], 1.0, -1.0))

    def decision_function(self, X: Any) -> Float[np.ndarray, " N"]:
        """Above zero for the second of `classes_`."""
        return self._predictions(X)

    def predict(self, X: Any) -> np.ndarray:
        second = self.decision_function(X) > 0
        return self.classes_[second.astype(int)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


class SVMClassifier(_Classifier):
    """A linear support vector machine of two classes; intervals are for its decision function."""

    def __init__(
        self,
        *,
        level=0.95,
        region="hpd",
        prior=None,
        bootstrap=None,
        sampler="auto",
        fit_intercept=True,
        random_state=0,
    ):
        self.level = level
        self.region = region
        self.prior = prior
        self.bootstrap = bootstrap
        self.sampler = sampler
        self.fit_intercept = fit_intercept
        self.random_state = random_state

    def _loss(self):
        return losses.Hinge()


class LogisticClassifier(SVMClassifier):
    """Logistic regression of two classes; intervals are for the probability of the second of `classes_`."""

    def _loss(self):
        return losses.Logistic()

    def predict_proba(self, X: Any) -> Float[np.ndarray, "N 2"]:
        second = _probability(self.decision_function(X))
        return np.column_stack([1 - second, second])

    def predict_interval(self, X: Any, level: float | None = None) -> Float[np.ndarray, "N 2"]:
        """Intervals for the probability of the second class at each row of X."""
        return _probability(super().predict_interval(X, level))


def _probability(log_odds: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-log_odds))
