"""Base class of the scikit-learn estimators."""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from calibayes.design import Design
from calibayes.losses import Cox, LinearLoss
from calibayes.report.description import model_title
from calibayes.report.source import python_source
from calibayes.result import Intervals, Result


class LinearEstimator(BaseEstimator):
    """Linear model with calibrated intervals. A subclass defines `_loss` and validates the data in `fit`."""

    def __init__(
        self,
        *,
        level=0.95,
        region="hpd",
        method="gpc",
        shape=None,
        prior=None,
        bootstrap=None,
        sampler="auto",
        fit_intercept=True,
        random_state=0,
    ):
        self.level = level
        self.region = region
        self.method = method
        self.shape = shape
        self.prior = prior
        self.bootstrap = bootstrap
        self.sampler = sampler
        self.fit_intercept = fit_intercept
        self.random_state = random_state

    @abstractmethod
    def _loss(self) -> LinearLoss | Cox:
        """Return the loss, given the parameters of the estimator."""

    def _calibrator(self, design: Design) -> Callable[..., Result]:
        """Return the function that calibrates the model, given the loss, the columns and the response."""
        return design.calibrate

    def _calibrate(self, design: Design, columns: Float[np.ndarray, "N P"], y: Any, target: str) -> None:
        """Calibrate the model and set the fitted attributes; the report calls the response `target`."""
        names = getattr(self, "feature_names_in_", [f"x{k}" for k in range(columns.shape[1])])
        seed, loss = as_seed(self.random_state), self._loss()
        classes = getattr(self, "classes_", None)
        self._recalibrate = partial(
            self._calibrator(design),
            loss,
            columns,
            y,
            names=[str(name) for name in names],
            call=self._source(seed, design.weights is not None),
            about={
                "target": target,
                "title": model_title(loss),
                "classes": None if classes is None else [str(label) for label in classes],
            },
            level=self.level,
            region=self.region,
            method=self.method,
            shape=self.shape,
            prior=self.prior,
            bootstrap=self.bootstrap,
            sampler=self.sampler,
            seed=seed,
            progress=False,
        )
        self._design = design
        self.result_: Result = self._recalibrate()
        self.eta_ = self.result_.eta
        theta = self.result_.estimate
        self.coef_ = theta[1:] if self.fit_intercept else theta
        self.intercept_ = float(theta[0]) if self.fit_intercept else 0.0

    def _design_of(self, columns: Float[np.ndarray, "N P"], sample_weight: object) -> Design:
        """Return the design of validated columns, whose rows may have weights."""
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, columns, dtype=np.float64)
        return Design.from_columns(columns, self.fit_intercept, weights)

    def _source(self, seed: int, weighted: bool = False) -> str:
        """Return Python code that fits this estimator, with the parameters that differ from their defaults."""
        defaults = type(self)().get_params(deep=False)
        parameters = self.get_params(deep=False) | {"random_state": seed}
        changed = [
            f"{name}={python_source(value, name)}"
            for name, value in parameters.items()
            if python_source(value) != python_source(defaults[name]) or type(value) is not type(defaults[name])
        ]
        name = type(self).__name__
        arguments = "X, y, sample_weight=weights" if weighted else "X, y"
        fit = f"result = {name}({', '.join(changed)}).fit({arguments}).result_"
        imports = ["import calibayes as cb"] if "cb." in fit else []
        return "\n".join([*imports, f"from calibayes.estimators import {name}", "", fit])

    def _result_with_particles(self) -> Result:
        """Return the result, calibrated again if a copy or pickle has lost the particles. The numbers are the same."""
        check_is_fitted(self)
        if self.result_.calibration is None:
            self.result_ = self._recalibrate()
        return self.result_

    @property
    def coef_interval_(self) -> Float[np.ndarray, "P 2"]:
        """Credible interval of each coefficient at `level`, calibrated at its own learning rate.

        The intervals are computed at the first access.
        """
        return self._intervals.bounds[int(self._design.intercept) :]

    @property
    def coef_eta_(self) -> Float[np.ndarray, " P"]:
        """Learning rate at which each coefficient's interval is calibrated."""
        return self._intervals.eta[int(self._design.intercept) :]

    @property
    def intercept_interval_(self) -> Float[np.ndarray, " 2"]:
        """Credible interval of the intercept at `level`; zeros if `fit_intercept=False`."""
        check_is_fitted(self)
        return self._intervals.bounds[0] if self._design.intercept else np.zeros(2)

    @property
    def _intervals(self) -> Intervals:
        check_is_fitted(self)
        return (self._result_with_particles() if self.result_.computed_intervals is None else self.result_).intervals()

    def _linear_prediction(self, X: object) -> Float[np.ndarray, " N"]:
        check_is_fitted(self)
        columns = validate_data(self, X, dtype=np.float64, reset=False)
        return columns @ self.coef_ + self.intercept_

    def predict_interval(self, X: object, level: float | None = None) -> Float[np.ndarray, "n 2"]:
        """Return credible intervals of the linear prediction at each row of X.

        The interval of each row is calibrated at its own learning rate. It is an interval of the fitted value, such as
        the conditional median, and not a prediction interval of a new response.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Columns.
        level : float, optional
            Credible level. Default: `level` of the estimator.

        Returns
        -------
        ndarray of shape (n_samples, 2)
            Lower and upper bounds.
        """
        result = self._result_with_particles()
        columns = validate_data(self, X, dtype=np.float64, reset=False)
        rows, inverse = np.unique(self._design.uncentred_matrix(columns), axis=0, return_inverse=True)
        return result.intervals(level, of=rows).bounds[inverse.reshape(-1)]


def as_seed(random_state: Any) -> int:
    """Return the seed of an estimator: that integer, or one that a random number generator draws."""
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31 - 1))
    return int(check_random_state(random_state).randint(2**31 - 1))


def name_of(y: Any) -> str:
    """Return the name of the response: that of a series or of a frame with one column, else "y"."""
    columns = getattr(y, "columns", None)
    name = getattr(y, "name", None) if columns is None or len(columns) != 1 else columns[0]
    return "y" if name is None else str(name)


def require_numeric(X: Any) -> None:
    """Raise an error that names the columns of a data frame that are not numeric or have missing values."""
    if not hasattr(X, "columns"):
        return
    texts = [str(name) for name in X.columns if not _is_numeric(X[name])]
    if texts:
        raise ValueError(
            f"X must hold numbers; these columns do not: {', '.join(texts)}. Encode them, for example by "
            'sklearn.preprocessing.OneHotEncoder, or use calibayes.fit("y ~ C(column)", frame).'
        )
    missing = {str(name): int(np.isnan(np.asarray(X[name], np.float64)).sum()) for name in X.columns}
    if any(missing.values()):
        counts = ", ".join(f"{name} ({n})" for name, n in missing.items() if n)
        raise ValueError(
            f"Input X contains NaN, in the columns {counts}. Drop these rows, impute the values, for example by "
            'sklearn.impute.SimpleImputer in a pipeline, or use calibayes.fit(..., missing="drop").'
        )


def require_numeric_response(y: Any, target: str) -> None:
    """Raise an error if the response consists of texts, and name the classifiers."""
    values = np.asarray(y)
    if values.dtype.kind not in "OUST":
        return
    texts = [value for value in dict.fromkeys(values.ravel().tolist()) if isinstance(value, str)]
    if texts and not all(_is_number(text) for text in texts):
        raise ValueError(
            f"the response {target!r} must hold numbers; it has values such as {texts[0]!r}. For two classes use "
            "LogisticClassifier or SVMClassifier."
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_numeric(column: Any) -> bool:
    """Return whether a column of a data frame can be converted to numbers, dates not among them."""
    try:
        return np.asarray(column).dtype.kind not in "mM" and np.asarray(column, np.float64).ndim == 1
    except (TypeError, ValueError):
        return False
