"""Several conditional quantiles of the same data."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator
from sklearn.metrics import d2_pinball_score
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import check_is_fitted, validate_data

from calibayes._backend.arguments import fraction
from calibayes.estimators.base import as_seed, require_numeric
from calibayes.estimators.regressors import QuantileRegressor


class MultiQuantileRegressor(BaseEstimator):
    """Linear regression of several quantiles, with calibrated credible intervals.

    Each quantile is fitted by a `QuantileRegressor` on the same bootstrap replicates. Fitted lines of different
    quantiles can cross; predictions are sorted, so that they do not (Chernozhukov, Fernandez-Val and Galichon 2010).

    Parameters
    ----------
    taus : sequence of float
        Quantile levels, increasing and between 0 and 1. Default: the quartiles.
    level : float
        Credible level of the intervals. Default: 0.95.
    region : str or Region
        Joint credible region of the coefficients of one quantile, which `eta_` calibrates. Default: "hpd".
    method : str or Method
        How the learning rates are set, as in `calibayes.calibrate`. Default: "gpc".
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
    n_jobs : int, optional
        Number of quantiles that are fitted at the same time, in threads; -1 for all processors. Each fit uses several
        processors by itself, so that this helps for small data only. Default: one after the other.

    Attributes
    ----------
    estimators_ : list of QuantileRegressor
        The fitted estimator of each quantile.
    coef_ : ndarray of shape (n_taus, n_features)
        Posterior means of the coefficients.
    intercept_ : ndarray of shape (n_taus,)
        Posterior means of the intercepts.
    eta_ : ndarray of shape (n_taus,)
        Learning rates at which the joint credible regions are calibrated.
    n_crossings_ : int
        Number of training rows at which fitted quantiles cross, so that predictions are sorted.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, if X was a data frame.

    References
    ----------
    Chernozhukov, Fernandez-Val and Galichon (2010), Quantile and probability curves without crossing, Econometrica 78.

    Examples
    --------
    >>> import calibayes as cb
    >>> from calibayes.estimators import MultiQuantileRegressor
    >>> X, y = cb.datasets.median_regression(n=60)
    >>> estimator = MultiQuantileRegressor([0.25, 0.75], bootstrap=100, sampler="transport").fit(X[:, 1:], y)
    >>> estimator.predict(X[:5, 1:]).shape, estimator.coef_.shape
    ((5, 2), (2, 1))
    """

    def __init__(
        self,
        taus=(0.25, 0.5, 0.75),
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
        n_jobs=None,
    ):
        self.taus = taus
        self.level = level
        self.region = region
        self.method = method
        self.shape = shape
        self.prior = prior
        self.bootstrap = bootstrap
        self.sampler = sampler
        self.fit_intercept = fit_intercept
        self.random_state = random_state
        self.n_jobs = n_jobs

    def fit(self, X: object, y: object, sample_weight: object = None) -> "MultiQuantileRegressor":
        """Calibrate the model of each quantile.

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
        MultiQuantileRegressor
            The fitted estimator.
        """
        taus = _check_taus(self.taus)
        require_numeric(X)
        columns, _ = validate_data(self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2)
        options = {name: value for name, value in self.get_params(deep=False).items() if name not in ("taus", "n_jobs")}
        # One seed, so that the replicates are the same for all quantiles.
        options["random_state"] = as_seed(self.random_state)
        fit_one = delayed(lambda tau: QuantileRegressor(tau, **options).fit(X, y, sample_weight))
        self.estimators_ = list(Parallel(self.n_jobs, prefer="threads")(fit_one(tau) for tau in taus))
        self.coef_ = np.array([estimator.coef_ for estimator in self.estimators_])
        self.intercept_ = np.array([estimator.intercept_ for estimator in self.estimators_])
        self.eta_ = np.array([estimator.eta_ for estimator in self.estimators_])
        self.n_crossings_ = int((np.diff(columns @ self.coef_.T + self.intercept_, axis=1) < 0).any(1).sum())
        return self

    @property
    def coef_interval_(self) -> Float[np.ndarray, "T P 2"]:
        """Credible interval of each coefficient at `level`, calibrated at its own learning rate.

        The intervals are computed at the first access.
        """
        check_is_fitted(self)
        return np.array([estimator.coef_interval_ for estimator in self.estimators_])

    def predict(self, X: object) -> Float[np.ndarray, "N T"]:
        """Return the conditional quantiles at the posterior means, in increasing order.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Columns.

        Returns
        -------
        ndarray of shape (n_samples, n_taus)
            Predictions.
        """
        check_is_fitted(self)
        columns = validate_data(self, X, dtype=np.float64, reset=False)
        return np.sort(columns @ self.coef_.T + self.intercept_, axis=1)

    def predict_interval(self, X: object, level: float | None = None) -> Float[np.ndarray, "N T 2"]:
        """Return credible intervals of the conditional quantiles at each row of X.

        The bounds are sorted along the quantiles, as the predictions are.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Columns.
        level : float, optional
            Credible level. Default: `level` of the estimator.

        Returns
        -------
        ndarray of shape (n_samples, n_taus, 2)
            Lower and upper bounds.
        """
        check_is_fitted(self)
        return np.sort(np.stack([one.predict_interval(X, level) for one in self.estimators_], 1), axis=1)

    def score(self, X: object, y: object, sample_weight: object = None) -> float:
        """Return the mean over the quantiles of the share of the check loss that the predictions explain.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Columns.
        y : array-like of shape (n_samples,)
            Response.
        sample_weight : array-like of shape (n_samples,), optional
            Weight of each row. Default: all one.

        Returns
        -------
        float
            One minus the check loss relative to that of a constant (`sklearn.metrics.d2_pinball_score`); at most 1.
        """
        taus, columns = _check_taus(self.taus), self.predict(X).T
        pairs = zip(taus, columns, strict=True)
        return float(np.mean([d2_pinball_score(y, q, sample_weight=sample_weight, alpha=tau) for tau, q in pairs]))


def _check_taus(taus: Sequence[float]) -> list[float]:
    values = [fraction("each of taus", tau) for tau in np.atleast_1d(np.asarray(taus, object))]
    if not values or (np.diff(values) <= 0).any():
        raise ValueError(f"taus must be increasing; got {taus!r}.")
    return values
