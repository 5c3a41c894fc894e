"""Regression estimators."""

import numpy as np
from jaxtyping import Float
from sklearn.base import RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import validate_data

from calibayes import losses
from calibayes.design import Design
from calibayes.estimators.base import LinearEstimator, name_of, require_numeric, require_numeric_response
from calibayes.losses import LinearLoss


class Regressor(RegressorMixin, LinearEstimator):
    """Base class of the regression estimators."""

    def fit(self, X: object, y: object, sample_weight: object = None) -> "Regressor":
        """Calibrate the model.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Columns.
        y : array-like of shape (n_samples,)
            Response.
        sample_weight : array-like of shape (n_samples,), optional
            Weight of each row, as `weights` in `calibayes.calibrate`. Default: all one.

        Returns
        -------
        Regressor
            The fitted estimator.
        """
        require_numeric(X)
        require_numeric_response(y, name_of(y))
        columns, response = validate_data(self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2)
        design = self._design_of(columns, sample_weight)
        self._calibrate(design, columns, np.asarray(response, np.float64), name_of(y))
        return self

    def predict(self, X: object) -> Float[np.ndarray, " N"]:
        """Return the linear prediction at the posterior mean.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Columns.

        Returns
        -------
        ndarray of shape (n_samples,)
            Predictions.
        """
        return self._linear_prediction(X)


class QuantileRegressor(Regressor):
    """Linear quantile regression with calibrated credible intervals.

    Parameters
    ----------
    tau : float
        Quantile level, between 0 and 1. Default: 0.5, the median.
    level : float
        Credible level of the intervals. Default: 0.95.
    region : str or Region
        Joint credible region that `eta_` calibrates. Default: "hpd".
    method : str or Method
        How the learning rate is set, as in `calibayes.calibrate`. Default: "gpc".
    shape : str, optional
        "sandwich" gives the posterior the shape of the sandwich covariance, as in `calibayes.calibrate`. Default: None.
    prior : Prior, optional
        Prior of the linear prediction at the means of the columns (absent if `fit_intercept=False`), followed by the
        coefficients. Default: independent normal distributions, weak compared with the spread of the data.
    bootstrap : int, Bootstrap or ndarray, optional
        Bootstrap replicates, as in `calibayes.calibrate`.
    sampler : str or Sampler
        Sampler, as in `calibayes.calibrate`. Default: "auto".
    fit_intercept : bool
        Whether the model has an intercept. Default: True.
    random_state : int, RandomState, Generator or None
        Seed. Default: 0, which makes repeated fits identical.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Posterior mean of the coefficients at `eta_`.
    coef_interval_ : ndarray of shape (n_features, 2)
        Credible interval of each coefficient at `level`, calibrated at its own learning rate. Computed at the first
        access.
    coef_eta_ : ndarray of shape (n_features,)
        Learning rate at which each coefficient's interval is calibrated.
    intercept_ : float
        Posterior mean of the intercept, the prediction where all columns are zero; 0 if `fit_intercept=False`.
    intercept_interval_ : ndarray of shape (2,)
        Calibrated credible interval of the intercept.
    eta_ : float
        Learning rate at which the joint credible region is calibrated.
    result_ : Result
        The calibration.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, if X was a data frame.

    See Also
    --------
    calibayes.losses.Quantile : The loss.

    Examples
    --------
    >>> import calibayes as cb
    >>> from calibayes.estimators import QuantileRegressor
    >>> X, y = cb.datasets.median_regression(n=60)
    >>> estimator = QuantileRegressor(bootstrap=100, sampler="transport").fit(X[:, 1:], y)
    >>> estimator.coef_.shape, estimator.coef_interval_.shape
    ((1,), (1, 2))
    """

    def __init__(
        self,
        tau=0.5,
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
        super().__init__(
            level=level,
            region=region,
            method=method,
            shape=shape,
            prior=prior,
            bootstrap=bootstrap,
            sampler=sampler,
            fit_intercept=fit_intercept,
            random_state=random_state,
        )
        self.tau = tau

    def _loss(self) -> LinearLoss:
        return losses.Quantile(self.tau)


class ExpectileRegressor(Regressor):
    """Linear expectile regression with calibrated credible intervals.

    Parameters
    ----------
    tau : float
        Expectile level, between 0 and 1. Default: 0.5, the mean.
    level : float
        Credible level of the intervals. Default: 0.95.
    region : str or Region
        Joint credible region that `eta_` calibrates. Default: "hpd".
    method : str or Method
        How the learning rate is set, as in `calibayes.calibrate`. Default: "gpc".
    shape : str, optional
        "sandwich" gives the posterior the shape of the sandwich covariance, as in `calibayes.calibrate`. Default: None.
    prior : Prior, optional
        Prior of the linear prediction at the means of the columns (absent if `fit_intercept=False`), followed by the
        coefficients. Default: independent normal distributions, weak compared with the spread of the data.
    bootstrap : int, Bootstrap or ndarray, optional
        Bootstrap replicates, as in `calibayes.calibrate`.
    sampler : str or Sampler
        Sampler, as in `calibayes.calibrate`. Default: "auto".
    fit_intercept : bool
        Whether the model has an intercept. Default: True.
    random_state : int, RandomState, Generator or None
        Seed. Default: 0, which makes repeated fits identical.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Posterior mean of the coefficients at `eta_`.
    coef_interval_ : ndarray of shape (n_features, 2)
        Credible interval of each coefficient at `level`, calibrated at its own learning rate. Computed at the first
        access.
    coef_eta_ : ndarray of shape (n_features,)
        Learning rate at which each coefficient's interval is calibrated.
    intercept_ : float
        Posterior mean of the intercept, the prediction where all columns are zero; 0 if `fit_intercept=False`.
    intercept_interval_ : ndarray of shape (2,)
        Calibrated credible interval of the intercept.
    eta_ : float
        Learning rate at which the joint credible region is calibrated.
    result_ : Result
        The calibration.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, if X was a data frame.

    See Also
    --------
    calibayes.losses.Expectile : The loss.

    Examples
    --------
    >>> import calibayes as cb
    >>> from calibayes.estimators import ExpectileRegressor
    >>> X, y = cb.datasets.median_regression(n=60)
    >>> estimator = ExpectileRegressor(bootstrap=300, sampler="transport").fit(X[:, 1:], y)
    >>> estimator.coef_.shape, estimator.coef_interval_.shape
    ((1,), (1, 2))
    """

    def __init__(
        self,
        tau=0.5,
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
        super().__init__(
            level=level,
            region=region,
            method=method,
            shape=shape,
            prior=prior,
            bootstrap=bootstrap,
            sampler=sampler,
            fit_intercept=fit_intercept,
            random_state=random_state,
        )
        self.tau = tau

    def _loss(self) -> LinearLoss:
        return losses.Expectile(self.tau)


class HuberRegressor(Regressor):
    """Robust linear regression by Huber's loss, with calibrated credible intervals.

    Parameters
    ----------
    delta : float, optional
        Residual size beyond which the loss is linear, in units of y. Default: 1.345 times a robust standard deviation
        of the least-squares residuals.
    level : float
        Credible level of the intervals. Default: 0.95.
    region : str or Region
        Joint credible region that `eta_` calibrates. Default: "hpd".
    method : str or Method
        How the learning rate is set, as in `calibayes.calibrate`. Default: "gpc".
    shape : str, optional
        "sandwich" gives the posterior the shape of the sandwich covariance, as in `calibayes.calibrate`. Default: None.
    prior : Prior, optional
        Prior of the linear prediction at the means of the columns (absent if `fit_intercept=False`), followed by the
        coefficients. Default: independent normal distributions, weak compared with the spread of the data.
    bootstrap : int, Bootstrap or ndarray, optional
        Bootstrap replicates, as in `calibayes.calibrate`.
    sampler : str or Sampler
        Sampler, as in `calibayes.calibrate`. Default: "auto".
    fit_intercept : bool
        Whether the model has an intercept. Default: True.
    random_state : int, RandomState, Generator or None
        Seed. Default: 0, which makes repeated fits identical.

    Attributes
    ----------
    delta_ : float
        Threshold `delta` that was used.
    coef_ : ndarray of shape (n_features,)
        Posterior mean of the coefficients at `eta_`.
    coef_interval_ : ndarray of shape (n_features, 2)
        Credible interval of each coefficient at `level`, calibrated at its own learning rate. Computed at the first
        access.
    coef_eta_ : ndarray of shape (n_features,)
        Learning rate at which each coefficient's interval is calibrated.
    intercept_ : float
        Posterior mean of the intercept, the prediction where all columns are zero; 0 if `fit_intercept=False`.
    intercept_interval_ : ndarray of shape (2,)
        Calibrated credible interval of the intercept.
    eta_ : float
        Learning rate at which the joint credible region is calibrated.
    result_ : Result
        The calibration.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, if X was a data frame.

    See Also
    --------
    calibayes.losses.Huber : The loss.

    Examples
    --------
    >>> import calibayes as cb
    >>> from calibayes.estimators import HuberRegressor
    >>> X, y = cb.datasets.median_regression(n=60)
    >>> estimator = HuberRegressor(bootstrap=300, sampler="transport").fit(X[:, 1:], y)
    >>> estimator.coef_.shape, estimator.coef_interval_.shape
    ((1,), (1, 2))
    """

    def __init__(
        self,
        delta=None,
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
        super().__init__(
            level=level,
            region=region,
            method=method,
            shape=shape,
            prior=prior,
            bootstrap=bootstrap,
            sampler=sampler,
            fit_intercept=fit_intercept,
            random_state=random_state,
        )
        self.delta = delta

    def _loss(self) -> LinearLoss:
        return losses.Huber(self.delta_)

    def _calibrate(
        self, design: Design, columns: Float[np.ndarray, "N P"], y: Float[np.ndarray, " N"], target: str
    ) -> None:
        self.delta_ = design.default_huber_delta(columns, y) if self.delta is None else self.delta
        super()._calibrate(design, columns, y, target)


class PoissonRegressor(Regressor):
    """Poisson regression with a logarithmic link and calibrated credible intervals.

    The responses need not have a Poisson distribution: intervals are calibrated for counts with any variance.
    Predictions and their intervals are of the conditional mean.

    Parameters
    ----------
    level : float
        Credible level of the intervals. Default: 0.95.
    region : str or Region
        Joint credible region that `eta_` calibrates. Default: "hpd".
    method : str or Method
        How the learning rate is set, as in `calibayes.calibrate`. Default: "gpc".
    shape : str, optional
        "sandwich" gives the posterior the shape of the sandwich covariance, as in `calibayes.calibrate`. Default: None.
    prior : Prior, optional
        Prior of the linear prediction at the means of the columns (absent if `fit_intercept=False`), followed by the
        coefficients. Default: independent normal distributions, weak compared with the spread of the data.
    bootstrap : int, Bootstrap or ndarray, optional
        Bootstrap replicates, as in `calibayes.calibrate`.
    sampler : str or Sampler
        Sampler, as in `calibayes.calibrate`. Default: "auto".
    fit_intercept : bool
        Whether the model has an intercept. Default: True.
    random_state : int, RandomState, Generator or None
        Seed. Default: 0, which makes repeated fits identical.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Posterior mean of the coefficients at `eta_`.
    coef_interval_ : ndarray of shape (n_features, 2)
        Credible interval of each coefficient at `level`, calibrated at its own learning rate. Computed at the first
        access.
    coef_eta_ : ndarray of shape (n_features,)
        Learning rate at which each coefficient's interval is calibrated.
    intercept_ : float
        Posterior mean of the intercept, the logarithm of the conditional mean where all columns are zero; 0 if
        `fit_intercept=False`.
    intercept_interval_ : ndarray of shape (2,)
        Calibrated credible interval of the intercept.
    eta_ : float
        Learning rate at which the joint credible region is calibrated.
    result_ : Result
        The calibration.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, if X was a data frame.

    See Also
    --------
    calibayes.losses.Poisson : The loss.

    Examples
    --------
    >>> from calibayes.estimators import PoissonRegressor
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(100, 1))
    >>> y = rng.poisson(np.exp(1 + 0.5 * X[:, 0]))
    >>> estimator = PoissonRegressor(bootstrap=200, sampler="transport").fit(X, y)
    >>> estimator.coef_.shape, estimator.predict(X[:3]).shape
    ((1,), (3,))
    """

    def _loss(self) -> LinearLoss:
        return losses.Poisson()

    def predict(self, X: object) -> Float[np.ndarray, " N"]:
        """Return the conditional mean at the posterior mean of the coefficients.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Columns.

        Returns
        -------
        ndarray of shape (n_samples,)
            Predictions.
        """
        return np.exp(self._linear_prediction(X))

    def predict_interval(self, X: object, level: float | None = None) -> Float[np.ndarray, "N 2"]:
        """Return credible intervals of the conditional mean at each row of X.

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
        return np.exp(super().predict_interval(X, level))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags


class GibbsRegressor(Regressor):
    """Linear regression by any loss, with calibrated credible intervals.

    Parameters
    ----------
    loss : LinearLoss, str or callable, optional
        One of `calibayes.losses`, one of their names (`calibayes.losses.names()`), or a function
        `rho(prediction, y) -> scalar`. The threshold of "huber" is that of `HuberRegressor`; an object such as
        `calibayes.losses.Huber(1.0)` has its own. Default: `calibayes.losses.Squared()`.
    level : float
        Credible level of the intervals. Default: 0.95.
    region : str or Region
        Joint credible region that `eta_` calibrates. Default: "hpd".
    method : str or Method
        How the learning rate is set, as in `calibayes.calibrate`. Default: "gpc".
    shape : str, optional
        "sandwich" gives the posterior the shape of the sandwich covariance, as in `calibayes.calibrate`. Default: None.
    prior : Prior, optional
        Prior of the linear prediction at the means of the columns (absent if `fit_intercept=False`), followed by the
        coefficients. Default: independent normal distributions, weak compared with the spread of the data.
    bootstrap : int, Bootstrap or ndarray, optional
        Bootstrap replicates, as in `calibayes.calibrate`.
    sampler : str or Sampler
        Sampler, as in `calibayes.calibrate`. Default: "auto".
    fit_intercept : bool
        Whether the model has an intercept. Default: True.
    random_state : int, RandomState, Generator or None
        Seed. Default: 0, which makes repeated fits identical.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Posterior mean of the coefficients at `eta_`.
    coef_interval_ : ndarray of shape (n_features, 2)
        Credible interval of each coefficient at `level`, calibrated at its own learning rate. Computed at the first
        access.
    coef_eta_ : ndarray of shape (n_features,)
        Learning rate at which each coefficient's interval is calibrated.
    intercept_ : float
        Posterior mean of the intercept, the linear prediction where all columns are zero; 0 if `fit_intercept=False`.
    intercept_interval_ : ndarray of shape (2,)
        Calibrated credible interval of the intercept.
    eta_ : float
        Learning rate at which the joint credible region is calibrated.
    result_ : Result
        The calibration.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, if X was a data frame.

    Examples
    --------
    >>> import calibayes as cb
    >>> from calibayes.estimators import GibbsRegressor
    >>> X, y = cb.datasets.median_regression(n=60)
    >>> estimator = GibbsRegressor(cb.losses.Absolute(), bootstrap=100, sampler="transport").fit(X[:, 1:], y)
    >>> estimator.coef_.shape, estimator.coef_interval_.shape
    ((1,), (1, 2))
    """

    def __init__(
        self,
        loss=None,
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
        super().__init__(
            level=level,
            region=region,
            method=method,
            shape=shape,
            prior=prior,
            bootstrap=bootstrap,
            sampler=sampler,
            fit_intercept=fit_intercept,
            random_state=random_state,
        )
        self.loss = loss

    def _loss(self) -> LinearLoss:
        if self.loss is None:
            return losses.Squared()
        if isinstance(self.loss, LinearLoss):
            return self.loss
        if isinstance(self.loss, str):
            return losses.from_name(self.loss, delta=self._default_delta)
        if not callable(self.loss):
            raise TypeError(
                f"loss must be one of calibayes.losses, its name, or a function rho(prediction, y); got {self.loss!r}."
            )
        return losses.Linear(self.loss)

    def _calibrate(
        self, design: Design, columns: Float[np.ndarray, "N P"], y: Float[np.ndarray, " N"], target: str
    ) -> None:
        is_huber = isinstance(self.loss, str) and self.loss == "huber"
        self._default_delta = design.default_huber_delta(columns, y) if is_huber else None
        super()._calibrate(design, columns, y, target)
